"""With seals, whatever an attacker does with heartbeats makes no second master; without them it does."""

from __future__ import annotations

import pytest

from tests.simulation.support.attacks.attacks_on_heartbeats import forged_replies
from tests.simulation.support.mutations.planting import TWO
from tests.simulation.support.scenario import run_seed
from tests.simulation.support.stage import Failed

CUTS = ("isolate", "cut")


@pytest.mark.parametrize("first", range(700, 712, 3))
def test_invariants_hold_whatever_an_attacker_does_with_heartbeats(first: int) -> None:
    """Three seeds together, as one of them may be short and without a master for most of it."""
    assert sum(run_seed(seed, attacked=True).delivered() for seed in range(first, first + 3)) > 60


@pytest.mark.parametrize("seed", [1, 2])
def test_without_seals_forged_replies_make_a_second_master(seed: int) -> None:
    with pytest.raises(Failed) as failed:
        forged_replies(seed, sealed=False)
    failed.match(TWO)
