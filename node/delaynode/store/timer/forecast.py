"""How many pending messages are due by when: exact as far as the due window reaches, by the wheel's slots beyond it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from delaynode.store.timer.index import TimerIndex
from delaynode.store.types import I64


def begin_forecast(index: TimerIndex) -> Callable[[I64], I64]:
    """For any thread: how many messages are due before each of these times, ms (k,) -> (k,).

    What lies beyond the window counts from its slot's beginning on, so a herd is never expected too late: by a minute
    at most too early within two days, by an hour after them.
    """
    counting, below = index.begin_count(), index.window.begin_count()
    pending, bound_ms = index.pending, index.window.bound.due

    def run(edges: I64) -> I64:
        start, width, count = counting()
        beyond = np.maximum(count - below(start + width) + below(start), 0)
        unknown = max(0, pending - int(count.sum()))  # of the minute under release what the window has no room for
        time = np.concatenate((np.maximum(start, bound_ms), [bound_ms]))
        order = np.argsort(time, kind="stable")
        total = np.concatenate(([0], np.cumsum(np.append(beyond, unknown)[order])))
        due: I64 = below(edges) + total[time[order].searchsorted(edges)]
        return due

    return run
