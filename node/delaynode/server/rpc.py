"""Refusals as gRPC statuses with a google.rpc.ErrorInfo, and columns off the wire."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import numpy as np
from delayapi.errors import CODES
from delayapi.proto.delay.v1 import delay_pb2
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from delaynode.store.errors import Refused
from delaynode.store.types import Array

DOMAIN = "delaycluster.io"
MAX_BATCH_OUT_BYTES = 8 << 20  # records in one answer
MAX_TEXT_BYTES = 1_000  # of a message: it travels in trailers, twice, and gRPC takes 8 KiB of those


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ends. details: a google.rpc.Status, encoded; empty: none."""

    code: grpc.StatusCode
    message: str
    details: bytes


class EndedError(Exception):
    """A call that ends with a status that is no refusal of the node's."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self._status = Status(code, message, b"")

    def status(self) -> Status:
        return self._status


def status_of(refused: Refused) -> Status:
    """The refusal's code and details."""
    code, message = CODES[refused.reason], _shortened(refused.message)
    status = status_pb2.Status(code=code.value[0], message=message)
    return Status(code, message, status.SerializeToString() + details_of(refused))


def details_of(refused: Refused) -> bytes:
    """A google.rpc.Status with nothing but the details: encoded messages are joined by joining their bytes."""
    info = error_details_pb2.ErrorInfo(reason=refused.reason, domain=DOMAIN, metadata=refused.metadata)
    detail = any_pb2.Any()
    detail.Pack(info)
    return bytes(status_pb2.Status(details=[detail]).SerializeToString())


def as_error(refused: Refused) -> delay_pb2.Error:
    """The same inside an answer, for streams."""
    return delay_pb2.Error(
        code=CODES[refused.reason].value[0], reason=refused.reason, message=refused.message, metadata=refused.metadata
    )


def _shortened(text: str) -> str:
    """Names that callers made up come back in messages, and may have any length."""
    encoded = text.encode()
    if len(encoded) <= MAX_TEXT_BYTES:
        return text
    return encoded[:MAX_TEXT_BYTES].decode(errors="ignore") + "..."


def column(name: str, data: bytes, dtype: str, count: int | None = None) -> Array:
    """A column as an array. Raises Refused BAD_COLUMNS when its length can't be or is not `count` rows."""
    size = np.dtype(dtype).itemsize
    if len(data) % size:
        raise Refused("BAD_COLUMNS", f"column {name} has {len(data)} bytes, its rows have {size}")
    rows = np.frombuffer(data, dtype)
    if count is not None and len(rows) != count:
        raise Refused("BAD_COLUMNS", f"column {name} has {len(rows)} rows, expected {count}")
    return rows


def fitting(size: Array) -> int:
    """How many rows, from the first on, have records of at most MAX_BATCH_OUT_BYTES together; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(size, dtype=np.int64), MAX_BATCH_OUT_BYTES, "right")))
