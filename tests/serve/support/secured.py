"""Clusters whose nodes have TLS: their certificates, and clients of each listener."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import grpc
from delaylocal import LocalCluster, ports
from delayregistry.model import TopicSpec
from delayregistry.security import AuthorizationMode, SecuritySpec
from delayregistry.sqlite import SqliteRegistry

from tests.security.authority import Authority, Issued, Mount, write
from tests.serve.support.client import OPTIONS, Client, wait_served

NAME = "shared.messages.svc"
CLUSTER = "spiffe://delaycluster/ns/messages/cluster/shared/role/"
NOTHING_ASKED = SecuritySpec(AuthorizationMode.OFF)
LISTENERS = {"tls": "tls,none", "tokens": "tls,token", "mtls": "tls,mtls"}


class Secured:
    """A cluster in `directory`. Its nodes have a listener `plain` beside these, and `peers` among themselves.
    document: for security; None: none yet, so that they wait for it."""

    def __init__(
        self, directory: Path, peers: str, *options: str, nodes: int, document: SecuritySpec | None = NOTHING_ASKED
    ) -> None:
        self.document = document
        self.ca, self.client_ca, self.peer_ca = Authority("server"), Authority("clients"), Authority("peers")
        self.server = Mount(directory / "server", self.ca.issue(NAME), self.ca.pem)
        self.clients = write(directory / "clients", None, self.client_ca.pem)
        self.peers = Mount(directory / "peers", self.peer_ca.issue(CLUSTER + "node", NAME), self.peer_ca.pem)
        self.directory, self._options, self._peers, self._nodes = directory, options, peers, nodes

    @contextmanager
    def run(self):
        names = (*LISTENERS, "internal")
        free = ports.choose(0, len(names) * self._nodes).grpc
        self.ports = [dict(zip(names, free[at :: self._nodes], strict=True)) for at in range(self._nodes)]
        more = {f"n{number}": self._node_options(at) for number, at in enumerate(self.ports)}
        command = (sys.executable, "-P", str(Path(__file__).with_name("secured_node.py")), json.dumps(more))
        topics = [TopicSpec("t", 3 * self._nodes)]
        (self.directory / "own").mkdir()
        registry = SqliteRegistry(self.directory / "own" / "registry.db", create=True)
        if self.document is not None:
            registry.put_security(self.document, None)
        registry.close()
        with LocalCluster(
            self.directory / "own", nodes=self._nodes, topics=topics, node_command=command, secure=False
        ) as running:
            for at, endpoint in zip(self.ports, running.endpoints, strict=True):
                at["plain"] = int(endpoint.rpartition(":")[2])
            if self.document is not None:
                wait_served(running)
            self.running = running
            yield self
        logs = [path.read_text() for path in (self.directory / "own" / "logs").glob("*.log")]
        assert not any("Traceback" in log for log in logs)

    def _node_options(self, at: dict[str, int]) -> list[str]:
        return [
            "--listener=plain=LISTEN,plain,none",
            *(f"--listener={name}={at[name]},{how}" for name, how in LISTENERS.items()),
            f"--certificates={self.server.path}", f"--client-ca={self.clients}",
            f"--peer-certificates={self.peers.path}", f"--peers={self._peers}", f"--internal-port={at['internal']}",
            *self._options,
        ]  # fmt: skip

    def events(self, name: str, node: str = "n0") -> list[dict]:
        """What a node has logged of that."""
        lines = (self.directory / "own" / "logs" / f"{node}.log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in found if one.get("event") == name]

    def endpoint(self, listener: str, node: int = 0) -> str:
        return f"127.0.0.1:{self.ports[node][listener]}"

    def dial(
        self, listener: str, client: Issued | None = None, *, node: int = 0, roots: bytes | None = None
    ) -> TlsClient:
        return TlsClient(self.endpoint(listener, node), roots or self.ca.pem, client)


class TlsClient(Client):
    """A client on a connection of its own."""

    def __init__(self, endpoint: str, roots: bytes, client: Issued | None) -> None:
        self.endpoint = endpoint
        key, chain = (client.key_pem, client.chain_pem) if client else (None, None)
        options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", NAME)]
        self.channel = grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(roots, key, chain), options)
