"""`delayctl produce`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from delayapi.durations import LEVELS_MS, level_ms
from delayapi.options import DURATION, INSTANT, SPREAD

from delayctl.common import FAILED, USAGE, CommandSettings, common_options, progress, put_json, run

if TYPE_CHECKING:
    from delayclient.errors import DelayError
    from delayclient.producer.producer import Producer
    from delayclient.routing.routing import Cluster

    from delayctl.messages.batches import InputChunk

_AT_ONCE = 3


@click.command()
@click.argument("topic")
@click.option("--delay", type=DURATION, help="Deliver after this long, e.g. 30s or 2h30m.")
@click.option("--at", type=INSTANT, help="Deliver at this time: ISO 8601, UTC without a zone, or ms since 1970.")
@click.option("--level", type=click.IntRange(1, len(LEVELS_MS)), help="Deliver after a RocketMQ 4.x delay level.")
@click.option("--spread", type=SPREAD, help="Deliver each after a random time between two, e.g. 1m..30m.")
@click.option("--count", type=click.IntRange(0), help="How many messages to make up  [default: 1]")
@click.option("--size", type=click.IntRange(0, 4_000_000), help="Bytes of each body made up  [default: 256]")
@click.option("--body", help="The body, instead of one made up.")
@click.option("--input", "source", metavar="FILE.jsonl|-", help='Lines of {"body", "due", "key", "tag"}; - is stdin.')
@click.option("--key", help="The key of every message that has none.")
@click.option("--tag", help="The tag of every message that has none.")
@click.option("--handles", type=click.Path(dir_okay=False, path_type=Path), help="Write the handles here, one a line.")
@common_options
def produce(
    settings: CommandSettings,
    topic: str,
    delay: int | None,
    at: int | None,
    level: int | None,
    spread: tuple[int, int] | None,
    count: int | None,
    size: int | None,
    body: str | None,
    source: str | None,
    key: str | None,
    tag: str | None,
    handles: Path | None,
) -> None:
    """Send messages to TOPIC: made up, or from a file of JSON lines. Without a time they are due at once.

    Exit code 1 unless all were acknowledged.
    """
    if sum(value is not None for value in (delay, at, level, spread)) > 1:
        raise click.UsageError("give one of --delay, --at, --level and --spread")
    if source is not None and any(value is not None for value in (count, size, body)):
        raise click.UsageError("--input has its own messages: no --count, --size or --body")
    if body is not None and size is not None:
        raise click.UsageError("give --body or --size")

    from delayctl.messages.batches import DueRule, made_up, read_lines

    when = DueRule(at_ms=at, delay_ms=level_ms(level) if level is not None else delay, spread_ms=spread)
    with ExitStack() as files:
        out = files.enter_context(_opened(handles, "w")) if handles is not None else None
        if source is None:
            n = 1 if count is None else count
            chunks = made_up(n, 256 if size is None else size, body, when, key, tag)
        else:
            lines = sys.stdin.buffer if source == "-" else files.enter_context(_opened(Path(source), "rb"))
            chunks = read_lines(lines, when, key, tag)
            n = None
        run(settings, lambda cluster: _produce(settings, cluster, topic, chunks, n, out))


def _opened(path: Path, mode: str) -> IO[Any]:
    try:
        return path.open(mode)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None


@dataclass(slots=True)
class _Tally:
    sent: int = 0
    acknowledged: int = 0
    first_error: DelayError | None = None


async def _produce(
    settings: CommandSettings,
    cluster: Cluster,
    topic: str,
    chunks: Iterator[InputChunk],
    total: int | None,
    out: IO[str] | None,
) -> int:
    from delayclient.producer.producer import Producer

    from delayctl.messages.batches import BadLine

    await cluster.route(topic)
    tally = _Tally()
    started = time.perf_counter()
    bad: BadLine | None = None
    with progress(f"produce {topic}", total, as_json=settings.as_json) as advance:
        async with Producer(cluster) as producer:
            try:
                async for handles in _send_all(producer, topic, chunks, tally, advance, out is not None):
                    if out is not None:
                        out.writelines(f"{handle}\n" for handle in handles if handle)
            except BadLine as error:
                bad = error
    seconds = time.perf_counter() - started
    _report(settings, tally, seconds)
    if tally.first_error is not None:
        click.echo(f"delayctl: {tally.first_error}", err=True)
    if bad is not None:
        click.echo(
            f"delayctl: {bad}; of the {tally.sent} messages before it {tally.acknowledged} were stored", err=True
        )
        return USAGE
    return 0 if tally.acknowledged == tally.sent else FAILED


async def _send_all(
    producer: Producer, topic: str, chunks: Iterator[InputChunk], tally: _Tally, advance: Any, with_handles: bool
) -> AsyncIterator[list[str]]:
    """Sends the chunks, a few at once; gives each one's handles, in order."""
    from delayctl.messages.batches import BadLine

    tasks: list[asyncio.Task[list[str]]] = []
    bad: BadLine | None = None
    while True:
        try:
            # In a thread: reading stdin blocks.
            chunk = await asyncio.to_thread(next, chunks, None)
        except BadLine as error:
            bad, chunk = error, error.before
        if chunk is not None and chunk.count:
            tasks.append(asyncio.create_task(_send_chunk(producer, topic, chunk, tally, advance, with_handles)))
        while tasks and (len(tasks) >= _AT_ONCE or chunk is None or bad is not None):
            yield await tasks.pop(0)
        if bad is not None:
            raise bad
        if chunk is None:
            return


async def _send_chunk(
    producer: Producer, topic: str, chunk: InputChunk, tally: _Tally, advance: Any, with_handles: bool
) -> list[str]:
    from delayclient.errors import DelayError
    from delayclient.producer.results import BatchFailed

    handles = [""] * chunk.count
    for rows, batch in chunk.batches():
        tally.sent += len(batch.bodies)
        try:
            result = await producer.send_batch(
                topic,
                batch.bodies,
                due_ms=batch.due_ms,
                delay_ms=batch.delay_ms,
                keys=batch.keys,
                tags=batch.tags,
            )
        except BatchFailed as error:
            tally.first_error = tally.first_error or error
            result = error.result
        except DelayError as error:
            tally.first_error = tally.first_error or error
            continue
        stored = sum(len(part.rows) for part in result.parts)
        tally.acknowledged += stored
        advance(stored)
        if with_handles:
            for row, handle in zip(rows, result.handles, strict=True):
                handles[row] = handle
    return handles


def _report(settings: CommandSettings, tally: _Tally, seconds: float) -> None:
    failed = tally.sent - tally.acknowledged
    per_second = tally.acknowledged / seconds if seconds else 0.0
    if settings.as_json:
        put_json(
            {
                "sent": tally.sent,
                "acknowledged": tally.acknowledged,
                "failed": failed,
                "seconds": round(seconds, 3),
                "per_second": round(per_second, 1),
            }
        )
        return
    click.echo(
        f"sent {tally.sent:,}, acknowledged {tally.acknowledged:,}, failed {failed:,} "
        f"in {seconds:.2f} s ({per_second:,.0f}/s)"
    )
