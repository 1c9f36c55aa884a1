"""`delayctl local`: a cluster of real node processes on this machine, until Ctrl-C."""

from __future__ import annotations

import json
import select
import signal
import socket
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from delayapi.events import EventLog
from delaylocal import LocalCluster, LocalClusterError
from delaylocal.own_keys import SERVER_NAME, OwnKeys
from delaynode.config import zone
from delayregistry.codec import camel
from delayregistry.model import MIN_LEASE_SECONDS, Delivery, Durability, TopicQuotas, TopicSpec

from delayctl.targets.contexts import BadConfig, Context, config_path, load, save

CONTEXT = "local"
DEFAULT_QUEUES = 8
SLOW_START_S = 10.0
BLOCKED_S = 1.0  # nothing but blocked shards was missing for so long: they wait for a person
_DELIVERIES = {"master": Delivery.MASTER, "master-and-slave": Delivery.MASTER_AND_SLAVE}


def _topics(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[TopicSpec, ...]:
    topics = []
    for value in values:
        name, _, rest = value.partition(":")
        queues, _, rate = rest.partition(":")
        try:
            limit = int(rate) if rate else None
            topics.append(TopicSpec(name, int(queues or DEFAULT_QUEUES), max_release_per_second=limit))
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: expected NAME:QUEUES[:RATE] ({error})", ctx, param) from error
    return tuple(topics)


def _quotas(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, TopicQuotas]:
    known = {camel(name): name for name in TopicQuotas.__slots__}
    found = {}
    for value in values:
        topic, _, rest = value.partition(":")
        try:
            pairs = [one.partition("=") for one in rest.split(",")]
            if unknown := [name for name, _, _ in pairs if name not in known]:
                raise ValueError(f"{unknown[0]!r} is none of {', '.join(known)}")
            found[topic] = TopicQuotas(**{known[name]: int(limit) for name, _, limit in pairs})
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: expected NAME:QUOTA=N[,QUOTA=N] ({error})", ctx, param) from error
    return found


def _zones(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    try:
        return tuple(zone(name.strip()) for name in value.split(",")) if value else ()
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command("local")
@click.option("--nodes", type=click.IntRange(1, 100), help="Node processes [default: as DIR has it, else 3].")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME:QUEUES[:RATE]",
    callback=_topics,
    help=f"A topic; may be repeated, and added to later [default queues: {DEFAULT_QUEUES}]. RATE: the most messages a "
    "second that it may release [default: no limit].",
)
@click.option(
    "--quotas",
    multiple=True,
    metavar="NAME:QUOTA=N,...",
    callback=_quotas,
    help="Quotas of a topic that --topic names: pendingMessages, pendingBytes, enqueuePerSecond [default: no limits].",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".delaycluster"),
    show_default=True,
    metavar="DIR",
    help="Where everything is kept. Started again on it, the cluster goes on from there.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=7070,
    show_default=True,
    help="gRPC at PORT, PORT+1, ...; HTTP at PORT+100, PORT+101, ...; 0: any free ones.",
)
@click.option(
    "--durability",
    type=click.Choice([kind.value.lower() for kind in Durability]),
    help="When a message counts as stored: on the disk, or in the page cache [default: as DIR has it, else fsync].",
)
@click.option(
    "--horizon-days", type=click.IntRange(1, 3_660), help="The longest delay [default: as DIR has it, else 40]."
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 7),
    help="Copies of each shard, on as many nodes [default: as DIR has it, else 1].",
)
@click.option(
    "--min-in-sync",
    type=click.IntRange(1, 7),
    help="With fewer copies in sync, new messages are refused [default: as DIR has it, else 1].",
)
@click.option(
    "--delivery",
    type=click.Choice(["master", "master-and-slave"]),
    help="Who hands messages out: only masters, or in-sync slaves too [default: as DIR has it, else master].",
)
@click.option(
    "--lease-seconds",
    type=click.IntRange(MIN_LEASE_SECONDS, 3_600),
    help="After so long without a sign of life a node is dead [default: as DIR has it, else 3].",
)
@click.option(
    "--zones",
    metavar="ZONE,...",
    callback=_zones,
    help="The nodes are in these zones in turn, and the copies of a shard in different ones [default: no zones].",
)
@click.option(
    "--secure/--no-secure",
    default=None,
    help="TLS, tokens and rights, by keys of its own in DIR/security, and a context for them [default: as DIR has it].",
)
@click.option("--json", "as_json", is_flag=True, help="No words for people on stderr: events only.")
def local(
    topics: tuple[TopicSpec, ...],
    quotas: dict[str, TopicQuotas],
    data: Path,
    durability: str | None,
    delivery: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a cluster on this machine until Ctrl-C.

    Prints one JSON line, {"event": "ready", "endpoints": [...], "http": [...], "pids": {...}}, once every shard is
    served, or can't be: "blocked" has the latter, each with the reason. Later events (a node died, was restarted) are
    JSON lines on stderr. A node process that dies is restarted.
    SIGUSR1, or `delayctl nodes restart`, restarts the nodes one at a time.
    """
    if unnamed := quotas.keys() - {topic.name for topic in topics}:
        raise click.UsageError(f"--quotas: no --topic names {', '.join(sorted(unnamed))}")
    topics = tuple(replace(topic, quotas=quotas.get(topic.name)) for topic in topics)
    if not topics and not (data / "registry.db").exists():
        raise click.UsageError(f"no cluster in {data} yet: name its first topic, --topic NAME:QUEUES")
    events = EventLog()
    cluster = LocalCluster(
        data,
        topics=topics,
        durability=None if durability is None else Durability(durability.capitalize()),
        delivery=None if delivery is None else _DELIVERIES[delivery],
        on_event=events,
        **options,
    )
    try:
        with closing(_Signals()) as signals, cluster:
            _await_ready(cluster, signals, quiet=as_json)
            while not signals.stopping:
                if signals.next() == signal.SIGUSR1:
                    _restart_each(cluster, signals, events)
            killed = cluster.stop()
    except LocalClusterError as error:
        raise click.ClickException(str(error)) from error
    if killed:
        raise click.ClickException(f"had to be killed: {', '.join(killed)}")


def _await_ready(cluster: LocalCluster, signals: _Signals, *, quiet: bool) -> None:
    waited_s, pause_s, blocked_s = 0.0, 0.03, 0.0
    while not signals.stopping:
        faults = cluster.unready()
        blocked = cluster.blocked() if faults else {}
        blocked_s = blocked_s + pause_s if blocked else 0.0
        if not faults or blocked_s > BLOCKED_S:
            ready = {"event": "ready", "endpoints": cluster.endpoints, "http": cluster.http, "pids": cluster.pids}
            if cluster.keys is not None:
                ready["context"] = _write_context(cluster, cluster.keys)
            click.echo(json.dumps({**ready, **({"blocked": blocked} if blocked else {})}))
            for name, why in blocked.items() if not quiet else ():
                click.echo(f"not served: shard {name} {why}; see docs/operations.md", err=True)
            if not quiet and sys.stderr.isatty():
                click.echo(f"ready; data in {cluster.data}; Ctrl-C stops the cluster", err=True)
                if cluster.keys is not None:
                    click.echo(f"its context is {CONTEXT!r}: `delayctl --context {CONTEXT} ...`", err=True)
            return
        if waited_s < SLOW_START_S <= waited_s + pause_s and not quiet:
            click.echo(f"still waiting: {faults[0]} ({len(faults)} in all); logs in {cluster.data / 'logs'}", err=True)
        waited_s += pause_s
        signals.next(pause_s)


def _write_context(cluster: LocalCluster, keys: OwnKeys) -> str:
    """How the admin of this cluster reaches it. It is the current context where there is none."""
    endpoints, ca, token = ",".join(cluster.endpoints), str(keys.ca), str(keys.token_file)
    context = Context(endpoints, ca=ca, server_name=SERVER_NAME, token_file=token)
    try:
        file = load(config_path())
        former = file.contexts.get(CONTEXT, context)
        save(config_path(), file.with_context(CONTEXT, context))
    except BadConfig as error:
        raise click.ClickException(str(error)) from None
    if former.ca != context.ca:
        click.echo(
            f"context {CONTEXT!r} was that of {former.endpoint or former.kube}, and is this cluster's now", err=True
        )
    return CONTEXT


def _restart_each(cluster: LocalCluster, signals: _Signals, events: EventLog) -> None:
    try:
        cluster.restart_each(
            lambda node: events({"event": "node-back", "node": node}), given_up=lambda: signals.stopping
        )
    except (LocalClusterError, ProcessLookupError) as error:
        events({"event": "restart-given-up", "reason": str(error)})


class _Signals:
    """What this process is told: to stop (SIGINT, SIGTERM, SIGHUP), or to restart its nodes (SIGUSR1).

    A socket that Python writes to when the signal comes wakes this thread. A lock would not: neither where another
    thread received the signal, nor where it came just before this one began to wait.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, self._hear)

    def next(self, timeout_s: float | None = None) -> int | None:
        """The next signal; None when none comes in time."""
        if not select.select([self._heard], [], [], timeout_s)[0]:
            return None
        return self._heard.recv(1)[0]

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._heard.close()
        self._told.close()

    def _hear(self, signum: int, _: object) -> None:
        self.stopping = self.stopping or signum != signal.SIGUSR1
