"""A master whose clock most others contradict, in front of the right time: it decides nothing by it that lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2 as schedule_pb
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delaynode.replica.hosts.maintenance import Intervals
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.handlers.consume import ConsumeCalls
from delaynode.server.handlers.lookups import Lookups
from delaynode.server.handlers.schedules import ScheduleCalls
from delaynode.store import formats
from delaynode.store.config import ShardConfig
from delaynode.store.errors import Refused
from delaynode.store.lookup import MOVED_NOW
from delaynode.store.queue.consumers import ConsumerDelivery
from delaynode.store.timer.scan import SlotSnapshotCache

from tests.serve.support.hosts import Node, node

OFTEN = Intervals(maintain=0.02, free=0.05, trim=0.05)


def ahead(made: Node, by_ms: int, *, out_voted: bool = True) -> None:
    """As of a process that has begun with this clock: a step under way would not be believed."""
    made.may_tick = not out_voted
    made.off_ms = by_ms
    made.clock.accept()


async def received(host: ShardHost, count: int) -> ConsumerDelivery:
    return await host.receive("g", (), count, 1 << 20, 1_000, HOUR_MS, False)


def calls(made: Node) -> Any:
    """As much of a Dispatch as a handler wants."""
    resources = made.hosts["a"].resources
    disk = SimpleNamespace(check=lambda _: None)
    return SimpleNamespace(node=SimpleNamespace(clock=made.clock, metrics=resources.metrics, disk=disk))


async def eventually(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_retention_and_dead_letters_end_by_a_clock_that_others_confirm(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, OFTEN) as made:
            host = made.hosts["a"]
            await made.send("a", [made.clock.now_ms() - 1] * 3)
            dead = await received(host, 1)
            host.shard.consumers.nack("g", dead.offset, dead.attempt, 0, made.clock.now_ms(), dead=True)
            host.on_proposed()
            ahead(made, MINUTE_MS + 5_000, out_voted=False)  # an idle tick
            host.on_visible()
            await eventually(lambda: host.shard.index.watermark.due > made.clock.now_ms() - MINUTE_MS)
            letters = host.shard.consumers.groups["g"].dead_letters
            await eventually(lambda: host.shard.queue.start == 1)  # only its record is kept, as a dead letter's
            ahead(made, 8 * DAY_MS)
            await asyncio.sleep(0.5)
            assert (host.shard.queue.start, letters.dead) == (1, 1)
            made.may_tick = True
            await eventually(lambda: host.shard.queue.start == 3)
            assert letters.dead == 0

    asyncio.run(story())


def test_what_is_given_back_is_there_again_once_the_clock_is_right(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            await made.send("a", [made.clock.now_ms() - 1])
            await made.until_released("a", 1)
            ahead(made, 8 * DAY_MS)
            held = await received(host, 1)
            nack = pb.NackRequest(group="g", offset=held.offset.tobytes(), attempt=held.attempt.tobytes())
            assert (await ConsumeCalls(calls(made)).nack(nack, host)).retried == 1
            ahead(made, 0, out_voted=False)
            host.on_visible()
            assert (await received(host, 1)).offset.tolist() == held.offset.tolist()

    asyncio.run(story())


def test_a_reschedule_releases_nothing_before_its_due(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as made:
            host, lookups = made.hosts["a"], Lookups(asyncio.Semaphore(1), SlotSnapshotCache(), made.clock)
            ((due, seq),) = await made.send("a", [made.clock.now_ms() + 2 * HOUR_MS])
            soon = made.clock.now_ms() + HOUR_MS // 2
            ahead(made, HOUR_MS)

            async def move(to_ms: int) -> list[int]:
                columns = (np.array([it]) for it in (due, seq, to_ms))
                return (await lookups.change(host, *columns)).outcome.tolist()  # type: ignore[arg-type]

            with pytest.raises(Refused, match="other nodes' clocks differ"):
                await move(soon)
            assert made.released("a") == []
            assert await move(made.clock.now_ms() + HOUR_MS) == [MOVED_NOW]

    asyncio.run(story())


def test_no_schedule_is_put_resumed_or_filled_in_by_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, config=ShardConfig(format=formats.NEWEST)) as made:
            host, schedules = made.hosts["a"], ScheduleCalls(calls(made))
            put = schedule_pb.PutScheduleRequest(topic="t")
            put.schedule.id, put.schedule.body_text = "s", "x"
            put.schedule.every.interval.seconds = 600
            await schedules.put(put, host)
            await schedules.pause(schedule_pb.PauseScheduleRequest(topic="t", id="s"), host)
            ahead(made, HOUR_MS)
            fill = schedule_pb.BackfillScheduleRequest(topic="t", id="s")
            getattr(fill, "from").FromMilliseconds(made.clock.now_ms() - HOUR_MS // 2)
            fill.to.FromMilliseconds(made.clock.now_ms())
            for asked in (
                schedules.put(put, host),
                schedules.resume(schedule_pb.PauseScheduleRequest(topic="t", id="s"), host),
                schedules.backfill(fill, host, None, None),  # type: ignore[arg-type]
            ):
                with pytest.raises(Refused) as caught:
                    await asked
                assert caught.value.reason == "CLOCK_BEHIND"
            await schedules.pause(schedule_pb.PauseScheduleRequest(topic="t", id="s", note="still"), host)

    asyncio.run(story())
