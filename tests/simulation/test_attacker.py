"""With seals, whatever an attacker does with heartbeats makes no second master; without them it does."""

from __future__ import annotations

import pytest

from tests.simulation.support.attacks.attacks_on_heartbeats import forged_replies
from tests.simulation.support.mutations.planting import TWO
from tests.simulation.support.scenario import run_seed
from tests.simulation.support.stage import Failed

CUTS = ("isolate", "cut")


@pytest.mark.parametrize("seed", range(700, 712))
def test_invariants_hold_whatever_an_attacker_does_with_heartbeats(seed: int) -> None:
    world = run_seed(seed, attacked=True)
    assert world.delivered() > 20


@pytest.mark.parametrize("seed", [1, 2])
def test_without_seals_forged_replies_make_a_second_master(seed: int) -> None:
    with pytest.raises(Failed) as failed:
        forged_replies(seed, sealed=False)
    failed.match(TWO)
