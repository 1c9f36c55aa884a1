"""A producer through failovers: late, never wrong, and no error before its own timeout."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from delayapi.codec import EnqueueRequestView
from delayclient import errors
from delayclient.producer.producer import Producer

from tests.client.support.fakes import FakeCluster, FakeNode, until

NOBODY = "127.0.0.1:1"


def stored_once_in_order(cluster: FakeCluster, count: int) -> None:
    bodies = [[int(body) for body in shard.bodies()] for shard in cluster.shards]
    assert sorted(body for shard in bodies for body in shard) == [*range(count)]
    for shard in bodies:
        assert shard == sorted(shard)


def test_frozen_master_is_left_for_its_successor_long_before_the_timeout() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=2)
        # The frozen node is the one that would be asked for the route, too.
        async with (
            FakeNode(cluster) as new,
            FakeNode(cluster) as old,
            Producer([old.endpoint, new.endpoint], linger_ms=0) as producer,
        ):
            await asyncio.gather(*[producer.send("t", str(i), delay=5, key=str(i % 8)) for i in range(100)])
            old.awake.clear()
            before = old.came["EnqueueStream"]
            futures = [producer.send("t", str(i), delay=5, key=str(i % 8)) for i in range(100, 200)]
            await until("the frozen node has some of them", lambda: old.came["EnqueueStream"] > before)
            futures += [producer.send("t", str(i), delay=5, key=str(i % 8)) for i in range(200, 300)]
            cluster.elect(new)
            elected = time.monotonic()
            await asyncio.gather(*futures)
            assert time.monotonic() - elected < 3.0, "the silence of a master is given up for, not waited out"
            stored_once_in_order(cluster, 300)
            assert all(len(shard.producers) == 1 for shard in cluster.shards), "under the first number and id"
            old.awake.set()

    asyncio.run(main())


def test_what_the_old_master_had_not_committed_is_sent_again_in_order() -> None:
    async def main() -> None:
        cluster = FakeCluster()

        async def mute(request: EnqueueRequestView) -> str:
            return "mute" if request.number >= 3 else ""

        async with (
            FakeNode(cluster) as new,
            FakeNode(cluster) as old,
            Producer([new.endpoint, old.endpoint], linger_ms=0) as producer,
        ):
            old.fault = mute
            futures = []

            def unanswered() -> int:
                """Batches that are stored."""
                return sum(number >= 3 for _, answers in shard.producers.values() for number, _ in answers)

            shard = cluster.shards[0]
            while len(futures) < 12 or unanswered() < 4:  # on a busy machine a batch is of many messages
                futures.append(producer.send("t", str(len(futures)), delay=5))
                await asyncio.sleep(0.01)
            shard.lose(4)
            await old.stop()
            cluster.elect(new)
            results = await asyncio.gather(*futures)
            stored_once_in_order(cluster, len(futures))
            assert [result.seq for result in results] == [*range(len(futures))], "each answer is this message's own"

    asyncio.run(main())


@pytest.mark.parametrize("reason", ["NOT_SERVING", "NOT_ENOUGH_REPLICAS", "SHARD_DAMAGED", "NOT_MASTER"])
def test_refusals_of_a_failover_are_latency_not_errors(reason: str) -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=2)
        async with (
            FakeNode(cluster) as new,
            FakeNode(cluster) as old,
            Producer([old.endpoint, new.endpoint]) as producer,
        ):
            await producer.send("t", "0", delay=5)

            refused = 0

            async def refuse(_: EnqueueRequestView) -> str:
                nonlocal refused
                refused += 1
                return reason

            old.fault = refuse
            futures = [producer.send("t", str(i), delay=5) for i in range(1, 50)]
            await until("they were refused and tried again", lambda: refused > 2)
            assert not any(future.done() for future in futures)
            cluster.elect(new)
            await asyncio.wait_for(asyncio.gather(*futures), 5)
            stored_once_in_order(cluster, 50)

    asyncio.run(main())


def test_shard_without_a_master_is_waited_for() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with (
            FakeNode(cluster) as other,
            FakeNode(cluster) as old,
            Producer([old.endpoint, other.endpoint]) as producer,
        ):
            await producer.send("t", "0", delay=5)
            await old.stop()
            cluster.elect(None)
            future = producer.send("t", "1", delay=5)
            await asyncio.sleep(1.5)
            assert not future.done()
            cluster.elect(other)
            elected = time.monotonic()
            await future
            assert time.monotonic() - elected < 2.0, "the next master is found soon after it was chosen"
            stored_once_in_order(cluster, 2)

    asyncio.run(main())


def test_error_comes_after_the_callers_timeout_and_says_whether_it_may_be_stored() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint, timeout="1s") as producer:
            await producer.send("t", "0", delay=5)
            node.awake.clear()
            asked = time.monotonic()
            with pytest.raises(errors.SendTimeout) as failure:
                await producer.send("t", "1", delay=5)
            assert 0.9 < time.monotonic() - asked < 5
            assert failure.value.maybe_stored
            node.awake.set()

    asyncio.run(main())


def test_many_shards_that_fail_over_at_once_make_no_storm() -> None:
    async def main() -> None:
        queues = 200
        cluster = FakeCluster(queues=queues)
        async with (
            FakeNode(cluster) as other,
            FakeNode(cluster) as old,
            Producer([other.endpoint, old.endpoint], linger_ms=0) as producer,
        ):
            keys = [str(i) for i in range(queues)]
            await asyncio.gather(*[producer.send("t", key, delay=5, key=key) for key in keys])
            used = sum(1 for shard in cluster.shards if shard.producers)
            assert used > 100
            await old.stop()  # it is the master still, as far as the routes know
            before_routes, before_streams = cluster.route_calls, other.streams
            futures = [producer.send("t", str(queues + i), delay=5, key=key) for i, key in enumerate(keys)]
            await asyncio.sleep(2.0)
            assert cluster.route_calls - before_routes < 30, "questions do not multiply with the shards"
            assert other.streams - before_streams < 60, "nor do detours that lead nowhere"
            cluster.elect(other)
            await asyncio.wait_for(asyncio.gather(*futures), 10)
            stored_once_in_order(cluster, 2 * queues)

    asyncio.run(main())


def test_what_is_sent_while_a_shard_has_no_master_goes_in_few_batches_afterwards() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint, linger_ms=0.5) as producer:
            await producer.send("t", "0", delay=5)
            cluster.elect(None)
            futures = []
            for i in range(1, 801):
                futures.append(producer.send("t", str(i), delay=5))
                await asyncio.sleep(0.001)
            before = cluster.shards[0].requests
            cluster.elect(node)
            await asyncio.gather(*futures)
            assert cluster.shards[0].requests - before < 60, "not a batch for each time that one lingered"
            stored_once_in_order(cluster, 801)

    asyncio.run(main())


def test_what_is_still_gathered_fails_with_the_producer() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node:
            producer = Producer(node.endpoint, linger_ms=0.5)
            await producer.send("t", "0", delay=5)
            producer._timeout_s = 0.5  # close() waits no longer, and messages far longer than that
            cluster.elect(None)
            closing = asyncio.create_task(producer.close())
            futures = []
            for i in range(1, 10_000):
                futures.append(producer.send("t", str(i), delay=5))
                await asyncio.sleep(0.001)
                if producer._closed:
                    break
            await asyncio.wait_for(closing, 20)
            results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 20)
            assert all(isinstance(result, errors.DelayError) for result in results)

    asyncio.run(main())


def test_messages_without_a_key_go_to_queues_that_answer() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=4)
        async with FakeNode(cluster) as well, FakeNode(cluster) as frozen, Producer(well.endpoint) as producer:
            cluster.masters = [well, frozen, well, well]
            await asyncio.gather(*[producer.send("t", str(i), delay=5, key=str(i)) for i in range(40)])
            frozen.awake.clear()
            for i in range(40, 44):
                producer.send("t", str(i), delay=5)
                await asyncio.sleep(0.3)
            sent = [producer.send("t", str(i), delay=5) for i in range(44, 48)]
            for i in range(48, 60):
                with suppress(asyncio.TimeoutError):
                    result = await asyncio.wait_for(producer.send("t", str(i), delay=5), 5.0)
                    assert result.queue != 1
                    continue
                raise AssertionError("sent to a queue that is known not to answer")
            frozen.awake.set()
            await asyncio.gather(*sent)

    asyncio.run(main())
