"""delay.v1.MessageService: messages by the row, for generated clients of every language."""

from __future__ import annotations

import asyncio
import contextlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from delayapi.durations import format_ms
from delayapi.errors import CODES
from delayapi.handle import BadHandle, Handle
from delayapi.message_ids import MAX_ID_BYTES
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delayapi.reasons import cut_reasons
from delayapi.receipt import BadReceipt, Receipt
from delayapi.units import DAY_MS
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from delaynode.limits.budget import Answers
from delaynode.server.dispatch import parse
from delaynode.server.doors.core import Changed, Door, Outgoing, Stored
from delaynode.server.doors.receiving import Ask, Delivered, Receiving
from delaynode.server.doors.records import decoded, fitting
from delaynode.server.doors.singles import Singles
from delaynode.server.edge import Body, Call, Methods, Readable, Serve, Stream
from delaynode.server.handlers.consume import MAX_INVISIBLE_MS, MAX_WAIT_MS
from delaynode.store.errors import Refused
from delaynode.store.types import MAX_SEQ

MESSAGE_SERVICE: Final = "delay.v1.MessageService"
MAX_ROWS = 1_000  # of a request
MAX_TIME_MS = 253_402_300_800_000  # the year 10000, where Timestamp ends
ANSWER_BYTES = 3 << 20  # of records: clients of gRPC take 4 MiB, receipts included, unless they are told otherwise
STREAM_IN_FLIGHT = 1_000
STREAM_WAIT_SECONDS = 20.0
STREAM_BATCH = 100
SCHEDULE_CALLS: Final[dict[str, type[Message]]] = {
    "PutSchedule": rows.PutScheduleRequest, "GetSchedule": rows.GetScheduleRequest,
    "ListSchedules": rows.ListSchedulesRequest, "PauseSchedule": rows.PauseScheduleRequest,
    "ResumeSchedule": rows.PauseScheduleRequest, "TriggerSchedule": rows.TriggerScheduleRequest,
    "BackfillSchedule": rows.BackfillScheduleRequest, "DeleteSchedule": rows.DeleteScheduleRequest,
}  # fmt: skip
OUTCOMES: Final[dict[int, str]] = {
    pb.CANCELLED: "CANCELLED", pb.TOO_LATE: "TOO_LATE", pb.ALREADY_CANCELLED: "ALREADY_CANCELLED",
    pb.RESCHEDULED: "REPLACED", pb.NOT_FOUND: "NOT_FOUND", pb.MOVED: "RESCHEDULED",
}  # fmt: skip


class MessageService:
    """One for a node."""

    def __init__(self, door: Door, receiving: Receiving) -> None:
        self._door, self._receiving = door, receiving
        self._singles = Singles(door, near=False)
        self._in_flight: dict[tuple[str, str], set[_Stream]] = {}  # by topic and group

    def methods(self) -> Methods:
        calls: dict[str, Serve] = {
            "Receive": self._receive, "Ack": self._ack, "Nack": self._nack, "Extend": self._extend,
            "Cancel": self._cancel, "Reschedule": self._reschedule, "ListPending": self._list_pending,
            "ListGroups": self._list_groups, "DeleteGroup": self._delete_group,
            "ListDeadLetters": self._list_dead_letters,
            "RedriveDeadLetters": self._resolve(pb.ResolveDeadLettersRequest.REDRIVE),
            "DropDeadLetters": self._resolve(pb.ResolveDeadLettersRequest.DROP),
            **{name: self._pass_on(name, kind) for name, kind in SCHEDULE_CALLS.items()},
        }  # fmt: skip
        streams = {"ReceiveStream": self._receive_stream}
        return Methods(calls, {"Send": self._send}, streams, readable={"Send": Readable("rows", self._singles.take)})

    # ------------------------------------------------------------ storing
    async def _send(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.SendRequest, data)
        _check_rows("messages", request.messages)
        now_ms = self._door.node.clock.now_ms()
        checked = [_outgoing(request.topic, at, one, now_ms) for at, one in enumerate(request.messages)]
        results = iter(await self._door.send(call, [one for one in checked if isinstance(one, Outgoing)], answers))
        whole = [next(results) if isinstance(one, Outgoing) else one for one in checked]
        _raise_if_all(whole)
        return rows.SendResponse(results=map(_send_result, whole)).SerializeToString()

    # ------------------------------------------------------------ deliveries
    async def _receive(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.ReceiveMessagesRequest, data)
        ask = _ask(request, request.max_messages or 32)
        ask = _bounded(ask, answers)
        wait_ms = _milliseconds("wait", request.wait, MAX_WAIT_MS)
        if (left := call.time_remaining()) is not None:  # an answer with nothing, rather than none
            wait_ms = min(wait_ms, int(max(0.0, left - min(1.0, left / 2)) * 1_000))
        found = await self._receiving.receive(call, ask, wait_ms / 1_000)
        return await self._deliver(call, found, request.body_format, answers)

    async def _deliver(self, call: Call, found: Sequence[Delivered], body_format: int, answers: Answers) -> Body:
        try:
            await answers.reserve(sum(len(one.record) for one in found))
            deliveries = [_delivery(one, body_format) for one in found]
            return rows.ReceiveMessagesResponse(deliveries=deliveries).SerializeToString()
        except BaseException:  # also that who asked has gone
            self._receiving.give_back(call, found)
            raise

    async def _receive_stream(self, stream: Stream) -> AsyncGenerator[Body, None]:
        data = await stream.read()
        request = parse(rows.ReceiveMessagesRequest, data if data is not None else b"")
        most = min(request.max_in_flight or STREAM_IN_FLIGHT, MAX_ROWS * 10)
        answers = self._door.dispatch.flow.answers(stream)
        ask = _ask(request, min(request.max_messages or STREAM_BATCH, most))
        flight = _Stream(most)
        streams = self._in_flight.setdefault((ask.topic, ask.group), set())
        streams.add(flight)
        try:
            while True:
                await flight.room(self._door.node.clock.now_ms)
                found = await self._receiving.receive(stream, _bounded(ask, answers), STREAM_WAIT_SECONDS)
                if not found:
                    continue
                flight.add(one.receipt for one in found)
                yield await self._deliver(stream, found, request.body_format, answers)
                answers.sent()
        finally:
            answers.dropped()
            streams.discard(flight)
            if not streams:
                self._in_flight.pop((ask.topic, ask.group), None)

    async def _ack(self, data: Body, call: Call, answers: Answers) -> Body:
        receipts, bad = _receipts(parse(rows.AckMessagesRequest, data).receipts)
        return self._settled(receipts, bad, await self._door.ack(call, receipts, answers))

    async def _nack(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.NackMessagesRequest, data)
        receipts, bad = _receipts(request.receipts)
        backoff_ms = _milliseconds("backoff", request.backoff, MAX_INVISIBLE_MS) if request.HasField("backoff") else -1
        done = await self._door.nack(
            call, receipts, answers, backoff_ms=backoff_ms, dead=request.dead, reason=request.reason
        )
        return self._settled(receipts, bad, done)

    async def _extend(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.ExtendMessagesRequest, data)
        receipts, bad = _receipts(request.receipts)
        lease_ms = _milliseconds("lease", request.lease, MAX_INVISIBLE_MS)
        done = await self._door.extend(call, receipts, answers, lease_ms=lease_ms)
        until_ms = self._door.node.clock.now_ms() + lease_ms
        for one, refused in zip(receipts, done, strict=True):
            for flight in self._in_flight.get((one.topic, one.group), ()):
                flight.extended(one, until_ms if refused is None and lease_ms else 0)
        return self._settle_response(bad, done)

    def _settled(self, receipts: list[Receipt], bad: list[Refused | None], done: Sequence[Refused | None]) -> Body:
        for one in receipts:
            for flight in self._in_flight.get((one.topic, one.group), ()):
                flight.extended(one, 0)
        return self._settle_response(bad, done)

    def _settle_response(self, bad: list[Refused | None], done: Sequence[Refused | None]) -> Body:
        good = iter(done)
        whole = [one if one is not None else next(good) for one in bad]
        _raise_if_all(whole)
        results = [rows.SettleResult(settled=one is None, error=None if one is None else _error(one)) for one in whole]
        return rows.SettleResponse(results=results).SerializeToString()

    # ------------------------------------------------------------ what is not due yet
    async def _cancel(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.CancelMessagesRequest, data)
        if bool(request.key) == bool(request.handles):
            raise Refused("BAD_REQUEST", "a Cancel names handles, or a topic and a key")
        if request.key:
            from_ms = _instant("from", getattr(request, "from")) if request.HasField("from") else 0
            to_ms = _instant("to", request.to) if request.HasField("to") else MAX_SEQ
            of_key = await self._door.cancel_key(call, request.topic, request.key, from_ms, to_ms, answers)
            found = [one for one in of_key if one.outcome == pb.CANCELLED]
            return rows.CancelMessagesResponse(results=map(_pending_result, found)).SerializeToString()
        results = await self._changed(request.handles, lambda handles: self._door.cancel(call, handles, answers))
        return rows.CancelMessagesResponse(results=results).SerializeToString()

    async def _reschedule(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.RescheduleMessagesRequest, data)
        if request.WhichOneof("when") is None:
            raise Refused("BAD_REQUEST", "a Reschedule says when: at, or delay")
        time_ms, relative = _when(request)
        results = await self._changed(
            request.handles,
            lambda handles: self._door.reschedule(call, handles, answers, time_ms=time_ms, relative=relative),
        )
        return rows.RescheduleMessagesResponse(results=results).SerializeToString()

    async def _changed(self, texts: Sequence[str], change: Callable[[list[Handle]], Any]) -> list[rows.PendingResult]:
        _check_rows("handles", texts)
        handles: list[Handle] = []
        bad: list[Refused | None] = []
        for text in texts:
            try:
                handles.append(Handle.decode(text))
                bad.append(None)
            except BadHandle as error:
                bad.append(Refused("BAD_REQUEST", str(error)))
        done = iter(await change(handles))
        whole = [one if one is not None else next(done) for one in bad]
        _raise_if_all(whole)
        return [_pending_result(one) for one in whole]

    async def _list_pending(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.ListPendingMessagesRequest, data)
        shards = self._door.queues("ListPending", call, request.topic)
        size = _page_size(request.page_size)
        from_ms = _instant("from", getattr(request, "from")) if request.HasField("from") else 0
        to_ms = _instant("to", request.to) if request.HasField("to") else 0
        # Of the last row of the page before: due, queue, seq. Rows are in that order.
        last = _page(request.page_token, 3)
        inner = self._door.inner(call)

        async def part(shard: Any) -> pb.PendingBatch:
            queue = shard.spec.queue
            after = (0, 0)
            if last is not None:
                due, of, seq = last
                after = (due, MAX_SEQ) if queue < of else (due, seq) if queue == of else (due - 1, MAX_SEQ)
            asked = pb.ListPendingRequest(
                topic=request.topic, queue=queue, from_ms=from_ms, to_ms=to_ms, after_due=after[0], after_seq=after[1],
                limit=size, with_records=request.with_content,
            )  # fmt: skip
            return await self._door.ask("ListPending", asked, pb.PendingBatch, inner, answers)

        parts = await asyncio.gather(*map(part, shards))
        found: list[tuple[int, int, int, int, Any, bytes]] = []
        complete: tuple[int, ...] = (MAX_SEQ,)  # up to here no shard has left anything out
        for shard, batch in zip(shards, parts, strict=True):
            due, seq = np.frombuffer(batch.due, "<i8").tolist(), np.frombuffer(batch.seq, "<i8").tolist()
            sizes = np.frombuffer(batch.size, "<u4").tolist()
            records = _cut(batch.records, sizes) if request.with_content else [b""] * len(due)
            found += [
                (due[at], shard.spec.queue, seq[at], sizes[at], shard.spec.uid, records[at]) for at in range(len(due))
            ]
            if batch.more and due:
                complete = min(complete, found[-1][:3])
        found.sort(key=lambda row: row[:3])
        page = [row for row in found if row[:3] <= complete][:size]
        page = page[: fitting([row[5] for row in page], ANSWER_BYTES)]
        more = len(page) < len(found) or any(batch.more for batch in parts)
        answer = rows.ListPendingMessagesResponse()
        for due_ms, queue, number, bytes_, uid, record in page:
            one = answer.messages.add(
                handle=Handle(request.topic, queue, uid, due_ms, number).encode(), due=_timestamp(due_ms),
                size_bytes=bytes_,
            )  # fmt: skip
            if request.with_content:
                _fill(one, record, request.body_format)
        if more and page:
            answer.next_page_token = _token(page[-1][:3])
        return answer.SerializeToString()

    def _pass_on(self, method: str, kind: type[Message]) -> Serve:
        """A call that DelayService has with the same messages."""

        async def pass_on(data: Body, call: Call, answers: Answers) -> Body:
            request: Any = parse(kind, data)
            self._door.queues(method, call, request.topic)  # who has no right is not told whether there is the topic
            return await self._door.ask_bytes(method, bytes(data), request, self._door.inner(call), answers)

        return pass_on

    # ------------------------------------------------------------ groups
    async def _list_groups(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.ListGroupsRequest, data)
        inner = self._door.inner(call)
        groups: dict[str, list[pb.GroupState]] = {}

        async def part(shard: Any) -> None:
            asked = pb.DescribeGroupRequest(topic=request.topic, queue=shard.spec.queue)
            states = await self._door.ask("DescribeGroup", asked, pb.DescribeGroupResponse, inner, answers)
            for state in states.groups:
                if request.group in ("", state.group):
                    groups.setdefault(state.group, []).append(state)

        await asyncio.gather(*map(part, self._door.queues("DescribeGroup", call, request.topic)))
        if request.group and not groups:
            raise Refused("UNKNOWN_GROUP", f"group {request.group!r} has not received from topic {request.topic!r} yet")
        summaries = [_summary(name, groups[name]) for name in sorted(groups)]
        return rows.ListGroupsResponse(groups=summaries).SerializeToString()

    async def _delete_group(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.DeleteMessageGroupRequest, data)
        inner = self._door.inner(call)

        async def part(shard: Any) -> pb.DeleteGroupResponse | None:
            asked = pb.DeleteGroupRequest(topic=request.topic, queue=shard.spec.queue, group=request.group)
            try:
                return await self._door.ask("DeleteGroup", asked, pb.DeleteGroupResponse, inner, answers)
            except Refused as refused:
                if refused.reason == "UNKNOWN_GROUP":
                    return None
                raise

        shards = self._door.queues("DeleteGroup", call, request.topic, request.group)
        done = [one for one in await asyncio.gather(*map(part, shards)) if one is not None]
        if not done:
            raise Refused("UNKNOWN_GROUP", f"group {request.group!r} has not received from topic {request.topic!r} yet")
        return rows.DeleteMessageGroupResponse(
            unfinished=sum(one.unfinished for one in done), dead=sum(one.dead for one in done)
        ).SerializeToString()

    async def _list_dead_letters(self, data: Body, call: Call, answers: Answers) -> Body:
        request = parse(rows.ListDeadMessagesRequest, data)
        shards = self._door.queues("ListDeadLetters", call, request.topic)
        size = _page_size(request.page_size)
        queue, offset = _page(request.page_token, 2) or (0, -1)
        inner, known = self._door.inner(call), False
        answer = rows.ListDeadMessagesResponse()
        found: list[tuple[Delivered, str]] = []
        for shard in shards:
            if shard.spec.queue < queue:
                continue
            after = offset if shard.spec.queue == queue else -1
            asked = pb.ListDeadLettersRequest(
                topic=request.topic, queue=shard.spec.queue, group=request.group, after_offset=after,
                limit=size - len(found),
            )  # fmt: skip
            try:
                batch = await self._door.ask("ListDeadLetters", asked, pb.MessageBatch, inner, answers)
            except Refused as refused:
                if refused.reason != "UNKNOWN_GROUP":
                    raise
                continue
            known = True
            reasons = cut_reasons(np.frombuffer(batch.reason_size, "<u2"), batch.reasons, batch.count)
            found += zip(_dead(request, shard, batch), reasons, strict=True)
            fits = fitting([one.record for one, _ in found], ANSWER_BYTES)
            if len(found) >= size or fits < len(found):  # so it is where a shard has left some out: 8 MiB are its limit
                found = found[:fits]
                last = found[-1][0].receipt
                answer.next_page_token = _token((last.queue, last.offset))
                break
        for one, reason in found:
            delivery = _delivery(one, request.body_format)
            delivery.dead_reason = reason
            answer.deliveries.append(delivery)
        if not known and not request.page_token:
            raise Refused("UNKNOWN_GROUP", f"group {request.group!r} has not received from topic {request.topic!r} yet")
        return answer.SerializeToString()

    def _resolve(self, action: Any) -> Serve:
        async def resolve(data: Body, call: Call, answers: Answers) -> Body:
            request = parse(rows.DeadLettersRequest, data)
            shards = self._door.queues("ResolveDeadLetters", call, request.topic, request.group)
            inner = self._door.inner(call)
            of_queue: dict[int, list[int]] = {}
            if request.receipts:
                receipts, bad = _receipts(request.receipts)
                for refused in bad:
                    if refused is not None:
                        raise refused
                for one in receipts:
                    if (one.topic, one.group) != (request.topic, request.group):
                        raise Refused("BAD_REQUEST", f"a receipt is of topic {one.topic!r}, group {one.group!r}")
                    self._door.check_shard(one.topic, one.queue, one.uid)
                    of_queue.setdefault(one.queue, []).append(one.offset)
            else:
                of_queue = {shard.spec.queue: [] for shard in shards}

            async def part(queue: int, offsets: list[int]) -> int | None:
                asked = pb.ResolveDeadLettersRequest(
                    topic=request.topic, queue=queue, group=request.group, action=action,
                    offset=np.array(offsets, "<i8").tobytes(),
                )  # fmt: skip
                kind = pb.ResolveDeadLettersResponse
                try:
                    return int((await self._door.ask("ResolveDeadLetters", asked, kind, inner, answers)).resolved)
                except Refused as refused:
                    if refused.reason == "UNKNOWN_GROUP" and not offsets:
                        return None
                    raise

            done = await asyncio.gather(*(part(queue, offsets) for queue, offsets in of_queue.items()))
            if all(one is None for one in done):
                name = request.group
                raise Refused("UNKNOWN_GROUP", f"group {name!r} has not received from topic {request.topic!r} yet")
            return rows.DeadLettersResponse(count=sum(one or 0 for one in done)).SerializeToString()

        return resolve


class _Stream:
    """What a ReceiveStream has handed out and was not settled by this node; what another node settles counts until its
    lease is over."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._until_ms: dict[tuple[int, int, int], int] = {}  # uid, offset, attempt
        self._settled = asyncio.Event()

    def add(self, receipts: Any) -> None:
        self._until_ms.update((_name(one), one.until_ms) for one in receipts)

    def extended(self, receipt: Receipt, until_ms: int) -> None:
        """until_ms 0: it is settled."""
        name = _name(receipt)
        if name not in self._until_ms:
            return
        if until_ms:
            self._until_ms[name] = until_ms
        else:
            del self._until_ms[name]
            self._settled.set()

    async def room(self, now_ms: Callable[[], int]) -> None:
        """Returns when another message may be handed out."""
        while len(self._until_ms) >= self._most:
            now = now_ms()
            self._until_ms = {name: until for name, until in self._until_ms.items() if until > now}
            if len(self._until_ms) < self._most:
                return
            self._settled.clear()
            wait = (min(self._until_ms.values()) - now) / 1_000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait + 0.01):
                    await self._settled.wait()


def _name(receipt: Receipt) -> tuple[int, int, int]:
    return receipt.uid, receipt.offset, receipt.attempt


# ---------------------------------------------------------------- rows and what they are inside
def _outgoing(topic: str, at: int, one: Any, now_ms: int) -> Outgoing | Refused:
    """One message of a Send, or what is wrong with it."""
    try:
        time_ms, relative = _when(one)
        if len(one.message_id.encode()) > MAX_ID_BYTES:
            raise Refused("BAD_REQUEST", f"message_id has more than {MAX_ID_BYTES} bytes")
    except Refused as refused:
        return Refused(refused.reason, f"message {at}: {refused.message}")
    body = one.body_text.encode() if one.WhichOneof("content") == "body_text" else one.body
    record = pb.Message(
        key=one.key, tag=one.tag, properties=one.properties, body=body, born_ms=now_ms, message_id=one.message_id
    )
    return Outgoing(topic, time_ms, relative, record.SerializeToString(), one.key, one.tag, one.message_id)


def _when(one: Any) -> tuple[int, bool]:
    """The due, or the delay and True. Raises Refused."""
    which = one.WhichOneof("when")
    if which == "at":
        return _instant("at", one.at), False
    return (_milliseconds("delay", one.delay, 10_000 * DAY_MS) if which == "delay" else 0), which == "delay"


def _instant(name: str, at: Timestamp) -> int:
    """In ms, never before: a part of one is rounded up. Raises Refused."""
    if not 0 <= at.nanos < 1_000_000_000 or not 0 <= at.seconds < MAX_TIME_MS // 1_000:
        raise Refused("BAD_REQUEST", f"{name}: {at.seconds} s and {at.nanos} ns is no time between 1970 and 9999")
    return int(at.seconds) * 1_000 + -(-int(at.nanos) // 1_000_000)


def _milliseconds(name: str, duration: Duration, most_ms: int) -> int:
    """Raises Refused."""
    ms = int(duration.seconds) * 1_000 + -(-int(duration.nanos) // 1_000_000)
    if duration.seconds < 0 or duration.nanos < 0 or duration.nanos >= 1_000_000_000:
        raise Refused("BAD_REQUEST", f"{name}: a negative or malformed duration")
    if ms > most_ms:
        raise Refused("BAD_REQUEST", f"{name}: {format_ms(ms)} is longer than the limit, {format_ms(most_ms)}")
    return ms


def _timestamp(ms: int) -> Timestamp | None:
    """None for 0: a message that was due at once."""
    if ms <= 0:
        return None
    ms = min(ms, MAX_TIME_MS - 1)
    return Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def _ask(request: Any, most: int) -> Ask:
    if most > MAX_ROWS:
        raise Refused("BAD_REQUEST", f"max_messages: {most:,} are more than the limit, {MAX_ROWS:,}")
    lease_ms = _milliseconds("lease", request.lease, MAX_INVISIBLE_MS) if request.HasField("lease") else 30_000
    if not lease_ms:
        raise Refused("BAD_REQUEST", "lease: a message is handed out for 1 ms at least")
    return Ask(request.topic, request.group, tuple(request.tags), most, ANSWER_BYTES, lease_ms, request.from_end)


def _bounded(ask: Ask, answers: Answers) -> Ask:
    return replace(ask, max_bytes=min(answers.window, ANSWER_BYTES))


def _receipts(texts: Sequence[str]) -> tuple[list[Receipt], list[Refused | None]]:
    """Those that can be read, and for each text what is wrong with it. Raises Refused."""
    _check_rows("receipts", texts)
    receipts: list[Receipt] = []
    bad: list[Refused | None] = []
    for text in texts:
        try:
            receipts.append(Receipt.decode(text))
            bad.append(None)
        except BadReceipt as error:
            bad.append(Refused("BAD_REQUEST", str(error)))
    return receipts, bad


def _check_rows(name: str, given: Sequence[Any]) -> None:
    if not 0 < len(given) <= MAX_ROWS:
        raise Refused("BATCH_TOO_LARGE", f"{name}: a request has 1 to {MAX_ROWS:,}, this one {len(given):,}")


def _raise_if_all(results: Sequence[Any]) -> None:
    """A call of which nothing was done, for one reason, fails."""
    refusals = [one for one in results if isinstance(one, Refused)]
    if len(refusals) == len(results) and len({one.reason for one in refusals}) == 1:
        raise refusals[0].fresh()


def _error(refused: Refused) -> rows.MessageError:
    code = CODES[refused.reason].name.lower()
    return rows.MessageError(
        code="canceled" if code == "cancelled" else code, reason=refused.reason, message=refused.message
    )


def _send_result(one: Stored | Refused) -> rows.SendResult:
    if isinstance(one, Refused):
        return rows.SendResult(error=_error(one))
    return rows.SendResult(handle=one.handle.encode(), due=_timestamp(one.handle.due_ms), duplicate=one.duplicate)


def _pending_result(one: Changed | Refused) -> rows.PendingResult:
    if isinstance(one, Refused):
        return rows.PendingResult(error=_error(one))
    return rows.PendingResult(
        outcome=OUTCOMES[one.outcome], handle=one.handle.encode() if one.outcome == pb.MOVED else "",
        due=_timestamp(one.handle.due_ms),
    )  # fmt: skip


def _delivery(one: Delivered, body_format: int) -> rows.Delivery:
    receipt = one.receipt
    found = rows.Delivery(
        receipt=receipt.encode(), due=_timestamp(one.due_ms), attempt=receipt.attempt,
        lease_ends=_timestamp(receipt.until_ms),
    )  # fmt: skip
    _fill(found, one.record, body_format)
    return found


def _fill(found: Any, record: bytes, body_format: int) -> None:
    """What the sender has written."""
    message = decoded(record)
    found.key, found.tag, found.message_id = message.key, message.tag, message.message_id
    found.properties.update(message.properties)
    if (sent := _timestamp(message.born_ms)) is not None:  # a sender may have said any number
        found.sent.CopyFrom(sent)
    if body_format != rows.BODY_FORMAT_BYTES:
        try:
            found.body_text = message.body.decode()
            return
        except UnicodeDecodeError:
            pass
    found.body = message.body


def _summary(name: str, states: Sequence[pb.GroupState]) -> rows.GroupSummary:
    """A group over all shards."""
    sums = {
        field: sum(getattr(state, field) for state in states)
        for field in ("available", "in_flight", "waiting_retry", "dead")
    }
    oldest_ms = min((state.oldest_ms for state in states if state.oldest_ms), default=0)
    return rows.GroupSummary(group=name, tags=states[0].tags, oldest=_timestamp(oldest_ms), **sums)


def _dead(request: Any, shard: Any, batch: pb.MessageBatch) -> list[Delivered]:
    offset, due = np.frombuffer(batch.offset, "<i8").tolist(), np.frombuffer(batch.due, "<i8").tolist()
    attempt = np.frombuffer(batch.attempt, "<u4").tolist() or [1] * batch.count
    records = _cut(batch.records, np.frombuffer(batch.size, "<u4").tolist())
    seq = np.frombuffer(batch.seq, "<i8").tolist()
    return [
        Delivered(
            Receipt(request.topic, shard.spec.queue, shard.spec.uid, request.group, offset[at], attempt[at], 0),
            records[at], due[at], seq[at],
        )
        for at in range(batch.count)
    ]  # fmt: skip


def _cut(joined: bytes, sizes: Sequence[int]) -> list[bytes]:
    found, at = [], 0
    for size in sizes:
        found.append(joined[at : at + size])
        at += size
    return found


def _page_size(asked: int) -> int:
    if asked > MAX_ROWS:
        raise Refused("BAD_REQUEST", f"page_size: {asked:,} is more than the limit, {MAX_ROWS:,}")
    return asked or 100


def _token(position: Sequence[int]) -> str:
    return urlsafe_b64encode(json.dumps(list(position)).encode()).rstrip(b"=").decode()


def _page(token: str, numbers: int) -> tuple[int, ...] | None:
    """The position that a page token names. Raises Refused."""
    if not token:
        return None
    try:
        found = json.loads(urlsafe_b64decode(token[:200] + "=" * (-len(token) % 4)))
        if len(found) == numbers and all(type(one) is int and -1 <= one <= MAX_SEQ for one in found):
            return tuple(found)
    except (ValueError, TypeError):
        pass
    raise Refused("BAD_REQUEST", "page_token is none that this service has given out")
