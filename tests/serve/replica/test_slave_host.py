"""A slave's host: when it applies, how far behind it says it is, and that nothing of it runs after its end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from delaynode.replica.hosts import slave as slave_module
from delaynode.replica.hosts.maintenance import Maintenance
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.replication.transport.until import wait_until
from delaynode.store.maintenance import persist

from tests.serve.support.hosts import CONFIG, Node, node


def slave_of(made: Node, unheard_ms: int = 0) -> SlaveHost:
    """A slave of host "a". It has all of that host's log, and does not know of any frame that it is committed."""
    master, shard, copy = made.hosts["a"], made.hosts["a"].shard, made.path("copy")
    files, uid = master.resources.files, shard.identity.uid
    slave = SlaveHost(
        persist.create(files, copy, uid, "t", 0, CONFIG, shard.index.watermark.due), copy, master.resources
    )
    slave.unheard_ms = lambda: unheard_ms
    slave.start()
    persist.accept_epoch(files, copy, slave.shard, 1)
    slave.receive(memoryview(shard.log.read_raw(0, 1 << 20)))
    return slave


def test_a_slave_applies_at_once_while_a_reader_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_module, "BATCH_S", 60)
    monkeypatch.setattr(slave_module, "READER_S", 0)

    async def main() -> None:
        async with node(tmp_path) as made:
            await made.send("a", [made.clock.now_ms() + 60_000])
            early = made.hosts["a"].shard.committed_offset
            await made.send("a", [made.clock.now_ms() - 1] * 2)
            await made.until_released("a", 2)
            slave = slave_of(made)
            await wait_until(lambda: slave.durable >= made.hosts["a"].shard.committed_offset, 0.01)
            reading = asyncio.create_task(slave.fetch(0, 10, 1 << 20, 30_000))
            await asyncio.sleep(0)
            for offset in (early, made.hosts["a"].shard.committed_offset):
                slave.commit_to(offset)
                await wait_until(lambda offset=offset: slave.shard.applied >= offset, 0.001)
            assert len((await asyncio.wait_for(reading, 10))[1]) == 2
            await slave.end("done")

    asyncio.run(main())


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_slave_that_keeps_up_does_not_say_that_it_falls_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """There are always new frames when it looks. It applies one at a time, and always has as many to go."""
    monkeypatch.setattr(slave_module, "APPLY_BYTES", 1)

    async def main() -> None:
        async with node(tmp_path) as made:
            ends, seen = [], made.hosts["a"].shard
            for _ in range(40):
                await made.send("a", [made.clock.now_ms() + 60_000])
                ends.append(seen.committed_offset)
            slave = slave_of(made)
            await wait_until(lambda: slave.durable >= ends[-1], 0.01)
            behind_ms: list[int] = []

            def more() -> None:
                """Before the slave looks again."""
                if ends:
                    slave.commit_to(ends.pop(0))
                    behind_ms.append(slave.behind_ms())

            slave.on_stored, began = more, time.monotonic()
            for _ in range(ahead):
                more()
            await wait_until(lambda: not ends, 0.005)
            assert len(behind_ms) == 40
            assert behind_ms[-1] < (time.monotonic() - began) * 1000 / 2
            await slave.end("done")

    asyncio.run(main())


def test_a_slave_that_was_cut_off_says_so_until_it_has_applied_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            await made.send("a", [made.clock.now_ms() + 60_000])
            slave = slave_of(made, unheard_ms=3_600_000)
            await wait_until(lambda: slave.durable >= made.hosts["a"].shard.committed_offset, 0.01)
            monkeypatch.setattr(SlaveHost, "durable", 0)  # nothing can be applied
            slave.commit_to(made.hosts["a"].shard.committed_offset)
            slave.unheard_ms = lambda: 0  # the stream has begun again
            await asyncio.sleep(0.1)
            assert slave.behind_ms() >= 3_600_000
            monkeypatch.undo()
            slave._apply_wakeup.set()
            await wait_until(lambda: slave.shard.applied >= slave.known_committed, 0.001)
            assert slave.behind_ms() == 0
            await slave.end("done")

    asyncio.run(main())


def test_a_slave_writes_nothing_once_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames that it received stood in line for a disk that hung."""

    async def main() -> None:
        async with node(tmp_path) as made:
            await made.send("a", [made.clock.now_ms() + 60_000])
            syncer = made.hosts["a"].resources.syncer
            monkeypatch.setattr(syncer, "_free", 0)
            slave = slave_of(made)
            await asyncio.sleep(0)  # its tasks begin
            log = slave.shard.log
            before = log.written
            assert log.end > before
            await slave.end("another opens the copy")
            monkeypatch.undo()
            assert isinstance(syncer, Syncer)
            syncer._start()
            await asyncio.sleep(0.2)
            assert log.written == before

    asyncio.run(main())


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_slaves_that_catch_up_keep_no_more_frames_in_memory_than_the_node_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Each might keep 16 MiB, and a node has a thousand slaves. A slave reads frames that it did not keep when it
    applies them.
    """
    most, keep = [0], SlaveHost._count_kept

    def watched(slave: SlaveHost, size: int) -> None:
        keep(slave, size)
        most[0] = max(most[0], slave.resources.frame_memory.used)

    monkeypatch.setattr(SlaveHost, "_count_kept", watched)

    async def main() -> None:
        async with node(tmp_path) as made:
            kept, log = made.hosts["a"].resources.frame_memory, made.hosts["a"].shard.log
            for _ in range(40):
                await made.send("a", [made.clock.now_ms() + 60_000] * 2_000)
            assert log.end > 2 << 20
            kept.limit = limit
            slave = slave_of(made)
            while slave.shard.log.end < log.end:
                slave.receive(memoryview(log.read_raw(slave.shard.log.end, 200_000)))
                await asyncio.sleep(0)
            await wait_until(lambda: slave.durable >= log.end, 0.01)
            slave.commit_to(log.end)
            await wait_until(lambda: slave.shard.applied == log.end, 0.001)
            assert 0 < most[0] <= max(limit, slave_module.MIN_FRAME_BYTES)
            slave.receive(memoryview(b""))
            assert kept.used == 0
            await slave.end("done")

    asyncio.run(main())


def test_what_was_committed_in_a_lost_history_commits_nothing_of_the_next(tmp_path: Path) -> None:
    """All copies that had it are gone, and somebody allowed an unclean failover."""

    async def main() -> None:
        async with node(tmp_path) as made:
            log = made.hosts["a"].shard.log
            await made.send("a", [made.clock.now_ms() + 60_000])
            first, slave = log.end, slave_of(made)
            await wait_until(lambda: slave.durable >= first, 0.01)
            slave.commit_to(10 * first)
            await wait_until(lambda: slave.shard.applied == first, 0.001)
            await slave.cut(first)
            await made.send("a", [made.clock.now_ms() + 60_000])
            slave.receive(memoryview(log.read_raw(first, 1 << 20)))
            await wait_until(lambda: slave.durable == log.end, 0.01)
            await asyncio.sleep(0.1)
            assert slave.shard.applied == first
            slave.commit_to(log.end)
            await wait_until(lambda: slave.shard.applied == log.end, 0.001)
            await slave.end("done")

    asyncio.run(main())


def test_a_slave_applies_no_more_while_its_flush_waits_and_goes_on_storing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another shard of the node has the permit for long: what is applied beyond a few flushes would be memory."""

    async def main() -> None:
        async with node(tmp_path) as made:
            master = made.hosts["a"]
            for _ in range(30):
                await made.send("a", [made.clock.now_ms() + 3_600_000] * 3)
            monkeypatch.setattr(Maintenance, "_checkpoint_due", lambda maintenance: maintenance._many_units())
            slave = slave_of(made)
            config = slave.shard.config = replace(CONFIG, flush_units=10)
            acknowledged: list[int] = []
            slave.on_stored = lambda: acknowledged.append(slave.durable)
            async with slave.resources.checkpoints:
                slave.commit_to(master.shard.committed_offset)
                await wait_until(
                    lambda: slave.maintenance.full and slave.durable == master.shard.committed_offset, 0.01
                )
                await asyncio.sleep(0.2)
                applied = slave.shard.applied
                assert applied < slave.known_committed
                assert slave.shard.index.unflushed < config.max_unflushed + 3, "of 90"
                await made.send("a", [made.clock.now_ms() + 3_600_000])
                stored = slave.shard.log.end
                slave.receive(memoryview(master.shard.log.read_raw(stored, 1 << 20)))
                await wait_until(lambda: acknowledged[-1] > stored, 0.01)
                assert slave.shard.applied == applied
            slave.commit_to(master.shard.committed_offset)
            await wait_until(lambda: slave.shard.applied == master.shard.committed_offset, 0.01)
            assert slave.shard.index.pending == 91
            await slave.end("done")

    asyncio.run(main())


def test_a_slave_that_waits_for_its_flush_can_be_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            for _ in range(30):
                await made.send("a", [made.clock.now_ms() + 3_600_000])
            slave = slave_of(made)
            async with slave.resources.checkpoints:
                slave.commit_to(made.hosts["a"].shard.committed_offset)
                await wait_until(lambda: slave.maintenance.full, 0.01)
                ending = asyncio.create_task(slave.end("done"))
                await asyncio.sleep(0.05)
            await asyncio.wait_for(ending, 10)
            assert slave.shard.applied < made.hosts["a"].shard.committed_offset

    asyncio.run(main())
