"""The same with real `delaynode` processes."""

from __future__ import annotations

import time
from pathlib import Path

from delaylocal import LocalCluster
from delayregistry.model import TopicSpec


def test_real_nodes_serve_are_restarted_and_are_there_again_after_a_stop(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=2, topics=[TopicSpec("orders", 4)]) as cluster:
        cluster.wait_ready()
        before = {shard.name: shard.spec for shard in cluster.registry.list_shards()}
        cluster.kill("n1")
        cluster.wait_ready()
        for shard in cluster.registry.list_shards():
            assert shard.spec.epoch == (2 if shard.spec.master == "n1" else 1)
        assert cluster.stop() == ()
    with LocalCluster(tmp_path) as cluster:
        cluster.wait_ready()
        for shard in cluster.registry.list_shards():
            assert (shard.spec.uid, shard.spec.replicas) == (before[shard.name].uid, before[shard.name].replicas)


def test_a_killed_master_costs_no_lease(tmp_path: Path) -> None:
    """Neither the operator nor the next master waits for one to run out."""
    with LocalCluster(tmp_path, nodes=2, replicas=2, topics=[TopicSpec("orders", 2)], lease_seconds=20) as cluster:
        cluster.wait_ready()
        killed = {shard.name for shard in cluster.registry.list_shards() if shard.spec.master == "n1"}
        assert killed
        cluster.kill("n1")
        deadline = time.monotonic() + 12
        while waiting := [
            shard
            for shard in cluster.registry.list_shards()
            if shard.name in killed and (shard.status is None or shard.status.serving_epoch == 1)
        ]:
            assert time.monotonic() < deadline, waiting
            time.sleep(0.05)
