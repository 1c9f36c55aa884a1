"""The roles of a copy: the picture in the documentation is the table in the code, and an illegal step fails."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from delaynode.replica.local_copy import LocalCopy
from delaynode.replica.role import NEXT_ROLES, IllegalTransition, ReplicaRole

PICTURE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_the_documented_steps_are_the_allowed_ones() -> None:
    picture = PICTURE.read_text(encoding="utf-8").partition("## A copy's life")[2].partition("## ")[0]
    drawn = {(ReplicaRole[old], ReplicaRole[new]) for old, new in re.findall(r"^  (\w+) --> (\w+):", picture, re.M)}
    allowed = {(old, new) for old, following in NEXT_ROLES.items() for new in following if new is not old}
    assert drawn <= allowed
    assert all(new is ReplicaRole.DAMAGED for _, new in allowed - drawn), "any copy may have an internal error"


@pytest.mark.parametrize("old", ReplicaRole)
def test_a_step_that_is_not_allowed_fails_and_changes_nothing(old: ReplicaRole) -> None:
    copy: Any = SimpleNamespace(name="orders-0", role=old)
    for new in set(ReplicaRole) - NEXT_ROLES[old]:
        with pytest.raises(IllegalTransition, match=f"a copy that is {old} can't become {new}"):
            LocalCopy.become(cast(LocalCopy, copy), new)
        assert copy.role is old
    LocalCopy.become(cast(LocalCopy, copy), ReplicaRole.DAMAGED)
    assert copy.role is ReplicaRole.DAMAGED
