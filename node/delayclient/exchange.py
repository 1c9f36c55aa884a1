"""Questions and answers over one stream: an exchange costs half of what a unary call does."""

from __future__ import annotations

import asyncio

import grpc

from delayclient.errors import Closed, DelayError, Unavailable, from_rpc
from delayclient.routing import Cluster


class Exchange:
    """A stream to one endpoint on which each request has one answer, in order. Broken once, it stays closed."""

    def __init__(self, cluster: Cluster, endpoint: str, method: str) -> None:
        self.endpoint = endpoint
        self.closed = False
        self._cluster = cluster
        self._call = cluster.stream(endpoint, method)

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """Sends a request and waits for its answer. Raises DelayError, and the stream is closed then."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)
                answer = await self._call.read()
            if isinstance(answer, bytes):
                return answer
            error: DelayError = Unavailable(f"{self.endpoint} ended the stream", code="UNAVAILABLE")
        except grpc.RpcError as broken:
            error = from_rpc(broken)
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            error = await self._why()
        except TimeoutError:
            error = Unavailable(f"{self.endpoint} does not answer", code="DEADLINE_EXCEEDED")
        except asyncio.CancelledError:
            self.close()
            # Closing a channel cancels its calls, not the task that awaits them.
            task = asyncio.current_task()
            if self._cluster.closed and task is not None and not task.cancelling():
                raise Closed("cluster connection") from None
            raise
        self.close()
        self._cluster.failed(self.endpoint, error)
        raise error from None

    async def _why(self) -> DelayError:
        """What ended a stream that can't be written to any more."""
        if self._cluster.closed:
            return Closed("cluster connection")
        code = await self._call.code()
        details = await self._call.details()
        return from_rpc(
            grpc.aio.AioRpcError(
                code, await self._call.initial_metadata(), await self._call.trailing_metadata(), details=details
            )
        )

    def close(self) -> None:
        """The stream is not used any more."""
        self.closed = True
        self._call.cancel()
