from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from delayapi.codec import EnqueueRequestView
from delayapi.handle import Handle
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import errors
from delayclient.producer.producer import Producer
from delayclient.producer.results import BatchFailed

from tests.client.support.fakes import FakeCluster, FakeNode


def stored_bodies(cluster: FakeCluster) -> list[bytes]:
    return [body for shard in cluster.shards for body in shard.bodies()]


def test_one_message_is_stored_with_all_it_carries() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            result = await producer.send("t", b"hello", delay="30s", key="k", tag="g", properties={"a": "b"})
            stored = cluster.shards[0].stored[0]
            message = delay_pb2.Message.FromString(stored.record)
            assert (message.body, message.key, message.tag, dict(message.properties)) == (
                b"hello",
                "k",
                "g",
                {"a": "b"},
            )
            assert abs(message.born_ms - time.time() * 1000) < 60_000
            assert (stored.key_hash, stored.tag_hash) == (zlib.crc32(b"k"), zlib.crc32(b"g"))
            assert result.due_ms == stored.due == cluster.shards[0].now_ms + 30_000
            assert Handle.decode(result.handle) == Handle("t", 0, 100, result.due_ms, 0)

    asyncio.run(main())


def test_times_are_what_was_asked_for() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            now = cluster.shards[0].now_ms
            assert (await producer.send("t", b"x", delay=1500)).due_ms == now + 1500
            assert (await producer.send("t", b"x", level=3)).due_ms == now + 10_000
            assert (await producer.send("t", b"x")).due_ms == now
            assert (await producer.send("t", "text", at=77)).due_ms == 77
            assert (await producer.send("t", b"x", at="1970-01-01T00:00:05Z")).due_ms == 5000
            for wrong in ({"delay": 1, "at": 2}, {"level": 19}, {"delay": -1}, {"delay": "soon"}):
                with pytest.raises(ValueError):
                    producer.send("t", b"x", **wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                producer.send("t", b"x", delay=1.5)  # type: ignore[arg-type]

    asyncio.run(main())


def test_messages_of_a_key_keep_their_queue_and_order() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=4)
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            futures = [producer.send("t", str(i), delay=5, key=f"k{i % 10}") for i in range(1000)]
            results = await asyncio.gather(*futures)
            for i, result in enumerate(results):
                assert result.queue == zlib.crc32(f"k{i % 10}".encode()) % 4
            for shard in cluster.shards:
                for key in {int(body) % 10 for body in shard.bodies()}:
                    mine = [int(body) for body in shard.bodies() if int(body) % 10 == key]
                    assert mine == sorted(mine)
            assert sorted(map(int, stored_bodies(cluster))) == [*range(1000)]

    asyncio.run(main())


def test_producers_that_send_once_spread_over_the_queues() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=4)
        async with FakeNode(cluster) as node:
            for _ in range(24):
                async with Producer(node.endpoint) as producer:
                    await producer.send("t", b"x", delay=5)
        assert max(len(shard.stored) for shard in cluster.shards) < 20  # all but once in 10^7 times

    asyncio.run(main())


def test_many_single_sends_share_requests() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=2)
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            await producer.send("t", b"first", delay=5)
            await asyncio.gather(*[producer.send("t", b"x", delay=5) for _ in range(20_000)])
            assert sum(shard.requests for shard in cluster.shards) < 50

    asyncio.run(main())


def test_batch_of_an_array_is_stored_in_columns() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=3)
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            n = 30_000
            bodies = np.arange(n, dtype="<u8").view(np.uint8).reshape(n, 8)
            due = np.arange(n) + 5_000_000
            result = await producer.send_batch("t", bodies, due_ms=due, tags="g")
            assert result.due_ms.tolist() == due.tolist()
            assert sorted(stored_bodies(cluster)) == sorted(row.tobytes() for row in bodies)
            handle = Handle.decode(result.handles[12_345])
            stored = cluster.shards[handle.queue].stored[handle.seq]
            assert (stored.due, stored.tag_hash) == (handle.due_ms, zlib.crc32(b"g"))
            assert delay_pb2.Message.FromString(stored.record).body == bodies[12_345].tobytes()
            assert all(shard.stored for shard in cluster.shards)

    asyncio.run(main())


@pytest.mark.parametrize("as_array", [False, True])
def test_batch_with_keys_goes_to_the_keys_queues(as_array: bool) -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=4)
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            n = 5000
            rows = np.arange(n, dtype="<u8").view(np.uint8).reshape(n, 8)
            bodies: Any = rows if as_array else [row.tobytes() for row in rows]
            keys = [f"k{i % 97}" for i in range(n)]
            result = await producer.send_batch("t", bodies, delay_ms=1000, keys=keys)
            assert len(result) == n
            for i in range(0, n, 41):
                handle = Handle.decode(result.handles[i])
                assert handle.queue == zlib.crc32(keys[i].encode()) % 4
                stored = cluster.shards[handle.queue].stored[handle.seq]
                message = delay_pb2.Message.FromString(stored.record)
                assert (message.body, message.key) == (rows[i].tobytes(), keys[i])
                assert stored.due == handle.due_ms == result.due_ms[i] == cluster.shards[0].now_ms + 1000

    asyncio.run(main())


def test_batch_that_makes_no_sense_is_refused_before_anything_is_sent() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.max_delay_ms = 1000
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            two = [b"a", b"b"]
            for kind, arguments in (
                (ValueError, {"due_ms": [1], "bodies": two}),
                (ValueError, {"due_ms": 1, "delay_ms": 1, "bodies": two}),
                (ValueError, {"delay_ms": [-1, 1], "bodies": two}),
                (TypeError, {"delay_ms": [1.5, 1], "bodies": two}),
                (TypeError, {"bodies": ["a"]}),
                (ValueError, {"keys": ["a"], "bodies": two}),
                (ValueError, {"bodies": np.zeros(4, np.uint8)}),
                (errors.TooLarge, {"bodies": [b"x" * (4 << 20)]}),
                (errors.DelayTooLong, {"delay_ms": [1, 1001], "bodies": two}),
            ):
                with pytest.raises(kind):
                    await producer.send_batch("t", **arguments)
            with pytest.raises(errors.DelayTooLong, match=r"1\.0 s and 1 ms is longer than topic 't' allows: 1\.0 s"):
                producer.send("t", b"x", delay=1001)
            with pytest.raises(errors.TooLarge):
                producer.send("t", b"x" * (4 << 20))
            assert len(await producer.send_batch("t", [])) == 0
            assert not stored_bodies(cluster)

    asyncio.run(main())


def test_unknown_topic_fails_and_is_asked_for_again() -> None:
    async def main() -> None:
        cluster = FakeCluster(topic="later")
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            with pytest.raises(errors.NotFound, match="unknown topic 't'"):
                await producer.send("t", b"x")
            cluster.topic = "t"
            await producer.send("t", b"x")

    asyncio.run(main())


def test_unreachable_cluster_fails_after_the_timeout() -> None:
    async def main() -> None:
        async with Producer("127.0.0.1:7299", timeout="300ms") as producer:
            with pytest.raises((errors.SendTimeout, errors.Unreachable)) as failure:
                await producer.send("t", b"x")
            assert not getattr(failure.value, "maybe_stored", False)
            with pytest.raises((errors.SendTimeout, errors.Unreachable)):
                await producer.send_batch("t", [b"x"])

    asyncio.run(main())


def test_one_message_with_too_long_a_delay_does_not_fail_its_neighbours() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.shards[0].max_delay_ms = 1000
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            delays = [5000 if i in (3, 77, 78) else 10 for i in range(200)]
            futures = [producer.send("t", str(i), delay=delay) for i, delay in enumerate(delays)]
            results = await asyncio.gather(*futures, return_exceptions=True)
            failed = [i for i, result in enumerate(results) if isinstance(result, errors.DelayTooLong)]
            assert failed == [3, 77, 78]
            assert sorted(map(int, stored_bodies(cluster))) == [i for i in range(200) if i not in failed]

    asyncio.run(main())


def test_one_message_without_a_delay_does_not_fail_its_neighbours_in_a_topic_of_type_delay() -> None:
    async def main() -> None:
        cluster = FakeCluster()

        async def of_type_delay(request: EnqueueRequestView) -> str:
            return "" if np.frombuffer(request.time, "<i8").all() else "WRONG_TOPIC_TYPE"

        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            node.fault = of_type_delay
            futures = [producer.send("t", str(i), delay=None if i in (3, 77) else 10) for i in range(200)]
            results = await asyncio.gather(*futures, return_exceptions=True)
            failed = [i for i, result in enumerate(results) if isinstance(result, errors.WrongTopicType)]
            assert failed == [3, 77]
            assert sorted(map(int, stored_bodies(cluster))) == [i for i in range(200) if i not in failed]

    asyncio.run(main())


def test_refused_part_fails_alone_and_the_result_says_which() -> None:
    async def main() -> None:
        cluster = FakeCluster()

        async def refuse_third(request: EnqueueRequestView) -> str:
            return "DELAY_TOO_LONG" if bytes(request.records).startswith(b"\x22\x082") else ""

        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            node.fault = refuse_third
            bodies = [str(i // 8192).encode() * 8 for i in range(8192 * 6)]
            with pytest.raises(BatchFailed) as failure:
                await producer.send_batch("t", bodies, delay_ms=5)
            assert failure.value.failed == 8192
            ((rows, error),) = failure.value.failures
            assert rows.tolist() == [*range(8192 * 2, 8192 * 3)]
            assert isinstance(error, errors.DelayTooLong)
            assert Counter(stored_bodies(cluster)) == {str(i).encode() * 8: 8192 for i in (0, 1, 3, 4, 5)}
            assert (failure.value.result.seq >= 0).sum() == 5 * 8192

    asyncio.run(main())


def faults(seed: int, rate: float, kinds: list[str]) -> Any:
    rng = random.Random(seed)

    async def fault(_: EnqueueRequestView) -> str:
        if rng.random() < 0.2:
            await asyncio.sleep(0.005)
        return rng.choice(kinds) if rng.random() < rate else ""

    return fault


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_stored_twice_through_faults(seed: int) -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=2)
        async with FakeNode(cluster) as node, Producer(node.endpoint, linger_ms=0.5) as producer:
            node.fault = faults(seed, 0.3, ["drop", "break", "BUSY", "NOT_SERVING"])
            futures = []
            for i in range(1500):
                futures.append(producer.send("t", str(i), delay=5, key=f"k{i % 7}"))
                if i % 20 == 0:
                    await asyncio.sleep(0.001)
            results = await asyncio.gather(*futures)
            assert sorted(map(int, stored_bodies(cluster))) == [*range(1500)]
            for i, result in enumerate(results):
                assert cluster.shards[result.queue].bodies()[result.seq] == str(i).encode()
            for shard in cluster.shards:
                mine = [int(body) for body in shard.bodies()]
                assert mine == sorted(mine)

    asyncio.run(main())


def test_restarted_node_gets_what_it_did_not_acknowledge() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=2)
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            node.fault = faults(1, 0.05, ["drop"])

            async def restart() -> None:
                for _ in range(4):
                    await asyncio.sleep(0.1)
                    await node.stop()
                    await asyncio.sleep(0.1)
                    await node.start()

            restarts = asyncio.create_task(restart())
            futures = []
            while not restarts.done():
                futures.append(producer.send("t", str(len(futures)), delay=5))
                await asyncio.sleep(0.0002)
            await asyncio.gather(*futures)
            assert sorted(map(int, stored_bodies(cluster))) == [*range(len(futures))]

    asyncio.run(main())


def test_moved_shard_is_followed_with_the_same_numbers() -> None:
    async def main() -> None:
        cluster = FakeCluster(queues=2)
        async with (
            FakeNode(cluster) as new,
            FakeNode(cluster) as old,
            Producer([old.endpoint, new.endpoint]) as producer,
        ):
            await asyncio.gather(*[producer.send("t", str(i), delay=5) for i in range(100)])
            old.fault = faults(1, 0.5, ["drop"])
            middle = [producer.send("t", str(i), delay=5) for i in range(100, 200)]
            await asyncio.sleep(0.01)
            cluster.masters = [new, new]
            after = [producer.send("t", str(i), delay=5) for i in range(200, 300)]
            await asyncio.gather(*middle, *after)
            assert sorted(map(int, stored_bodies(cluster))) == [*range(300)]
            assert all(len(shard.producers) <= 1 for shard in cluster.shards), "the producer id is still the first one"

    asyncio.run(main())


def test_silent_node_is_given_up_and_the_message_may_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayclient.producer.queue_sender._ANSWER_TIMEOUT_S", 0.2)

    async def hang_lost(request: EnqueueRequestView) -> str:
        return "hang" if b"lost" in bytes(request.records) else ""  # also a try that was under way when it was given up

    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint, timeout="1s") as producer:
            node.fault = hang_lost
            with pytest.raises(errors.SendTimeout) as failure:
                await producer.send("t", b"lost", delay=5)
            assert failure.value.maybe_stored
            await producer.send("t", b"next", delay=5)
            assert stored_bodies(cluster) == [b"next"]

    asyncio.run(main())


def test_silent_node_is_asked_again_on_a_new_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayclient.producer.queue_sender._ANSWER_TIMEOUT_S", 0.2)

    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            hung = 0

            async def hang_once(_: EnqueueRequestView) -> str:
                nonlocal hung
                hung += 1
                return "hang" if hung == 1 else ""

            node.fault = hang_once
            await producer.send("t", b"x", delay=5)
            assert stored_bodies(cluster) == [b"x"]

    asyncio.run(main())


def test_memory_is_bounded_and_order_kept_when_there_is_no_room() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint, max_buffered_bytes=50_000) as producer:
            most = 0
            futures = []
            for i in range(5000):
                futures.append(producer.send("t", str(i).rjust(200), delay=5))
                most = max(most, producer._budget.buffered_bytes)
                if i % 3 == 0:
                    await producer.room()
            assert most < 60_000
            # Without room() they stand in line, and still all arrive, in order.
            futures += [producer.send("t", str(i).rjust(200), delay=5) for i in range(5000, 9000)]
            assert producer.full
            await asyncio.gather(*futures)
            assert [int(body) for body in cluster.shards[0].bodies()] == [*range(9000)]
            await producer.send_batch("t", np.zeros((50_000, 100), np.uint8), delay_ms=5)
            assert producer._budget.buffered_bytes == producer._budget.unresolved == 0

    asyncio.run(main())


def test_flush_waits_for_all_and_close_fails_what_is_left() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node:
            producer = Producer(node.endpoint)
            future = producer.send("t", b"x", delay=5)
            await producer.flush()
            assert future.done()
            producer._timeout_s = 0.3  # close() waits no longer, and messages far longer than that
            node.fault = faults(1, 1.0, ["BUSY"])
            late = producer.send("t", b"y", delay=5)
            await producer.close()
            assert isinstance(late.exception(), errors.DelayError)
            with pytest.raises(errors.Closed):
                producer.send("u", b"z")
            with pytest.raises(errors.Closed):
                await producer.send_batch("u", [b"z"])
            assert stored_bodies(cluster) == [b"x"]

    asyncio.run(main())


def test_cancelled_sender_does_not_disturb_the_others() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with FakeNode(cluster) as node, Producer(node.endpoint) as producer:
            futures = [producer.send("t", str(i), delay=5) for i in range(10)]
            futures[3].cancel()
            await asyncio.sleep(0)
            await asyncio.gather(*(f for f in futures if not f.cancelled()))
            await producer.flush()

    asyncio.run(main())
