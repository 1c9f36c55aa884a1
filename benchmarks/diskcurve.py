"""Disk against time: 95 % of a topic's messages are due in 10 seconds, 5 % in 40 days; months of simulated time.

    python benchmarks/diskcurve.py --days 120

One real shard on a real disk, driven on simulated time with what a node's maintenance does: checkpoints, TRIM, emptying
of mostly dead segments, cleaning of the TimerLog. Only the sync calls are left out. Prints, for each day, the bytes on
disk against the bytes that are needed, and at the end the write amplification: all bytes written, over those written
had nothing ever been cleaned.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np
from delayapi.units import DAY_MS
from delaynode.store.config import ShardConfig
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.maintenance import evacuation, persist
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.shard import Shard
from delaynode.store.timer.timer_log import UNIT_BYTES
from delaynode.store.types import Buffers

START_MS = 1_700_000_000_000
STEP_MS = 600_000
SHORT_MS, LONG_MS = 10_000, 40 * DAY_MS - 1
SHORT_SHARE = 0.95


class Disk(DiskFiles):
    """Counts what is written, by the directory's name; does not sync, for time is simulated."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, int] = {}

    def append(self, path: str, buffers: Buffers) -> None:
        part = path.rsplit("/", 2)[1]
        self.written[part] = self.written.get(part, 0) + sum(len(buffer) for buffer in buffers)
        super().append(path, buffers)

    def sync(self, path: str) -> None:
        """Does nothing: this benchmark counts bytes and needs no sync."""


@dataclass
class Life:
    """A shard, its clock, and what it has written that a shard without cleaning would not have."""

    shard: Shard
    files: Disk
    root: str
    body_bytes: int
    now: int = START_MS
    relocated_bytes: int = 0
    cleaned_units: int = 0
    messages: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def pump(self) -> None:
        batch = self.shard.next_batch(sync=False)
        if batch is not None:
            batch.run()
            self.shard.finish_writes(batch)
            self.shard.commit(batch.end)

    def enqueue(self, count: int) -> None:
        short = int(count * SHORT_SHARE)
        delay = np.concatenate((np.full(short, SHORT_MS), np.full(count - short, LONG_MS))).astype(np.int64)
        self.rng.shuffle(delay)
        size = np.full(count, self.body_bytes, np.uint32)
        none = np.zeros(count, np.uint32)
        records = self.rng.bytes(count * self.body_bytes)
        self.shard.enqueue(IncomingBatch(self.now + delay, np.empty(0, np.uint8), size, none, none, records), self.now)
        self.messages += count
        self.pump()

    def release(self) -> None:
        shard = self.shard
        while shard.index.cascade_due(self.now):
            cascade = shard.index.begin_cascade()
            if cascade is not None:
                cascade.run()
                shard.index.finish_cascade(cascade)
        while True:
            while shard.loader.is_due(self.now):
                load = shard.index.begin_load(shard.loader.target_ms(self.now), shard.config.window_budget)
                if load is None:
                    break
                load.run()
                shard.index.finish_load(load)
            if shard.tick(self.now) < 0:
                break
            self.pump()
        end = shard.queue.visible
        floor = shard.consumers.group("g").first_unacked
        if floor < end:
            shard.consumers.acknowledge("g", np.array([floor]), np.array([end]), self.now)
            self.pump()

    def checkpoint(self) -> None:
        job = persist.begin_checkpoint(self.files, self.root, self.shard)
        job.run()
        persist.remove_files(self.files, persist.finish_checkpoint(job))

    def free(self) -> None:
        shard = self.shard
        while shard.space.trim(self.now, shard.checkpointed, small=True):
            self.pump()
        self.pump()
        segments = shard.space.mostly_dead(shard.checkpointed, self.now, share=None)
        job = evacuation.begin_evacuation(shard, segments)
        job.run()
        before = shard.log_end
        evacuation.relocate(shard, job, self.now)
        self.relocated_bytes += shard.log_end - before
        self.pump()
        evacuation.end_evacuation(shard, job)
        while shard.index.clean_due():
            step = shard.index.begin_clean()
            if step is None:
                break
            step.run()
            before = shard.index.unflushed
            shard.index.finish_clean(step)
            self.cleaned_units += shard.index.unflushed - before

    def on_disk(self) -> dict[str, int]:
        return {
            part: sum(path.stat().st_size for path in Path(self.root, part).iterdir())
            for part in ("log", "timerlog", "queue")
        }

    def needed(self) -> int:
        """Bytes of the pending messages' records and units."""
        return self.shard.index.pending_bytes + UNIT_BYTES * self.shard.index.pending


def curve(days: int, per_second: float, body_bytes: int, segment_mib: float, root: str) -> Iterator[dict[str, object]]:
    """A row for each simulated day."""
    files = Disk()
    segment = int(segment_mib * (1 << 20))
    config = ShardConfig(
        log_segment_bytes=segment, timer_segment_bytes=segment // 4, queue_segment_bytes=segment // 4,
        keep=KeepConfig(keep_log_bytes=0, keep_log_ms=0),
    )  # fmt: skip
    shard = persist.create(files, root, 1, "t", 0, replace(config), START_MS)
    life = Life(shard, files, root, body_bytes)
    persist.accept_epoch(files, root, shard, 1)
    shard.begin_term(1, "n0", START_MS)
    shard.consumers.join("g", (), from_end=False, now_ms=START_MS)
    life.pump()
    count = max(20, round(per_second * STEP_MS / 1000))
    for day in range(1, days + 1):
        began = time.monotonic()
        for _ in range(DAY_MS // STEP_MS):
            life.enqueue(count)
            life.now += STEP_MS
            life.release()
            life.checkpoint()
            life.free()
        disk, needed = life.on_disk(), life.needed()
        total = sum(disk.values())
        written = sum(life.files.written.values())
        extra = life.relocated_bytes + UNIT_BYTES * life.cleaned_units
        yield {
            "day": day, "messages": life.messages, "pending": shard.index.pending, "needed_bytes": needed,
            "disk_bytes": total, **{f"{part}_bytes": size for part, size in disk.items()},
            "disk_over_needed": round(total / needed, 3), "written_bytes": written,
            "write_amplification": round(written / (written - extra), 3),
            "seconds": round(time.monotonic() - began, 2),
        }  # fmt: skip


@click.command()
@click.option("--days", default=120, show_default=True, help="Simulated days.")
@click.option("--per-second", default=1.0, show_default=True, help="Messages per simulated second.")
@click.option("--body", default=256, show_default=True, help="Bytes of a record.")
@click.option("--segment-mib", default=2.0, show_default=True, help="Size of a CommitLog segment.")
@click.option("--every", default=10, show_default=True, help="Print each so many days.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a day.")
def main(days: int, per_second: float, body: int, segment_mib: float, every: int, as_json: bool) -> None:
    """Disk use of a topic with many short and a few long delays."""
    if not as_json:
        click.echo("  day   messages    pending   needed MiB   disk MiB   disk/needed   write amplification")
    with tempfile.TemporaryDirectory() as root:
        for row in curve(days, per_second, body, segment_mib, root + "/t-0"):
            day = int(str(row["day"]))
            if as_json:
                click.echo(json.dumps(row))
            if as_json or (day % every and day not in (1, days)):
                continue
            needed, disk = int(str(row["needed_bytes"])), int(str(row["disk_bytes"]))
            click.echo(
                f"{day:5} {row['messages']:10,} {row['pending']:10,} {needed / 2**20:12.1f} {disk / 2**20:10.1f}"
                f" {row['disk_over_needed']:13} {row['write_amplification']:21}"
            )


if __name__ == "__main__":
    main()
