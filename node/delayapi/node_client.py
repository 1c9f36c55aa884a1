"""A node's answers about itself, for code on threads: the wheels of its shards and the state of its copies.

With a token the node is reached by its listener `tokens`, whose certificate its lease says whom to trust with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self, TypeAlias

import grpc

from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2

MAX_ANSWER_BYTES: Final = 64 << 20
"""Of one answer: a node ends GetWheel's at 32 MiB of slots, and the states of 10,000 copies are a few MiB."""

TOKENS: Final = "tokens"
"""The listener that takes tokens by TLS, where a cluster in Kubernetes or `delayctl local --secure` has one."""
TokenSource: TypeAlias = Callable[[], str]
"""A token that is valid now. Called in threads of gRPC, at each call. Raises Exception where there is none."""


class NodeClient:
    """One channel to `endpoint`, which connects at the first call.

    get_wheel(GetWheelRequest), forecast(ForecastRequest), replica_status(ReplicaStatusRequest),
    purge_copy(PurgeCopyRequest), describe_group(DescribeGroupRequest), put_schedule, list_schedules, delete_schedule:
    callables of gRPC, with `timeout` in seconds and `.future()`. options: further ones of the channel. credentials: of
    TLS; None: without.
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
        self.forecast = self._method("DelayService/Forecast", pb.ForecastRequest, pb.ForecastResponse)
        self.replica_status = self._method(
            "ReplicationService/ReplicaStatus", pb.ReplicaStatusRequest, pb.ReplicaStatusResponse
        )
        self.purge_copy = self._method("ReplicationService/PurgeCopy", pb.PurgeCopyRequest, pb.PurgeCopyResponse)
        self.describe_group = self._method(
            "DelayService/DescribeGroup", pb.DescribeGroupRequest, pb.DescribeGroupResponse
        )
        self.put_schedule = self._method(
            "DelayService/PutSchedule", schedules_pb2.PutScheduleRequest, schedules_pb2.PutScheduleResponse
        )
        self.list_schedules = self._method(
            "DelayService/ListSchedules", schedules_pb2.ListSchedulesRequest, schedules_pb2.ListSchedulesResponse
        )
        self.delete_schedule = self._method(
            "DelayService/DeleteSchedule", schedules_pb2.DeleteScheduleRequest, schedules_pb2.DeleteScheduleResponse
        )

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


def token_client(
    endpoint: str, server_name: str, roots: str, token: TokenSource, options: tuple[tuple[str, Any], ...] = ()
) -> NodeClient:
    """roots: PEM, who may have issued the node's certificate; empty: the public CAs. It must be for server_name,
    whatever address is dialled: leases have IP addresses."""
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(roots.encode() or None), grpc.metadata_call_credentials(_Bearer(token))
    )
    named = (("grpc.ssl_target_name_override", server_name), ("grpc.default_authority", server_name))
    return NodeClient(endpoint, (*options, *named), credentials)


class _Bearer(grpc.AuthMetadataPlugin):  # type: ignore[misc]  # grpc has no types
    def __init__(self, token: TokenSource) -> None:
        self._token = token

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            callback((("authorization", f"Bearer {self._token()}"),), None)
        except Exception as error:  # the call ends with it
            callback((), error)
