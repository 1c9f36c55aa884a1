"""The simulation finds bugs: each planted one is caught by the schedule written against it, or by some seed."""

from __future__ import annotations

import pytest

from tests.simulation import attacks, attacks_on_ends, attacks_on_operation, attacks_on_progress  # noqa: F401  they fill the list
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import outcome_of
from tests.simulation.schedules import ATTACKS

OF_SCHEDULE = (1, 2, 3)
DRAWN = 40  # seeds of troubles that are drawn, at most


def caught(mutation: Mutation) -> str | None:
    """What finds it."""
    with mutation.planted():
        for seed in OF_SCHEDULE:
            try:
                ATTACKS[mutation.schedule](seed)
            except AssertionError:
                return f"{mutation.schedule}, seed {seed}"
        return next((f"seed {seed}" for seed in range(DRAWN) if outcome_of(seed).failure is not None), None)


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bug_is_caught(name: str) -> None:
    assert caught(MUTATIONS[name]) is not None


def test_there_are_enough_of_them() -> None:
    assert len(MUTATIONS) >= 15


def test_what_was_planted_is_gone_afterwards() -> None:
    """Else a later test would find a bug that is not there."""
    before = {name: vars(owner)[name] for owner, name in _planted_places()}
    for mutation in MUTATIONS.values():
        with mutation.planted():
            pass
    assert before == {name: vars(owner)[name] for owner, name in _planted_places()}


def _planted_places() -> list[tuple[object, str]]:
    places: list[tuple[object, str]] = []
    for mutation in MUTATIONS.values():
        mutation.plant(lambda owner, name, value: places.append((owner, name)))
    return places
