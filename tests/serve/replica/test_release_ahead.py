"""What a master releases before it is due: nobody sees it earlier, also not on a slave or after a failover; and nothing
is left to be written at the due.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from delaynode.replica.hosts import master
from delaynode.replica.hosts.master import ShardHost
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replication.transport.until import wait_until
from delaynode.store import formats, shard
from delaynode.store.log.frames import FrameKind
from delaynode.store.maintenance import persist

from tests.serve.support import hosts
from tests.serve.support.hosts import Node, node

AHEAD_MS = 800  # long enough that the slowest machine releases before the due


@pytest.fixture(autouse=True)
def _far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "CONFIG", dataclasses.replace(hosts.CONFIG, format=formats.NEWEST))
    for owner, name in ((master, "LEAD_MS"), (master, "AHEAD_MS"), (shard, "MAX_AHEAD_MS")):
        monkeypatch.setattr(owner, name, AHEAD_MS)


async def released(made: Node, apart_ms: int = 0) -> int:
    """Host "a" has committed the release of two messages that are due later; returns when, ms."""
    due = made.clock.now_ms() + AHEAD_MS - 50 - apart_ms
    await made.send("a", [due, due + apart_ms])
    queue = made.hosts["a"].shard.queue
    await wait_until(lambda: queue.committed == 2, 0.001)
    assert made.clock.now_ms() < due
    assert queue.visible == 0
    return due


def run(tmp_path: Path, test: Callable[[Node], object]) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            await test(made)  # type: ignore[misc]

    asyncio.run(main())


def test_a_message_is_received_at_its_due_and_nothing_is_written_then(tmp_path: Path) -> None:
    async def received(made: Node) -> None:
        host = made.hosts["a"]
        receiving = asyncio.create_task(host.receive("g", (), 9, 1 << 20, 30_000, 60_000, False))
        due = await released(made)
        end = host.shard.log_end
        delivery = await receiving
        assert made.clock.now_ms() >= due
        assert delivery.rows["due"].tolist() == [due, due]
        assert host.shard.log_end == end
        frames = host.shard.log.parse_all(memoryview(host.shard.log.read_raw(0, end)), 0)
        assert [frame.kind for frame in frames].count(FrameKind.TICK_AHEAD) == 1

    run(tmp_path, received)


def test_a_reader_sees_each_at_its_due(tmp_path: Path) -> None:
    async def read(made: Node) -> None:
        reading = asyncio.create_task(made.hosts["a"].fetch(0, 9, 1 << 20, 30_000))
        due = await released(made, 300)
        _, rows = await reading
        assert due <= made.clock.now_ms() < due + 300
        assert rows["due"].tolist() == [due]
        _, rows = await made.hosts["a"].fetch(1, 9, 1 << 20, 30_000)
        assert made.clock.now_ms() >= due + 300
        assert rows["due"].tolist() == [due + 300]

    run(tmp_path, read)


async def next_master(made: Node) -> ShardHost:
    """Of host "a", whose process has ended; not started yet."""
    old = made.hosts["a"]
    await old.wind_down("it goes")
    files = old.resources.files
    again, _ = persist.recover(files, old.directory, hosts.CONFIG)
    persist.accept_epoch(files, old.directory, again, 2)
    made.hosts["a"] = ShardHost(again, old.directory, old.resources)
    return made.hosts["a"]


async def slave_of(made: Node) -> SlaveHost:
    """A slave of host "a", without frames."""
    host, copy = made.hosts["a"], made.path("copy")
    files, uid = host.resources.files, host.shard.identity.uid
    mine = persist.create(files, copy, uid, "t", 0, hosts.CONFIG, host.shard.index.watermark.due)
    slave = SlaveHost(mine, copy, host.resources)
    persist.accept_epoch(files, copy, slave.shard, 1)
    slave.start()
    return slave


async def send_frames(made: Node, slave: SlaveHost) -> None:
    """The slave has all frames of host "a", and has applied them."""
    host = made.hosts["a"]
    slave.receive(memoryview(host.shard.log.read_raw(slave.shard.log_end, 1 << 20)))
    await wait_until(lambda: slave.durable == host.shard.log_end, 0.001)
    slave.commit_to(host.shard.committed_offset)
    await wait_until(lambda: slave.shard.applied == host.shard.committed_offset, 0.001)


@pytest.mark.parametrize("slave_before", [False, True])
def test_the_next_master_shows_at_once_what_the_log_released(tmp_path: Path, slave_before: bool) -> None:
    async def lead(made: Node) -> None:
        slave = await slave_of(made)
        await released(made)
        if slave_before:
            await send_frames(made, slave)
            await slave.end("it is chosen")
            persist.accept_epoch(slave.resources.files, slave.directory, slave.shard, 2)
            host = ShardHost(slave.shard, slave.directory, slave.resources)
        else:
            await slave.end("done")
            host = await next_master(made)
        made.off_ms -= 900  # its clock is behind
        starting = asyncio.create_task(host.start(2, "n0"))
        await asyncio.sleep(0)
        assert host.serving, "the registry has it as serving"
        assert host.shard.queue.visible == 2, "whoever asks at once finds what was seen elsewhere"
        await starting
        if slave_before:
            await host.stop()

    run(tmp_path, lead)


def test_a_slave_shows_it_though_its_masters_clock_was_set_back(tmp_path: Path) -> None:
    async def follow(made: Node) -> None:
        slave = await slave_of(made)
        await released(made)
        await send_frames(made, slave)
        made.off_ms -= 3_600_000
        await made.send("a", [0])
        await send_frames(made, slave)
        assert slave.shard.queue.visible == 0
        async with asyncio.timeout(10):
            await wait_until(lambda: slave.shard.queue.visible == 3, 0.01)
        await slave.end("done")

    run(tmp_path, follow)


def test_a_slave_shows_with_a_new_term_what_was_released_before_it(tmp_path: Path) -> None:
    """By a master whose clock was further than the next one's."""

    async def follow(made: Node) -> None:
        slave = await slave_of(made)
        await released(made)
        made.off_ms -= 900
        host = await next_master(made)
        persist.accept_epoch(host.resources.files, slave.directory, slave.shard, 2)
        await host.start(2, "n0")
        await send_frames(made, slave)
        assert slave.shard.queue.visible == 2
        await slave.end("done")

    run(tmp_path, follow)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_slave_shows_it_once_it_is_due_by_the_masters_clock(tmp_path: Path, restarted: bool) -> None:
    async def follow(made: Node) -> None:
        slave = await slave_of(made)
        due = await released(made)
        await send_frames(made, slave)
        files, copy, resources = slave.resources.files, slave.directory, slave.resources
        if restarted:
            await slave.stop()
            again, _ = persist.recover(files, copy, hosts.CONFIG, replay=False)
            assert again.queue.visible == 2, "its checkpoint does not say what is not due yet"
            slave = SlaveHost(again, copy, resources)
            slave.start()
        assert made.clock.now_ms() < due
        _, rows = await slave.fetch(0, 9, 1 << 20, 30_000)
        assert made.clock.now_ms() >= due
        assert len(rows) == 2
        await slave.end("done")

    run(tmp_path, follow)


def test_a_clock_that_is_set_back_does_not_keep_it_from_being_seen(tmp_path: Path) -> None:
    async def set_back(made: Node) -> None:
        host = made.hosts["a"]
        receiving = asyncio.create_task(host.receive("g", (), 9, 1 << 20, 30_000, 60_000, False))
        await released(made)
        made.off_ms -= 3_600_000
        assert host._tick(made.clock.now_ms()) == -1  # as when an invisible time ends
        assert len((await asyncio.wait_for(receiving, 10)).rows) == 2

    run(tmp_path, set_back)
