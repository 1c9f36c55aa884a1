"""The demo from the first flight to the verdict: produce, cancel, watch the day go by, judge."""

import asyncio
import random
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from delayclient import Admin, DelayError, Producer
from delayclient.admin.views import Outcome
from delaylocal import LocalCluster
from numpy.typing import NDArray

from demo.crew import Crew
from demo.flights import MINUTES_A_DAY, Flights, due_times
from demo.ledger import Expected, Ledger, Produced, Verdict, judge
from demo.view import COLUMNS, Snapshot, View

TOPIC, PROBE, GROUP = "departures", "probe", "gates"
BATCH = 32_768  # messages in one send_batch
PROBE_BATCH = 8_192
CANCEL_BATCH = 2_000
LEAD_SECONDS = 3.0  # kept free between the end of production, as foreseen, and the start of the day
SLOWER = 1.5  # production may take this much longer than the probe says
CANCELS_PER_SECOND = 8_000  # a cautious guess, for the lead
RUSH_MINUTES = (6 * 60, 9 * 60)  # when --kill strikes
LOOK_SECONDS = 0.2
WHEEL_SECONDS = 1.0
SETTLE_SECONDS = 2.0  # after the last delivery: a duplicate or a revived message would come now
PATIENCE_SECONDS = 60.0  # after the day's end, until what is not there counts as missing


@dataclass(frozen=True)
class Settings:
    """window_ms: how long the folded day is; seed: picks the node and the moment of the kill."""

    window_ms: int
    kill: bool
    seed: int


@dataclass(frozen=True)
class Outcomes:
    """The verdict, and the figures around it."""

    verdict: Verdict
    produce_seconds: float
    produced_per_second: int
    cancel_seconds: float
    ready_before_first_due_ms: int
    by_worker: list[int]
    killed_node: str | None
    seed: int

    def as_dict(self) -> dict[str, object]:
        figures = asdict(self)
        del figures["verdict"]
        return {**self.verdict.as_dict(), **figures}


def now_ms() -> int:
    """The wall clock, which the nodes of this machine share."""
    return time.time_ns() // 1_000_000


async def probe_speed(producer: Producer, flights: Flights) -> float:
    """Messages a second into a topic of its own; the first batch, which opens the connections, is not counted."""
    bodies, keys = flights.bodies[:PROBE_BATCH], flights.keys[:PROBE_BATCH]
    await producer.send_batch(PROBE, bodies, delay_ms=3_600_000, keys=keys)
    began_s = time.monotonic()
    await producer.send_batch(PROBE, bodies, delay_ms=3_600_000, keys=keys)
    return len(bodies) / (time.monotonic() - began_s)


def lead_ms(flights: Flights, per_second: float) -> int:
    """How far ahead the day must start so that all is produced and cancelled before."""
    produce_s = SLOWER * len(flights) / per_second
    cancel_s = np.count_nonzero(~flights.flown) / CANCELS_PER_SECOND
    return int(1000 * (LEAD_SECONDS + produce_s + cancel_s))


async def produce(
    producer: Producer, flights: Flights, due_ms: NDArray[np.int64], view: View
) -> tuple[Produced, list[str]]:
    """Sends every flight; the handles are those of the flights that were not flown, in order. Raises BatchFailed."""
    n = len(flights)
    queue, seq, stored_due_ms = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    handles: list[str] = []
    for start in range(0, n, BATCH):
        rows = slice(start, start + BATCH)
        batch = await producer.send_batch(TOPIC, flights.bodies[rows], due_ms=due_ms[rows], keys=flights.keys[rows])
        for part in batch.parts:
            queue[start + part.rows] = part.queue
        seq[rows], stored_due_ms[rows] = batch.seq, batch.due_ms
        handles += [batch.handles[row] for row in np.flatnonzero(~flights.flown[rows]).tolist()]
        view.note(f"producing: {min(start + BATCH, n):,} of {n:,}")
    key_hash = np.array([zlib.crc32(key.encode()) for key in flights.keys], np.uint32)
    return Produced(queue, seq, stored_due_ms, key_hash), handles


async def cancel(admin: Admin, handles: list[str], view: View) -> NDArray[np.bool_]:
    """bool[n]: whether each message is cancelled, by the cluster's own word."""
    outcomes: list[Outcome] = []
    for start in range(0, len(handles), CANCEL_BATCH):
        outcomes += await admin.cancel(handles[start : start + CANCEL_BATCH])
        view.note(f"cancelling: {len(outcomes):,} of {len(handles):,}")
    # A cancel whose answer was lost is sent again, and finds its own work.
    return np.isin(np.array(outcomes, np.int64), [Outcome.CANCELLED, Outcome.ALREADY_CANCELLED])


class Watch:
    """Follows the day: reads what the workers wrote, shows it, kills a node in the rush when asked to."""

    def __init__(
        self,
        cluster: LocalCluster,
        admin: Admin,
        crew: Crew,
        ledger: Ledger,
        base_ms: int,
        settings: Settings,
        view: View,
    ) -> None:
        self._cluster, self._admin, self._crew, self._ledger, self._view = cluster, admin, crew, ledger, view
        self._base_ms, self._settings = base_ms, settings
        self._pending = self._released = 0
        produced = ledger.produced
        self._column = np.clip((produced.due_ms - base_ms) * COLUMNS // settings.window_ms, 0, COLUMNS - 1)
        self._cells = np.zeros((int(produced.queue.max(initial=0)) + 1, COLUMNS), np.int64)
        waiting = ~ledger.cancelled
        np.add.at(self._cells, (produced.queue[waiting], self._column[waiting]), 1)
        dice = random.Random(settings.seed)
        self._victim = dice.choice(sorted(cluster.pids)) if settings.kill else None
        self._kill_at_ms = base_ms + int(dice.uniform(*RUSH_MINUTES) * settings.window_ms / MINUTES_A_DAY)
        self.killed_node: str | None = None

    async def until_over(self) -> None:
        """Returns when the day is over and all is delivered and quiet, or patience is at its end. Raises WorkerDied."""
        await self._ask_wheel()
        wheel = asyncio.create_task(self._keep_asking())
        try:
            quiet_since_s = time.monotonic()
            while True:
                if self._look():
                    quiet_since_s = time.monotonic()
                day_ms = now_ms() - self._base_ms
                if day_ms > self._settings.window_ms:
                    if not self._ledger.missing and time.monotonic() - quiet_since_s > SETTLE_SECONDS:
                        return
                    if day_ms > self._settings.window_ms + PATIENCE_SECONDS * 1000:
                        return
                if self._victim and not self.killed_node and now_ms() >= self._kill_at_ms:
                    await self._kill(self._victim)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            wheel.cancel()

    def _look(self) -> bool:
        """Takes in and shows what is new; False when nothing is."""
        news = self._crew.news()
        first = self._ledger.deliver(news)
        np.subtract.at(self._cells, (self._ledger.produced.queue[first], self._column[first]), 1)
        times = self._ledger.times
        self._view.show(
            Snapshot(
                day_ms=now_ms() - self._base_ms,
                window_ms=self._settings.window_ms,
                cells=np.maximum(self._cells, 0),
                pending=self._pending,
                released=self._released,
                delivered=int(np.count_nonzero(times)),
                duplicates=int(np.maximum(times - 1, 0).sum()),
                early=self._ledger.early,
                lateness_ms=self._ledger.lateness_ms[first],
            )
        )
        return len(news) > 0

    async def _kill(self, node: str) -> None:
        pid = await asyncio.to_thread(self._cluster.kill, node)
        self.killed_node = node
        self._view.say(f"kill -9 {pid}: node {node} is gone; its supervisor starts it again")

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(WHEEL_SECONDS)
            await self._ask_wheel()

    async def _ask_wheel(self) -> None:
        try:
            shards = await self._admin.wheel(TOPIC)
        except DelayError:
            # A killed node tells nothing until it is back; the deliveries are counted all the same.
            self._view.note("a node does not answer")
            return
        self._pending = sum(shard.pending for shard in shards)
        self._released = sum(shard.released for shard in shards)


async def run(flights: Flights, cluster: LocalCluster, directory: Path, settings: Settings, view: View) -> Outcomes:
    """The whole demo on a cluster that is ready. Raises DelayError, WorkerDied."""
    async with (
        Crew(cluster.endpoints, TOPIC, GROUP, directory) as crew,
        Producer(cluster.endpoints) as producer,
        Admin(cluster.endpoints) as admin,
    ):
        speed = await probe_speed(producer, flights)
        base_ms = now_ms() + lead_ms(flights, speed)
        due_ms = due_times(flights.minute, base_ms, settings.window_ms)
        began_s = time.monotonic()
        produced, handles = await produce(producer, flights, due_ms, view)
        produce_s = time.monotonic() - began_s
        view.say(f"produced {len(flights):,} flights in {produce_s:.1f} s, {len(flights) / produce_s:,.0f} a second")

        began_s = time.monotonic()
        cancelled = await cancel(admin, handles, view)
        cancel_s = time.monotonic() - began_s
        view.say(f"cancelled {np.count_nonzero(cancelled):,} that were not flown in {cancel_s:.1f} s")
        ready_ms = int(due_ms.min(initial=base_ms + settings.window_ms)) - now_ms()

        ledger = Ledger(produced)
        ledger.cancel(np.flatnonzero(~flights.flown)[cancelled])
        watch = Watch(cluster, admin, crew, ledger, base_ms, settings, view)
        await watch.until_over()
        expected = Expected(len(flights), int(np.count_nonzero(~flights.flown)), settings.kill, ready_ms)
        return Outcomes(
            verdict=judge(ledger, expected),
            produce_seconds=round(produce_s, 3),
            produced_per_second=int(len(flights) / produce_s),
            cancel_seconds=round(cancel_s, 3),
            ready_before_first_due_ms=ready_ms,
            by_worker=crew.shares,
            killed_node=watch.killed_node,
            seed=settings.seed,
        )
