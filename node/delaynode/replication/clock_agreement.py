"""Whether the nodes' clocks agree, as their heartbeats tell (docs/protocol.md, "Time").

No single clock is the right one; what most of them say is taken to be. A peer's clock is known to within half a round
trip:

    its wall clock, when its reply came  =  what the reply says + round trip / 2  +- round trip / 2

and kept relative to this node's boot clock, which nobody sets, so that it stays true when this node's own time is.
Peers are to tell their wall clocks as they stand, believed or not: were it what they believe, a step that all machines
made together would be disbelieved by each because of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

from delaynode.clock import MAX_CLOCK_SKEW_MS

FRESH_MS = 5_000
MIN_PEERS = 2  # peers: with one, nobody can tell which of the two is wrong


@dataclass(frozen=True, slots=True)
class PeerClock:
    """A peer's wall clock minus this node's boot clock lies in [low_ms, high_ms]; heard at boot time `at_ms`."""

    low_ms: int
    high_ms: int
    at_ms: int

    @property
    def middle_ms(self) -> int:
        return (self.low_ms + self.high_ms) // 2


@dataclass(frozen=True, slots=True)
class ClockVerdict:
    """What follows from the peers' clocks now.

    peers: how many were heard lately. skew_ms: what this node believes minus the median of them; None without any.
    clock_skewed: it must neither tick nor be chosen. may_accept: the step that is not believed is most peers' time too.
    """

    peers: int
    skew_ms: int | None
    clock_skewed: bool
    may_accept: bool
    reason: str


class ClockAgreement:
    """Fed by heartbeat replies; all times in ms. Not safe to use from several threads."""

    def __init__(self, max_skew_ms: int = MAX_CLOCK_SKEW_MS, fresh_ms: int = FRESH_MS) -> None:
        self._max_skew_ms = max_skew_ms
        self._fresh_ms = fresh_ms
        self._heard: dict[str, PeerClock] = {}

    def heard(self, peer: str, wall_ms: int, boot_ms: int, round_trip_ms: int) -> bool:
        """A reply that says `wall_ms` came at `boot_ms`, `round_trip_ms` after what it replies to was sent. Whether one
        peer more is known now."""
        if not 0 <= round_trip_ms <= self._max_skew_ms:
            return False  # too slow to say anything; the peer's next one will be quicker
        low, known = wall_ms - boot_ms, len(self._heard)
        self._heard[peer] = PeerClock(low, low + round_trip_ms, boot_ms)
        return len(self._heard) > known

    def judge(self, accepted_ms: int, boot_ms: int, disbelieved_ms: int = 0) -> ClockVerdict:
        """accepted_ms: this node's time now; disbelieved_ms: how far ahead of it its wall clock is."""
        for peer in [peer for peer, heard in self._heard.items() if boot_ms - heard.at_ms > self._fresh_ms]:
            del self._heard[peer]
        heard = list(self._heard.values())
        if not heard:
            return ClockVerdict(0, None, False, False, "no peer was heard")
        own = accepted_ms - boot_ms
        far = sum(self._is_far(one, own) for one in heard)
        near_step = sum(self._is_near(one, own + disbelieved_ms) for one in heard)
        skew = own - median_low(one.middle_ms for one in heard)
        clock_skewed = len(heard) >= MIN_PEERS and far * 2 > len(heard)
        may_accept = disbelieved_ms > 0 and near_step * 2 > len(heard)
        # Whole seconds: it is told to people in a condition, which is not to be written again with each look.
        median = f"the median {round(-skew / 1000):+} s"
        reason = f"{far} of {len(heard)} peers are more than {self._max_skew_ms} ms away, {median}"
        return ClockVerdict(len(heard), skew, clock_skewed, may_accept, reason)

    def _is_far(self, heard: PeerClock, own_ms: int) -> bool:
        return own_ms < heard.low_ms - self._max_skew_ms or own_ms > heard.high_ms + self._max_skew_ms

    def _is_near(self, heard: PeerClock, own_ms: int) -> bool:
        return heard.high_ms - self._max_skew_ms <= own_ms <= heard.low_ms + self._max_skew_ms
