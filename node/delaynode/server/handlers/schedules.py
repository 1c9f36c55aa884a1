"""The calls about schedules: each is checked here, carried out by the master of the topic's queue 0, and answered with
the schedule as it stands once that is committed."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right

from delayapi import schedule_checks, schedule_times, zones
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_checks import BadSchedule
from google.protobuf.timestamp_pb2 import Timestamp

from delaynode.limits.budget import Answers
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.dispatch import Dispatch
from delaynode.server.edge import Call
from delaynode.store.errors import Refused
from delaynode.store.log.frames import BACKFILLED, NEVER, SKIPPED, TRIGGERED
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.queue.schedules import ScheduleState

PAGE, MAX_PAGE = 20, 100
MAX_PAGE_BYTES = 3 << 20  # clients of gRPC take 4 MiB, unless they are told otherwise
STATE_BYTES = 2_048  # of a schedule's state, beside what its owner has said
_KINDS = {
    TRIGGERED: pb.FIRING_KIND_TRIGGERED, BACKFILLED: pb.FIRING_KIND_BACKFILLED, SKIPPED: pb.FIRING_KIND_SKIPPED,
}  # fmt: skip


class ScheduleCalls:
    """Each method serves one call for a shard that is here, and answers once its answer is committed."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self.node = dispatch.node

    async def put(self, request: pb.PutScheduleRequest, host: ShardHost) -> pb.PutScheduleResponse:
        _check_queue(request.queue)
        schedule, now = request.schedule, self.node.clock.now_ms()
        if schedule.topic not in ("", request.topic):
            raise Refused(
                "BAD_SCHEDULE", f"topic: the schedule says {schedule.topic[:256]!r}, the request {request.topic!r}"
            )
        schedule.topic = request.topic
        paused = request.paused if request.HasField("paused") else None
        try:
            schedule_checks.check(schedule)
            schedule_checks.check_note(request.note)
            known = host.shard.schedules.find(schedule.id)
            if known is None:
                schedule_checks.check_comes(schedule, now)
        except BadSchedule as error:
            raise Refused("BAD_SCHEDULE", str(error)) from error
        if host.schedules.stopped:
            raise Refused(
                "UNKNOWN_TOPIC",
                f"topic {request.topic!r} was taken out of the cluster: its schedules don't fire until it is back",
            )
        host.check_may_append()
        host.check_clock()
        self.node.disk.check(schedule.ByteSize())
        changed = host.schedules.put(
            schedule, now, paused=paused, note=request.note,
            expected=request.expected_version if request.HasField("expected_version") else None,
        )  # fmt: skip
        return pb.PutScheduleResponse(state=await self._committed(host, schedule.id, now), changed=changed)

    async def get(self, request: pb.GetScheduleRequest, host: ShardHost) -> pb.ScheduleState:
        _check_queue(request.queue)
        state = self._state(host, request.id, self.node.clock.now_ms())
        await host.wait_committed(host.shard.log_end)
        return state

    async def list_page(
        self, request: pb.ListSchedulesRequest, host: ShardHost, answers: Answers
    ) -> pb.ListSchedulesResponse:
        _check_queue(request.queue)
        if request.page_size > MAX_PAGE:
            raise Refused("BAD_REQUEST", f"page_size: {request.page_size:,} is more than the limit, {MAX_PAGE}")
        now, size, answer = self.node.clock.now_ms(), 0, pb.ListSchedulesResponse()
        ids = host.shard.schedules.ids()
        at = max(bisect_left(ids, request.id_prefix), bisect_right(ids, request.page_token))
        for id_ in ids[at:]:
            if not id_.startswith(request.id_prefix):
                break
            found = host.shard.schedules.find(id_)
            if found is None:
                continue  # deleted while this waited
            size += len(found.definition) + STATE_BYTES
            if len(answer.schedules) == (request.page_size or PAGE) or size > MAX_PAGE_BYTES:
                answer.next_page_token = answer.schedules[-1].schedule.id
                break
            await answers.reserve(len(found.definition) + STATE_BYTES)
            answer.schedules.append(self._state(host, id_, now))
            await asyncio.sleep(0)  # the next ten times of each take a while
            host.check_serving()
        await host.wait_committed(host.shard.log_end)
        return answer

    async def pause(self, request: pb.PauseScheduleRequest, host: ShardHost) -> pb.ScheduleState:
        return await self._pause(request, host, paused=True)

    async def resume(self, request: pb.PauseScheduleRequest, host: ShardHost) -> pb.ScheduleState:
        return await self._pause(request, host, paused=False)

    async def _pause(self, request: pb.PauseScheduleRequest, host: ShardHost, *, paused: bool) -> pb.ScheduleState:
        _check_queue(request.queue)
        try:
            schedule_checks.check_note(request.note)
        except BadSchedule as error:
            raise Refused("BAD_SCHEDULE", str(error)) from error
        host.check_may_append()
        if not paused:
            host.check_clock()
        now = self.node.clock.now_ms()
        expected = request.expected_version if request.HasField("expected_version") else None
        host.schedules.pause(request.id, now, paused=paused, note=request.note, expected=expected)
        return await self._committed(host, request.id, now)

    async def trigger(
        self, request: pb.TriggerScheduleRequest, host: ShardHost, _: Answers, call: Call
    ) -> pb.FireScheduleResponse:
        return await self._fire(request, host, call, None)

    async def backfill(
        self, request: pb.BackfillScheduleRequest, host: ShardHost, _: Answers, call: Call
    ) -> pb.FireScheduleResponse:
        host.check_clock()
        now = self.node.clock.now_ms()
        try:
            from_ms, to_ms = _instant("from", getattr(request, "from")), _instant("to", request.to)
        except ValueError as error:
            raise Refused("BAD_REQUEST", str(error)) from error
        if not from_ms < to_ms <= now:
            raise Refused("BAD_REQUEST", "from: it must be before `to`, and `to` not after now: none fires early")
        try:
            times = schedule_times.between(host.schedules.find(request.id)[1].schedule, from_ms, to_ms)
        except schedule_times.TooManyTimes as error:
            raise Refused("BAD_REQUEST", str(error)) from error
        return await self._fire(request, host, call, times)

    async def _fire(
        self, request: pb.TriggerScheduleRequest | pb.BackfillScheduleRequest, host: ShardHost, call: Call,
        times: list[int] | None,
    ) -> pb.FireScheduleResponse:  # fmt: skip
        _check_queue(request.queue)
        host.check_may_append()
        now = self.node.clock.now_ms()
        state, definition = host.schedules.find(request.id)
        if request.HasField("expected_fired") and request.expected_fired != state.fired:
            raise Refused(
                "SCHEDULE_CHANGED",
                f"schedule {request.id!r} has fired {state.fired:,} times, expected were {request.expected_fired:,}: "
                "it has fired since, perhaps by this call's first try",
                fired=state.fired,
            )
        count = 1 if times is None else len(times)
        self.node.disk.check(count * definition.ByteSize())
        size = len(schedule_times.record(definition.schedule, now, state.fired + 1, now))
        run = BatchRun(0, 0, count)
        charge = self._dispatch.quotas.charge(host, call.identity(), run, count * size) if count else None
        try:
            first = host.schedules.fire_by_hand(request.id, times, now)
        except BaseException:
            if charge is not None:
                charge.give_back(0, 1)
            raise
        host.resources.metrics.firings[host.topic, "by hand"] += count
        answer = pb.FireScheduleResponse(state=await self._committed(host, request.id, now))
        kind = pb.FIRING_KIND_TRIGGERED if times is None else pb.FIRING_KIND_BACKFILLED
        for number, time in enumerate([now] if times is None else times, first + 1):
            answer.firings.append(_firing(number, time, min(time, now), now, kind))
        return answer

    async def delete(self, request: pb.DeleteScheduleRequest, host: ShardHost) -> pb.DeleteScheduleResponse:
        _check_queue(request.queue)
        host.check_may_append()
        expected = request.expected_version if request.HasField("expected_version") else None
        host.schedules.delete(request.id, self.node.clock.now_ms(), expected)
        host.on_proposed()
        await host.wait_replicated(host.shard.log_end)
        return pb.DeleteScheduleResponse()

    async def _committed(self, host: ShardHost, id_: str, now_ms: int) -> pb.ScheduleState:
        """As it stands now, once that is committed."""
        state = self._state(host, id_, now_ms)
        host.on_proposed(host.schedules.next_due())
        await host.wait_replicated(host.shard.log_end)
        return state

    def _state(self, host: ShardHost, id_: str, now_ms: int) -> pb.ScheduleState:
        """Raises Refused. Where schedules are stopped, nothing comes next."""
        known, state = host.schedules.find(id_)
        state.version, state.zone_rules = known.version, zones.RULES
        state.fired, state.skipped, state.missed = known.fired, known.skipped, known.missed
        for name, ms in (("created", known.created_ms), ("changed", known.changed_ms)):
            getattr(state, name).FromMilliseconds(ms)
        state.over = known.due == NEVER and not state.paused
        for number, time, due, fired, flags in known.recent.tolist():
            kind = next((kind for flag, kind in _KINDS.items() if flags & flag), pb.FIRING_KIND_SCHEDULED)
            state.last.append(_firing(number, time, due, fired, kind))
        if host.schedules.stopped:
            return state
        if known.due != NEVER:
            state.next_nominal.FromMilliseconds(known.nominal)
            state.next_due.FromMilliseconds(known.due)
        for due in _upcoming(known, state, now_ms):
            state.upcoming.add().FromMilliseconds(due)
        return state


def _upcoming(known: ScheduleState, state: pb.ScheduleState, now_ms: int, most: int = 10) -> list[int]:
    """The next dues, ms; none where they can't be reckoned here."""
    if state.over:
        return []
    limit = state.schedule.max_firings
    most = min(most, max(0, limit - known.fired)) if limit else most
    first = [] if state.paused else [known.due]
    after = max(now_ms - 1, known.last) if state.paused else known.nominal
    try:
        later = schedule_times.upcoming(state.schedule, after, most - len(first)) if most > len(first) else []
    except Exception:  # rules of zones change: the schedule is paused when it is due, and says why
        later = []
    return [*first[:most], *(one.due_ms for one in later)]


def _firing(number: int, time: int, due: int, fired: int, kind: pb.FiringKind) -> pb.Firing:
    firing = pb.Firing(number=number, kind=kind)
    for name, ms in (("nominal", time), ("due", due), ("fired", fired)):
        getattr(firing, name).FromMilliseconds(ms)
    return firing


def _instant(name: str, instant: Timestamp) -> int:
    """Raises ValueError."""
    if not instant.seconds:
        raise ValueError(f"{name}: a backfill needs a range, from and to")
    if not 0 < instant.seconds * 1_000 < schedule_times.END_OF_TIME_MS or not 0 <= instant.nanos < 1_000_000_000:
        raise ValueError(f"{name}: {instant.seconds} s and {instant.nanos} ns is no time between 1970 and 9000")
    return instant.seconds * 1_000 + instant.nanos // 1_000_000


def _check_queue(queue: int) -> None:
    if queue:
        raise Refused("BAD_REQUEST", f"queue: {queue} has no schedules, a topic's schedules are kept in its queue 0")
