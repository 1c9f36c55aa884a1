"""`delayctl pending`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from delayapi.durations import format_instant, format_ms
from delayapi.options import INSTANT

from delayctl.common import CommandSettings, common_options, harmless, put_json, run_admin, text_of

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.admin.views import Pending


@click.command()
@click.argument("topic")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@click.option("--from", "from_ms", type=INSTANT, help="Only those due at this time or later.")
@click.option("--to", "to_ms", type=INSTANT, help="Only those due before this time.")
@click.option("--key", help="Only those with this key; they are shown with their bodies.")
@click.option("--limit", type=click.IntRange(0), default=100, show_default=True, help="At most so many; 0: all.")
@click.option("--bodies", is_flag=True, help="Read keys, tags and bodies too.")
@common_options
def pending(
    settings: CommandSettings,
    topic: str,
    queue: int | None,
    from_ms: int | None,
    to_ms: int | None,
    key: str | None,
    limit: int,
    bodies: bool,
) -> None:
    """List messages of TOPIC that are not yet due, queue by queue, in the order in which they will be."""

    if key == "":
        raise click.UsageError("--key is empty")

    async def listed(admin: Admin) -> None:
        left = limit
        rows = admin.list_pending(
            topic,
            queue=queue,
            from_=from_ms or 0,
            to=to_ms or 0,
            key=key or "",
            with_records=bodies,
            page=min(limit or 10_000, 1_000 if bodies or key else 10_000),
        )
        async for row in rows:
            _print(settings, row, bodies or bool(key))
            left -= 1
            if left == 0:
                break

    run_admin(settings, listed)


def _print(settings: CommandSettings, row: Pending, bodies: bool) -> None:
    message = row.shown() if bodies else None
    if settings.as_json:
        value: dict[str, Any] = {
            "topic": row.topic,
            "queue": row.queue,
            "seq": row.seq,
            "due_ms": row.due_ms,
            "size": row.size,
            "handle": row.handle,
        }
        if message is not None:
            value |= {"key": message.key, "tag": message.tag, "body": text_of(message.body)}
        put_json(value)
        return
    in_ms = row.due_ms - int(time.time() * 1000)
    when = f"in {format_ms(in_ms)}" if in_ms > 0 else "now"
    line = f"{format_instant(row.due_ms)} ({when}) {row.topic}-{row.queue}/{row.seq} {row.size} B {row.handle}"
    if message is not None:
        marks = (f" {name}={text}" for name, text in (("key", message.key), ("tag", message.tag)) if text)
        line += "".join(marks) + f" {text_of(message.body)}"
    click.echo(harmless(line))
