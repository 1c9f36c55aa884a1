"""Calls for shards that another node serves: passed on as they are, once, marked, never retried."""

from __future__ import annotations

import time
from dataclasses import dataclass

import grpc
from delayapi.connections import Connections
from delayapi.errors import DETAILS_KEY, error_info
from delayapi.proto.delay.v1 import delay_pb2

from delaynode.server.rpc import Status, status_of
from delaynode.store.errors import Refused

FORWARDED = "x-delay-forwarded"
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # Left alone, a channel to a node that was away for minutes waits up to two more before it tries again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A node that is gone without a word is noticed; one that is not called is left alone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
UNUSED_SECONDS = 600.0  # connections unused for so long are closed: nodes come and go


class ForwardedError(Exception):
    """The other node's error, to be given to the caller unchanged."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(str(error))
        self.error = error

    def status(self) -> Status:
        """What the caller is told."""
        details: bytes = dict(self.error.trailing_metadata() or ()).get(DETAILS_KEY, b"")
        if not details and self.error.code() is grpc.StatusCode.UNAVAILABLE:
            # Without a reason it would say that this node is the one that cannot be reached.
            return status_of(Refused("NOT_SERVING", f"the master cannot be reached: {self.error.details()}"))
        return Status(self.error.code(), self.error.details() or "", details)

    def as_error(self) -> delay_pb2.Error:
        code, message, info = self.error.code().value[0], self.error.details() or "", error_info(self.error)
        if info is None:
            return delay_pb2.Error(code=code, reason="NOT_SERVING", message=message)
        return delay_pb2.Error(code=code, reason=info.reason, message=message, metadata=info.metadata)


@dataclass(slots=True)
class ForwardLink:
    connections: Connections
    calls: int = 0
    used: float = 0.0  # time.monotonic() at the end of the last call


class Forwarder:
    """Keeps connections to each other node that is called."""

    def __init__(self) -> None:
        self._links: dict[str, ForwardLink] = {}

    async def call(self, endpoint: str, method: str, data: bytes, seconds: float | None) -> bytes:
        """Raises Passed."""
        link = self._links.get(endpoint)
        if link is None:
            await self._close_unused()
            link = self._links.setdefault(endpoint, ForwardLink(Connections(endpoint, OPTIONS)))
        connection = link.connections.pick()
        connection.calls += 1
        link.calls += 1
        try:
            send = connection.unary(f"/delay.v1.DelayService/{method}")
            answer: bytes = await send(data, metadata=((FORWARDED, "1"),), timeout=seconds)
            return answer
        except grpc.aio.AioRpcError as error:
            raise ForwardedError(error) from error
        finally:
            connection.calls -= 1
            link.calls -= 1
            link.used = time.monotonic()

    async def _close_unused(self) -> None:
        """Only looked for when a node is called for the first time: otherwise there are not more of them."""
        limit = time.monotonic() - UNUSED_SECONDS
        unused = [endpoint for endpoint, link in self._links.items() if not link.calls and link.used < limit]
        for link in [self._links.pop(endpoint) for endpoint in unused]:
            await link.connections.close()

    async def close(self) -> None:
        for link in self._links.values():
            await link.connections.close()
