"""delay.v1.DelayService over the node's shards.

Every call comes and leaves as bytes: a call for a shard that is served elsewhere is passed on unread, once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import numpy as np
from delayclient.proto.delay.v1 import delay_pb2 as pb
from delayclient.wire import (
    EnqueueRequestView,
    WireError,
    decode_enqueue_request,
    encode_enqueue_response,
    encode_message_batch,
)
from google.protobuf.message import DecodeError, Message

from delaynode.serve.forward import FORWARDED, Forwarder, Passed
from delaynode.serve.host import ShardHost
from delaynode.serve.node import Elsewhere, Node
from delaynode.serve.rpc import abort, as_error, column
from delaynode.store.consumers import Delivery
from delaynode.store.errors import Damaged, Refused
from delaynode.store.intake import MAX_BATCH_MESSAGES, Batch, columns_of
from delaynode.store.shard import Appended, Lookup
from delaynode.store.types import I64, MAX_SEQ, Array, Bools, Pair, Records
from delaynode.store.window import after

SERVICE = "delay.v1.DelayService"
UNANSWERED_IN_STREAM = 16
MAX_WAIT_MS = 60_000
MAX_INVISIBLE_MS = 12 * 3_600_000
MAX_RECEIVE = 65_536
MAX_BATCH_OUT_BYTES = 8 << 20
MAX_PAGE = 10_000
CLOCK_WAIT_SECONDS = 1.0

Context: TypeAlias = Any  # grpc.aio.ServicerContext, which comes without types
Body: TypeAlias = bytes
Unanswered: TypeAlias = tuple[Coroutine[Any, Any, Body], int]
"""The answer to a stream's request, to be awaited, and the bytes that the request holds in flight until then."""


@dataclass(slots=True)
class InFlight:
    """Bytes of batches that wait for their commit, bounded for the node."""

    limit: int
    used: int = 0

    def take(self, size: int) -> None:
        """Raises Refused BUSY."""
        if self.used and self.used + size > self.limit:
            raise Refused(
                "BUSY", f"{self.used:,} bytes wait for the disk, the limit is {self.limit:,}", retry_after_ms=20
            )
        self.used += size

    def give(self, size: int) -> None:
        self.used -= size


class DelayService:
    """Registered with handlers(); one for a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.in_flight = InFlight(node.config.in_flight_bytes)
        self.forwarder = Forwarder()

    def handlers(self) -> grpc.GenericRpcHandler:
        unary: dict[str, tuple[type[Message], Callable[[Any, ShardHost], Awaitable[Message | Body]]]] = {
            "Fetch": (pb.FetchRequest, self.fetch),
            "Receive": (pb.ReceiveRequest, self.receive),
            "Ack": (pb.AckRequest, self.ack),
            "Nack": (pb.NackRequest, self.nack),
            "Cancel": (pb.CancelRequest, self.cancel),
            "Reschedule": (pb.RescheduleRequest, self.reschedule),
            "ListPending": (pb.ListPendingRequest, self.list_pending),
            "DescribeGroup": (pb.DescribeGroupRequest, self.describe_group),
            "DeleteGroup": (pb.DeleteGroupRequest, self.delete_group),
            "ListDeadLetters": (pb.ListDeadLettersRequest, self.list_dead_letters),
            "ResolveDeadLetters": (pb.ResolveDeadLettersRequest, self.resolve_dead_letters),
        }
        rpcs = {name: grpc.unary_unary_rpc_method_handler(self._unary(name, *how)) for name, how in unary.items()}
        rpcs["Enqueue"] = grpc.unary_unary_rpc_method_handler(self._enqueue)
        rpcs["EnqueueStream"] = grpc.stream_stream_rpc_method_handler(self._enqueue_stream)
        rpcs["ReceiveStream"] = grpc.stream_stream_rpc_method_handler(self._receive_stream)
        rpcs["QueryRoute"] = grpc.unary_unary_rpc_method_handler(self._query_route)
        rpcs["GetWheel"] = grpc.unary_unary_rpc_method_handler(self._get_wheel)
        return grpc.method_handlers_generic_handler(SERVICE, rpcs)

    def _unary(
        self, method: str, request_type: type[Message], serve: Callable[[Any, ShardHost], Awaitable[Message | Body]]
    ) -> Callable[[Body, Context], Awaitable[Body]]:
        async def handle(data: Body, context: Context) -> Body:
            try:
                request: Any = _parse(request_type, data)
                place = self._place(request.topic, request.queue, context)
                if isinstance(place, Elsewhere):
                    return await self.forwarder.call(place.endpoint, method, data, context.time_remaining())
                answer = await serve(request, place)
                return answer if isinstance(answer, bytes) else answer.SerializeToString()
            except Refused as refused:
                await abort(context, refused)
            except Passed as passed:
                await passed.abort(context)
            except (Damaged, OSError) as damaged:
                self._fail(request, damaged)
                await abort(context, Refused("SHARD_DAMAGED", str(damaged)))

        return handle

    def _fail(self, request: Any, damaged: Exception) -> None:
        try:
            place = self.node.find(request.topic, request.queue)
        except Refused:
            return  # another call found it out before
        if isinstance(place, ShardHost):
            place.fail(str(damaged))

    def _place(self, topic: str, queue: int, context: Context) -> ShardHost | Elsewhere:
        """Where the shard is served; a call that was forwarded already goes no further."""
        place = self.node.find(topic, queue)
        if isinstance(place, Elsewhere) and FORWARDED in dict(context.invocation_metadata() or ()):
            raise Refused(
                "NOT_MASTER",
                f"shard {topic}-{queue} is served by {place.endpoint}",
                endpoint=place.endpoint,
                epoch=place.epoch,
            )
        return place

    # ------------------------------------------------------------ enqueue
    async def _enqueue(self, data: Body, context: Context) -> Body:
        try:
            view = _view(data)
            place = self._place(view.topic, view.queue, context)
            if isinstance(place, Elsewhere):
                return await self.forwarder.call(place.endpoint, "Enqueue", data, context.time_remaining())
            batch = _batch(view)
            self.node.disk.check()
            self.in_flight.take(len(data))
            try:
                started = time.monotonic()
                appended = await self._append(place, batch)
                return await self._stored(place, view, appended, started)
            finally:
                self.in_flight.give(len(data))
        except Refused as refused:
            await abort(context, refused)
        except Passed as passed:
            await passed.abort(context)

    async def _append(self, host: ShardHost, batch: Batch) -> Appended:
        """Append, waiting a little for a clock that is behind what was released."""
        deadline = time.monotonic() + CLOCK_WAIT_SECONDS
        while True:
            try:
                return host.enqueue(batch)
            except Refused as refused:
                if refused.reason != "CLOCK_BEHIND" or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.02)

    async def _stored(self, host: ShardHost, view: EnqueueRequestView, appended: Appended, started: float) -> Body:
        """The answer, once it is true."""
        await host.committed(appended.log_end)
        due: I64 | bytes = b""
        if len(view.relative):
            due = appended.due if appended.due is not None else host.shard.first_due(appended.frame, appended.count)
        latency_ms = (time.monotonic() - started) * 1000
        self.node.metrics.enqueue_latency[host.topic].add_one(latency_ms)
        return encode_enqueue_response(
            host.shard.identity.uid, appended.first_seq, appended.count, due, duplicate=appended.due is None
        )

    async def _enqueue_stream(self, requests: AsyncIterator[Body], context: Context) -> AsyncIterator[Body]:
        answers: asyncio.Queue[Unanswered | None] = asyncio.Queue(UNANSWERED_IN_STREAM)
        reader = asyncio.create_task(self._read_stream(requests, context, answers))
        try:
            while (unanswered := await answers.get()) is not None:
                answer, size = unanswered
                try:
                    body = await answer
                finally:
                    self.in_flight.give(size)
                yield body
            await reader
        finally:
            reader.cancel()
            while not answers.empty():
                self._drop(answers.get_nowait())

    def _drop(self, unanswered: Unanswered | None) -> None:
        """The stream has broken off: nobody waits for this answer any more."""
        if unanswered is not None:
            answer, size = unanswered
            answer.close()
            self.in_flight.give(size)

    async def _read_stream(
        self, requests: AsyncIterator[Body], context: Context, answers: asyncio.Queue[Unanswered | None]
    ) -> None:
        try:
            async for data in requests:
                unanswered = await self._stream_one(data, context)
                try:
                    await answers.put(unanswered)
                except asyncio.CancelledError:
                    self._drop(unanswered)
                    raise
        except Exception:
            await answers.put(None)
            raise
        await answers.put(None)

    async def _stream_one(self, data: Body, context: Context) -> Unanswered:
        """Append one request of a stream now; its answer, or its error as an answer, can be awaited."""
        try:
            view = _view(data)
            place = self._place(view.topic, view.queue, context)
            if isinstance(place, Elsewhere):  # one after the other: the order within a producer must stay
                return _ready(await self.forwarder.call(place.endpoint, "Enqueue", data, 30.0)), 0
            batch = _batch(view)
            self.node.disk.check()
            while True:
                try:
                    self.in_flight.take(len(data))
                    break
                except Refused:
                    await asyncio.sleep(0.002)  # a stream waits instead: that is its flow control
            started = time.monotonic()
            try:
                appended = await self._append(place, batch)
            except BaseException:
                self.in_flight.give(len(data))
                raise
            return self._stream_answer(place, view, appended, started), len(data)
        except Refused as refused:
            return _ready(encode_enqueue_response(0, 0, 0, error=as_error(refused))), 0
        except Passed as passed:
            return _ready(encode_enqueue_response(0, 0, 0, error=passed.as_error())), 0

    async def _stream_answer(
        self, host: ShardHost, view: EnqueueRequestView, appended: Appended, started: float
    ) -> Body:
        try:
            return await self._stored(host, view, appended, started)
        except Refused as refused:
            return encode_enqueue_response(0, 0, 0, error=as_error(refused))

    # ------------------------------------------------------------ reading
    async def fetch(self, request: pb.FetchRequest, host: ShardHost) -> Body:
        offset = request.offset
        if request.group:
            group = host.shard.consumers.group(request.group)
            offset = group.floor if offset < 0 else offset
        most_bytes = min(request.max_bytes or 4 << 20, MAX_BATCH_OUT_BYTES)
        most = min(request.max_messages or 1024, MAX_RECEIVE)
        offset, rows = await host.fetch(offset, most, most_bytes, min(request.wait_ms, MAX_WAIT_MS))
        await host.committed(host.shard.log_end)
        delivery = Delivery(np.arange(offset, offset + len(rows)), np.empty(0, np.uint32), rows)
        return await self._message_batch(host, delivery)

    async def receive(self, request: pb.ReceiveRequest, host: ShardHost) -> Body:
        invisible_ms = request.invisible_ms or 30_000
        if invisible_ms > MAX_INVISIBLE_MS:
            raise Refused("BAD_REQUEST", f"invisible_ms is {invisible_ms}, the limit is {MAX_INVISIBLE_MS}")
        delivery = await host.receive(
            request.group,
            tuple(request.tags),
            min(request.max_messages or 32, MAX_RECEIVE),
            min(request.max_bytes or 4 << 20, MAX_BATCH_OUT_BYTES),
            min(request.wait_ms, MAX_WAIT_MS),
            invisible_ms,
            request.from_end,
        )
        return await self._message_batch(host, delivery)

    async def _receive_stream(self, requests: AsyncIterator[Body], context: Context) -> AsyncIterator[Body]:
        receive = self._unary("Receive", pb.ReceiveRequest, self.receive)
        async for data in requests:
            yield await receive(data, context)

    async def _message_batch(self, host: ShardHost, delivery: Delivery) -> Body:
        rows = delivery.rows
        records = await host.read_records(rows)
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
        )

    # ------------------------------------------------------------ group progress
    async def ack(self, request: pb.AckRequest, host: ShardHost) -> pb.AckResponse:
        start, end = column("start", request.start, "<i8"), column("end", request.end, "<i8")
        shard = host.shard
        group = shard.consumers.group(request.group)
        full = group.fresh - group.floor >= group.max_unacked
        done = shard.consumers.acknowledge(request.group, start, end, self.node.clock.now_ms())
        host.changed()
        await host.committed(shard.log_end)
        if full:  # consumers may wait for nothing but room
            host.woken()
        self.node.metrics.acknowledged[host.topic] += done
        return pb.AckResponse(acknowledged=done)

    async def nack(self, request: pb.NackRequest, host: ShardHost) -> pb.NackResponse:
        offset = column("offset", request.offset, "<i8")
        attempt = column("attempt", request.attempt, "<u4", len(offset))
        shard = host.shard
        if not -1 <= request.backoff_ms <= MAX_INVISIBLE_MS:
            raise Refused(
                "BAD_REQUEST", f"backoff_ms is {request.backoff_ms}, the limit is {MAX_INVISIBLE_MS}; -1: the default"
            )
        counts = shard.consumers.nack(request.group, offset, attempt, request.backoff_ms, self.node.clock.now_ms())
        host.changed()
        await host.committed(shard.log_end)
        host.woken()
        self.node.metrics.dead[host.topic] += counts.dead
        return pb.NackResponse(retried=counts.retried, dead=counts.dead, ignored=counts.ignored)

    async def describe_group(self, request: pb.DescribeGroupRequest, host: ShardHost) -> pb.DescribeGroupResponse:
        shard = host.shard
        groups = shard.consumers.groups
        names = [shard.consumers.group(request.group).name] if request.group else sorted(groups)
        now, end = self.node.clock.now_ms(), shard.queue.visible
        states = []
        for name in names:
            counts = groups[name].counts(end, now)
            states.append(
                pb.GroupState(
                    group=name, tags=groups[name].tags, floor=groups[name].floor, end_offset=end,
                    available=counts.available, in_flight=counts.in_flight, waiting_retry=counts.waiting_retry,
                    dead=counts.dead,
                )
            )  # fmt: skip
        await host.committed(shard.log_end)
        return pb.DescribeGroupResponse(groups=states)

    async def delete_group(self, request: pb.DeleteGroupRequest, host: ShardHost) -> pb.DeleteGroupResponse:
        host.shard.consumers.delete(request.group, self.node.clock.now_ms())
        host.changed()
        await host.committed(host.shard.log_end)
        return pb.DeleteGroupResponse()

    async def list_dead_letters(self, request: pb.ListDeadLettersRequest, host: ShardHost) -> Body:
        letters = host.shard.consumers.dead_letters(
            request.group, request.after_offset, min(request.limit or 1000, MAX_PAGE)
        )
        await host.committed(host.shard.log_end)
        fits = _fitting(letters.rows["size"])
        return await self._message_batch(
            host, Delivery(letters.offset[:fits], letters.attempt[:fits], letters.rows[:fits])
        )

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
        host.changed()
        await host.committed(host.shard.log_end)
        host.woken()
        return pb.ResolveDeadLettersResponse(resolved=resolved)

    # ------------------------------------------------------------ pending messages
    def _handles(self, request: pb.CancelRequest | pb.RescheduleRequest, host: ShardHost) -> tuple[I64, I64]:
        due = column("due", request.due, "<i8")
        seq = column("seq", request.seq, "<i8", len(due))
        if request.uid != host.shard.identity.uid:
            raise Refused(
                "FOREIGN_HANDLE", f"the handles are of shard {request.uid:x}, this is {host.shard.identity.uid:x}"
            )
        if not 0 < len(due) <= MAX_BATCH_MESSAGES:
            raise Refused(
                "BATCH_TOO_LARGE", f"a request names 1 to {MAX_BATCH_MESSAGES:,} messages, this one {len(due):,}"
            )
        return due, seq

    async def cancel(self, request: pb.CancelRequest, host: ShardHost) -> pb.CancelResponse:
        by_key = bool(request.key)
        due, seq = await self._with_key(request, host) if by_key else self._handles(request, host)
        if not len(due):
            return pb.CancelResponse()
        shard = host.shard
        lookup = shard.begin_lookup(due, seq)
        try:
            await host.look_up(lookup)
            host.check_serving()
            outcomes = shard.cancel(lookup, self.node.clock.now_ms())
        finally:
            shard.end_lookup(lookup)
        host.changed()
        await host.committed(shard.log_end)
        self.node.metrics.cancelled[host.topic] += int(np.count_nonzero(outcomes.outcome == pb.CANCELLED))
        answer = pb.CancelResponse(outcome=outcomes.outcome.tobytes())
        if by_key:
            answer.due, answer.seq = due.tobytes(), seq.tobytes()
        return answer

    async def _with_key(self, request: pb.CancelRequest, host: ShardHost) -> tuple[I64, I64]:
        """Pending messages in the due range whose key is the request's: by hash first, then the key itself."""
        from zlib import crc32

        if request.from_ms >= request.to_ms:
            raise Refused("BAD_REQUEST", f"empty range: from_ms {request.from_ms} is not before to_ms {request.to_ms}")
        wanted = crc32(request.key.encode())

        def keep(rows: Records) -> Bools:
            hit: Bools = (rows["key"] == wanted) | (
                rows["magic"] != 1
            )  # a ROLL or DELETE decides about one with the key
            return hit

        rows, _ = await self._pending(host, Pair(request.from_ms, 0), Pair(request.to_ms, 0), keep, None)
        rows = rows[rows["key"] == wanted]
        same: list[bool] = []
        while len(same) < len(rows):  # a key may have any number of messages: a few MiB of them at a time
            part = rows[len(same) :]
            part = part[: _fitting(part["size"])]
            records = await host.read_records(part)
            same += [_has_key(record, request.key) for record in _split(records, part["size"])]
        rows = rows[np.array(same, bool)]
        return np.ascontiguousarray(rows["due"]), np.ascontiguousarray(rows["seq"])

    async def _pending(
        self, host: ShardHost, low: Pair, high: Pair, keep: Callable[[Records], Bools] | None, most: int | None
    ) -> tuple[Records, bool]:
        """Live rows of a range above the watermark, committed, by (due, seq); and whether there may be more behind."""
        index = host.shard.index
        low = max(low, after(index.watermark))
        if low >= high:
            return index.window.find(np.empty(0, np.int64), np.empty(0, np.int64))[0], False
        job = index.begin_scan(low, high, keep, most)
        try:
            await host.off_loop(job.run)
            rows, live = job.result()
        finally:
            index.end_capture(job.capture)
        host.check_serving()
        await host.committed(host.shard.log_end)
        return rows[live], job.high < high

    async def reschedule(self, request: pb.RescheduleRequest, host: ShardHost) -> pb.RescheduleResponse:
        due, seq = self._handles(request, host)
        new = column("time", request.time, "<i8", len(due))
        relative = column("relative", request.relative, "u1", len(due)) if request.relative else np.empty(0, np.uint8)
        if int(new.min()) < 0 or (len(relative) and int(relative.max()) > 1):
            raise Refused("BAD_COLUMNS", "column time must not be negative, column relative must be 0 or 1")
        shard = host.shard
        lookup: Lookup = shard.begin_lookup(due, seq)
        try:
            await host.look_up(lookup)
            host.check_serving()
            outcomes = shard.reschedule(lookup, new, relative, self.node.clock.now_ms())
        finally:
            shard.end_lookup(lookup)
        moved = outcomes.due[outcomes.outcome == pb.MOVED]
        host.changed(int(moved.min()) if len(moved) else None)
        await host.committed(shard.log_end)
        return pb.RescheduleResponse(outcome=outcomes.outcome.tobytes(), due=outcomes.due.tobytes())

    async def list_pending(self, request: pb.ListPendingRequest, host: ShardHost) -> pb.PendingBatch:
        limit = min(request.limit or 1000, MAX_PAGE)
        low = max(Pair(request.from_ms, 0), after(Pair(request.after_due, request.after_seq)))
        high = Pair(request.to_ms or host.shard.index.last_due_ms() + 1, 0)
        rows, more = await self._pending(host, low, high, None, limit + 1)
        if request.with_records:
            limit = min(limit, _fitting(rows["size"]))
        more = more or len(rows) > limit
        rows = rows[:limit]
        answer = pb.PendingBatch(
            uid=host.shard.identity.uid, count=len(rows), due=rows["due"].tobytes(), seq=rows["seq"].tobytes(),
            size=rows["size"].tobytes(), more=more,
        )  # fmt: skip
        if request.with_records:
            answer.records = b"".join(await host.read_records(rows))
        return answer

    # ------------------------------------------------------------ the node's own
    async def _get_wheel(self, data: Body, context: Context) -> Body:
        try:
            request = _parse(pb.GetWheelRequest, data)
            if request.topic:
                place = self._place(request.topic, request.queue, context)
                if isinstance(place, Elsewhere):
                    return await self.forwarder.call(place.endpoint, "GetWheel", data, context.time_remaining())
                hosts = [place]
            else:
                hosts = self.node.hosts()
            answer = pb.GetWheelResponse(now_ms=self.node.clock.now_ms())
            for host in hosts:
                answer.shards.append(await self._wheel(host, request.from_ms, request.to_ms or MAX_SEQ))
            return answer.SerializeToString()
        except Refused as refused:
            await abort(context, refused)
        except Passed as passed:
            await passed.abort(context)

    async def _wheel(self, host: ShardHost, from_ms: int, to_ms: int) -> pb.ShardWheel:
        shard, index = host.shard, host.shard.index
        counting = index.begin_count()
        wheel = pb.ShardWheel(  # all as of one moment, so that it adds up
            topic=shard.identity.topic, queue=shard.identity.queue, node=self.node.config.node,
            watermark_ms=index.watermark.due, pending=index.pending, pending_bytes=index.pending_bytes,
            released=shard.queue.end, epoch=shard.epoch, log_end=shard.log_end,
        )  # fmt: skip
        start, width, count = await host.off_loop(counting)
        inside = (start + width > from_ms) & (start < to_ms)
        mean = wheel.pending_bytes / wheel.pending if wheel.pending else 0.0
        wheel.slot_start, wheel.slot_width = start[inside].tobytes(), width[inside].tobytes()
        wheel.messages = count[inside].tobytes()
        wheel.bytes = (count[inside] * mean).astype(np.int64).tobytes()
        await host.committed(wheel.log_end)
        return wheel

    async def _query_route(self, data: Body, context: Context) -> Body:
        try:
            request = _parse(pb.QueryRouteRequest, data)
            answer = pb.QueryRouteResponse()
            for name in [request.topic] if request.topic else self.node.topics():
                answer.topics.append(self._route(name, self.node.queues(name)))
            return answer.SerializeToString()
        except Refused as refused:
            await abort(context, refused)

    def _route(self, name: str, shards: list[Any]) -> pb.TopicRoute:
        cluster = self.node.cluster
        topic = cluster.topic(name) if cluster else None
        horizon_ms = (cluster.horizon_days if cluster else 40) * 86_400_000
        route = pb.TopicRoute(
            topic=name,
            max_delay_ms=min(horizon_ms, topic.max_delay_ms) if topic and topic.max_delay_ms else horizon_ms,
            max_attempts=topic.max_attempts if topic else 16,
        )
        for shard in shards:
            endpoint = self.node.endpoint(shard)
            route.queues.add(
                queue=shard.spec.queue, uid=shard.spec.uid, epoch=shard.status.serving_epoch if shard.status else 0,
                node=shard.spec.master or "", endpoint=endpoint,
            )  # fmt: skip
        return route


def _parse(kind: type[Message], data: Body) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused("BAD_REQUEST", f"not a {kind.DESCRIPTOR.full_name}: {error}") from error


def _view(data: Body) -> EnqueueRequestView:
    try:
        return decode_enqueue_request(data)
    except WireError as error:
        raise Refused("BAD_REQUEST", str(error)) from error


def _batch(view: EnqueueRequestView) -> Batch:
    return columns_of(
        view.count, view.time, view.relative, view.size, view.key_hash, view.tag_hash, view.records,
        view.producer_id, view.number,
    )  # fmt: skip


async def _ready(body: Body) -> Body:
    return body


def _fitting(size: Array) -> int:
    """How many rows, from the first on, have records of at most MAX_BATCH_OUT_BYTES together; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(size, dtype=np.int64), MAX_BATCH_OUT_BYTES, "right")))


def _has_key(record: bytes, key: str) -> bool:
    try:
        return bool(pb.Message.FromString(record).key == key)
    except DecodeError:  # the node stores any bytes; these only have a hash like the key's
        return False


def _split(records: Any, size: Array) -> list[bytes]:
    joined = b"".join(records)
    size = size.astype(np.int64)
    ends = np.cumsum(size)
    return [joined[low:high] for low, high in zip((ends - size).tolist(), ends.tolist(), strict=True)]
