"""Loop time of frames of one message, by step: `python -m benchmarks.frames`.

What the owner's thread of a shard spends on each, on a real directory; sealing and writing, which other threads do, are
left out. A master's steps, then a slave's, which applies the same frames.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from delaynode.store import formats
from delaynode.store.config import ShardConfig
from delaynode.store.log.commit_log import WriteBatch
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.incoming_batch import columns_of
from delaynode.store.maintenance import persist
from delaynode.store.shard import Shard

RECORD_BYTES = 256
BACKLOG = 2_000  # messages that wait in the window meanwhile
GROUP = "g"


class Watch:
    """Microseconds of each step's turns."""

    def __init__(self) -> None:
        self.turns: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.perf_counter_ns()
        yield
        self.turns[name].append((time.perf_counter_ns() - began) / 1e3)


class Pair:
    """A master and a slave of one shard, and the bytes of the frames between them."""

    def __init__(self, directory: Path, now_ms: int) -> None:
        self.now_ms = now_ms
        config = ShardConfig(format=formats.NEWEST)
        self.master, self.slave = (
            persist.create(DiskFiles(), str(directory / name), 7, "t", 0, config, now_ms) for name in ("a", "b")
        )
        self.sealed = bytearray()
        self.watch = Watch()
        self.master.begin_term(1, "a", now_ms)
        self.commit("begin")

    def commit(self, name: str) -> None:
        """The master's batch is written and committed, and the slave applies its frames."""
        with self.watch.step(f"{name}: batch"):
            batch = self.master.next_batch(sync=False)
        assert batch is not None, "a frame was proposed"
        self.written(batch, ship=True)
        with self.watch.step(f"{name}: commit"):
            self.master.finish_writes(batch)
            self.master.commit(batch.end)
        data = memoryview(bytes(self.sealed))
        self.sealed.clear()
        with self.watch.step(f"{name}: slave takes"):
            frames = self.slave.log.receive(data)
            received = self.slave.next_batch(sync=False)
        assert received is not None, "frames have come"
        self.written(received, ship=False)
        with self.watch.step(f"{name}: slave applies"):
            self.slave.finish_writes(received)
            self.slave.apply_committed(frames)

    def written(self, batch: WriteBatch, *, ship: bool) -> None:
        if ship:
            batch.on_sealed = lambda _, parts: [self.sealed.extend(part) for part in parts] and None
        batch.run()

    def enqueue(self, delay_ms: int, number: int, name: str = "append") -> None:
        time_, size = np.array([delay_ms], "<i8").tobytes(), np.array([RECORD_BYTES], "<u4").tobytes()
        with self.watch.step(f"{name}: propose"):
            batch = columns_of(1, time_, b"\1", size, b"", b"", bytes(RECORD_BYTES), 0, number)
            self.master.enqueue(batch, self.now_ms)
        self.commit(name)

    def tick(self) -> None:
        with self.watch.step("tick: propose"):
            self.master.next_tick()
            released = self.master.tick(self.now_ms)
        assert released == 1, "one message is due each time"
        self.commit("tick")

    def consume(self) -> None:
        consumers = self.master.consumers
        with self.watch.step("deliver"):
            consumers.join(GROUP, (), from_end=False, now_ms=self.now_ms)
            delivery = consumers.deliver(GROUP, self.now_ms, 30_000, 1, 1 << 20)
            records = self.master.read_cached(delivery.rows)
        assert records is not None, "what was just written is cached"
        assert len(records) == 1
        with self.watch.step("ack: propose"):
            consumers.acknowledge(GROUP, delivery.offset, delivery.offset + 1, self.now_ms)
        self.commit("ack")


def measure(rounds: int, seed: int) -> dict[str, float]:
    """Medians over the rounds, microseconds, by step."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        pair = Pair(Path(directory), 1_800_000_000_000)
        pair.master.consumers.join(GROUP, (), from_end=False, now_ms=pair.now_ms)
        pair.commit("join")
        for _ in range(BACKLOG):
            pair.enqueue(60_000 + rng.randrange(60_000), 0, "backlog")
        for shard in (pair.master, pair.slave):
            load(shard, pair.now_ms + 120_000)
        for number in range(rounds):
            pair.enqueue(5, number)
            pair.now_ms += 5
            pair.tick()
            pair.consume()
        return {
            name: round(median(turns), 1) for name, turns in pair.watch.turns.items() if name.split(":")[0] in STEPS
        }


STEPS = ("append", "tick", "deliver", "ack")


def load(shard: Shard, target_ms: int) -> None:
    """Have the window hold what is due before `target_ms`."""
    while (job := shard.index.begin_load(target_ms, 1 << 20)) is not None:
        job.run()
        shard.index.finish_load(job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.rounds, arguments.seed), indent=2))


if __name__ == "__main__":
    main()
