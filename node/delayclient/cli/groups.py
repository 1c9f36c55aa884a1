"""`delayctl groups list | describe | delete`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from delayclient.cli.common import Settings, common_options, put_json, run

if TYPE_CHECKING:
    from delayclient.routing import Cluster
    from delayclient.views import GroupQueue

_COUNTS = ("available", "in_flight", "waiting_retry", "dead")


@click.group()
def groups() -> None:
    """List, describe and delete consumer groups."""


@groups.command("list")
@click.argument("topic")
@common_options
def list_(settings: Settings, topic: str) -> None:
    """List the groups of TOPIC, their queues added up."""

    async def listed(cluster: Cluster) -> None:
        from delayclient.admin import Admin

        async with Admin(cluster) as admin:
            states = await admin.groups(topic)
        by_group: dict[str, list[GroupQueue]] = {}
        for state in states:
            by_group.setdefault(state.group, []).append(state)
        rows = []
        for name, mine in sorted(by_group.items()):
            counts = {field: sum(getattr(state, field) for state in mine) for field in _COUNTS}
            rows.append({"topic": topic, "group": name, "tags": list(mine[0].tags), "queues": len(mine), **counts})
        _print(settings, rows, ("group", "tags", "queues", *_COUNTS))

    run(settings, listed)


@groups.command()
@click.argument("topic")
@click.option("--group", required=True, help="The group.")
@common_options
def describe(settings: Settings, topic: str, group: str) -> None:
    """Show a group's progress on each queue of TOPIC."""

    async def described(cluster: Cluster) -> None:
        from delayclient.admin import Admin

        async with Admin(cluster) as admin:
            states = await admin.describe_group(topic, group)
        rows = [
            {
                "topic": topic,
                "group": state.group,
                "tags": list(state.tags),
                "queue": state.queue,
                "floor": state.floor,
                "end_offset": state.end_offset,
                **{field: getattr(state, field) for field in _COUNTS},
            }
            for state in states
        ]
        _print(settings, rows, ("queue", "floor", "end_offset", *_COUNTS))

    run(settings, described)


@groups.command()
@click.argument("topic")
@click.option("--group", required=True, help="The group.")
@common_options
def delete(settings: Settings, topic: str, group: str) -> None:
    """Delete a group of TOPIC, its progress and its dead letters."""

    async def deleted(cluster: Cluster) -> None:
        from delayclient.admin import Admin

        async with Admin(cluster) as admin:
            await admin.delete_group(topic, group)
        if settings.as_json:
            put_json({"topic": topic, "group": group, "deleted": True})
        else:
            click.echo(f"deleted group {group} of {topic}")

    run(settings, deleted)


def _print(settings: Settings, rows: Sequence[dict[str, object]], columns: Sequence[str]) -> None:
    if settings.as_json:
        for row in rows:
            put_json(row)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.upper().replace("_", " "), justify="left" if column in ("group", "tags") else "right")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    Console().print(table)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value) or "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
