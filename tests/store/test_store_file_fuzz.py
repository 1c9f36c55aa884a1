"""Damaged files of every kind: a refusal that says why, or the right answer to everything; never a third thing.

Each case takes the files that some life left, does one thing of damaging.py to them, opens the shard and asks it all
that can be asked (examining.py). Only an unsynced tail may be dropped. A failure names its case:
DELAY_FUZZ_SEED=1 DELAY_FUZZ_ONLY=4711 does it again.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import traceback
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import FrameType

import pytest
from delaynode.store.errors import Damaged
from delaynode.store.verify import Finding, verify_shard

from tests.store.support.damaging import Content, Sources, damage, disk_of, part_of
from tests.store.support.examining import Examination, WrongAnswer
from tests.store.support.histories import Life, a_long_life
from tests.store.support.world import ROOT

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_CASES", "30000"))
ONLY = os.environ.get("DELAY_FUZZ_ONLY")
WORKERS = 2
CHUNK = 500
LIVES = 12
SECONDS = 20  # a case takes some milliseconds; more than this is a hang
VERIFY_EVERY = 4  # cases: `delaynode verify` looks at the files too
PASSED: dict[int, set[bytes]] = defaultdict(set)
"""By life: digests of shards that answered everything right. Much damage leaves nothing that a shard sees."""


@cache
def lives() -> tuple[list[Life], tuple[Content, ...]]:
    """Lives of this shard, and the files of others."""
    mine = [a_long_life(1_000 * SEED + n) for n in range(LIVES)]
    strangers = [a_long_life(1_000 * SEED + n, uid=0xBAD0_0000 + n) for n in range(3)]  # the same life, another uid
    return mine, tuple(life.past.content for life in strangers)


class Hangs(Exception):
    pass


def _alarm(number: int, frame: FrameType | None) -> None:
    raise Hangs(f"more than {SECONDS} s")


@dataclass(frozen=True, slots=True)
class Verdict:
    case: int
    kind: str
    part: str
    outcome: str  # refused, right, cut, or what is wrong
    what: str
    trace: str = ""

    @property
    def bad(self) -> bool:
        return self.outcome not in ("refused at once", "refused later", "right", "tail cut off")


def run_case(case: int) -> Verdict:
    mine, strangers = lives()
    rng = random.Random(f"{SEED} {case}")
    which = rng.randrange(LIVES)
    life = mine[which]
    content = dict(life.past.content)
    kind, what = damage(content, rng, Sources(strangers, life.earlier))
    part = part_of(what.split(":")[0])
    examination = Examination(life.past, disk_of(content, case), PASSED[which])
    outcome = trace = ""
    damaged: list[Finding] | None = None
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        if case % VERIFY_EVERY == 0:
            damaged = look(content, case)
        examination.run()
        outcome = "tail cut off" if examination.cut_off else "right"
    except Damaged as error:
        outcome = "refused later" if examination.opened else "refused at once"
        if not str(error):
            outcome = "refused without a reason"
        if damaged is not None and not damaged:
            outcome, trace = "not seen by verify", str(error)
    except WrongAnswer as wrong:
        outcome, trace = "WRONG ANSWER", f"{wrong}"[:1000]
    except Exception as error:
        outcome, trace = type(error).__name__, traceback.format_exc()[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Verdict(case, kind, part, outcome, what, trace)


def look(content: Content, case: int) -> list[Finding]:
    """The damage that `delaynode verify` finds; it must not change any file."""
    found: list[Finding] = []
    disk = disk_of(content, case)
    verify_shard(disk, ROOT, found.append)
    if {path: bytes(file.data) for path, file in disk.files.items()} != content:
        raise WrongAnswer("verify changed the files")
    return [finding for finding in found if not finding.note]


def run_cases(first: int, count: int) -> tuple[Counter[tuple[str, str, str]], list[Verdict]]:
    signal.signal(signal.SIGALRM, _alarm)
    verdicts = [run_case(case) for case in range(first, first + count)]
    counts = Counter((v.kind, v.part, v.outcome) for v in verdicts)
    return counts, [v for v in verdicts if v.bad]


@pytest.mark.parametrize("part", ["log", "timerlog", "queue", "checkpoint", "wheels", "shard.json"])
def test_a_file_of_another_shard_that_lived_the_same_life_is_noticed_or_not_needed(part: str) -> None:
    """Every byte but the uid is as it should be, so nothing but the uid can tell, and bodies are right in any case."""
    mine, strangers = lives()
    refused = 0
    for life, stranger in zip(mine, strangers, strict=False):
        for path in [path for path in stranger if part_of(path) == part and path in life.past.content]:
            examination = Examination(life.past, disk_of(life.past.content | {path: stranger[path]}, 1))
            try:
                examination.run()
            except Damaged:
                refused += 1
    assert refused or part in ("wheels", "log", "checkpoint")  # the previous checkpoint takes its place


@pytest.mark.long
@pytest.mark.timeout(3600)  # two minutes where nothing else runs; CI runs it beside others
def test_damaged_files_are_refused_or_answer_right() -> None:
    if ONLY is not None:
        counts, bad = run_cases(int(ONLY), 1)
        assert not bad, bad[0]
        return
    lives()  # before the fork: the workers share them
    counts, bad = Counter(), []
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")) as pool:
        work = [pool.submit(run_cases, first, min(CHUNK, CASES - first)) for first in range(0, CASES, CHUNK)]
        for done in work:
            some, wrong = done.result()
            counts += some
            bad += wrong
    outcomes = Counter[str]()
    for (_, _, outcome), count in counts.items():
        outcomes[outcome] += count
    print(f"file fuzz, seed {SEED}: {CASES} cases: {dict(outcomes)}")
    report(bad)
    assert not bad, f"{len(bad)} of {CASES} cases, the first: {bad[0]}"
    assert min(outcomes["right"], outcomes["refused at once"], outcomes["tail cut off"]) > CASES // 500


def report(bad: list[Verdict]) -> None:
    """Print the wrong cases by kind, for the developer who mends them."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in bad:
        groups.setdefault((verdict.outcome, verdict.part, verdict.kind), []).append(verdict)
    for key, verdicts in sorted(groups.items()):
        first = verdicts[0]
        last = first.trace.strip().splitlines()[-1] if first.trace else ""
        print(*key, len(verdicts), f"e.g. case {first.case}: {first.what}: {last[:300]}")
