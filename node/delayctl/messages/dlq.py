"""`delayctl dlq list | redrive | drop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from delayapi.durations import format_instant

from delayctl.common import CommandSettings, common_options, harmless, put_json, run_admin, text_of

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.consumer.received import ReceivedMessage


@click.group()
def dlq() -> None:
    """List, redrive and drop dead letters: messages whose attempts are used up."""


@dlq.command("list")
@click.argument("topic")
@click.option("--group", required=True, help="The group.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@click.option("--limit", type=click.IntRange(0), default=100, show_default=True, help="At most so many; 0: all.")
@common_options
def list_(settings: CommandSettings, topic: str, group: str, queue: int | None, limit: int) -> None:
    """List a group's dead letters in TOPIC."""

    async def listed(admin: Admin) -> None:
        left = limit
        async for message in admin.dead_letters(topic, group, queue=queue, page=min(limit or 1000, 1000)):
            _print(settings, message)
            left -= 1
            if left == 0:
                break

    run_admin(settings, listed)


@dlq.command()
@click.argument("topic")
@click.option("--group", required=True, help="The group.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@click.option("--offset", "offsets", type=click.IntRange(0), multiple=True, help="One of --queue; may be repeated.")
@common_options
def redrive(settings: CommandSettings, topic: str, group: str, queue: int | None, offsets: tuple[int, ...]) -> None:
    """Hand a group's dead letters out again; their attempts start anew."""
    _resolve(settings, "redriven", topic, group, queue, offsets)


@dlq.command()
@click.argument("topic")
@click.option("--group", required=True, help="The group.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@click.option("--offset", "offsets", type=click.IntRange(0), multiple=True, help="One of --queue; may be repeated.")
@common_options
def drop(settings: CommandSettings, topic: str, group: str, queue: int | None, offsets: tuple[int, ...]) -> None:
    """Give a group's dead letters up."""
    _resolve(settings, "dropped", topic, group, queue, offsets)


def _resolve(
    settings: CommandSettings, what: str, topic: str, group: str, queue: int | None, offsets: tuple[int, ...]
) -> None:
    if offsets and queue is None:
        raise click.UsageError("--offset needs its --queue")

    async def resolved(admin: Admin) -> None:
        await admin.describe_group(topic, group)  # a mistyped group has no dead letters either
        act = admin.redrive if what == "redriven" else admin.drop
        count = await act(topic, group, queue=queue, offsets=offsets)
        if settings.as_json:
            put_json({"topic": topic, "group": group, what: count})
        else:
            click.echo(f"{what} {count:,} dead letters of group {group} in {topic}")

    run_admin(settings, resolved)


def _print(settings: CommandSettings, message: ReceivedMessage) -> None:
    record = message.shown()
    if settings.as_json:
        put_json(
            {
                "topic": message.topic,
                "queue": message.queue,
                "offset": message.offset,
                "seq": message.seq,
                "due_ms": message.due_ms,
                "attempt": message.attempt,
                "reason": message.dead_reason,
                "key": record.key,
                "tag": record.tag,
                "body": text_of(record.body),
                "handle": message.handle,
            }
        )
        return
    marks = "".join(f" {name}={text}" for name, text in (("key", record.key), ("tag", record.tag)) if text)
    place = f"{message.topic}-{message.queue} offset {message.offset}"
    line = f"{format_instant(message.due_ms)} {place} attempts {message.attempt}{marks} {text_of(record.body)}"
    click.echo(harmless(line))
    if message.dead_reason:
        click.echo(harmless(f"  {message.dead_reason}"))
