"""The reasons with which a node refuses a call, each with its gRPC code. docs/errors.md says what to do about each."""

from __future__ import annotations

from typing import Final

import grpc

_REASONS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: (
        "DELAY_TOO_LONG WRONG_TOPIC_TYPE MESSAGE_TOO_LARGE BATCH_TOO_LARGE BAD_COLUMNS BAD_REQUEST ANSWER_TOO_LARGE "
        "BAD_GROUP FOREIGN_HANDLE"
    ),
    grpc.StatusCode.FAILED_PRECONDITION: "GROUP_MISMATCH OUT_OF_ORDER UNKNOWN_PRODUCER NOT_MASTER CLOCK_CHANGED",
    grpc.StatusCode.NOT_FOUND: "UNKNOWN_TOPIC UNKNOWN_QUEUE UNKNOWN_GROUP UNKNOWN_NODE",
    grpc.StatusCode.UNAVAILABLE: "NOT_SERVING NOT_ENOUGH_REPLICAS WHEEL_BEHIND CLOCK_BEHIND",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "DISK_FULL TOO_MANY_PRODUCERS BUSY",
    grpc.StatusCode.OUT_OF_RANGE: "OFFSET_TRIMMED",
    grpc.StatusCode.DATA_LOSS: "SHARD_DAMAGED",
    grpc.StatusCode.INTERNAL: "INTERNAL",
}

CODES: Final = {reason: code for code, reasons in _REASONS.items() for reason in reasons.split()}
"""The gRPC code of each reason."""
