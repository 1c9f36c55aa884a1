"""The pure decisions of the leader election: whose Lease it is, how long a leader acts, whose a DelayCluster is."""

from __future__ import annotations

import pytest
from delayoperator.election.claim import ClaimStep, HolderLife, OperatorClaim, claim_step, is_older
from delayoperator.election.lease import (
    ElectionLease,
    ElectionTimes,
    LeaseSight,
    LeaseStep,
    Tenure,
    next_step,
)

TIMES = ElectionTimes(5)


def held_by(holder: str, lease_ms: int = 5_000) -> ElectionLease:
    return ElectionLease("7", holder, 0, lease_ms)


@pytest.mark.parametrize(
    ("lease", "unchanged_ms", "expected"),
    [
        (None, 0, LeaseStep.CREATE),
        (held_by("me"), 0, LeaseStep.RENEW),
        (held_by("me"), 60_000, LeaseStep.RENEW),
        (held_by(""), 0, LeaseStep.TAKE_FREE),
        (held_by("another"), 0, LeaseStep.WAIT),
        (held_by("another"), 4_999, LeaseStep.WAIT),
        (held_by("another"), 5_000, LeaseStep.TAKE_EXPIRED),
        (held_by("another", lease_ms=15_000), 14_999, LeaseStep.WAIT),
        (held_by("another", lease_ms=15_000), 15_000, LeaseStep.TAKE_EXPIRED),
        (held_by("another", lease_ms=0), 4_999, LeaseStep.WAIT),
    ],
)
def test_what_a_process_does_about_the_lease(
    lease: ElectionLease | None, unchanged_ms: int, expected: LeaseStep
) -> None:
    assert next_step("me", lease, unchanged_ms, TIMES) is expected


def test_a_lease_is_watched_from_when_it_was_seen_to_change() -> None:
    sight = LeaseSight()
    assert sight.unchanged_ms("1", 100_000) == 0, "however old it is, a new observer has not watched it yet"
    assert sight.unchanged_ms("1", 104_000) == 4_000
    assert sight.unchanged_ms("2", 104_500) == 0
    assert sight.unchanged_ms("2", 104_600) == 100


@pytest.mark.parametrize("answer_ms", [0, 1, 700, 3_499, 4_000, 60_000])
@pytest.mark.parametrize("seen_ms", [0, 1, 2_000])
@pytest.mark.parametrize("seconds", [1, 3, 5, 15])
def test_a_leader_has_stopped_before_a_standby_may_begin(answer_ms: int, seen_ms: int, seconds: int) -> None:
    """A renewal is sent at 0 and answered, or not, at answer_ms; the standby sees it seen_ms after it was sent."""
    times = ElectionTimes(seconds)
    tenure, sight = Tenure(times), LeaseSight()
    tenure.renewed(0, answer_ms)
    sight.unchanged_ms("1", seen_ms)
    begins_ms = next(
        now_ms
        for now_ms in range(seen_ms, seen_ms + 20_000)
        if next_step("standby", held_by("leader"), sight.unchanged_ms("1", now_ms), times).takes
    )
    assert tenure.current(begins_ms) is None
    assert tenure.current(begins_ms - 300 * seconds - 1) in (None, 1), "and some time before, for what is on its way"
    assert all(tenure.current(now_ms) is None for now_ms in range(times.act_ms, begins_ms + 1))


def test_a_tenure_lasts_while_renewals_come_and_never_goes_on_after_a_gap() -> None:
    tenure = Tenure(TIMES)
    assert tenure.current(0) is None
    assert tenure.renewed(1_000, 1_010)
    assert not tenure.renewed(4_000, 4_010), "the same one"
    assert tenure.current(7_499) == 1
    assert tenure.current(7_500) is None, "counted from when the renewal was sent"
    assert tenure.renewed(7_400, 7_501), "it had lapsed when the answer came, if only just: another tenure"
    assert tenure.current(7_501) == 2
    tenure.lost()
    assert tenure.current(7_501) is None


def test_an_answer_that_comes_too_late_lets_nobody_act() -> None:
    tenure = Tenure(TIMES)
    tenure.renewed(0, 10_000)
    assert tenure.current(10_000) is None


MINE = OperatorClaim("delaycluster", "system", "0.4.0")


@pytest.mark.parametrize(
    ("found", "life", "expected"),
    [
        (None, HolderLife.UNKNOWN, ClaimStep.TAKE),
        (MINE, HolderLife.ALIVE, ClaimStep.KEEP),
        (OperatorClaim("delaycluster", "system", "0.5.0"), HolderLife.ALIVE, ClaimStep.TAKE),  # rolled back
        (OperatorClaim("delaycluster", "system", "0.3.0"), HolderLife.ALIVE, ClaimStep.TAKE),  # upgraded
        (OperatorClaim("delaycluster", "staging", "0.4.0"), HolderLife.ALIVE, ClaimStep.LEAVE),
        (OperatorClaim("staging", "system", "0.4.0"), HolderLife.UNKNOWN, ClaimStep.LEAVE),
        (OperatorClaim("staging", "system", "0.5.0"), HolderLife.ALIVE, ClaimStep.LEAVE),
        (OperatorClaim("staging", "system", "0.3.9"), HolderLife.ALIVE, ClaimStep.TAKE),
        (OperatorClaim("staging", "system", "0.5.0"), HolderLife.DEAD, ClaimStep.TAKE),
        (OperatorClaim("staging", "system", "0.4.0"), HolderLife.DEAD, ClaimStep.TAKE),
        (OperatorClaim("staging", "system", ""), HolderLife.ALIVE, ClaimStep.LEAVE),
    ],
)
def test_whose_a_cluster_is(found: OperatorClaim | None, life: HolderLife, expected: ClaimStep) -> None:
    assert claim_step(MINE, found, life) is expected


def test_two_living_operators_never_take_a_cluster_from_each_other_in_turn() -> None:
    versions = ["0.3.0", "0.4.0", "0.4", "v0.4.0", "0.10.1", "1", "", "main", "0.4.0rc1"]
    claims = [OperatorClaim(release, "system", version) for release in ("a", "b") for version in versions]
    for one in claims:
        for other in claims:
            if not one.same_release(other):
                steps = {claim_step(one, other, HolderLife.ALIVE), claim_step(other, one, HolderLife.ALIVE)}
                assert ClaimStep.LEAVE in steps, f"{one}; {other}"


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        ("0.9.0", "0.10.0", True), ("0.10.0", "0.9.0", False), ("1.0", "1", False), ("1", "1.0.1", True),
        ("main", "1.0", False), ("1.0", "main", False), ("0.4.0.dev3", "0.4.0", False),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(version: str, than: str, expected: bool) -> None:
    assert is_older(version, than) is expected


@pytest.mark.parametrize("operator", [None, [], "x", {}, {"release": "a"}, {"namespace": "a"}])
def test_a_claim_that_names_nobody_is_none(operator: object) -> None:
    assert OperatorClaim.read({"operator": operator}) is None
    assert OperatorClaim.read(operator) is None


def test_a_claim_is_read_as_it_was_written() -> None:
    assert OperatorClaim.read({"operator": MINE.as_json()}) == MINE
