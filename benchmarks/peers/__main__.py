"""The same load on DelayCluster, PostgreSQL, Redis and RocketMQ: `python -m benchmarks.peers`.

Callers store one durable message a request, due in half an hour, and wait for the answer: over connections of their
own, over shared ones, and through DelayCluster's streams. With --late, messages due in 1 .. 3 s are sent at a steady
rate, and what is measured is how late they are delivered; PostgreSQL and Redis are polled.

In each round the systems take turns, each with a new server. What can't be had here is told, and left out. `bare` is
no store: gRPC's own server, which writes and syncs each request, and shows what is the least that one can cost.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from benchmarks.peers import bare, client, delaycluster, postgres, redis, rocketmq, table
from benchmarks.peers.loads import Load, Run, chosen, wrong
from benchmarks.peers.processes import QUEUES, Failed, Missing, System
from benchmarks.workloads import machine

SYSTEMS = {module.SYSTEM.client: module.SYSTEM for module in (delaycluster, postgres, redis, rocketmq, bare)}
PEERS = [name for name in SYSTEMS if name != bare.SYSTEM.client]
STALL_S = 0.5


@dataclass(slots=True)
class Bench:
    """scratch: the client and the servers' data are below it. failed: what went wrong, by system; it is left out of
    the rounds that follow."""

    scratch: Path
    binary: Path
    loads: Sequence[Load]
    seconds: float
    warmup: float
    busy: bool
    runs: list[Run] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def round(self, number: int, system: System) -> None:
        data = self.scratch / f"{system.client}-{number}"
        data.mkdir()
        try:
            self._measure(number, system, data)
        except Failed as error:
            self.failed[system.name] = str(error)
            _say(f"{system.name} FAILED: {error}")
        finally:
            shutil.rmtree(data, ignore_errors=True)

    def _measure(self, number: int, system: System, data: Path) -> None:
        acknowledged = 0
        with system.start(data, self.scratch) as server:
            for load in self.loads:
                if load.window and not system.streams:
                    continue
                with machine.StallWatch() as stalls:
                    found, more = client.measure(
                        self.binary, system, server, load, self.seconds, self.warmup, data / "client.log", self.busy
                    )
                if not load.rate or server.keeps_delivered:
                    acknowledged += more
                if fault := wrong(acknowledged, server.stored(), found):
                    raise Failed(f"{load.label}: {fault}")
                self.runs.append(Run(number, system.name, load, found))
                _say(
                    f"round {number}, {system.name}, {load.label}: {found.per_second:,.0f}/s, p50 {found.p50_ms:,.2f}, "
                    f"p99 {found.p99_ms:,.2f}, max {found.max_ms:,.1f} ms; {acknowledged:,} stored, as acknowledged"
                )
                if stalls.longest_s > STALL_S:
                    _say(f"the machine stood still for {stalls.longest_s:.1f} s during this run")


def prepared(systems: Sequence[System], scratch: Path) -> tuple[list[System], dict[str, str]]:
    """The systems that can be started, and why the others can't, by name."""
    found, missing = [], {}
    for system in systems:
        try:
            _say(f"{system.name}: {system.prepare(scratch)}")
            found.append(system)
        except (Missing, Failed) as error:
            missing[system.name] = str(error)
            _say(f"{system.name} can't be had here: {error}")
    return found, missing


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, _terminated)
    rate = options.rate if options.late else None
    loads = chosen(options.conns, options.callers, options.shared, options.streams, options.window, rate)
    with tempfile.TemporaryDirectory(prefix="delay-peers-", dir=options.data) as directory:
        scratch = Path(directory)
        scratch.chmod(0o755)  # PostgreSQL runs as another user
        try:
            binary = client.compiled(scratch)
        except Missing as error:
            sys.exit(f"nothing can be measured: {error}")
        systems_here = SYSTEMS | {delaycluster.SYSTEM.client: delaycluster.system(options.queues)}
        systems, missing = prepared([systems_here[name] for name in options.systems], scratch)
        bench = Bench(scratch, binary, loads, options.seconds, options.warmup, options.busy)
        try:
            for number in range(options.rounds):
                turn = number % max(1, len(systems))
                for system in systems[turn:] + systems[:turn]:
                    if system.name not in bench.failed:
                        bench.round(number + 1, system)
        except KeyboardInterrupt:
            sys.exit(130)
        _print(bench, missing, options.rounds)
    sys.exit(1 if bench.failed or not bench.runs else 0)


def _print(bench: Bench, missing: dict[str, str], rounds: int) -> None:
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, {machine.describe(bench.scratch)}")
    busy = ", beside a process that keeps one core busy" if bench.busy else ""
    of_each = f"{bench.seconds:g} s a run, bodies of {client.BODY_BYTES} B"
    print(f"{rounds} round{'s' if rounds > 1 else ''}, {of_each}{busy}; medians of the rounds")
    print()
    print("\n".join(table.lines(bench.runs)))
    for name, why in missing.items():
        print(f"\n{name} is not in the table, it can't be had here: {why}")
    for name, why in bench.failed.items():
        print(f"\n{name} FAILED and was left out from then on: {why}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _terminated(*_: object) -> NoReturn:
    sys.exit(143)  # unwinds: the servers and their directories go


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--systems", nargs="+", choices=SYSTEMS, default=PEERS, help="default: all but bare")
    add("--conns", nargs="*", type=int, default=[1, 10, 50, 200], metavar="N", help="clients, a connection each")
    add("--callers", type=int, default=200, help="callers over the shared connections; 0: without that load")
    add("--shared", type=int, default=4, metavar="CONNECTIONS", help="connections that the callers share")
    add("--streams", type=int, default=20, help="EnqueueStreams of DelayCluster; 0: without that load")
    add("--queues", type=int, default=QUEUES, help="of DelayCluster's topic")
    add("--window", type=int, default=16, help="requests that each stream keeps unanswered")
    add("--seconds", type=float, default=10.0, help="how long a run is measured")
    add("--warmup", type=float, default=2.0, help="seconds of the same load before that")
    add("--rounds", type=int, default=3, help="how often the systems take turns")
    add("--late", action="store_true", help="how late messages are delivered, instead of the loads above")
    add("--rate", type=int, default=1_000, help="with --late: messages a second")
    add("--busy", action="store_true", help="beside a process that keeps one core busy")
    add("--data", type=Path, help="where all servers keep their data: on the disk that is meant")
    options = parser.parse_args()
    connections = [*options.conns, options.shared, options.streams + 1]
    if not all(0 < count <= postgres.CONNECTIONS - 10 for count in connections):
        parser.error(f"connections: from 1 to {postgres.CONNECTIONS - 10}")
    counts = options.queues, options.window, options.rounds, options.rate, options.callers + 1
    if min(counts) < 1 or options.seconds <= 0:
        parser.error("--queues, --window, --rounds, --rate and --seconds must be above 0, --callers not below")
    return options


if __name__ == "__main__":
    main()
