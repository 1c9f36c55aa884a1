"""How many rounds the syncer has under way at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
from delaynode.replica.hosts import sync_threads
from delaynode.replica.hosts.sync_threads import Syncer
from delaynode.replication.transport.until import wait_until
from delaynode.store.log.commit_log import WriteBatch

SECONDS = 10.0


@dataclass(eq=False)
class Batch:
    size: int
    gate: threading.Event
    start: int = 0

    @property
    def end(self) -> int:
        return self.size

    def run(self) -> None:
        assert self.gate.wait(SECONDS)


@dataclass(eq=False)
class Shard:
    """A writer whose batches take until its gate is open."""

    size: int = 300
    gate: threading.Event = field(default_factory=threading.Event)
    written: int = 0

    def next_batch(self) -> WriteBatch | None:
        return cast(WriteBatch, Batch(self.size, self.gate))

    def on_written(self, _: WriteBatch) -> None:
        self.written += 1

    def on_write_failed(self, error: Exception) -> None:
        raise error


def run(test: Callable[[Syncer], Awaitable[None]]) -> None:
    async def main() -> None:
        syncer = Syncer()
        await test(syncer)
        await syncer.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.wait_for(wait_until(condition, 0.001), SECONDS)


def test_small_batches_of_a_quick_disk_wait_for_the_round_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_threads, "STUCK_S", SECONDS)

    async def test(syncer: Syncer) -> None:
        first, *others = [Shard() for _ in range(4)]
        syncer.mark(first)
        await until(lambda: syncer.busy(first))
        for one in others:
            syncer.mark(one)
        await asyncio.sleep(0.02)
        assert not any(map(syncer.busy, others))
        for one in (first, *others):
            one.gate.set()
        await until(lambda: all(one.written for one in (first, *others)))

    run(test)


def test_what_shards_mark_alone_in_one_turn_of_the_event_loop_is_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_threads, "STUCK_S", SECONDS)  # so that a second round would wait for the first

    async def test(syncer: Syncer) -> None:
        shards = [Shard() for _ in range(3)]
        for one in shards:
            with syncer.turn(many=False):
                syncer.mark(one)
        assert not any(map(syncer.busy, shards))
        await asyncio.sleep(0)
        assert all(map(syncer.busy, shards))
        for one in shards:
            one.gate.set()
        await until(lambda: all(one.written == 1 for one in shards))

    run(test)


def test_a_round_that_waits_for_the_disk_holds_up_nobody_else() -> None:
    async def test(syncer: Syncer) -> None:
        stuck, other = Shard(), Shard()
        other.gate.set()
        syncer.mark(stuck)
        await until(lambda: syncer.busy(stuck))
        syncer.mark(other)
        await until(lambda: other.written == 1)
        assert stuck.written == 0
        stuck.gate.set()

    run(test)


@pytest.mark.parametrize("slow_disk", [False, True])
def test_what_takes_long_is_shared_among_the_threads(slow_disk: bool) -> None:
    """Large batches; and small ones, where each sync takes long."""

    async def test(syncer: Syncer) -> None:
        shards = [Shard(300 if slow_disk else 8 << 20) for _ in range(4)]
        if slow_disk:
            syncer._samples.extend([0.02, 0.005])
        for one in shards:
            syncer.mark(one)
        await until(lambda: all(map(syncer.busy, shards)))
        shards[-1].gate.set()
        await until(lambda: shards[-1].written == 1)
        assert not any(one.written for one in shards[:-1])
        for one in shards:
            one.gate.set()

    run(test)


def test_the_disks_time_is_that_of_the_quickest_small_batch() -> None:
    async def test(syncer: Syncer) -> None:
        large, small = Shard(8 << 20), Shard()
        for one in (large, small):
            one.gate.set()
            syncer.mark(one)
            await until(lambda one=one: one.written == 1)  # type: ignore[misc]
        assert len(syncer._samples) == 1

    run(test)
