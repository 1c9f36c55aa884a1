"""A heartbeat counts when the node in whose name it speaks has made it, for this one, lately, and once."""

from __future__ import annotations

import pytest
from delaynode.replication import heartbeat_guard
from delaynode.replication.heartbeat_guard import (
    KEYS_A_PROCESS,
    WINDOW,
    HeartbeatGuard,
    HeartbeatKey,
    NoKey,
    Opened,
    Unauthenticated,
)
from delaynode.replication.protocol import BadMessage, Heartbeat, HeartbeatReply, encode_heartbeat

FRESH_MS = 1_000
PROCESS = {name: f"{number:016x}" for number, name in enumerate(("n0", "n1", "n2"), 1)}


class Clock:
    def __init__(self) -> None:
        self.ms = 500_000

    def __call__(self) -> int:
        return self.ms


class Two:
    """n0 asks n1."""

    def __init__(self, *, must: bool = True) -> None:
        self.clock, self.asked_clock = Clock(), Clock()
        self.asked_clock.ms = 7  # a machine that has just started
        self.asker = self.guard("n0", self.clock, must)
        self.asked = self.guard("n1", self.asked_clock, must)
        self.number = 0
        self.key = self.agree()

    @staticmethod
    def guard(node: str, clock: Clock, must: bool = True) -> HeartbeatGuard:
        return HeartbeatGuard(node, PROCESS[node], clock, FRESH_MS, lambda _: must, required=must)

    def agree(self) -> HeartbeatKey:
        key = HeartbeatKey.new()
        self.asked.answer_by("c", "n0", PROCESS["n0"], key)
        self.asker.ask_by("c", "n1", PROCESS["n1"], key)
        return key

    def heartbeat(self, number: int = 0) -> bytes:
        self.number = number or self.number + 1
        return self.asker.seal("n1", Heartbeat("n0", 1, self.number, 0, ((7, 1),)))

    def reply(self, opened: Opened) -> bytes:
        return self.asked.seal_reply(opened, HeartbeatReply("n1", 1, opened.message.heartbeat_id, 0, 3_000, ()))

    def turn(self) -> bool:
        """A heartbeat goes there and its reply comes back. Whether leases may be granted for it."""
        opened = self.asked.open(self.heartbeat())
        assert self.asker.open(self.reply(opened)).again is not opened.fresh
        return opened.fresh


def refused(guard: HeartbeatGuard, data: bytes, why: str | None = None) -> None:
    with pytest.raises((Unauthenticated, BadMessage), match=why):
        guard.open(data)


def test_leases_are_granted_from_the_second_heartbeat_on() -> None:
    two = Two()
    assert [two.turn() for _ in range(4)] == [False, True, True, True]


def test_a_heartbeat_that_was_held_back_is_answered_but_binds_nobody() -> None:
    two = Two()
    two.turn()
    early = two.heartbeat()
    two.asked_clock.ms += FRESH_MS
    assert two.asked.open(two.heartbeat()).fresh, "at the last moment"
    two.asked_clock.ms += 1
    assert not two.asked.open(early).fresh
    assert [two.turn(), two.turn()] == [False, True]


def test_no_flipped_bit_is_taken() -> None:
    two = Two()
    two.turn()
    for data, guard in ((two.heartbeat(), two.asked), (two.reply(two.asked.open(two.heartbeat())), two.asker)):
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            refused(guard, bytes(flipped))
        for size in range(len(data)):
            refused(guard, data[:size])
        guard.open(data)


def test_each_counts_once_in_any_order_within_the_window() -> None:
    two = Two()
    data = {number: two.heartbeat(number) for number in (1, 5, 3, 4, WINDOW + 4, 2)}
    for number in (1, 5, 3, 4):
        two.asked.open(data[number])
    for number in (1, 5, 3, 4):
        refused(two.asked, data[number], "came before")
    two.asked.open(data[WINDOW + 4])
    refused(two.asked, data[2], "came before, or far too late")
    refused(two.asked, data[WINDOW + 4], "came before")
    two.asked.open(two.heartbeat(10 * WINDOW))
    refused(two.asked, data[WINDOW + 4], "came before")


def test_it_comes_back_to_nobody_and_is_for_no_other_node() -> None:
    two, third = Two(), Two.guard("n2", Clock())
    heartbeat = two.heartbeat()
    reply = two.reply(two.asked.open(heartbeat))
    refused(two.asker, heartbeat, "not that of key")
    refused(two.asked, reply, "not that of key")
    refused(third, heartbeat, "not known here")
    third.answer_by("c", "n0", PROCESS["n0"], two.key)  # though it had the key
    refused(third, heartbeat, "not that of key")


@pytest.mark.parametrize("what", ["cluster", "asker's process", "asked one's process"])
def test_the_seal_is_of_these_two_processes_of_this_cluster(what: str) -> None:
    two, clock = Two(), Clock()
    key = HeartbeatKey.new()
    two.asker.ask_by("c", "n1", PROCESS["n1"], key)
    process = "f" * 16 if what == "asked one's process" else PROCESS["n1"]
    other = HeartbeatGuard("n1", process, clock, FRESH_MS, lambda _: True, required=True)
    asker = "f" * 16 if what == "asker's process" else PROCESS["n0"]
    other.answer_by("d" if what == "cluster" else "c", "n0", asker, key)
    refused(other, two.heartbeat(), "not that of key")


def test_a_node_that_has_the_key_speaks_in_no_other_name() -> None:
    two = Two()
    refused(two.asked, two.asker.seal("n1", Heartbeat("n2", 1, 1, 0, ())), "of n0, process .* was due")
    refused(two.asked, two.asker.seal("n1", Heartbeat("n0", 2, 1, 0, ())), "of n0, process .* was due")
    opened = two.asked.open(two.heartbeat())
    refused(two.asker, two.asked.seal_reply(opened, HeartbeatReply("n2", 1, 1, 0, 3_000, ())), "reply of n1 was due")


def test_what_was_recorded_before_a_restart_of_either_end_counts_for_nothing() -> None:
    before, after = Two(), Two()
    data = before.heartbeat()
    reply = before.reply(before.asked.open(data))
    refused(after.asked, data, "not known here")
    refused(after.asker, reply, "not known here")


def test_the_key_before_the_newest_is_good_for_what_is_on_its_way() -> None:
    two = Two()
    old = [two.heartbeat()]
    for _ in range(KEYS_A_PROCESS):
        two.agree()
        old.append(two.heartbeat())
    refused(two.asked, old[0], "not known here")
    for data in old[1:]:
        two.asked.open(data)
    assert len(two.asked._by_id) == len(two.asker._by_id) == KEYS_A_PROCESS


def test_a_former_process_takes_no_key_away_from_its_successor() -> None:
    two = Two()
    for _ in range(5):
        two.asked.answer_by("c", "n0", "f" * 16, HeartbeatKey.new())
    two.asked.open(two.heartbeat())


def test_keys_are_kept_of_so_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_guard, "MAX_PROCESSES", 10)
    two = Two()
    for number in range(100):
        two.asker.ask_by("c", f"m{number}", "0" * 16, HeartbeatKey.new())
    assert len(two.asker._by_id) == len(two.asker._asking) == len(two.asker._kept) == 10
    with pytest.raises(NoKey):
        two.heartbeat()


def test_without_a_seal_it_counts_only_where_it_may() -> None:
    plain = encode_heartbeat(Heartbeat("n0", 1, 1, 0, ()))
    reply = encode_heartbeat(HeartbeatReply("n0", 1, 1, 0, 3_000, ()))
    strict, lax = Two.guard("n1", Clock()), Two.guard("n1", Clock(), must=False)
    for data in (plain, reply):
        refused(strict, data, "of n0 without a seal")
        opened = lax.open(data)
        assert (opened.fresh, opened.session) == (True, None)
    assert lax.seal("n0", Heartbeat("n1", 2, 1, 0, ())) == encode_heartbeat(Heartbeat("n1", 2, 1, 0, ()))
    with pytest.raises(NoKey):
        strict.seal("n0", Heartbeat("n1", 2, 1, 0, ()))


def test_a_node_that_was_restarted_without_tls_hears_heartbeats_without_a_seal() -> None:
    """The key of the process before it is known to nobody there: its heartbeats would never be answered."""
    two, offers = Two(), True
    two.asker = HeartbeatGuard("n0", PROCESS["n0"], two.clock, FRESH_MS, lambda _: offers)
    two.key = two.agree()
    assert two.asked.open(two.heartbeat()).session is not None
    offers = False  # says its lease now
    assert HeartbeatGuard("n1", "f" * 16, two.asked_clock, FRESH_MS).open(two.heartbeat()).fresh


def test_no_secret_is_shown() -> None:
    key = HeartbeatKey.new()
    assert HeartbeatKey.decode(key.encode()) == key
    assert key.secret.hex() not in repr(key)
    for wrong in (key.encode()[:-2], key.encode() + "00", "no hex"):
        with pytest.raises(ValueError):
            HeartbeatKey.decode(wrong)
