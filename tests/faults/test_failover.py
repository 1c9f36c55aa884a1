"""Masters killed and frozen under load, with two copies of each shard: nothing is lost, callers see latency only.

Short: `python -m benchmarks.failover` has the long rounds and their figures. DELAY_FAILOVER_RATE: messages/s.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from delayregistry.model import TopicQuotas, TopicSpec

from tests.faults.support.failover import FaultCluster, Result, failover_round, freeze, kill, result
from tests.faults.support.sdkload import SdkLoad, Work
from tests.faults.support.trial import SEED
from tests.serve.support.client import Client, Failure, Msg, Sent, Shard, i64, poll

RATE = int(os.environ.get("DELAY_FAILOVER_RATE", "1000"))
WORK = Work(rate=RATE)


def rounds_of(cluster: FaultCluster, harms: Sequence[Callable[[FaultCluster, str], None]], work: Work = WORK) -> Result:
    """The load through these harms; everything that the checker can say is checked."""
    cluster.wait_ready()
    load, choose, began = SdkLoad(cluster.ways(), work, SEED), random.Random(SEED), time.monotonic()
    load.start()
    try:
        poll("the load is under way", lambda: all(load.times.acknowledged))
        time.sleep(1.0)
        rounds = [failover_round(cluster, load, harm, number, choose) for number, harm in enumerate(harms)]
    finally:
        load.finish()
    found = result("+".join(harm.__name__ for harm in harms), rounds, load, time.monotonic() - began)
    print(f"\n{found}")
    assert found.good, found
    assert found.totals.acknowledged > 500
    assert found.totals.cancelled > 0
    for pause in (pause for round_ in rounds for pause in round_.pauses if pause.role == "master"):
        assert pause.served is not None, f"{pause}: nobody took over"
        assert pause.first_delivery is not None, f"{pause}: nothing was delivered after it"
    cluster.check_logs()
    return found


def test_masters_killed_under_load_lose_nothing_and_callers_see_no_error(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:
        rounds_of(cluster, [kill, kill, kill])


def test_masters_of_a_cluster_with_tls_are_killed_under_load(tmp_path: Path) -> None:
    """Clients by token and by certificate; nodes and the operator by certificates alone."""
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)], secure=True) as cluster:
        rounds_of(cluster, [kill])


def test_a_quota_of_what_waits_holds_across_a_failover(tmp_path: Path) -> None:
    """The next master counts what its log says: not one more is taken, and what is cancelled makes room."""
    limit, at_once = 60, 20
    topic = TopicSpec("t", 1, quotas=TopicQuotas(pending_messages=limit))
    later = [Msg(b"x", delay_ms=3_600_000)] * at_once
    with FaultCluster(tmp_path, topics=[topic], nodes=2) as cluster:
        cluster.wait_ready()
        (master,) = cluster.masters()

        def ask(count: int) -> Failure | Sent:
            with Client(cluster.endpoints[0 if "n0" in cluster.masters() else 1]) as client:
                try:
                    return Shard(client, "t", 0).send(*later[:count])
                except Failure as failure:
                    return failure

        sent = [ask(at_once) for _ in range(limit // at_once)]
        assert all(isinstance(one, Sent) for one in sent), sent
        before = ask(1)
        cluster.kill(master)
        poll("another leads", lambda: master not in cluster.masters())
        found: list[Failure | Sent] = []
        poll("it answers", lambda: found.append(ask(1)) or getattr(found[-1], "reason", "") != "NOT_SERVING", 30.0)
        for failure in (before, found[-1]):
            assert isinstance(failure, Failure), failure
            assert (failure.reason, failure.metadata["current"]) == ("QUOTA", str(limit)), failure
        with Client(cluster.endpoints[0 if "n0" in cluster.masters() else 1]) as client:
            shard, first = Shard(client, "t", 0), sent[0]
            shard.call("Cancel", uid=first.uid, seq=i64(*first.seqs[:5]), due=i64(*first.due[:5]))
        assert isinstance(ask(5), Sent)
        assert isinstance(ask(1), Failure)


def test_masters_frozen_past_their_lease_lose_nothing_and_callers_see_no_error(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:
        rounds_of(cluster, [freeze, freeze])
        over = [str(one["reason"]) for one in cluster.logged("term-over")]
        assert len(over) >= 2  # it learned that its time was over
        assert all(reason.startswith("epoch ") for reason in over), over
