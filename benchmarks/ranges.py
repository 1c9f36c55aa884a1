"""Looking into and changing one minute of 10 million pending messages: `python benchmarks/ranges.py --spread 30m`.

A node of its own takes the messages in one shard, through gRPC, with dues spread evenly over 40 days, 24 hours or 30
minutes (174, 7,000 or 333,000 in each minute). Then each call below is timed, in a different minute each time, while a
stream of 100 messages/s with delays of 1 to 2 s goes on beside it in the same shard: its lateness is what the calls
cost the others. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayclient.producer.producer import Producer
from delayclient.producer.results import SendResult
from delayclient.routing.routing import Cluster
from numpy.typing import NDArray

from benchmarks.workloads import machine
from benchmarks.workloads.ledger import DeliveryRecord
from benchmarks.workloads.load import FILL_BATCH, LoadGenerator, batches, in_flight, now_ms
from benchmarks.workloads.machine import MemoryWatch
from benchmarks.workloads.receive import receiving
from benchmarks.workloads.target import Target, own_node

SPREADS = {"40d": 40 * DAY_MS - 6 * HOUR_MS, "24h": DAY_MS, "30m": 30 * MINUTE_MS}
FILL_PER_S = 60_000  # what is counted on, on a busy machine
CALLS_S = 120.0  # and for the calls
OTHER_KEYS = 1_000_000
MANY = 1_000  # messages in a minute that share a key
PAGE = 10_000  # the largest there is
SIDE_PER_S, SIDE_DELAY_MS = 100, (1_000, 2_000)

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Minute:
    """One of the minutes that are looked into, and what is stored in it besides the load."""

    number: int
    from_ms: int

    @property
    def to_ms(self) -> int:
        return self.from_ms + MINUTE_MS

    @property
    def key_of_one(self) -> str:
        return f"one-{self.number}"

    @property
    def key_of_many(self) -> str:
        return f"many-{self.number}"


@dataclass
class Asker:
    """The calls, as columns: what the SDK makes of the rows is the client's time."""

    cluster: Cluster
    target: Target
    uid: int = 0

    async def ask(self, method: str, request: Any, answer: Any) -> Any:
        request.topic, request.queue = self.target.topic, 0
        return await self.cluster.call_at(self.target.endpoint, method, request, answer.FromString, 300.0)

    async def page(self, from_ms: int, to_ms: int, after: tuple[int, int], limit: int, records: bool = False) -> Any:
        asked = pb.ListPendingRequest(
            from_ms=from_ms, to_ms=to_ms, after_due=after[0], after_seq=after[1], limit=limit, with_records=records
        )
        answer = await self.ask("ListPending", asked, pb.PendingBatch)
        self.uid = answer.uid
        return answer

    async def pages(self, from_ms: int, to_ms: int, limit: int, records: bool = False, most: int = 1 << 62) -> Rows:
        """All pages of a range, or as many as hold `most` rows."""
        due, seq, after, count = [], [], (0, 0), 0
        while True:
            page = await self.page(from_ms, to_ms, after, limit, records)
            due.append(np.frombuffer(page.due, "<i8"))
            seq.append(np.frombuffer(page.seq, "<i8"))
            count += page.count
            if not page.more or count >= most:
                return Rows(np.concatenate(due)[:most], np.concatenate(seq)[:most], len(due))
            after = int(due[-1][-1]), int(seq[-1][-1])

    async def cancel_key(self, minute: Minute, key: str) -> int:
        asked = pb.CancelRequest(key=key, from_ms=minute.from_ms, to_ms=minute.to_ms)
        answer = await self.ask("Cancel", asked, pb.CancelResponse)
        return answer.outcome.count(pb.CANCELLED)

    async def cancel(self, rows: Rows) -> int:
        asked = pb.CancelRequest(uid=self.uid, due=rows.due.tobytes(), seq=rows.seq.tobytes())
        return (await self.ask("Cancel", asked, pb.CancelResponse)).outcome.count(pb.CANCELLED)

    async def reschedule(self, rows: Rows, by_ms: int) -> int:
        asked = pb.RescheduleRequest(
            uid=self.uid, due=rows.due.tobytes(), seq=rows.seq.tobytes(), time=(rows.due + by_ms).tobytes()
        )
        return (await self.ask("Reschedule", asked, pb.RescheduleResponse)).outcome.count(pb.MOVED)


@dataclass(frozen=True)
class Rows:
    """Handles of n messages, and in how many pages they came."""

    due: I64
    seq: I64
    pages: int = 1

    def take(self, rows: I64) -> Rows:
        return Rows(self.due[rows], self.seq[rows])


@dataclass
class Stored:
    """Every handle of the load, as the answers named them."""

    due: list[I64] = field(default_factory=list)
    seq: list[I64] = field(default_factory=list)

    def sample(self, n: int, above_ms: int, rng: np.random.Generator) -> Rows:
        """n different ones due after `above_ms`, in no order."""
        due, seq = np.concatenate(self.due), np.concatenate(self.seq)
        far = np.flatnonzero(due > above_ms)
        return Rows(due, seq).take(rng.permutation(far)[:n])


@dataclass(frozen=True)
class Timing:
    """Figures of one kind of call. messages: how many it returned or changed each time. rss, anon: the node's highest
    memory meanwhile, MiB. side: how late the messages of the side stream came meanwhile."""

    what: str
    median_s: float
    max_s: float
    messages: int
    times: int
    rss_mib: float
    anon_mib: float
    side_p50_ms: float
    side_p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.what:48} {self.median_s:8.3f} {self.max_s:8.3f} {self.messages:9,} {self.times:5} "
            f"{self.rss_mib:8.0f} {self.anon_mib:8.0f} {self.side_p50_ms:8.1f} {self.side_p99_ms:8.1f}"
        )


class Side:
    """A stream of 100 messages/s beside the calls: how late does it come."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.futures: list[asyncio.Future[SendResult]] = []

    async def run(self) -> None:
        load = LoadGenerator(64, 1, seed=3)
        body = bytes(load.bodies(1)[0])
        while True:
            due = int(now_ms()) + int(load.spread_ms(1, *SIDE_DELAY_MS)[0])
            self.futures.append(self._producer.send(self._topic, body, at=due))
            await asyncio.sleep(1 / SIDE_PER_S)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def fill(producer: Producer, target: Target, options: argparse.Namespace, low_ms: int, high_ms: int) -> Stored:
    load = LoadGenerator(options.body_bytes, FILL_BATCH)
    stored = Stored()
    number = 0

    async def send(n: int) -> None:
        nonlocal number
        keys = [f"k{(number + at) % OTHER_KEYS}" for at in range(n)]
        number += n
        answer = await producer.send_batch(
            target.topic, load.bodies(n), due_ms=load.spread_ms(n, low_ms, high_ms), keys=keys
        )
        for part in answer.parts:
            stored.due.append(part.due_ms)
            stored.seq.append(part.seq)

    await in_flight(batches(options.messages, FILL_BATCH), send, 2)
    return stored


async def add_probes(producer: Producer, target: Target, minutes: list[Minute], body_bytes: int) -> None:
    load = LoadGenerator(body_bytes, MANY + 1, seed=2)
    for minute in minutes:
        keys = [minute.key_of_one] + [minute.key_of_many] * MANY
        due = load.spread_ms(MANY + 1, minute.from_ms, minute.to_ms)
        await producer.send_batch(target.topic, load.bodies(MANY + 1), due_ms=due, keys=keys)


class Session:
    """Times calls on a filled node."""

    def __init__(
        self, asker: Asker, minutes: list[Minute], stored: Stored, watch: MemoryWatch, side: DeliveryRecord
    ) -> None:
        self.asker, self.minutes, self.watch, self.side = asker, minutes, watch, side
        rng, last_ms = np.random.default_rng(4), minutes[-1].to_ms
        self.scattered = {minute.number: stored.sample(65_536, last_ms, rng) for minute in minutes[:3]}
        self.timings: list[Timing] = []

    async def timed(self, what: str, call: Callable[[Minute], Awaitable[int]]) -> None:
        took: list[float] = []
        self.watch.peak()
        messages, seen = 0, len(self.side.one_by_one)
        for minute in self.minutes:
            began = time.perf_counter()
            messages = await call(minute)
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.3)
        peak = self.watch.peak()
        late = [came_ms - due_ms for _, _, due_ms, came_ms, _ in self.side.one_by_one[seen:]]
        timing = Timing(
            what, statistics.median(took), max(took), messages, len(took), peak.rss_bytes / 2**20,
            peak.anon_bytes / 2**20, *np.percentile(late or [0.0], (50, 99)).tolist(),
        )  # fmt: skip
        self.timings.append(timing)
        say(str(timing))

    async def run(self) -> None:
        ask = self.asker

        async def first(minute: Minute, limit: int = 1000, records: bool = False) -> int:
            return int((await ask.page(minute.from_ms, minute.to_ms, (0, 0), limit, records)).count)

        async def every(minute: Minute, limit: int, records: bool = False) -> int:
            return len((await ask.pages(minute.from_ms, minute.to_ms, limit, records)).due)

        async def change(minute: Minute, n: int) -> int:
            rows = self.chosen[minute.number].take(np.arange(n))
            return await ask.reschedule(rows, self.move_ms)

        await self.timed("list, first page of 1,000", first)
        await self.timed("list, first page of 10,000", lambda m: first(m, PAGE))
        await self.timed("list, all pages of 10,000", lambda m: every(m, PAGE))
        await self.timed("list, all pages of 1,000", lambda m: every(m, 1000))
        await self.timed("list with records, first page of 1,000", lambda m: first(m, 1000, True))
        await self.timed("list with records, all pages of 10,000", lambda m: every(m, PAGE, True))
        await self.timed("cancel by key, no hit", lambda m: ask.cancel_key(m, "nothing"))
        await self.timed("cancel by key, 1 hit", lambda m: ask.cancel_key(m, m.key_of_one))
        await self.timed("cancel by key, 1,000 hits", lambda m: ask.cancel_key(m, m.key_of_many))
        self.chosen: dict[int, Rows] = {}
        self.move_ms = 1
        for minute in self.minutes:
            self.chosen[minute.number] = await ask.pages(minute.from_ms, 0, PAGE, most=66_536)
        await self.timed("reschedule of 1,000 in the minute", lambda m: change(m, 1000))
        for number, rows in self.chosen.items():
            self.chosen[number] = rows.take(np.arange(1000, 66_536))
        await self.timed("reschedule of 65,536 from the minute on", lambda m: change(m, 65_536))

        scattered = self.scattered
        self.minutes = [minute for minute in self.minutes if minute.number in scattered]
        await self.timed("cancel of 65,536 scattered", lambda m: ask.cancel(scattered[m.number]))
        await self.timed(
            "cancel of 1,000 scattered, known already", lambda m: ask.cancel(scattered[m.number].take(np.arange(1000)))
        )


async def measure(options: argparse.Namespace, spread: str, target: Target) -> dict[str, Any]:
    own = target.own
    assert own is not None
    wait_s = options.messages / FILL_PER_S + options.settle
    begin_ms = int(now_ms() + 1000 * (wait_s + CALLS_S)) // MINUTE_MS * MINUTE_MS + MINUTE_MS
    end_ms = begin_ms + SPREADS[spread]
    middle = begin_ms + (end_ms - begin_ms) // 2 // MINUTE_MS * MINUTE_MS
    step = max(MINUTE_MS, SPREADS[spread] // 40 // MINUTE_MS * MINUTE_MS)
    minutes = [Minute(n, middle + n * step) for n in range(options.repeats)]
    began = time.monotonic()
    async with Cluster(target.endpoint) as cluster, Producer(cluster) as producer:
        stored = await fill(producer, target, options, begin_ms, end_ms)
        await add_probes(producer, target, minutes, options.body_bytes)
        say(f"{spread}: {options.messages:,} stored in {time.monotonic() - began:.0f} s")
        idle, ledger = DeliveryRecord(), DeliveryRecord()
        await asyncio.sleep(options.settle)
        with MemoryWatch(own.pid) as watch:
            before = machine.memory(own.pid)
            beside: list[dict[str, float]] = []
            session = Session(Asker(cluster, target), minutes, stored, watch, ledger)
            for book, work in ((idle, asyncio.sleep(10.0)), (ledger, session.run())):
                side = Side(producer, target.topic)
                async with receiving(target, book, each=True):
                    task = asyncio.create_task(side.run())
                    await asyncio.sleep(1.0)
                    await work
                    task.cancel()
                    await asyncio.sleep(SIDE_DELAY_MS[1] / 1000 + 1.0)
                    for sent in await asyncio.gather(*side.futures):
                        book.stored_one(sent.queue, sent.seq)
                verdict = book.verdict()
                beside.append(
                    {**dataclasses.asdict(verdict.lateness_ms), "missing": verdict.missing, "early": verdict.early}
                )
        say(f"side stream alone {beside[0]}\nside stream beside {beside[1]}")
        return {
            "spread": spread, "messages": options.messages, "rss_before_mib": before.rss_bytes / 2**20,
            "anon_before_mib": before.anon_bytes / 2**20, "peak_mib": machine.memory(own.pid).peak_bytes / 2**20,
            "side_alone": beside[0], "side_beside": beside[1],
            "calls": [dataclasses.asdict(timing) for timing in session.timings],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000, help="pending (default: 10 million)")
    parser.add_argument("--spread", choices=SPREADS, action="append", help="of the dues; default: each of them")
    parser.add_argument("--repeats", type=int, default=5, help="minutes that each call is made for (default: 5)")
    parser.add_argument("--body-bytes", type=int, default=256, help="(default: 256)")
    parser.add_argument("--settle", type=float, default=35.0, help="seconds between filling and calls (default: 35)")
    parser.add_argument("--directory", type=Path, help="where the node keeps its files; default: the temporary one")
    options = parser.parse_args()
    results = []
    for spread in options.spread or SPREADS:
        with own_node(1, options.directory) as target:
            say(
                f"{'call':48} {'median s':>8} {'max s':>8} {'messages':>9} {'times':>5} {'RSS MiB':>8} {'anon':>8} "
                f"{'side p50':>8} {'p99 ms':>8}"
            )
            results.append(asyncio.run(measure(options, spread, target)))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
