"""Each attack of tests/redteam/attacks.py is refused, by both edges, and disturbs nobody; `run.py` prints them.

Where this machine can't try all of them, the test is skipped and says which; a fault fails it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.redteam.attacks import ELSEWHERE
from tests.redteam.run import EDGES, Outcome, attack_all

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("edge", EDGES)
def test_every_attack_is_refused_and_disturbs_nobody(edge: str) -> None:
    found = attack_all(edge, print)
    assert [(one.attack, one.fault) for one in found if one.fault] == []
    if skipped := [f"{one.attack}: {one.said}" for one in found if one.skipped]:
        pytest.skip(f"all others are refused, not tried: {'; '.join(skipped)}")


@pytest.mark.parametrize(("fault", "skipped", "word"), [("", False, "ok"), ("", True, "skip"), ("lost", True, "FAULT")])
def test_a_line_says_ok_of_what_was_tried_alone(fault: str, skipped: bool, word: str) -> None:
    assert f" ms  {word} " in str(Outcome("an attack", "refused", 0.0, 0.0, fault, skipped))


def test_what_is_shown_elsewhere_is_there() -> None:
    named = [where.partition("::") for tests in ELSEWHERE.values() for where in tests]
    missing = [(file, name) for file, _, name in named if f"\ndef {name}(" not in (ROOT / file).read_text()]
    assert missing == []
