"""A delivery waits for the frames that it rests on, and for no others that are under way beside them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.replica.hosts.master import ShardHost
from delaynode.replication.transport.until import wait_until
from delaynode.server.handlers.consume import ConsumeCalls
from delaynode.store.maintenance import evacuation
from delaynode.store.queue.consumers import ConsumerDelivery

from tests.serve.support.hosts import Node, node


async def receive(host: ShardHost, invisible_ms: int = 60_000, wait_ms: int = 0) -> ConsumerDelivery:
    return await host.receive("g", (), 1, 1 << 20, wait_ms, invisible_ms, False)


async def with_two_released(made: Node) -> ShardHost:
    await made.send("a", [made.clock.now_ms() - 1] * 2)
    await made.until_released("a", 2)
    return made.hosts["a"]


def hold_writes(monkeypatch: pytest.MonkeyPatch, host: ShardHost) -> None:
    """Nothing more is written, so nothing more is committed."""
    monkeypatch.setattr(host.resources.syncer, "mark", lambda writer: None)


def release_writes(monkeypatch: pytest.MonkeyPatch, host: ShardHost) -> None:
    monkeypatch.undo()
    host.resources.syncer.mark(host)


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
            assert host.shard.log_end > host.shard.committed_offset
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


def test_a_letter_that_is_being_moved_is_handed_out_once_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = await with_two_released(made)
            shard, now = host.shard, made.clock.now_ms
            shard.consumers.limits = replace(shard.consumers.limits, max_attempts=1)
            first, second = await receive(host), await receive(host)
            shard.consumers.nack("g", first.offset, first.attempt, 0, now())
            shard.consumers.acknowledge("g", second.offset, second.offset + 1, now())
            shard.consumers.resolve("g", None, redrive=True, now_ms=now())
            shard.space.trim(now(), 0, small=True)
            shard.log.begin_segment()
            await made.send("a", [now() + 60_000])
            job = evacuation.begin_evacuation(shard, shard.space.ledger.segments[:1])
            job.run()
            hold_writes(monkeypatch, host)
            assert evacuation.relocate(shard, job, now()) == 1
            evacuation.end_evacuation(shard, job)
            again = asyncio.create_task(receive(host))
            await asyncio.sleep(0.3)
            assert not again.done(), "its record is in no file yet"
            release_writes(monkeypatch, host)
            letter = await again
            assert b"".join(bytes(part) for part in await host.read_records(letter.rows)) == bytes(10)
            assert host.failure is None

    asyncio.run(main())


async def waiting_for_a_retry(
    made: Node, monkeypatch: pytest.MonkeyPatch, invisible_ms: int
) -> asyncio.Task[ConsumerDelivery]:
    """A Receive of host "a" that was handed a message which rests on a RETRY under way."""
    host = await with_two_released(made)
    _, second = await receive(host), await receive(host)
    again = asyncio.create_task(receive(host, invisible_ms, wait_ms=30_000))
    await wait_until(lambda: len(host.waiters) == 1, 0.001)
    hold_writes(monkeypatch, host)
    host.shard.consumers.nack("g", second.offset, second.attempt, 0, made.clock.now_ms())
    host.waiters.wake_first("g")
    await wait_until(lambda: in_flight(host) == 2, 0.001)
    await asyncio.sleep(0.1)
    assert not again.done()
    return again


def in_flight(host: ShardHost) -> int:
    return host.shard.consumers.group("g").counts(host.shard.queue, host.resources.clock.now_ms()).in_flight


def test_what_nobody_waits_for_any_more_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host, again = made.hosts["a"], await waiting_for_a_retry(made, monkeypatch, 60_000)
            other = asyncio.create_task(receive(host, wait_ms=30_000))
            await asyncio.sleep(0.1)
            again.cancel()
            await asyncio.wait([again])
            release_writes(monkeypatch, host)
            given = await asyncio.wait_for(other, 10)
            assert (given.offset.tolist(), given.attempt.tolist()) == ([1], [2])

    asyncio.run(main())


def test_what_was_answered_meanwhile_stays_so_when_nobody_waits_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host, again = made.hosts["a"], await waiting_for_a_retry(made, monkeypatch, 60_000)
            host.shard.consumers.acknowledge("g", np.array([1]), np.array([2]), made.clock.now_ms())
            again.cancel()
            await asyncio.wait([again])
            release_writes(monkeypatch, host)
            assert not len((await receive(host)).offset)

    asyncio.run(main())


def test_a_hand_out_expires_also_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host, again = made.hosts["a"], await waiting_for_a_retry(made, monkeypatch, 300)
            await asyncio.wait_for(wait_until(lambda: in_flight(host) == 1, 0.01), 20)
            release_writes(monkeypatch, host)
            await again

    asyncio.run(main())


def test_what_could_not_be_sent_is_free_again(tmp_path: Path) -> None:
    class Full:
        """A connection that takes no more."""

        window = 1 << 20

        async def reserve(self, size: int) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        async with node(tmp_path) as made:
            host = await with_two_released(made)
            consuming = ConsumeCalls(SimpleNamespace(node=None, check_still=lambda *_: None))  # type: ignore[arg-type]
            receiving = consuming.receive(pb.ReceiveRequest(group="g"), host, Full(), None)  # type: ignore[arg-type]
            sending = asyncio.create_task(receiving)
            await wait_until(lambda: "g" in host.shard.consumers.groups and in_flight(host) == 2, 0.001)
            sending.cancel()
            await asyncio.wait([sending])
            assert in_flight(host) == 0
            assert (await receive(host)).offset.tolist() == [0]

    asyncio.run(main())
