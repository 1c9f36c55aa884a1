"""Questions and answers over one stream: an exchange costs half of what a unary call does."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import grpc

from delayclient.errors import Closed, DelayError, Unavailable, from_rpc
from delayclient.routing.routing import Cluster, QueueRoute

LAST_S: Final = 1.0
"""After finish() an answer is worth waiting for so long. Nodes of earlier releases do not hear of it meanwhile."""


class Exchange:
    """A stream to one endpoint on which each request has one answer, in order. Broken once, it stays closed.

    An answer may take long; when the endpoint is found dead meanwhile, send() fails at once.
    """

    def __init__(self, cluster: Cluster, endpoint: str, method: str, route: QueueRoute | None) -> None:
        """`route`: of the queue that it is for, as it is now."""
        self.endpoint = endpoint
        self.route = route
        self.closed = False
        self._asking = self._written = self._last = False
        self._leaving: asyncio.Task[None] | None = None
        self._cluster = cluster
        self._left_for: DelayError | None = None
        self._abandoned_by: DelayError | None = None
        self._master = route.endpoint if route is not None else ""
        self._call = cluster.stream(endpoint, method)
        cluster.reachability.poll_opened(endpoint, self.abandon)

    async def send(self, request: bytes, timeout_s: float) -> bytes:
        """Sends a request and waits for its answer. Raises DelayError, and the stream is closed then."""
        error: DelayError
        self._asking, self._written = True, False
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)
                self._written = True
                if self._last:
                    await self._call.write(b"")
                answer = await self._call.read()
            if isinstance(answer, bytes):
                self._cluster.reachability.record_success(self.endpoint, self._master)
                if self._last:
                    self.close()
                return answer
            error = self._left_for or Unavailable(f"{self.endpoint} ended the stream", code="UNAVAILABLE")
        except grpc.RpcError as broken:
            error = self._cluster.access.judged(from_rpc(broken))
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            error = await self._stream_error()
        except TimeoutError:
            error = Unavailable(f"{self.endpoint} does not answer", code="DEADLINE_EXCEEDED")
        except asyncio.CancelledError:
            self.close()
            # Closing a channel, or leave(), cancels the stream, not the task that awaits its answer.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            if self._cluster.closed:
                raise Closed("cluster connection") from None
            if self._abandoned_by is None:
                raise
            error = self._abandoned_by
        finally:
            self._asking = False
        self.close()
        raise error from None

    def finish(self) -> bool:
        """Asks the endpoint to wait no longer for an answer to what is under way: send() returns what it has handed out
        already, or fails. False: nothing is under way.
        """
        if self.closed or not self._asking:
            return False
        if not self._last and self._written:
            self._leaving = asyncio.create_task(self._leave())
        self._last = True
        return True

    async def _leave(self) -> None:
        with suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError, asyncio.CancelledError):
            await self._call.write(b"")  # where the stream has ended, send() knows why

    def leave(self, error: DelayError) -> None:
        """finish(), for an endpoint that lives and is asked on another stream from now on: where it has handed out
        nothing, send() raises `error`, after LAST_S at the latest.
        """
        if self._left_for is not None:
            return
        self._left_for = error
        if self.finish():
            asyncio.get_running_loop().call_later(LAST_S, self.abandon, error)
        else:
            self.abandon(error)

    def abandon(self, error: DelayError) -> None:
        """Gives up: send() raises `error`, now or when it is called next."""
        if self._abandoned_by is None:
            self._abandoned_by = error
            self._call.cancel()

    async def _stream_error(self) -> DelayError:
        """The error that ended a stream which can't be written to any more."""
        if self._cluster.closed:
            return Closed("cluster connection")
        if self._abandoned_by is not None:
            return self._abandoned_by
        code = await self._call.code()
        details = await self._call.details()
        broken = grpc.aio.AioRpcError(
            code, await self._call.initial_metadata(), await self._call.trailing_metadata(), details=details
        )
        return self._cluster.access.judged(from_rpc(broken))

    def close(self) -> None:
        """The stream is not used any more."""
        self.closed = True
        self._cluster.reachability.poll_closed(self.endpoint, self.abandon)
        self._call.cancel()
