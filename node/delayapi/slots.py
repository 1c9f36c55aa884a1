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
