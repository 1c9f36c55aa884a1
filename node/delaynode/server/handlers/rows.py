"""Enqueue requests that an edge hands over in groups: columns of the messages of many requests for one shard.

A group is taken without a task of its own, and stored with the shard's next write. What can't be stored at once waits
in lines, each in order: a full shard's groups in one, and in FORWARD_LANES others the requests, each by itself, of a
shard that another node serves.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb

from delaynode.auth.identity import Identity
from delaynode.node.routes import RemoteMaster
from delaynode.replica.hosts.arrivals import Stored
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.quotas import Quota
from delaynode.server.dispatch import Dispatch
from delaynode.server.forward import ForwardedError
from delaynode.server.handlers.enqueue import FORWARD_SECONDS, check_type
from delaynode.server.quotas import Charge, costs_of
from delaynode.store.columns import lowest
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import BatchRun, IncomingBatch, columns_of
from delaynode.store.merging import MAX_FRAME_REQUESTS
from delaynode.store.shard import Appended
from delaynode.store.types import I64, Buffer

FORWARD_LANES = 16  # requests of a queue that are on their way to another node at once
WHOLE = -1  # the line of groups that wait for room here


class RowAnswers(Protocol):
    """Where the answers to a group's requests go; each is given once."""

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        """Requests [first, end) of the group are stored, one after the other, from appended.first_seq on."""

    def refused(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        """Requests [first, end) are not stored, or it is not known."""


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class RowGroup:
    """r requests of one queue, in the order in which they came; n messages. Each request is answered exactly once.

    time: i64[n], relative: u8[n] or empty, size, key, tag: u32[n] as IncomingBatch has them; runs: r of them.
    deadline_ms: i64[r], when each client gives up, on the clock of time.monotonic(); -1: never.
    caller: of them all. passed_on: by another node. admitted: the quotas have let it in, and it has waited since.
    """

    topic: str
    queue: int
    caller: Identity
    passed_on: bool
    time: Buffer
    relative: Buffer
    size: Buffer
    key: Buffer
    tag: Buffer
    records: Buffer
    runs: Sequence[BatchRun]
    deadline_ms: I64
    answers: RowAnswers
    admitted: bool = False

    def forwarded(self) -> bool:
        return self.passed_on

    def identity(self) -> Identity:
        return self.caller

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(map(len, (self.time, self.relative, self.size, self.key, self.tag, self.records)))

    def check_deadlines(self) -> None:
        """Raises Refused where a client has given up."""
        if lowest(self.deadline_ms.view(np.uint64))[0] <= time.monotonic() * 1_000:  # never is the latest
            raise Refused("BUSY", "the call's deadline passed before there was room for the request")


class RowCalls:
    """One for a node. Owned by the event loop."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._lines: dict[tuple[str, int], dict[int, deque[RowGroup]]] = {}  # by queue, WHOLE or a lane's number
        self._lane = itertools.count()  # for requests without a producer: they may overtake each other
        self._tasks: set[asyncio.Task[None]] = set()  # one a line
        self._closed = False

    def turn(self) -> AbstractContextManager[None]:
        """In which groups are taken: their shards' writes begin at its end."""
        return self._dispatch.node.turn()

    def take(self, group: RowGroup) -> None:
        """Store the group's requests, or pass them on; each is answered, now or later. Raises nothing."""
        try:
            if len(group.runs) > MAX_FRAME_REQUESTS:
                bounds = [*range(0, len(group.runs), MAX_FRAME_REQUESTS), len(group.runs)]
                for part in _parts(group, bounds):
                    self.take(part)
            else:
                self._take(group)
        except Exception as error:
            refuse(group.answers, 0, len(group.runs), error)

    def _take(self, group: RowGroup) -> None:
        if self._closed:
            raise Refused("NOT_SERVING", "the node is stopping")
        # Before any line: what another node has passed on must not wait for what this one passes on to it.
        found = self._dispatch.find_host("Enqueue", group, group)
        if isinstance(found, RemoteMaster):  # which asks for quotas itself
            self._place(found, group)
        else:
            self._admit(found, group, partial(self._place, found))

    def _place(self, found: RemoteMaster | ShardHost, group: RowGroup) -> None:
        lines = self._lines.get((group.topic, group.queue), {})
        if WHOLE in lines:
            self._line_up(WHOLE, group)
        elif isinstance(found, RemoteMaster) or (lines and not group.passed_on):  # not before what came earlier
            self._spread(group)
        elif found.maintenance.full:
            self._line_up(WHOLE, group)
        else:
            self._store(found, group)

    def _admit(self, host: ShardHost, group: RowGroup, then: Callable[[RowGroup], None]) -> None:
        """Go on with what of the group the quotas let in, in order; the rest is refused. Raises nothing."""
        quotas = self._dispatch.quotas.of(host, group.caller)
        parts = [group] if not quotas else self._within(host, quotas, group)
        for part in parts:
            try:
                then(part)
            except Exception as error:
                refuse(part.answers, 0, len(part.runs), error)

    def _within(self, host: ShardHost, quotas: Sequence[Quota], group: RowGroup) -> list[RowGroup]:
        """The parts of the group that the quotas let in."""
        costs = costs_of(group.runs, np.frombuffer(group.size, "<u4"))
        ask = self._dispatch.quotas
        if group.admitted:
            taken, refused, charge = ask.admit_waiting(host, group.runs, costs)
        else:
            taken, refused, charge = ask.admit(host, quotas, group.runs, costs)
        charged = replace(group, answers=_ChargedAnswers(group.answers, charge), admitted=True)
        if refused is None:
            return [charged]
        bounds = [0, *(at for at in range(1, len(taken)) if taken[at] != taken[at - 1]), len(taken)]
        for first, end in pairwise(bounds):
            if not taken[first]:
                refuse(group.answers, first, end, refused)
        parts = _parts(charged, bounds)
        return [part for part, first in zip(parts, bounds, strict=False) if taken[first]]

    # ------------------------------------------------------------ stored here
    def _store(self, host: ShardHost, group: RowGroup) -> None:
        """With the shard's next write; each request by itself where the group does not fit. Raises Refused."""
        requests, started = len(group.runs), time.monotonic()
        try:
            batch = self._batch(host, group)
        except Refused:
            if requests == 1:
                raise
            for one in _singles(group):
                try:
                    self._store(host, one)
                except Exception as error:
                    refuse(one.answers, 0, 1, error)
            return
        host.enqueue_many(batch).add_done_callback(partial(self._answer, host, group.answers, 0, requests, started))

    def _batch(self, host: ShardHost, group: RowGroup) -> IncomingBatch:
        """The group's columns as a batch. Raises Refused where one of the requests may not be stored."""
        node = self._dispatch.node
        group.check_deadlines()
        node.disk.check(group.size_bytes)
        one = len(group.runs) == 1  # such a batch has no runs: large records would be copied into a shared frame
        producer, number, _ = group.runs[0] if one else (0, 0, 0)
        batch = columns_of(
            sum(run.messages for run in group.runs), group.time, group.relative, group.size, group.key, group.tag,
            group.records, producer, number, () if one else group.runs,
        )  # fmt: skip
        check_type(host.topic, node.routes.topic_type(host.topic), batch, node.clock.now_ms())
        return batch

    def _answer(
        self, host: ShardHost, answers: RowAnswers, first: int, end: int, started: float, answer: Stored
    ) -> None:
        """Tell requests [first, end) what became of them."""
        try:
            if (refused := answer.exception()) is not None:  # raised, it would keep this frame, and that the answer
                refuse(answers, first, end, refused)
                return
            stored = answer.result()
            if isinstance(stored, list):
                for number, one in enumerate(stored, first):
                    one.add_done_callback(partial(self._answer, host, answers, number, number + 1, started))
                return
            host.check_may_answer()
            answers.stored(first, end, host.shard.identity.uid, stored)
        except (Exception, asyncio.CancelledError) as error:
            refuse(answers, first, end, error)
            return
        latency_ms = (time.monotonic() - started) * 1_000
        self._dispatch.node.metrics.enqueue_latency[host.topic].add_one(latency_ms, end - first)

    # ------------------------------------------------------------ what waits
    def _spread(self, group: RowGroup) -> None:
        """Put each request into a lane, those of a producer into the same."""
        for one in _singles(group):
            self._line_up((one.runs[0].producer or next(self._lane)) % FORWARD_LANES, one)

    def _line_up(self, number: int, group: RowGroup) -> None:
        """Put the group at the end of a line, which runs as long as it has one."""
        lines = self._lines.setdefault((group.topic, group.queue), {})
        if number in lines:
            lines[number].append(group)
            return
        lines[number] = deque([group])
        task = asyncio.create_task(self._go_through(number, (group.topic, group.queue)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_through(self, number: int, name: tuple[str, int]) -> None:
        """Serve a line until it is empty."""
        lines = self._lines[name]
        while lines[number]:
            group = lines[number].popleft()
            try:
                await self._serve(number, group)
            except BaseException as error:
                refuse(group.answers, 0, len(group.runs), error)
                if not isinstance(error, Exception):
                    raise
        del lines[number]
        if not lines:
            del self._lines[name]

    async def _serve(self, number: int, group: RowGroup) -> None:
        """Serve the group that is next in a line. Raises Refused, ForwardedError."""
        found = self._dispatch.find_host("Enqueue", group, group)
        remote, others = isinstance(found, RemoteMaster), len(self._lines[group.topic, group.queue]) > 1
        if number == WHOLE and (remote or (others and not group.passed_on)):
            self._spread(group)
        elif remote:
            await self._forward(found, group)
        else:
            await found.maintenance.wait_room()
            self._admit(found, group, partial(self._store, found))

    async def _forward(self, found: RemoteMaster, one: RowGroup) -> None:
        """Pass a group of one request on, and answer it. Raises Refused, ForwardedError."""
        one.check_deadlines()
        deadline_ms, seconds = int(one.deadline_ms[0]), FORWARD_SECONDS
        if deadline_ms >= 0:
            seconds = min(seconds, deadline_ms / 1_000 - time.monotonic())
        body = await self._dispatch.forwarder.call(found.node, "Enqueue", _request(one), seconds, one.caller)
        answer = pb.EnqueueResponse.FromString(body)
        due = np.frombuffer(answer.due, "<i8") if answer.due else None
        one.answers.stored(0, 1, answer.uid, Appended(answer.first_seq, answer.count, due, 0, answer.duplicate))

    async def close(self) -> None:
        """Refuse what waits, and all that comes from now on. The shards answer what they were given."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in [line for lines in self._lines.values() for line in lines.values()]:
            for group in line:
                refuse(group.answers, 0, len(group.runs), asyncio.CancelledError())
        self._lines.clear()


def refuse(answers: RowAnswers, first: int, end: int, error: BaseException) -> None:
    """Requests [first, end) have failed. What is no refusal is a fault of this program, which is reported: the client
    need not wait for an answer."""
    if isinstance(error, Refused | ForwardedError):
        answers.refused(first, end, error)
    elif isinstance(error, asyncio.CancelledError):
        answers.refused(first, end, Refused("NOT_SERVING", "the node is stopping"))
    else:
        answers.refused(first, end, Refused("INTERNAL", f"{type(error).__name__}: {error}"))
        asyncio.get_running_loop().call_exception_handler(
            {"message": "Enqueue requests have failed", "exception": error}
        )


@dataclass(frozen=True, slots=True)
class _PartAnswers:
    """The answers to the requests of a group from `start` on."""

    answers: RowAnswers
    start: int

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        self.answers.stored(self.start + first, self.start + end, uid, appended)

    def refused(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        self.answers.refused(self.start + first, self.start + end, error)


@dataclass(frozen=True, slots=True)
class _ChargedAnswers:
    """The answers to a group whose requests have taken of quotas."""

    answers: RowAnswers
    charge: Charge

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        if appended.duplicate:
            self.charge.give_back(first, end)
        self.answers.stored(first, end, uid, appended)

    def refused(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        self.charge.give_back(first, end)
        self.answers.refused(first, end, error)


def _singles(group: RowGroup) -> list[RowGroup]:
    """Each request as a group."""
    return _parts(group, range(len(group.runs) + 1))


def _parts(group: RowGroup, bounds: Sequence[int]) -> list[RowGroup]:
    """The group cut at these requests; bounds: ascending, from 0 to their number."""
    views = [memoryview(one) for one in (group.time, group.relative, group.size, group.key, group.tag, group.records)]
    time_, relative, size, key, tag, records = views
    sizes = np.frombuffer(group.size, "<u4")
    parts, at, byte = [], 0, 0
    for start, stop in pairwise(bounds):
        rows = slice(start, stop)
        to = at + sum(run.messages for run in group.runs[rows])
        end = byte + int(sizes[at:to].sum(dtype=np.int64))
        parts.append(
            replace(
                group, time=time_[8 * at : 8 * to], relative=relative[at:to], size=size[4 * at : 4 * to],
                key=key[4 * at : 4 * to], tag=tag[4 * at : 4 * to], records=records[byte:end], runs=group.runs[rows],
                deadline_ms=group.deadline_ms[rows], answers=_PartAnswers(group.answers, start),
            )
        )  # fmt: skip
        at, byte = to, end
    return parts


def _request(one: RowGroup) -> bytes:
    """A group of one request as it came."""
    (run,) = one.runs
    return pb.EnqueueRequest(
        topic=one.topic, queue=one.queue, count=run.messages, time=bytes(one.time), relative=bytes(one.relative),
        size=bytes(one.size), key_hash=bytes(one.key), tag_hash=bytes(one.tag), records=bytes(one.records),
        producer_id=run.producer, number=run.number,
    ).SerializeToString()  # fmt: skip
