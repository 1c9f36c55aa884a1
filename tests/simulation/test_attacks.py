"""Each attack of attacks.py leaves the cluster unharmed. The seed moves the small delays, and so who is first."""

from __future__ import annotations

import pytest

from tests.simulation import (  # noqa: F401  they fill the list
    attacks,
    attacks_on_clocks,
    attacks_on_copies,
    attacks_on_ends,
    attacks_on_objects,
    attacks_on_operation,
    attacks_on_progress,
)
from tests.simulation.schedules import ATTACKS
from tests.simulation.stage import Failed, cluster


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_does_no_harm(attack: str, seed: int) -> None:
    ATTACKS[attack](seed)


def test_trouble_is_reported_with_its_trace() -> None:
    with pytest.raises(Failed) as failed, cluster() as run:
        run.world.fail("planted")
    assert "planted" in str(failed.value)
    assert "in-sync" in str(failed.value)
