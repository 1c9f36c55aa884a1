"""Counts in slots of time, spread over other slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spread_slots(
    start_ms: NDArray[np.int64], width_ms: NDArray[np.int64], messages: NDArray[np.int64], edges_ms: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Messages in each column [edge, next edge), f64[columns]; a slot over several counts evenly in each."""
    # The cumulative count is a line through the slots' ends; a column is the difference at its edges.
    at = np.concatenate(([0], np.ravel(np.column_stack((start_ms, start_ms + width_ms)))))
    total = np.cumsum(messages, dtype=np.float64)
    before = total - messages
    count = np.concatenate(([0.0], np.ravel(np.column_stack((before, total)))))
    at_edges: NDArray[np.float64] = np.interp(edges_ms, at, count)
    return np.diff(at_edges)


def together(
    start_ms: NDArray[np.int64], width_ms: NDArray[np.int64], messages: NDArray[np.int64], slot_ms: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Slots by time, those narrower than `slot_ms` put together to slots of that width. 0: as they are."""
    if slot_ms <= 0 or not len(start_ms):
        return start_ms, width_ms, messages
    narrow = width_ms < slot_ms
    start = np.where(narrow, start_ms - start_ms % slot_ms, start_ms)
    first = np.flatnonzero(np.concatenate(([True], (start[1:] != start[:-1]) | ~narrow[1:] | ~narrow[:-1])))
    return start[first], np.where(narrow, slot_ms, width_ms)[first], np.add.reduceat(messages, first)
