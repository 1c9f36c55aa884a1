"""What a shard's table of message ids costs: lookups, additions, memory and the checkpoint, at some sizes.

.venv/bin/python benchmarks/message_ids.py --ids 10000000
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable

import click
import numpy as np
from delayapi.units import DAY_MS
from delaynode.store.log.incoming_batch import ID
from delaynode.store.maintenance import checkpoint
from delaynode.store.maintenance.recovery_point import empty_state
from delaynode.store.queue.message_ids import MessageIds
from delaynode.store.timer.index import GEOMETRY
from delaynode.store.types import Ids

START_MS = 1_700_000_000_000
REQUESTS = 2_000


def ids_of(rng: np.random.Generator, count: int) -> Ids:
    return np.frombuffer(rng.bytes(16 * count), ID)


def filled(rng: np.random.Generator, count: int, batch: int) -> tuple[MessageIds, float]:
    """A table with ids that came evenly over a day, in requests of `batch`; and the longest addition, s."""
    table, longest, due = MessageIds(count), 0.0, np.zeros(batch, np.int64)
    for at in range(0, count, batch):
        ids, seq = ids_of(rng, batch), np.arange(at, at + batch)
        started = time.perf_counter()
        table.add(ids, seq, due, START_MS + DAY_MS * at // count)
        longest = max(longest, time.perf_counter() - started)
    return table, longest


def each_us(work: Callable[[Ids], object], requests: list[Ids]) -> float:
    started = time.perf_counter()
    for ids in requests:
        work(ids)
    return (time.perf_counter() - started) / len(requests) * 1e6


@click.command()
@click.option("--ids", "count", type=int, default=10_000_000, show_default=True)
@click.option("--batch", type=int, default=100, show_default=True, help="Ids of a request while the table is filled.")
def main(count: int, batch: int) -> None:
    rng = np.random.default_rng(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    table, longest = filled(rng, count, batch)
    seconds = time.perf_counter() - started
    used_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    now_ms = START_MS + DAY_MS
    click.echo(f"{len(table):,} ids in {len(table._runs)} runs, {used_mib:,.0f} MiB at most while they came")
    click.echo(
        f"add: {seconds / count * 1e9:,.0f} ns an id in requests of {batch}, the longest took {longest * 1e3:.0f} ms"
    )
    for size in (1, 16, 1_000):
        requests = [ids_of(rng, size) for _ in range(max(20, REQUESTS // size))]
        us = each_us(lambda ids: table.find(ids, now_ms), requests)
        click.echo(f"find: {us:,.0f} us a request of {size} new ids")
    gc.collect()
    started = time.perf_counter()
    arrays = table.snapshot()
    captured = time.perf_counter()
    encoded = checkpoint.encode(empty_state(1, now_ms, GEOMETRY, 3), arrays)
    ended = time.perf_counter()
    click.echo(
        f"checkpoint: {(captured - started) * 1e3:.1f} ms on the event loop, {ended - captured:.2f} s in a thread "
        f"to encode {len(encoded) >> 20:,} MiB"
    )
    started = time.perf_counter()
    restored = MessageIds(count)
    restored.restore(checkpoint.decode(encoded, "checkpoint")[1])
    click.echo(f"restore: {time.perf_counter() - started:.2f} s of {len(restored):,} ids")


if __name__ == "__main__":
    main()
