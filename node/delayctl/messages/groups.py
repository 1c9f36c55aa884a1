"""`delayctl groups list | describe | delete`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from delayapi.durations import format_ms

from delayctl.common import CommandSettings, common_options, print_table, put_json, run_admin

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.admin.views import GroupQueue

_COUNTS = ("available", "in_flight", "waiting_retry", "dead", "redriven")
_LAG = ("lag", "oldest_ms")


@click.group()
def groups() -> None:
    """List, describe and delete consumer groups."""


@groups.command("list")
@click.argument("topic")
@common_options
def list_(settings: CommandSettings, topic: str) -> None:
    """List the groups of TOPIC, their queues added up."""

    async def listed(admin: Admin) -> None:
        states = await admin.groups(topic)
        by_group: dict[str, list[GroupQueue]] = {}
        for state in states:
            by_group.setdefault(state.group, []).append(state)
        rows = []
        for name, mine in sorted(by_group.items()):
            counts = {field: sum(getattr(state, field) for state in mine) for field in _COUNTS}
            rows.append(
                {
                    "topic": topic,
                    "group": name,
                    "tags": list(mine[0].tags),
                    "queues": len(mine),
                    **_lag(mine),
                    **counts,
                    "dead_full": sum(state.dead_full for state in mine),
                }
            )
        _print(settings, rows, ("group", "tags", "queues", *_LAG, *_COUNTS))
        _warn(settings, states)

    run_admin(settings, listed)


@groups.command()
@click.argument("topic")
@click.option("--group", required=True, help="The group.")
@common_options
def describe(settings: CommandSettings, topic: str, group: str) -> None:
    """Show a group's progress on each queue of TOPIC."""

    async def described(admin: Admin) -> None:
        states = await admin.describe_group(topic, group)
        rows = [
            {
                "topic": topic,
                "group": state.group,
                "tags": list(state.tags),
                "queue": state.queue,
                "floor": state.floor,
                "end_offset": state.end_offset,
                **_lag([state]),
                **{field: getattr(state, field) for field in _COUNTS},
                "dead_limit": state.dead_limit,
            }
            for state in states
        ]
        _print(settings, rows, ("queue", "floor", "end_offset", *_LAG, *_COUNTS))
        _warn(settings, states)

    run_admin(settings, described)


@groups.command()
@click.argument("topic")
@click.option("--group", required=True, help="The group.")
@common_options
def delete(settings: CommandSettings, topic: str, group: str) -> None:
    """Delete a group of TOPIC on all queues, its progress and its dead letters.

    Deleting one that is not there is no failure: it says so. Stop the group's consumers first: one that goes on
    receiving makes the group anew, from the first message that is kept.
    """

    async def deleted(admin: Admin) -> None:
        gone = await admin.delete_group(topic, group)
        if settings.as_json:
            counts = {"queues": gone.queues, "unfinished": gone.unfinished, "dead": gone.dead}
            put_json({"topic": topic, "group": group, "deleted": gone.queues > 0, **counts})
        elif gone.queues:
            click.echo(
                f"deleted group {group} of {topic} on {gone.queues:,} queues; "
                f"it was not done with {gone.unfinished:,} messages and had {gone.dead:,} dead letters"
            )
        else:
            click.echo(f"no queue of {topic} has a group {group}: nothing to delete")

    run_admin(settings, deleted)


def _lag(states: Sequence[GroupQueue]) -> dict[str, object]:
    """Messages released and not done, and the age of the oldest; None when there is none."""
    ages = [state.oldest_age_ms for state in states if state.oldest_age_ms is not None]
    return {"lag": sum(state.lag for state in states), "oldest_ms": max(ages, default=None)}


def _warn(settings: CommandSettings, states: Sequence[GroupQueue]) -> None:
    """Say where dead letters are at their limit."""
    for state in states:
        if state.dead_full and not settings.as_json:
            click.echo(
                f"group {state.group}, queue {state.queue}: {state.dead_limit:,} dead letters are the limit; "
                "what should join them is tried again. Redrive or drop some (delayctl dlq)",
                err=True,
            )


def _print(settings: CommandSettings, rows: Sequence[dict[str, object]], columns: Sequence[str]) -> None:
    if settings.as_json:
        for row in rows:
            put_json(row)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        head = "OLDEST" if column == "oldest_ms" else column.upper().replace("_", " ")
        table.add_column(head, justify="left" if column in ("group", "tags") else "right")
    for row in rows:
        table.add_row(*(_cell(column, row[column]) for column in columns))
    print_table(table)


def _cell(column: str, value: object) -> str:
    if isinstance(value, list):
        return ",".join(value) or "-"
    if column == "oldest_ms":
        return format_ms(value) if isinstance(value, int) else "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
