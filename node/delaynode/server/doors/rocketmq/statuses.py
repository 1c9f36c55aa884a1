"""Refusals as the protocol's codes. An answer has them inside: to the gRPC library all calls end well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq

from delaynode.store.errors import Refused

MAX_TEXT_CHARS = 1_000  # names that callers made up come back in messages

CODES: Final[dict[str, Any]] = {
    "DELAY_TOO_LONG": mq.ILLEGAL_DELIVERY_TIME,
    "WRONG_TOPIC_TYPE": mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    "MESSAGE_TOO_LARGE": mq.MESSAGE_BODY_TOO_LARGE,
    "BATCH_TOO_LARGE": mq.PAYLOAD_TOO_LARGE,
    "BAD_COLUMNS": mq.BAD_REQUEST,
    "BAD_REQUEST": mq.BAD_REQUEST,
    "BAD_GROUP": mq.ILLEGAL_CONSUMER_GROUP,
    "FOREIGN_HANDLE": mq.INVALID_RECEIPT_HANDLE,
    "LEASE_OVER": mq.INVALID_RECEIPT_HANDLE,
    "GROUP_MISMATCH": mq.ILLEGAL_FILTER_EXPRESSION,
    "UNKNOWN_TOPIC": mq.TOPIC_NOT_FOUND,
    "UNKNOWN_GROUP": mq.CONSUMER_GROUP_NOT_FOUND,
    "UNKNOWN_QUEUE": mq.NOT_FOUND,
    "NOT_SERVING": mq.HA_NOT_AVAILABLE,
    "NOT_MASTER": mq.HA_NOT_AVAILABLE,
    "NOT_ENOUGH_REPLICAS": mq.HA_NOT_AVAILABLE,
    "WHEEL_BEHIND": mq.HA_NOT_AVAILABLE,
    "CLOCK_BEHIND": mq.HA_NOT_AVAILABLE,
    "DISK_FULL": mq.TOO_MANY_REQUESTS,
    "TOO_MANY_PRODUCERS": mq.TOO_MANY_REQUESTS,
    "BUSY": mq.TOO_MANY_REQUESTS,
    "QUOTA": mq.TOO_MANY_REQUESTS,
    "UNAUTHENTICATED": mq.UNAUTHORIZED,
    "PERMISSION_DENIED": mq.FORBIDDEN,
}
"""By reason; the others are INTERNAL_SERVER_ERROR."""


class Wrong(Exception):
    """What a client asks for can't be done; with the protocol's code."""

    def __init__(self, code: Any, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def ok() -> mq.Status:
    return mq.Status(code=mq.OK, message="OK")


def status_of(error: Wrong | Refused) -> mq.Status:
    if isinstance(error, Wrong):
        return mq.Status(code=error.code, message=error.message[:MAX_TEXT_CHARS])
    code = CODES.get(error.reason, mq.INTERNAL_SERVER_ERROR)
    return mq.Status(code=code, message=f"{error.reason}: {error.message}"[:MAX_TEXT_CHARS])


def together(parts: Sequence[mq.Status]) -> mq.Status:
    """The status of an answer about several things. Clients that send one look at nothing else."""
    first = parts[0] if parts else ok()
    if all(part.code == first.code for part in parts):
        return first
    return mq.Status(code=mq.MULTIPLE_RESULTS, message="each entry has a status of its own")
