"""The node's scrub: while the shard serves it reads everything in time and not faster; what is bad stops the copy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delaynode.clock import GuardedClock
from delaynode.metrics import NodeCollector, NodeMetrics, registry_of
from delaynode.replica.hosts import scrub as serving
from delaynode.replica.hosts.host import NodeResources
from delaynode.replica.hosts.maintenance import Intervals
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.scrub import Scrubber
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.store.config import ShardConfig
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.maintenance.scrub import size_of

EVENTS = list[tuple[str, dict[str, Any]]]
SECOND_DAYS = 1 / 86_400
NEVER = Intervals(checkpoint=1e9, busy_checkpoint=1e9, idle_checkpoint=1e9)


def batch_of(count: int, delay_ms: int) -> IncomingBatch:
    size = np.full(count, 100, np.uint32)
    zeros = np.zeros(count, np.uint32)
    return IncomingBatch(
        np.full(count, delay_ms), np.ones(count, np.uint8), size, zeros, zeros, random.randbytes(100 * count)
    )


@asynccontextmanager
async def a_host(
    directory: Path, events: EVENTS, *, checkpoints: bool = True, **limits: Any
) -> AsyncIterator[ShardHost]:
    """checkpoints: whether the shard writes some of its own, besides those that a test asks for."""
    flush_units, intervals = (3_000, Intervals()) if checkpoints else (1_000_000, NEVER)
    config = ShardConfig(
        log_segment_bytes=200_000,
        timer_segment_bytes=50_000,
        queue_segment_bytes=20_000,
        flush_units=flush_units,
        **limits,
    )
    files, clock, syncer = DiskFiles(), GuardedClock(), Syncer()
    metrics = NodeMetrics()

    def log(event: str, **fields: Any) -> None:
        events.append((event, fields))

    with ThreadPoolExecutor(4) as pool:
        resources = NodeResources(
            files,
            clock,
            syncer,
            pool,
            metrics,
            asyncio.Semaphore(1),
            fsync=False,
            log=log,
            disk_tight=lambda: False,
            intervals=intervals,
        )
        shard = persist.create(files, str(directory), 1, "t", 0, config, clock.now_ms())
        host = ShardHost(shard, str(directory), resources)
        persist.accept_epoch(files, str(directory), shard, 1)
        await host.start(1, "n0")
        try:
            yield host
        finally:
            await host.stop()
            await syncer.close()
            files.close()


async def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def fill(host: ShardHost, batches: int) -> None:
    for n in range(batches):
        await host.stored(host.enqueue(batch_of(500, (0, 20, 50, 3_600_000)[n % 4])))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(serving, "MEASURE_SECONDS", 0.1)


async def scrubbed_under_load(directory: Path) -> None:
    events: EVENTS = []
    keep = KeepConfig(retention_ms=500, keep_log_bytes=0, keep_log_ms=0, relocate_after_ms=0)
    async with a_host(directory, events, scrub_days=SECOND_DAYS / 2, keep=keep) as host:
        task = asyncio.create_task(
            Scrubber(lambda: [host] * host.serving, host.resources.metrics, host.resources.log).run()
        )
        for _ in range(6):
            await fill(host, 8)
            await host.maintenance.persist(copy_wheels=False)
        await until(lambda: sum(event == "scrubbed" for event, _ in events) >= 3)
        assert host.failure is None
        assert host.resources.metrics.scrub_bytes > 300_000
        assert host.resources.metrics.scrub_errors == 0
        task.cancel()


@pytest.mark.usefixtures("quick")
def test_a_healthy_shard_under_load_is_found_well_while_its_segments_are_freed(tmp_path: Path) -> None:
    asyncio.run(scrubbed_under_load(tmp_path / "shard"))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("part", ["log", "timerlog", "queue"])
def test_a_flipped_bit_stops_the_copy_with_the_segment_and_the_place(part: str, tmp_path: Path) -> None:
    async def main() -> None:
        events: EVENTS = []
        async with a_host(tmp_path / "shard", events, scrub_days=SECOND_DAYS) as host:
            await fill(host, 12)
            await until(lambda: host.shard.queue.visible >= 4_500)
            await host.maintenance.persist(copy_wheels=False)
            segment = sorted((tmp_path / "shard" / part).iterdir())[0]
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 16
            with segment.open("r+b") as file:
                file.write(data)
            task = asyncio.create_task(
                Scrubber(lambda: [host] * host.serving, host.resources.metrics, host.resources.log).run()
            )
            await until(lambda: host.failure is not None)
            task.cancel()
            assert host.failure is not None
            assert f"scrub: {segment}: byte " in host.failure
            (reason,) = [fields["reason"] for event, fields in events if event == "shard-damaged"]
            assert reason == host.failure
            assert host.resources.metrics.scrub_errors == 1

    asyncio.run(main())


@pytest.mark.usefixtures("quick")
def test_a_copy_serves_on_with_rot_in_what_is_kept_for_the_previous_checkpoint(tmp_path: Path) -> None:
    """It is told and counted, once a lap, until the next checkpoint does without the file."""

    async def main() -> None:
        events: EVENTS = []
        keep = KeepConfig(retention_ms=1, mark_ms=1, keep_log_bytes=0, keep_log_ms=0, relocate_after_ms=0)
        # a checkpoint of the shard's own would free the file before it is read
        async with a_host(tmp_path / "shard", events, checkpoints=False, scrub_days=SECOND_DAYS, keep=keep) as host:
            await fill(host, 12)
            await until(lambda: host.shard.queue.visible >= 4_500)
            while not host.shard.spare.segments:  # TRIM comes when it comes
                await fill(host, 4)
                await host.maintenance.persist(copy_wheels=False)
                await asyncio.sleep(0.05)
            segment = tmp_path / "shard" / "log" / f"{host.shard.spare.segments[0]:020d}"
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 16
            with segment.open("r+b") as file:
                file.write(data)
            scrubber = Scrubber(lambda: [host] * host.serving, host.resources.metrics, host.resources.log)
            task = asyncio.create_task(scrubber.run())
            await until(lambda: any(event == "scrubbed" for event, _ in events))
            names = [event for event, _ in events]
            assert names[: names.index("scrubbed")].count("spare-file-damaged") == 1  # another lap may have begun
            told = [fields for event, fields in events if event == "spare-file-damaged"]
            assert {fields["shard"] for fields in told} == {host.name}
            assert f"{segment}: byte " in told[0]["reason"]
            assert host.resources.metrics.scrub_errors == len(told)
            assert host.failure is None
            assert host.serving
            await fill(host, 1)
            task.cancel()

    asyncio.run(main())


@pytest.mark.usefixtures("quick")
def test_the_bytes_are_spread_over_the_days(tmp_path: Path) -> None:
    """In a fraction of the time, a fraction of the bytes."""

    async def main() -> None:
        events: EVENTS = []
        async with a_host(tmp_path / "shard", events, scrub_days=40 * SECOND_DAYS) as host:
            await fill(host, 40)
            await until(lambda: host.shard.queue.visible >= 15_000)
            total = size_of(host.shard)
            task = asyncio.create_task(Scrubber(lambda: [host], host.resources.metrics, host.resources.log).run())
            await asyncio.sleep(2.0)
            task.cancel()
            step = 200_000  # it reads a step at once, and waits afterwards
            assert host.resources.metrics.scrub_bytes <= total * 2.5 / 40 + 2 * step
            assert total > 6 * step

    asyncio.run(main())


def test_what_it_reads_and_finds_is_counted() -> None:
    metrics = NodeMetrics(scrub_bytes=7, scrub_errors=2)
    registry = registry_of(NodeCollector(metrics))
    assert registry.get_sample_value("delay_scrub_bytes_total") == 7
    assert registry.get_sample_value("delay_scrub_errors_total") == 2
