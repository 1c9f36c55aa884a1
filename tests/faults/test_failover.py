"""Masters killed and frozen under load, with two copies of each shard: nothing is lost, callers see latency only.

Short: `python -m benchmarks.failover` has the long rounds and their figures. DELAY_FAILOVER_RATE: messages/s.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from delayregistry.model import TopicSpec

from tests.faults.support.failover import FaultCluster, Result, failover_round, freeze, kill, result
from tests.faults.support.sdkload import SdkLoad, Work
from tests.faults.support.trial import SEED
from tests.serve.support.client import poll

RATE = int(os.environ.get("DELAY_FAILOVER_RATE", "1000"))
WORK = Work(rate=RATE)


def rounds_of(cluster: FaultCluster, harms: Sequence[Callable[[FaultCluster, str], None]], work: Work = WORK) -> Result:
    """The load through these harms; everything that the checker can say is checked."""
    cluster.wait_ready()
    load, choose, began = SdkLoad(cluster.endpoints, work, SEED), random.Random(SEED), time.monotonic()
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


def test_masters_frozen_past_their_lease_lose_nothing_and_callers_see_no_error(tmp_path: Path) -> None:
    with FaultCluster(tmp_path, topics=[TopicSpec("t", WORK.queues)]) as cluster:
        rounds_of(cluster, [freeze, freeze])
        over = [str(one["reason"]) for one in cluster.logged("term-over")]
        assert len(over) >= 2  # it learned that its time was over
        assert all(reason.startswith("epoch ") for reason in over), over
