"""What a hand-out waits for: the frames that it rests on, and no others that are under way beside them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from delaynode.serve.host import ShardHost
from delaynode.store.consumers import Delivery

from tests.serve.hosts import Node, node


async def receive(host: ShardHost) -> Delivery:
    return await host.receive("g", (), 1, 1 << 20, 0, 60_000, False)


async def with_two_released(made: Node) -> ShardHost:
    await made.send("a", [made.clock.now_ms() - 1] * 2)
    await made.until_released("a", 2)
    return made.hosts["a"]


def hold_writes(monkeypatch: pytest.MonkeyPatch, host: ShardHost) -> None:
    """Nothing more is written, so nothing more is committed."""
    monkeypatch.setattr(host.shop.syncer, "mark", lambda writer: None)


def release_writes(monkeypatch: pytest.MonkeyPatch, host: ShardHost) -> None:
    monkeypatch.undo()
    host.shop.syncer.mark(host)


def test_a_hand_out_does_not_wait_for_messages_and_acks_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = await with_two_released(made)
            first = await receive(host)
            hold_writes(monkeypatch, host)
            sending = asyncio.create_task(made.send("a", [made.clock.now_ms() + 60_000]))
            await asyncio.sleep(0)
            host.shard.consumers.acknowledge("g", first.offset, first.offset + 1, made.clock.now_ms())
            assert host.shard.log_end > host.shard.committed
            second = await asyncio.wait_for(receive(host), 10)
            assert (first.offset.tolist(), second.offset.tolist()) == ([0], [1])
            assert not sending.done()
            release_writes(monkeypatch, host)
            await sending

    asyncio.run(main())


def test_a_hand_out_waits_for_the_end_of_the_attempt_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = await with_two_released(made)
            first = await receive(host)
            hold_writes(monkeypatch, host)
            host.shard.consumers.nack("g", first.offset, first.attempt, 0, made.clock.now_ms())
            again = asyncio.create_task(receive(host))
            await asyncio.sleep(0.3)
            assert not again.done(), "another master might not know of this attempt"
            release_writes(monkeypatch, host)
            second = await again
            assert (second.offset.tolist(), second.attempt.tolist()) == ([0], [2])

    asyncio.run(main())


def test_a_hand_out_waits_until_its_group_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = await with_two_released(made)
            hold_writes(monkeypatch, host)
            calls = [asyncio.create_task(receive(host)) for _ in range(2)]  # the second finds the group
            await asyncio.sleep(0.3)
            assert not any(call.done() for call in calls)
            release_writes(monkeypatch, host)
            found = await asyncio.gather(*calls)
            assert sorted(one.offset.tolist() for one in found) == [[0], [1]]

    asyncio.run(main())
