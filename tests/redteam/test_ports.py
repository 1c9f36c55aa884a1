"""What the ports of a secured node speak, by both edges: TLS 1.3 with its three good ciphers, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.redteam.ports import CIPHERS, of_local_node
from tests.redteam.run import EDGES

OLD = {"SSL 3.0", "TLS 1.0", "TLS 1.1", "TLS 1.2"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
@pytest.mark.parametrize("edge", EDGES)
def test_every_port_speaks_tls_1_3_alone_and_asks_for_what_it_should(tmp_path: Path, edge: str) -> None:
    ports = {port.name: port for port in of_local_node(tmp_path, edge)}
    assert {name: port.asks for name, port in ports.items()} == {
        "tokens": False, "mtls": True, "internal": True, "peer": True, "http-tokens": False,
    }  # fmt: skip
    for name, port in ports.items():
        assert port.versions == ("TLS 1.3",), port
        assert {*port.refused, "SSL 3.0"} >= OLD, port
        assert set(port.ciphers) == set(CIPHERS[:3]), port
        assert port.key.startswith("id-ecPublicKey, 256 (bit)"), port
        grpc = name not in ("peer", "http-tokens")
        assert dict(port.alpn)["h2"] == ("h2" if grpc else "none"), port
        assert dict(port.alpn)["http/1.1"] != "http/1.1", port
        assert port.reflection.startswith("off" if grpc else ""), port
        assert not port.resumes or (grpc and edge == "grpcio"), port
