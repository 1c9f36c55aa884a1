"""Memory and time of one hour that comes down to minutes: `python -m benchmarks.onehour`.

    --messages 500000,2000000,8000000    due within one hour of one shard (with --herd: within one millisecond)
    --path master | slave | recovery | empty | arrivals

Each run is a process of its own: a bare store on a real disk, without gRPC. The messages are enqueued and checkpointed,
free memory is given back to the system, and from then on the highest resident memory of each step is told, less what
was resident before. "Resident" is anonymous memory only: the page cache of the files is not counted.

    master     cascades a day ahead, as maintenance does, checkpoints, and loads the first minutes
    slave      applies a TICK of a master that is there already: cascades and loads on the way (Shard.apply)
    recovery   the same TICK lies in the log after the checkpoint when the copy is opened
    empty      a master that has cascaded the hour empties a segment of 8 MiB of its CommitLog
    arrivals   none of the messages is in the TimerLog yet when the checkpoint comes; a node lets two million wait. What
               they wait in, 44 bytes each, was there before
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np
from delayapi.units import HOUR_MS
from delaynode.memory import give_back, tune_allocator
from delaynode.store.config import ShardConfig
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.frames import FrameKind, Tick
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.maintenance import evacuation, persist
from delaynode.store.shard import Shard
from delaynode.store.types import MAX_SEQ, Pair

BORN_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
AHEAD = 30  # hours
BATCH = 65_536
CONFIG = ShardConfig(window_budget=1_000_000, log_segment_bytes=8 << 20)


def resident() -> int:
    """Anonymous memory, MiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))


class Peak:
    """The highest resident memory while it is open, looked at each 2 ms."""

    def __enter__(self) -> Peak:
        self.most, self._over, self._began = resident(), False, time.monotonic()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over:
            self.most = max(self.most, resident())
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._began
        self._over = True
        self._thread.join()


class Bench:
    """One shard whose messages are all due within one hour."""

    def __init__(self, messages: int, *, herd: bool, flushed: bool = True) -> None:
        self.directory = tempfile.mkdtemp()
        self.files = DiskFiles()
        self.shard = persist.create(self.files, f"{self.directory}/s", 7, "t", 0, CONFIG, BORN_MS)
        persist.accept_epoch(self.files, f"{self.directory}/s", self.shard, 1)
        self.shard.begin_term(1, "n0", BORN_MS)
        self.hour = BORN_MS + AHEAD * HOUR_MS
        self.first = self.hour + (HOUR_MS // 2 + 30_000 if herd else 1)  # due
        rng = np.random.default_rng(1)
        for at in range(0, messages, BATCH):
            count = min(BATCH, messages - at)
            spread = np.zeros(count, np.int64) if herd else rng.integers(0, HOUR_MS - 1, count)
            size, none = np.full(count, 16, np.uint32), np.zeros(count, np.uint32)
            batch = IncomingBatch(self.first + spread, np.empty(0, np.uint8), size, none, none, bytes(16 * count))
            self.shard.enqueue(batch, BORN_MS)
            self.write()
            if flushed and self.shard.index.unflushed >= CONFIG.flush_units:
                self.checkpoint()
        if flushed:
            self.checkpoint()

    def write(self) -> None:
        batch = self.shard.next_batch(sync=False)
        if batch is not None:
            batch.run()
            self.shard.finish_writes(batch)
        self.shard.commit(self.shard.log.written)

    def checkpoint(self) -> None:
        self.write()
        job = persist.begin_checkpoint(self.files, f"{self.directory}/s", self.shard)
        job.run()
        persist.remove_files(self.files, persist.finish_checkpoint(job))

    def steps(self, path: str) -> list[tuple[str, Callable[[], object]]]:
        mark = Pair(self.first - 1, MAX_SEQ)
        now = self.hour - 23 * HOUR_MS
        if path == "arrivals":
            return [("flush", self.checkpoint)]
        if path == "empty":
            self.shard.tick(now)
            cascade(self.shard, now)
            self.checkpoint()
            return [("empty", lambda: empty(self.shard))]
        if path == "master":
            self.shard.tick(now)
            return [
                ("cascade", lambda: cascade(self.shard, now)),
                ("flush", self.checkpoint),
                ("load", lambda: self.shard.loader.load_past(mark)),
            ]
        if path == "slave":
            return [("cascade and load", lambda: self.shard.loader.load_past(mark)), ("flush", self.checkpoint)]
        tick = Tick(mark.due, mark.seq, 0, self.shard.queue.end)  # of a master whose clock is at the hour's start
        self.shard.log.propose(FrameKind.TICK, self.shard.epoch, 0, 0, mark.due, tick.payload())
        self.write()
        self.files.close()
        return [("recovery", self.recover), ("flush", self.checkpoint)]

    def recover(self) -> None:
        self.files = DiskFiles()
        self.shard, _ = persist.recover(self.files, f"{self.directory}/s", CONFIG)


def cascade(shard: Shard, now_ms: int) -> None:
    index = shard.index
    while index.cascade_due(now_ms):
        job = index.begin_cascade()
        if job is not None:
            job.run()
            index.finish_cascade(job)


def empty(shard: Shard) -> None:
    job = evacuation.begin_evacuation(shard, shard.space.ledger.segments[:1])
    job.run()
    evacuation.end_evacuation(shard, job)


def measure(messages: int, path: str, *, herd: bool) -> None:
    tune_allocator()
    bench = Bench(messages, herd=herd, flushed=path != "arrivals")
    try:
        steps = bench.steps(path)
        give_back()
        base = resident()
        told = []
        for name, step in steps:
            with Peak() as peak:
                step()
            told.append(f"{name} +{peak.most - base} MiB in {peak.seconds:.1f} s")
        kind = "herd" if herd else "hour"
        print(f"{messages:>10,} {kind} {path:>8}: settled {base} MiB; {'; '.join(told)}", flush=True)
    finally:
        shutil.rmtree(bench.directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", default="500000,2000000,8000000")
    parser.add_argument("--path", default="master,slave,recovery,empty,arrivals")
    parser.add_argument("--herd", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return measure(int(args.messages), args.path, herd=args.herd)
    for count in args.messages.split(","):
        for path in args.path.split(","):
            herd = ["--herd"] if args.herd else []
            command = [sys.executable, "-m", "benchmarks.onehour", "--one", "--messages", count, "--path", path, *herd]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
