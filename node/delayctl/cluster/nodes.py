"""`delayctl nodes list | drain | restart | accept-clock | orphans`."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from delayapi.durations import format_ms
from delayapi.options import DURATION

from delayctl.common import (
    FAILED,
    UNKNOWN,
    CommandSettings,
    Hexadecimal,
    common_options,
    confirmed,
    fail,
    print_table,
    put_json,
    run_admin,
)
from delayctl.targets.options import ProgressBar, data_option, open_registry_editor

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.admin.views import NodeView

    from delayctl.targets.registry import Orphan, RegistryEditor


@click.group()
def nodes() -> None:
    """Look at the nodes, empty them, restart them one by one."""


@nodes.command("list")
@common_options
def list_(settings: CommandSettings) -> None:
    """List the nodes that have registered."""

    async def listed(admin: Admin) -> None:
        found = await admin.nodes()
        if settings.as_json:
            for node in found:
                put_json(asdict(node))
        else:
            _print_table(found)

    run_admin(settings, listed)


@nodes.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="It may be used again.")
@click.option("--wait", is_flag=True, help="Until it is empty.")
@click.option("--timeout", type=DURATION, default="1h", show_default=True, help="How long to wait.")
@data_option
@common_options
def drain(settings: CommandSettings, data: Path, node: str, undo: bool, wait: bool, timeout: int) -> None:
    """Empty NODE: its copies move to the others, its masters hand over, and nothing new is placed there."""
    with open_registry_editor(settings, data) as at:
        started_s = time.monotonic()
        at.drain(node, undo=undo)
        left = _copies_on(at, node)
        if wait and not undo:
            left = _await_empty(at, node, left, started_s + timeout / 1000, settings)
        if settings.as_json:
            put_json({"node": node, "drained": not undo, "copies": left})
        elif undo:
            click.echo(f"{node} may be used again")
        else:
            click.echo(f"{node} is empty" if not left else f"{node} is being emptied: {left} copies to move")


def _copies_on(at: RegistryEditor, node: str) -> int:
    return sum(node in shard.spec.replicas for shard in at.shards())


def _await_empty(at: RegistryEditor, node: str, total: int, until_s: float, settings: CommandSettings) -> int:
    with ProgressBar(f"drain {node}", settings) as progress:
        while left := _copies_on(at, node):
            progress.show(f"{left} copies left", total - left, total)
            if time.monotonic() > until_s:
                held = {it.message for shard in at.shards() if node in shard.spec.replicas for it in shard.conditions}
                fail(f"{node} still has {left} copies: {'; '.join(sorted(held)) or 'still under way'}", FAILED)
            time.sleep(0.2)
    return 0


@nodes.command()
@click.option("--timeout", type=DURATION, default="15m", show_default=True, help="How long to wait for all of them.")
@data_option
@common_options
def restart(settings: CommandSettings, data: Path, timeout: int) -> None:
    """Restart the nodes, one at a time.

    Each hands its masters over first, and the next one has its turn once every shard has all its copies in sync again:
    a shard with several copies is never away for longer than a switchover. `delayctl local` or, with --kube, the
    operator does it; this command asks and waits.
    """
    with open_registry_editor(settings, data) as at:
        started_s = time.monotonic()
        before = at.incarnations()
        wanted = at.cluster().node_ids
        at.restart()
        with ProgressBar("restart", settings) as progress:
            while True:
                now = at.incarnations()
                back = [node for node in wanted if now.get(node) != before.get(node)]
                progress.show(f"{len(back)} of {len(wanted)} nodes", len(back), len(wanted))
                if len(back) == len(wanted) and at.fully_replicated(now):
                    break
                if time.monotonic() > started_s + timeout / 1000:
                    fail(f"{len(back)} of {len(wanted)} nodes are back after {format_ms(timeout)}", FAILED)
                time.sleep(0.1)
        seconds = round(time.monotonic() - started_s, 3)
        if settings.as_json:
            put_json({"restarted": list(wanted), "seconds": seconds})
        else:
            click.echo(f"restarted {', '.join(wanted)} in {seconds} s")


@nodes.command("accept-clock")
@click.argument("node")
@click.option("--yes", is_flag=True, help="Don't ask.")
@common_options
def accept_clock(settings: CommandSettings, node: str, yes: bool) -> None:
    """Let NODE believe its wall clock, which went ahead while it ran.

    Right after the clock was corrected from a wrong, earlier time. What became due in between is released at once;
    wrong when the clock itself is wrong: everything would be early.
    """

    async def accepted(admin: Admin) -> int:
        seen = await admin.node(node)
        ahead_ms = seen.clock_disbelieved_ms
        if not ahead_ms:
            click.echo(f"{node} believes its clock", err=True)
            return FAILED
        says = datetime.fromtimestamp((seen.now_ms + ahead_ms) / 1000, UTC).isoformat(timespec="seconds")
        click.echo(f"{node}: its clock says {says}, {ahead_ms / 1000:,.1f} s ahead of what it believes", err=True)
        if not yes and not confirmed("Is that the right time? What is due until then is released at once"):
            return FAILED
        moved_ms = await admin.accept_clock(node, ahead_ms)
        if settings.as_json:
            put_json({"node": node, "moved_ms": moved_ms})
        else:
            click.echo(f"{node} went on by {moved_ms / 1000:,.1f} s")
        return 0

    run_admin(settings, accepted)


@nodes.command()
@click.option("--purge", type=Hexadecimal(), metavar="UID", help="Delete the copies of this history, for ever.")
@click.option("--pending", type=int, help="With --purge: how many messages are pending in them, instead of a question.")
@data_option
@common_options
def orphans(settings: CommandSettings, data: Path, purge: int | None, pending: int | None) -> None:
    """List copies on the nodes' disks that belong to no shard, and delete those that nobody wants.

    A DelayShard or a whole DelayCluster was deleted, a topic removed, a volume came from elsewhere. `delayctl adopt`
    goes on from such copies. PENDING is at most so many: what was stored after the copy's last checkpoint counts,
    released or not.
    """
    with open_registry_editor(settings, data) as at:
        found = at.orphans()
        if purge is None:
            _print_orphans(found, settings)
            return
        chosen = [it for it in found if it.uid == purge]
        if not chosen:
            fail(f"no copy without a shard has uid {purge:016x}; `delayctl nodes orphans` lists them", FAILED)
        known = not any(it.copy.damaged for it in chosen)
        most = max(it.copy.pending for it in chosen) if known else UNKNOWN
        where = f"{chosen[0].copy.shard} on {', '.join(it.node for it in chosen)}"
        lost = f"up to {most:,} messages" if known else f"a damaged copy, nobody knows how many messages ({UNKNOWN})"
        if pending is None and not settings.as_json:
            question = f"{where}: {lost} will be lost for ever. Type that number"
            pending = click.prompt(question, type=int, err=True)
        if pending != most:
            fail(f"{where}: {lost} pending, not {pending}: nothing is deleted", FAILED)
        for it in chosen:
            at.purge(it)
        if settings.as_json:
            put_json({"shard": chosen[0].copy.shard, "uid": f"{purge:016x}", "nodes": [it.node for it in chosen]})
        else:
            click.echo(f"{where}: deleted")


def _print_orphans(found: list[Orphan], settings: CommandSettings) -> None:
    if settings.as_json:
        for it in found:
            copy = it.copy
            put_json(
                {
                    "node": it.node, "shard": copy.shard, "uid": f"{it.uid:016x}", "cluster": copy.cluster,
                    "epoch": copy.epoch, "log_end": copy.log_end, "pending": copy.pending, "role": copy.role.value,
                    "disk_bytes": copy.disk_bytes, "damaged": copy.damaged or "", "replaced": it.replaced,
                }
            )  # fmt: skip
        return
    if not found:
        click.echo("every copy on the nodes that answer belongs to a shard")
        return
    from delayoperator.plan import ObservedRole
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("NODE", "SHARD", "UID", "CLUSTER", "EPOCH", "PENDING", "ON DISK"):
        table.add_column(name, min_width=16 if name == "UID" else None)  # whole: it is typed again
    table.add_column("REMARKS", overflow="fold")
    for it in found:
        copy = it.copy
        size = f"{copy.disk_bytes / (1 << 20):,.1f} MiB" if copy.disk_bytes else "-"
        open_ = f"open in the node's process, as {copy.role.value}" if copy.role is not ObservedRole.STORED else ""
        remark = "replaced: goes by itself once a later term serves" if it.replaced else open_
        table.add_row(
            it.node, copy.shard, f"{it.uid:016x}", copy.cluster or "?", str(copy.epoch), f"{copy.pending:,}", size,
            copy.damaged or remark,
        )  # fmt: skip
    print_table(table)


def _print_table(found: list[NodeView]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    zones = any(node.zone for node in found)
    for name in ("NODE", *(["ZONE"] if zones else []), "ENDPOINT", "READY", "CLOCK", "DISK FREE", "EDGE"):
        table.add_column(name)
    table.add_column("REMARKS", overflow="fold")
    for node in found:
        if node.problem:
            table.add_row(node.node, *(["?"] if zones else []), "-", "?", "?", "?", "?", node.problem)
            continue
        remarks = [*([node.not_ready] if node.not_ready else []), *node.conditions]
        table.add_row(
            node.node, *([node.zone or "-"] if zones else []), node.endpoint, "no" if node.not_ready else "yes",
            _clock(node), f"{node.disk_free_bytes >> 20:,} MiB", node.edge or "-", "\n".join(remarks),
        )  # fmt: skip
    print_table(table)


def _clock(node: NodeView) -> str:
    if node.clock_disbelieved_ms:
        return f"+{node.clock_disbelieved_ms / 1000:,.1f} s, not believed"
    return f"-{node.clock_behind_ms / 1000:,.1f} s" if node.clock_behind_ms else "ok"
