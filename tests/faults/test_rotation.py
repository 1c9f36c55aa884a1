"""Every certificate and each CA replaced, and the old ones expired, under load: nothing lost, and callers see no error.

Short: `python -m benchmarks.rotation` has 5,000 messages a second by 500 streams.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from delayregistry.model import TopicSpec

from tests.faults.support.failover import FaultCluster, result
from tests.faults.support.rotation import options, rotate
from tests.faults.support.sdkload import SdkLoad, Work
from tests.faults.support.trial import SEED

WORK = Work(rate=500, producers=6, queues=4, every_s=0.2, farthest_ms=1_000)
LONGEST_GAP_S = 5.0


def test_certificates_and_cas_are_replaced_under_load_with_no_failed_call(tmp_path: Path) -> None:
    topics = [TopicSpec("t", WORK.queues)]
    with FaultCluster(tmp_path, topics=topics, nodes=2, secure=True, options=options) as cluster:
        cluster.wait_ready()
        load, began = SdkLoad(cluster.ways(), WORK, SEED), time.monotonic()
        load.start()
        try:
            rotate(cluster, print)
        finally:
            load.finish()
        found = result("rotation", [], load, time.monotonic() - began)
        assert found.good, found
        assert found.totals.acknowledged > 500
        assert max(np.diff(times).max() for times in load.times.acknowledged) < LONGEST_GAP_S
        cluster.check_logs()
