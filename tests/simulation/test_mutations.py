"""The simulation finds bugs: each planted one is caught by the schedule written against it, or by some seed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest
from delaynode.replication.term.commit_rule import CommitRule

from tests.simulation.run import outcome_of
from tests.simulation.support.listed import ATTACKS, MUTATIONS
from tests.simulation.support.mutations.planting import LACKS, Mutation, Put
from tests.simulation.support.stage import Failed

PAGE = Path(__file__).parents[2] / "docs/simulation.md"
OF_SCHEDULE = range(1, 13)  # tried until one finds it: the rarest is met by one in four
DRAWN = 60  # seeds of troubles that are drawn, at most


def caught(mutation: Mutation, drawn: int = DRAWN) -> str | None:
    """The violation that finds the mutation in the way it must be found; None: nothing does."""
    with mutation.planted():
        found = (what_fails(mutation.schedule, seed) for seed in OF_SCHEDULE if mutation.schedule is not None)
        seeds = [*mutation.seeds, *(seed for seed in range(drawn) if seed not in mutation.seeds)]
        more = (outcome_of(seed, kinds=mutation.kinds).failure for seed in seeds)
        return next((what for what in chain(found, more) if what and re.search(mutation.caught_by, what)), None)


def what_fails(schedule: str, seed: int) -> str | None:
    try:
        ATTACKS[schedule](seed)
    except Failed as failed:
        return str(failed.world.violation or failed.__cause__)
    return None


WAITED_FOR = {  # what finds them is that something never happens: a minute each
    "gives_up_for_good_what_is_wanted_again", "cancels_a_cascade_with_who_waits_for_it",
}  # fmt: skip
RARE = {  # one seed in ten thousand meets them; the tests that their finding left
    "cuts_for_an_answer_to_what_it_said_earlier": "replica/test_follower.py -k earlier_cuts_nothing",
    "takes_the_answer_to_its_write_for_the_latest_status": "replica/test_in_sync_writer.py",
    "cancels_a_cascade_with_who_waits_for_it": "replica/test_maintenance.py -k no_second_checkpoint",
}
PLANTED = """
import sys, pytest
from tests.simulation.support.listed import MUTATIONS
with MUTATIONS[sys.argv[1]].planted():
    sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def each(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.long] if name in WAITED_FOR else []) for name in names]


@pytest.mark.parametrize("name", each(name for name in MUTATIONS if name not in RARE))
def test_planted_bug_is_caught(name: str) -> None:
    assert caught(MUTATIONS[name]) is not None


@pytest.mark.parametrize("name", each(RARE))
def test_planted_bug_that_seeds_seldom_meet_is_caught_by_its_own_test(name: str) -> None:
    root = Path(__file__).parents[2]
    call = [sys.executable, "-c", PLANTED, name, *f"tests/serve/{RARE[name]}".split()]
    found = subprocess.run(call, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode, "the test passes with the mistake in the code"
    assert "no tests ran" not in found.stdout


def test_bug_that_merely_breaks_something_is_not_caught() -> None:
    def plant(put: Put) -> None:
        def broken(self: CommitRule) -> int:
            raise AssertionError("not what it is to be found by")

        put(CommitRule, "commit_limit", broken)

    a_crash = Mutation("crashes", plant, MUTATIONS["commits_before_the_slave_has_it"].schedule, LACKS)
    assert caught(a_crash, drawn=0) is None


def test_there_are_enough_of_them() -> None:
    assert len(MUTATIONS) >= 71, "a planted mistake was taken away"


def test_page_names_each_with_what_catches_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|seeds) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted((name, mutation.schedule or "") for name, mutation in MUTATIONS.items())


def test_what_was_planted_is_gone_afterwards() -> None:
    """A later test would otherwise find a bug that is not there."""
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
