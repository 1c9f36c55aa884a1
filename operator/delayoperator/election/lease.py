"""The Lease of the election: when to take it, when to renew it, when to stop acting. Pure.

    leader   |-- renewed ---- may act for act_ms, counted from when the renewal was *sent* --|
    standby       |-- sees the renewal ---- takes over after lease_ms without another one ---------|

No two clocks are compared. The standby begins to count after the leader did and counts longer, so the leader has
stopped before the standby may begin, by lease_ms - act_ms. What a leader sent before it stopped may still arrive: every
write is conditional on the version of what it was decided from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """lease_seconds: how long a silent leader keeps the others waiting. One lost renewal does not cost the Lease."""

    lease_seconds: int = 5

    @property
    def lease_ms(self) -> int:
        return self.lease_seconds * 1_000

    @property
    def act_ms(self) -> int:
        return self.lease_seconds * 700

    @property
    def renew_ms(self) -> int:
        """Between renewals; also what one request may take."""
        return self.lease_seconds * 200


@dataclass(frozen=True, slots=True)
class ElectionLease:
    """The object as it was read. version: its resourceVersion. holder "": given up. changes: of the holder, so far."""

    version: str
    holder: str
    changes: int
    lease_ms: int


class LeaseStep(Enum):
    CREATE = "there is no Lease of the election"
    RENEW = "it is ours"
    TAKE_FREE = "its holder has given it up"
    TAKE_EXPIRED = "its holder has not renewed it in time"
    WAIT = "another process holds it"

    @property
    def takes(self) -> bool:
        return self in (LeaseStep.CREATE, LeaseStep.TAKE_FREE, LeaseStep.TAKE_EXPIRED)


def next_step(me: str, lease: ElectionLease | None, unchanged_ms: int, times: ElectionTimes) -> LeaseStep:
    """unchanged_ms: how long this process has seen the Lease at the version that it has. Its holder may have asked for
    a longer lease than ours."""
    if lease is None:
        return LeaseStep.CREATE
    if lease.holder == me:
        return LeaseStep.RENEW
    if not lease.holder:
        return LeaseStep.TAKE_FREE
    if unchanged_ms >= max(times.lease_ms, lease.lease_ms):
        return LeaseStep.TAKE_EXPIRED
    return LeaseStep.WAIT


class LeaseSight:
    """Since when the object with a Lease's version has been seen to be at it, by this process's own clock."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._since_ms = 0

    def unchanged_ms(self, version: str, now_ms: int) -> int:
        """now_ms: when the answer had come."""
        if version != self._version:
            self._version, self._since_ms = version, now_ms
        return now_ms - self._since_ms


class Tenure:
    """Whether this process may act. A tenure is one uninterrupted time as leader: acting that has lapsed, for however
    short a time and whoever held the Lease meanwhile, begins again with the next one."""

    def __init__(self, times: ElectionTimes) -> None:
        self._act_ms = times.act_ms
        self._number = 0
        self._until_ms: int | None = None

    def renewed(self, sent_ms: int, now_ms: int) -> bool:
        """The Lease is ours by a write that was sent at sent_ms. Whether a tenure begins."""
        begins = self.current(now_ms) is None
        if begins:
            self._number += 1
        self._until_ms = sent_ms + self._act_ms
        return begins

    def lost(self) -> None:
        self._until_ms = None

    def current(self, now_ms: int) -> int | None:
        """None: it must not act."""
        until_ms = self._until_ms
        return self._number if until_ms is not None and now_ms < until_ms else None
