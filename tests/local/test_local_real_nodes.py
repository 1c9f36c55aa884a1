"""The same with real `delaynode` processes."""

from __future__ import annotations

from pathlib import Path

from delaynode.registry.model import TopicSpec
from delayoperator.local import LocalCluster


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
