"""Promises, where the simulation's interleavings hardly come."""

from __future__ import annotations

from delaynode.replicate.messages import Beacon, BeaconReply
from delaynode.replicate.promises import Promises

LEASE_MS = 3_000


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def made(node: str, number: int, clock: Clock) -> Promises:
    return Promises(node, number, lease_ms=LEASE_MS, boot_ms=clock, wall_ms=lambda: 0)


def asked(master: Promises, slave: Promises) -> BeaconReply:
    ((_, beacon),) = master.beacons()
    return slave.answer(beacon)


def test_a_late_reply_to_a_beacon_that_was_given_back_counts_for_nothing() -> None:
    clock = Clock()
    master, slave = made("n0", 1, clock), made("n1", 2, clock)
    slave.raise_floor(7, 1)
    master.lead(7, 1, ["n1"])
    late = asked(master, slave)  # on its way for two seconds
    slave.release(7, "n0", 1, 1, master.stop_asking(7))  # handed over
    clock.ms += 2_000
    master.lead(7, 1, ["n1"])  # nobody took it: taken back
    master.took(late)
    assert not master.live(7, ["n1"]), "the slave has not promised any more: it may lead at once"
    master.took(asked(master, slave))
    assert master.live(7, ["n1"])


def test_a_changed_set_of_replicas_takes_no_promise_away() -> None:
    clock = Clock()
    master, slave = made("n0", 1, clock), made("n1", 2, clock)
    slave.raise_floor(7, 1)
    master.lead(7, 1, ["n1"])
    late = asked(master, slave)
    master.lead(7, 1, ["n1", "n2"])
    master.took(late)
    assert master.live(7, ["n1"])


def test_nothing_is_promised_or_kept_of_shards_that_have_no_replica_here() -> None:
    clock = Clock()
    slave = made("n1", 2, clock)
    for number in range(3):
        beacon = Beacon("n0", 1, number, 0, tuple((uid, 9) for uid in range(1_000 * number, 1_000 * number + 1_000)))
        assert not any(promised for _, _, promised in slave.answer(beacon).shards)
        slave.release(number, "n0", 1, 9, 1)
    assert (slave._floor, slave._given, slave._released) == ({}, {}, {})
    slave.raise_floor(5, 2)
    assert slave.answer(Beacon("n0", 1, 9, 0, ((5, 2),))).shards == ((5, 2, True),)
