"""Each attack of tests/redteam/attacks.py is refused, by both edges, and disturbs nobody; `run.py` prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.redteam.attacks import ELSEWHERE
from tests.redteam.run import EDGES, attack_all

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("edge", EDGES)
def test_every_attack_is_refused_and_disturbs_nobody(edge: str) -> None:
    found = attack_all(edge, print)
    assert [(one.attack, one.fault) for one in found if one.fault] == []


def test_what_is_shown_elsewhere_is_there() -> None:
    assert [where for where in ELSEWHERE.values() if not (ROOT / where).exists()] == []
