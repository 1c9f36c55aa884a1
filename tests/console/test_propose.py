"""Proposing a rebalance from its page: what is asked, what is answered, and when it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from delayconsole.pages import rebalance
from delayctl.targets.errors import TargetRefused, TargetUnreachable
from delayctl.targets.rebalances import RebalanceOptions, RebalanceView

from tests.console.support.made_console import Answer, made_console


class Rebalances:
    """A cluster's rebalance, and what it answers to a request for a plan."""

    options = ("--data", "here")

    def __init__(self, state: str = "", answer: tuple[bool, str] | Exception = (True, "")) -> None:
        self.state, self.answer = state, answer
        self.asked: list[RebalanceOptions] = []

    @contextmanager
    def rebalance(self) -> Iterator[Rebalances]:
        yield self

    def read(self) -> RebalanceView | None:
        return RebalanceView({"state": self.state}) if self.state else None

    def propose(self, options: RebalanceOptions) -> tuple[bool, str]:
        self.asked.append(options)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def posted(at: Rebalances | None, *, confirmed: str = "1", allow: bool = True) -> Answer:
    async def main() -> Answer:
        async with made_console([rebalance.PAGE], objects=at, allow_changes=allow) as console:
            return await console.post("/rebalance/propose", {"confirmed": confirmed} if confirmed else {})

    return asyncio.run(main())


def test_a_plan_is_asked_for_first_and_made_when_confirmed() -> None:
    at = Rebalances()
    asked = posted(at, confirmed="")
    assert "propose the moves that spread it?" in asked.visible
    assert "delayctl rebalance --data here" in asked.visible
    assert at.asked == []
    assert "A plan is made, or on its way" in posted(at).visible
    assert at.asked == [RebalanceOptions()], "as `delayctl rebalance` without options"


@pytest.mark.parametrize(
    ("at", "status", "says", "asked"),
    [
        (Rebalances(answer=(False, "all is even")), 200, "There is nothing to propose: all is even", 1),
        (Rebalances(answer=(False, "")), 200, "no move is worth its cost", 1),
        (Rebalances("Rebalancing"), 409, "a plan is being carried out: stop it first", 0),
        (Rebalances(answer=TargetRefused("<b>making a plan needs Spark</b>")), 409, "making a plan needs Spark", 1),
        (Rebalances(answer=TargetUnreachable("the cluster has gone")), 503, "the cluster has gone", 1),
        (None, 409, "sign in with a token of Kubernetes", 0),
    ],
)
def test_what_stands_against_it_is_said(at: Rebalances | None, status: int, says: str, asked: int) -> None:
    answer = posted(at)
    assert answer.status == status
    assert says in answer.visible
    assert "<b>making" not in answer.text
    assert at is None or len(at.asked) == asked


def test_a_read_only_console_asks_for_none() -> None:
    at = Rebalances()
    assert posted(at, allow=False).status == 403
    assert at.asked == []
