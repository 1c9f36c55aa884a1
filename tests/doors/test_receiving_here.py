"""Consumers that wait for all shards of a topic that are here: what comes to any of them goes to one who waits, whoever
gives up meanwhile, and nobody waits beside a message."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delaynode.auth.identity import ANONYMOUS
from delaynode.replica.hosts import master
from delaynode.server.doors.receiving import Ask, Delivered

from tests.auth.serving import GivenCall, until
from tests.doors.test_fuzz_rows import Served, served

ONE = Ask("fuzz", "g", max_messages=1, lease_ms=600_000)  # of three queues
SECONDS = 30.0


@pytest.fixture(autouse=True)
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that was not woken waits for ever."""
    monkeypatch.setattr(master, "UNSURE_SECONDS", 3_600.0)


async def receive(node: Served, wait: float = SECONDS) -> list[Delivered]:
    return await node.doors.receiving.receive(GivenCall(ANONYMOUS), ONE, wait)


async def send(node: Served, *keys: str) -> None:
    messages = [rows.OutgoingMessage(key=key, body_text=key) for key in keys]
    results = (await node.call("Send", rows.SendRequest(topic="fuzz", messages=messages).SerializeToString())).results
    assert all(one.handle for one in results)


def waiting(node: Served) -> int:
    return sum(len(host.waiters) for host in node.node.hosts())


def all_came(tasks: list[asyncio.Task[list[Delivered]]], count: int) -> bool:
    """To those who have stayed, or had it before they gave up."""
    return sum(len(one.result()) for one in tasks if one.done() and not one.cancelled()) == count


async def settled(node: Served, places: int) -> None:
    """So many stand in lines."""
    await until(lambda: waiting(node) == places)


def test_one_consumer_gets_what_comes_to_each_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as node:
            queues = set()
            for number in range(12):
                task = asyncio.create_task(receive(node))
                await settled(node, 3)
                await send(node, f"k{number}")
                (got,) = await asyncio.wait_for(task, SECONDS)
                queues.add(got.receipt.queue)
                assert waiting(node) == 0
            assert queues == {0, 1, 2}
            assert await receive(node, 0.05) == []
            assert waiting(node) == 0

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(4))
def test_messages_that_come_at_once_wake_as_many_consumers(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)

    async def run() -> None:
        async with served(tmp_path) as node:
            for _ in range(8):
                count = draw.randrange(2, 15)
                tasks = [asyncio.create_task(receive(node)) for _ in range(count)]
                await settled(node, 3 * count)
                keys = [f"k{draw.randrange(99)}" for _ in range(count)]
                at = draw.randrange(count)
                await asyncio.gather(send(node, *keys[:at]) if at else asyncio.sleep(0), send(node, *keys[at:]))
                async with asyncio.timeout(SECONDS):
                    found = [one for part in await asyncio.gather(*tasks) for one in part]
                assert len({(one.receipt.queue, one.receipt.offset) for one in found}) == count
                assert waiting(node) == 0

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_that_gives_up_takes_no_message_and_no_wake_up_along(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)

    async def run() -> None:
        async with served(tmp_path) as node:
            sent = 0
            got: set[tuple[int, int]] = set()
            for _ in range(15):
                tasks = [asyncio.create_task(receive(node)) for _ in range(6)]
                await settled(node, 18)
                keys = [f"k{draw.randrange(99)}" for _ in range(draw.randrange(1, 4))]
                sending = asyncio.create_task(send(node, *keys))
                sent += len(keys)
                for _ in range(draw.randrange(25)):
                    await asyncio.sleep(0)
                for task in tasks[:3]:
                    task.cancel()
                await sending
                await until(partial(all_came, tasks, len(keys)))
                for task in tasks:
                    task.cancel()
                for part in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(part, list):
                        got |= {(one.receipt.queue, one.receipt.offset) for one in part}
                await settled(node, 0)
            assert len(got) == sent

    asyncio.run(run())
