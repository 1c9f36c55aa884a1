"""The assignment search against all assignments of small cases, and what no plan may do."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from delayrebalance.decision.search import SearchProblem, destinations, lower_bound, search
from delayrebalance.model import F64, I64
from hypothesis import given, settings
from hypothesis import strategies as st

GIB = 1 << 30


def made(
    vectors: list[list[float]],
    home: list[int],
    nodes: int,
    *,
    second: list[int] | None = None,
    usable: list[bool] | None = None,
    zones: list[int] | None = None,
    machines: list[int] | None = None,
    sizes: list[int] | None = None,
    least_copies: int = 0,
    max_moves: int = 1_000,
    target: float | None = None,
) -> SearchProblem:
    """Shards with these loads on these nodes; with `second`, each has another copy there."""
    loads_of, at = np.array(vectors, dtype=float), np.array(home)
    loads = np.zeros((nodes, loads_of.shape[1]))
    np.add.at(loads, at, loads_of)
    holds = np.zeros((len(at), nodes), dtype=bool)
    holds[np.arange(len(at)), at] = True
    if second is not None:
        holds[np.arange(len(at)), second] = True
    may = np.array(usable or [True] * nodes)
    places = [np.array(it or [-1] * nodes) for it in (zones, machines)]
    allowed = destinations(at, holds, may, places, np.ones(nodes, dtype=bool))
    bound = lower_bound(loads, may, loads_of.max(axis=0)).max()
    return SearchProblem(
        loads=loads, vectors=loads_of, home=at, at=at.copy(), allowed=allowed, holds=holds,
        bytes=np.array(sizes or [GIB] * len(at)), copies=holds.sum(axis=0), min_copies=least_copies,
        target=float(bound if target is None else target), max_moves=max_moves,
    )  # fmt: skip


def loads_after(problem: SearchProblem, at: I64) -> F64:
    loads = problem.loads.copy()
    np.subtract.at(loads, problem.at, problem.vectors)
    np.add.at(loads, at, problem.vectors)
    return loads


def best_peak(problem: SearchProblem) -> float:
    """By trying every assignment that is allowed."""
    choices = [np.flatnonzero(row) for row in problem.allowed]
    return min(
        float(loads_after(problem, np.array(at)).max())
        for at in itertools.product(*choices)
        if (np.array(at) != problem.home).sum() <= problem.max_moves
    )


@st.composite
def small_cases(draw: st.DrawFn) -> SearchProblem:
    nodes, shards, slots = draw(st.integers(2, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    loads = draw(
        st.lists(st.lists(st.integers(0, 30), min_size=slots, max_size=slots), min_size=shards, max_size=shards)
    )
    home = draw(st.lists(st.integers(0, nodes - 1), min_size=shards, max_size=shards))
    steps = draw(st.lists(st.integers(1, nodes - 1), min_size=shards, max_size=shards))
    usable = draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes))
    return made(
        [[float(it) for it in row] for row in loads],
        home,
        nodes,
        second=[(one + step) % nodes for one, step in zip(home, steps, strict=True)] if draw(st.booleans()) else None,
        usable=usable if any(usable) else None,
        zones=draw(st.lists(st.integers(-1, 2), min_size=nodes, max_size=nodes)),
        machines=draw(st.lists(st.integers(-1, 2), min_size=nodes, max_size=nodes)),
        sizes=draw(st.lists(st.integers(0, GIB), min_size=shards, max_size=shards)),
        least_copies=draw(st.integers(0, 2)),
        max_moves=draw(st.integers(1, shards)),
    )


@settings(max_examples=120, deadline=None)
@given(small_cases())
def test_no_assignment_is_below_the_lower_bound_and_the_search_is_never_above_where_it_began(
    problem: SearchProblem,
) -> None:
    best = best_peak(replace(problem, max_moves=1_000))
    peak = loads_after(problem, search(problem)).max(initial=0)
    assert problem.target <= best + 1e-9
    assert best - 1e-9 <= peak <= problem.loads.max() + 1e-9


def keeps_copies(problem: SearchProblem, at: I64) -> bool:
    """Whether no node gives away a copy that leaves it fewer than it must keep."""
    copies = problem.copies.copy()
    for shard in np.flatnonzero(at != problem.home):
        if not problem.holds[shard, at[shard]]:
            copies[problem.home[shard]] -= 1
            copies[at[shard]] += 1
    given_away = copies < problem.copies
    return bool((copies[given_away] >= problem.min_copies).all())


@settings(max_examples=120, deadline=None)
@given(small_cases())
def test_every_constraint_is_kept(problem: SearchProblem) -> None:
    at = search(problem)
    assert problem.allowed[np.arange(len(at)), at].all()
    assert np.count_nonzero(at != problem.home) <= problem.max_moves
    assert keeps_copies(problem, at)


@settings(max_examples=80, deadline=None)
@given(small_cases())
def test_no_move_is_made_that_could_be_left_out(problem: SearchProblem) -> None:
    at = search(problem)
    peak = max(loads_after(problem, at).max(), problem.target)
    for shard in np.flatnonzero(at != problem.home):
        without = at.copy()
        without[shard] = problem.home[shard]
        needed = loads_after(problem, without).max() > peak + 1e-9
        assert needed or not keeps_copies(problem, without), "the node that it moves to can spare it"


def test_a_node_gives_a_copy_back_that_the_plan_gave_it() -> None:
    """It had none of its own. The one move that may be made lowers one of two highest loads, which helps nobody."""
    slots = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    home = np.array([0, 0, 1, 1])
    problem = SearchProblem(
        loads=np.array([[0.0, 2.0], [2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), vectors=slots, home=home, at=home,
        allowed=np.ones((4, 4), np.bool_), holds=np.arange(4) == home[:, None], bytes=np.zeros(4, np.int64),
        copies=np.array([2, 2, 0, 0]), min_copies=1, target=1.0, max_moves=1,
    )  # fmt: skip
    assert search(problem).tolist() == home.tolist()


def test_the_search_finds_the_best_of_nearly_all_small_cases() -> None:
    rng = np.random.default_rng(1)
    ratios = []
    for _ in range(200):
        nodes, shards = int(rng.integers(2, 4)), int(rng.integers(2, 7))
        home = rng.integers(0, nodes, shards)
        problem = made(
            rng.integers(0, 20, (shards, 3)).tolist(),
            home.tolist(),
            nodes,
            second=((home + 1) % nodes).tolist(),
            max_moves=int(rng.integers(1, shards + 1)),
        )
        best = best_peak(problem)
        ratios.append(float(loads_after(problem, search(problem)).max()) / best if best else 1.0)
    assert np.mean(np.array(ratios) < 1 + 1e-9) > 0.95
    assert max(ratios) < 1.25


def test_the_same_problem_has_the_same_answer() -> None:
    rng = np.random.default_rng(3)
    problem = made(rng.integers(0, 50, (60, 12)).tolist(), rng.integers(0, 5, 60).tolist(), 5)
    assert (search(problem) == search(problem)).all()


def test_a_cluster_at_its_lower_bound_is_left_alone() -> None:
    problem = made([[5.0, 1.0]] * 6, [0, 1, 2, 0, 1, 2], 3)
    assert (search(problem) == problem.home).all()


def test_a_takeover_that_copies_nothing_is_preferred_to_a_move() -> None:
    problem = made([[10.0], [10.0]], [0, 0], 3, second=[1, 1], sizes=[GIB, GIB])
    at = search(problem)
    assert sorted(at.tolist()) == [0, 1]


def test_the_cheapest_of_equal_shards_moves() -> None:
    problem = made([[10.0], [10.0], [10.0]], [0, 0, 0], 2, sizes=[5, 3, 4], target=20.0)
    assert search(problem).tolist() == [0, 1, 0]


def test_two_shards_are_exchanged_where_no_single_move_helps() -> None:
    # 9 + 5 and 6 + 4: only 9 + 4 and 6 + 5 is lower.
    problem = made([[9.0], [5.0], [6.0], [4.0]], [0, 0, 1, 1], 2)
    assert loads_after(problem, search(problem)).max() == 13


def test_loads_of_different_times_may_lie_together() -> None:
    problem = made([[10.0, 0.0], [10.0, 0.0], [0.0, 10.0], [0.0, 10.0]], [0, 0, 1, 1], 2)
    assert loads_after(problem, search(problem)).max() == 10


def test_a_node_to_be_emptied_gets_nothing() -> None:
    problem = made([[10.0], [10.0], [10.0]], [0, 0, 0], 3, usable=[True, False, True])
    assert 1 not in search(problem)


def test_copies_in_two_zones_are_still_in_two_afterwards() -> None:
    # n0, n1 in zone 0; n2, n3 in zone 1. Copies on n0 and n2: the one on n0 may go to n1 only, or n2 takes over.
    problem = made([[10.0], [10.0]], [0, 0], 4, second=[2, 2], zones=[0, 0, 1, 1])
    assert problem.allowed.tolist() == [[True, True, True, False]] * 2


def test_copies_that_share_a_zone_already_may_go_anywhere() -> None:
    problem = made([[10.0]], [0], 4, second=[1], zones=[0, 0, 1, 1])
    assert problem.allowed.all()


def test_copies_on_two_machines_of_a_zone_stay_on_two() -> None:
    # n0 and n1 on machine 0, n2 on 1, n3 on 2, all in one zone. Copies on n0 and n2.
    problem = made([[10.0]], [0], 4, second=[2], zones=[0, 0, 0, 0], machines=[0, 0, 1, 2])
    assert problem.allowed.tolist() == [[True, True, True, True]]
    # Copies on n0 and n3: n2 is free, n1 shares n0's machine, which the copy leaves.
    problem = made([[10.0]], [3], 4, second=[0], zones=[0, 0, 0, 0], machines=[0, 0, 1, 2])
    assert problem.allowed.tolist() == [[True, False, True, True]]


def test_a_node_keeps_the_copies_that_it_should_have() -> None:
    problem = made([[10.0], [10.0]], [0, 0], 2, least_copies=2)
    assert search(problem).tolist() == [0, 0]


@pytest.mark.parametrize(("usable", "expected"), [([True, True, True], 20.0), ([True, True, False], 29.0)])
def test_the_bound_knows_what_an_unusable_node_keeps(usable: list[bool], expected: float) -> None:
    loads = np.array([[30.0], [28.0], [2.0]])
    assert lower_bound(loads, np.array(usable), np.array([10.0])).tolist() == [expected]


def test_one_shard_that_is_larger_than_a_share_is_the_bound() -> None:
    assert lower_bound(np.array([[9.0], [0.0], [0.0]]), np.ones(3, dtype=bool), np.array([9.0])).tolist() == [9.0]
