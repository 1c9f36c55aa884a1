"""Fetch, Receive, and what a group does with what it got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable

import numpy as np
from delayapi.codec import encode_message_batch
from delayapi.durations import format_ms
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.reasons import check_reason, join_reasons
from delayapi.units import HOUR_MS

from delaynode.limits.budget import Answers
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.server.dispatch import Dispatch
from delaynode.server.edge import Body, Call, Stream
from delaynode.server.rpc import MAX_BATCH_OUT_BYTES, column, fitting
from delaynode.store.errors import Refused
from delaynode.store.queue.consumers import ConsumerDelivery
from delaynode.store.types import I64, U32, Bools

MAX_WAIT_MS = 60_000
MAX_INVISIBLE_MS = 12 * HOUR_MS
MAX_RECEIVE = 65_536
MAX_PAGE = 10_000
ROW_BYTES = 32  # of a message's columns in an answer


class ConsumeCalls:
    """Each method serves one call for a shard that is here, and answers once its answer is committed."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self.node = dispatch.node

    async def fetch(self, request: pb.FetchRequest, host: ShardHost | SlaveHost, answers: Answers, call: Call) -> Body:
        offset = request.offset
        if request.group:
            group = host.shard.consumers.group(request.group)
            offset = group.first_unacked if offset < 0 else offset
        most_bytes = min(request.max_bytes or 4 << 20, MAX_BATCH_OUT_BYTES, answers.window)
        most = min(request.max_messages or 1024, MAX_RECEIVE)
        offset, rows = await host.fetch(offset, most, most_bytes, min(request.wait_ms, MAX_WAIT_MS))
        await host.wait_committed(host.shard.applied)
        self._dispatch.check_still("Fetch", call, request)
        delivery = ConsumerDelivery(np.arange(offset, offset + len(rows)), np.empty(0, np.uint32), rows)
        return await self._message_batch(host, delivery, answers)

    async def receive(self, request: pb.ReceiveRequest, host: ShardHost, answers: Answers, call: Call) -> Body:
        invisible_ms = request.invisible_ms or 30_000
        _check_invisible(invisible_ms)
        delivery = await host.receive(
            request.group,
            tuple(request.tags),
            min(request.max_messages or 32, MAX_RECEIVE),
            min(request.max_bytes or 4 << 20, MAX_BATCH_OUT_BYTES, answers.window),
            min(request.wait_ms, MAX_WAIT_MS),
            invisible_ms,
            request.from_end,
        )
        try:
            self._dispatch.check_still("Receive", call, request)
            return await self._message_batch(host, delivery, answers)
        except BaseException:  # also that who asked has gone
            host.give_back(request.group, delivery)
            raise

    async def receive_stream(self, stream: Stream) -> AsyncGenerator[Body, None]:
        """An empty request ends the stream, and the wait of the one before it. Were the stream cut instead, an answer
        might be on its way, whose messages have lost an attempt."""
        receive = self._dispatch.for_caller("Receive", pb.ReceiveRequest, self.receive)
        answers = self._dispatch.flow.answers(stream)
        try:
            while (data := await stream.read()) is not None:
                if not data or (answer := await _unless_left(stream, receive(data, stream, answers))) is None:
                    return
                yield answer
                answers.sent()
        finally:
            answers.sent()

    async def _message_batch(self, host: ShardHost | SlaveHost, delivery: ConsumerDelivery, answers: Answers) -> Body:
        rows = delivery.rows
        await answers.reserve(len(rows) * ROW_BYTES + int(rows["size"].sum(dtype=np.int64)))
        records = await host.read_records(rows)
        reason_size, reasons = join_reasons(delivery.reasons) if delivery.reasons else (b"", b"")
        plain = not len(delivery.attempt) or bool((delivery.attempt == 1).all())
        return encode_message_batch(
            host.shard.identity.uid,
            len(rows),
            delivery.offset,
            np.ascontiguousarray(rows["due"]),
            np.ascontiguousarray(rows["seq"]),
            np.ascontiguousarray(rows["size"]),
            b"" if plain else delivery.attempt,
            records,
            host.shard.queue.visible,
            int(delivery.offset[-1]) + 1 if len(rows) else host.shard.queue.visible,
            host.behind_ms(),
            reason_size=reason_size,
            reasons=reasons,
        )

    async def ack(self, request: pb.AckRequest, host: ShardHost) -> pb.AckResponse:
        start, end = column("start", request.start, "<i8"), column("end", request.end, "<i8")
        offset, attempt = _attempts(request)
        if len(start) and len(offset):
            raise Refused("BAD_REQUEST", "an Ack names ranges (start, end), or attempts (offset, attempt), not both")
        shard, now = host.shard, self.node.clock.now_ms()
        await host.pass_filtered(request.group)
        group = shard.consumers.group(request.group)
        full = group.window_end - group.first_unacked >= group.max_unacked
        settlement = b""
        if len(offset):
            done, settled = shard.consumers.acknowledge_attempts(request.group, offset, attempt, now)
            settlement = _settlement(settled)
        else:
            done = shard.consumers.acknowledge(request.group, start, end, now)
        host.on_proposed()
        await host.wait_committed(shard.log_end)
        if full:  # consumers may wait for nothing but room
            host.on_visible()
        self.node.metrics.acknowledged[host.topic] += done
        return pb.AckResponse(acknowledged=done, settlement=settlement)

    async def nack(self, request: pb.NackRequest, host: ShardHost) -> pb.NackResponse:
        offset, attempt = _attempts(request)
        shard = host.shard
        if not -1 <= request.backoff_ms <= MAX_INVISIBLE_MS:
            raise Refused(
                "BAD_REQUEST",
                f"backoff_ms: {format_ms(request.backoff_ms)} is not within 0 ms and the limit, "
                f"{format_ms(MAX_INVISIBLE_MS)}; -1: the default",
            )
        try:
            check_reason(request.reason)
        except ValueError as error:
            raise Refused("BAD_REQUEST", str(error)) from None
        await host.pass_filtered(request.group)
        counts = shard.consumers.nack(
            request.group, offset, attempt, request.backoff_ms, host.believed_ms(), dead=request.dead,
            reason=request.reason,
        )  # fmt: skip
        host.on_proposed()
        await host.wait_committed(shard.log_end)
        host.on_visible()
        self.node.metrics.dead[host.topic] += counts.dead
        return pb.NackResponse(
            retried=counts.retried, dead=counts.dead, ignored=counts.ignored, settlement=_settlement(counts.settled)
        )

    async def extend(self, request: pb.ExtendRequest, host: ShardHost) -> pb.ExtendResponse:
        offset, attempt = _attempts(request)
        _check_invisible(request.invisible_ms)
        settled, until_ms = await host.extend(request.group, offset, attempt, request.invisible_ms)
        return pb.ExtendResponse(settlement=_settlement(settled), until_ms=until_ms)

    async def describe_group(self, request: pb.DescribeGroupRequest, host: ShardHost) -> pb.DescribeGroupResponse:
        shard = host.shard
        groups = shard.consumers.groups
        names = [shard.consumers.group(request.group).name] if request.group else sorted(groups)
        now, end = self.node.clock.now_ms(), shard.queue.visible
        states = []
        for name in names:
            counts = groups[name].counts(shard.queue, now)
            oldest = groups[name].oldest(shard.queue)
            states.append(
                pb.GroupState(
                    group=name, tags=groups[name].tags, floor=groups[name].first_unacked, end_offset=end,
                    available=counts.available, in_flight=counts.in_flight, waiting_retry=counts.waiting_retry,
                    dead=counts.dead, redriven=counts.redriven, dead_limit=shard.consumers.limits.max_dead,
                    oldest_ms=0 if oldest is None else shard.space.released_ms(oldest),
                )
            )  # fmt: skip
        await host.wait_committed(shard.log_end)
        return pb.DescribeGroupResponse(groups=states, now_ms=now)

    async def delete_group(self, request: pb.DeleteGroupRequest, host: ShardHost) -> pb.DeleteGroupResponse:
        shard, now = host.shard, self.node.clock.now_ms()
        counts = shard.consumers.group(request.group).counts(shard.queue, now)
        shard.consumers.delete(request.group, now)
        host.on_proposed()
        await host.wait_committed(shard.log_end)
        host.on_visible()  # who waits for messages of this group is told that it is gone
        unfinished = counts.available + counts.in_flight + counts.waiting_retry
        return pb.DeleteGroupResponse(unfinished=unfinished, dead=counts.dead)

    async def list_dead_letters(self, request: pb.ListDeadLettersRequest, host: ShardHost, answers: Answers) -> Body:
        letters = host.shard.consumers.dead_letters(
            request.group, request.after_offset, min(request.limit or 1000, MAX_PAGE)
        )
        await host.wait_committed(host.shard.log_end)
        fits = fitting(letters.rows["size"])
        delivery = ConsumerDelivery(
            letters.offset[:fits], letters.attempt[:fits], letters.rows[:fits], reasons=letters.reasons[:fits]
        )
        return await self._message_batch(host, delivery, answers)

    async def resolve_dead_letters(
        self, request: pb.ResolveDeadLettersRequest, host: ShardHost
    ) -> pb.ResolveDeadLettersResponse:
        actions = pb.ResolveDeadLettersRequest
        if request.action not in (actions.REDRIVE, actions.DROP):
            raise Refused("BAD_REQUEST", "action must be REDRIVE or DROP")
        offsets = column("offset", request.offset, "<i8") if request.offset else None
        resolved = host.shard.consumers.resolve(
            request.group, offsets, redrive=request.action == actions.REDRIVE, now_ms=self.node.clock.now_ms()
        )
        host.on_proposed()
        await host.wait_committed(host.shard.log_end)
        host.on_visible()
        return pb.ResolveDeadLettersResponse(resolved=resolved)


async def _unless_left(stream: Stream, answer: Awaitable[Body]) -> Body | None:
    """The answer; None: it was cancelled, as an empty request has come meanwhile."""
    serving = True

    def end(request: Body) -> None:
        if serving and not request:
            waiting.reschedule(0.0)

    try:
        async with asyncio.timeout(None) as waiting:
            stream.on_next(end)
            return await answer
    except TimeoutError:
        if not waiting.expired():
            raise
        return None
    finally:
        serving = False


def _check_invisible(invisible_ms: int) -> None:
    if invisible_ms > MAX_INVISIBLE_MS:
        raise Refused(
            "BAD_REQUEST",
            f"invisible_ms: {format_ms(invisible_ms)} is longer than the limit, {format_ms(MAX_INVISIBLE_MS)}",
        )


def _attempts(request: pb.AckRequest | pb.NackRequest | pb.ExtendRequest) -> tuple[I64, U32]:
    """The columns of n attempts: queue offsets i64[n], attempts u32[n]. Raises Refused."""
    offset = column("offset", request.offset, "<i8")
    return offset, column("attempt", request.attempt, "<u4", len(offset))


def _settlement(settled: Bools) -> bytes:
    """The column of `Settlement`."""
    return np.where(settled, pb.SETTLED, pb.ATTEMPT_OVER).astype(np.uint8).tobytes()
