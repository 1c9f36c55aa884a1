"""The reasons with which a node refuses a call, each with its gRPC code. docs/errors.md says what to do about each."""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY: Final = "grpc-status-details-bin"
"""Of the trailing metadata: a google.rpc.Status with the reason in an ErrorInfo."""

_REASONS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: (
        "DELAY_TOO_LONG WRONG_TOPIC_TYPE MESSAGE_TOO_LARGE BATCH_TOO_LARGE BAD_COLUMNS BAD_REQUEST ANSWER_TOO_LARGE "
        "BAD_GROUP FOREIGN_HANDLE BAD_SCHEDULE"
    ),
    grpc.StatusCode.FAILED_PRECONDITION: (
        "GROUP_MISMATCH OUT_OF_ORDER UNKNOWN_PRODUCER NOT_MASTER CLOCK_CHANGED LEASE_OVER SCHEDULE_CHANGED"
    ),
    grpc.StatusCode.NOT_FOUND: "UNKNOWN_TOPIC UNKNOWN_QUEUE UNKNOWN_GROUP UNKNOWN_NODE UNKNOWN_SCHEDULE",
    grpc.StatusCode.UNAVAILABLE: "NOT_SERVING NOT_ENOUGH_REPLICAS WHEEL_BEHIND CLOCK_BEHIND NOT_UPGRADED",
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        "DISK_FULL TOO_MANY_PRODUCERS TOO_MANY_MESSAGE_IDS TOO_MANY_SCHEDULES BUSY QUOTA"
    ),
    grpc.StatusCode.OUT_OF_RANGE: "OFFSET_TRIMMED",
    grpc.StatusCode.DATA_LOSS: "SHARD_DAMAGED",
    grpc.StatusCode.INTERNAL: "INTERNAL",
    grpc.StatusCode.UNAUTHENTICATED: "UNAUTHENTICATED",
    grpc.StatusCode.PERMISSION_DENIED: "PERMISSION_DENIED",
}

CODES: Final = {reason: code for code, reasons in _REASONS.items() for reason in reasons.split()}
"""The gRPC code of each reason."""


def error_info(error: grpc.RpcError) -> Any:
    """The google.rpc.ErrorInfo of a failed call; None without one."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            status, info = status_pb2.Status(), error_details_pb2.ErrorInfo()
            try:
                status.ParseFromString(value)
            except Exception:  # a proxy may put anything there; the code and message still say what happened
                return None
            if any(detail.Is(info.DESCRIPTOR) and detail.Unpack(info) for detail in status.details):
                return info
    return None
