"""The watcher declares a node dead by its own clock alone, and only while it could see the leases (attack A4)."""

from __future__ import annotations

import pytest
from delayoperator.control_loop.liveness import LeaseWatch
from delayoperator.control_loop.loop import PROBE_MS
from delayoperator.kube.shards import REFRESH_MS
from delayoperator.plan import Liveness, ObservedNode
from delayregistry.model import MIN_LEASE_SECONDS, NodeLease, renewal_s


def lease(renewals: int, incarnation: str = "a", node: str = "n0") -> NodeLease:
    return NodeLease(node, incarnation, "e", "h", renewals)


class Watcher:
    """A LeaseWatch of 3 s whose looks take no time, at most 1.5 s apart."""

    def __init__(self) -> None:
        self.watch = LeaseWatch(3_000, 1_500)

    def sees(self, it: NodeLease, at_ms: int) -> Liveness:
        return self.watch.update([it], at_ms, at_ms)[it.node].liveness


def test_a_lease_is_uncertain_until_it_moves() -> None:
    watcher = Watcher()
    assert watcher.sees(lease(7), 0) is Liveness.UNCERTAIN
    assert watcher.sees(lease(7), 1_000) is Liveness.UNCERTAIN
    assert watcher.sees(lease(8), 1_100) is Liveness.ALIVE


def test_a_lease_that_stays_unchanged_for_its_whole_time_is_dead_and_no_sooner() -> None:
    watcher = Watcher()
    watcher.sees(lease(1), 0)
    assert watcher.sees(lease(2), 1_000) is Liveness.ALIVE
    for now_ms in range(2_000, 4_000, 500):
        assert watcher.sees(lease(2), now_ms) is Liveness.ALIVE
    assert watcher.sees(lease(2), 4_000) is Liveness.DEAD
    assert watcher.sees(lease(3), 4_100) is Liveness.ALIVE


# So far apart are looks and renewals when each comes a quarter late.
LOOKS_MS = int(1.25 * max(REFRESH_MS, PROBE_MS))
RENEWALS_MS = int(1.25 * max(1.0, renewal_s(MIN_LEASE_SECONDS)) * 1_000)  # 1.0: a node of an earlier release
LEAST_MS = MIN_LEASE_SECONDS * 1_000


def watched(last_renewal_ms: int, until_ms: int, phase_ms: int) -> list[Liveness]:
    """A node's liveness at each look of a watch with the shortest allowed lease. phase_ms: the looks' offset against
    the renewals."""
    watch = LeaseWatch(LEAST_MS, max_gap_ms=LEAST_MS // 2)
    looks = range(phase_ms, until_ms, LOOKS_MS)
    renewals = [min(now_ms, last_renewal_ms) // RENEWALS_MS for now_ms in looks]
    return [
        watch.update([lease(it)], now_ms, now_ms)["n0"].liveness for it, now_ms in zip(renewals, looks, strict=True)
    ]


@pytest.mark.parametrize("phase_ms", range(0, LOOKS_MS, 25))
def test_the_shortest_lease_outlasts_late_renewals_and_slow_looks(phase_ms: int) -> None:
    assert Liveness.DEAD not in watched(last_renewal_ms=60_000, until_ms=60_000, phase_ms=phase_ms)


@pytest.mark.parametrize("phase_ms", range(0, LOOKS_MS, 25))
def test_the_shortest_lease_of_a_silent_node_is_over_though_looks_are_slow(phase_ms: int) -> None:
    until_ms = 6_000 + LEAST_MS + 2 * LOOKS_MS
    assert watched(last_renewal_ms=6_000, until_ms=until_ms, phase_ms=phase_ms)[-1] is Liveness.DEAD


def test_a_lease_left_by_a_former_cluster_dies_after_its_whole_time() -> None:
    watcher = Watcher()
    for now_ms in range(0, 3_000, 1_000):
        assert watcher.sees(lease(9), now_ms) is Liveness.UNCERTAIN
    assert watcher.sees(lease(9), 3_000) is Liveness.DEAD


def test_a_new_process_is_seen_at_once_even_with_the_same_count() -> None:
    watcher = Watcher()
    watcher.sees(lease(1, "a"), 0)
    seen = watcher.watch.update([lease(1, "b")], 100, 100)
    assert seen == {"n0": ObservedNode(Liveness.ALIVE, "b", stable=False)}


def test_a_process_is_settled_when_it_was_there_for_ten_seconds() -> None:
    watcher = Watcher()
    views = [watcher.watch.update([lease(n, "a")], n * 1_000, n * 1_000)["n0"] for n in range(12)]
    assert [view.stable for view in views] == [False] * 10 + [True] * 2
    assert not watcher.watch.update([lease(12, "b")], 12_000, 12_000)["n0"].stable


def test_after_an_outage_every_lease_gets_its_whole_time_again() -> None:
    watcher = Watcher()
    watcher.sees(lease(1), 0)
    watcher.sees(lease(2), 1_000)
    watcher.watch.lost_contact()
    assert watcher.sees(lease(2), 60_000) is Liveness.UNCERTAIN
    assert watcher.sees(lease(2), 61_000) is Liveness.UNCERTAIN
    assert watcher.sees(lease(2), 62_000) is Liveness.UNCERTAIN
    assert watcher.sees(lease(2), 63_000) is Liveness.DEAD


def test_a_watcher_that_was_itself_stopped_declares_nobody_dead() -> None:
    watcher = Watcher()
    watcher.sees(lease(1), 0)
    watcher.sees(lease(2), 100)
    assert watcher.sees(lease(2), 60_000) is Liveness.UNCERTAIN


def test_the_time_that_a_slow_answer_took_does_not_count_against_the_node() -> None:
    watch = LeaseWatch(3_000, 1_500)
    watch.update([lease(1)], 0, 1_000)
    watch.update([lease(1)], 1_500, 1_500)
    watch.update([lease(1)], 2_500, 2_500)
    assert watch.update([lease(1)], 3_500, 4_500)["n0"].liveness is Liveness.UNCERTAIN
    assert watch.update([lease(1)], 4_600, 4_600)["n0"].liveness is Liveness.DEAD


def test_a_node_is_where_its_present_process_says() -> None:
    watch = LeaseWatch(3_000, 1_500)
    for number, said in enumerate(["east", "east", "west"]):
        view = watch.update([NodeLease("n0", f"p{number}", "e", "h", zone=said)], number, number)["n0"]
        assert view.zone == said


def test_a_node_that_never_had_a_lease_is_gone_after_the_whole_time() -> None:
    watch = LeaseWatch(3_000, max_gap_ms=1_500, gone_ms=6_000)
    for now_ms in range(0, 6_000, 500):
        assert watch.update([], now_ms, now_ms, ["n0"]) == {}
    assert watch.update([], 6_000, 6_000, ["n0"])["n0"].replaceable
    watch.lost_contact()
    assert watch.update([], 6_500, 6_500, ["n0"]) == {}, "what it did meanwhile is not known"
