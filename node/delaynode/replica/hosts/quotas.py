"""Quotas: what a topic's shard, or a user at a node, may have or take. Pure: time and what is there are passed in.

A rate is a token bucket that may go below zero by one request: a request is taken while nothing is owed, whatever its
size, and the next one waits until its tokens have come. So in any t seconds at most rate x (t + BURST_S) messages and
one request more are taken, no request is too large for ever, and how long to wait is known to the ms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delayregistry.model import TopicQuotas

from delaynode.store.errors import Refused

BURST_S = 1  # what an unused rate may give at once
WHOLE = 1_000  # parts of a token: a rate per second is as many parts per ms


@dataclass(frozen=True, slots=True)
class QuotaLabel:
    """Which quota it is. topic, principal: the one it is of, the other is empty."""

    quota: str
    topic: str = ""
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What requests take."""

    messages: int
    record_bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.messages + other.messages, self.record_bytes + other.record_bytes)


NOTHING = Cost(0, 0)


class Quota(ABC):
    """of: the shard or user, for messages. of_bytes: it counts records' bytes, else messages."""

    def __init__(self, label: QuotaLabel, of: str, limit: int, *, of_bytes: bool) -> None:
        self.label, self._of, self._limit, self._of_bytes = label, of, limit, of_bytes
        self._unit = "bytes" if of_bytes else "messages"

    def _amount(self, cost: Cost) -> int:
        return cost.record_bytes if self._of_bytes else cost.messages

    @abstractmethod
    def refusal(self, before: Cost, cost: Cost, now_ms: int) -> Refused | None:
        """Why a request may not be taken after others of `before` that are not counted yet; None: it may."""

    def ready_ms(self, now_ms: int) -> int:
        """From when on what adds nothing to what is pending is taken, ms."""
        return now_ms

    def take(self, cost: Cost, now_ms: int) -> None:  # noqa: B027  # what is pending is counted by the shard
        """The requests are taken."""

    def give_back(self, cost: Cost) -> None:  # noqa: B027
        """They were not stored after all."""

    def _refused(self, text: str, current: int, **more: object) -> Refused:
        label = self.label
        scope = "topic" if label.topic else "user"
        return Refused(
            "QUOTA", f"{self._of} {text} (quota {label.quota})", quota=label.quota, scope=scope,
            name=label.topic or label.principal, limit=self._limit, current=current, **more,
        )  # fmt: skip


class PendingQuota(Quota):
    """present: of the shard, taken but not yet released, those that are on their way into its log included."""

    def __init__(
        self, label: QuotaLabel, of: str, limit: int, present: Callable[[], int], *, of_bytes: bool = False
    ) -> None:
        super().__init__(label, of, limit, of_bytes=of_bytes)
        self._present = present

    def refusal(self, before: Cost, cost: Cost, now_ms: int) -> Refused | None:
        current, more = self._present() + self._amount(before), self._amount(cost)
        if current + more <= self._limit:
            return None
        return self._refused(
            f"may have {self._limit:,} {self._unit} pending and has {current:,}, the request brings {more:,}", current
        )


class RateQuota(Quota):
    """limit: a second. Begins without a burst: a restart is no way round it."""

    def __init__(self, label: QuotaLabel, of: str, limit: int, *, of_bytes: bool = False) -> None:
        super().__init__(label, of, limit, of_bytes=of_bytes)
        self._balance = 0  # parts
        self._at_ms: int | None = None  # until it is first asked

    def _refill(self, now_ms: int) -> None:
        if self._at_ms is None:
            self._at_ms = now_ms
        elif now_ms > self._at_ms:
            earned = self._limit * (now_ms - self._at_ms)
            self._balance = min(self._balance + earned, self._limit * BURST_S * WHOLE)
            self._at_ms = now_ms

    def refusal(self, before: Cost, cost: Cost, now_ms: int) -> Refused | None:
        self._refill(now_ms)
        owed = self._amount(before) * WHOLE - self._balance
        if owed <= 0:
            return None
        wait_ms, ahead = -(-owed // self._limit), -(-owed // WHOLE)
        return self._refused(
            f"may take {self._limit:,} {self._unit} a second and is {ahead:,} ahead; retry in {wait_ms:,} ms",
            ahead, retry_after_ms=wait_ms,
        )  # fmt: skip

    def ready_ms(self, now_ms: int) -> int:
        self._refill(now_ms)
        return now_ms + max(0, -(self._balance // self._limit))

    def take(self, cost: Cost, now_ms: int) -> None:
        self._refill(now_ms)
        self._balance -= self._amount(cost) * WHOLE

    def give_back(self, cost: Cost) -> None:
        self._balance += self._amount(cost) * WHOLE


def shard_quotas(
    topic: str, queue: int, share: TopicQuotas, pending: Callable[[], int], pending_bytes: Callable[[], int],
) -> tuple[Quota, ...]:  # fmt: skip
    """A shard's. share: its part of the topic's."""
    of, found = f"queue {queue} of topic {topic!r}, by its part of the topic's quota,", list[Quota]()
    if share.pending_messages is not None:
        label = QuotaLabel("pendingMessages", topic)
        found.append(PendingQuota(label, of, share.pending_messages, pending))
    if share.pending_bytes is not None:
        label = QuotaLabel("pendingBytes", topic)
        found.append(PendingQuota(label, of, share.pending_bytes, pending_bytes, of_bytes=True))
    if share.enqueue_per_second is not None:
        label = QuotaLabel("enqueuePerSecond", topic)
        found.append(RateQuota(label, of, share.enqueue_per_second))
    return tuple(found)


def admit(
    quotas: Sequence[Quota], costs: Sequence[Cost], stored: Sequence[bool], now_ms: int
) -> tuple[list[bool], Refused | None]:
    """Which of these requests, in order, are taken, and why the others are not. stored: those that are retries of what
    is stored already, which are always taken and cost nothing. After the first that is refused no other is taken: it
    may be of the same producer. The quotas have been told of what is taken.
    """
    taken, total, refused = [], NOTHING, None
    for cost, again in zip(costs, stored, strict=True):
        if again:
            taken.append(True)
            continue
        if refused is None:
            found = (refusal for quota in quotas if (refusal := quota.refusal(total, cost, now_ms)) is not None)
            refused = next(found, None)
        taken.append(refused is None)
        if refused is None:
            total += cost
    for quota in quotas:
        quota.take(total, now_ms)
    return taken, refused
