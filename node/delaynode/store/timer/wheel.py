"""TimerWheel: a fixed array of slots, each the head of a chain of TimerLog units.

    slot, 32 bytes: time i64 ms | firstPos i64 | lastPos i64 | num i32 | magic i32      (RocketMQ's Slot)
    index = (time / width) mod slots; a slot whose stored time is another lap's reads as empty

Two levels hang over one TimerLog (RIP-19's multi-level wheel): hours over the horizon, minutes over two days.
"""

from __future__ import annotations

import numpy as np

from delaynode.store.types import I64, Records

SLOT = np.dtype([("time", "<i8"), ("first", "<i8"), ("last", "<i8"), ("num", "<i4"), ("magic", "<i4")])
SLOT_MAGIC = 1
NOWHERE = -1  # a position: no unit


class TimerWheel:
    """width_ms: a slot's width; the wheel spans `slots` of them."""

    def __init__(self, width_ms: int, slots: int) -> None:
        self.width_ms = width_ms
        self.slots = np.zeros(slots, SLOT)
        self.slots["time"] = self.slots["first"] = self.slots["last"] = NOWHERE

    @property
    def span_ms(self) -> int:
        return self.width_ms * len(self.slots)

    def slot_time(self, due_ms: int) -> int:
        """The start of the slot that `due_ms` falls into."""
        return due_ms - due_ms % self.width_ms

    def last_positions(self, slot_times: I64) -> I64:
        """The chain heads of the slots that start at `slot_times`, (k,) -> (k,); NOWHERE where there is none."""
        rows = self.slots[slot_times // self.width_ms % len(self.slots)]
        found: I64 = np.where(rows["time"] == slot_times, rows["last"], NOWHERE)
        return found

    def extend(self, slot_times: I64, first: I64, last: I64, more: I64) -> None:
        """Hang runs [first, last] onto k slots, ascending, whose live count changes by `more`.

        A later lap takes an earlier one's place, never the other way round: of a message that was cancelled, a unit may
        be flushed when the watermark is hours past its due, and the minute two days later may have its units already.
        """
        index = slot_times // self.width_ms % len(self.slots)
        present = self.slots["time"][index] <= slot_times
        if not present.all():
            index, slot_times, first, last, more = (a[present] for a in (index, slot_times, first, last, more))
        rows = self.slots[index]
        other_lap = rows["time"] != slot_times
        rows["first"] = np.where(other_lap, first, rows["first"])
        rows["num"] = np.where(other_lap, 0, rows["num"]) + more
        rows["time"], rows["last"], rows["magic"] = slot_times, last, SLOT_MAGIC
        self.slots[index] = rows  # of two laps of one slot the later: NumPy keeps the last that is assigned

    def empty(self, slot_time: int) -> None:
        """Forget a slot: its units were cascaded."""
        index = slot_time // self.width_ms % len(self.slots)
        if self.slots[index]["time"] == slot_time:
            self.slots[index] = (NOWHERE, NOWHERE, NOWHERE, 0, 0)

    def counts(self, from_ms: int, to_ms: int) -> tuple[I64, I64]:
        """(slot times, live counts) of the slots with messages whose start lies in [from_ms, to_ms), by time."""
        time, num = self.slots["time"], self.slots["num"]
        at = np.flatnonzero((time >= from_ms) & (time < to_ms) & (num > 0))
        at = at[np.argsort(time[at])]
        return time[at].astype(np.int64), num[at].astype(np.int64)

    def dump(self) -> Records:
        return self.slots.copy()

    def copy(self) -> TimerWheel:
        """Another wheel with the same slots."""
        made = TimerWheel(self.width_ms, 0)
        made.slots = self.slots.copy()
        return made
