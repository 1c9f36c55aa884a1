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
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as made:
        yield made


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_invariants_hold_whatever_happens(pool: ProcessPoolExecutor, first: int) -> None:
    chunks = [range(at, min(at + CHUNK, first + BLOCK)) for at in range(first, first + BLOCK, CHUNK)]
    found: list[Outcome] = [one for chunk in pool.map(outcomes, chunks) for one in chunk]
    failed = [one for one in found if one.failure is not None]
    assert not failed, f"{[one.seed for one in failed]}\n{failed[0].trace[-30_000:]}"
    assert len(found) == BLOCK
    assert sum(one.delivered for one in found) > 50 * BLOCK, "the runs did next to nothing"


# 2922: a step of the clock below the allowed skew kept the only copy from leading. 1960: a damaged copy was thrown away
# that a write under way still named.
@pytest.mark.parametrize("seed", [1960, 2922])
def test_seeds_that_have_failed_once_hold(seed: int) -> None:
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
