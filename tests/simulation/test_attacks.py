"""Each attack of attacks.py leaves the cluster unharmed. The seed moves the small delays, and so who is first."""

from __future__ import annotations

import pytest

from tests.simulation.support.listed import ATTACKS
from tests.simulation.support.stage import Failed, cluster


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_does_no_harm(attack: str, seed: int) -> None:
    ATTACKS[attack](seed)


def test_trouble_is_reported_with_its_trace() -> None:
    with pytest.raises(Failed) as failed, cluster() as run:
        run.world.fail("planted")
    assert "planted" in str(failed.value)
    assert "in-sync" in str(failed.value)
