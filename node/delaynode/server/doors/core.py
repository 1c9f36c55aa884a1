"""What the doors share: rows become DelayService's calls, for shards that are here or on other nodes.

A door knows of no shard's whereabouts, and of no right: the calls that it makes inside are checked, counted against
quotas and passed on like those of any client (server/dispatch.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar
from zlib import crc32

import grpc
import numpy as np
from delayapi.errors import CODES
from delayapi.handle import Handle
from delayapi.message_ids import hash_id
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.receipt import Receipt
from google.protobuf.message import Message

from delaynode.limits.budget import Answers
from delaynode.node.routes import RemoteMaster
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.dispatch import Dispatch
from delaynode.server.doors.calls import InnerCall
from delaynode.server.doors.together import Together
from delaynode.server.edge import Body, Call, Forwardable, Serve
from delaynode.server.forward import ForwardedError
from delaynode.server.handlers.rows import RowCalls, RowGroup
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.shard import Appended

CALL_SECONDS = 30.0  # of a client that names no deadline
ANSWER_SECONDS = 0.5  # before a client's deadline it is told why it has waited
TOGETHER_SECONDS = 0.01
AGAIN_SECONDS = 0.05  # between two looks for a master that is being made
UNSTORED = ("NOT_MASTER", "BUSY")  # of these it is certain that nothing was stored
PASSING = (*UNSTORED, "NOT_SERVING", "NOT_ENOUGH_REPLICAS")  # what has an id may be stored already, and is not again

Answer = TypeVar("Answer", bound=Message)
Queue: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be stored. time_ms: the due, or the delay where relative; record: an encoded delay.v1.Message."""

    topic: str
    time_ms: int
    relative: bool
    record: bytes
    key: str = ""
    tag: str = ""
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """handle: of the message, with its due; duplicate: it was stored before, by its message id."""

    handle: Handle
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a handle: an Outcome, and the handle from then on, where it was moved."""

    outcome: int
    handle: Handle


class Door:
    """One for a node, for all protocols. Owned by the event loop. calls: DelayService's, by method."""

    def __init__(self, dispatch: Dispatch, calls: Mapping[str, Serve], rows: RowCalls) -> None:
        self.dispatch, self.node = dispatch, dispatch.node
        self._calls, self.rows = calls, rows
        self.under_way = 0  # messages that are being stored
        self._first, self._next_at = 0, 0.0  # until when it is the number of _of_now()
        self._together = Together(dispatch, self.ask_bytes)

    # ------------------------------------------------------------ where to
    def queues(self, method: str, call: Forwardable, topic: str, group: str = "") -> list[Any]:
        """The topic's shards, of whom may do that with it. Raises Refused."""
        self.dispatch.check_right(method, call, topic, group)
        return self.node.routes.queues(topic)

    def inner(self, call: Call, seconds: float | None = None) -> InnerCall:
        """The call as its inner ones see it; seconds: at most so long from now."""
        left = call.time_remaining()
        left = CALL_SECONDS if left is None else max(left / 2, left - ANSWER_SECONDS)
        return InnerCall(call, time.monotonic() + (left if seconds is None else min(left, seconds)))

    def local(self, topic: str, queue: int) -> bool:
        """Whether this node serves the shard just now."""
        return self.host(topic, queue) is not None

    def host(self, topic: str, queue: int) -> ShardHost | None:
        """Of the shard, if this node serves it just now."""
        try:
            found = self.node.finder.find(topic, queue)
        except Refused:
            return None
        return None if isinstance(found, RemoteMaster) else found

    async def ask(self, method: str, request: Message, kind: type[Answer], call: InnerCall, answers: Answers) -> Answer:
        """One call of DelayService. A shard without a master is waited for. Raises Refused."""
        return kind.FromString(await self.ask_bytes(method, request.SerializeToString(), request, call, answers))

    async def ask_bytes(self, method: str, data: bytes, at: Any, call: InnerCall, answers: Answers) -> Body:
        """The same, with the answer as it came. at: the request, which names a queue."""
        while True:
            await self._wait_served(at.topic, at.queue, call)
            try:
                return await self._calls[method](data, call, answers)
            except ForwardedError as error:
                refused = as_refused(error)
            except Refused as error:
                refused = error.fresh()
            if refused.reason != "NOT_MASTER":  # that the routes were old is certain to have changed nothing
                raise refused
            await self._again(call, refused)

    async def _wait_served(self, topic: str, queue: int, call: InnerCall) -> None:
        """Until somebody serves the shard: what has not begun can be waited for. Raises Refused."""
        while True:
            try:
                self.node.finder.find(topic, queue)
                return
            except Refused as refused:
                if refused.reason != "NOT_SERVING":
                    raise
                await self._again(call, refused)

    async def _again(self, call: InnerCall, refused: Refused, seconds: float = AGAIN_SECONDS) -> None:
        if call.time_remaining() <= seconds:
            raise refused.fresh()
        await asyncio.sleep(seconds)

    # ------------------------------------------------------------ storing
    async def send(
        self, call: Call, messages: Sequence[Outgoing], answers: Answers, *, near: bool = False
    ) -> list[Stored | Refused]:
        """Store messages; what became of each, in order. near: those without a key go to shards that this node serves,
        for clients that go from node to node themselves."""
        inner = self.inner(call)
        results: list[Stored | Refused | None] = [None] * len(messages)
        groups: dict[tuple[Queue, bool], list[int]] = {}
        choices: dict[str, Choice | Refused] = {}
        for at, one in enumerate(messages):
            choice = choices.get(one.topic)
            if choice is None:
                choice = choices[one.topic] = self.choose(call, one.topic, near=near)
            if isinstance(choice, Refused):
                results[at] = choice
            else:
                by_id = bool(one.message_id) and choice.deduplicates
                groups.setdefault(((one.topic, choice.queue_of(one, by_id=by_id)), by_id), []).append(at)
        self.under_way += len(messages)
        try:
            stored = await asyncio.gather(
                *(
                    self._store(inner, queue, [messages[at] for at in rows], answers, by_id=by_id)
                    for (queue, by_id), rows in groups.items()
                )
            )
        finally:
            self.under_way -= len(messages)
        for rows, of_group in zip(groups.values(), stored, strict=True):
            for at, result in zip(rows, of_group, strict=True):
                results[at] = result
        return [one if one is not None else Refused("INTERNAL", "no answer") for one in results]

    def choose(self, call: Forwardable, topic: str, *, near: bool) -> Choice | Refused:
        """Which queues messages of the topic go to; what comes together shares one."""
        try:
            shards = self.queues("Enqueue", call, topic)
        except Refused as refused:
            return refused
        first = self._of_now() % len(shards)
        turn = [shard.spec.queue for shard in (*shards[first:], *shards[:first])]
        any_queue = next((queue for queue in turn if near and self.local(topic, queue)), None)
        if any_queue is None:
            any_queue = next((queue for queue in turn if self._is_served(topic, queue)), turn[0])
        return Choice(len(shards), any_queue, self.node.routes.deduplicates(topic))

    def _of_now(self) -> int:
        """The same number for all that comes within TOGETHER_SECONDS, while some of it is under way, then the next: so
        what may go to any queue and comes together shares a frame, with one write and one sync."""
        now = time.monotonic()
        if not self.under_way or now >= self._next_at:
            self._first, self._next_at = self._first + 1, now + TOGETHER_SECONDS
        return self._first

    def _is_served(self, topic: str, queue: int) -> bool:
        try:
            self.node.finder.find(topic, queue)
        except Refused:
            return False
        return True

    async def _store(
        self, call: InnerCall, queue: Queue, messages: list[Outgoing], answers: Answers, *, by_id: bool
    ) -> list[Stored | Refused]:
        """Store messages of one queue, by one request, which is stored whole or not at all. Raises nothing."""
        try:
            return list(await self._store_whole(call, queue, messages, answers, by_id=by_id))
        except Refused as error:
            refused = error.fresh()
        if len(messages) == 1 or CODES.get(refused.reason) is not grpc.StatusCode.INVALID_ARGUMENT:
            return [refused] * len(messages)
        # One of them can't be stored, and so nothing was: each by itself.
        each = await asyncio.gather(*(self._store(call, queue, [one], answers, by_id=by_id) for one in messages))
        return [one for (one,) in each]

    async def _store_whole(
        self, call: InnerCall, queue: Queue, messages: list[Outgoing], answers: Answers, *, by_id: bool
    ) -> Iterable[Stored]:
        """Raises Refused."""
        while True:
            await self._wait_served(*queue, call)
            try:
                if by_id:
                    return await self._store_once(call, queue, messages, answers)
                return _stored_rows(queue, messages, await self._take(call, queue, messages))
            except ForwardedError as error:
                refused = as_refused(error)
            except Refused as error:
                refused = error.fresh()
            if refused.reason not in (PASSING if by_id else UNSTORED):
                raise refused
            await self._again(call, refused, float(refused.metadata.get("retry_after_ms", 50)) / 1_000)

    async def _take(self, call: InnerCall, queue: Queue, messages: list[Outgoing]) -> tuple[int, Appended]:
        """Hand the messages over as one request. Raises Refused, ForwardedError."""
        answer = _OneAnswer(asyncio.get_running_loop().create_future())
        columns = _columns(messages)
        self.rows.take(
            RowGroup(
                *queue, call.identity(), False, columns.time, columns.relative, columns.size, columns.key_hash,
                columns.tag_hash, columns.records, [BatchRun(0, 0, len(messages))],
                np.array([call.until * 1_000], np.int64), answer,
            )
        )  # fmt: skip
        return await answer.future

    async def _store_once(
        self, call: InnerCall, queue: Queue, messages: list[Outgoing], answers: Answers
    ) -> Iterable[Stored]:
        """Messages with ids, of a topic that deduplicates. Raises Refused, ForwardedError."""
        columns = _columns(messages)
        columns.topic, columns.queue = queue
        columns.message_id = b"".join(hash_id(one.message_id) for one in messages)
        data = await self._calls["Enqueue"](columns.SerializeToString(), call, answers)
        answer = pb.EnqueueResponse.FromString(data)
        seq = np.frombuffer(answer.seq, "<i8").tolist() or [answer.first_seq + at for at in range(len(messages))]
        due = np.frombuffer(answer.due, "<i8").tolist() or [one.time_ms for one in messages]
        again = list(answer.repeated) or [0] * len(messages)
        return [
            Stored(Handle(*queue, answer.uid, of, number), bool(repeated))
            for of, number, repeated in zip(due, seq, again, strict=True)
        ]

    # ------------------------------------------------------------ deliveries
    async def ack(self, call: Call, receipts: Sequence[Receipt], answers: Answers) -> list[Refused | None]:
        """None: it is done. Refused LEASE_OVER: it was another's by then, or done."""
        return await self._settle(call, "Ack", receipts, answers)

    async def nack(
        self, call: Call, receipts: Sequence[Receipt], answers: Answers, *, backoff_ms: int = -1, dead: bool = False,
        reason: str = "",
    ) -> list[Refused | None]:  # fmt: skip
        """As ack(). backoff_ms -1: by attempts. reason: kept with what becomes a dead letter."""
        return await self._settle(call, "Nack", receipts, answers, backoff_ms=backoff_ms, dead=dead, reason=reason)

    async def extend(
        self, call: Call, receipts: Sequence[Receipt], answers: Answers, *, lease_ms: int
    ) -> list[Refused | None]:
        """As ack(). lease_ms: from now on; 0: given back."""
        return await self._settle(call, "Extend", receipts, answers, invisible_ms=lease_ms)

    async def _settle(
        self, call: Call, method: str, receipts: Sequence[Receipt], answers: Answers, **fields: Any
    ) -> list[Refused | None]:
        inner = self.inner(call)

        async def settle(of: tuple[str, int, int, str], rows: list[Receipt]) -> list[Refused | None]:
            topic, queue, uid, group = of
            self.dispatch.check_right(method, call, topic, group)
            self.check_shard(topic, queue, uid)
            settlement = await self._together.settle(method, of, fields, rows, inner, answers)
            return [None if one == pb.SETTLED else _lease_over() for one in settlement]

        return await _by_groups(receipts, lambda one: (one.topic, one.queue, one.uid, one.group), settle)

    def check_shard(self, topic: str, queue: int, uid: int) -> None:
        """A topic that was deleted and made again has new shards. Raises Refused."""
        found = self.node.routes.shard(topic, queue).spec.uid
        if found != uid:
            raise Refused("FOREIGN_HANDLE", f"it is of shard {uid:x}, {topic}-{queue} is shard {found:x} now")

    # ------------------------------------------------------------ what is not due yet
    async def cancel(self, call: Call, handles: Sequence[Handle], answers: Answers) -> list[Changed | Refused]:
        """What became of each, in order."""
        return await self._change(call, handles, answers, None)

    async def reschedule(
        self, call: Call, handles: Sequence[Handle], answers: Answers, *, time_ms: int, relative: bool
    ) -> list[Changed | Refused]:
        """The same. time_ms: the new due, or the delay where relative."""
        return await self._change(call, handles, answers, (time_ms, relative))

    async def _change(
        self, call: Call, handles: Sequence[Handle], answers: Answers, to: tuple[int, bool] | None
    ) -> list[Changed | Refused]:
        inner = self.inner(call)

        async def change(of: tuple[str, int, int], rows: list[Handle]) -> list[Changed | Refused]:
            topic, queue, uid = of
            self.dispatch.check_right("Cancel" if to is None else "Reschedule", call, topic)
            due, seq = _packed("<i8", (one.due_ms for one in rows)), _packed("<i8", (one.seq for one in rows))
            where: dict[str, Any] = {"topic": topic, "queue": queue, "uid": uid, "due": due, "seq": seq}
            if to is None:
                cancelled = await self.ask("Cancel", pb.CancelRequest(**where), pb.CancelResponse, inner, answers)
                return [Changed(outcome, one) for outcome, one in zip(cancelled.outcome, rows, strict=True)]
            time_ms, relative = to
            asked = pb.RescheduleRequest(
                **where, time=_packed("<i8", (time_ms for _ in rows)), relative=bytes((relative,)) * len(rows)
            )
            moved = await self.ask("Reschedule", asked, pb.RescheduleResponse, inner, answers)
            dues = np.frombuffer(moved.due, "<i8").tolist()
            return [
                Changed(outcome, replace(one, due_ms=due) if outcome == pb.MOVED else one)
                for outcome, due, one in zip(moved.outcome, dues, rows, strict=True)
            ]

        return await _by_groups(handles, lambda one: (one.topic, one.queue, one.uid), change)

    async def cancel_key(
        self, call: Call, topic: str, key: str, from_ms: int, to_ms: int, answers: Answers
    ) -> list[Changed]:
        """Cancel what is pending with a key; what became of each message that was found. Raises Refused."""
        inner = self.inner(call)

        async def cancel(shard: Any) -> list[Changed]:
            asked = pb.CancelRequest(topic=topic, queue=shard.spec.queue, key=key, from_ms=from_ms, to_ms=to_ms)
            found = await self.ask("Cancel", asked, pb.CancelResponse, inner, answers)
            due, seq = np.frombuffer(found.due, "<i8").tolist(), np.frombuffer(found.seq, "<i8").tolist()
            return [
                Changed(outcome, Handle(topic, shard.spec.queue, shard.spec.uid, at, number))
                for outcome, at, number in zip(found.outcome, due, seq, strict=True)
            ]

        parts = await asyncio.gather(*map(cancel, self.queues("Cancel", call, topic)))
        return [one for part in parts for one in part]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which queue a message of a topic goes to. any_queue: that of all that may go to any."""

    queues: int
    any_queue: int
    deduplicates: bool

    def queue_of(self, one: Outgoing, *, by_id: bool) -> int:
        """A key has a queue of its own, as the SDK has it; else a message id, where the topic deduplicates."""
        if one.key:
            return crc32(one.key.encode()) % self.queues
        if by_id:
            return int.from_bytes(hash_id(one.message_id)[:4], "little") % self.queues
        return self.any_queue


@dataclass(frozen=True, slots=True)
class _OneAnswer:
    """Where the answer to a group of one request goes."""

    future: asyncio.Future[tuple[int, Appended]]

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        if not self.future.done():
            self.future.set_result((uid, appended))

    def refused(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        if not self.future.done():
            self.future.set_exception(error.fresh() if isinstance(error, Refused) else error)


def as_refused(error: ForwardedError) -> Refused:
    """What the other node said, as if it had been said here."""
    said = error.as_error()
    if said.reason not in CODES:
        return Refused("INTERNAL", said.message)
    return Refused(said.reason, said.message, **said.metadata)


def _lease_over() -> Refused:
    return Refused("LEASE_OVER", "the lease is over: the message is handed out again, or it is done")


def _columns(messages: Sequence[Outgoing]) -> pb.EnqueueRequest:
    """Their columns, as a request that names no queue yet."""
    return pb.EnqueueRequest(
        count=len(messages),
        time=_packed("<i8", (one.time_ms for one in messages)),
        relative=bytes(one.relative for one in messages) if any(one.relative for one in messages) else b"",
        size=_packed("<u4", (len(one.record) for one in messages)),
        key_hash=_packed("<u4", (_hash(one.key) for one in messages)),
        tag_hash=_packed("<u4", (_hash(one.tag) for one in messages)),
        records=b"".join(one.record for one in messages),
    )


def _stored_rows(queue: Queue, messages: Sequence[Outgoing], answer: tuple[int, Appended]) -> list[Stored]:
    uid, stored = answer
    due = [one.time_ms for one in messages] if stored.due is None else stored.due.tolist()
    return [Stored(Handle(*queue, uid, of, stored.first_seq + at)) for at, of in enumerate(due)]


def _hash(text: str) -> int:
    return crc32(text.encode()) if text else 0


def _packed(dtype: str, values: Iterable[int]) -> bytes:
    return np.fromiter(values, dtype).tobytes()


Item = TypeVar("Item")
Name = TypeVar("Name", bound=tuple[Any, ...])
Result = TypeVar("Result")


async def _by_groups(
    items: Sequence[Item], name: Callable[[Item], Name], do: Callable[[Name, list[Item]], Awaitable[list[Result]]]
) -> list[Result | Refused]:
    """Do it with all items of a name at once; the results in the items' order. A refusal is one for each of them."""

    async def part(of: Name, rows: list[int]) -> Sequence[Result | Refused]:
        try:
            return await do(of, [items[at] for at in rows])
        except Refused as error:
            return [error.fresh()] * len(rows)

    groups: dict[Name, list[int]] = {}
    for at, one in enumerate(items):
        groups.setdefault(name(one), []).append(at)
    results: list[Any] = [None] * len(items)
    parts = await asyncio.gather(*(part(of, rows) for of, rows in groups.items()))
    for rows, of_group in zip(groups.values(), parts, strict=True):
        for at, result in zip(rows, of_group, strict=True):
            results[at] = result
    return results
