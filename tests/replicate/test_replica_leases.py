"""Promises, where the simulation's interleavings hardly come."""

from __future__ import annotations

import random

import pytest
from delaynode.node import lease_file
from delaynode.replication.protocol import Heartbeat, HeartbeatReply, decode_heartbeat, encode_heartbeat
from delaynode.replication.replica_lease import ReplicaLeases

from tests.store.support.memory_files import MemoryFiles

LEASE_MS = 3_000


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def made(node: str, number: int, clock: Clock, lease_ms: int = LEASE_MS, former_lease_ms: int = 0) -> ReplicaLeases:
    return ReplicaLeases(
        node, number, lease_ms=lease_ms, former_lease_ms=former_lease_ms, boot_ms=clock, wall_ms=lambda: 0
    )


def asked(master: ReplicaLeases, slave: ReplicaLeases) -> HeartbeatReply:
    ((_, heartbeat),) = master.heartbeats()
    return slave.answer(heartbeat)


def test_a_late_reply_to_a_heartbeat_that_was_given_back_counts_for_nothing() -> None:
    clock = Clock()
    master, slave = made("n0", 1, clock), made("n1", 2, clock)
    slave.raise_min_epoch(7, 1)
    master.lead(7, 1, ["n1"])
    late = asked(master, slave)  # on its way for two seconds
    slave.release(7, "n0", 1, 1, master.stop_requesting(7))  # handed over
    clock.ms += 2_000
    master.lead(7, 1, ["n1"])  # nobody took it: taken back
    master.on_reply(late)
    assert not master.live(7, ["n1"]), "the slave has not promised any more: it may lead at once"
    master.on_reply(asked(master, slave))
    assert master.live(7, ["n1"])


def test_a_changed_set_of_replicas_takes_no_lease_away() -> None:
    clock = Clock()
    master, slave = made("n0", 1, clock), made("n1", 2, clock)
    slave.raise_min_epoch(7, 1)
    master.lead(7, 1, ["n1"])
    late = asked(master, slave)
    master.lead(7, 1, ["n1", "n2"])
    master.on_reply(late)
    assert master.live(7, ["n1"])


def test_nothing_is_promised_or_kept_of_shards_that_have_no_replica_here() -> None:
    clock = Clock()
    slave = made("n1", 2, clock)
    for number in range(3):
        heartbeat = Heartbeat(
            "n0", 1, number, 0, tuple((uid, 9) for uid in range(1_000 * number, 1_000 * number + 1_000))
        )
        assert not any(promised for _, _, promised in slave.answer(heartbeat).shards)
        slave.release(number, "n0", 1, 9, 1)
    assert (slave._min_epochs, slave._granted, slave._released) == ({}, {}, {})
    slave.raise_min_epoch(5, 2)
    assert slave.answer(Heartbeat("n0", 1, 9, 0, ((5, 2),))).shards == ((5, 2, True),)


@pytest.mark.parametrize(("of_master", "of_slave"), [(3_000, 1_000), (1_000, 3_000)])
def test_a_lease_that_was_changed_between_two_starts_makes_no_two_masters(of_master: int, of_slave: int) -> None:
    clock = Clock()
    master, slave = made("n0", 1, clock, of_master), made("n1", 2, clock, of_slave)
    slave.raise_min_epoch(7, 1)
    clock.ms += 10_000  # the slave's own start is over
    master.lead(7, 1, ["n1"])
    master.on_reply(asked(master, slave))
    assert master.live(7, ["n1"])
    while slave.wait_ms(7):
        clock.ms += 10
    assert not master.live(7, ["n1"])


def test_a_new_process_keeps_what_one_with_a_longer_lease_has_promised() -> None:
    clock = Clock()
    master, slave = made("n0", 1, clock), made("n1", 2, clock)
    slave.raise_min_epoch(7, 1)
    master.lead(7, 1, ["n1"])
    master.on_reply(asked(master, slave))
    clock.ms += 10
    again = made("n1", 3, clock, lease_ms=500, former_lease_ms=LEASE_MS)
    while again.wait_ms(7):
        clock.ms += 10
    assert not master.live(7, ["n1"])


def test_the_longest_lease_is_remembered_until_it_is_over() -> None:
    files = MemoryFiles(random.Random(1))
    assert lease_file.adopt(files, "data", 3_000) == 0
    assert lease_file.adopt(files, "data", 1_000) == 3_000
    assert lease_file.adopt(files, "data", 500) == 3_000, "the one between may not have outlasted it"
    lease_file.write(files, "data", 500)
    assert lease_file.adopt(files, "data", 700) == 500
    assert lease_file.adopt(files, "data", 700) == 700
    files.replace("data/lease", b"{rubbish")
    assert lease_file.adopt(files, "data", 700) == lease_file.MAX_LEASE_MS


def test_no_flipped_bit_makes_a_former_lease_shorter() -> None:
    files = MemoryFiles(random.Random(1))
    lease_file.write(files, "data", 3_000)
    for bit in range(8 * files.size("data/lease")):
        flipped = files.copy()
        flipped.flip("data/lease", bit)
        assert lease_file.adopt(flipped, "data", 700) in (3_000, lease_file.MAX_LEASE_MS), f"bit {bit}"
    files.replace("data/lease", b'{"leaseMs": 3000}')
    assert lease_file.adopt(files, "data", 700) == 3_000, "as an older release wrote it"


@pytest.mark.parametrize(
    ("incarnation", "epoch", "heartbeat"),
    [
        (1, 1, 50),  # of the node's process before, whose epoch it was: it came late
        (1, 2, 50),
        (3, 1, 50),  # of an earlier epoch
        (3, 2, 49),  # of an earlier heartbeat
    ],
)
def test_a_release_gives_back_its_own_lease_only(incarnation: int, epoch: int, heartbeat: int) -> None:
    clock = Clock()
    slave = made("n1", 2, clock)
    slave.raise_min_epoch(7, 1)
    clock.ms += LEASE_MS  # what an earlier process may have promised is over
    assert slave.answer(Heartbeat("n0", 1, 40, 0, ((7, 1),))).shards == ((7, 1, True),)
    slave.raise_min_epoch(7, 2)
    assert slave.answer(Heartbeat("n0", 3, 50, 0, ((7, 2),))).shards == ((7, 2, True),)  # to the successor, same node
    slave.release(7, "n0", incarnation, epoch, heartbeat)
    assert slave.wait_ms(7) == LEASE_MS, "the process that serves now counts on its lease"
    slave.release(7, "n0", 3, 2, 50)
    assert slave.wait_ms(7) == 0


def test_a_heartbeat_alone_raises_no_floor() -> None:
    """55 bytes from anybody once shut a shard's masters out until its slaves' processes had ended."""
    clock = Clock()
    master, slave = made("m", 9, clock), made("s", 7, clock)
    deposed: list[int] = []
    ahead: list[int] = []
    master.on_higher = lambda uid, epoch: deposed.append(epoch)
    slave.on_ahead = ahead.append
    slave.raise_min_epoch(7, 5)
    master.lead(7, 5, ["s"])
    forged = encode_heartbeat(Heartbeat("anybody", 1, 1, 0, ((7, 2**32 - 1),)))
    assert len(forged) == 55
    for _ in range(10):
        decoded = decode_heartbeat(forged)
        assert isinstance(decoded, Heartbeat)
        assert slave.answer(decoded).shards == ((7, 5, False),)
    assert (ahead, slave.min_epoch(7)) == ([7], 5), "the registry is asked, once"
    master.on_reply(asked(master, slave))
    assert (master.live(7, ["s"]), deposed) == (True, [])
    clock.ms += LEASE_MS
    master.on_reply(asked(master, slave))
    assert (master.live(7, ["s"]), deposed) == (True, [])


def test_a_heartbeat_of_a_new_epoch_is_promised_to_once_that_is_known() -> None:
    clock = Clock()
    master, slave = made("m", 9, clock), made("s", 7, clock)
    slave.raise_min_epoch(7, 5)
    master.lead(7, 6, ["s"])
    master.on_reply(asked(master, slave))
    assert not master.live(7, ["s"])
    slave.raise_min_epoch(7, 6)  # the registry agrees, or the master's FOLLOW has come
    master.on_reply(asked(master, slave))
    assert master.live(7, ["s"])
