"""apache.rocketmq.v2.MessagingService: the calls of official clients, over the doors' core."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from delayapi.durations import format_ms
from delayapi.handle import BadHandle, Handle
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.receipt import BadReceipt, Receipt
from google.protobuf.message import Message

from delaynode.limits.budget import Answers
from delaynode.server.dispatch import parse
from delaynode.server.doors.core import Door, Outgoing, Stored
from delaynode.server.doors.receiving import Ask, Delivered, Receiving
from delaynode.server.doors.records import decoded
from delaynode.server.doors.rocketmq import routes, settings
from delaynode.server.doors.rocketmq.acks import Acks
from delaynode.server.doors.rocketmq.clients import ClientKey, Clients, key_of
from delaynode.server.doors.rocketmq.leases import LEASE_MS, Leases
from delaynode.server.doors.rocketmq.messages import (
    MAX_ID_BYTES,
    group_of,
    incoming,
    milliseconds,
    outgoing,
    timestamp,
    topic_of,
)  # fmt: skip
from delaynode.server.doors.rocketmq.statuses import Wrong, ok, status_of, together
from delaynode.server.doors.singles import Singles
from delaynode.server.edge import LAST_BYTES, Body, Call, Last, Methods, Readable, Serve, Stream
from delaynode.server.handlers.consume import MAX_INVISIBLE_MS
from delaynode.store.errors import Refused

MESSAGING_SERVICE: Final = "apache.rocketmq.v2.MessagingService"
MAX_ROWS = 1_000  # of a request
MAX_BATCH = 1_000  # messages of an answer
POLL_SECONDS = 5.0  # after which a consumer that waits is also given what this node has begun to serve
ANSWER_SECONDS = 1.5  # before a client's deadline
OUTCOMES: Final[dict[int, str]] = {
    pb.TOO_LATE: "it is too late: the message is due",
    pb.NOT_FOUND: "there is no such message, or it has been delivered",
    pb.RESCHEDULED: "it was given another time, and has another handle since",
}

Request = TypeVar("Request", bound=Message)


class MessagingService:
    """One for a node."""

    def __init__(self, door: Door, receiving: Receiving) -> None:
        self._door, self._receiving = door, receiving
        self._singles = Singles(door, near=True, refusal=_encoded_status)
        self.clients = Clients()
        self.leases = Leases(door, self.clients)
        self._acks = Acks(door, self.leases.done, _encoded_status)
        door.node.metrics.rocketmq = lambda: (len(self.clients), len(self.leases))

    def methods(self) -> Methods:
        unary = {
            "QueryRoute": self._serve(mq.QueryRouteRequest, mq.QueryRouteResponse, self._query_route),
            "QueryAssignment": self._serve(
                mq.QueryAssignmentRequest, mq.QueryAssignmentResponse, self._query_assignment
            ),
            "Heartbeat": self._serve(mq.HeartbeatRequest, mq.HeartbeatResponse, self._heartbeat),
            "AckMessage": self._serve(mq.AckMessageRequest, mq.AckMessageResponse, self._ack),
            "ChangeInvisibleDuration": self._serve(
                mq.ChangeInvisibleDurationRequest, mq.ChangeInvisibleDurationResponse, self._change_invisible
            ),
            "ForwardMessageToDeadLetterQueue": self._serve(
                mq.ForwardMessageToDeadLetterQueueRequest, mq.ForwardMessageToDeadLetterQueueResponse, self._dead
            ),
            "RecallMessage": self._serve(mq.RecallMessageRequest, mq.RecallMessageResponse, self._recall),
            "NotifyClientTermination": self._serve(
                mq.NotifyClientTerminationRequest, mq.NotifyClientTerminationResponse, self._terminated
            ),
            "EndTransaction": self._serve(
                mq.EndTransactionRequest, mq.EndTransactionResponse, _not_implemented("transactions are not known here")
            ),
            "SyncLiteSubscription": self._serve(
                mq.SyncLiteSubscriptionRequest, mq.SyncLiteSubscriptionResponse,
                _not_implemented("lite topics are not known here"),
            ),
        }  # fmt: skip
        sends = {"SendMessage": self._serve(mq.SendMessageRequest, mq.SendMessageResponse, self._send)}
        streams = {"Telemetry": self._telemetry, "ReceiveMessage": self._receive}
        readable = {
            "SendMessage": Readable("rocketmq", self._singles.take),
            "AckMessage": Readable("rocketmq-ack", self._acks.take),
        }
        return Methods(unary, sends, streams, readable=readable)

    def _serve(
        self, kind: type[Request], answer: type[Any], do: Callable[[Request, Call, Answers], Awaitable[Any]]
    ) -> Serve:
        """A call whose refusals are a status of its answer."""

        async def serve(data: Body, call: Call, answers: Answers) -> Body:
            try:
                _client(call)
                done = await do(parse(kind, data), call, answers)
            except (Wrong, Refused) as error:
                done = answer(status=status_of(error))
            body: Body = done.SerializeToString()
            return body

        return serve

    # ------------------------------------------------------------ clients
    async def _telemetry(self, stream: Stream) -> AsyncGenerator[Body, None]:
        """A client's settings, each time that it sends them. It keeps the stream as long as it lives."""
        try:
            key = _client(stream)
        except Wrong as error:
            yield mq.TelemetryCommand(status=status_of(error)).SerializeToString()
            raise Refused("BAD_REQUEST", error.message) from None
        peer, language = stream.peer(), stream.metadata("x-mq-language") or ""
        client = self.clients.came(key, peer)
        try:
            while (data := await stream.read()) is not None:
                command = parse(mq.TelemetryCommand, data)
                if not command.HasField("settings"):
                    continue  # an answer to a command that this node never sends
                try:
                    told = settings.answer(command.settings, language, self._max_attempts(command.settings, stream))
                except Wrong as error:
                    yield mq.TelemetryCommand(status=status_of(error)).SerializeToString()
                    raise Refused("BAD_REQUEST", error.message) from None
                client.kind = command.settings.client_type
                yield mq.TelemetryCommand(status=ok(), settings=told).SerializeToString()
        finally:
            if self.clients.left(key, peer):
                self.leases.disconnected(key, peer)

    def _max_attempts(self, asked: mq.Settings, call: Call) -> int:
        """The fewest of the topics that it subscribes to, as far as it may see them."""
        cluster = self._door.node.routes.cluster
        names = {one.topic.name for one in asked.subscription.subscriptions}
        names = {name for name in names if self._door.dispatch.allows("QueryRoute", call, name)}
        found = [topic.max_attempts for topic in (cluster.topics if cluster else ()) if topic.name in names]
        return min(found, default=16)

    async def _heartbeat(self, request: mq.HeartbeatRequest, call: Call, _: Answers) -> mq.HeartbeatResponse:
        return mq.HeartbeatResponse(status=ok())

    async def _terminated(
        self, request: mq.NotifyClientTerminationRequest, call: Call, _: Answers
    ) -> mq.NotifyClientTerminationResponse:
        self.leases.ended(key_of(call))
        return mq.NotifyClientTerminationResponse(status=ok())

    # ------------------------------------------------------------ routes
    def _queues(self, topic: str, call: Call) -> list[mq.MessageQueue]:
        self._door.dispatch.check("QueryRoute", call, topic)
        return routes.message_queues(self._door.node.routes, topic, call.listener(), self._door.node.config.node)

    async def _query_route(self, request: mq.QueryRouteRequest, call: Call, _: Answers) -> mq.QueryRouteResponse:
        queues = self._queues(topic_of(request.topic), call)
        return mq.QueryRouteResponse(status=ok(), message_queues=queues)

    async def _query_assignment(
        self, request: mq.QueryAssignmentRequest, call: Call, _: Answers
    ) -> mq.QueryAssignmentResponse:
        """All nodes, for every consumer: each message is handed out to one of those that ask."""
        topic, _group = topic_of(request.topic), group_of(request.group)
        assignments = [mq.Assignment(message_queue=queue) for queue in self._queues(topic, call)]
        return mq.QueryAssignmentResponse(status=ok(), assignments=assignments)

    # ------------------------------------------------------------ storing
    async def _send(self, request: mq.SendMessageRequest, call: Call, answers: Answers) -> mq.SendMessageResponse:
        messages = request.messages
        _check_rows("messages", messages)
        if len({message.topic.name for message in messages}) > 1:
            raise Wrong(mq.MESSAGE_CORRUPTED, "the messages of a request have one topic")
        now_ms = self._door.node.clock.now_ms()
        checked = [_outgoing(message, now_ms) for message in messages]
        good = [one for one in checked if isinstance(one, Outgoing)]
        results = iter(await self._door.send(call, good, answers, near=True))
        entries = [
            _entry(message, next(results) if isinstance(one, Outgoing) else one)
            for message, one in zip(messages, checked, strict=True)
        ]
        return mq.SendMessageResponse(status=together([entry.status for entry in entries]), entries=entries)

    async def _recall(self, request: mq.RecallMessageRequest, call: Call, answers: Answers) -> mq.RecallMessageResponse:
        text, _, message_id = request.recall_handle.partition(".")
        try:
            handle = Handle.decode(text)
        except BadHandle as error:
            raise Wrong(mq.BAD_REQUEST, f"recall_handle: {error}") from None
        if handle.topic != topic_of(request.topic):
            raise Wrong(mq.BAD_REQUEST, f"the handle is of topic {handle.topic!r}, not {request.topic.name!r}")
        (changed,) = await self._door.cancel(call, [handle], answers)
        if isinstance(changed, Refused):
            raise changed
        if changed.outcome not in (pb.CANCELLED, pb.ALREADY_CANCELLED):  # a client that got no answer asks again
            # Python's client takes MESSAGE_NOT_FOUND for success.
            raise Wrong(mq.NOT_FOUND, OUTCOMES.get(changed.outcome, "it was not recalled"))
        return mq.RecallMessageResponse(status=ok(), message_id=message_id[:MAX_ID_BYTES])

    # ------------------------------------------------------------ deliveries
    async def _receive(self, stream: Stream) -> AsyncGenerator[Body | Last, None]:
        """A status, then the messages, then when they were handed over."""
        answers = self._door.dispatch.flow.answers(stream)
        found: Sequence[Delivered] = ()
        try:
            try:
                request = parse(mq.ReceiveMessageRequest, await stream.read() or b"")
                key, lease_ms = _client(stream), LEASE_MS
                if not request.auto_renew:
                    lease_ms = _lease_ms("invisible_duration", request.invisible_duration, 1)
                found = await self._take(stream, request, lease_ms, answers)
                bodies = [_receive_body(message=incoming(one, decoded(one.record), lease_ms)) for one in found]
            except (Wrong, Refused) as error:
                yield _receive_body(status=status_of(error))
                return
            if request.auto_renew:
                self.leases.add(key, stream, [one.receipt for one in found])
            none = mq.Status(code=mq.MESSAGE_NOT_FOUND, message="no message is due")
            bodies.insert(0, _receive_body(status=ok() if found else none))
            bodies.append(_receive_body(delivery_timestamp=timestamp(self._door.node.clock.now_ms())))
            if sum(map(len, bodies)) <= LAST_BYTES:
                yield Last(bodies)
            else:
                for body in bodies:
                    yield body
            answers.sent()
        except BaseException:  # who asked has gone before it had them
            if found:
                self.leases.done(key_of(stream), [one.receipt for one in found])
                self._receiving.give_back(stream, found)
            raise
        finally:
            answers.dropped()

    async def _take(
        self, stream: Stream, request: mq.ReceiveMessageRequest, lease_ms: int, answers: Answers
    ) -> list[Delivered]:
        """Waits for the first. A push consumer asks all nodes at once, so each gives what it serves; a simple consumer
        goes from node to node, and gets what any has. Raises Wrong, Refused."""
        tags = settings.tags_of(request.filter_expression)
        if request.batch_size < 1:
            raise Wrong(mq.BAD_REQUEST, f"batch_size is {request.batch_size}; it is at least 1")
        ask = Ask(
            topic_of(request.message_queue.topic), group_of(request.group), tags, min(request.batch_size, MAX_BATCH),
            answers.window, lease_ms,
        )  # fmt: skip
        until = time.monotonic() + self._wait_seconds(stream, request)
        while True:
            left = until - time.monotonic()
            found = await self._receiving.receive(
                stream, ask, max(0.0, min(left, POLL_SECONDS)), local_only=request.auto_renew
            )
            try:
                if matching := await self._matching(stream, found, tags, answers):
                    await answers.reserve(sum(len(one.record) for one in matching))
                    return matching
            except BaseException:  # also that who asked has gone
                self._receiving.give_back(stream, found)
                raise
            if left <= POLL_SECONDS:
                return []

    def _wait_seconds(self, stream: Stream, request: mq.ReceiveMessageRequest) -> float:
        asked_ms = settings.LONG_POLL_MS
        if request.HasField("long_polling_timeout"):
            asked_ms = min(asked_ms, milliseconds(request.long_polling_timeout))
        left = stream.time_remaining()
        return asked_ms / 1_000 if left is None else max(0.0, min(asked_ms / 1_000, left - ANSWER_SECONDS))

    async def _matching(
        self, stream: Stream, found: list[Delivered], tags: tuple[str, ...], answers: Answers
    ) -> list[Delivered]:
        """Shards filter by tags' hashes: what has another tag with the same hash is done."""
        if not tags or not found:
            return found
        matches = [decoded(one.record).tag in tags for one in found]
        if others := [one.receipt for one, fits in zip(found, matches, strict=True) if not fits]:
            await self._door.ack(stream, others, answers)
        return [one for one, fits in zip(found, matches, strict=True) if fits]

    async def _ack(self, request: mq.AckMessageRequest, call: Call, answers: Answers) -> mq.AckMessageResponse:
        _check_rows("entries", request.entries)
        read = [_receipt(entry.receipt_handle, request.topic, request.group) for entry in request.entries]
        receipts = [one for one in read if isinstance(one, Receipt)]
        done = iter(await self._door.ack(call, receipts, answers))
        self.leases.done(key_of(call), receipts)
        entries = [
            mq.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle,
                status=_settled(next(done) if isinstance(one, Receipt) else one),
            )
            for entry, one in zip(request.entries, read, strict=True)
        ]  # fmt: skip
        return mq.AckMessageResponse(status=together([entry.status for entry in entries]), entries=entries)

    async def _change_invisible(
        self, request: mq.ChangeInvisibleDurationRequest, call: Call, answers: Answers
    ) -> mq.ChangeInvisibleDurationResponse:
        """A push consumer says so that it has not done its work. A simple consumer may go on with it."""
        key = key_of(call)
        try:
            lease_ms = _lease_ms("invisible_duration", request.invisible_duration, 0)
            receipt = _receipt(request.receipt_handle, request.topic, request.group)
            if isinstance(receipt, Wrong):
                raise receipt
            ends = self.clients.kind(key) == mq.PUSH_CONSUMER or not lease_ms
            if ends and not request.suspend:
                backoff_ms = settings.backoff_ms(lease_ms, receipt.attempt)
                (refused,) = await self._door.nack(call, [receipt], answers, backoff_ms=backoff_ms)
            else:
                (refused,) = await self._door.extend(call, [receipt], answers, lease_ms=lease_ms)
            self.leases.done(key, [receipt])
            status = _settled(refused)
        except (Wrong, Refused) as error:
            status = status_of(error)
        # Clients use what is in the answer before they look at its status.
        return mq.ChangeInvisibleDurationResponse(status=status, receipt_handle=request.receipt_handle)

    async def _dead(
        self, request: mq.ForwardMessageToDeadLetterQueueRequest, call: Call, answers: Answers
    ) -> mq.ForwardMessageToDeadLetterQueueResponse:
        receipt = _receipt(request.receipt_handle, request.topic, request.group)
        if isinstance(receipt, Wrong):
            raise receipt
        (refused,) = await self._door.nack(call, [receipt], answers, dead=True)
        self.leases.done(key_of(call), [receipt])
        return mq.ForwardMessageToDeadLetterQueueResponse(status=_settled(refused))

    async def close(self) -> None:
        await self.leases.close()


def _client(call: Call) -> ClientKey:
    """Raises Wrong."""
    key = key_of(call)
    if not key[1]:
        raise Wrong(mq.CLIENT_ID_REQUIRED, "the call has no x-mq-client-id")
    return key


def _check_rows(what: str, rows: Sequence[Any]) -> None:
    if not 0 < len(rows) <= MAX_ROWS:
        raise Wrong(mq.BAD_REQUEST, f"a request has 1 to {MAX_ROWS:,} {what}, not {len(rows):,}")


def _outgoing(message: mq.Message, now_ms: int) -> Outgoing | Wrong:
    try:
        return outgoing(message, now_ms)
    except Wrong as error:
        return error


def _entry(message: mq.Message, result: Stored | Refused | Wrong) -> mq.SendResultEntry:
    """What became of a message. Its recall handle is its handle, and its id, which a recall answers with."""
    message_id = message.system_properties.message_id
    if not isinstance(result, Stored):
        return mq.SendResultEntry(status=status_of(result), message_id=message_id)
    entry = mq.SendResultEntry(status=ok(), message_id=message_id, offset=result.handle.seq)
    if message.system_properties.HasField("delivery_timestamp"):
        entry.recall_handle = f"{result.handle.encode()}.{message_id}"
    return entry


def _receipt(text: str, topic: Any, group: Any) -> Receipt | Wrong:
    """What a handle names, of that topic and group."""
    try:
        receipt = Receipt.decode(text)
        asked = topic_of(topic), group_of(group)
    except (BadReceipt, Wrong) as error:
        return Wrong(mq.INVALID_RECEIPT_HANDLE, str(error))
    if (receipt.topic, receipt.group) != asked:
        of = f"topic {receipt.topic!r} and group {receipt.group!r}"
        return Wrong(mq.INVALID_RECEIPT_HANDLE, f"the handle is of {of}, not of {asked[0][:255]!r}, {asked[1][:255]!r}")
    return receipt


def _settled(refused: Refused | Wrong | None) -> mq.Status:
    return ok() if refused is None else status_of(refused)


def _lease_ms(name: str, duration: Any, least_ms: int) -> int:
    """Raises Wrong."""
    lease_ms = milliseconds(duration)
    if not least_ms <= lease_ms <= MAX_INVISIBLE_MS:
        limits = f"{format_ms(least_ms)} to {format_ms(MAX_INVISIBLE_MS)}"
        raise Wrong(mq.ILLEGAL_INVISIBLE_TIME, f"{name} is {format_ms(lease_ms)}; allowed: {limits}")
    return lease_ms


def _encoded_status(refused: Refused | None) -> bytes:
    encoded: bytes = _settled(refused).SerializeToString()
    return encoded


def _receive_body(**content: Any) -> Body:
    return mq.ReceiveMessageResponse(**content).SerializeToString()


def _not_implemented(why: str) -> Callable[[Any, Call, Answers], Awaitable[Any]]:
    async def refuse(request: Any, call: Call, answers: Answers) -> Any:
        raise Wrong(mq.NOT_IMPLEMENTED, why)

    return refuse
