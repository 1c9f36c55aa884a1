"""Schedules: messages that a topic sends again and again. docs/schedules.md says what each field means.

async with Admin("127.0.0.1:7070") as admin:
    await admin.schedules.put(Schedule("orders", "report", b"now", cron=["0 9 * * 1-5"], zone="Europe/Berlin"))
    state = await admin.schedules.get("orders", "report")
    print(state.upcoming_ms)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Self

from delayapi.durations import duration_ms, instant_ms
from delayapi.proto.delay.v1 import schedules_pb2 as pb

from delayclient.errors import NotFound, ScheduleChanged
from delayclient.routing.routing import Cluster

_TRIES: Final = 10
"""Of a trigger or a backfill while the schedule fires in between."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What its owner says: a message, and when it comes. One of `cron`, `every` and `at`.

    every, phase, jitter, catch_up_window: as duration_ms() takes them. at, start, end: as instant_ms() does.
    catch_up: latest, none or all. overlap_group: a time is left out while this group has not acknowledged the firing
    before; empty: none is. literal: cron by the letter, not by Debian's rule.
    """

    topic: str
    id: str
    body: bytes | str = b""
    cron: Sequence[str] = ()
    every: int | str | timedelta | None = None
    phase: int | str | timedelta = 0
    at: Sequence[int | str | datetime] = ()
    zone: str = ""
    literal: bool = False
    start: int | str | datetime | None = None
    end: int | str | datetime | None = None
    max_firings: int = 0
    jitter: int | str | timedelta = 0
    catch_up: str = "latest"
    catch_up_window: int | str | timedelta = 0
    overlap_group: str = ""
    key: str = ""
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> pb.Schedule:
        """As it is sent. Raises ValueError, TypeError."""
        name = f"CATCH_UP_{self.catch_up.upper()}"
        if name not in pb.CatchUp.keys():  # noqa: SIM118  # no mapping
            raise ValueError(f"catch_up: {self.catch_up!r} is not latest, none or all")
        found = pb.Schedule(
            id=self.id, topic=self.topic, key=self.key, tag=self.tag, properties=self.properties, zone=self.zone,
            cron=[self.cron] if isinstance(self.cron, str) else self.cron, max_firings=self.max_firings,
            daylight_saving=pb.DAYLIGHT_SAVING_LITERAL if self.literal else pb.DAYLIGHT_SAVING_DEBIAN,
            catch_up=pb.CatchUp.Name(pb.CatchUp.Value(name)), overlap_group=self.overlap_group,
            overlap=pb.OVERLAP_SKIP if self.overlap_group else pb.OVERLAP_ALLOW,
        )  # fmt: skip
        if isinstance(self.body, str):
            found.body_text = self.body
        else:
            found.body = self.body
        if self.every is None and duration_ms(self.phase):
            raise ValueError("phase: it is of every")
        if self.every is not None:
            found.every.interval.FromMilliseconds(duration_ms(self.every))
            found.every.phase.FromMilliseconds(duration_ms(self.phase))
        for one in self.at:
            found.at.add().FromMilliseconds(instant_ms(one))
        for name, instant in (("start", self.start), ("end", self.end)):
            if instant is not None:
                getattr(found, name).FromMilliseconds(instant_ms(instant))
        for name, span in (("jitter", self.jitter), ("catch_up_window", self.catch_up_window)):
            if duration_ms(span):
                getattr(found, name).FromMilliseconds(duration_ms(span))
        return found

    @classmethod
    def decode(cls, given: pb.Schedule) -> Self:
        """As a node has it; times and durations are in ms."""
        every = given.HasField("every")
        return cls(
            given.topic, given.id, given.body_text if given.WhichOneof("content") == "body_text" else given.body,
            cron=tuple(given.cron), every=given.every.interval.ToMilliseconds() if every else None,
            phase=given.every.phase.ToMilliseconds() if every else 0,
            at=tuple(one.ToMilliseconds() for one in given.at), zone=given.zone,
            literal=given.daylight_saving == pb.DAYLIGHT_SAVING_LITERAL,
            start=given.start.ToMilliseconds() if given.HasField("start") else None,
            end=given.end.ToMilliseconds() if given.HasField("end") else None, max_firings=given.max_firings,
            jitter=given.jitter.ToMilliseconds(),
            catch_up=pb.CatchUp.Name(given.catch_up).removeprefix("CATCH_UP_").lower(),
            catch_up_window=given.catch_up_window.ToMilliseconds(), overlap_group=given.overlap_group,
            key=given.key, tag=given.tag, properties=dict(given.properties),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FiringView:
    """One firing. kind: scheduled, triggered, backfilled or skipped; one that was skipped has number 0."""

    number: int
    nominal_ms: int
    due_ms: int
    fired_ms: int
    kind: str


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as it stands. next_nominal_ms, next_due_ms: None while it is paused, and once it is over.

    last: the last ten firings, the newest first. upcoming_ms: the next ten times at which messages are due.
    """

    schedule: Schedule
    version: int
    paused: bool
    note: str
    over: bool
    next_nominal_ms: int | None
    next_due_ms: int | None
    fired: int
    skipped: int
    missed: int
    last: tuple[FiringView, ...]
    upcoming_ms: tuple[int, ...]
    created_ms: int
    changed_ms: int
    zone_rules: str

    @classmethod
    def decode(cls, state: pb.ScheduleState) -> Self:
        armed = state.HasField("next_due")
        return cls(
            Schedule.decode(state.schedule), state.version, state.paused, state.note, state.over,
            state.next_nominal.ToMilliseconds() if armed else None, state.next_due.ToMilliseconds() if armed else None,
            state.fired, state.skipped, state.missed, tuple(map(_firing, state.last)),
            tuple(one.ToMilliseconds() for one in state.upcoming), state.created.ToMilliseconds(),
            state.changed.ToMilliseconds(), state.zone_rules,
        )  # fmt: skip


class ScheduleAdmin:
    """The schedules of a cluster's topics: `Admin.schedules`."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        """`timeout_s` bounds each call, its retries included."""
        self._cluster, self._timeout_s = cluster, timeout_s

    async def put(
        self, schedule: Schedule, *, paused: bool | None = None, note: str = "", expected_version: int | None = None
    ) -> tuple[ScheduleView, bool]:
        """Makes a schedule, or changes the one with its id; whether anything changed. The same again changes nothing.

        paused: None: a new one is not, another stays as it is. expected_version: that it must have now, 0: there must
        be none; else ScheduleChanged, also where the answer to a first try was lost.
        """
        request = pb.PutScheduleRequest(
            topic=schedule.topic, schedule=schedule.encode(), paused=paused, note=note,
            expected_version=expected_version,
        )  # fmt: skip
        answer = await self._call("PutSchedule", request, pb.PutScheduleResponse.FromString)
        return ScheduleView.decode(answer.state), answer.changed

    async def get(self, topic: str, id: str) -> ScheduleView:
        """Raises NotFound."""
        request = pb.GetScheduleRequest(topic=topic, id=id)
        return ScheduleView.decode(await self._call("GetSchedule", request, pb.ScheduleState.FromString))

    async def each(self, topic: str, prefix: str = "") -> AsyncIterator[ScheduleView]:
        """The topic's schedules whose id begins with that, by id."""
        token = ""
        while True:
            request = pb.ListSchedulesRequest(topic=topic, page_size=100, page_token=token, id_prefix=prefix)
            answer = await self._call("ListSchedules", request, pb.ListSchedulesResponse.FromString)
            for state in answer.schedules:
                yield ScheduleView.decode(state)
            token = answer.next_page_token
            if not token:
                return

    async def pause(self, topic: str, id: str, note: str = "") -> ScheduleView:
        """Fires nothing until it is resumed; times that pass in between never fire. Raises NotFound."""
        request = pb.PauseScheduleRequest(topic=topic, id=id, note=note)
        return ScheduleView.decode(await self._call("PauseSchedule", request, pb.ScheduleState.FromString))

    async def resume(self, topic: str, id: str, note: str = "") -> ScheduleView:
        """Raises NotFound."""
        request = pb.PauseScheduleRequest(topic=topic, id=id, note=note)
        return ScheduleView.decode(await self._call("ResumeSchedule", request, pb.ScheduleState.FromString))

    async def trigger(self, topic: str, id: str) -> FiringView:
        """Fires once, now. A call whose answer was lost is made again, and fires once all the same. Raises NotFound."""
        request = pb.TriggerScheduleRequest(topic=topic, id=id)
        return (await self._fire("TriggerSchedule", request))[0]

    async def backfill(
        self, topic: str, id: str, from_: int | str | datetime, to: int | str | datetime
    ) -> tuple[FiringView, ...]:
        """Fires the times of from_ <= time < to, at most 1,000, once each, as trigger() does. Raises NotFound."""
        request = pb.BackfillScheduleRequest(topic=topic, id=id)
        getattr(request, "from").FromMilliseconds(instant_ms(from_))
        request.to.FromMilliseconds(instant_ms(to))
        return await self._fire("BackfillSchedule", request)

    async def delete(self, topic: str, id: str) -> bool:
        """Fires no more; what it has fired stays. False: there was none."""
        request = pb.DeleteScheduleRequest(topic=topic, id=id)
        doubts: list[None] = []
        try:
            await self._call("DeleteSchedule", request, pb.DeleteScheduleResponse.FromString, doubts)
        except NotFound as error:
            if error.reason != "UNKNOWN_SCHEDULE":
                raise
            return bool(doubts)
        return True

    async def _fire(self, method: str, request: Any) -> tuple[FiringView, ...]:
        """Asks for it only while as many have fired as it has seen: so a second try finds what the first has done."""
        kind = "triggered" if method == "TriggerSchedule" else "backfilled"
        doubts: list[None] = []
        state = await self.get(request.topic, request.id)
        for left in reversed(range(_TRIES)):
            request.expected_fired = state.fired
            try:
                answer = await self._call(method, request, pb.FireScheduleResponse.FromString, doubts)
                return tuple(map(_firing, answer.firings))
            except ScheduleChanged:
                seen, state = state.fired, await self.get(request.topic, request.id)
                mine = tuple(one for one in reversed(state.last) if one.kind == kind and one.number > seen)
                if doubts and mine:
                    return mine
                if not left:
                    raise
        raise AssertionError("unreachable")

    async def _call(self, method: str, request: Any, decode: Any, doubts: list[None] | None = None) -> Any:
        """Asks the master of the topic's queue 0."""
        return await self._cluster.call(
            method, request.topic, 0, request, decode, timeout_s=self._timeout_s,
            on_doubt=None if doubts is None else lambda: doubts.append(None),
        )  # fmt: skip


def _firing(one: pb.Firing) -> FiringView:
    return FiringView(
        one.number, one.nominal.ToMilliseconds(), one.due.ToMilliseconds(), one.fired.ToMilliseconds(),
        pb.FiringKind.Name(one.kind).removeprefix("FIRING_KIND_").lower(),
    )  # fmt: skip
