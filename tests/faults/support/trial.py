"""A trial: load against a local cluster while harm is done to it, then every check there is.

DELAY_FAULT_ROUNDS: how often a node is killed in each test (default 10). DELAY_FAULT_SEED: another course of events.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from numpy.typing import NDArray

from tests.faults.support.checker import Report
from tests.faults.support.load import Load, Traffic
from tests.serve.support.client import Client, Shard, is_answered, poll

I64 = NDArray[np.int64]
ROUNDS = int(os.environ.get("DELAY_FAULT_ROUNDS", "10"))
SEED = int(os.environ.get("DELAY_FAULT_SEED", "1"))
CHOOSE = random.Random(SEED)
SHORT = Traffic(farthest_ms=2_000)


def run(name: str, cluster: LocalCluster, traffic: Traffic, harm: Callable[[], None], settle_s: float = 0.5) -> Report:
    """Run the load while harm() runs, then check everything that the checker can check."""
    cluster.wait_ready()
    keep_all(cluster, traffic)
    load = Load(cluster.endpoints, traffic, SEED)
    load.start()
    begin = time.monotonic()
    try:
        poll("the load is under way", lambda: len(load.ledger.acknowledged) > 0)
        time.sleep(settle_s)
        harm()
        cluster.wait_ready()
        time.sleep(settle_s)
    finally:
        load.finish()
    report = load.ledger.check()
    print(f"\n{name}: {time.monotonic() - begin:.0f} s; {report}")
    for what, found in report.broken.items():
        assert not found, f"{what}: {len(found)}, e.g. {found[:3]}"
    assert report.acknowledged > 500
    assert report.cancelled > 0
    check_queues(cluster, load)
    check_logs(cluster)
    return report


def keep_all(cluster: LocalCluster, traffic: Traffic) -> None:
    """Add a group that consumes nothing, so that the queues still have all messages when they are read at the end."""
    with Client(cluster.endpoints[0]) as client:
        for queue in range(traffic.queues):
            shard = Shard(client, traffic.topic, queue)
            poll("the node knows the shard's master", lambda: joins(shard), 10)  # noqa: B023


def joins(shard: Shard) -> bool:
    """Whether the shard is served: a master serves, and other nodes know of it, a moment after the registry does."""
    return is_answered(lambda: shard.receive(group="auditor", wait_ms=0))


def check_queues(cluster: LocalCluster, load: Load) -> None:
    poll("all queues are read", lambda: is_answered(lambda: _check_queues(cluster, load)), 30)


def _check_queues(cluster: LocalCluster, load: Load) -> None:
    """Read each queue from its beginning: they must have each message once, none cancelled, and none left behind."""
    ledger = load.ledger
    with Client(cluster.endpoints[0]) as client:
        found: list[int] = []
        for queue in range(load.traffic.queues):
            shard = Shard(client, load.traffic.topic, queue)
            offset = 0
            while got := shard.fetch(offset, max_messages=5_000):
                found += [int.from_bytes(one.body[:8], "little") for one in got]
                offset = got[-1].offset + 1
            assert shard.stored() == (0, offset)
            assert shard.group().dead == 0
    assert len(found) == len(set(found)), "a message is in a queue twice"
    assert set(found) >= ledger.acknowledged.keys() - ledger.cancelled
    assert not set(found) & ledger.cancelled
    assert set(found) <= ledger.sent


def check_logs(cluster: LocalCluster) -> None:
    for log in sorted((cluster.data / "logs").glob("n*.log")):
        text = log.read_text()
        for sign in ("Traceback", "shard-damaged", "copy-damaged", "term-refused", "term-failed", "never retrieved"):
            assert sign not in text, f"{log.name}: {sign} in ...{text[max(0, text.index(sign) - 500) :][:2_000]}"


def stored(answer: bytes) -> tuple[int, I64]:
    """(first seq, dues)"""
    found = pb.EnqueueResponse.FromString(answer)
    return found.first_seq, np.frombuffer(found.due, "<i8")


def pending_columns(shard: Shard) -> tuple[I64, I64]:
    """(due, seq) of all pending messages, in their order."""
    dues, seqs, after = [], [], {"after_due": 0, "after_seq": 0}
    while True:
        page = shard.call("ListPending", limit=10_000, **after)
        dues.append(np.frombuffer(page.due, "<i8"))
        seqs.append(np.frombuffer(page.seq, "<i8"))
        if not page.more:
            return np.concatenate(dues), np.concatenate(seqs)
        after = {"after_due": int(dues[-1][-1]), "after_seq": int(seqs[-1][-1])}
