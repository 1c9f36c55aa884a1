"""`delayctl reschedule`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from delayapi.options import DURATION, INSTANT

from delayctl.common import CommandSettings, common_options, put_json, run_admin
from delayctl.messages.cancel import read_handles

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin

_CHUNK = 20_000


@click.command()
@click.argument("handles", nargs=-1, metavar="[HANDLE]...")
@click.option(
    "--handles", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read handles, one a line."
)
@click.option("--at", "at_ms", type=INSTANT, help="The new time.")
@click.option("--delay", "delay_ms", type=DURATION, help="From now, by the nodes' clocks; 0s: now.")
@common_options
def reschedule(
    settings: CommandSettings, handles: tuple[str, ...], file: Path | None, at_ms: int | None, delay_ms: int | None
) -> None:
    """Give pending messages a new time, all of them the same.

    Prints a line for each: MOVED and the new handle, for the old one is dead then; or TOO_LATE, ALREADY_CANCELLED,
    RESCHEDULED or NOT_FOUND and the old one.
    """
    if (at_ms is None) == (delay_ms is None):
        raise click.UsageError("give --at or --delay")
    texts = read_handles(handles, file)
    if not texts and file is None:
        raise click.UsageError("give handles or --handles FILE")

    async def moved(admin: Admin) -> None:
        from delayapi.handle import Handle

        decoded = [Handle.decode(text) for text in texts]  # all of them, before anything is moved
        for start in range(0, len(texts), _CHUNK):
            part = decoded[start : start + _CHUNK]
            found = await admin.reschedule(part, at=at_ms, delay=delay_ms)
            for text, result in zip(texts[start:], found, strict=False):
                if settings.as_json:
                    put_json({"handle": text, "outcome": result.outcome.name, "new_handle": result.handle or None})
                else:
                    click.echo(f"{result.outcome.name} {result.handle or text}")

    run_admin(settings, moved)
