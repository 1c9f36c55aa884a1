"""A DelayCluster in a fake API server, with two nodes that are fake too and reached by port-forward only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from delayapi.proto.delay.v1 import delay_pb2
from delayregistry.kube import objects
from delayregistry.kube.names import Names
from delayregistry.model import ClusterSpec, NodeLease, ShardSpec, ShardStatus, TopicSpec

from tests.client.support.fakepods import NAMESPACE, PORT, ForwardingApiServer, PodNode
from tests.client.support.fakes import FakeCluster
from tests.kube.desired import new_lease, new_settings
from tests.kube.fakekinds import find

NAME = "orders"
ADDRESSES = ("198.18.0.1", "198.18.0.2")
UID = 100


class KubeWorld:
    """Topic t of one queue: n0 is its master, n1 its in-sync slave."""

    def __init__(self, kubeconfig: Path) -> None:
        self.api = ForwardingApiServer()
        self.names = Names(NAMESPACE, NAME)
        self.spec = ClusterSpec(NAME, 2, topics=(TopicSpec("t", 1),), replicas=1)
        self.shard = ShardSpec(UID, "t", 0, ("n0", "n1"), master="n0", epoch=1, incarnation="i0")
        self.nodes: list[PodNode] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-nodes", daemon=True)
        self.api.start()
        self.api.write_kubeconfig(kubeconfig, namespace=NAMESPACE)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start_nodes(), self._loop).result(10)
        self._create_objects()

    def close(self) -> None:
        for node in self.nodes:
            asyncio.run_coroutine_threadsafe(node.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self.api.close()

    # Objects, for tests to read.

    def delaycluster(self) -> dict[str, Any]:
        return self.api.get("delayclusters", NAME, NAMESPACE)

    def shard_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.api.get("delayshards", f"{NAME}.t-0", NAMESPACE)["spec"]
        return spec

    # Actions of other clients, of the operator and of nodes.

    def delete(self, plural: str) -> None:
        for obj in self.api.list(plural, NAMESPACE):
            self.api.store.delete(find(plural), NAMESPACE, obj["metadata"]["name"])

    def request(self, **spec: Any) -> None:
        self.api.store.patch(find("delayclusters"), NAMESPACE, NAME, {"spec": spec})

    def led_by(self, node: str) -> None:
        """Make `node` the master, by the writes that the operator and the new master would make."""
        incarnation, epoch = f"i{node[1:]}", self.shard.epoch + 1
        self.shard = replace(self.shard, master=node, epoch=epoch, incarnation=incarnation)
        self.api.store.patch(find("delayshards"), NAMESPACE, f"{NAME}.t-0", objects.spec_patch(self.shard))
        self._write_status(ShardStatus(epoch, incarnation, ("c0", "c1")))

    def renewed(self, node: int, incarnation: str) -> None:
        """A process of this node writes its lease."""
        endpoint = f"{ADDRESSES[node]}:{PORT}"
        lease = NodeLease(f"n{node}", incarnation, endpoint, f"{ADDRESSES[node]}:7170", renewals=1)
        patch = objects.lease_patch(lease, "", 3, 0)
        self.api.store.patch(find("leases"), NAMESPACE, self.names.object(f"n{node}"), patch)

    # ---------------------------------------------------------------------------------------------------

    async def _start_nodes(self) -> None:
        cluster = FakeCluster(queues=1)
        for number, address in enumerate(ADDRESSES):
            node = PodNode(cluster, address)
            await node.start(master=number == 0)
            self.nodes.append(node)
            self.api.kubelet.pods[f"{NAME}-{number}"] = node.port
            node.unary["ReplicaStatus"] = lambda _, number=number: self._replica_status(number)

    def _replica_status(self, number: int) -> delay_pb2.ReplicaStatusResponse:
        answer = delay_pb2.ReplicaStatusResponse(node=f"n{number}", incarnation=f"i{number}", listed=True)
        role = delay_pb2.ReplicaState.SLAVE if number else delay_pb2.ReplicaState.MASTER
        answer.copies.add(topic="t", uid=UID, entry=f"c{number}", role=role, epoch=1, log_epoch=1, log_end=100)
        return answer

    def _create_objects(self) -> None:
        store = self.api.store
        node = {"delaycluster.io/cluster": NAME, "app.kubernetes.io/component": "node"}
        for number, address in enumerate(ADDRESSES):
            pod = {"metadata": {"name": f"{NAME}-{number}", "labels": node}, "spec": {"containers": []}}
            store.create(find("pods"), NAMESPACE, pod)
            store.patch(find("pods"), NAMESPACE, f"{NAME}-{number}", {"status": {"podIP": address}}, sub="status")
            store.create(find("leases"), NAMESPACE, new_lease(self.names, f"n{number}", None))
            self.renewed(number, f"i{number}")
        cluster = {"metadata": {"name": NAME}, "spec": {"nodes": 2, "replicas": 1, "topics": [{"name": "t"}]}}
        store.create(find("delayclusters"), NAMESPACE, {**cluster, "kind": "DelayCluster"})
        store.create(find("configmaps"), NAMESPACE, new_settings(self.names, self.spec, None))
        store.create(find("delayshards"), NAMESPACE, objects.new_shard(self.names, self.shard, None))
        self._write_status(ShardStatus(1, "i0", ("c0", "c1")))

    def _write_status(self, status: ShardStatus) -> None:
        patch = objects.status_patch(status)
        self.api.store.patch(find("delayshards"), NAMESPACE, f"{NAME}.t-0", patch, sub="status")


@contextmanager
def kube_world(kubeconfig: Path) -> Iterator[KubeWorld]:
    world = KubeWorld(kubeconfig)
    try:
        yield world
    finally:
        world.close()
