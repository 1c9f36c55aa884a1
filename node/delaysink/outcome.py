"""What became of one attempt to deliver a message. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final

from delayapi.reasons import shortened

MAX_RETRY_AFTER_MS: Final = 3_600_000
FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS = 1_000, 300_000  # a group's, as the node has it
OVERLOADED_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})
GONE_STATUS: Final = 410


class Verdict(StrEnum):
    DELIVERED = "delivered"
    REJECTED = "rejected"  # an answer that is about this message, perhaps: it is tried again
    FAILED = "failed"  # no answer, or an error of the receiver's: tried again, and the circuit counts it
    OVERLOADED = "overloaded"  # likewise, and fewer are sent at once
    GONE = "gone"  # the receiver wants no more, ever
    IMPOSSIBLE = "impossible"  # this message can't be sent, whenever it is tried


@dataclass(frozen=True, slots=True)
class Attempt:
    """status: of the answer; 0: there was none. answer: its first bytes. says: for people."""

    verdict: Verdict
    says: str
    status: int = 0
    answer: bytes = b""
    retry_after_ms: int | None = None

    @property
    def reason(self) -> str:
        """What a dead letter of the group is told to have died of."""
        answer = self.answer.decode("utf-8", "replace")
        return shortened(f"{self.says}: {answer}" if answer else self.says)


def judge(status: int) -> Verdict:
    """What an HTTP status means for the message."""
    if 200 <= status < 300:
        return Verdict.DELIVERED
    if status == GONE_STATUS:
        return Verdict.GONE
    if status in OVERLOADED_STATUSES:
        return Verdict.OVERLOADED
    return Verdict.FAILED if status >= 500 else Verdict.REJECTED


def parse_retry_after_ms(text: str | None, now_ms: int) -> int | None:
    """Of the header: seconds, or a date; at most MAX_RETRY_AFTER_MS. None: it is missing or is neither."""
    if text is None or len(text) > 64:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(int(text) * 1_000, MAX_RETRY_AFTER_MS)
    try:
        when = parsedate_to_datetime(text)
        at_ms = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError, TypeError):
        return None
    return min(max(0, at_ms - now_ms), MAX_RETRY_AFTER_MS)


def backoff_ms(attempt: int, retry_after_ms: int | None) -> int:
    """Until the next attempt. -1: the group's own backoff. A longer Retry-After wins."""
    if retry_after_ms is None:
        return -1
    return max(retry_after_ms, min(FIRST_BACKOFF_MS << min(attempt - 1, 20), LONGEST_BACKOFF_MS))
