"""NodeClock: the node's clock against its own past and against its peers' clocks, looked at a few times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor

from delaynode.clock import boot_ms
from delaynode.node.clock_watch import ClockWatch
from delaynode.replication.clock_agreement import MIN_PEERS, ClockAgreement

SKEW_SECONDS = 2.0  # out-voted for so long, a master gives its shards away
FIRST_ROUND_MS = 1_000  # in which peers that live have answered a process that has just started


class NodeClock:
    """Owned by the event loop. woken: called when time has jumped; clock_skewed: with the reason, after
    SKEW_SECONDS.
    """

    def __init__(
        self,
        watch: ClockWatch,
        pool: Executor,
        log: Callable[..., None],
        *,
        woken: Callable[[], None],
        clock_skewed: Callable[[str], None],
        boot: Callable[[], int] = boot_ms,
    ) -> None:
        self.clock = watch.clock
        self.skew: str | None = None  # what most peers' clocks say of this node's, where they differ
        self.differs_ms = 0  # by how much, then
        self._watch, self._pool, self._log = watch, pool, log
        self._on_jump, self._clock_skewed, self._boot_ms = woken, clock_skewed, boot
        self._agreement = ClockAgreement()
        self._skewed_since = 0.0
        self._first_round = True  # not all peers have said what time it is
        self._expected = 0
        self._first_round_ends_ms: int | None = None  # boot clock; None until it is known who the peers are

    def expect(self, peers: Collection[str]) -> None:
        """The leases name these other nodes, whose clocks are going to be heard."""
        if self._first_round_ends_ms is None:
            self._expected = len(peers)
            enough = len(peers) >= MIN_PEERS  # fewer could not out-vote this node
            self._first_round_ends_ms = self._boot_ms() + FIRST_ROUND_MS * enough
            self._compare()

    def heard(self, peer: str, wall_ms: int, boot_ms: int, round_trip_ms: int) -> None:
        """What a peer's clock showed. Judged at once where it is one peer more: with it this node may be out-voted, and
        until then messages are released by its clock."""
        more = self._agreement.heard(peer, wall_ms, boot_ms, round_trip_ms)
        if more or self._first_round:
            self._compare()

    @property
    def may_tick(self) -> bool:
        """Whether messages may be released by this node's clock: not before peers could say that it is wrong.

        A machine may boot with any time. The wait is bounded, so that a node starts whose peers are all away.
        """
        return self.skew is None and not self._first_round

    async def poll(self) -> None:
        self._compare()
        if self._watch.poll():
            self._on_jump()
        if self._watch.changed:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._watch.save)

    def _compare(self) -> None:
        """Most peers' clocks are right: believe a step that they have made too, stop releasing where they differ."""
        found = self._agreement.judge(self.clock.now_ms(), self._boot_ms(), self.clock.disbelieved_ms)
        if found.may_accept:
            self._log("clock-agreed", reason=found.reason)
            self._watch.accept()
        ends_ms = self._first_round_ends_ms
        if ends_ms is not None and (found.peers >= self._expected or self._boot_ms() >= ends_ms):
            self._first_round = False
        if not found.clock_skewed:
            self.skew, self.differs_ms = None, 0
            return
        now = time.monotonic()
        if self.skew is None:
            self._skewed_since = now
            self._log("clock-out-voted", reason=found.reason)
        self.skew, self.differs_ms = found.reason, abs(found.skew_ms or 0)
        if now - self._skewed_since > SKEW_SECONDS:
            self._clock_skewed(found.reason)

    def accept(self) -> int:
        """Believe the wall clock; returns by how many ms time moves ahead."""
        return self._watch.accept()

    def ineligible(self) -> str | None:
        """Why no master should be chosen here; None when one may be.

        A step of the wall clock that is not believed is no reason: the node goes on by its boot clock, as a master does
        that was chosen before the step.
        """
        return f"its clock differs: {self.skew}" if self.skew is not None else None
