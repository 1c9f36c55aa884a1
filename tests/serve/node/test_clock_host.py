"""A shard that is served while the node's clock is set: what is released, what is taken, and who wakes up."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from delayapi.units import HOUR_MS
from delaynode.replica.hosts import arrivals
from delaynode.store.errors import Refused

from tests.serve.support.hosts import Node, node

ROUNDING_MS = 2


async def refused(made: Node, *delays: int) -> str:
    with pytest.raises(Refused) as caught:
        await made.send("a", list(delays), relative=True)
    return caught.value.reason


async def settle(made: Node) -> int:
    """Release something, so that the watermark is at the present; how many are released by then."""
    await made.send("a", [1], relative=True)
    count = len(made.acknowledged["a"])
    await made.until_released("a", count)
    return count


def test_a_step_ahead_releases_nothing_until_it_is_accepted_and_then_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            count = await settle(made)
            far = await made.send("a", [HOUR_MS // 2, HOUR_MS // 2 + 1], relative=True)
            made.off_ms = HOUR_MS
            asked = time.monotonic()
            near = await made.send("a", [300], relative=True)
            assert await made.until_released("a", count + 1) - asked >= 0.3
            await asyncio.sleep(0.2)
            assert set(made.released("a")) & {*near, *far} == set(near)
            assert abs(made.clock.accept() - HOUR_MS) <= ROUNDING_MS
            host.on_visible()  # the tick loop sleeps for half an hour
            await made.until_released("a", count + 3, 5)
            assert made.released("a")[-2:] == far
            asked = time.monotonic()
            await made.send("a", [200], relative=True)
            assert await made.until_released("a", count + 4) - asked >= 0.2

    asyncio.run(story())


def test_after_a_step_back_only_what_can_be_on_time_is_taken_and_all_of_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "CLOCK_WAIT_SECONDS", 0)

    async def story() -> None:
        async with node(tmp_path) as made:
            count = await settle(made)
            asked = time.monotonic()
            (due, _), *_ = soon = await made.send("a", [1_000], relative=True)
            made.off_ms = -6_000
            assert await refused(made, 10) == "CLOCK_BEHIND"
            assert await refused(made, 9_000, 1_500) == "CLOCK_BEHIND"  # the batch, whole
            (later,) = await made.send("a", [7_200], relative=True)
            past = await made.send("a", [made.clock.now_ms() - 5])  # due: an ordinary message
            assert made.released("a")[count:] == past
            arrived = await made.until_released("a", count + 2, 30)
            assert made.clock.now_ms() >= due
            assert arrived - asked >= 7.0
            assert made.released("a")[count + 1 : count + 2] == soon
            assert await made.until_released("a", count + 3, 30) - asked >= 7.2
            assert made.released("a")[-1] == later
            await made.send("a", [10], relative=True)

    asyncio.run(story())


def test_a_clock_set_back_and_right_again_ends_no_delay_early(tmp_path: Path) -> None:
    """By the corrected clock the delay is over at once, by any watch it is not."""

    async def story() -> None:
        async with node(tmp_path) as made:
            count = await settle(made)
            made.off_ms = -HOUR_MS
            asked = time.monotonic()
            await made.send("a", [HOUR_MS + 1_000], relative=True)
            made.off_ms = 0
            await asyncio.sleep(1.5)
            assert len(made.released("a")) == count
            assert abs(made.clock.disbelieved_ms - HOUR_MS) <= ROUNDING_MS
            made.clock.accept()  # an operator's word; now it is the clock's
            made.hosts["a"].on_visible()
            assert await made.until_released("a", count + 1) - asked >= 1.0

    asyncio.run(story())
