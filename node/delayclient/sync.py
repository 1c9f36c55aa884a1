"""Producer, Consumer, Reader and Admin for programs without an event loop: each owns one, in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

import numpy as np
from delayapi.handle import Handle
from delayapi.reasons import check_reason
from numpy.typing import NDArray

from delayclient.admin import admin as _admin
from delayclient.admin.schedules import FiringView, Schedule, ScheduleAdmin, ScheduleView
from delayclient.admin.views import (
    AccessView,
    CancelledByKey,
    DeletedGroup,
    Forecast,
    GroupQueue,
    Outcome,
    Pending,
    Rescheduled,
    Wheel,
)
from delayclient.consumer import consumer as _consumer
from delayclient.consumer import reader as _reader
from delayclient.consumer.received import Acknowledger, ReceivedBatch, ReceivedMessage
from delayclient.errors import Closed
from delayclient.producer import producer as _producer
from delayclient.producer.results import BatchResult, SendResult
from delayclient.records import Bodies
from delayclient.routing.routing import DEFAULT_ENDPOINT, TopicRoute

T = TypeVar("T")

_END: Final = object()
_SETTLE_S: Final = 2.0
"""After close(), for tasks to end by themselves."""
_LINGER_S: Final = 30.0
_MAX_STOPPED: Final = 16  # each has three descriptors


class _StoppedLoops:
    """Those that have stopped. For a while gRPC may still have something to tell them, and does so in whichever loop
    runs: a closed one would be an error there, by which that loop's own news are held up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: deque[tuple[float, asyncio.AbstractEventLoop]] = deque()
        atexit.register(self._close, 0)

    def add(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._loops.append((time.monotonic() + _LINGER_S, loop))
        self._close(_MAX_STOPPED)

    def _close(self, most: int) -> None:
        """Those whose time is over, and the oldest of more than `most`."""
        with self._lock:
            while self._loops and (len(self._loops) > most or self._loops[0][0] < time.monotonic()):
                self._loops.popleft()[1].close()


_stopped: Final = _StoppedLoops()


class _LoopThread:
    """An event loop that runs in a daemon thread. Once it has stopped, all raise Closed."""

    def __init__(self, what: str) -> None:
        self._what, self._ended = what, False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="delayclient", daemon=True)
        self._thread.start()

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._ended:
            coroutine.close()
            raise Closed(self._what)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.submit(coroutine).result()

    def soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        if self._ended:
            raise Closed(self._what)
        self.loop.call_soon_threadsafe(call, *arguments)

    def each(self, rows: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(rows, _END)

        while (row := self.run(following())) is not _END:
            yield row

    def stop(self) -> None:
        self.run(_settle())
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        _stopped.add(self.loop)


async def _settle() -> None:
    """Waits for gRPC's own tasks: what they are told once the loop is closed is an error in some other loop's log."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_SETTLE_S)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


A = TypeVar("A", _producer.Producer, _consumer.Consumer, _reader.Reader, _admin.Admin)


class _SyncFacade(Generic[A]):
    def __init__(self, make: Callable[[_LoopThread], A]) -> None:
        self._thread = _LoopThread(type(self).__name__.removeprefix("Sync").lower())
        self._closed = False

        async def made() -> A:
            return make(self._thread)

        try:
            self._inner: A = self._thread.run(made())
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes it and ends its thread."""
        if not self._closed:
            self._closed = True
            try:
                self._thread.run(self._inner.close())
            finally:
                self._thread.stop()


class SyncProducer(_SyncFacade[_producer.Producer]):
    """delayclient.producer.producer.Producer, blocking; may be used from several threads."""

    def __init__(self, endpoint: str | Iterable[str] = DEFAULT_ENDPOINT, **options: Any) -> None:
        super().__init__(lambda _: _producer.Producer(endpoint, **options))

    def send(self, topic: str, body: bytes | str, **options: Any) -> SendResult:
        """Sends one message and waits until it is committed."""
        return self.submit(topic, body, **options).result()

    def submit(self, topic: str, body: bytes | str, **options: Any) -> concurrent.futures.Future[SendResult]:
        """Sends one message; waits only while there is no room."""

        async def sent() -> asyncio.Future[SendResult]:
            await self._inner.room()
            return self._inner.send(topic, body, **options)

        result: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        _chain(self._thread.run(sent()), result, self._thread)
        return result

    def send_batch(self, topic: str, bodies: Bodies, **options: Any) -> BatchResult:
        """Sends n messages and waits until all are committed."""
        return self._thread.run(self._inner.send_batch(topic, bodies, **options))

    def flush(self) -> None:
        """Waits until everything sent is acknowledged or has failed."""
        self._thread.run(self._inner.flush())


class _AcksFromThreads:
    """An Acknowledger for any thread: it hands on what it is told to the loop's, in the same order."""

    def __init__(self, acks: Acknowledger, thread: _LoopThread) -> None:
        self._acks, self._thread = acks, thread
        self.invisible_ms = acks.invisible_ms

    def ack(self, offset: int) -> None:
        self._hand_on(self._acks.ack, offset)

    def ack_many(self, offsets: NDArray[np.int64]) -> None:
        self._hand_on(self._acks.ack_many, offsets)

    def nack(
        self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], backoff_ms: int, *, dead: bool = False,
        reason: str = "",
    ) -> None:  # fmt: skip
        check_reason(reason)
        self._hand_on(partial(self._acks.nack, dead=dead, reason=reason), offsets, attempts, backoff_ms)

    def give_back(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32]) -> None:
        self._hand_on(self._acks.give_back, offsets, attempts)

    def give_back_later(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], after_s: float) -> None:
        self._hand_on(self._acks.give_back_later, offsets, attempts, after_s)

    async def extend(
        self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], invisible_ms: int
    ) -> NDArray[np.bool_]:
        extending = self._acks.extend(offsets, attempts, invisible_ms)
        return await (extending if self._thread.is_here() else asyncio.wrap_future(self._thread.submit(extending)))

    def _hand_on(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._thread.is_here():
            call(*arguments)
        else:
            self._thread.soon(call, *arguments)


class _Consumer(_consumer.Consumer):
    """A Consumer whose messages may be acknowledged in any thread."""

    def __init__(self, thread: _LoopThread, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._thread = thread

    def _acks_for_messages(self, queue: int) -> Acknowledger:
        return _AcksFromThreads(super()._acks_for_messages(queue), self._thread)


class SyncConsumer(_SyncFacade[_consumer.Consumer]):
    """delayclient.consumer.consumer.Consumer, blocking."""

    def __init__(self, endpoint: str | Iterable[str], topic: str, group: str, **options: Any) -> None:
        """With `auto_ack` the iteration acknowledges a message when the next one is asked for."""
        self._auto_ack = bool(options.pop("auto_ack", False))
        super().__init__(lambda thread: _Consumer(thread, endpoint, topic, group, **options))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        # A batch at a time: a turn through the loop's thread costs more than many messages.
        while (batch := self.receive_batch()) is not None:
            given = 0
            try:
                for message in batch:
                    if time.monotonic() >= batch.expires_s:
                        break  # another consumer may have the rest soon
                    given += 1
                    yield message
                    if self._auto_ack:
                        self.ack(message)
            finally:
                if given < len(batch) and not self._closed:
                    batch.give_back(slice(given, None))

    def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """The next message; None when none came in time, or the consumer was stopped."""
        return self._thread.run(self._inner.receive(timeout_s))

    def receive_batch(self, timeout_s: float | None = None) -> ReceivedBatch | None:
        """The next batch of one queue; None when none came in time, or the consumer was stopped."""
        return self._thread.run(self._inner.receive_batch(timeout_s))

    def ack(self, message: ReceivedMessage | ReceivedBatch) -> None:
        """Done with it; as its own ack()."""
        message.ack()

    def nack(
        self, message: ReceivedMessage | ReceivedBatch, backoff_ms: int = -1, *, dead: bool = False, reason: str = ""
    ) -> None:
        """Ends the attempt: the next one after `backoff_ms`; -1: the group's backoff. `dead`: a dead letter at once.
        `reason`: kept with what becomes a dead letter by this; at most 1,024 bytes. Raises ValueError."""
        message.nack(backoff_ms, dead=dead, reason=reason)

    def give_back(self, message: ReceivedMessage | ReceivedBatch, *, after: int | str | timedelta = 0) -> None:
        """It was not worked on: another consumer gets it at once, or after that time, and it costs no attempt."""
        message.give_back(after=after)

    def extend(self, message: ReceivedMessage, invisible: int | str | timedelta | None = None) -> bool:
        """Keeps it for `invisible` from now on, 12 h at most; None: as long as when it was received. False: its time
        was over, and another consumer may have it. Raises DelayError.
        """
        return self._thread.run(message.extend(invisible))

    def flush(self) -> None:
        """Waits until the acknowledgements given so far have arrived. Raises DelayError when some never did."""
        self._thread.run(self._inner.flush())

    def stop(self) -> None:
        """Ends the iteration."""
        self._thread.soon(self._inner.stop)


class SyncReader(_SyncFacade[_reader.Reader]):
    """delayclient.consumer.reader.Reader, blocking."""

    def __init__(self, endpoint: str | Iterable[str], topic: str, queue: int, **options: Any) -> None:
        self._follow = bool(options.get("follow", True))
        super().__init__(lambda _: _reader.Reader(endpoint, topic, queue, **options))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while len(batch := self.read(wait=1_000 if self._follow else 0)) or self._follow:
            yield from batch

    def read(self, most: int = 4096, wait: int | str = "1s") -> ReceivedBatch:
        """The next messages; none when none came for `wait`."""
        return self._thread.run(self._inner.read(most, wait))


class SyncScheduleAdmin:
    """delayclient.admin.schedules.ScheduleAdmin, blocking: `Admin.schedules`."""

    def __init__(self, inner: ScheduleAdmin, thread: _LoopThread) -> None:
        self._inner, self._thread = inner, thread

    def put(self, schedule: Schedule, **options: Any) -> tuple[ScheduleView, bool]:
        return self._thread.run(self._inner.put(schedule, **options))

    def get(self, topic: str, id: str) -> ScheduleView:
        return self._thread.run(self._inner.get(topic, id))

    def each(self, topic: str, prefix: str = "") -> Iterator[ScheduleView]:
        return self._thread.each(self._inner.each(topic, prefix))

    def pause(self, topic: str, id: str, note: str = "") -> ScheduleView:
        return self._thread.run(self._inner.pause(topic, id, note))

    def resume(self, topic: str, id: str, note: str = "") -> ScheduleView:
        return self._thread.run(self._inner.resume(topic, id, note))

    def trigger(self, topic: str, id: str) -> FiringView:
        return self._thread.run(self._inner.trigger(topic, id))

    def backfill(
        self, topic: str, id: str, from_: int | str | datetime, to: int | str | datetime
    ) -> tuple[FiringView, ...]:
        return self._thread.run(self._inner.backfill(topic, id, from_, to))

    def delete(self, topic: str, id: str) -> bool:
        return self._thread.run(self._inner.delete(topic, id))


class SyncAdmin(_SyncFacade[_admin.Admin]):
    """delayclient.admin.admin.Admin, blocking."""

    def __init__(self, endpoint: str | Iterable[str] = DEFAULT_ENDPOINT, **options: Any) -> None:
        super().__init__(lambda _: _admin.Admin(endpoint, **options))
        self.schedules = SyncScheduleAdmin(self._inner.schedules, self._thread)

    def route(self, topic: str) -> TopicRoute:
        return self._thread.run(self._inner.route(topic))

    def topics(self) -> tuple[TopicRoute, ...]:
        return self._thread.run(self._inner.topics())

    def cancel(self, handles: Sequence[str | Handle]) -> list[Outcome]:
        return self._thread.run(self._inner.cancel(handles))

    def cancel_by_key(self, topic: str, key: str, **options: Any) -> list[CancelledByKey]:
        return self._thread.run(self._inner.cancel_by_key(topic, key, **options))

    def reschedule(self, handles: Sequence[str | Handle], **options: Any) -> list[Rescheduled]:
        return self._thread.run(self._inner.reschedule(handles, **options))

    def list_pending(self, topic: str, **options: Any) -> Iterator[Pending]:
        return self._thread.each(self._inner.list_pending(topic, **options))

    def wheel(self, topic: str = "", **options: Any) -> list[Wheel]:
        return self._thread.run(self._inner.wheel(topic, **options))

    def forecast(self, topic: str = "", group: str = "", **options: Any) -> list[Forecast]:
        return self._thread.run(self._inner.forecast(topic, group, **options))

    def groups(self, topic: str, group: str = "") -> list[GroupQueue]:
        return self._thread.run(self._inner.groups(topic, group))

    def describe_group(self, topic: str, group: str) -> list[GroupQueue]:
        return self._thread.run(self._inner.describe_group(topic, group))

    def delete_group(self, topic: str, group: str) -> DeletedGroup:
        return self._thread.run(self._inner.delete_group(topic, group))

    def dead_letters(self, topic: str, group: str, **options: Any) -> Iterator[ReceivedMessage]:
        return self._thread.each(self._inner.dead_letters(topic, group, **options))

    def redrive(self, topic: str, group: str, **options: Any) -> int:
        return self._thread.run(self._inner.redrive(topic, group, **options))

    def drop(self, topic: str, group: str, **options: Any) -> int:
        return self._thread.run(self._inner.drop(topic, group, **options))

    def can_i(self, operation: str, topic: str = "", group: str = "", **options: Any) -> AccessView:
        return self._thread.run(self._inner.can_i(operation, topic, group, **options))


def _chain(inner: asyncio.Future[T], outer: concurrent.futures.Future[T], thread: _LoopThread) -> None:
    def copy(done: asyncio.Future[T]) -> None:
        if not outer.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(done.result())

    thread.soon(inner.add_done_callback, copy)


# The names that users import: `from delayclient.sync import Producer`.
Producer = SyncProducer
Consumer = SyncConsumer
Reader = SyncReader
Admin = SyncAdmin
