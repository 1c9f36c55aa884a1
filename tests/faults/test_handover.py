"""Masters given away on purpose, under load: stops, restarts of all nodes, switchovers, moves, a drained node.

Each is to be a handover, not a failover that waits for a lease. How long it takes `python -m benchmarks.failover`
measures: here the bound only shows that nothing got stuck.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from delayapi.handle import Handle
from delayclient.admin.admin import Admin
from delayclient.producer.producer import Producer
from delayoperator.control_loop.probe import GrpcProber
from delayregistry.model import Delivery, ShardSpec, TopicSpec

from tests.faults.support.failover import FaultCluster, Result, result, settle
from tests.faults.support.sdkload import SdkLoad, Work
from tests.faults.support.trial import SEED
from tests.faults.test_failover import RATE
from tests.serve.support.client import Client, Msg, Shard, poll

WORK = Work(rate=RATE)
PAUSE_SECONDS = 15.0  # on a machine of its own: under a second


def through(
    cluster: FaultCluster, harm: Callable[[SdkLoad], None], ignored: Sequence[str] = (), work: Work = WORK
) -> tuple[Result, float]:
    """The load through `harm`, checked; and the longest time in which some queue acknowledged nothing."""
    cluster.wait_ready()
    load, began = SdkLoad(cluster.endpoints, work, SEED), time.monotonic()
    load.start()
    try:
        poll("the load is under way", lambda: all(load.times.acknowledged))
        time.sleep(1.5)
        harmed = time.monotonic()
        harm(load)
        cluster.wait_ready()
        settle(cluster, load)
        ended = time.monotonic()
    finally:
        load.finish()
    found = result(harm.__name__, [], load, time.monotonic() - began)
    pauses = [
        max((b - a for a, b in itertools.pairwise(times) if harmed < b < ended), default=0.0)
        for times in load.times.acknowledged
    ]
    print(f"\n{found}\nlongest pause of each queue: {', '.join(f'{pause:.2f}' for pause in pauses)} s")
    assert found.good, found
    assert found.totals.acknowledged > 500
    cluster.check_logs(*ignored)
    return found, max(pauses)


def check_handed_over(cluster: FaultCluster) -> None:
    """Every later term began by a handover: nobody waited for a lease to end."""
    events = map(json.loads, (cluster.data / "logs" / "operator.log").read_text().splitlines())
    later = [one["reason"] for one in events if one.get("action") == "StartTerm" and one["epoch"] > 1]
    assert later
    assert all("hands over to" in reason for reason in later), later


def delayctl(cluster: FaultCluster, *words: str) -> str:
    program = [str(Path(sys.executable).with_name("delayctl")), *words]
    done = subprocess.run([*program, "--data", str(cluster.data)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_sigterm_hands_the_masters_over_before_the_process_ends(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:

        def stop(load: SdkLoad) -> None:
            node = sorted(cluster.masters())[0]
            pid = cluster.kill(node, signal.SIGTERM)
            poll("the process is another one", lambda: cluster.pids.get(node, pid) != pid, 30)
            (left,) = cluster.logged("left")
            assert left["masters"] == 0, left
            assert left["node"] == node

        _, pause = through(cluster, stop)
        assert pause < PAUSE_SECONDS
        check_handed_over(cluster)


def test_a_rolling_restart_of_all_nodes_loses_nothing_and_pauses_no_shard_for_long(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:
        _, pause = through(cluster, lambda load: cluster.restart_each())
        assert [one["masters"] for one in cluster.logged("left")] == [0, 0, 0]
        assert pause < PAUSE_SECONDS
        check_handed_over(cluster)
        assert cluster.at_levels("error") == [], "docs/operations.md#logs: nothing failed"


def test_switchovers_moves_and_a_drain_under_load(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:

        def steer(load: SdkLoad) -> None:
            shards = {one.name: one.spec for one in cluster.shards()}
            before = shards["t-0"].master
            delayctl(cluster, "shards", "switchover", "t-0")
            assert spec(cluster, "t-0").master != before
            (away,) = set(cluster.desired.node_ids) - set(shards["t-1"].replicas)
            master = str(shards["t-1"].master)
            delayctl(cluster, "shards", "move", "t-1", "--from", master, "--to", away, "--wait")
            assert away in spec(cluster, "t-1").replicas
            assert master not in spec(cluster, "t-1").replicas
            delayctl(cluster, "nodes", "drain", "n2", "--wait")
            assert not [one.name for one in cluster.shards() if "n2" in one.spec.replicas]
            assert "n2" not in cluster.masters()
            poll("its directories go", lambda: not list((cluster.data / "n2" / "shards").glob("t-*")), 20)

        _, pause = through(cluster, steer)
        assert pause < PAUSE_SECONDS
        check_handed_over(cluster)


def test_a_new_node_gets_its_share_of_what_is_pending(tmp_path: Path) -> None:
    topics = [TopicSpec("t", 4)]

    async def send(endpoint: str) -> None:
        async with Producer(endpoint) as producer:
            for _ in range(20):
                await producer.send_batch("t", [b"later"] * 100, delay_ms=3_600_000)

    async def pending(endpoint: str) -> dict[int, int]:
        async with Admin(endpoint) as admin:
            rows = [row async for row in admin.list_pending("t")]
            return Counter(Handle.decode(row.handle).queue for row in rows)

    with FaultCluster(tmp_path, topics=topics) as cluster:
        cluster.wait_ready()
        asyncio.run(send(cluster.endpoints[0]))
        before = asyncio.run(pending(cluster.endpoints[0]))
    assert sum(before.values()) == 2_000
    with FaultCluster(tmp_path, topics=topics, nodes=4) as cluster:
        poll("each has its share", lambda: {share(cluster, node) for node in cluster.desired.node_ids} == {2}, 60)
        poll("the new one leads a shard", lambda: "n3" in cluster.masters(), 60)
        cluster.wait_ready()
        assert asyncio.run(pending(cluster.endpoints[3])) == before
        cluster.check_logs()


def share(cluster: FaultCluster, node: str) -> int:
    """The number of copies on the node, leaving ones aside."""
    return sum(node in one.spec.replicas and node not in one.spec.leaving for one in cluster.shards())


def spec(cluster: FaultCluster, name: str) -> ShardSpec:
    return next(one.spec for one in cluster.shards() if one.name == name)


def committed(cluster: FaultCluster) -> list[int]:
    """The committed offset that each copy of the only shard knows: slaves hear of it a moment later."""
    prober = GrpcProber()
    try:
        answers = prober.query(cluster.registry.list_leases())
    finally:
        prober.close()
    return [
        next(iter(answers[node].copies.values())).committed_offset if node in answers else -1 for node in ("n0", "n1")
    ]


def test_with_master_and_slave_a_slave_answers_fetch_while_the_master_is_dead(tmp_path: Path) -> None:
    """Phase 2 of RIP-19. The control loop is away, so no other master can be chosen."""
    topics = [TopicSpec("t", 1)]
    with FaultCluster(tmp_path, nodes=2, topics=topics, delivery=Delivery.MASTER_AND_SLAVE) as cluster:
        cluster.wait_ready()
        (spec,) = (one.spec for one in cluster.shards())
        master, slave = str(spec.master), next(node for node in spec.replicas if node != spec.master)
        with Client(cluster.endpoints[int(slave[1:])]) as client:
            shard = Shard(client, "t", 0)
            batch = shard.request(*[Msg(b"%d" % n, delay_ms=1) for n in range(100)], producer=1, number=0)
            poll("it is stored", lambda: isinstance(client.attempt("Enqueue", batch.SerializeToString()), bytes), 20)
            poll("all are released", lambda: len(shard.fetch(0, max_messages=1_000)) == 100, 20)
            poll("the slave knows what is committed", lambda: len(set(committed(cluster))) == 1, 20)
            cluster.stop_operator()
            cluster.kill(master, signal.SIGSTOP)
            time.sleep(1.0)
            assert [one.body for one in shard.fetch(0, max_messages=1_000)] == [b"%d" % n for n in range(100)]
            epoch = cluster.shards()[0].spec.epoch
            cluster.kill(master, signal.SIGCONT)
            cluster.start_operator()
            cluster.wait_ready()
            assert (cluster.shards()[0].spec.epoch, cluster.shards()[0].spec.master) == (epoch, master)
