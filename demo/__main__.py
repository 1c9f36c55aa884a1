"""`python -m demo`: starts a local cluster, runs the demo on it, prints the checked result."""

import asyncio
import json
import secrets
import signal
import sys
import tempfile
from pathlib import Path

import click
from delayclient import DelayError
from delaylocal import LocalCluster, LocalClusterError
from delayregistry.model import TopicSpec
from rich.console import Console

from demo import run
from demo.crew import WorkerDied
from demo.flights import FlightsMissing, load_flights
from demo.view import choose_view, final_table


@click.command(context_settings={"show_default": True})
@click.option("--limit", type=click.IntRange(1), help="Only the first N flights [default: all].")
@click.option("--nodes", type=click.IntRange(1, 20), default=3, help="Node processes.")
@click.option("--queues", type=click.IntRange(1, 100), default=8, help="Queues of the topic.")
@click.option("--seconds", type=click.IntRange(5, 600), default=30, help="How long the folded day is.")
@click.option("--kill", is_flag=True, help="kill -9 a random node in the morning rush.")
@click.option("--seed", type=int, help="Picks the node and the moment of --kill [default: random].")
@click.option("--port", type=click.IntRange(0, 65_435), default=0, help="The first node's port; 0: any free ones.")
@click.option("--plain", is_flag=True, help="Progress lines instead of the live view.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output instead of the table.")
def main(
    limit: int | None,
    nodes: int,
    queues: int,
    seconds: int,
    kill: bool,
    seed: int | None,
    port: int,
    plain: bool,
    as_json: bool,
) -> None:
    """A year of real flights as delayed messages, folded onto one short day.

    Each flight becomes a departure reminder. Those that were not flown are cancelled, two workers receive the others,
    and every message is accounted for. Exit status 1 when one is missing, early, altered, or came back from a cancel.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: the nodes and their directory go
    settings = run.Settings(seconds * 1000, kill, secrets.randbelow(1_000_000) if seed is None else seed)
    topics = [TopicSpec(run.TOPIC, queues), TopicSpec(run.PROBE, queues)]
    try:
        with tempfile.TemporaryDirectory(prefix="delaycluster-demo-") as name, choose_view(plain or as_json) as view:
            directory = Path(name)
            with LocalCluster(directory / "cluster", nodes=nodes, topics=topics, port=port) as cluster:
                flights = load_flights(limit)
                cluster.wait_ready()
                view.say(
                    f"{len(flights):,} flights; {nodes} nodes serve {queues} queues at {', '.join(cluster.endpoints)}"
                )
                outcomes = asyncio.run(run.run(flights, cluster, directory, settings, view))
    except (FlightsMissing, LocalClusterError, DelayError, WorkerDied) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(outcomes.as_dict()))
    else:
        Console().print(final_table(outcomes.verdict))
    for words in outcomes.verdict.failures:
        click.echo(f"FAILED: {words}", err=True)
    sys.exit(0 if outcomes.verdict.ok else 1)


if __name__ == "__main__":
    main()
