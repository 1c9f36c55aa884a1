"""Small calls to one endpoint, many of them in a message of one stream.

A call of its own costs several times as much, and a busy node takes up less than a hundred of those a second.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
from delayapi.proto.delay.v1 import delay_pb2

from delayclient.errors import Closed, DelayError, NotAuthenticated, Unavailable, from_rpc, from_stream

STREAMED_METHODS: Final = frozenset(("Ack", "Nack", "Extend", "Cancel", "Reschedule"))
"""Methods of which a node takes calls in such a stream."""
MAX_REQUEST_BYTES: Final = 1 << 20
"""A larger request has a call of its own."""
_MESSAGE_BYTES: Final = 4 << 20
_IDLE_S: Final = 30.0


class CallMultiplexer:
    """A stream of calls, from the first one until it breaks or has been idle. Belongs to one event loop."""

    def __init__(self, endpoint: str, stream: Callable[[], Any]) -> None:
        """`stream` opens a CallStream."""
        self.ended: DelayError | None = None
        """Why no call can be made any more."""
        self._endpoint = endpoint
        self._ids = itertools.count(1)
        self._unsent: deque[delay_pb2.Call] = deque()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._work = asyncio.Event()
        self._task = asyncio.create_task(self._run(stream()))

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """One call. Raises DelayError."""
        if self.ended is not None:
            raise self.ended
        call = delay_pb2.Call(id=next(self._ids), method=method, request=request, wait_ms=int(timeout_s * 1000) + 1)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = answer
        self._unsent.append(call)
        self._work.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise Unavailable(f"{self._endpoint} does not answer", code="DEADLINE_EXCEEDED") from None
        finally:
            self._waiting.pop(call.id, None)

    def close(self) -> None:
        """Calls in progress fail."""
        self._end(Closed("cluster connection"))
        self._task.cancel()

    def _end(self, error: DelayError) -> None:
        if self.ended is None:
            self.ended = error
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._unsent.clear()

    async def _run(self, stream: Any) -> None:
        reader = asyncio.create_task(self._read(stream))
        reader.add_done_callback(lambda _: self._work.set())
        error: DelayError = Unavailable(f"{self._endpoint} ended the stream", code="UNAVAILABLE")
        try:
            await self._write(stream, reader)
            if not reader.done() and self._waiting:
                # The stream broke under a write; the reader is about to hear why.
                await asyncio.wait({reader}, timeout=1.0)
            if reader.done() and not reader.cancelled():
                error = self._as_known(reader.exception()) or error
        finally:
            self._end(error)
            stream.cancel()
            reader.cancel()
            await asyncio.wait({reader})

    def _as_known(self, error: BaseException | None) -> DelayError | None:
        """How the stream ended, as an error of its calls: they may have been done, and may be tried again."""
        if error is None or isinstance(error, Closed | NotAuthenticated | Unavailable):
            return error
        if isinstance(error, DelayError) and (error.reason or error.code == "UNIMPLEMENTED"):
            return error
        return Unavailable(f"{self._endpoint} ended the stream: {error}", code="UNAVAILABLE")

    async def _write(self, stream: Any, reader: asyncio.Task[None]) -> None:
        """Until the stream breaks, or there was nothing to do for long."""
        while not reader.done():
            if self._unsent:
                try:
                    await stream.write(self._message().SerializeToString())
                except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError):
                    return
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    return  # the stream was cancelled, not this task
                continue
            self._work.clear()
            try:
                async with asyncio.timeout(_IDLE_S):
                    await self._work.wait()
            except TimeoutError:
                if not self._waiting:
                    return

    def _message(self) -> delay_pb2.Calls:
        """Returns as many calls as a message should have, and leaves out those whose callers have gone."""
        message, size = delay_pb2.Calls(), 0
        while self._unsent and size < _MESSAGE_BYTES:
            call = self._unsent.popleft()
            if call.id in self._waiting:
                message.call.append(call)
                size += len(call.request)
        return message

    async def _read(self, stream: Any) -> None:
        """Raises DelayError: how the stream ended."""
        while True:
            try:
                data = await stream.read()
            except grpc.RpcError as error:
                raise from_rpc(error) from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise Closed("cluster connection") from None  # closing a channel cancels its streams
            if data is grpc.aio.EOF:
                raise Unavailable(f"{self._endpoint} ended the stream", code="UNAVAILABLE")
            for answer in delay_pb2.Answers.FromString(data).answer:
                future = self._waiting.get(answer.id)
                if future is None or future.done():
                    continue
                if answer.HasField("error"):
                    future.set_exception(from_stream(answer.error))
                else:
                    future.set_result(answer.response)
