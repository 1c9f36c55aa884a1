"""What a master does with its shard's schedules: fires what is due, and puts, pauses, triggers, backfills, deletes.

The store keeps what frames say of schedules, and knows neither cron nor zones. Here a schedule is decoded, and its
next time reckoned, once, and written. One that can't be reckoned is paused, with why as its note: its shard goes on.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from delayapi import schedule_times
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_times import Due

from delaynode.store.errors import Refused
from delaynode.store.log.frames import (
    BACKFILLED,
    FIRED,
    NEVER,
    SINCE_FORMAT,
    SKIPPED,
    TRIGGERED,
    Firings,
    FrameKind,
    ScheduleChange,
)
from delaynode.store.log.incoming_batch import MAX_BATCH_BYTES, IncomingBatch
from delaynode.store.queue.schedules import ScheduleState
from delaynode.store.shard import Shard
from delaynode.store.types import I64

MAX_SCHEDULES = 100_000  # of a shard, which is of a topic: about 1 KiB of memory each, and their definitions
MAX_DEFINITION_BYTES = 64 << 20  # of all schedules of a shard
MAX_FIRED = 256  # firings in one frame: some 10 ms of the event loop
MAX_FIRED_BYTES = 1 << 20  # of their messages, about
MAX_RECKONED = 1_000  # firings of a forecast beyond what is armed: some 50 ms of a thread

MAX_LOOKED_AT = 64  # schedules whose armed time is reckoned again in one go: some 5 ms of the event loop
LOOK_MS = 100  # between two of these

_TIMES = ("cron", "every", "at", "zone", "daylight_saving", "start", "end", "max_firings", "jitter", "id")


@dataclass(frozen=True, slots=True)
class Firing:
    """A row of a FIRE to be: which, the nominal time that is over, when its message is due, what is armed next."""

    state: ScheduleState
    definition: pb.ScheduleState
    time: int
    due: int
    flags: int
    missed: int
    armed: Due | None


@dataclass(frozen=True, slots=True)
class Fired:
    """How many of the schedules that were due have fired, were left out, and times that were missed."""

    fired: int = 0
    skipped: int = 0
    missed: int = 0
    full: bool = False  # more are due
    rearmed: bool = False  # other times were armed, by newer rules of zones

    @property
    def any(self) -> bool:
        return self.rearmed or self.fired + self.skipped + self.missed > 0


class ScheduleMaster:
    """Owned by the event loop. told: of a schedule that can't be reckoned, its id and why."""

    def __init__(self, shard: Shard, told: Callable[[str, str], None]) -> None:
        self._shard, self._told = shard, told
        self.stopped = False  # nothing fires by the clock: the topic is not the cluster's any more
        self._unseen = iter(tuple(shard.schedules.ids()))  # not looked at yet in this term
        self._look_ms = 0 if len(shard.schedules) else NEVER

    # ------------------------------------------------------------ by the clock
    def next_due(self) -> int:
        """When something is to be fired, or to be looked at, ms; NEVER."""
        return NEVER if self.stopped else min(self._shard.schedules.next_due, self._look_ms)

    def _look_again(self, now_ms: int) -> bool:
        """Reckon some of what is armed by clocks in zones again: this node's rules of zones may be newer than those
        that it was armed by. Each once in a term, MAX_LOOKED_AT at a time. Whether a time has changed."""
        if now_ms < self._look_ms:
            return False
        ids, before = [*itertools.islice(self._unseen, MAX_LOOKED_AT)], self._shard.log_end
        self._look_ms = now_ms + LOOK_MS if ids else NEVER
        for state in filter(None, map(self._shard.schedules.find, ids)):
            armed = _due(state)
            if armed is None:
                continue
            try:
                schedule = pb.ScheduleState.FromString(state.definition).schedule
                if not schedule.cron or not schedule.zone:
                    continue
                found = schedule_times.rearmed(schedule, armed, max(state.last, state.changed_ms - 1), now_ms)
            except Exception:  # it is paused when it is due, and says why
                continue
            if found != armed:
                self._shard.change_schedule(ScheduleChange(state.id, True, state.definition, *_times(found)), now_ms)
        return self._shard.log_end > before

    def fire_due(self, now_ms: int) -> Fired:
        """Fire what is due, in one frame: at most MAX_FIRED, the first due first, what a schedule missed included."""
        rearmed = self._look_again(now_ms)
        found = self._shard.schedules.due_by(now_ms, MAX_FIRED)
        if not (firings := self._firings(found, now_ms)):
            return Fired(full=bool(found), rearmed=rearmed)
        self._fire(firings, now_ms)
        fired = sum(bool(one.flags & FIRED) for one in firings)
        skipped = sum(bool(one.flags & SKIPPED) for one in firings)
        missed = sum(one.missed for one in firings)
        return Fired(fired, skipped, missed, self._shard.schedules.next_due <= now_ms, rearmed)

    def _firings(self, found: list[ScheduleState], now_ms: int) -> list[Firing]:
        """The next firings of these. Nothing after the last of them, as what is not found may come before it."""
        until = found[-1].due if len(found) == MAX_FIRED else now_ms
        again = self._shard.format >= SINCE_FORMAT[FrameKind.FIRE_AGAIN]
        waiting = [(state.due, at, state, pb.ScheduleState()) for at, state in enumerate(found)]  # ascends: a heap
        firings: list[Firing] = []
        size = 0
        while waiting and len(firings) < MAX_FIRED and size < MAX_FIRED_BYTES:
            _, at, state, definition = heapq.heappop(waiting)
            first = state is found[at]
            try:
                if first:
                    definition.ParseFromString(state.definition)
                one = self._firing(state, definition, now_ms)
            except Exception as error:  # rules of zones change, and what one schedule asks for must not end a shard
                if first:
                    self._give_up(state, definition, f"{type(error).__name__}: {error}", now_ms)
                continue  # not the first: the next frame gives it up
            firings.append(one)
            size += len(state.definition)
            if again and one.armed is not None and one.armed.due_ms <= until:
                state = self._after(one)
                heapq.heappush(waiting, (state.due, at, state, definition))
        return firings

    def _after(self, one: Firing) -> ScheduleState:
        """The schedule once this has fired, which no group has taken yet."""
        state, (nominal, due) = one.state, _times(one.armed)
        if not one.flags & FIRED:
            return replace(state, nominal=nominal, due=due)
        return replace(state, nominal=nominal, due=due, fired=state.fired + 1, queue_offset=self._shard.queue.end)

    def begin_forecast(self, before_ms: int) -> Callable[[], I64]:
        """For any thread: when messages of firings to come are due, ms, ascending, before `before_ms`.

        Of each schedule what is armed; of the first MAX_RECKONED what follows it too, MAX_RECKONED firings in all.
        """
        if self.stopped:
            return lambda: np.empty(0, np.int64)
        armed = self._shard.schedules.dues_before(before_ms)
        first = self._shard.schedules.due_by(before_ms - 1, MAX_RECKONED)

        def run() -> I64:
            more: list[int] = []
            for state in first:
                schedule = pb.ScheduleState.FromString(state.definition).schedule
                most = MAX_RECKONED - len(more)
                if schedule.max_firings:
                    most = min(most, schedule.max_firings - state.fired - 1)
                more += _following(schedule, state.nominal, before_ms, most)
            return np.sort(np.concatenate((armed, np.array(more, np.int64))))

        return run

    def _firing(self, state: ScheduleState, definition: pb.ScheduleState, now_ms: int) -> Firing:
        schedule = definition.schedule
        step = schedule_times.step(schedule, Due(state.nominal, state.due), now_ms, state.fired)
        if step.fire is None:
            return Firing(state, definition, state.nominal, now_ms, 0, step.missed, step.armed)
        fire = step.fire
        if schedule.overlap != pb.OVERLAP_SKIP or self._is_done(state, schedule.overlap_group):
            return Firing(state, definition, fire.nominal_ms, fire.due_ms, FIRED, step.missed, step.armed)
        armed = step.armed or schedule_times.following(schedule, fire.nominal_ms)  # it is no firing that counts
        return Firing(state, definition, fire.nominal_ms, fire.due_ms, SKIPPED, step.missed, armed)

    def _is_done(self, state: ScheduleState, group: str) -> bool:
        """Whether the group is done with the last message: acknowledged, a dead letter, or kept no longer."""
        queue, found = self._shard.queue, self._shard.consumers.groups.get(group)
        if state.queue_offset < queue.start:  # also where there was none
            return True
        return found is not None and found.is_done(state.queue_offset)

    def _give_up(self, state: ScheduleState, definition: pb.ScheduleState, why: str, now_ms: int) -> None:
        definition.paused, definition.note = True, f"it can't be reckoned: {why}"[:256]
        self._shard.change_schedule(
            ScheduleChange(state.id, True, definition.SerializeToString(deterministic=True)), now_ms
        )
        self._told(state.id, why)

    def _fire(self, firings: Iterable[Firing], now_ms: int) -> None:
        rows = sorted(firings, key=attrgetter("due"))  # released in that order
        fired: dict[str, int] = {}
        told, records = [], []
        for one in rows:
            if one.flags & FIRED:
                number = fired[one.state.id] = fired.get(one.state.id, one.state.fired) + 1
                records.append(schedule_times.record(one.definition.schedule, one.time, number, now_ms))
                told.append(one)
        keys, tags = (
            np.array([zlib.crc32(getattr(one.definition.schedule, name).encode()) for one in told], np.uint32)
            for name in ("key", "tag")
        )
        messages = IncomingBatch(
            np.array([one.due for one in told], np.int64), np.empty(0, np.uint8),
            np.array([*map(len, records)], np.uint32), keys, tags, b"".join(records),
        )  # fmt: skip
        if len(messages.records) > MAX_BATCH_BYTES:
            raise Refused(
                "BATCH_TOO_LARGE",
                f"{len(records):,} firings have {len(messages.records):,} bytes, the limit is {MAX_BATCH_BYTES:,}: "
                "ask for a shorter range",
            )
        columns = zip(
            *((one.state.number, one.time, *(_times(one.armed)), one.flags, one.missed) for one in rows), strict=True
        )
        self._shard.fire(
            Firings(*(np.array(column, kind) for column, kind in zip(columns, ["<i8"] * 4 + ["<u4"] * 2, strict=True))),
            messages, now_ms,
        )  # fmt: skip

    # ------------------------------------------------------------ by its owner
    def find(self, id_: str) -> tuple[ScheduleState, pb.ScheduleState]:
        """The schedule, and what its owner has said. Raises Refused."""
        state = self._shard.schedules.find(id_)
        if state is None:
            shown = repr(id_ if len(id_) <= 256 else id_[:256] + "...")
            raise Refused("UNKNOWN_SCHEDULE", f"topic {self._shard.identity.topic!r} has no schedule {shown}")
        return state, pb.ScheduleState.FromString(state.definition)

    def put(
        self, schedule: pb.Schedule, now_ms: int, *, paused: bool | None = None, note: str | None = None,
        expected: int | None = None,
    ) -> bool:  # fmt: skip
        """Put a schedule that has been checked; paused None: as it is. Returns whether that changes it.

        Raises Refused.
        """
        shard = self._shard
        if shard.format < SINCE_FORMAT[FrameKind.SCHEDULE]:
            raise Refused(
                "NOT_UPGRADED",
                f"schedules are kept from file format {SINCE_FORMAT[FrameKind.SCHEDULE]} on, and format {shard.format} "
                "is written, for a node of an earlier release or until the upgrade is final",
            )
        known = shard.schedules.find(schedule.id)
        check_version(schedule.id, known, expected)
        before = pb.ScheduleState.FromString(known.definition) if known is not None else pb.ScheduleState()
        after = pb.ScheduleState(schedule=schedule, paused=before.paused if paused is None else paused)
        after.note = before.note if paused is None or note is None else note
        definition = after.SerializeToString(deterministic=True)
        if known is not None and known.definition == definition:
            return False
        self._check_room(known, len(definition))
        if after.paused:
            armed = None
        elif known is not None and not before.paused and _same_times(before.schedule, schedule):
            armed = _due(known)
        elif 0 < schedule.max_firings <= (known.fired if known is not None else 0):
            armed = None
        else:
            armed = schedule_times.following(schedule, max(now_ms - 1, known.last if known is not None else 0))
        shard.change_schedule(ScheduleChange(schedule.id, True, definition, *_times(armed)), now_ms)
        return True

    def _check_room(self, known: ScheduleState | None, size: int) -> None:
        schedules = self._shard.schedules
        if known is None and len(schedules) >= MAX_SCHEDULES:
            raise Refused("TOO_MANY_SCHEDULES", f"the topic has {len(schedules):,} schedules, the limit")
        total = schedules.definition_bytes + size - (len(known.definition) if known is not None else 0)
        if total > MAX_DEFINITION_BYTES:
            raise Refused(
                "TOO_MANY_SCHEDULES",
                f"the topic's schedules would have {total:,} bytes, the limit is {MAX_DEFINITION_BYTES >> 20} MiB",
            )

    def pause(self, id_: str, now_ms: int, *, paused: bool, note: str, expected: int | None) -> bool:
        """Pause or resume it; returns whether that changes anything. Raises Refused."""
        state, definition = self.find(id_)
        check_version(id_, state, expected)
        if definition.paused == paused:
            return False
        return self.put(definition.schedule, now_ms, paused=paused, note=note)

    def fire_by_hand(self, id_: str, times: list[int] | None, now_ms: int) -> int:
        """Fire it now (None), or for these nominal times, which are over; what is armed stays. Returns its `fired` from
        before. Raises Refused."""
        state, definition = self.find(id_)
        flags = FIRED | (TRIGGERED if times is None else BACKFILLED)
        wanted = [now_ms] if times is None else times
        most = definition.schedule.max_firings
        armed = None if 0 < most <= state.fired + len(wanted) else _due(state)
        rows = [Firing(state, definition, time, min(time, now_ms), flags, 0, armed) for time in wanted]
        if rows:
            self._fire(rows, now_ms)
        return state.fired

    def delete(self, id_: str, now_ms: int, expected: int | None) -> None:
        """Raises Refused."""
        state, _ = self.find(id_)
        check_version(id_, state, expected)
        self._shard.change_schedule(ScheduleChange(id_, False), now_ms)


def check_version(id_: str, state: ScheduleState | None, expected: int | None) -> None:
    """Raises Refused where the schedule is not of the version that its owner has seen; 0: there is none."""
    version = 0 if state is None else state.version
    if expected is not None and expected != version:
        found = f"is at version {version}" if version else "is not there"
        raise Refused(
            "SCHEDULE_CHANGED", f"schedule {id_!r} {found}, expected was {expected}: look at it again", version=version
        )


def _same_times(one: pb.Schedule, other: pb.Schedule) -> bool:
    """Whether both come at the same times: what is armed stays armed."""
    return _only_times(one) == _only_times(other)


def _only_times(schedule: pb.Schedule) -> pb.Schedule:
    kept = pb.Schedule()
    kept.CopyFrom(schedule)
    for field in schedule.DESCRIPTOR.fields:
        if field.name not in _TIMES:
            kept.ClearField(field.name)
    return kept


def _following(schedule: pb.Schedule, nominal_ms: int, before_ms: int, most: int) -> list[int]:
    """When the firings after that nominal time are due, up to `most`. One that can't be reckoned has none."""
    found: list[int] = []
    with contextlib.suppress(Exception):  # as fire_due(): rules of zones change
        while len(found) < most and (due := schedule_times.following(schedule, nominal_ms)) is not None:
            if due.due_ms >= before_ms:
                break
            found.append(due.due_ms)
            nominal_ms = due.nominal_ms
    return found


def _due(state: ScheduleState) -> Due | None:
    return None if state.due == NEVER else Due(state.nominal, state.due)


def _times(armed: Due | None) -> tuple[int, int]:
    return (NEVER, NEVER) if armed is None else (armed.nominal_ms, armed.due_ms)
