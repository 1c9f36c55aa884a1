"""What a listener and a client get from a CA, for tests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc

from tests.security.authority import DAY, Authority

NAME = "shop.orders.svc"
_BEGINS = -30 * DAY


def serving(
    authority: Authority, *names: str, ends: timedelta = DAY, clients: bytes | None = None
) -> grpc.ServerCredentials:
    """Of a listener. clients: the CA of the certificates that clients must show."""
    issued = authority.issue(*(names or (NAME,)), begins=_BEGINS, ends=ends)
    return grpc.ssl_server_credentials([(issued.key_pem, issued.chain_pem)], clients, clients is not None)


def write_ca(authority: Authority, path: Path) -> Path:
    path.write_bytes(authority.pem)
    return path


def write_client(authority: Authority, directory: Path) -> tuple[Path, Path]:
    """A client's certificate and key."""
    issued = authority.issue("client")
    (directory / "client.crt").write_bytes(issued.chain_pem)
    (directory / "client.key").write_bytes(issued.key_pem)
    return directory / "client.crt", directory / "client.key"
