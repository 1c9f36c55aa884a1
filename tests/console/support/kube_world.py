"""Real nodes in a fake Kubernetes that are reached by port-forward, and an API server that notes who asks it"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web
from delayregistry.model import TopicSpec

from tests.client.support.fakepods import ForwardingApiServer
from tests.kube.desired import OWNER
from tests.kube.fakekinds import find
from tests.kube.nodes import CLUSTER, NAMESPACE, KubeCluster

ALICE = "a-token-of-alice"


class NotingApiServer(ForwardingApiServer):
    """asked: method, path and identity of each request of `delayctl`. forbidden: method and part of a path that
    the identity may not."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, str]] = []
        self.forbidden: set[tuple[str, str]] = set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/portforward") or request.headers.get("User-Agent", "").startswith("delayctl"):
            self.asked.append((request.method, request.path, request.headers.get("Authorization", "")))
            if any(method == request.method and part in request.path for method, part in self.forbidden):
                refused = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}
                return web.json_response({**refused, "message": "alice may not do that"}, status=403)
        return await super()._handle(request)

    @property
    def writes(self) -> list[str]:  # type: ignore[override]  # those of one client
        """What the console was asked to change."""
        return [f"{method} {path}" for method, path, _ in self.asked if method != "GET"]


class PodCluster(KubeCluster):
    """Three nodes, each with an address of its own, that are also pods and a DelayCluster."""

    def __init__(self, data: Path, server: NotingApiServer) -> None:
        super().__init__(data, server, nodes=3, topics=[TopicSpec("orders", 2)])
        self._server = server

    def _command(self, number: int, node: str) -> tuple[str, ...]:
        command, port = list(super()._command(number, node)), self._ports.grpc[number]
        command[command.index("--listen") + 1] = f"0.0.0.0:{port}"
        return (*command, "--advertise", f"{self._address(number)}:{port}")

    @staticmethod
    def _address(number: int) -> str:
        return f"127.0.0.{number + 2}"

    def start(self) -> None:
        super().start()
        store = self._server.store
        spec = {"nodes": 3, "replicas": 2, "topics": [{"name": "orders", "queues": 2}]}
        metadata = {"name": CLUSTER, "uid": OWNER.uid}
        store.create(find("delayclusters"), NAMESPACE, {"kind": "DelayCluster", "metadata": metadata, "spec": spec})
        labels = {"delaycluster.io/cluster": CLUSTER, "app.kubernetes.io/component": "node"}
        for number, port in enumerate(self._ports.grpc):
            name = f"{CLUSTER}-{number}"
            pod: dict[str, Any] = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": []}}
            store.create(find("pods"), NAMESPACE, pod)
            store.patch(find("pods"), NAMESPACE, name, {"status": {"podIP": self._address(number)}}, sub="status")
            self._server.kubelet.pods[name] = port
