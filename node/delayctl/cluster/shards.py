"""`delayctl shards [list] | move | switchover | retire`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from delayapi.durations import format_ms
from delayapi.options import DURATION

from delayctl.common import (
    FAILED,
    UNKNOWN,
    CommandSettings,
    common_options,
    fail,
    print_table,
    put_json,
    run_admin,
)
from delayctl.targets.options import ProgressBar, data_option, open_registry_editor

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.admin.views import Wheel
    from delayclient.routing.routing import QueueRoute

    from delayctl.cluster.copies import ReplicaRow, ShardCopies
    from delayctl.targets.registry import RegistryEditor

POLL_S = 0.1
NEAR_S, FAR_S = 1.0, 5.0  # a node that has said nothing for so long is listed without an answer


@dataclass(frozen=True, slots=True)
class _Shard:
    topic: str
    route: QueueRoute
    wheel: Wheel | None
    copies: ShardCopies
    problem: str


class _Listing(click.Group):
    """A group that lists when no subcommand is named: `delayctl shards`, `delayctl shards TOPIC`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Listing)
def shards() -> None:
    """List shards, move their copies, choose their masters, retire those of a removed topic and those that are lost.

    `delayctl shards [TOPIC]` lists. A topic that is named like a subcommand: `delayctl shards list TOPIC`.
    """


@shards.command("list")
@click.argument("topic", required=False)
@common_options
def list_(settings: CommandSettings, topic: str | None) -> None:
    """List the shards of TOPIC, or of all topics: who has them, how far each copy is, and what they hold."""

    seconds = NEAR_S if settings.kube is None else FAR_S

    async def listed(admin: Admin) -> None:
        from delayctl.cluster.copies import ShardCopies, all_copies

        routes = [await admin.route(topic)] if topic else await admin.topics()
        copies = await all_copies(admin, seconds)
        found = await asyncio.gather(
            *(
                _fetch_shard(admin, route.topic, queue, copies.get(queue.uid, ShardCopies()))
                for route in routes
                for queue in route.queues
            )
        )
        if settings.as_json:
            for shard in found:
                _print_json(shard)
        else:
            _print_table(found)

    run_admin(settings, listed, timeout=f"{seconds:g}s")


@shards.command()
@click.argument("shard")
@click.option("--to", required=True, metavar="NODE", help="Where the copy is to be.")
@click.option("--from", "origin", metavar="NODE", help="Which copy is to go  [default: the master's]")
@click.option("--wait", is_flag=True, help="Until the old copy is gone.")
@click.option("--timeout", type=DURATION, default="10m", show_default=True, help="How long to wait.")
@data_option
@common_options
def move(
    settings: CommandSettings, data: Path, shard: str, to: str, origin: str | None, wait: bool, timeout: int
) -> None:
    """Move SHARD, or with --from another copy of it, to another node.

    The new copy is fetched and catches up while the shard goes on; a master that is to go hands over, a pause well
    under a second; then the old copy is deleted. Without --wait the command returns once the move is written down.
    """
    with open_registry_editor(settings, data) as at:
        started_s = time.monotonic()
        target = at.move(shard, to, origin)
        if wait:
            with ProgressBar(f"{shard} to {to}", settings) as progress:
                _await_move(at, shard, to, target, started_s + timeout / 1000, progress)
        seconds = round(time.monotonic() - started_s, 3)
        if settings.as_json:
            put_json({"shard": shard, "to": to, "target": list(target), "done": wait, "seconds": seconds})
        elif wait:
            click.echo(f"{shard} has its copies on {', '.join(target)} after {seconds} s")
        else:
            click.echo(f"{shard} is to have its copies on {', '.join(target)}; `delayctl shards` shows how far it is")


@shards.command()
@click.argument("shard")
@click.option("--to", metavar="NODE", help="The new master [default: another one that is in sync].")
@click.option("--timeout", type=DURATION, default="15s", show_default=True, help="Then it is withdrawn.")
@data_option
@common_options
def switchover(settings: CommandSettings, data: Path, shard: str, to: str | None, timeout: int) -> None:
    """Let another in-sync copy of SHARD be its master. Clients wait for a moment; nothing is lost."""
    with open_registry_editor(settings, data) as at:
        started_s = time.monotonic()
        former, to = at.switchover(shard, to)
        while not _leads(at, shard, to):
            if time.monotonic() > started_s + timeout / 1000:
                at.cancel_switchover(shard, to)
                if not _leads(at, shard, to):
                    fail(f"{shard}: {to} has not taken over within {format_ms(timeout)}; withdrawn", FAILED)
            time.sleep(0.02)
        spec = at.shard(shard).spec
        seconds = round(time.monotonic() - started_s, 3)
        if settings.as_json:
            put_json({"shard": shard, "from": former, "to": to, "epoch": spec.epoch, "seconds": seconds})
        else:
            click.echo(f"{shard}: {to} took over from {former} in epoch {spec.epoch}, after {seconds} s")


@shards.command()
@click.argument("shards", nargs=-1, metavar="[SHARD]...")
@click.option("--topic", help="All shards of this topic.")
@click.option("--pending", type=int, help="How many messages are pending in them, instead of a question.")
@data_option
@common_options
def retire(
    settings: CommandSettings, data: Path, shards: tuple[str, ...], topic: str | None, pending: int | None
) -> None:
    """Give up shards that no topic has any more, with all their messages, and give their disk back.

    Take the topic out of the spec first, and let consumers finish. PENDING are messages that are not due yet; what is
    due and was not consumed goes too. Where a copy is damaged nobody knows how many there are: -1.

    A shard of which no copy is left, or only damaged ones, is given up while its topic has it: it begins anew, empty.
    """
    with open_registry_editor(settings, data) as at:
        names = [*shards, *(it.name for it in at.shards() if it.spec.topic == topic)]
        if not names:
            raise click.UsageError("name shards, or a topic that has some")
        found = [at.retirement(name) for name in names]
        counts = [it.pending for it in found if it.pending is not None]
        most = sum(counts) if len(counts) == len(found) else UNKNOWN
        many = f"{most:,} messages" if most != UNKNOWN else f"messages that nobody can count ({UNKNOWN})"
        lost = f"{', '.join(names)}: {many} will be lost for ever"
        if pending is None and not settings.as_json:
            pending = click.prompt(f"{lost}. Type that number", type=int, err=True)
        if pending != most:
            fail(f"{lost}, not {pending}: nothing is deleted", FAILED)
        for it in found:
            at.retire(it)
            if settings.as_json:
                uid = f"{it.shard.spec.uid:016x}"
                put_json({"shard": it.shard.name, "uid": uid, "pending": it.pending, "nodes": list(it.nodes)})
            else:
                click.echo(f"{it.shard.name} is gone from {', '.join(it.nodes) or 'the registry'}")


def _leads(at: RegistryEditor, name: str, node: str) -> bool:
    shard = at.shard(name)
    serving = shard.status is not None and shard.status.serving_epoch == shard.spec.epoch
    return serving and shard.spec.master == node


def _await_move(
    at: RegistryEditor, name: str, to: str, target: tuple[str, ...], until_s: float, progress: ProgressBar
) -> None:
    while True:
        shard = at.shard(name)
        spec = shard.spec
        if spec.target is None:
            if set(spec.replicas) == set(target):
                return
            fail(f"{name}: the move was given up; its copies are on {', '.join(spec.replicas)}", FAILED)
        if spec.target != target:
            fail(f"{name}: its copies are now to be on {', '.join(spec.target)}", FAILED)
        progress.show(*_how_far(at, name, to))
        if time.monotonic() > until_s:
            held = "; ".join(condition.message for condition in shard.conditions) or "still under way"
            fail(f"{name}: not moved yet: {held}; the move goes on", FAILED)
        time.sleep(POLL_S)


def _how_far(at: RegistryEditor, name: str, to: str) -> tuple[str, int, int]:
    """The current step, with its done and total bytes."""
    shard = at.shard(name)
    spec = shard.spec
    if to not in spec.replicas:
        return "waits for its turn", 0, 0
    answer = at.node_answers([to]).get(to)
    copy = None if answer is None else answer.copies.get(spec.uid)
    if copy is None:
        return "fetching", 0, 0
    if copy.transfer_total and copy.transfer_done < copy.transfer_total:
        return "fetching", copy.transfer_done, copy.transfer_total
    if shard.status is not None and copy.replica_id in shard.status.in_sync:
        if spec.switchover is not None:
            return "switching over", 1, 1
        return "dropping the old copy" if spec.leaving else "in sync", 1, 1
    return "catching up", copy.transfer_done, copy.transfer_total


async def _fetch_shard(admin: Admin, topic: str, queue: QueueRoute, copies: ShardCopies) -> _Shard:
    from delayclient.errors import DelayError

    try:
        # A millisecond of wheel: only the totals are wanted.
        wheels = await admin.wheel(topic, queue=queue.queue, from_=1, to=2)
    except DelayError as error:
        return _Shard(topic, queue, None, copies, error.reason or error.code)
    return _Shard(topic, queue, wheels[0] if wheels else None, copies, "" if wheels else "no answer")


def _print_json(shard: _Shard) -> None:
    route, wheel, copies = shard.route, shard.wheel, shard.copies
    put_json(
        {
            "shard": f"{shard.topic}-{route.queue}",
            "topic": shard.topic,
            "queue": route.queue,
            "uid": f"{route.uid:016x}",
            "epoch": route.epoch,
            "node": route.node,
            "endpoint": route.endpoint,
            "in_sync": None if copies.in_sync is None else list(copies.in_sync),
            "copies": [_copy_json(copies, copy) for copy in copies.copies],
            "pending": wheel.pending if wheel is not None else None,
            "pending_bytes": wheel.pending_bytes if wheel is not None else None,
            "released": wheel.released if wheel is not None else None,
            "watermark_ms": wheel.watermark_ms if wheel is not None else None,
            "problem": shard.problem or None,
        }
    )


def _copy_json(copies: ShardCopies, copy: ReplicaRow) -> dict[str, Any]:
    state, fetching = copy.state, copy.role == "fetching"
    return {
        "node": copy.node,
        "role": copy.role,
        "epoch": state.epoch,
        "log_end": state.log_end,
        "committed": state.committed,
        "lag_bytes": copies.lag_bytes(copy),
        "beacon_age_ms": copy.heartbeat_age_ms,
        "damaged": state.damaged or None,
        "transfer": {"done": state.transfer_done, "total": state.transfer_total} if fetching else None,
    }


def _print_table(found: list[_Shard]) -> None:
    from rich.table import Table

    from delayctl.cluster.copies import remark

    table = Table(box=None, pad_edge=False)
    for name in ("SHARD", "MASTER", "SLAVES", "IN SYNC"):
        table.add_column(name)
    for name in ("EPOCH", "LOG END", "LAG", "PENDING", "RELEASED"):
        table.add_column(name, justify="right")
    table.add_column("REMARKS", overflow="fold")
    for shard in found:
        route, wheel, copies = shard.route, shard.wheel, shard.copies
        slaves = [copy for copy in copies.copies if copy.node != route.node]
        lags = [lag for copy in slaves if (lag := copies.lag_bytes(copy)) is not None and copy.role == "slave"]
        counts = (f"{wheel.pending:,}", f"{wheel.released:,}") if wheel is not None else ("?", "?")
        log_end = f"{copies.master.state.log_end:,}" if copies.master is not None else "?"
        remarks = [*([shard.problem] if shard.problem else []), *map(remark, copies.copies)]
        table.add_row(
            f"{shard.topic}-{route.queue}",
            route.node or "-",
            ", ".join(copy.node for copy in slaves) or "-",
            "?" if copies.in_sync is None else ", ".join(copies.in_sync),
            str(route.epoch),
            log_end,
            f"{max(lags):,}" if lags else "-",
            *counts,
            "; ".join(filter(None, remarks)),
        )
    print_table(table)
