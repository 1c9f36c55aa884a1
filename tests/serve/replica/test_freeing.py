"""The maintenance frees disk while a shard is at work: files go, and nobody who reads or owns a message notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from delaynode.replica.hosts.maintenance import Intervals
from delaynode.replica.hosts.master import ShardHost
from delaynode.replication.transport.until import wait_event
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.lookup import CANCELLED
from delaynode.store.maintenance.reclaim import KeepConfig
from delaynode.store.timer.scan import SlotSnapshotCache

from tests.serve.support import hosts
from tests.serve.support.hosts import Node, node

FAR_MS = 40 * 3_600_000
BODY = 100
Work = Callable[[Node], Awaitable[None]]


@pytest.fixture(autouse=True)
def busy_maintenance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files, and all that is done each minute or half minute is done several times a second."""
    keep = KeepConfig(retention_ms=3_600_000, keep_log_bytes=0, keep_log_ms=0, relocate_after_ms=0)
    small = replace(
        hosts.CONFIG, log_segment_bytes=8_000, timer_segment_bytes=52 * 40, queue_segment_bytes=40 * 50, keep=keep
    )
    monkeypatch.setattr(hosts, "CONFIG", small)
    monkeypatch.setattr(hosts, "INTERVALS", Intervals(maintain=0.02, checkpoint=0.1, trim=0.05, empty_again=0.2))


def run(directory: Path, work: Work) -> None:
    async def main() -> None:
        async with node(directory) as made:
            await asyncio.wait_for(work(made), 60)

    asyncio.run(main())


async def send(host: ShardHost, number: int, near: int, far: int) -> list[tuple[int, int]]:
    """Bodies that tell their message; returns the far ones' handles."""
    now = host.resources.clock.now_ms()
    due = np.array([now + FAR_MS] * far + [now + 1] * near)
    n = far + near
    zeros = np.zeros(n, np.uint32)
    bodies = b"".join(b"%08d" % (number * 1000 + at) + b"x" * (BODY - 8) for at in range(n))
    appended = await host.stored(
        host.enqueue(IncomingBatch(due, np.empty(0, np.uint8), zeros + BODY, zeros, zeros, bodies))
    )
    return [(int(due[at]), appended.first_seq + at) for at in range(far)]


async def consume(host: ShardHost, group: str, seen: list[bytes], count: int) -> None:
    while len(seen) < count:
        got = await host.receive(group, (), 64, 1 << 20, 200, 30_000, False)
        if not len(got.offset):
            continue
        body = b"".join(await host.read_records(got.rows))
        seen += [body[at : at + 8] for at in range(0, len(body), BODY)]
        host.shard.consumers.acknowledge(group, got.offset, got.offset + 1, host.resources.clock.now_ms())
        host.on_proposed()
        await host.wait_committed(host.shard.log_end)


def log_files(made: Node) -> int:
    return len(list((made.directory / "a" / "log").iterdir()))


def log_bytes(made: Node) -> int:
    size = 0
    for path in (made.directory / "a" / "log").iterdir():
        with suppress(FileNotFoundError):  # freed meanwhile
            size += path.stat().st_size
    return size


async def until(claim: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    for _ in range(int(seconds / 0.05)):
        if claim():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(what)


def test_what_is_consumed_goes_and_what_waits_stays_as_it_was(tmp_path: Path) -> None:
    async def work(made: Node) -> None:
        host = made.hosts["a"]
        seen: dict[str, list[bytes]] = {"g": [], "h": []}
        batches, near, far = 60, 27, 3
        readers = [asyncio.create_task(consume(host, group, seen[group], batches * near)) for group in seen]
        handles = [key for number in range(batches) for key in await send(host, number, near, far)]
        await asyncio.gather(*readers)
        expected = sorted(b"%08d" % (n * 1000 + at) for n in range(batches) for at in range(far, far + near))
        assert sorted(set(seen["g"])) == sorted(set(seen["h"])) == expected
        written = host.shard.log_end
        await until(lambda: host.shard.queue.start == batches * near, "what all have consumed is still kept")
        needed = batches * far * BODY
        await until(
            lambda: log_bytes(made) < 3 * needed + 16_000,
            f"of {written} bytes {needed} are needed, {log_files(made)} files are there",
        )
        assert host.failure is None
        due, seq = (np.array(column) for column in zip(*handles, strict=True))
        lookup = host.shard.begin_lookup(due, seq, SlotSnapshotCache())
        if lookup.job is not None:
            await host.off_loop(lookup.job.run)
        outcome = host.shard.cancel(lookup, made.clock.now_ms()).outcome
        host.shard.end_lookup(lookup)
        assert (outcome == CANCELLED).all(), "a handle outlives the move of its message"
        assert host.shard.index.pending == 0

    run(tmp_path, work)


def test_readers_never_meet_a_file_that_went(tmp_path: Path) -> None:
    """Fetch and Receive at full speed, while segments go several times a second."""

    async def work(made: Node) -> None:
        host = made.hosts["a"]
        batches, near = 150, 30
        fetched = 0

        async def fetch() -> None:
            nonlocal fetched
            while True:
                at = max(host.shard.queue.start, host.shard.queue.visible - 40)
                _, rows = await host.fetch(at, 40, 1 << 20, 5)
                for part in np.array_split(rows, 3):
                    fetched += len(b"".join(await host.read_records(part))) // BODY
                await asyncio.sleep(0)

        seen: list[bytes] = []
        readers = [asyncio.create_task(fetch()) for _ in range(2)]
        consumer = asyncio.create_task(consume(host, "g", seen, batches * near))
        for number in range(batches):
            await send(host, number, near, 0)
        await consumer
        for reader in readers:
            reader.cancel()
        ended = await asyncio.gather(*readers, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
        assert fetched > 1000
        assert host.failure is None
        await until(lambda: log_files(made) <= 3, "segments are left")

    run(tmp_path, work)


@pytest.mark.parametrize("turns", range(4))
def test_a_background_task_that_is_stopped_just_as_it_is_woken_ends(turns: int) -> None:
    """Else it goes on while the shard stops: it appends, and the shard ends as damaged, or stop() never returns."""

    async def main() -> None:
        wanted = asyncio.Event()

        async def loop() -> None:
            while True:
                await wait_event(wanted, 60.0)

        task = asyncio.create_task(loop())
        await asyncio.sleep(0.01)
        wanted.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=1.0)
        assert done, "it goes on"

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(4))
def test_a_shard_that_is_stopped_just_as_its_tick_loop_is_woken_is_not_damaged(tmp_path: Path, turns: int) -> None:
    async def work(made: Node) -> None:
        host = made.hosts["a"]
        await send(host, 0, 3, 3)
        await asyncio.sleep(0.05)
        host.wake_tick_loop()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(host.stop(), 10)
        assert host.failure is None
        assert host.shard.checkpointed == host.shard.log_end

    run(tmp_path, work)


def test_a_shard_that_has_come_to_rest_lets_go_of_the_segment_that_it_wrote_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "CONFIG", replace(hosts.CONFIG, log_segment_bytes=160_000, idle_tick_ms=100))
    monkeypatch.setattr(hosts, "INTERVALS", replace(hosts.INTERVALS, idle_checkpoint=0.5))

    async def work(made: Node) -> None:
        host = made.hosts["a"]
        for number in range(15):
            await send(host, number, 28, 0)
        last = max(host.shard.log.file.bases)
        await send(host, 15, 28, 2)
        await consume(host, "g", [], 16 * 28)
        await until(lambda: last not in host.shard.log.file.bases, "the last segment is kept")
        assert log_bytes(made) < 10_000  # of 60,000
        assert host.failure is None
        assert host.shard.index.pending == 2

    run(tmp_path, work)


def test_segments_with_a_few_messages_each_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = replace(hosts.CONFIG.keep, relocate_share=0.0)
    monkeypatch.setattr(hosts, "CONFIG", replace(hosts.CONFIG, log_segment_bytes=80_000, keep=keep))

    async def work(made: Node) -> None:
        host = made.hosts["a"]
        for number in range(30):
            await send(host, number, 0, 3)
            host.shard.log.begin_segment()
        await send(host, 30, 0, 3)
        await until(lambda: log_files(made) < 10, "as many files as there were batches")
        rows = host.shard.space.ledger.segments
        assert rows["count"].sum() == host.shard.index.pending == 31 * 3
        assert host.failure is None

    run(tmp_path, work)
