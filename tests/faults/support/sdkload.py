"""Traffic through the SDK that goes on through every failover: it counts what callers see, which must not be an error.

Each producer has a message for each queue every so often, whether or not the ones before are acknowledged yet, as an
application would; some stored messages are cancelled and some rescheduled a moment later. Three consumers of group `g`
acknowledge most of what they get, give some back and forget some; group `h` gets everything too.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np
from delayclient import Admin, Consumer, Handle, Producer
from delayclient.admin.views import Outcome
from delayclient.consumer.received import ReceivedBatch
from delayclient.errors import DelayError
from delayclient.producer.results import BatchFailed, BatchPart
from delayclient.routing.routing import Cluster
from numpy.typing import NDArray

from tests.faults.support.columns import GROUPS, I64, Columns

ID_BYTES = 8
CHANGE_SECONDS = 0.8  # a cancel or a reschedule comes so long after the message, at most
MEMBERS = (0, 0, 0, 1)  # the consumers, by their group's number


@dataclass(frozen=True, slots=True)
class Work:
    """How much traffic of each kind. Delays lie `nearest_ms` to `farthest_ms` ahead."""

    rate: int = 2_000  # messages/s, all producers and queues together
    topic: str = "t"
    queues: int = 6
    producers: int = 2
    every_s: float = 0.1  # between two batches of one producer for one queue
    nearest_ms: int = 100
    farthest_ms: int = 3_000
    body_bytes: int = 256
    cancelled_share: float = 0.02
    moved_share: float = 0.01
    nacked_share: float = 0.005
    forgotten_share: float = 0.005
    invisible: str = "8s"
    timeout: str = "60s"  # the callers' timeout


@dataclass
class Times:
    """Times of successful calls and deliveries on each queue: monotonic s, in the order in which they came."""

    acknowledged: list[list[float]] = field(default_factory=list)
    delivered: list[list[float]] = field(default_factory=list)  # deliveries to group `g`


@dataclass(frozen=True, slots=True)
class Way:
    """A way into a cluster: endpoints, and what the SDK needs there."""

    endpoints: Sequence[str]
    access: Mapping[str, Any] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        return {"endpoint": ",".join(self.endpoints), **self.access}


class SdkLoad:
    """start(), then finish(); everything in between runs in a thread with an event loop of its own."""

    def __init__(self, ways: Sequence[str] | Sequence[Way], work: Work, seed: int = 1) -> None:
        """ways: producers come by them in turn, all others by the first. Endpoints alone: one way, in plain text."""
        self.work = work
        self.ledger = Columns(int(time.time() * 1000))
        self.times = Times([[] for _ in range(work.queues)], [[] for _ in range(work.queues)])
        self.errors: Counter[str] = Counter()  # the errors that callers got, by kind
        self.faults: list[str] = []
        self.late_ms: list[NDArray[np.int64]] = []
        self._ways = [one for one in ways if isinstance(one, Way)] or [Way([str(one) for one in ways])]
        self._choose = random.Random(seed)
        self._rng = np.random.default_rng(seed)
        self._last_due_ms = 0
        self._producing = self._consuming = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="sdk-load", daemon=True)

    # ------------------------------------------------------------ from the test's thread
    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60), f"the load does not begin: {self.errors} {self.faults}"

    def finish(self, seconds: float = 90.0) -> None:
        """Ends producing, waits for every message to come (or `seconds`), then ends consuming."""
        self._producing = False
        self._thread.join(seconds)
        self._consuming = False
        self._thread.join(60)
        assert not self._thread.is_alive(), f"the load does not end: {self.errors} {self.faults}"

    # ------------------------------------------------------------ the event loop
    async def _main(self) -> None:
        work = self.work
        self._keys = [_key_of(queue, work.queues) for queue in range(work.queues)]
        async with Cluster(**self._ways[0].given()) as cluster:
            self._admin = Admin(cluster, timeout=work.timeout)
            consumers = [Consumer(cluster, work.topic, GROUPS[g], invisible=work.invisible) for g in MEMBERS]
            for consumer in consumers:
                consumer.start()
            consuming = [self._task(self._consume(one, g)) for one, g in zip(consumers, MEMBERS, strict=True)]
            ways = islice(cycle(self._ways), work.producers)
            producers = [Producer(**way.given(), timeout=work.timeout) for way in ways]
            await self._groups_exist()
            producing = [self._task(self._produce(one, q)) for one in producers for q in range(work.queues)]
            self._ready.set()
            await asyncio.wait(producing)
            while others := self._tasks - set(consuming):
                await asyncio.wait(others)
            await asyncio.gather(*(producer.close() for producer in producers))
            await asyncio.sleep(max(0.0, self._last_due_ms / 1000 + 0.3 - time.time()))  # cancelled ones would come
            for _ in iter(lambda: self._consuming and self.ledger.all_missing > 0 and not self.faults, False):
                await asyncio.sleep(0.1)
            self._consuming = False
            await asyncio.wait(consuming)
            await asyncio.gather(*(consumer.close() for consumer in consumers))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DelayError):
            self._told(error)
        elif error is not None:  # a task that dies silently would leave a test without load
            self.faults.append(f"{type(error).__name__}: {error}")

    def _told(self, error: DelayError) -> None:
        self.errors[f"{type(error).__name__} {error.reason or error.code}: {error.message}"[:300]] += 1

    async def _groups_exist(self) -> None:
        """Wait until both groups exist on every queue: from then on a message stays until both have consumed it."""
        for _ in range(300):
            states = await self._admin.groups(self.work.topic)
            if len(states) >= len(GROUPS) * self.work.queues:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the consumers have not made their groups on every queue")

    # ------------------------------------------------------------ producers
    async def _produce(self, producer: Producer, queue: int) -> None:
        work = self.work
        per_second = work.rate / work.producers / work.queues
        loop = asyncio.get_running_loop()
        began, made = loop.time(), 0
        await asyncio.sleep(self._choose.random() * work.every_s)
        while self._producing:
            wanted = int((loop.time() - began) * per_second) - made
            if wanted > 0:
                made += wanted
                self._task(self._send(producer, queue, wanted))
            await asyncio.sleep(work.every_s)

    async def _send(self, producer: Producer, queue: int, n: int) -> None:
        work, ledger = self.work, self.ledger
        first = ledger.new(n)
        ids = np.arange(first, first + n, dtype=np.int64)
        bodies = np.zeros((n, work.body_bytes), np.uint8)
        bodies[:, :ID_BYTES] = ids.astype("<i8").view(np.uint8).reshape(n, ID_BYTES)
        delays = self._rng.integers(work.nearest_ms, work.farthest_ms, n)
        keys = [self._keys[queue]] * n
        asked: I64 | None = None
        try:
            if self._choose.random() < 0.5:
                result = await producer.send_batch(work.topic, bodies, delay_ms=delays, keys=keys)
            else:
                asked = delays + int(time.time() * 1000)
                result = await producer.send_batch(work.topic, bodies, due_ms=asked, keys=keys)
        except BatchFailed as error:
            for _, why in error.failures:
                self._told(why)
            result = error.result
        for part in result.parts:
            self._stored(ids, part, asked)

    def _stored(self, ids: I64, part: BatchPart, asked: I64 | None) -> None:
        if asked is not None and not np.array_equal(asked[part.rows], part.due_ms):
            self.faults.append(f"another due than was asked for: {part.due_ms[:3]}")
        _of(self.times.acknowledged, part.queue).append(time.monotonic())
        self._last_due_ms = max(self._last_due_ms, int(part.due_ms.max()))
        mine, seq = ids[part.rows], part.seq
        self.ledger.acknowledge(mine, part.queue, seq, part.due_ms)
        lot = self._rng.random(len(mine))
        for low, high, change in (
            (0.0, self.work.cancelled_share, self._cancel),
            (self.work.cancelled_share, self.work.cancelled_share + self.work.moved_share, self._move),
        ):
            chosen = np.flatnonzero((lot >= low) & (lot < high))
            if len(chosen):
                handles = [
                    Handle(part.topic, part.queue, part.uid, int(part.due_ms[at]), int(seq[at])) for at in chosen
                ]
                self._task(change(mine[chosen], handles))

    # ------------------------------------------------------------ cancels and reschedules
    async def _cancel(self, ids: I64, handles: list[Handle]) -> None:
        await asyncio.sleep(self._choose.random() * CHANGE_SECONDS)
        try:
            outcomes = np.array(await self._admin.cancel(handles))
        except DelayError:
            self.ledger.doubt_cancel(ids)
            raise
        self.ledger.cancel(ids[outcomes == Outcome.CANCELLED])
        odd = ~np.isin(outcomes, (Outcome.CANCELLED, Outcome.TOO_LATE))
        if odd.any():
            self.faults.append(f"cancel: {Outcome(outcomes[odd][0]).name} of {self.ledger.row(int(ids[odd][0]))}")

    async def _move(self, ids: I64, handles: list[Handle]) -> None:
        await asyncio.sleep(self._choose.random() * CHANGE_SECONDS)
        due_ms = int(time.time() * 1000) + self._choose.randrange(0, self.work.farthest_ms)
        self._last_due_ms = max(self._last_due_ms, due_ms)
        self.ledger.maybe_move(ids, due_ms)
        found = await self._admin.reschedule(handles, at=due_ms)
        outcomes = np.array([one.outcome for one in found])
        # RESCHEDULED: an attempt whose answer got lost has moved it, and it was delivered since: either due is right
        sure = outcomes != Outcome.RESCHEDULED
        self.ledger.move(ids[sure], outcomes[sure] == Outcome.MOVED)
        odd = ~np.isin(outcomes, (Outcome.MOVED, Outcome.TOO_LATE, Outcome.RESCHEDULED))
        if odd.any():
            self.faults.append(f"reschedule: {Outcome(outcomes[odd][0]).name} of {self.ledger.row(int(ids[odd][0]))}")

    # ------------------------------------------------------------ consumers
    async def _consume(self, consumer: Consumer, group: int) -> None:
        work = self.work
        while self._consuming:
            batch = await consumer.receive_batch(0.2)
            if batch is None:
                continue
            if group == 0:
                _of(self.times.delivered, batch.queue).append(time.monotonic())
            self._note(batch, group)
            lot = self._rng.random(len(batch))
            back = np.flatnonzero(lot < work.nacked_share).tolist()
            kept = lot >= work.nacked_share + work.forgotten_share
            if kept.all():
                batch.ack()
                continue
            batch._acks.ack_many(batch.offset[kept])
            for row in back:
                batch.nack(50, slice(row, row + 1))

    def _note(self, batch: ReceivedBatch, group: int) -> None:
        n = len(batch)
        if len(set(batch.size.tolist())) == 1:
            # the id is where the body begins: all records of one size have the same head
            start = bytes(batch.records[: int(batch.size[0])]).rindex(bytes(self.work.body_bytes - ID_BYTES)) - ID_BYTES
            flat = np.frombuffer(batch.records, np.uint8).reshape(n, int(batch.size[0]))
            ids = np.ascontiguousarray(flat[:, start : start + ID_BYTES]).view("<i8").reshape(n)
        else:
            ids = np.array([int.from_bytes(body[:ID_BYTES], "little") for body in batch.bodies()], np.int64)
        self.late_ms.append(batch.received_ms - batch.due_ms)
        self.ledger.deliver(group, batch.queue, ids, batch.offset, batch.seq, batch.due_ms, batch.received_ms)


def _of(times: list[list[float]], queue: int) -> list[float]:
    """The times of this queue. A topic may get more queues meanwhile."""
    times.extend([] for _ in range(len(times), queue + 1))
    return times[queue]


def _key_of(queue: int, queues: int) -> str:
    """A key whose messages go to this queue."""
    return next(key for key in map(str, range(100_000)) if zlib.crc32(key.encode()) % queues == queue)
