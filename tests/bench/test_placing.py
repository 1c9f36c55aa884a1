"""The rules that a rebalance is compared with."""

from __future__ import annotations

import numpy as np
from delayclient.producer.requests import Messages

from benchmarks import placing

LOADS = np.array([[9.0, 0.0], [8.0, 1.0], [1.0, 7.0], [0.0, 6.0], [1.0, 1.0], [1.0, 0.0]])


def test_the_bad_placement_has_equal_counts_and_the_hottest_shards_together() -> None:
    homes = placing.badly(LOADS, 3)
    assert homes.tolist() == [0, 0, 1, 1, 2, 2]
    assert placing.highest(LOADS, homes, 3) == 17
    assert np.bincount(placing.equal_counts(6, 3, seed=1)).tolist() == [2, 2, 2]
    assert placing.highest(LOADS, placing.round_robin(6, 3), 3) == 9


def test_no_placement_is_below_the_lower_bound() -> None:
    bound = placing.lower_bound(LOADS, 3)
    assert bound == 9, "a shard is not cut in pieces"
    assert placing.lower_bound(LOADS[[1, 2, 4]], 1) == 10, "nor can the nodes have less than all"
    every = (np.unravel_index(number, (3,) * len(LOADS)) for number in range(3 ** len(LOADS)))
    assert min(placing.highest(LOADS, np.array(homes), 3) for homes in every) >= bound


def test_a_key_counts_for_the_queue_that_the_producer_sends_it_to() -> None:
    keys = [f"JFK-{number}" for number in range(100)]
    messages = Messages.of([b""] * 100, None, None, keys, None)
    sent = np.zeros(100, np.int64)
    for queue, rows in messages.rows_by_queue(7):
        sent[rows] = queue
    assert placing.queues_of(keys, 7).tolist() == sent.tolist()
    loads = placing.counted(sent, np.zeros(100, np.int64), 7, 1)
    assert loads[:, 0].tolist() == np.bincount(sent, minlength=7).tolist()
