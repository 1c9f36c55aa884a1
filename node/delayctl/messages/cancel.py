"""`delayctl cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from delayapi.options import INSTANT

from delayctl.common import CommandSettings, common_options, progress, put_json, run_admin

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin

_CHUNK = 20_000
_FOREVER_MS = (1 << 63) - 1


@click.command()
@click.argument("handles", nargs=-1, metavar="[HANDLE]...")
@click.option(
    "--handles", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read handles, one a line."
)
@click.option("--key", help="Cancel all pending messages with this key instead.")
@click.option("--topic", help="The key's topic.")
@click.option("--from", "from_ms", type=INSTANT, help="Only those due at this time or later.")
@click.option("--to", "to_ms", type=INSTANT, help="Only those due before this time.")
@common_options
def cancel(
    settings: CommandSettings,
    handles: tuple[str, ...],
    file: Path | None,
    key: str | None,
    topic: str | None,
    from_ms: int | None,
    to_ms: int | None,
) -> None:
    """Cancel pending messages, named by handle or by key.

    Prints a line for each: CANCELLED, TOO_LATE, ALREADY_CANCELLED, RESCHEDULED or NOT_FOUND, and the handle.
    """
    if key is not None:
        if handles or file is not None:
            raise click.UsageError("give handles or --key, not both")
        if not key or topic is None:
            raise click.UsageError("--key needs a key and its --topic")
        run_admin(settings, lambda admin: _by_key(settings, admin, topic, key, from_ms or 0, to_ms or _FOREVER_MS))
    if topic is not None or from_ms is not None or to_ms is not None:
        raise click.UsageError("--topic, --from and --to go with --key")
    texts = read_handles(handles, file)
    if not texts and file is None:
        raise click.UsageError("give handles, --handles FILE or --key")
    run_admin(settings, lambda admin: _by_handle(settings, admin, texts))


def read_handles(handles: Sequence[str], file: Path | None) -> list[str]:
    """Those given, and those of the file, one a line."""
    texts = list(handles)
    if file is not None:
        texts += [line.strip() for line in file.read_text("utf-8", "replace").splitlines() if line.strip()]
    return texts


async def _by_handle(settings: CommandSettings, admin: Admin, texts: list[str]) -> None:
    from delayapi.handle import Handle

    decoded = [Handle.decode(text) for text in texts]  # all of them, before anything is cancelled
    if decoded:
        await admin.cluster.route(decoded[0].topic)  # not retried: a person waits
    with progress("cancel", len(texts), as_json=settings.as_json) as advance:
        for start in range(0, len(texts), _CHUNK):
            outcomes = await admin.cancel(decoded[start : start + _CHUNK])
            for text, outcome in zip(texts[start:], outcomes, strict=False):
                _print(settings, outcome.name, text)
            advance(len(outcomes))


async def _by_key(settings: CommandSettings, admin: Admin, topic: str, key: str, from_ms: int, to_ms: int) -> None:
    for found in await admin.cancel_by_key(topic, key, from_ms, to_ms):
        _print(settings, found.outcome.name, found.handle)


def _print(settings: CommandSettings, outcome: str, handle: str) -> None:
    if settings.as_json:
        put_json({"handle": handle, "outcome": outcome})
    else:
        click.echo(f"{outcome} {handle}")
