"""Calls for shards that another node serves: passed on as they are, once, marked, never retried."""

from __future__ import annotations

from typing import NoReturn

import grpc
from delayclient.proto.delay.v1 import delay_pb2
from google.rpc import error_details_pb2, status_pb2

FORWARDED = "x-delay-forwarded"
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # Left alone, a channel to a node that was away for minutes waits up to two more before it tries again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
DETAILS = "grpc-status-details-bin"


class Passed(Exception):
    """The other node's error, to be given to the caller unchanged."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(str(error))
        self.error = error

    async def abort(self, context: grpc.aio.ServicerContext) -> NoReturn:
        details = tuple((key, value) for key, value in self.error.trailing_metadata() or () if key == DETAILS)
        await context.abort(self.error.code(), self.error.details() or "", details)
        raise AssertionError("abort returned")

    def as_error(self) -> delay_pb2.Error:
        answer = delay_pb2.Error(
            code=self.error.code().value[0], reason="NOT_SERVING", message=self.error.details() or ""
        )
        for key, value in self.error.trailing_metadata() or ():
            if key == DETAILS:
                status = status_pb2.Status.FromString(value)
                for detail in status.details:
                    info = error_details_pb2.ErrorInfo()
                    if detail.Unpack(info):
                        answer.reason = info.reason
                        answer.metadata.update(info.metadata)
        return answer


class Forwarder:
    """Keeps one channel to each other node."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(self, endpoint: str, method: str, data: bytes, seconds: float | None) -> bytes:
        """Raises Passed."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
        try:
            answer: bytes = await channel.unary_unary(f"/delay.v1.DelayService/{method}")(
                data, metadata=((FORWARDED, "1"),), timeout=seconds
            )
            return answer
        except grpc.aio.AioRpcError as error:
            raise Passed(error) from error

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
