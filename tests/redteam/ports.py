"""What each TLS port of a node speaks, as `openssl s_client` sees it: `python -m tests.redteam.ports [HOST:PORT...]`.

Without addresses: those of a node that `delayctl local --secure` starts, by each edge.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import click
import grpc
from delaylocal import LocalCluster
from delaylocal.own_keys import SERVER_NAME
from delaynode.config import EDGE_VARIABLE
from delayregistry.model import TopicSpec

from tests.redteam.run import EDGES
from tests.redteam.world import HTTP

VERSIONS = {"-ssl3": "SSL 3.0", "-tls1": "TLS 1.0", "-tls1_1": "TLS 1.1", "-tls1_2": "TLS 1.2", "-tls1_3": "TLS 1.3"}
CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256",
           "TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256")  # fmt: skip
WEAK = ("-cipher", "ALL:COMPLEMENTOFALL:@SECLEVEL=0")  # all that this OpenSSL has, of versions before 1.3
TICKET_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Port:
    """asks: for a client's certificate. alpn: by what is offered, what is chosen; "": the handshake fails. resumes:
    sessions, by tickets. reflection: how gRPC's server reflection answers; "": it is no port of gRPC's."""

    name: str
    versions: tuple[str, ...]
    refused: tuple[str, ...]
    ciphers: tuple[str, ...]
    key: str
    group: str
    asks: bool
    alpn: tuple[tuple[str, str], ...]
    resumes: bool
    reflection: str

    def __str__(self) -> str:
        alpn = ", ".join(f"{offered} -> {chosen or 'refused'}" for offered, chosen in self.alpn)
        return "\n".join(
            (
                f"{self.name}",
                f"  speaks              {', '.join(self.versions) or 'nothing'}; refuses {', '.join(self.refused)}",
                f"  ciphers             {', '.join(self.ciphers)}",
                f"  certificate's key   {self.key}",
                f"  key exchange        {self.group}",
                f"  client certificate  {'asked for' if self.asks else 'not asked for'}",
                f"  ALPN                {alpn}",
                f"  resumes sessions    {'yes' if self.resumes else 'no'}",
                f"  reflection          {self.reflection or '-'}",
            )
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """What a client that is let in shows."""

    certificate: str = ""
    key: str = ""
    token: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        return ("-cert", self.certificate, "-key", self.key) if self.certificate else ()


def look(name: str, address: str, shown: Shown, roots: bytes) -> Port:
    """Asks the port with a dozen handshakes. Raises OSError where openssl is missing."""
    spoken = {
        said: _shaken(_ask(address, flag, *(() if flag == "-tls1_3" else WEAK))) for flag, said in VERSIONS.items()
    }
    found = _ask(address, "-tls1_3", "-alpn", "h2")
    alpn = tuple((offered, _alpn(_ask(address, "-tls1_3", *options))) for offered, options in
                 (("h2", ("-alpn", "h2")), ("http/1.1", ("-alpn", "http/1.1")), ("none", ())))  # fmt: skip
    return Port(
        name,
        tuple(version for version, done in spoken.items() if done),
        tuple(version for version, done in spoken.items() if not done),
        tuple(one for one in CIPHERS if _shaken(_ask(address, "-tls1_3", "-ciphersuites", one, "-alpn", "h2"))),
        _after(found, "a:PKEY: ") or "?",
        _after(found, "Server Temp Key: ") or _after(found, "Negotiated TLS1.3 group: ") or "?",
        "Requested Signature Algorithms" in found,
        alpn,
        _resumes(address, shown),
        _reflection(address, shown, roots) if dict(alpn)["h2"] == "h2" else "",
    )


def _ask(address: str, *options: str, seconds: float = 0.0) -> str:
    """What openssl says of a handshake. seconds: to stay connected."""
    command = ("openssl", "s_client", "-connect", address, "-servername", SERVER_NAME, "-showcerts", *options)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    time.sleep(seconds)
    return process.communicate(timeout=20)[0].decode(errors="replace")


def _shaken(said: str) -> bool:
    return "BEGIN CERTIFICATE" in said and "New, (NONE), Cipher is (NONE)" not in said


def _alpn(said: str) -> str:
    """Chosen; "none": the handshake does without; "": it fails."""
    if "alert no application protocol" in said or not _shaken(said):
        return ""
    return _after(said, "ALPN protocol: ") or "none"


def _after(said: str, start: str) -> str:
    return next((line.partition(start)[2].strip() for line in said.splitlines() if start in line), "")


def _resumes(address: str, shown: Shown) -> bool:
    options = ("-tls1_3", "-alpn", "h2", *shown.options)
    with tempfile.TemporaryDirectory() as directory:
        session = f"{directory}/session"
        _ask(address, *options, "-sess_out", session, seconds=TICKET_SECONDS)
        return Path(session).exists() and "Reused, TLSv1.3" in _ask(address, *options, "-sess_in", session)


def _reflection(address: str, shown: Shown, roots: bytes) -> str:
    """Of who may do everything."""
    own = (Path(shown.key).read_bytes(), Path(shown.certificate).read_bytes()) if shown.certificate else (None, None)
    name = (("grpc.ssl_target_name_override", SERVER_NAME),)
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(roots, *own), name) as channel:
        ask = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        try:
            list(ask(iter([b"\x3a\x00"]), metadata=(("authorization", f"Bearer {shown.token}"),), timeout=10))
        except grpc.RpcError as error:
            return f"off ({error.code().name})"
    return "on"


def of_local_node(directory: Path, edge: str) -> list[Port]:
    """All ports with TLS of one node that has that edge."""
    before = os.environ.get(EDGE_VARIABLE)
    os.environ[EDGE_VARIABLE] = edge
    try:
        with LocalCluster(directory, nodes=1, topics=[TopicSpec("t", 1)], secure=True) as cluster:
            cluster.wait_ready()
            ports, keys = cluster._ports, cluster.keys
            assert keys is not None
            admin, own = keys.admin, keys.operator
            token = Shown(token=keys.token_file.read_text().strip())
            client, operator = (Shown(f"{at}/tls.crt", f"{at}/tls.key") for at in (admin, own))
            roots, peer_roots = keys.ca.read_bytes(), (own / "ca.crt").read_bytes()
            node = Shown(f"{keys.peers}/tls.crt", f"{keys.peers}/tls.key")
            return [
                look(name, f"127.0.0.1:{at[0]}", shown, trusted)
                for name, at, shown, trusted in (
                    ("tokens", ports.grpc, token, roots), ("mtls", ports.mtls, client, roots),
                    ("internal", ports.internal, operator, peer_roots), ("peer", ports.peer, node, peer_roots),
                    (HTTP, ports.http_tokens, token, roots),
                )
            ]  # fmt: skip
    finally:
        os.environ.pop(EDGE_VARIABLE) if before is None else os.environ.update({EDGE_VARIABLE: before})


@click.command(help=__doc__)
@click.argument("addresses", nargs=-1)
@click.option("--ca", type=click.File("rb"), help="Whom to trust with the nodes' certificates.")
@click.option("--certificate", default="", help="Of a client; for ports that ask for one.")
@click.option("--key", default="", help="Of that.")
@click.option("--token", envvar="DELAY_TOKEN", default="", help="Of a client; for ports that ask for one.")
def main(addresses: tuple[str, ...], ca: BinaryIO | None, certificate: str, key: str, token: str) -> None:
    for address in addresses:
        click.echo(look(address, address, Shown(certificate, key, token), ca.read() if ca else b""))
    for edge in () if addresses else EDGES:
        click.echo(f"== {edge}")
        with tempfile.TemporaryDirectory(prefix="delay-ports-") as directory:
            for port in of_local_node(Path(directory), edge):
                click.echo(port)


if __name__ == "__main__":
    main()
