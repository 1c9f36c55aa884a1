"""Placements of shards on nodes by rules that do not look at time, and how high each lets a node's slot get.

loads: f64[shards, slots] messages that fall due; homes: i64[shards], the node that each shard's load is on.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def queues_of(keys: Sequence[str], queues: int) -> I64:
    """The queue that the producer sends each key to."""
    return np.array([zlib.crc32(key.encode()) % queues for key in keys], np.int64)


def counted(queue: I64, slot: I64, queues: int, slots: int) -> F64:
    """Messages by queue and slot."""
    loads = np.zeros((queues, slots))
    np.add.at(loads, (queue, slot), 1.0)
    return loads


def by_node(loads: F64, homes: I64, nodes: int) -> F64:
    """f64[nodes, slots]"""
    summed = np.zeros((nodes, loads.shape[1]))
    np.add.at(summed, homes, loads)
    return summed


def highest(loads: F64, homes: I64, nodes: int) -> float:
    """The most that falls due on one node in one slot."""
    return float(by_node(loads, homes, nodes).max())


def lower_bound(loads: F64, nodes: int) -> float:
    """A bound for every placement of whole shards: in a slot, the even share or the largest shard."""
    return float(np.maximum(loads.sum(axis=0) / nodes, loads.max(axis=0)).max())


def badly(loads: F64, nodes: int) -> I64:
    """Place equally many shards on each node, with the hottest together on the first."""
    homes = np.zeros(len(loads), np.int64)
    homes[np.argsort(-loads.max(axis=1), kind="stable")] = np.arange(len(loads)) * nodes // len(loads)
    return homes


def round_robin(shards: int, nodes: int) -> I64:
    """In their order, one node after the other."""
    return np.arange(shards, dtype=np.int64) % nodes


def equal_counts(shards: int, nodes: int, seed: int) -> I64:
    """Place equally many shards on each node, chosen at random."""
    return np.random.default_rng(seed).permutation(round_robin(shards, nodes))
