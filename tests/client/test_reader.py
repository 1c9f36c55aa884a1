"""Reading by offset, from whichever copy knows enough."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from delayclient import errors, sync
from delayclient.consumer.reader import Reader

from tests.client.support.fakecopies import Copy
from tests.client.support.fakes import FakeCluster, FakeNode


@asynccontextmanager
async def copies(count: int = 3, messages: int = 100) -> AsyncIterator[list[Copy]]:
    """The first is the master's."""
    cluster = FakeCluster()
    nodes = [await FakeNode(cluster).start() for _ in range(count)]
    cluster.elect(nodes[0])
    cluster.readable = nodes
    bodies = [str(i).encode() for i in range(messages)]
    try:
        yield [Copy(node, bodies, messages) for node in nodes]
    finally:
        for node in nodes:
            node.awake.set()
            await node.stop()


def endpoints(world: list[Copy]) -> list[str]:
    return [copy.node.endpoint for copy in world]


def test_messages_come_by_offset_and_the_iteration_ends_at_the_queues_end() -> None:
    async def main() -> None:
        async with copies(1) as world, Reader(endpoints(world), "t", 0, offset=7, follow=False) as reader:
            world[0].most = 10
            messages = [message async for message in reader]
            assert [int(message.body) for message in messages] == [*range(7, 100)]
            assert [message.offset for message in messages] == [*range(7, 100)]
            assert reader.offset == 100
            with pytest.raises(TypeError, match="by offset"):
                messages[0].ack()

    asyncio.run(main())


def test_slaves_are_read_only_when_asked_for() -> None:
    async def main() -> None:
        async with copies() as world:
            async with Reader(endpoints(world), "t", 0, follow=False) as reader:
                assert len([message async for message in reader]) == 100
            assert [copy.fetches > 0 for copy in world] == [True, False, False]
            async with Reader(endpoints(world), "t", 0, follow=False, from_slaves=True) as reader:
                assert len([message async for message in reader]) == 100
                assert reader.source in endpoints(world)[1:]
            assert sum(copy.fetches > 0 for copy in world[1:]) == 1, "one of them, as long as it is good enough"

    asyncio.run(main())


def test_slaves_deliver_while_there_is_no_master_and_what_comes_later_is_not_missed() -> None:
    async def main() -> None:
        async with (
            copies() as world,
            Reader(endpoints(world), "t", 0, from_slaves=True, max_staleness="500ms") as reader,
        ):
            master, first, second = world
            first.end, second.end = 60, 80
            await master.node.stop()
            master.node.cluster.elect(None)
            for copy in (first, second):
                copy.behind_ms = 5_000
            seen: list[int] = []

            async def read() -> None:
                async for message in reader:
                    seen.append(message.offset)

            reading = asyncio.create_task(read())
            for _ in range(300):
                await asyncio.sleep(0.01)
                if len(seen) == 80:
                    break
            assert seen == [*range(80)], "what is committed is given, however stale the copy"
            await asyncio.sleep(0.5)
            assert len(seen) == 80
            second.end, second.behind_ms = 100, 0
            master.node.cluster.elect(second.node)
            for _ in range(500):
                await asyncio.sleep(0.01)
                if len(seen) == 100:
                    break
            assert seen == [*range(100)]
            reading.cancel()

    asyncio.run(main())


def test_stale_copy_is_not_believed_that_there_is_no_more() -> None:
    async def main() -> None:
        async with copies(2) as world:
            world[1].end, world[1].behind_ms = 40, 3_000
            async with Reader(endpoints(world), "t", 0, follow=False, from_slaves=True, max_staleness="1s") as reader:
                assert len([message async for message in reader]) == 100
                assert reader.source == world[0].node.endpoint
            world[1].behind_ms = 900
            async with Reader(endpoints(world), "t", 0, follow=False, from_slaves=True, max_staleness="1s") as reader:
                assert len([message async for message in reader]) == 40, "the staleness that the caller accepts"
            world[0].behind_ms = world[1].behind_ms = 5_000
            async with Reader(
                endpoints(world), "t", 0, offset=100, from_slaves=True, max_staleness="1s", timeout="1s"
            ) as reader:
                with pytest.raises(errors.Unavailable, match="has not heard from the master"):
                    await reader.read(wait="100ms")

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["frozen", "dead"])
def test_copy_that_stops_to_answer_is_left(kind: str) -> None:
    async def main() -> None:
        async with copies() as world, Reader(endpoints(world), "t", 0, from_slaves=True) as reader:
            batch = await reader.read(most=10)
            at = next(copy for copy in world if copy.node.endpoint == reader.source)
            if kind == "frozen":
                at.node.awake.clear()
            else:
                await at.node.stop()
            asked = time.monotonic()
            batch = await reader.read(most=10, wait="500ms")
            assert batch.offset.tolist() == [*range(10, 20)]
            assert time.monotonic() - asked < 5
            assert reader.source != at.node.endpoint

    asyncio.run(main())


def test_offsets_neither_repeat_nor_skip_through_any_change_of_copies() -> None:
    async def main() -> None:
        rng = random.Random(5)
        async with (
            copies(messages=2000) as world,
            Reader(endpoints(world), "t", 0, from_slaves=True, max_staleness="100ms") as reader,
        ):
            for copy in world:
                copy.end, copy.most = 0, 7
            seen: list[int] = []

            async def read() -> None:
                async for message in reader:
                    seen.append(message.offset)

            reading = asyncio.create_task(read())
            committed = 0
            while committed < 2000:
                committed = min(2000, committed + rng.randint(1, 40))
                world[0].end = committed
                for copy in world[1:]:
                    if rng.random() < 0.5:
                        copy.end, copy.behind_ms = committed, 0
                    else:
                        copy.behind_ms = 1_000
                await asyncio.sleep(0.005)
            for _ in range(1000):
                await asyncio.sleep(0.01)
                if len(seen) >= 2000:
                    break
            assert seen == [*range(2000)]
            assert sum(copy.fetches > 0 for copy in world) > 1
            reading.cancel()

    asyncio.run(main())


def test_trimmed_and_recreated_queues_are_told() -> None:
    async def main() -> None:
        async with copies(1) as world:
            world[0].start = 30
            async with Reader(endpoints(world), "t", 0, offset=10) as reader:
                with pytest.raises(errors.OffsetTrimmed) as trimmed:
                    await reader.read()
                assert trimmed.value.metadata["start"] == "30"
                reader.offset = 30
                assert (await reader.read(most=5)).offset.tolist() == [*range(30, 35)]
                world[0].uid = 999
                with pytest.raises(errors.NotFound, match="made again"):
                    await reader.read()
            async with Reader(endpoints(world), "t", 5) as reader:
                with pytest.raises(errors.NotFound, match="no queue 5"):
                    await reader.read()

    asyncio.run(main())


def test_answer_with_other_offsets_is_refused() -> None:
    async def main() -> None:
        async with copies(1) as world, Reader(endpoints(world), "t", 0, offset=10) as reader:
            fetch = world[0].fetch

            async def skipping(request: object) -> bytes:
                request.offset += 1  # type: ignore[attr-defined]
                return await fetch(request)

            world[0].node.unary["Fetch"] = skipping
            with pytest.raises(errors.DelayError, match="other offsets"):
                await reader.read()

    asyncio.run(main())


def test_sync_reader_does_the_same() -> None:
    async def serve(ready: asyncio.Future[list[str]], done: asyncio.Event) -> None:
        async with copies(1) as world:
            ready.set_result(endpoints(world))
            await done.wait()

    async def main() -> None:
        ready: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        done = asyncio.Event()
        serving = asyncio.create_task(serve(ready, done))

        def read(addresses: list[str]) -> list[int]:
            with sync.SyncReader(addresses, "t", 0, follow=False) as reader:
                return [int(message.body) for message in reader]

        assert await asyncio.to_thread(read, await ready) == [*range(100)]
        done.set()
        await serving

    asyncio.run(main())
