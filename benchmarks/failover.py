"""Failover under load: `python -m benchmarks.failover --rounds 20 --kill --stop --restart --rate 20000`.

Each round kills (kill -9), stops (SIGSTOP past the lease, then SIGCONT) or restarts (SIGTERM: masters are handed over)
a random node that masters shards, under messages from idempotent producers with cancels and reschedules, and consumers
of two groups. The set checker says what was acknowledged and what came of it; the figures say how long each shard
paused. The cluster runs in a process of its own, as `delayctl local` does. Exit code 1 when anything was lost, doubled
in store, early, or seen as an error.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
from delayregistry.model import Durability, TopicSpec

from tests.faults.support.failover import FaultCluster, Result, Round, failover_round, freeze, kill, restart, result
from tests.faults.support.sdkload import SdkLoad, Work
from tests.faults.support.separate import Separate

HARMS: dict[str, Callable[[FaultCluster, str], None]] = {"kill": kill, "stop": freeze, "restart": restart}


def run(
    harm: str, rounds: int, work: Work, seed: int, root: Path, asynchronous: bool, say: Callable[[Round], None],
    secure: bool,
) -> Result:  # fmt: skip
    durability = Durability.ASYNC if asynchronous else None
    desired = {"topics": [TopicSpec("t", work.queues)], "durability": durability, "secure": secure}
    with Separate(root, **desired) as cluster:
        cluster.wait_ready(60.0)
        load, choose, began = SdkLoad(cluster.ways(), work, seed), random.Random(seed), time.monotonic()
        load.start()
        done: list[Round] = []
        try:
            time.sleep(2.0)
            for number in range(rounds):
                done.append(failover_round(cluster, load, HARMS[harm], number, choose))
                say(done[-1])
        finally:
            load.finish(300.0)
        found = result(harm, done, load, time.monotonic() - began)
        cluster.check_logs()
        return found


@click.command()
@click.option("--rounds", default=20, show_default=True)
@click.option("--kill", "harms", flag_value="kill", multiple=True, help="Rounds of kill -9.")
@click.option("--stop", "harms", flag_value="stop", multiple=True, help="Rounds of SIGSTOP and SIGCONT.")
@click.option("--restart", "harms", flag_value="restart", multiple=True, help="Rounds of SIGTERM. No harm named: all.")
@click.option("--rate", default=20_000, show_default=True, help="Messages/s.")
@click.option("--queues", default=6, show_default=True)
@click.option("--body", default=256, show_default=True, help="Bytes of a body.")
@click.option("--async", "asynchronous", is_flag=True, help="Durability Async instead of Fsync.")
@click.option("--tls", "beside", is_flag=True, help="Each harm with TLS too, as `delayctl local --secure` has it.")
@click.option("--seed", default=1, show_default=True)
@click.option("--data", type=click.Path(path_type=Path), help="Keep the nodes' directories and logs there.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line: each round, then the result.")
def main(
    rounds: int,
    harms: tuple[str, ...],
    rate: int,
    queues: int,
    body: int,
    asynchronous: bool,
    beside: bool,
    seed: int,
    data: Path | None,
    as_json: bool,
) -> None:
    """Kill, stop or restart nodes that lead shards, under load, again and again."""

    def say(round_: Round) -> None:
        if as_json:
            click.echo(json.dumps({"event": "round", **asdict(round_)}))
            return
        served = max((one.served or 0.0 for one in round_.pauses if one.role == "master"), default=0.0)
        gaps = max((one.enqueue_gap or 0.0 for one in round_.pauses if one.role == "master"), default=0.0)
        text = f"round {round_.number}: {round_.harm} {round_.node}: served again after {served:.2f} s, "
        click.echo(text + f"longest enqueue gap {gaps:.2f} s, whole again after {round_.whole:.2f} s")

    work, good = Work(rate=rate, queues=queues, body_bytes=body), True
    with tempfile.TemporaryDirectory(prefix="failover-") as scratch:
        for kind, secure in itertools.product(harms or HARMS, (False, True) if beside else (False,)):
            root = (data or Path(scratch)) / (f"{kind}-tls" if secure else kind)
            found = run(kind, rounds, work, seed, root, asynchronous, say, secure)
            shown = json.dumps({**found.json(), "tls": secure}) if as_json else f"{'with TLS: ' * secure}{found}"
            click.echo(shown)
            good = good and found.good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
