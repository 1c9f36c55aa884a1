"""CallStream: many small calls of one client over one stream.

grpc.aio takes up one new call in several turns of the event loop, so a busy node takes up less than a hundred a second,
and the others wait, health checks and new streams among them. Here many calls come in one message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import format_bytes
from google.rpc import code_pb2

from delaynode.auth.identity import Identity
from delaynode.limits.budget import Answers, Hold
from delaynode.server.dispatch import Dispatch, parse
from delaynode.server.edge import Body, Serve, Stream
from delaynode.server.forward import ForwardedError
from delaynode.server.rpc import as_error
from delaynode.store.errors import Refused

MAX_UNDER_WAY = 4096  # calls of one stream at once; many, for those of a shard that waits must not keep others waiting
MESSAGE_BYTES = 4 << 20  # of answers in a message
CALL_BYTES = 2 << 10  # of a call under way, beside its request: a task, a few objects
MAX_REQUEST_BYTES = 1 << 20
MAX_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StreamedCall:
    """A call that is one of many of a stream."""

    stream: Stream
    until: float  # time.monotonic()

    def peer(self) -> str:
        return self.stream.peer()

    def listener(self) -> str:
        return self.stream.listener()

    def forwarded(self) -> bool:
        return self.stream.forwarded()

    def identity(self) -> Identity:
        return self.stream.identity()

    def metadata(self, name: str) -> str | None:
        return self.stream.metadata(name)

    def on_done(self, done: Callable[[], None]) -> None:
        self.stream.on_done(done)

    def time_remaining(self) -> float:
        return max(0.0, self.until - time.monotonic())


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """An answer, and what it holds until the client has it."""

    answer: pb.Answer
    answers: Answers


class CallStreams:
    """One for a node. calls: by method, those that such a stream may carry; their answers are small."""

    def __init__(self, dispatch: Dispatch, calls: Mapping[str, Serve]) -> None:
        self._dispatch = dispatch
        self._calls = calls

    async def call_stream(self, stream: Stream) -> AsyncGenerator[Body, None]:
        calls = _StreamedCalls(self._dispatch, self._calls, stream)
        try:
            while done := await calls.next():
                try:
                    yield pb.Answers(answer=[one.answer for one in done]).SerializeToString()
                finally:
                    calls.sent(done)
        finally:
            await calls.close()


class _StreamedCalls:
    """Owned by the event loop: a task that reads, and one for each call that is under way."""

    def __init__(self, dispatch: Dispatch, calls: Mapping[str, Serve], stream: Stream) -> None:
        self._dispatch, self._calls, self._stream = dispatch, calls, stream
        self._done: list[FinishedCall] = []
        self._tasks: dict[asyncio.Task[None], Hold] = {}
        self._wakeup = asyncio.Event()  # something is done
        self._room = asyncio.Event()  # fewer calls are under way
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda _: self._wakeup.set())

    async def next(self) -> Sequence[FinishedCall]:
        """Returns the answers that are ready, at least one; nothing once the client has ended its side and has all
        answers. Raises Refused: the stream is not one of calls."""
        while not self._done:
            if self._reader.done() and not self._tasks:
                self._reader.result()
                return ()
            self._wakeup.clear()
            await self._wakeup.wait()
        size = np.cumsum([one.answer.ByteSize() for one in self._done])
        fits = max(1, int(np.searchsorted(size, MESSAGE_BYTES, "right")))
        done, self._done = self._done[:fits], self._done[fits:]
        return done

    def sent(self, done: Sequence[FinishedCall]) -> None:
        """The client has them, or soon will."""
        for one in done:
            one.answers.sent()
        self._room.set()

    async def close(self) -> None:
        tasks = [self._reader, *self._tasks]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # the call may be cancelled now
            self.sent(self._done)

    async def _read(self) -> None:
        flow = self._dispatch.flow
        while (data := await self._stream.read()) is not None:
            calls = parse(pb.Calls, data).call
            for call in calls:
                while len(self._tasks) + len(self._done) >= MAX_UNDER_WAY:
                    self._room.clear()
                    await self._room.wait()
                hold = await flow.calls.acquire(self._stream.peer(), CALL_BYTES + len(call.request))
                task = asyncio.create_task(self._serve(call))
                self._tasks[task] = hold
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._dispatch.flow.calls.release(self._tasks.pop(task))
        self._room.set()
        self._wakeup.set()

    async def _serve(self, call: pb.Call) -> None:
        seconds = min(call.wait_ms / 1000 or MAX_WAIT_SECONDS, MAX_WAIT_SECONDS)
        streamed = StreamedCall(self._stream, time.monotonic() + seconds)
        answers = self._dispatch.flow.answers(streamed)
        answer = pb.Answer(id=call.id)
        try:
            async with asyncio.timeout(seconds):
                answer.response = await self._find(call)(call.request, streamed, answers)
                if not answers.counted:  # as for one that was passed on: twice might be more than there is
                    await answers.reserve(len(answer.response))
        except Refused as refused:
            answer.error.CopyFrom(as_error(refused))
        except ForwardedError as passed:
            answer.error.CopyFrom(passed.as_error())
        except TimeoutError:
            answers.sent()
            return  # the client has given up, too
        except asyncio.CancelledError:
            answers.sent()
            raise
        except Exception as error:  # a fault of this program: the client need not wait for an answer
            answer.error.code, answer.error.message = code_pb2.INTERNAL, f"{type(error).__name__}: {error}"
            self._done.append(FinishedCall(answer, answers))
            raise
        self._done.append(FinishedCall(answer, answers))

    def _find(self, call: pb.Call) -> Serve:
        serve = self._calls.get(call.method)
        if serve is None:
            raise Refused("BAD_REQUEST", f"a CallStream carries {', '.join(sorted(self._calls))}, not {call.method!r}")
        if len(call.request) > MAX_REQUEST_BYTES:
            raise Refused(
                "BAD_REQUEST",
                f"the request has {len(call.request):,} bytes, in a CallStream the limit is "
                f"{format_bytes(MAX_REQUEST_BYTES)}",
            )
        return serve
