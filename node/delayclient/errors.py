"""The cluster's errors as Python types, read from a status's google.rpc.ErrorInfo or from a stream's `Error`.

`retryable` says that the same call may succeed later; `in_doubt` says that the call may have been done all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import grpc
from delayapi.errors import CODES, error_info
from google.rpc import code_pb2

_log: Final = logging.getLogger("delayclient")


class DelayError(Exception):
    """An error that the cluster answered: a gRPC code name, a reason (docs/errors.md), a sentence and the reason's
    metadata.
    """

    retryable: ClassVar[bool] = False
    in_doubt: ClassVar[bool] = False

    def __init__(
        self, message: str, *, code: str = "UNKNOWN", reason: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata: dict[str, str] = dict(metadata or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.reason or self.code})"


def unforeseen(what: str, error: Exception) -> DelayError:
    """For a task in the background that ends by a fault of our own: nobody awaits it, so that a queue would be received
    from no more and nobody told. It is logged with its traceback."""
    _log.error("%s has failed", what, exc_info=error)
    return DelayError(f"{what} has failed: {error!r}", code="INTERNAL")


class InvalidRequest(DelayError):
    """The request itself is wrong; nothing was stored or changed."""


class DelayTooLong(InvalidRequest):
    """A due beyond the horizon or the topic's maxDelay; metadata has the limit."""


class WrongTopicType(InvalidRequest):
    """A message without a delay for a topic of type Delay, or one with a delay for a topic of type Normal."""


class TooLarge(InvalidRequest):
    """A message over 4 MiB, or a batch over 8 MiB or 65,536 messages."""


class ForeignHandle(InvalidRequest):
    """A handle of another shard or of another cluster."""


class NotFound(DelayError):
    """An unknown topic, queue, group or schedule."""


class NotAuthenticated(DelayError):
    """The node does not know who calls: no token or certificate, or none that it takes; the message says why."""


class NotAllowed(DelayError):
    """The caller is known and may not do that; metadata has `principal`, `operation`, `resource` and `why`."""


class OutOfOrder(DelayError):
    """The batch does not have this producer's next number; nothing was stored."""

    @property
    def expected(self) -> int | None:
        """The number that the shard would store."""
        text = self.metadata.get("expected", "")
        return int(text) if text.isdecimal() else None


class UnknownProducer(DelayError):
    """The shard does not know this producer (unseen for a day); a new one starts at number 0."""


class NotMaster(DelayError):
    """Another node serves the shard; metadata has its endpoint and epoch."""

    retryable = True


class Busy(DelayError):
    """Too much in flight, the disk nearly full, or too many producers; nothing was stored."""

    retryable = True

    @property
    def retry_after_ms(self) -> int:
        text = self.metadata.get("retry_after_ms", "")
        return int(text) if text.isdecimal() else 0


class QuotaExceeded(DelayError):
    """Over a quota of the topic or of this user: metadata `quota`, `scope` (topic or user), `name`, `limit`, `current`.
    Nothing was stored. Waiting may not help.
    """


class RateExceeded(QuotaExceeded, Busy):
    """A quota that says when to come again: `retry_after_ms`. Senders wait for it by themselves."""


class Unavailable(DelayError):
    """The shard cannot answer now, or the answer was lost."""

    retryable = True
    in_doubt = True


class ShardDamaged(DelayError):
    """The copy that answered is damaged; another copy may serve the shard later."""

    retryable = True
    in_doubt = True


class Unreachable(Unavailable):
    """No node could be reached."""


class TlsFailed(Unreachable):
    """No node could be reached, and TLS is the reason: the message says what is wrong, and `reason` which case it is
    (docs/errors.md). Waiting does not help.
    """

    retryable = False
    in_doubt = False

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, code="UNAVAILABLE", reason=reason)


class TokenExpired(NotAuthenticated):
    """A token or certificate that was taken before is not any more: it may have expired, and its file may have a newer
    one."""

    retryable = True


class SendTimeout(DelayError):
    """The node did not acknowledge it within the producer's timeout. `maybe_stored`: it was sent and may have been
    stored.
    """

    in_doubt = True

    def __init__(self, message: str, *, maybe_stored: bool) -> None:
        super().__init__(message, code="DEADLINE_EXCEEDED", reason="SEND_TIMEOUT")
        self.maybe_stored = maybe_stored


class ScheduleChanged(DelayError):
    """A schedule that has another version than was expected, or has fired since; nothing was changed."""


class OffsetTrimmed(DelayError):
    """The queue offset that was to be read is kept no longer. metadata `start`: the first one that is."""


class Closed(DelayError):
    """The producer, consumer or cluster connection was closed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} is closed", code="CANCELLED", reason="CLOSED")


# Reasons of CODES that say more than their code does; the others go by it.
_BY_REASON: Final[dict[str, type[DelayError]]] = {
    "DELAY_TOO_LONG": DelayTooLong,
    "WRONG_TOPIC_TYPE": WrongTopicType,
    "MESSAGE_TOO_LARGE": TooLarge,
    "BATCH_TOO_LARGE": TooLarge,
    "GROUP_MISMATCH": InvalidRequest,
    "FOREIGN_HANDLE": ForeignHandle,
    "OUT_OF_ORDER": OutOfOrder,
    "UNKNOWN_PRODUCER": UnknownProducer,
    "NOT_MASTER": NotMaster,
    "DISK_FULL": Busy,
    "TOO_MANY_PRODUCERS": Busy,
    "TOO_MANY_MESSAGE_IDS": Busy,
    "BUSY": Busy,
    "QUOTA": QuotaExceeded,
    "OFFSET_TRIMMED": OffsetTrimmed,
    "SCHEDULE_CHANGED": ScheduleChanged,
    "INTERNAL": DelayError,
}

# Without a reason the answer is gRPC's own or a proxy's: UNKNOWN and INTERNAL are broken streams more often than not.
_BY_CODE: Final[dict[str, type[DelayError]]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "NOT_FOUND": NotFound,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": Unavailable,
    "CANCELLED": Unavailable,
    "ABORTED": Unavailable,
    "INTERNAL": Unavailable,
    "UNKNOWN": Unavailable,
    "DATA_LOSS": ShardDamaged,
    "UNAUTHENTICATED": NotAuthenticated,
    "PERMISSION_DENIED": NotAllowed,
}


def make_error(code: str, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> DelayError:
    """The typed error of a reason, or of a gRPC code when there is no known reason."""
    known = CODES[reason].name if reason in CODES else code
    kind = _BY_REASON.get(reason) or _BY_CODE.get(known, DelayError)
    if kind is QuotaExceeded and "retry_after_ms" in (metadata or {}):
        kind = RateExceeded
    return kind(message or reason or code, code=code, reason=reason, metadata=metadata)


def from_stream(error: Any) -> DelayError:
    """The typed error of a delay.v1.Error inside an EnqueueResponse."""
    code = code_pb2.Code.Name(error.code) if error.code in code_pb2.Code.values() else "UNKNOWN"
    return make_error(code, error.reason, error.message, error.metadata)


def from_rpc(error: grpc.RpcError) -> DelayError:
    """The typed error of a failed call."""
    code, message, info = error.code().name, error.details() or "", error_info(error)
    return make_error(code, "", message) if info is None else make_error(code, info.reason, message, info.metadata)
