"""Dead letters among segments that are emptied, on real nodes: nothing acknowledged is lost, and no copy is damaged."""

from __future__ import annotations

from pathlib import Path

from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.faults.soak import EAGER_COMMAND, soak
from tests.faults.support.load import Traffic
from tests.faults.support.trial import SEED


def test_messages_that_die_while_their_segments_are_emptied_are_kept_and_damage_no_copy(tmp_path: Path) -> None:
    """Ten minutes of it: `python -m tests.faults.soak --minutes 10 --nodes 3 --replicas 2 --max-attempts 2 --eager`."""
    traffic = Traffic(queues=3, body_bytes=1_000, pause_s=0.1, farthest_ms=12_000)
    topics = [TopicSpec(traffic.topic, traffic.queues, max_attempts=2)]
    cluster = LocalCluster(tmp_path, nodes=3, replicas=2, topics=topics, node_command=EAGER_COMMAND)
    kept, emptied = soak(cluster, 0.35, None, traffic, SEED, drain_s=60.0)
    assert kept
    assert emptied.letters > 0, "no dead letter was moved: this shows nothing"
