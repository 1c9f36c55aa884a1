"""`delayctl nodes list | accept-clock`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from delayclient.cli.common import FAILED, USAGE, Settings, common_options, fail, put_json, run

if TYPE_CHECKING:
    from delayclient.routing import Cluster
    from delayclient.views import NodeView


@click.group()
def nodes() -> None:
    """Look at the nodes: their clocks, their disks, and what is wrong with them."""


@nodes.command("list")
@common_options
def list_(settings: Settings) -> None:
    """List the nodes that have registered."""

    async def listed(cluster: Cluster) -> None:
        from delayclient.admin import Admin

        async with Admin(cluster) as admin:
            found = await admin.nodes()
        if settings.as_json:
            for node in found:
                put_json(asdict(node))
        else:
            _print_table(found)

    run(settings, listed)


@nodes.command("accept-clock")
@click.argument("node")
@click.option("--yes", is_flag=True, help="Don't ask.")
@common_options
def accept_clock(settings: Settings, node: str, yes: bool) -> None:
    """Let NODE believe its wall clock, which went ahead while it ran.

    Right after the clock was corrected from a wrong, earlier time. What became due in between is released at once;
    wrong when the clock itself is wrong: everything would be early.
    """

    async def accepted(cluster: Cluster) -> int:
        from delayclient.admin import Admin

        async with Admin(cluster) as admin:
            seen = await admin.node(node)
            ahead_ms = seen.clock_disbelieved_ms
            if not ahead_ms:
                click.echo(f"{node} believes its clock", err=True)
                return FAILED
            says = datetime.fromtimestamp((seen.now_ms + ahead_ms) / 1000, UTC).isoformat(timespec="seconds")
            click.echo(f"{node}: its clock says {says}, {ahead_ms / 1000:,.1f} s ahead of what it believes", err=True)
            if not yes and not _agreed():
                return FAILED
            moved_ms = await admin.accept_clock(node, ahead_ms)
        if settings.as_json:
            put_json({"node": node, "moved_ms": moved_ms})
        else:
            click.echo(f"{node} went on by {moved_ms / 1000:,.1f} s")
        return 0

    run(settings, accepted)


def _agreed() -> bool:
    if not sys.stdin.isatty():
        fail("nobody to ask: give --yes", USAGE)
    return click.confirm("Is that the right time? What is due until then is released at once", err=True)


def _print_table(found: list[NodeView]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("NODE", "ENDPOINT", "READY", "CLOCK", "DISK FREE"):
        table.add_column(name)
    table.add_column("REMARKS", overflow="fold")
    for node in found:
        if node.problem:
            table.add_row(node.node, "-", "?", "?", "?", node.problem)
            continue
        remarks = [*([node.not_ready] if node.not_ready else []), *node.conditions]
        table.add_row(
            node.node, node.endpoint, "no" if node.not_ready else "yes", _clock(node),
            f"{node.disk_free_bytes >> 20:,} MiB", "\n".join(remarks),
        )  # fmt: skip
    Console().print(table)


def _clock(node: NodeView) -> str:
    if node.clock_disbelieved_ms:
        return f"+{node.clock_disbelieved_ms / 1000:,.1f} s, not believed"
    return f"-{node.clock_behind_ms / 1000:,.1f} s" if node.clock_behind_ms else "ok"
