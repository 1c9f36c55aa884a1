"""A topic that goes with its messages, on real nodes: it waits for them and for its group, then all of it is gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from delayclient.sync import SyncConsumer
from delaylocal import LocalCluster
from delayoperator.cluster.topic_deletion import FINALIZER
from delayoperator.control_loop.probe import GrpcProber
from delayoperator.crds.topic_merge import MergedTopics, TopicOwner
from delayoperator.kube.topic_deletion import DeletionStep, TopicDeletions
from delayregistry.model import TopicSpec

from tests.faults.test_identity import ask_for, make_cluster, send

MESSAGES = 20
BODY: dict[str, Any] = {
    "metadata": {
        "namespace": "shop", "name": "orders", "resourceVersion": "1", "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": [FINALIZER],
    },
    "spec": {"deletionPolicy": "Delete"},
}  # fmt: skip
LEFT = MergedTopics(owners={"orders": TopicOwner("shop")})


class Writes:
    def __init__(self) -> None:
        self.finalizers: list[list[str]] = []

    def merge(self, kind: object, namespace: str, name: str, patch: dict[str, Any]) -> None:
        self.finalizers.append(patch["metadata"]["finalizers"])


def step(cluster: LocalCluster, deletions: TopicDeletions) -> DeletionStep:
    found = cluster.registry.read_cluster()
    assert found is not None
    prober = GrpcProber()
    try:
        return deletions.advance(BODY, LEFT, found.spec, cluster.registry.list_shards(), prober)
    finally:
        prober.close()


def wait(cluster: LocalCluster, deletions: TopicDeletions, says: str) -> None:
    """Until it waits for that, or is over where `says` is empty."""
    deadline_s = time.monotonic() + 30
    while True:
        now = step(cluster, deletions).waits_for
        if says in now and bool(says) == bool(now):
            return
        assert time.monotonic() < deadline_s, now
        time.sleep(0.2)


def test_nothing_goes_before_it_was_consumed_and_then_every_copy_does(tmp_path: Path) -> None:
    writes = Writes()
    with make_cluster(tmp_path, TopicSpec("orders", 2), TopicSpec("other", 1)) as cluster:
        cluster.wait_ready()
        deletions = TopicDeletions(writes, cluster.registry)  # type: ignore[arg-type]
        sent = send(cluster, MESSAGES, 15_000)
        wait(cluster, deletions, "are told that the topic is gone")
        ask_for(cluster, TopicSpec("other", 1))
        wait(cluster, deletions, f"{MESSAGES} messages pending")
        wait(cluster, deletions, "released and not done: orders-")
        with SyncConsumer(cluster.endpoints, "orders", "group") as consumer:
            for number in range(MESSAGES):
                message = consumer.receive(30)
                assert message is not None
                assert message.body in sent
                if number == MESSAGES - 1:
                    wait(cluster, deletions, "released and not done")
                consumer.ack(message)
            consumer.flush()
        assert len(cluster.registry.list_shards()) == 3
        wait(cluster, deletions, "")
        assert [it.name for it in cluster.registry.list_shards()] == ["other-0"]
        assert not list(tmp_path.glob("**/orders-?-????????????????"))
    assert writes.finalizers == [[]]
