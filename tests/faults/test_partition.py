"""The network between the nodes cut, in one direction or both, under load: nothing is lost, nobody serves twice.

Clients reach every node all the time, so that one that is cut off is asked, too, and has to be silent by itself.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest
from delayregistry.model import TopicSpec

from tests.faults.support import cut_off_node
from tests.faults.support.failover import FaultCluster
from tests.faults.support.load import Load, Traffic
from tests.faults.support.netns import Namespaces
from tests.faults.support.network import Network
from tests.faults.support.trial import SEED, check_queues, keep_all
from tests.serve.support.client import Client, Failure, Msg, Shard, poll, wait_served

NODES = ("n0", "n1", "n2")
TRAFFIC = Traffic(queues=3, pause_s=0.05, farthest_ms=2_000)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(NODES) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, network: Network) -> Iterator[FaultCluster]:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", 3)], options=network.options) as running:
        running.wait_ready()
        yield running


def under_load(cluster: FaultCluster, harm: Callable[[Load], None]) -> None:
    """The wire's own load through `harm`; everything that the checker can say is checked, the queues too."""
    keep_all(cluster, TRAFFIC)
    load = Load(cluster.endpoints, TRAFFIC, SEED)
    load.start()
    try:
        poll("the load is under way", lambda: len(load.ledger.acknowledged) > 0)
        time.sleep(0.5)
        harm(load)
        cluster.wait_ready(90)
        time.sleep(0.5)
    finally:
        load.finish(120)
    report = load.ledger.check()
    print(f"\n{report}")
    for what, found in report.broken.items():
        assert not found, f"{what}: {len(found)}, e.g. {found[:3]}"
    assert report.acknowledged > 200
    check_queues(cluster, load)
    cluster.check_logs()


def in_sync(cluster: FaultCluster) -> dict[str, int]:
    return {one.name: len(one.status.in_sync) for one in cluster.shards() if one.status is not None}


def epochs(cluster: FaultCluster) -> dict[str, int]:
    return {one.name: one.spec.epoch for one in cluster.shards()}


@pytest.mark.parametrize("ways", ["both", "to the slaves", "from the slaves"])
def test_a_cut_between_nodes_shrinks_the_set_and_changes_no_master(
    cluster: FaultCluster, network: Network, ways: str
) -> None:
    """The registry is there: each master goes on alone, once the registry says so; no term ends."""
    before = epochs(cluster)

    def harm(load: Load) -> None:
        node = sorted(cluster.masters())[0]
        others = [one for one in NODES if one != node]
        if ways != "from the slaves":
            network.cut(*((node, other) for other in others))
        if ways != "to the slaves":
            network.cut(*((other, node) for other in others))
        mine = [one.name for one in cluster.masters()[node]]
        poll("its shards go on alone", lambda: all(in_sync(cluster)[name] == 1 for name in mine), 20)
        stored = len(load.ledger.acknowledged)
        poll("messages are taken meanwhile", lambda: len(load.ledger.acknowledged) > stored + 100, 20)
        time.sleep(2.0)
        network.heal()

    under_load(cluster, harm)
    assert epochs(cluster) == before
    assert set(in_sync(cluster).values()) == {2}


def test_a_slave_that_was_cut_off_is_not_chosen_when_its_master_dies(cluster: FaultCluster, network: Network) -> None:
    """It lacks what the master has acknowledged since. The master's next process has it all."""

    def harm(load: Load) -> None:
        node = sorted(cluster.masters())[0]
        mine = [one.name for one in cluster.masters()[node]]
        network.part(node)
        poll("its shards go on alone", lambda: all(in_sync(cluster)[name] == 1 for name in mine), 20)
        time.sleep(1.0)
        cluster.kill(node)
        time.sleep(4.0)
        network.heal()
        poll("they are served again", lambda: all(served_by(cluster, name) == node for name in mine), 30)

    under_load(cluster, harm)


def served_by(cluster: FaultCluster, name: str) -> str | None:
    shard = next(one for one in cluster.shards() if one.name == name)
    served = shard.status is not None and shard.status.serving_epoch == shard.spec.epoch
    return shard.spec.master if served else None


def test_cuts_at_random_and_a_kill_among_them_lose_nothing(cluster: FaultCluster, network: Network) -> None:
    choose = random.Random(SEED)

    def harm(load: Load) -> None:
        for number in range(6):
            ways = [way for way in permutations(NODES, 2) if choose.random() < 0.4]
            network.cut(*ways)
            time.sleep(0.3 + choose.random() * 3)
            if number == 3:
                cluster.kill(choose.choice(NODES))
            if choose.random() < 0.7:
                network.heal()
                time.sleep(choose.random())
        network.heal()

    under_load(cluster, harm)


def test_a_master_cut_off_from_registry_and_peers_is_silent_before_another_serves(
    tmp_path: Path, network: Network
) -> None:
    """Its clients still reach it. Whatever they ask: no message that another has handed out and had acknowledged."""
    command = (sys.executable, "-P", str(Path(cut_off_node.__file__)), str(tmp_path / "cut"))
    with FaultCluster(tmp_path, topics=[TopicSpec("t", 3)], options=network.options, node_command=command) as cluster:
        cluster.wait_ready()
        before = epochs(cluster)
        cut: list[str] = []

        def harm(load: Load) -> None:
            node = sorted(cluster.masters())[0]
            mine = [one.name for one in cluster.masters()[node]]
            cut.extend(mine)
            mark = tmp_path / f"cut-{node}"
            mark.touch()
            network.part(node)
            poll(
                "others lead its shards", lambda: all(served_by(cluster, name) not in (node, None) for name in mine), 30
            )
            stored = len(load.ledger.acknowledged)
            poll("messages are taken meanwhile", lambda: len(load.ledger.acknowledged) > stored + 200, 20)
            assert cluster.pids[node]
            network.heal()
            mark.unlink()

        under_load(cluster, harm)
        assert all(epochs(cluster)[name] > before[name] for name in cut)
        assert {one["shard"] for one in cluster.logged("term-over")} >= set(cut)


def test_a_master_cut_off_answers_no_read_once_another_serves(tmp_path: Path, network: Network) -> None:
    """Nothing is written, so that only its leases can tell it that its time is over."""
    command = (sys.executable, "-P", str(Path(cut_off_node.__file__)), str(tmp_path / "cut"))
    with FaultCluster(tmp_path, topics=[TopicSpec("t", 1)], options=network.options, node_command=command) as cluster:
        wait_served(cluster)
        master = str(cluster.shards()[0].spec.master)
        with Client(cluster.endpoints[int(master[1:])]) as client:
            shard = Shard(client, "t", 0)
            shard.send(*[Msg(delay_ms=1)] * 10)
            poll("all are released", lambda: len(shard.fetch(0, max_messages=100)) == 10, 20)
            time.sleep(1.0)  # its clients' calls are done
            (tmp_path / f"cut-{master}").touch()
            network.part(master)
            while served_by(cluster, "t-0") in (master, None):
                with suppress(Failure):
                    shard.fetch(0, max_messages=100)
            for _ in range(20):
                with pytest.raises(Failure, match="NOT_SERVING"):
                    shard.fetch(0, max_messages=100)
            assert cluster.shards()[0].spec.master != master


@pytest.mark.parametrize("ways", ["both", "one"])
def test_packets_lost_between_machines_lose_no_message(tmp_path: Path, ways: str) -> None:
    """A link that is cut for longer than the lease, for all that nodes say to each other, then heals."""
    with (
        Namespaces(NODES) as spaces,
        FaultCluster(
            tmp_path, topics=[TopicSpec("t", 3)], options=spaces.options, prefix=spaces.prefix,
            elsewhere=spaces.endpoints,
        ) as cluster,
    ):  # fmt: skip
        cluster.wait_ready()
        before = epochs(cluster)

        def harm(load: Load) -> None:
            node = sorted(cluster.masters())[0]
            mine = [one.name for one in cluster.masters()[node]]
            if ways == "both":
                spaces.part(node)
            else:
                spaces.cut(*((other, node) for other in NODES if other != node))
            poll("its shards go on alone", lambda: all(in_sync(cluster)[name] == 1 for name in mine), 20)
            time.sleep(5.0)
            spaces.heal()

        under_load(cluster, harm)
        assert epochs(cluster) == before
