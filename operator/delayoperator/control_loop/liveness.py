"""Which nodes live, by their leases and this observer's own monotonic clock (docs/protocol.md 4).

No two clocks are compared: a lease is dead when this observer has watched it unchanged for the whole lease time, and
was itself connected throughout. After an outage of the registry every lease is old at once, and no node is dead: each
gets its whole time again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from delayregistry.model import FIRST_VERSION, NodeLease

from delayoperator.plan import Liveness, ObservedNode

STABLE_AFTER_MS = 10_000  # a process this old has its copies open and its clients back


NEVER_CAME = ObservedNode(Liveness.DEAD, replaceable=True)


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    lease: NodeLease  # as it was when it was seen to change last
    since_ms: int  # this observer's monotonic clock: unchanged since then
    moved: bool  # seen to change: it was alive at `since_ms`
    started_ms: int  # when this process was first seen


class LeaseWatch:
    """Give it every look at the leases, and say when there was a time without one.

    lease_ms: how long a lease must stay unchanged before its node is dead.
    gone_ms: how long before it counts as gone for good.
    max_gap_ms: two looks further apart than this are a time without a look (this process was stopped, say).
    """

    def __init__(self, lease_ms: int, max_gap_ms: int, gone_ms: int = 600_000) -> None:
        self._lease_ms = lease_ms
        self._replace_after_ms = max(gone_ms, lease_ms)
        self._max_gap_ms = max_gap_ms
        self._seen: dict[str, _ObservedLease] = {}
        self._updated_ms: int | None = None
        self._absent_since_ms: dict[str, int] = {}  # nodes without a lease

    def update(
        self, leases: Iterable[NodeLease], asked_ms: int, answered_ms: int, expected: Iterable[str] = ()
    ) -> Mapping[str, ObservedNode]:
        """One view per lease, and of each `expected` node that has had none for so long that it is gone. The leases
        were asked for and answered at these monotonic times."""
        blind = self._updated_ms is None or asked_ms - self._updated_ms > self._max_gap_ms
        self._updated_ms = answered_ms
        current: dict[str, _ObservedLease] = {}
        for lease in leases:
            before = self._seen.get(lease.node)
            known = before is not None and before.lease.incarnation == lease.incarnation
            same = before is not None and known and before.lease.renewals == lease.renewals
            if before is not None and same and not blind:
                current[lease.node] = before
            else:
                moved = before is not None and not same
                started_ms = before.started_ms if before is not None and known else answered_ms
                current[lease.node] = _ObservedLease(lease, answered_ms, moved, started_ms)
        self._seen = current
        absent = {} if blind else self._absent_since_ms
        self._absent_since_ms = {node: absent.get(node, answered_ms) for node in expected if node not in current}
        views = {node: self._view(sight, asked_ms) for node, sight in current.items()}
        for node, since_ms in self._absent_since_ms.items():
            if asked_ms - since_ms >= self._replace_after_ms:
                views[node] = NEVER_CAME
        return views

    def lost_contact(self) -> None:
        """The registry did not answer, or took no write: what the leases did meanwhile is not known."""
        self._updated_ms = None

    def _view(self, sight: _ObservedLease, asked_ms: int) -> ObservedNode:
        gone = asked_ms - sight.since_ms >= self._replace_after_ms
        settled = asked_ms - sight.started_ms >= STABLE_AFTER_MS
        return ObservedNode(
            self._liveness(sight, asked_ms),
            sight.lease.incarnation,
            stopping=sight.lease.stopping,
            replaceable=gone,
            stable=settled,
            zone=sight.lease.zone,
            formats=sight.lease.formats or FIRST_VERSION,
            wire=sight.lease.wire or FIRST_VERSION,
        )

    def _liveness(self, sight: _ObservedLease, asked_ms: int) -> Liveness:
        if asked_ms - sight.since_ms >= self._lease_ms:
            return Liveness.DEAD
        return Liveness.ALIVE if sight.moved else Liveness.UNCERTAIN
