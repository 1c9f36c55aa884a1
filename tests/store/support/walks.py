"""Worlds and walks from a seed: the same seed always does the same."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from delayapi.units import DAY_MS, HOUR_MS
from delaynode.store import columns, formats
from delaynode.store.log import checks, commit_log, extents, offsets
from delaynode.store.maintenance import evacuation, reclaim
from delaynode.store.queue import dead_letters, groups
from delaynode.store.timer import cascade, due_window, index, timer_log

from tests.store.support.consuming import World
from tests.store.support.steps import Step, finale
from tests.store.support.world import SMALL

FACTOR = float(os.environ.get("DELAY_EXAMPLES", "1"))
Steps = dict[str, tuple[int, Step]]


def times(count: int) -> int:
    """`count` in the default run, more or fewer by DELAY_EXAMPLES."""
    return max(1, round(count * FACTOR))


@contextmanager
def small_blocks(rng: random.Random) -> Iterator[None]:
    """Read sizes at which a handful of units or frames needs several reads."""
    first, largest = rng.choice([(1, 1), (2, 4), (3, 64), (256, 65536)])
    with (
        patch.object(timer_log, "FIRST_BLOCK", first),
        patch.object(timer_log, "LARGEST_BLOCK", largest),
        patch.object(commit_log, "SCAN_BYTES", rng.choice([100, 700, 8 << 20])),
        patch.object(extents, "GAP_BYTES", rng.choice([0, 30, 4096])),
        patch.object(commit_log, "MAX_UNSORTED_RUNS", rng.choice([0, 2, 8])),
        patch.object(cascade, "PART_UNITS", rng.choice([1, 2, 8_192])),
        patch.object(index, "STEP_UNITS", rng.choice([5, 262_144, 262_144])),
        patch.object(evacuation, "BATCH_BYTES", rng.choice([30, 100, 4 << 20])),
        patch.object(reclaim, "TRIM_ROWS", rng.choice([1, 7, 262_144])),
        patch.object(groups, "FILTER_STEP", rng.choice([1, 3, 4096])),
        patch.object(groups, "COUNT_ROWS", rng.choice([1000, 4096])),
        patch.object(offsets, "MAX_GAP_ROWS", rng.choice([1, 2, 4096])),
        patch.object(dead_letters, "SWEEP_ROWS", rng.choice([1, 1024])),
        patch.object(dead_letters, "SCAN_ROWS", rng.choice([1, 2, 4096])),
    ):
        yield


@contextmanager
def few_rows(few: int, heap: int) -> Iterator[None]:
    """Up to `few` rows are taken as plain numbers, so many single arrivals wait in the due window's heap."""
    with (
        patch.object(columns, "FEW", few),
        patch.object(checks, "MAX_SCALAR_RECORDS", min(few, 3)),
        patch.object(checks, "MAX_SCALAR_UNITS", min(few, 4)),
        patch.object(due_window, "MAX_HEAP", heap),
    ):
        yield


FEW_ROWS = [(0, 0), (1, 1), (2, 3), (8, 1024), (8, 1024)]  # as in production at the end


def format_of(seed: int) -> int:
    drawn = random.Random(f"{seed}/format").randint(formats.OLDEST, formats.NEWEST - 1)
    return formats.NEWEST if drawn > formats.OLDEST and random.Random(f"{seed}/ids").random() < 0.6 else drawn


def tidy_world(seed: int) -> World:
    """A world whose files are so small, and whose retention is so short, that there is always something to free."""
    rng = random.Random(seed)
    config = replace(
        SMALL,
        log_segment_bytes=rng.choice([300, 900, 2000]),
        timer_segment_bytes=rng.choice([52 * 3, 52 * 12]),
        queue_segment_bytes=rng.choice([40, 40 * 7]),
        window_budget=rng.choice([8, 50, 10**6]),
        lookahead_ms=rng.choice([1000, 120_000, HOUR_MS]),
        max_attempts=rng.choice([1, 2]),
        keep=replace(SMALL.keep, retention_ms=rng.choice([1, 1000, 60_000])),
        chunk_units=rng.choice([1, 3, 3, 20]),
        format=format_of(seed),
        max_message_ids=random.Random(f"{seed}/ids").choice([8, 10**6]),
    )
    return World(seed, config, page=rng.choice([16, 64, 512]))


def world_of(seed: int) -> World:
    """A world with limits and disk drawn from the seed."""
    rng = random.Random(seed)
    config = replace(
        SMALL,
        horizon_ms=rng.choice([DAY_MS // 4, DAY_MS, DAY_MS, 2 * DAY_MS, 3 * DAY_MS, 3 * DAY_MS, 40 * DAY_MS]),
        max_delay_ms=rng.choice([None, None, None, 2 * DAY_MS]),
        lookahead_ms=rng.choice([1000, 120_000, HOUR_MS]),
        window_budget=rng.choice([1, 8, 8, 50, 10**6]),
        max_tick=rng.choice([1, 5, 5, 1000]),
        max_attempts=rng.choice([1, 2, 3]),
        max_unacked=rng.choice([3, 10, 10]),
        max_dead_letters=rng.choice([0, 2, 100]),
        dlq_retention_ms=rng.choice([2000, HOUR_MS, 7 * DAY_MS]),
        log_segment_bytes=rng.choice([200, 2000, 1 << 20]),
        timer_segment_bytes=rng.choice([52 * 3, 52 * 12, 1 << 20]),
        queue_segment_bytes=rng.choice([40, 40 * 7, 1 << 20]),
        keep=replace(SMALL.keep, retention_ms=rng.choice([1000, HOUR_MS, HOUR_MS, 10 * 365 * DAY_MS])),
        chunk_units=rng.choice([1, 3, 3, 262_144]),
        format=format_of(seed),
        max_message_ids=random.Random(f"{seed}/ids").choice([8, 10**6]),
    )
    return World(seed, config, fsync=rng.random() < 0.8, page=rng.choice([16, 64, 512]))


def walk(
    seed: int,
    steps: Steps,
    length: int,
    make: Callable[[int], World] = world_of,
    few: tuple[int, int] | None = None,
) -> World:
    """Take `length` steps, drawn from the seed by their weights; then the finale. few: of few_rows(), else drawn."""
    rng = random.Random(seed)
    names = [name for name, (weight, _) in steps.items() for _ in range(weight)]
    done: list[str] = []
    with small_blocks(rng), few_rows(*(few or random.Random(~seed).choice(FEW_ROWS))):
        world = make(seed)
        try:
            for _ in range(length):
                done.append(rng.choice(names))
                steps[done[-1]][1](world, rng.randint)
            done.append("finale")
            finale(world)
        except Exception as error:
            error.add_note(f"seed {seed}, length {length}, after: {', '.join(done)}")
            raise
    return world
