"""Messages for a consumer from all shards of a topic, wherever they are served.

First what is there is taken, shard by shard, from another one each time. Where nothing is, all shards are asked at once
and waited for; the first that has something ends the waiting:

    here        a call that is ended takes nothing with it: what it was about to hand out is free again
    elsewhere   an answer may be under way to here already, so such a call is not ended. It is left to the group's next
                consumer; if none comes, what it brings is given back, as the same attempt
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from delayapi.codec import MessageBatchView, decode_message_batch
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.receipt import Receipt

from delaynode.replica.hosts.master import ShardHost
from delaynode.server.doors.calls import InnerCall
from delaynode.server.doors.core import Door
from delaynode.server.doors.records import fitting
from delaynode.server.edge import Call
from delaynode.store.errors import Refused

REMOTE_WAIT_MS = 5_000  # of one call to another node: so long it may be left without a consumer
ENDED_SECONDS = 1.0  # for a call that is ended to end

UNSERVED = ("NOT_SERVING", "NOT_MASTER", "SHARD_DAMAGED")  # other shards of the topic may go on
LATER_SECONDS = 0.1
GRACE_SECONDS = 5.0  # for the answer of a call, beyond what it waits

Key: TypeAlias = tuple[str, int, "Ask"]
"""Of calls that any of these consumers may go on with: principal, queue, and what is asked."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a consumer asks for. max_bytes: of records, of which one may be larger alone. lease_ms: 1 or more."""

    topic: str
    group: str
    tags: tuple[str, ...] = ()
    max_messages: int = 32
    max_bytes: int = 4 << 20
    lease_ms: int = 30_000
    from_end: bool = False


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message, handed out. record: an encoded delay.v1.Message."""

    receipt: Receipt
    record: bytes
    due_ms: int
    seq: int


class Receiving:
    """One for a node. Owned by the event loop."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._turn = itertools.count()
        self._left: dict[Key, deque[asyncio.Task[list[Delivered]]]] = {}  # calls elsewhere that nobody waits for
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive(self, call: Call, ask: Ask, wait_seconds: float, *, local_only: bool = False) -> list[Delivered]:
        """Up to ask.max_messages, and as many as may be decoded at once; waits for the first. local_only: of the shards
        that this node serves. Raises Refused."""
        found = await self._some(call, ask, wait_seconds, local_only=local_only)
        kept = fitting([one.record for one in found[: ask.max_messages]], ask.max_bytes)
        self.give_back(call, found[kept:])
        return found[:kept]

    async def _some(self, call: Call, ask: Ask, wait_seconds: float, *, local_only: bool) -> list[Delivered]:
        shards = self._door.queues("Receive", call, ask.topic, ask.group)
        first = next(self._turn) % len(shards)
        queues = [shard.spec.queue for shard in (*shards[first:], *shards[:first])]
        if local_only:
            queues = [queue for queue in queues if self._door.local(ask.topic, queue)]
        found, refusals = await self._take_there(call, ask, queues, waits=wait_seconds > 0)
        if found or wait_seconds <= 0:
            if not found and refusals:
                raise refusals[0]
            return found
        if not queues:
            await asyncio.sleep(wait_seconds)
            return []
        return await self._wait(call, ask, queues, wait_seconds)

    async def _take_there(
        self, call: Call, ask: Ask, queues: Sequence[int], *, waits: bool
    ) -> tuple[list[Delivered], list[Refused]]:
        """What is there now, and what those said that could not be asked. Once something is found, only shards here
        are looked at; of those that have nothing one is only asked for a consumer that would be told so. Raises
        Refused."""
        found: list[Delivered] = []
        refusals: list[Refused] = []
        taken = 0  # bytes
        try:
            for queue in queues:
                if found and not self._door.local(ask.topic, queue):
                    continue
                here = self._door.host(ask.topic, queue) if found or waits else None
                if here is not None and not ask.tags and here.is_empty_for(ask.group):
                    continue
                try:
                    came = await self._receive(
                        call, ask, queue, 0, ask.max_messages - len(found), ask.max_bytes - taken
                    )
                    found += came
                    taken += sum(len(one.record) for one in came)
                except Refused as refused:
                    if refused.reason not in UNSERVED:
                        raise
                    refusals.append(refused.fresh())
                if len(found) >= ask.max_messages or taken >= ask.max_bytes // 2:
                    break  # a first message of the next one might not fit
        except BaseException:
            self.give_back(call, found)
            raise
        return found, refusals

    async def _wait(self, call: Call, ask: Ask, queues: Sequence[int], seconds: float) -> list[Delivered]:
        """Ask all of them, until the first has something or the time is over. Raises Refused."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        # A filter's consumers wait in each shard: what it leaves out is passed over there.
        here = [queue for queue in queues if not ask.tags and self._door.local(ask.topic, queue)]
        polls: dict[asyncio.Task[list[Delivered]], tuple[int, ...]] = {
            self._poll(call, ask, queue, until): (queue,) for queue in queues if queue not in here
        }
        if here:
            polls[loop.create_task(self._here(call, ask, here, until))] = tuple(here)
        found: list[Delivered] = []
        wanted = False
        try:
            while not found and (left := until - loop.time()) > 0:
                done, _ = await asyncio.wait(polls, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                again: list[tuple[int, bool]] = []  # queues to be asked again, and whether not at once
                for task in done:
                    ended = polls.pop(task)
                    try:
                        found += task.result()
                        again += [(queue, False) for queue in ended]
                    except Refused as refused:
                        if refused.reason not in UNSERVED:
                            raise
                        again += [(queue, True) for queue in ended]
                for queue, later in again if not found else ():
                    if later:
                        polls[loop.create_task(self._later(call, ask, queue, until))] = (queue,)
                    else:
                        polls[self._poll(call, ask, queue, until)] = (queue,)
            wanted = True
        finally:
            found += await self._end(call, ask, polls)
            if not wanted:
                self.give_back(call, found)
        return found

    async def _here(self, call: Call, ask: Ask, queues: Sequence[int], until: float) -> list[Delivered]:
        """What comes first to these shards, which are here: one consumer in a line of each. Raises Refused."""
        loop = asyncio.get_running_loop()
        hosts: list[tuple[int, ShardHost]] = []
        for queue in queues:
            host = self._door.host(ask.topic, queue)
            if host is None:
                raise Refused("NOT_SERVING", f"shard {ask.topic}-{queue} is here no more")
            hosts.append((queue, host))
        while (left := until - loop.time()) > 0:
            woken = loop.create_future()
            with ExitStack() as lines:
                for _, host in hosts:
                    host.check_serving()
                    lines.enter_context(host.waiters.in_line(ask.group, woken))
                timer = loop.call_later(min(left, *(host.sure_seconds for _, host in hosts)), _set, woken)
                lines.callback(timer.cancel)
                await woken
                for queue, host in hosts:
                    if host.is_empty_for(ask.group):
                        continue
                    if found := await self._receive(call, ask, queue, 0, ask.max_messages, ask.max_bytes):
                        return found
        for queue in queues:  # which may wait for what has taken the last one away
            if found := await self._receive(call, ask, queue, 0, ask.max_messages, ask.max_bytes):
                return found
        return []

    def _poll(self, call: Call, ask: Ask, queue: int, until: float) -> asyncio.Task[list[Delivered]]:
        """A call for what comes to one shard: one that was left, or a new one."""
        loop = asyncio.get_running_loop()
        left_ms = max(1, int((until - loop.time()) * 1_000))
        if not self._door.local(ask.topic, queue):
            waiting = self._left.get(_key(call, ask, queue))
            if waiting:
                return waiting.pop()  # also one that is done, which done() has not been told of yet
            left_ms = min(left_ms, REMOTE_WAIT_MS)
        return loop.create_task(self._receive(call, ask, queue, left_ms, ask.max_messages, ask.max_bytes))

    async def _later(self, call: Call, ask: Ask, queue: int, until: float) -> list[Delivered]:
        """Ask a shard that could not be asked, which may be served by then."""
        await asyncio.sleep(LATER_SECONDS)
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            return []
        return await self._receive(call, ask, queue, int(left * 1_000), ask.max_messages, ask.max_bytes)

    async def _end(
        self, call: Call, ask: Ask, polls: dict[asyncio.Task[list[Delivered]], tuple[int, ...]]
    ) -> list[Delivered]:
        """Nobody waits for these any more. What some of them have by now."""
        ended = []
        for task, (queue, *others) in polls.items():
            if task.done() or others or self._door.local(ask.topic, queue):
                task.cancel()
                ended.append(task)
            else:
                self._leave(call, ask, queue, task)
        if not ended:
            return []
        await asyncio.wait(ended, timeout=ENDED_SECONDS)
        found: list[Delivered] = []
        for task in ended:
            if task.done() and not task.cancelled() and task.exception() is None:
                found += task.result()
        return found

    def _leave(self, call: Call, ask: Ask, queue: int, task: asyncio.Task[list[Delivered]]) -> None:
        key = _key(call, ask, queue)
        waiting = self._left.setdefault(key, deque())
        waiting.append(task)

        def done(task: asyncio.Task[list[Delivered]]) -> None:
            if task not in waiting:  # somebody has taken it over
                return
            waiting.remove(task)
            if not waiting and self._left.get(key) is waiting:
                del self._left[key]
            if not task.cancelled() and task.exception() is None:
                self.give_back(call, task.result())

        task.add_done_callback(done)

    def give_back(self, call: Call, messages: Sequence[Delivered]) -> None:
        """They go to others, as the same attempt. Where that fails their leases end by themselves."""
        if messages:
            task = asyncio.create_task(self._extend(call, [one.receipt for one in messages]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _extend(self, call: Call, receipts: list[Receipt]) -> None:
        answers = self._door.dispatch.flow.answers(call)
        detached = InnerCall(call, time.monotonic() + GRACE_SECONDS)  # the client's own time may be over
        try:
            await self._door.extend(detached, receipts, answers, lease_ms=0)
        finally:
            answers.dropped()

    async def _receive(
        self, call: Call, ask: Ask, queue: int, wait_ms: int, max_messages: int, max_bytes: int
    ) -> list[Delivered]:
        """One call of DelayService. Raises Refused."""
        request = pb.ReceiveRequest(
            topic=ask.topic, queue=queue, group=ask.group, max_messages=max_messages, max_bytes=max_bytes,
            wait_ms=wait_ms, invisible_ms=ask.lease_ms, tags=ask.tags, from_end=ask.from_end,
        )  # fmt: skip
        inner = InnerCall(call, time.monotonic() + wait_ms / 1_000 + GRACE_SECONDS)
        answers = self._door.dispatch.flow.answers(call)  # its own: it may be left to another consumer
        try:
            data = await self._door.ask_bytes("Receive", request.SerializeToString(), request, inner, answers)
        finally:
            answers.dropped()
        batch = decode_message_batch(data)
        return delivered(ask, queue, batch, self._door.node.clock.now_ms() + ask.lease_ms) if batch.count else []

    async def close(self) -> None:
        for waiting in self._left.values():
            for task in waiting:
                task.cancel()
        for giving in self._tasks:
            giving.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _key(call: Call, ask: Ask, queue: int) -> Key:
    return call.identity().principal, queue, ask


def delivered(ask: Ask, queue: int, batch: MessageBatchView, until_ms: int) -> list[Delivered]:
    """The messages of a batch, row by row. until_ms: when their leases end."""
    offset, due = np.frombuffer(batch.offset, "<i8").tolist(), np.frombuffer(batch.due, "<i8").tolist()
    seq, size = np.frombuffer(batch.seq, "<i8").tolist(), np.frombuffer(batch.size, "<u4").tolist()
    attempt = np.frombuffer(batch.attempt, "<u4").tolist() or [1] * batch.count
    found, at = [], 0
    for row in range(batch.count):
        receipt = Receipt(ask.topic, queue, batch.uid, ask.group, offset[row], attempt[row], until_ms)
        found.append(Delivered(receipt, bytes(batch.records[at : at + size[row]]), due[row], seq[row]))
        at += size[row]
    return found
