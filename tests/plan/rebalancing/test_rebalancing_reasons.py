"""Every reason that a DelayRebalance can give is in docs/operations.md."""

from __future__ import annotations

from pathlib import Path

from delayoperator.crds.rebalance import RebalanceState
from delayoperator.rebalance_plan.step_values import Why

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def test_every_reason_and_state_of_a_rebalance_is_on_the_page() -> None:
    section = PAGE.read_text().partition("## Rebalances")[2].partition("\n## ")[0]
    assert {word for word in [*Why, *RebalanceState] if f"`{word}`" not in section} == set()
