"""Runs seeds, several processes at once: `make simulate SEEDS=10000`; one with its trace: `make simulate SEED=4711`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.scenario import run_seed
from tests.simulation.stage import Failed

SUMMED = ("checks", "delivered", "virtual_s", "stored", "reigns", "plans")
CHUNK = 10  # seeds that a process takes at a time


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    failure: str | None  # the violation
    trace: str  # of a failure
    checks: int = 0
    delivered: int = 0
    virtual_s: float = 0.0
    stored: int = 0  # messages that were acknowledged
    reigns: int = 0  # after each shard's first: failovers and switchovers
    plans: int = 0  # of the control loop, each followed to where nothing is left to do
    covered: dict[str, int] = field(default_factory=dict)  # see coverage.py


def outcome_of(seed: int, *, whole_trace: bool = False) -> Outcome:
    try:
        world = run_seed(seed, whole_trace=whole_trace)
    except Failed as failed:
        world, cause = failed.world, failed.world.violation and failed.world.violation.__cause__
        why = "".join(traceback.format_exception(cause)) if cause is not None else ""
        return Outcome(seed, str(world.violation), f"{world.report()}\n{why}")
    return Outcome(
        seed, None, world.trace.text() if whole_trace else "", world.checker.checks, world.delivered(),
        world.scheduler.now_ns / 1e9, world.stored(), world.reigns(), world.convergence.plans,
        dict(world.coverage.counts),
    )  # fmt: skip


def outcomes(seeds: Iterable[int]) -> list[Outcome]:
    return [outcome_of(seed) for seed in seeds]


def run_seeds(seeds: Iterable[int], processes: int) -> Iterator[Outcome]:
    """As they come."""
    todo = list(seeds)
    chunks = [todo[at : at + CHUNK] for at in range(0, len(todo), CHUNK)]
    if processes == 1:
        for chunk in chunks:
            yield from outcomes(chunk)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(outcomes, chunk) for chunk in chunks]):
            yield from done.result()


def main() -> int:
    parser = argparse.ArgumentParser(description="simulate the cluster")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one only, with its whole trace")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--traces", help="a directory for the traces of those that fail")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = outcome_of(arguments.seed, whole_trace=True)
        print(outcome.trace)
        print(f"seed {outcome.seed}: {outcome.failure or 'every invariant held'}")
        return 1 if outcome.failure else 0
    started, failed, totals = time.monotonic(), [], Counter[str]()
    for outcome in run_seeds(range(arguments.first, arguments.first + arguments.seeds), arguments.processes):
        totals["seeds"] += 1
        totals.update({name: getattr(outcome, name) for name in SUMMED})
        if outcome.failure is not None:
            failed.append(outcome)
            print(f"seed {outcome.seed}: {outcome.failure}", flush=True)
            if arguments.traces:
                os.makedirs(arguments.traces, exist_ok=True)
                with open(f"{arguments.traces}/{outcome.seed}.txt", "w") as file:
                    file.write(outcome.trace)
    if failed and not arguments.traces:
        print(min(failed, key=lambda one: one.seed).trace)
    print(
        f"{totals['seeds']:,} seeds, {len(failed)} failed: {totals['stored']:,} messages acknowledged, "
        f"{totals['delivered']:,} deliveries, {totals['reigns']:,} failovers and switchovers, {totals['plans']:,} "
        f"plans followed, {totals['checks']:,} checks, {totals['virtual_s']:,.0f} virtual s, "
        f"{time.monotonic() - started:.0f} s"
    )
    if failed:
        print(f"replay: make simulate SEED={min(one.seed for one in failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
