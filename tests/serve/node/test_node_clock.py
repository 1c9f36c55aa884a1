"""A process that has just started releases nothing by its clock before its peers could say that it is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from delayapi.units import HOUR_MS
from delaynode.clock import GuardedClock
from delaynode.node.clock_watch import ClockWatch
from delaynode.node.node_clock import FIRST_ROUND_MS, NodeClock

RIGHT_MS = 1_790_000_000_000


class Machine:
    """Its boot clock stands still until it is moved; its wall clock is off by `off_ms`."""

    def __init__(self, directory: Path, off_ms: int = 0) -> None:
        self.boot_ms, self.off_ms = 5_000, off_ms
        self.clock_skewed: list[str] = []
        watch = ClockWatch(
            str(directory), lambda event, **fields: None, steady=lambda: self.boot_ms / 1000,
            make=lambda trust: GuardedClock(self.wall_ms, self.boot, trust=trust),
        )  # fmt: skip
        self.clock = NodeClock(
            watch, ThreadPoolExecutor(1), lambda event, **fields: None, woken=lambda: None,
            clock_skewed=self.clock_skewed.append, boot=self.boot,
        )  # fmt: skip

    def boot(self) -> int:
        return self.boot_ms

    def wall_ms(self) -> int:
        return RIGHT_MS + self.boot_ms + self.off_ms

    def hear(self, peer: str) -> None:
        """A peer whose clock is right."""
        self.clock.heard(peer, RIGHT_MS + self.boot_ms, self.boot_ms, 1)

    def pass_ms(self, ms: int) -> None:
        self.boot_ms += ms
        asyncio.run(self.clock.poll())


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[int], Machine]:
    return lambda off_ms: Machine(tmp_path, off_ms)


def test_a_machine_that_boots_with_a_wrong_clock_releases_nothing_before_its_peers_have_said_so(
    machine: Callable[[int], Machine],
) -> None:
    node = machine(HOUR_MS)
    assert not node.clock.may_tick, "nobody has been heard, and it is not known who there is"
    node.clock.expect(["a", "b", "c"])
    node.pass_ms(250)
    for peer in ("a", "b", "c"):
        assert not node.clock.may_tick
        node.hear(peer)
    assert not node.clock.may_tick
    assert node.clock.skew is not None
    assert node.clock.differs_ms == HOUR_MS
    node.pass_ms(FIRST_ROUND_MS)
    assert not node.clock.may_tick


def test_a_machine_with_the_right_clock_releases_as_soon_as_its_peers_have_answered(
    machine: Callable[[int], Machine],
) -> None:
    node = machine(0)
    node.clock.expect(["a", "b"])
    node.hear("a")
    node.hear("a")
    assert not node.clock.may_tick
    node.hear("b")
    assert node.clock.may_tick


@pytest.mark.parametrize("peers", [[], ["a"]])
def test_a_node_that_no_two_peers_could_out_vote_waits_for_nobody(
    machine: Callable[[int], Machine], peers: list[str]
) -> None:
    node = machine(0)
    node.clock.expect(peers)
    assert node.clock.may_tick


def test_a_node_whose_peers_are_away_waits_for_a_second(machine: Callable[[int], Machine]) -> None:
    node = machine(0)
    node.clock.expect(["a", "b", "c"])
    node.hear("a")
    node.pass_ms(FIRST_ROUND_MS - 1)
    assert not node.clock.may_tick
    node.clock.expect(["a", "b", "c", "d"])  # the leases are read each second: that is no reason to wait again
    node.pass_ms(1)
    assert node.clock.may_tick
    node.pass_ms(10_000)
    assert node.clock.may_tick, "nor is a peer that falls silent later"


def test_the_peer_with_which_a_node_can_be_out_voted_is_listened_to_at_once(machine: Callable[[int], Machine]) -> None:
    """Not at the next look: messages are released meanwhile (seed 122815)."""
    node = machine(HOUR_MS)
    node.clock.expect(["a", "b"])
    node.hear("a")
    node.pass_ms(FIRST_ROUND_MS)
    assert node.clock.may_tick, "of two nobody can tell which is wrong"
    node.hear("b")
    assert not node.clock.may_tick
