"""The clock of most peers counts, once there are enough of them, and never on a guess."""

from __future__ import annotations

from itertools import pairwise

import pytest
from delaynode.clock import GuardedClock
from delaynode.replication.clock_agreement import ClockAgreement, ClockVerdict

BOOT, NOW = 50_000, 1_700_000_000_000


def agreement(peers: list[int], round_trip: int = 2) -> ClockAgreement:
    """Peers whose clocks are so many ms ahead of this node's, as read in the middle of the round trip."""
    made = ClockAgreement()
    for number, ahead in enumerate(peers):
        made.heard(f"n{number + 1}", NOW + ahead - round_trip // 2, BOOT, round_trip)
    return made


def judge(peers: list[int], disbelieved: int = 0, round_trip: int = 2) -> ClockVerdict:
    return agreement(peers, round_trip).judge(NOW, BOOT, disbelieved)


@pytest.mark.parametrize(
    ("peers", "skew", "clock_skewed"),
    [
        ([], None, False),
        ([0], 0, False),
        ([5_000], -5_000, False),  # one against one: nobody knows
        ([0, 0], 0, False),
        ([5_000, 0], 0, False),
        ([5_000, 5_000], -5_000, True),
        ([-5_000, -5_000], 5_000, True),
        ([-5_000, 5_000], 5_000, True),  # no two clocks agree: this one is far from both
        ([3_600_000, 1, 0], -1, False),
        ([3_600_000, 3_600_000, 0], -3_600_000, True),
        ([1_500, 1_500, 0, 0], 0, False),  # half is not most
        ([1_500, 1_500, 1_500, 0], -1_500, True),
        ([1_000, 1_000], -1_000, False),
        ([1_003, 1_003], -1_003, True),
        ([-1_003, -1_003], 1_003, True),
    ],
)
def test_a_node_is_out_voted_by_most_of_at_least_two_peers(
    peers: list[int], skew: int | None, clock_skewed: bool
) -> None:
    found = judge(peers)
    assert (found.peers, found.skew_ms, found.clock_skewed, found.may_accept) == (len(peers), skew, clock_skewed, False)


@pytest.mark.parametrize(
    ("peers", "disbelieved", "may_accept"),
    [
        ([], 5_000, False),  # alone: an operator's business
        ([5_000], 5_000, True),  # one peer confirms
        ([0], 5_000, False),
        ([5_000, 5_000], 5_000, True),
        ([5_000, 0], 5_000, False),
        ([5_000, 5_000, 0], 5_000, True),
        ([4_100, 5_900], 5_000, True),
        ([3_900, 6_100], 5_000, False),
        ([3_600_000, 3_600_000], 5_000, False),  # they are elsewhere altogether
        ([5_000, 5_000], 3_600_000, False),
        ([500, 500], 1_400, True),
        ([0, 0], 0, False),  # nothing to accept
    ],
)
def test_a_step_is_accepted_only_when_most_peers_are_there_already(
    peers: list[int], disbelieved: int, may_accept: bool
) -> None:
    assert judge(peers, disbelieved).may_accept is may_accept


@pytest.mark.parametrize(
    ("ahead", "round_trip", "clock_skewed"),
    [
        (1_300, 2, True),
        (1_300, 500, True),
        (1_300, 700, False),
        (-1_300, 500, True),
        (-1_300, 700, False),
        (900, 700, False),
        (5_000, 700, True),
    ],
)
def test_nobody_is_out_voted_by_what_may_be_the_networks_delay(ahead: int, round_trip: int, clock_skewed: bool) -> None:
    assert judge([ahead, ahead], 0, round_trip).clock_skewed is clock_skewed


@pytest.mark.parametrize(
    ("off", "round_trip", "may_accept"),
    [(700, 2, True), (700, 500, True), (700, 700, False), (-700, 500, True), (-700, 700, False)],
)
def test_no_step_is_accepted_for_what_may_be_the_networks_delay(off: int, round_trip: int, may_accept: bool) -> None:
    assert judge([5_000 + off, 5_000 + off], 5_000, round_trip).may_accept is may_accept


@pytest.mark.parametrize("late", [0, 1])
def test_the_peers_reading_may_lie_anywhere_in_the_round_trip(late: int) -> None:
    """The same clocks, 400 ms there and none back, or the other way round: both are within the bounds."""
    for ahead, clock_skewed in ((0, False), (1_500, True)):
        made = ClockAgreement()
        for peer in ("n1", "n2"):
            made.heard(peer, NOW + ahead - (400 if late else 0), BOOT, 400)
        assert made.judge(NOW, BOOT).clock_skewed is clock_skewed


def test_replies_that_took_too_long_say_nothing() -> None:
    made = agreement([0, 0])
    for peer in ("n1", "n2"):
        made.heard(peer, NOW + 9_000, BOOT, 1_001)
        made.heard(peer, NOW + 9_000, BOOT, -1)
    assert made.judge(NOW, BOOT).skew_ms == 0


def test_peers_that_were_not_heard_for_five_seconds_do_not_count() -> None:
    made = agreement([9_000, 9_000])
    assert made.judge(NOW + 5_000, BOOT + 5_000).clock_skewed
    made.heard("n2", NOW + 9_000, BOOT + 5_000, 2)
    late = made.judge(NOW + 5_001, BOOT + 5_001)
    assert (late.peers, late.clock_skewed) == (1, False)
    assert made.judge(NOW + 10_001, BOOT + 10_001).peers == 0


def test_a_peers_last_word_counts() -> None:
    made = agreement([9_000, 9_000])
    for peer in ("n1", "n2"):
        made.heard(peer, NOW + 100, BOOT + 100, 0)
    assert made.judge(NOW + 100, BOOT + 100) == ClockVerdict(
        2, 0, False, False, "0 of 2 peers are more than 1000 ms away, the median +0 s"
    )


def test_a_step_of_this_nodes_own_time_is_seen_at_once() -> None:
    made = agreement([0, 0])
    assert made.judge(NOW - 30_000 + 10, BOOT + 10).clock_skewed  # set back, and no reply has come since
    assert not made.judge(NOW + 20, BOOT + 20).clock_skewed


def test_machines_that_are_all_set_ahead_come_to_believe_it_one_after_the_other() -> None:
    """The machines act as with heartbeats: each tells its wall clock as it stands, judges, and accepts when it may."""
    boot, ahead = [BOOT], [0, 0, 0]
    clocks = [GuardedClock(lambda n=n: NOW + boot[0] - BOOT + ahead[n], lambda: boot[0]) for n in range(3)]  # type: ignore[misc]
    judges = [ClockAgreement() for _ in clocks]
    accepted: list[tuple[int, ...]] = []
    for round_number in range(8):
        boot[0] += 300
        ahead[: round_number // 2] = [7_000] * min(3, round_number // 2)  # the time service reaches one after the other
        for n, clock in enumerate(clocks):
            for m in {0, 1, 2} - {n}:
                judges[n].heard(f"n{m}", NOW + boot[0] - BOOT + ahead[m], boot[0], 1)
            believed = clock.now_ms()
            if judges[n].judge(believed, boot[0], clock.disbelieved_ms).may_accept:
                clock.accept()
        accepted.append(tuple(clock.now_ms() - (NOW + boot[0] - BOOT) for clock in clocks))
    assert accepted[:6] == [(0, 0, 0)] * 6, "while one peer of two is elsewhere, nothing is accepted"
    assert accepted[-1] == (7_000, 7_000, 7_000)
    assert all(after >= before for before, after in pairwise(accepted))
