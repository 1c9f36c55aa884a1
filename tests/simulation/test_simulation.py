"""Two thousand clusters, each with troubles drawn from its seed, keep the invariants (DESIGN section 11).

A failing seed prints its trace and replays: make simulate SEED=...
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.run import CHUNK, Outcome, outcomes

SEEDS = 2_000
BLOCK = 250
PROCESSES = 2
# The master's write of a larger set is not answered, the new member is damaged and throws its copy away (the registry
# does not name it), then the write lands. Nothing is lost by it: the master's own copy has all. To be mended: a damaged
# copy may go only once its master says that it is counted no longer.
OPEN = (1960,)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as made:
        yield made


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_invariants_hold_whatever_happens(pool: ProcessPoolExecutor, first: int) -> None:
    seeds = [seed for seed in range(first, first + BLOCK) if seed not in OPEN]
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    found: list[Outcome] = [one for chunk in pool.map(outcomes, chunks) for one in chunk]
    failed = [one for one in found if one.failure is not None]
    assert not failed, f"{[one.seed for one in failed]}\n{failed[0].trace[-30_000:]}"
    assert len(found) == len(seeds)
    assert sum(one.delivered for one in found) > 50 * BLOCK, "the runs did next to nothing"


@pytest.mark.parametrize("seed", [2922])  # a step of the clock below the allowed skew kept the only copy from leading
def test_seeds_that_have_failed_once_hold(seed: int) -> None:
    assert outcomes([seed])[0].failure is None


@pytest.mark.xfail(strict=True, reason="a copy that a write under way still names was thrown away")
@pytest.mark.parametrize("seed", OPEN)
def test_seeds_whose_fault_is_still_there(seed: int) -> None:
    assert outcomes([seed])[0].failure is None


def _replayed(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation.run", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("seed", [3, 40])
def test_same_seed_same_trace_whatever_the_hash_seed(seed: int) -> None:
    first, second = _replayed(seed, "1"), _replayed(seed, "2")
    assert first == second
    assert first.count("\n") > 40
