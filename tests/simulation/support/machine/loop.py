"""Virtual time: one scheduler, and an asyncio loop for each process that lives in it.

Every loop runs on this thread; only one at a time is the running one. A frozen process is a loop that is not stepped, a
crashed one a loop that never will be again: none of its code runs, `finally` included. A job off the loop runs whole at
one instant, but what it does costs time of its own: its disk and registry move `job.now_ns` on, and its loop hears of
the result then.

Nothing here reads a real clock, and ties go by the order of scheduling: a run is a function of its seed.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from asyncio.format_helpers import _format_callback_source
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

_set_running_loop = events._set_running_loop

SECOND = 1_000_000_000
MILLI = 1_000_000
MICRO = 1_000
LIVELOCK_STEPS = 20_000  # so many steps of loops at one instant: some code runs in circles


class Livelock(Exception):
    """Code runs in circles without letting time pass."""


@dataclass(slots=True)
class Job:
    """Work off the loop under way. now_ns: how far its own time has moved."""

    now_ns: int


class Scheduler:
    """The only owner of time. after(), at(): calls outside of any process (the network, disks, faults)."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.job: Job | None = None
        self.failure: Exception | None = None  # a violation that was found: raised after the step under way
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self.ready: deque[ProcessLoop] = deque()  # loops that have something to run now
        self.running: ProcessLoop | None = None

    def time_ns(self) -> int:
        """The time as the code that runs now sees it: a job is ahead by the time that it has waited."""
        return self.now_ns if self.job is None else self.job.now_ns

    def at(self, when_ns: int, call: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heappush(self._heap, (when_ns if when_ns > self.now_ns else self.now_ns, self._order, call, args))

    def after(self, delay_ns: int, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now_ns + delay_ns, call, *args)

    def run(self, until_ns: int, done: Callable[[], bool] | None = None) -> None:
        """Let time pass; until `done`, looked at after each instant, if that comes first."""
        heap, ready, at_once = self._heap, self.ready, 0
        while True:
            if ready:
                try:
                    while ready:
                        loop = ready.popleft()
                        loop.step()
                        if self.failure is not None:
                            raise self.failure
                        at_once += 1
                        if at_once > LIVELOCK_STEPS:
                            raise Livelock(f"{at_once} steps at {self.now_ns} ns; next: {loop.next_up()}")
                finally:
                    self.running = None
                    _set_running_loop(None)
            if done is not None and done():
                return
            if not heap or heap[0][0] > until_ns:
                self.now_ns = max(self.now_ns, until_ns)
                return
            when, _, call, args = heappop(heap)
            if when > self.now_ns:
                self.now_ns, at_once = when, 0
            call(*args)
            if self.failure is not None:
                raise self.failure


class Call(list[Any]):
    """A handle, lighter than asyncio's: [callback, args], empty when cancelled. No code here has context variables."""

    __slots__ = ()

    def cancel(self) -> None:
        self.clear()  # the scheduler looks at a timer when its time comes


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, scheduler: Scheduler, failed: Callable[[str, BaseException | None], None]) -> None:
        """failed: called with each exception that no code handles."""
        self._scheduler = scheduler
        self._failed = failed
        self._ready: deque[Call] = deque()
        self._queued = False
        self.frozen = False
        self.dead = False
        self._thawed: list[Callable[[], None]] = []

    # ------------------------------------------------------------ life
    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Go on: callbacks that became due meanwhile run now."""
        self.frozen = False
        calls, self._thawed = self._thawed, []
        for call in calls:
            call()
        self._wake()

    def once_thawed(self, call: Callable[[], None]) -> None:
        """Call it when the process runs: now, or at its SIGCONT."""
        if self.dead:
            return
        if self.frozen:
            self._thawed.append(call)
        else:
            call()

    def kill(self) -> None:
        self.dead = True
        self._ready.clear()
        self._thawed.clear()

    def step(self) -> None:
        """Run what is ready, as one turn of a real loop. It is the running loop afterwards."""
        self._queued = False
        if self.frozen or self.dead:
            return
        ready = self._ready
        if self._scheduler.running is not self:
            self._scheduler.running = self
            _set_running_loop(self)
        for _ in range(len(ready)):
            if not ready:  # the callback that ran killed this process
                break
            call = ready.popleft()
            if not call:
                continue
            callback, args = call
            try:
                callback(*args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                message = f"Exception in callback {_format_callback_source(callback, args)}"
                self.call_exception_handler({"message": message, "exception": error})
        if ready:
            self._wake()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop, for calls from outside of any loop."""
        before = events._get_running_loop()
        _set_running_loop(self)
        try:
            yield
        finally:
            _set_running_loop(before)

    def _wake(self) -> None:
        if self._ready and not self._queued and not self.frozen:
            self._queued = True
            self._scheduler.ready.append(self)

    def next_up(self) -> str:
        """The place of the code that would run next."""
        tasks = (getattr(callback, "__self__", callback) for callback, _ in filter(None, self._ready))
        return "; ".join(_where(task) for task in tasks)

    # ------------------------------------------------------------ asyncio's own
    def time(self) -> float:
        return self._scheduler.time_ns() / SECOND

    def call_soon(self, callback: Callable[..., object], *args: Any, context: object = None) -> Call:  # type: ignore[override]
        call = Call((callback, args))
        if not self.dead:
            self._ready.append(call)
            if not self._queued and not self.frozen:
                self._queued = True
                self._scheduler.ready.append(self)
        return call

    def _push(self, call: Call) -> None:
        if call and not self.dead:
            self._ready.append(call)
            if not self._queued and not self.frozen:
                self._queued = True
                self._scheduler.ready.append(self)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: object = None) -> Call:  # type: ignore[override]
        job = self._scheduler.job
        if job is None:
            return self.call_soon(callback, *args)
        call = Call((callback, args))
        self._scheduler.at(job.now_ns, self._push, call)
        return call

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: object = None) -> Call:  # type: ignore[override]
        return self.call_at(self._scheduler.time_ns() / SECOND + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: object = None) -> Call:  # type: ignore[override]
        call, scheduler = Call((callback, args)), self._scheduler
        # A float of seconds is coarser than a ns: a timer must not ring before its time has come.
        when_ns = int(when * SECOND)
        scheduler.at(when_ns + MICRO if when_ns >= scheduler.now_ns else when_ns, self._push, call)
        return call

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name or "task", context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        executor.take(lambda: func(*args), future)
        return future

    get_debug = staticmethod(bool)  # False; asked for each future

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self._failed(str(context.get("message")), context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def _where(task: object) -> str:
    coro: Any = task.get_coro() if isinstance(task, asyncio.Task) else None
    places = []
    while coro is not None and getattr(coro, "cr_frame", None) is not None:
        places.append(f"{coro.__qualname__}:{coro.cr_frame.f_lineno}")
        coro = coro.cr_await
    return " > ".join(places) or repr(task)


@dataclass
class Pool:
    """Threads of a process: `workers` jobs at a time, the others wait in line.

    delay_ns: time until a job begins: a thread's wake-up, or a request's way to the registry.
    outlives: decides whether a job on its way still happens when the process is killed: a request that is on the wire
    does.
    """

    scheduler: Scheduler
    loop: ProcessLoop
    workers: int
    delay_ns: Callable[[], int]
    outlives: Callable[[], bool] = lambda: False
    _line: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = field(default_factory=deque)
    _busy: int = 0

    def take(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._line.append((work, future))
        self._start()

    def _start(self) -> None:
        while self._line and self._busy < self.workers:
            work, future = self._line.popleft()
            if future.cancelled():
                continue
            self._busy += 1
            self.scheduler.after(self.delay_ns(), self._begin, work, future)

    def _begin(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        if self.loop.dead and not self.outlives():
            return
        if self.loop.frozen and not self.outlives():
            self.loop.once_thawed(lambda: self._begin(work, future))
            return
        job = Job(self.scheduler.now_ns)
        result, error = in_job(self.scheduler, job, work)
        self.scheduler.at(job.now_ns, self._end, future, result, error)

    def _end(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        self.loop.call_soon(_tell, future, result, error)
        self._start()

    def submit(self, *_: object) -> None:
        raise AssertionError("code of a node gives its jobs to the loop")

    def shutdown(self, *_: object, **__: object) -> None:
        """No more jobs come; callers wait for the ones under way by their futures."""


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def in_job(scheduler: Scheduler, job: Job, work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Run work off any loop, in a job's time."""
    before, scheduler.job = scheduler.job, job
    try:
        return work(), None
    except Exception as error:
        return None, error
    finally:
        scheduler.job = before
