"""WindowLoader: when the due window is to be loaded from the TimerLog, and how far.

A master loads ahead of its ticks, with jobs on other threads. A replica that applies a tick loads past the tick's mark.
"""

from __future__ import annotations

from delaynode.store.config import ShardConfig
from delaynode.store.errors import Damaged
from delaynode.store.log.frames import TICKS, Frame, parse_tick
from delaynode.store.timer.index import TimerIndex
from delaynode.store.types import Pair


class WindowLoader:
    """Owned by the shard's thread."""

    def __init__(self, index: TimerIndex, config: ShardConfig) -> None:
        self._index, self._config = index, config

    def is_due(self, now_ms: int) -> bool:
        """Whether the window should be loaded further, ahead of the ticks."""
        window = self._index.window
        runs_low = window.bound.due < now_ms + self._config.lookahead_ms // 2
        has_room = len(window) <= self._config.window_budget // 2
        return runs_low and has_room and window.bound.due < self._index.minute_bound_ms

    def target_ms(self, now_ms: int) -> int:
        """How far to load then: whole minutes, so that the wheel's slots are read once."""
        target = max(now_ms, self._index.window.bound.due) + self._config.lookahead_ms
        return self._config.geometry.minute_end(target)

    def is_needed_by(self, frame: Frame) -> bool:
        """Whether Shard.apply() would have to load the window first: a TICK, above what is loaded."""
        if frame.kind not in TICKS:
            return False
        tick = parse_tick(frame)
        return self._index.window.bound <= Pair(tick.due, tick.seq)

    def needs_cascade(self, frame: Frame) -> bool:
        """Whether Shard.apply() would have to bring an hour down to minutes first."""
        return self.is_needed_by(frame) and self._index.minute_bound_ms <= parse_tick(frame).due

    def load_past(self, mark: Pair) -> None:
        """Load the window past `mark`, on this thread; not while a flush, a cascade or a cleaning is under way.

        Raises Damaged.
        """
        index = self._index
        while index.window.bound <= mark:
            while index.minute_bound_ms <= mark.due:
                cascade = index.begin_cascade()
                if cascade is not None:
                    cascade.run()
                    index.finish_cascade(cascade)
            end = self._config.geometry.minute_end(mark.due)
            load = index.begin_load(end, self._config.window_budget)
            if load is None:
                raise Damaged(f"can't load the due window past {mark}: its bound is {index.window.bound}")
            load.run()
            index.finish_load(load)
