"""250 clusters, each with troubles drawn from its seed, keep the invariants (docs/protocol.md).

A failing seed prints its trace and replays: make simulate SEED=...
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.run import CHUNK, Outcome, outcomes

SEEDS = 250
BLOCK = 250
PROCESSES = 2
LEAST = {  # share of the runs of a block that have so much as one
    "checkpoints": 0.95, "transfers": 0.95, "segments freed": 0.9, "dead letters": 0.85, "cascades": 0.8, "relocations":
    0.7, "slots reused": 0.65, "redriven": 0.5, "cleanings": 0.4, "switchovers": 0.1, "far behind": 0.01, "expired":
    0.0, "flushes in pieces": 0.5, "prepared to lead": 0.01, "taken up again": 0.1,
}  # fmt: skip
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_invariants_hold_whatever_happens(pool: ProcessPoolExecutor, first: int) -> None:
    chunks = [range(at, min(at + CHUNK, first + BLOCK)) for at in range(first, first + BLOCK, CHUNK)]
    found: list[Outcome] = [one for chunk in pool.map(outcomes, chunks) for one in chunk]
    failed = [one for one in found if one.failure is not None]
    assert not failed, f"{[one.seed for one in failed]}\n{failed[0].trace[-30_000:]}"
    assert len(found) == BLOCK
    assert sum(one.delivered for one in found) > 50 * BLOCK, "the runs did next to nothing"
    had = Counter(what for one in found for what, count in one.covered.items() if count)
    missed = {what: had[what] for what in found[0].covered if had[what] < LEAST[what] * BLOCK}
    assert not missed, f"so few of {BLOCK} runs have had it, and what is not there is not tested"


def test_a_few_clusters_keep_the_invariants() -> None:
    found = outcomes(range(500, 510))
    failed = [one for one in found if one.failure is not None]
    assert not failed, f"{[one.seed for one in failed]}\n{failed[0].trace[-30_000:]}"
    assert sum(one.delivered for one in found) > 50 * len(found), "the runs did next to nothing"


def _replayed(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation.run", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("seed", [3, 40])
def test_same_seed_same_trace_whatever_the_hash_seed(seed: int) -> None:
    first, second = _replayed(seed, "1"), _replayed(seed, "2")
    assert first == second
    assert first.count("\n") > 40
