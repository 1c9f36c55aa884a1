"""Runs seeds, several processes at once: `make simulate SEEDS=10000`; one with its trace: `make simulate SEED=4711`.

It says each minute how far it is. `--from 12300` goes on where a run was ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.simulation.support.scenario import run_seed
from tests.simulation.support.stage import Failed

SUMMED = ("checks", "delivered", "virtual_s", "stored", "terms", "plans")
CHUNK = 10  # seeds that a process takes at a time
CHUNKS_A_CHILD = 100
PROGRESS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    failure: str | None  # the violation
    trace: str  # of a failure
    checks: int = 0
    delivered: int = 0
    virtual_s: float = 0.0
    stored: int = 0  # messages that were acknowledged
    terms: int = 0  # all but each shard's first: failovers and switchovers
    plans: int = 0  # plans of the control loop, each followed until nothing is left to do
    covered: dict[str, int] = field(default_factory=dict)  # see coverage.py


def outcome_of(seed: int, *, whole_trace: bool = False, kinds: tuple[str, ...] = ()) -> Outcome:
    """kinds: of troubles, see run_seed()."""
    try:
        world = run_seed(seed, whole_trace=whole_trace, kinds=kinds)
    except Failed as failed:
        world, cause = failed.world, failed.world.violation and failed.world.violation.__cause__
        why = "".join(traceback.format_exception(cause)) if cause is not None else ""
        return Outcome(seed, str(world.violation), f"{world.report()}\n{why}")
    return Outcome(
        seed, None, world.trace.text() if whole_trace else "", world.checker.checks, world.delivered(),
        world.scheduler.now_ns / 1e9, world.stored(), world.terms(), world.convergence.plans,
        dict(world.coverage.counts),
    )  # fmt: skip


def outcomes(seeds: Iterable[int]) -> list[Outcome]:
    return [outcome_of(seed) for seed in seeds]


def run_seeds(first: int, end: int, processes: int) -> Iterator[list[Outcome]]:
    """Outcomes of the seeds [first, end), by chunks, nearly in order. The pool replaces a process before it grows."""
    chunks = (range(at, min(at + CHUNK, end)) for at in range(first, end, CHUNK))
    if processes == 1:
        yield from map(outcomes, chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), max_tasks_per_child=CHUNKS_A_CHILD) as pool:
        under_way: set[Future[list[Outcome]]] = set()
        for chunk in chunks:
            under_way.add(pool.submit(outcomes, chunk))
            if len(under_way) >= 4 * processes:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
        yield from (one.result() for one in as_completed(under_way))


class Summary:
    """Sums and failures of the seeds from `first` on. Its size does not depend on their number."""

    def __init__(self, first: int) -> None:
        self.started = time.monotonic()
        self.totals = Counter[str]()
        self.covered = Counter[str]()
        self.had = Counter[str]()  # by kind of maintenance: seeds that had at least one
        self.failed: list[int] = []
        self.trace = ""  # of the lowest seed that failed
        self.through = first  # all seeds before it are done
        self._ahead: set[int] = set()  # seeds that are done while some before them are not

    def take(self, outcome: Outcome) -> None:
        self.totals["seeds"] += 1
        self.totals.update({name: getattr(outcome, name) for name in SUMMED})
        self.covered.update(outcome.covered)
        self.had.update(what for what, count in outcome.covered.items() if count)
        self._ahead.add(outcome.seed)
        while self.through in self._ahead:
            self._ahead.remove(self.through)
            self.through += 1
        if outcome.failure is not None:
            if outcome.seed < min(self.failed, default=outcome.seed + 1):
                self.trace = outcome.trace
            self.failed.append(outcome.seed)

    def progress(self, end: int) -> str:
        seconds = time.monotonic() - self.started
        rate = self.totals["seeds"] / max(seconds, 1e-3)
        left = (end - self.through) / max(rate, 1e-3) / 60
        return (
            f"{self.totals['seeds']:,} seeds, {len(self.failed)} failed, {rate:.1f} a second, {left:,.0f} minutes "
            f"left; go on with --from {self.through}"
        )

    def __str__(self) -> str:
        totals = self.totals
        covered = ", ".join(f"{self.covered[what]:,} {what} ({self.had[what]:,})" for what in self.covered)
        return (
            f"{totals['seeds']:,} seeds, {len(self.failed)} failed: {totals['stored']:,} messages acknowledged, "
            f"{totals['delivered']:,} deliveries, {totals['terms']:,} failovers and switchovers, {totals['plans']:,} "
            f"plans followed, {totals['checks']:,} checks, {totals['virtual_s']:,.0f} virtual s, "
            f"{time.monotonic() - self.started:.0f} s\nupkeep (in how many seeds): {covered}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="simulate the cluster")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="this one only, with its whole trace")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--traces", help="a directory for the traces of those that fail")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = outcome_of(arguments.seed, whole_trace=True)
        print(outcome.trace)
        print(f"seed {outcome.seed}: {outcome.failure or 'every invariant held'}")
        return 1 if outcome.failure else 0
    summary, end, said = Summary(arguments.first), arguments.first + arguments.seeds, time.monotonic()
    for chunk in run_seeds(arguments.first, end, arguments.processes):
        for outcome in chunk:
            summary.take(outcome)
            if outcome.failure is not None:
                print(f"seed {outcome.seed}: {outcome.failure}", flush=True)
                if arguments.traces:
                    os.makedirs(arguments.traces, exist_ok=True)
                    with open(f"{arguments.traces}/{outcome.seed}.txt", "w") as file:
                        file.write(outcome.trace)
        if time.monotonic() > said + PROGRESS_SECONDS:
            said = time.monotonic()
            print(summary.progress(end), flush=True)
    if summary.failed and not arguments.traces:
        print(summary.trace)
    print(summary)
    if summary.failed:
        failed = ", ".join(map(str, sorted(summary.failed)))
        print(f"failed: {failed}\nreplay: make simulate SEED={min(summary.failed)}", file=sys.stderr)
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
