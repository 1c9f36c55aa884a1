"""A cluster of real node processes whose registry is a (fake) Kubernetes API server, driven by a real control loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from delaylocal import LocalCluster
from delayoperator.control_loop.loop import WRITERS, ControlLoop, new_uid
from delayoperator.control_loop.probe import GrpcProber
from delayregistry.kube import Credentials, KubeClient
from delayregistry.model import ShardObject
from kubernetes.client import Configuration

from tests.kube.desired import OWNER, WritingRegistry
from tests.kube.fakeapi import FakeApiServer

NAMESPACE, CLUSTER = "default", "c"
LOOK_MS = 500  # time between looks at the leases, as in the operator


class KubeCluster(LocalCluster):
    """A LocalCluster with another registry. KUBECONFIG has to name the server; events: the registry's log."""

    def __init__(self, data: Path, server: FakeApiServer, **desired: Any) -> None:
        super().__init__(data, **{"nodes": 3, "replicas": 2, **desired})
        self._client = KubeClient(Credentials(Configuration(host=server.url)), agent="delaycluster-operator")
        self.events: list[dict[str, object]] = []

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def stop(self, *args: Any, **options: Any) -> tuple[str, ...]:
        killed = super().stop(*args, **options)
        self._client.close()
        return killed

    def shards(self) -> tuple[ShardObject, ...]:
        return self.registry.list_shards()

    def epochs(self) -> dict[str, int]:
        return {shard.name: shard.spec.epoch for shard in self.shards()}

    def masters(self) -> set[str]:
        return {shard.spec.master for shard in self.shards() if shard.spec.master is not None}

    def _prepare(self) -> None:
        self.registry.close()
        registry = WritingRegistry(
            self._client, NAMESPACE, CLUSTER, OWNER, log=lambda event: self.events.append(dict(event))
        )
        registry.ensure_leases([f"n{number}" for number in range(self._requested.get("nodes") or 3)])
        self.registry = registry  # type: ignore[assignment]  # it needs no more than a Registry
        super()._prepare()

    def _run_loop(self) -> None:
        loop = ControlLoop(
            self.registry, new_uid, self._operator_events, prober=GrpcProber(), ended=self.ended, writers=WRITERS
        )
        loop.run(self._stop_loop, refresh_ms=LOOK_MS)

    def _command(self, number: int, node: str) -> tuple[str, ...]:
        command = list(super()._command(number, node))
        command[command.index("--registry") + 1] = f"kube:{NAMESPACE}/{CLUSTER}"
        return tuple(command)
