"""Invariant 9, by the committed log alone: a schedule fires each nominal time once, none early, none of a pause.

The clients' schedules all go by an interval, so what comes next is a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delaynode.store.log.frames import (
    BY_HAND,
    FIRED,
    FIRES,
    NEVER,
    Frame,
    FrameKind,
    parse,
    parse_append,
    parse_firings,
    parse_schedule,
)
from delaynode.store.queue.schedules import Schedules


@dataclass(frozen=True)
class Known:
    """A schedule, as the frames so far leave it."""

    id: str
    interval: int
    paused: bool
    nominal: int  # what is armed
    fired: int = 0


class FiringLog:
    """What a shard's committed log says of its schedules."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}  # by number
        self.wrong: list[str] = []
        self.firings = 0

    @classmethod
    def of(cls, log: bytes | bytearray, uid: int) -> FiringLog:
        made, at, view = cls(), 0, memoryview(log)
        while at < len(log):
            frame = parse(view, at, at, uid)
            made.add(frame)
            at = frame.end
        return made

    def add(self, frame: Frame) -> None:
        if frame.kind is FrameKind.SCHEDULE:
            self._put(frame)
        elif frame.kind in FIRES:
            self._fire(frame)

    def _put(self, frame: Frame) -> None:
        change = parse_schedule(frame)
        number = next((number for number, one in self.known.items() if one.id == change.id), frame.end)
        if not change.put:
            del self.known[number]
            return
        state = pb.ScheduleState.FromString(change.definition)
        interval = state.schedule.every.interval.ToMilliseconds()
        fired = self.known[number].fired if number in self.known else 0
        self.known[number] = Known(change.id, interval, state.paused, change.nominal, fired)
        if state.paused and change.nominal != NEVER:
            self.wrong.append(f"schedule {change.id} is paused, and armed for {change.nominal}")

    def _fire(self, frame: Frame) -> None:
        firings, messages = parse_firings(frame), iter(parse_append(frame).due.tolist())
        for number, time, nominal, flags, missed in zip(
            *(getattr(firings, name).tolist() for name in ("number", "time", "nominal", "flags", "missed")), strict=True
        ):
            one = self.known.get(number)
            if one is None:
                self.wrong.append(f"a schedule fires that is not there, number {number}")
                return
            due = next(messages) if flags & FIRED else frame.wall_ms
            if due > frame.wall_ms:
                self.wrong.append(f"schedule {one.id} fires {due - frame.wall_ms} ms early")
            self.firings += flags & FIRED
            if not flags & BY_HAND:
                self._by_clock(one, time, nominal, missed)
            self.known[number] = replace(one, nominal=nominal, fired=one.fired + (flags & FIRED))

    def _by_clock(self, one: Known, time: int, nominal: int, missed: int) -> None:
        if one.paused:
            self.wrong.append(f"schedule {one.id} fires {time}, and is paused")
        elif time < one.nominal:
            self.wrong.append(f"schedule {one.id} fires {time} again")
        elif time > one.nominal + missed * one.interval:
            self.wrong.append(f"schedule {one.id} does not fire {one.nominal}: {time} comes next")
        elif time % one.interval:
            self.wrong.append(f"schedule {one.id} fires {time}, which is no time of {one.interval} ms")
        elif nominal not in (NEVER, time + one.interval):
            self.wrong.append(f"schedule {one.id} fires {time}, and arms {nominal}, not {time + one.interval}")

    def differs(self, schedules: Schedules) -> str:
        """How a copy that has all of the log differs from it; empty: it does not."""
        expected = {one.id: (one.nominal, one.fired) for one in self.known.values()}
        found = {one.id: (one.nominal, one.fired) for id_ in schedules.ids() if (one := schedules.find(id_))}
        return "" if found == expected else f"it has schedules {found}, the log says {expected}"
