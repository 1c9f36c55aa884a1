"""A slot's fold against a loop over its units."""

from __future__ import annotations

import numpy as np
from delaynode.store.columns import release_order
from delaynode.store.timer.timer_log import as_units, build_flush
from delaynode.store.timer.units import (
    DEFAULT,
    DELETE,
    DELETE_MOVED,
    ROLL,
    UNIT,
    change_of,
    concatenated,
    latest_units,
    live_units,
)
from delaynode.store.timer.wheel import TimerWheel
from hypothesis import given, settings
from hypothesis import strategies as st

MAGICS = (DEFAULT, ROLL, DELETE, DELETE_MOVED, ROLL | DELETE, ROLL | DELETE_MOVED)
CI = settings.get_profile("ci")

some_units = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 2**40]), st.sampled_from([0, 1, 2, 2**41]), st.sampled_from(MAGICS)),
    max_size=25,
)


def made(rows: list[tuple[int, int, int]]) -> np.ndarray:
    result = np.zeros(len(rows), UNIT)
    for at, (due, seq, magic) in enumerate(rows):
        result[at] = (due, seq, at, 10, 0, 0, magic, 3)  # its place in the log tells units apart
    return result


def fold(rows: list[tuple[int, int, int]]) -> dict[tuple[int, int], tuple[bool, int, int]]:
    """(due, seq) -> live, which row speaks, its magic."""
    state: dict[tuple[int, int], tuple[bool, int, int]] = {}
    for at, (due, seq, magic) in enumerate(rows):
        live, row, said = state.get((due, seq), (True, at, magic))
        if magic == DEFAULT:
            live, row, said = True, at, magic
        elif magic & DELETE:
            live, row, said = False, at, magic
        elif live:  # ROLL: a new offset, if it lives
            row, said = at, magic
        state[due, seq] = (live, row, said)
    return state


@CI
@given(some_units)
def test_the_last_word_counts(rows: list[tuple[int, int, int]]) -> None:
    words, live = latest_units(made(rows))
    got = {
        (int(w["due"]), int(w["seq"])): (bool(alive), int(w["offset"]), int(w["magic"]))
        for w, alive in zip(words, live, strict=True)
    }
    assert got == fold(rows)
    keys = [(int(w["due"]), int(w["seq"])) for w in words]
    assert keys == sorted(set(keys))
    assert [int(w["offset"]) for w in live_units(made(rows))] == [got[key][1] for key in keys if got[key][0]]


def test_there_and_back_again_is_live_and_cancelled_after_it_is_dead() -> None:
    there_and_back = [(7, 1, DEFAULT), (7, 1, DELETE_MOVED), (7, 1, DEFAULT)]
    assert latest_units(made(there_and_back))[1].tolist() == [True]
    assert latest_units(made([*there_and_back, (7, 1, DELETE)]))[1].tolist() == [False]
    assert latest_units(made([*there_and_back, (7, 1, ROLL)]))[1].tolist() == [True]


def test_a_roll_never_revives() -> None:
    words, live = latest_units(made([(7, 1, DEFAULT), (7, 1, DELETE), (7, 1, ROLL)]))
    assert live.tolist() == [False]
    assert words["magic"].tolist() == [DELETE]


def test_a_slots_count_is_what_its_units_add() -> None:
    assert change_of(np.array(MAGICS)).tolist() == [1, 1, -1, -1, 0, 0]


def test_folding_nothing_is_nothing() -> None:
    words, live = latest_units(concatenated([]))
    assert len(words) == len(live) == 0


@CI
@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 2**62)), max_size=30))
def test_release_order_sorts_whatever_the_range(rows: list[tuple[int, int]]) -> None:
    due, seq = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    order = release_order(due, seq)
    assert [rows[i] for i in order] == sorted(rows)


@CI
@given(some_units)
def test_units_survive_the_way_through_a_flush(rows: list[tuple[int, int, int]]) -> None:
    given_units = made(rows)
    flush = build_flush(given_units, 2**39, 0, TimerWheel(60_000, 10), TimerWheel(3_600_000, 10), (0, 0))
    back = as_units(flush.stored[1:])
    assert sorted(back.tolist()) == sorted(given_units.tolist())
