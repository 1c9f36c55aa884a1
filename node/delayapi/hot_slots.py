"""When a shard makes its node hot, and what falls due on it: arrays in, arrays out; for plans of the job and by hand.

N nodes, S slots of time; loads are messages that fall due.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

MAX_SHARD_SLOTS = 64  # of a shard, that a plan names
MAX_PLAN_SLOTS = 4_000  # of all its shards: 27 bytes each in an object that must not come near 1 MiB
MIN_MESSAGES_PER_S = 10.0  # messages of a shard: with fewer it is idle, and a pause of its delivery harms no consumer
MIN_EXCESS_SHARE = 0.1  # of what a node has above the mean: with less, a shard is not what makes its node hot


def hot(loads: F64, counted: Bool, threshold: float) -> Bool:
    """bool[N, S]: the node's load in the slot is above threshold x the mean. counted: nodes that make up the mean."""
    if not counted.any():
        return np.zeros(loads.shape, dtype=bool)
    return np.asarray(loads > threshold * _mean(loads, counted))


def above(loads: F64, counted: Bool) -> F64:
    """f64[N, S]: what each node has above the mean."""
    return np.asarray(loads - _mean(loads, counted)) if counted.any() else loads


def of_shard(vector: F64, is_hot: Bool, excess: F64, slot_ms: float, moves: int) -> I64:
    """i64[k], ascending: the slots in which a shard is hot, of a plan with so many moves.

    Its node is hot in them, and at least a tenth of what the node has above the mean is the shard's: one with some
    messages in every slot is not to wait for its neighbours' bursts, nor is one that has next to nothing to deliver.
    Where these are too many, the heaviest count. vector: f64[S] of the shard; is_hot, excess: [S] of its node.
    """
    max_slots = min(MAX_SHARD_SLOTS, MAX_PLAN_SLOTS // max(1, moves))
    slots = np.flatnonzero(
        is_hot & (vector >= MIN_MESSAGES_PER_S * slot_ms / 1_000) & (vector >= MIN_EXCESS_SHARE * excess)
    )
    return np.sort(slots[np.argsort(-vector[slots], kind="stable")][:max_slots])


def due(vector: F64, start_ms: float, slot_ms: float, begin_ms: float, end_ms: float) -> int:
    """Messages due in [begin, end), spread evenly over each slot. The first slot begins at start_ms."""
    edges = start_ms + slot_ms * np.arange(len(vector) + 1)
    total = np.concatenate(([0.0], np.cumsum(vector)))
    low, high = np.interp([begin_ms, end_ms], edges, total)
    return round(high - low)


def _mean(loads: F64, counted: Bool) -> NDArray[Any]:
    return np.asarray(loads[counted].mean(axis=0))
