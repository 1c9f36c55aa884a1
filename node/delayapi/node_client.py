"""A node's answers about itself, for code on threads: the wheels of its shards and the state of its copies."""

from __future__ import annotations

from typing import Any, Final, Self

import grpc

from delayapi.proto.delay.v1 import delay_pb2 as pb

MAX_ANSWER_BYTES: Final = 64 << 20
"""Of one answer: a node ends GetWheel's at 32 MiB of slots, and the states of 10,000 copies are a few MiB."""


class NodeClient:
    """One channel to `endpoint`, which connects at the first call.

    get_wheel(GetWheelRequest), replica_status(ReplicaStatusRequest), purge_copy(PurgeCopyRequest): callables of gRPC,
    with `timeout` in seconds and `.future()`. options: further ones of the channel. credentials: of TLS; None: without.
    """

    def __init__(
        self,
        endpoint: str,
        options: tuple[tuple[str, Any], ...] = (),
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        every = (("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.enable_http_proxy", 0), *options)
        if credentials is None:
            self._channel = grpc.insecure_channel(endpoint, options=every)
        else:
            self._channel = grpc.secure_channel(endpoint, credentials, options=every)
        self.get_wheel = self._method("DelayService/GetWheel", pb.GetWheelRequest, pb.GetWheelResponse)
        self.replica_status = self._method(
            "ReplicationService/ReplicaStatus", pb.ReplicaStatusRequest, pb.ReplicaStatusResponse
        )
        self.purge_copy = self._method("ReplicationService/PurgeCopy", pb.PurgeCopyRequest, pb.PurgeCopyResponse)

    def _method(self, name: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(
            f"/delay.v1.{name}", request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
