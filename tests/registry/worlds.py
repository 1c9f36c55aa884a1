"""Where a test opens registries of a kind, several over one state."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from delayregistry.kube import Credentials, KubeClient, OwnerReference
from delayregistry.model import ClusterSpec, Version
from delayregistry.port import Registry
from delayregistry.security import SecuritySpec
from delayregistry.sqlite import SqliteRegistry
from kubernetes.client import Configuration

from tests.kube.desired import OWNER, WritingRegistry
from tests.kube.fakeapi import FakeApiServer

CLUSTER = "c"
NAMESPACE = "default"
NODES = ("n0", "n1", "n2")


class Openable(Registry, Protocol):
    """With the writes of whoever makes the cluster."""

    def put_cluster(self, spec: ClusterSpec, version: Version | None) -> Version: ...

    def put_security(self, spec: SecuritySpec, version: Version | None) -> Version: ...


class World(Protocol):
    def open(self) -> Openable:
        """One more. Closed with the world, or before."""

    def close(self) -> None: ...


class SqliteWorld:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: list[SqliteRegistry] = []

    def open(self) -> Openable:
        self._open.append(SqliteRegistry(self._path, create=True))
        return self._open[-1]

    def close(self) -> None:
        for registry in self._open:
            registry.close()


class KubeWorld:
    """A fake API server; its nodes' leases exist, as the operator makes them. events: what the registries logged."""

    def __init__(self, **server: Any) -> None:
        self.server = FakeApiServer(**server)
        self.server.start()
        self.events: list[dict[str, object]] = []
        self._open: list[WritingRegistry] = []
        self._clients: list[KubeClient] = []
        self.open().ensure_leases(NODES)

    def client(self, **options: Any) -> KubeClient:
        """Closed with the world."""
        self._clients.append(KubeClient(Credentials(Configuration(host=self.server.url)), agent="test", **options))
        return self._clients[-1]

    def open(self, owner: OwnerReference | None = OWNER, **options: Any) -> WritingRegistry:
        """The operator's; with owner None a node's. Each has connections of its own, as in a process of its own."""
        client = self.client()
        registry = WritingRegistry(
            client, NAMESPACE, CLUSTER, owner, log=lambda event: self.events.append(dict(event)), **options
        )
        self._open.append(registry)
        return registry

    def close(self) -> None:
        for registry in self._open:
            registry.close()
        for client in self._clients:
            client.close()
        self.server.close()


def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Waits for it; fails when it does not come."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come"
        time.sleep(0.01)
