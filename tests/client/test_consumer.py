from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from delayapi.handle import Handle
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import errors
from delayclient.agent.subscription import Subscription
from delayclient.consumer import acks
from delayclient.consumer.consumer import _KEEP_SHARE, Consumer
from delayclient.consumer.prefetch import Prefetch
from delayclient.consumer.received import ReceivedMessage
from delayclient.routing.routing import Cluster
from hypothesis import given
from hypothesis import strategies as st

from tests.client.support.fakegroup import Groups
from tests.client.support.fakes import FakeCluster, FakeNode, Refusal, until


@asynccontextmanager
async def world(queues: int = 2, messages: int = 100) -> AsyncIterator[tuple[FakeNode, Groups]]:
    async with FakeNode(FakeCluster(queues=queues)) as node:
        groups = Groups(node)
        for i in range(messages):
            groups.queues[i % queues].release([str(i).encode()])
        yield node, groups


async def until_acked(groups: Groups) -> None:
    for _ in range(3_000):
        if groups.all_acked():
            return
        await asyncio.sleep(0.01)
    raise AssertionError([len(queue.records) - len(queue.acked) for queue in groups.queues])


def test_iterating_gives_each_message_once_with_all_it_carries() -> None:
    async def main() -> None:
        async with world() as (node, groups), Consumer(node.endpoint, "t", "g") as consumer:
            seen = []
            async for message in consumer:
                offset = int(message.body) // 2
                assert (message.topic, message.queue, message.offset) == ("t", int(message.body) % 2, offset)
                assert (message.seq, message.due_ms, message.attempt) == (offset * 2, offset + 1000, 1)
                assert (message.key, message.tag, message.properties) == (f"k{offset}", "", {})
                assert Handle.decode(message.handle) == Handle(
                    "t", message.queue, 100 + message.queue, offset + 1000, offset * 2
                )
                seen.append(int(message.body))
                await message.ack()
                if len(seen) == 100:
                    break
            await consumer.flush()
            assert sorted(seen) == [*range(100)]
            assert groups.all_acked()

    asyncio.run(main())


def test_acks_are_sent_as_few_ranges() -> None:
    async def main() -> None:
        async with world(queues=1, messages=5000) as (node, groups):
            async with Consumer(node.endpoint, "t", "g") as consumer:
                for _ in range(5000):
                    message = await consumer.receive()
                    assert message is not None
                    message.ack()
            assert groups.all_acked()
            sent = [request for method, request in node.calls if method == "Ack"]
            assert len(sent) < 50
            assert sum(len(request.start) // 8 for request in sent) < 50

    asyncio.run(main())


def test_batches_come_in_columns() -> None:
    async def main() -> None:
        async with world(queues=1, messages=500) as (node, groups):
            async with Consumer(node.endpoint, "t", "g") as consumer:
                bodies: list[bytes] = []
                while len(bodies) < 500:
                    batch = await consumer.receive_batch(5)
                    assert batch is not None
                    assert batch.bodies() == [message.body for message in batch]
                    assert batch.handles() == [message.handle for message in batch]
                    assert batch[0].offset == batch.offset[0]
                    bodies += batch.bodies()
                    batch.ack()
                assert await consumer.receive_batch(0.05) is None
                assert bodies == [str(i).encode() for i in range(500)]
            assert groups.all_acked()

    asyncio.run(main())


def test_auto_ack_acknowledges_a_message_when_the_next_is_asked_for() -> None:
    async def main() -> None:
        async with (
            world(queues=1, messages=10) as (node, groups),
            Consumer(node.endpoint, "t", "g", auto_ack=True) as consumer,
        ):
            async for message in consumer:
                if message.offset == 7:
                    break
            await consumer.flush()
            assert groups.queues[0].acked == set(range(7))

    asyncio.run(main())


def test_unacknowledged_message_comes_again() -> None:
    async def main() -> None:
        async with (
            world(queues=1, messages=3) as (node, _),
            Consumer(node.endpoint, "t", "g", invisible="600ms") as consumer,
        ):
            attempts = []
            async for message in consumer:
                attempts.append((message.offset, message.attempt))
                if message.attempt == 3:
                    message.ack()
                if len(attempts) == 9:
                    break
            assert sorted(attempts) == [(offset, attempt) for offset in range(3) for attempt in (1, 2, 3)]

    asyncio.run(main())


def test_handler_that_fails_gets_the_message_again_after_the_backoff() -> None:
    async def main() -> None:
        async with world(messages=40) as (node, groups), Consumer(node.endpoint, "t", "g") as consumer:
            at_once = most = 0
            failed: set[bytes] = set()

            async def handle(message: ReceivedMessage) -> None:
                nonlocal at_once, most
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0.005)
                at_once -= 1
                if message.body not in failed:
                    failed.add(message.body)
                    raise RuntimeError("first time")

            running = asyncio.create_task(consumer.run(handle, concurrency=5, backoff="10ms"))
            await until_acked(groups)
            consumer.stop()
            await running
            assert most == 5
            assert len(failed) == 40
            assert {attempts for queue in groups.queues for attempts in queue.attempts.values()} == {2}

    asyncio.run(main())


def test_plain_function_is_a_handler_too() -> None:
    async def main() -> None:
        async with world(messages=40) as (node, groups), Consumer(node.endpoint, "t", "g") as consumer:
            seen: list[bytes] = []
            running = asyncio.create_task(consumer.run(lambda message: seen.append(message.body)))
            await until_acked(groups)
            await consumer.close()
            await running
            assert len(seen) == 40

    asyncio.run(main())


def test_retryable_refusals_of_every_call_are_ridden_out() -> None:
    async def main() -> None:
        async with world() as (node, groups):
            async with Consumer(node.endpoint, "t", "g") as consumer:
                count = 0
                async for message in consumer:
                    message.ack()
                    count += 1
                    if count % 10 == 0:
                        groups.refuse += [Refusal("NOT_SERVING"), Refusal("BUSY", retry_after_ms=1)]
                    if count == 100:
                        break
            assert groups.all_acked()

    asyncio.run(main())


def test_ack_whose_answer_is_lost_is_sent_again() -> None:
    async def main() -> None:
        async with world(queues=1, messages=10) as (node, groups):
            groups.lose_ack_answers = 2
            async with Consumer(node.endpoint, "t", "g") as consumer:
                for _ in range(10):
                    message = await consumer.receive()
                    assert message is not None
                    message.ack()
                await consumer.flush()
            assert groups.all_acked()
            assert len([method for method, _ in node.calls if method == "Ack"]) >= 3

    asyncio.run(main())


def test_acks_that_cannot_be_delivered_are_counted_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with world(queues=1, messages=3) as (node, groups), Consumer(node.endpoint, "t", "g") as consumer:
            message = await consumer.receive()
            assert message is not None
            groups.refuse += [Refusal("UNKNOWN_GROUP")] * 50
            message.ack()
            with pytest.raises(errors.DelayError, match="1 acknowledgements were not delivered"):
                await consumer.flush()
            assert consumer.lost_acks == 1

    asyncio.run(main())


def test_restarted_node_goes_on_with_what_was_not_acknowledged() -> None:
    async def main() -> None:
        async with world(messages=2000) as (node, groups):
            for queue in groups.queues:
                queue.max_messages = 20

            async def restart() -> None:
                for _ in range(3):
                    await asyncio.sleep(0.1)
                    await node.stop()
                    for queue in groups.queues:
                        queue.visible_at.clear()  # deliveries are memory only
                    await asyncio.sleep(0.1)
                    await node.start()

            restarts = asyncio.create_task(restart())
            seen: set[int] = set()
            async with Consumer(node.endpoint, "t", "g") as consumer:
                async for message in consumer:
                    seen.add(int(message.body))
                    message.ack()
                    await asyncio.sleep(0.0002)
                    if len(seen) == 2000 and restarts.done():
                        break
            assert seen == {*range(2000)}
            assert groups.all_acked()

    asyncio.run(main())


def test_moved_queue_is_followed() -> None:
    async def main() -> None:
        async with world(messages=10) as (old, groups), FakeNode(old.cluster) as new:
            old.cluster.masters = [old, old]
            new.unary = old.unary
            async with Consumer([old.endpoint, new.endpoint], "t", "g") as consumer:
                assert await consumer.receive(5) is not None
                old.cluster.masters = [new, new]
                await old.stop()
                groups.queues[0].release([b"later"])
                bodies = set()
                while b"later" not in bodies:
                    message = await consumer.receive(5)
                    assert message is not None
                    bodies.add(message.body)
                    message.ack()

    asyncio.run(main())


@pytest.mark.parametrize("reason", ["BAD_GROUP", "UNKNOWN_TOPIC"])
def test_refusal_that_cannot_pass_ends_the_iteration(reason: str) -> None:
    async def main() -> None:
        async with world() as (node, groups):
            groups.refuse += [Refusal(reason)] * 50
            async with Consumer(node.endpoint, "t", "g") as consumer:
                with pytest.raises(errors.DelayError, match=reason):
                    await consumer.receive()
        async with world() as (node, _), Consumer(node.endpoint, "nope", "g") as consumer:
            with pytest.raises(errors.NotFound, match="nope"):
                async for _message in consumer:
                    pass

    asyncio.run(main())


def test_what_was_held_and_not_handed_on_is_given_back_at_close() -> None:
    async def main() -> None:
        async with world(queues=1, messages=30) as (node, groups):
            async with Consumer(node.endpoint, "t", "g") as consumer:
                first = await consumer.receive()
                assert first is not None
                first.ack()
            assert groups.queues[0].acked == {0}
            async with Consumer(node.endpoint, "t", "g") as consumer:
                for _ in range(29):
                    message = await consumer.receive(1)
                    assert message is not None
                    assert message.attempt == 1

    asyncio.run(main())


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is given back when half of its invisible time is over, so that a busy machine is in time too."""
    assert _KEEP_SHARE < 1
    monkeypatch.setattr("delayclient.consumer.consumer._KEEP_SHARE", 0.5)


@pytest.mark.usefixtures("early")
def test_what_was_held_for_too_long_is_given_back_before_it_costs_an_attempt() -> None:
    async def main() -> None:
        async with (
            world(queues=1, messages=30) as (node, groups),
            Consumer(node.endpoint, "t", "g", invisible="2s") as consumer,
        ):
            first = await consumer.receive()
            assert first is not None
            first.ack()
            await until("the other 29 are given back", lambda: len(groups.queues[0].given_back) > 0)
            for _ in range(29):
                message = await consumer.receive(10)
                assert message is not None
                assert message.attempt == 1
                message.ack()
            await consumer.flush()
            assert groups.all_acked()

    asyncio.run(main())


def test_extended_message_stays_and_one_whose_time_is_over_does_not() -> None:
    async def main() -> None:
        async with (
            world(queues=1, messages=2) as (node, _),
            Consumer(node.endpoint, "t", "g", invisible="1s") as consumer,
        ):
            first, second = await consumer.receive(), await consumer.receive()
            assert first is not None
            assert second is not None
            assert await first.extend("1m")
            again = await consumer.receive(10)
            assert again is not None
            assert (again.offset, again.attempt) == (second.offset, 2)
            assert not await second.extend()
            assert await first.extend()
            sent = [request.invisible_ms for method, request in node.calls if method == "Extend"]
            assert sent == [60_000, 1_000, 1_000]

    asyncio.run(main())


def test_given_back_message_comes_at_once_and_dead_one_never() -> None:
    async def main() -> None:
        async with world(queues=1, messages=2) as (node, groups), Consumer(node.endpoint, "t", "g") as consumer:
            first, second = await consumer.receive(), await consumer.receive()
            assert first is not None
            assert second is not None
            first.give_back()
            second.nack(dead=True)
            again = await consumer.receive(5)
            assert again is not None
            assert (again.offset, again.attempt) == (first.offset, 1)
            await consumer.flush()
            assert groups.queues[0].dead == {second.offset}

    asyncio.run(main())


def test_message_given_back_for_later_comes_then_as_the_same_attempt() -> None:
    async def main() -> None:
        async with (
            world(queues=1, messages=3) as (node, groups),
            Consumer(node.endpoint, "t", "g", invisible="1s", max_lease="10s") as consumer,
        ):
            messages = [await consumer.receive() for _ in range(3)]
            began_s = time.monotonic()
            for message in messages:
                assert message is not None
                message.give_back(after="1500ms")
            again = [await consumer.receive(30) for _ in range(3)]
            assert time.monotonic() - began_s >= 1.5, "longer than their invisible time, and nobody extended it"
            assert [(it.offset, it.attempt) for it in again if it] == [(it.offset, 1) for it in messages if it]
            assert [it.invisible_ms for method, it in node.calls if method == "Extend"][1:] == [0]
            for message in again:
                assert message is not None
                message.give_back(after="1h")
        assert groups.queues[0].given_back == {0, 1, 2}, "they are given back when the consumer ends"

    asyncio.run(main())


def test_give_back_in_doubt_is_not_made_twice() -> None:
    async def main() -> None:
        def refused(_: object) -> None:
            raise Refusal("NOT_SERVING")

        async with world(queues=1, messages=1) as (node, _), Consumer(node.endpoint, "t", "g") as consumer:
            message = await consumer.receive()
            assert message is not None
            node.unary["Extend"] = refused
            message.give_back()
            await asyncio.wait_for(consumer.flush(), 5)
            assert node.came["Extend"] == 1

    asyncio.run(main())


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("how", ["message", "batch", "run"])
def test_message_that_is_worked_on_for_long_is_kept_until_it_is_done(how: str) -> None:
    async def main() -> None:
        async with (
            world(queues=2, messages=4) as (node, groups),
            Consumer(node.endpoint, "t", "g", invisible="1500ms", max_lease="30s") as consumer,
        ):
            if how == "message":
                for _ in range(4):
                    message = await consumer.receive(10)
                    assert message is not None
                    await asyncio.sleep(1.8)
                    message.ack()
            elif how == "batch":
                left = 4
                while left:
                    batch = await consumer.receive_batch(10)
                    assert batch is not None
                    await asyncio.sleep(3.75)
                    batch.ack()
                    left -= len(batch)
            else:
                running = asyncio.create_task(consumer.run(lambda message: asyncio.sleep(4.65), concurrency=6))
                await until_acked(groups)
                consumer.stop()
                await running
            await consumer.flush()
            assert groups.all_acked()
            for queue in groups.queues:
                assert {attempt for _, attempt in queue.handed_out} == {1}
            before = node.came["Extend"]
            await asyncio.sleep(1.0)
            assert node.came["Extend"] == before, "what is done is not extended"

    asyncio.run(main())


def test_message_that_is_worked_on_for_longer_than_max_lease_comes_again() -> None:
    async def main() -> None:
        async with (
            world(queues=1, messages=1) as (node, _),
            Consumer(node.endpoint, "t", "g", invisible="900ms", max_lease="1500ms") as consumer,
        ):
            begin = time.monotonic()
            await consumer.receive()
            again = await consumer.receive(10)
            assert again is not None
            assert again.attempt == 2
            assert 1.5 < time.monotonic() - begin < 3.0

    asyncio.run(main())


def test_message_held_for_too_long_is_not_handed_on() -> None:
    async def main() -> None:
        async with (
            world(queues=1, messages=30) as (node, groups),
            Consumer(node.endpoint, "t", "g", invisible="1s") as consumer,
        ):
            counts = {0: 0}
            async for message in consumer:
                counts[message.offset] = counts.get(message.offset, 0) + 1
                if message.offset == 0:
                    await asyncio.sleep(1.2)  # the rest of the batch is another consumer's by now
                message.ack()
                await consumer.flush()
                if groups.all_acked():
                    break
            assert set(counts) == set(range(30))
            assert sum(counts.values()) <= 31

    asyncio.run(main())


def test_slow_consumer_does_not_hoard() -> None:
    async def main() -> None:
        async with world(queues=1, messages=3000) as (node, groups), Consumer(node.endpoint, "t", "g") as consumer:
            for _ in range(60):
                message = await consumer.receive()
                assert message is not None
                await asyncio.sleep(0.01)
            assert len(groups.queues[0].handed_out) < 400

    asyncio.run(main())


def test_new_queue_is_received_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayclient.consumer.consumer._REFRESH_S", 0.1)

    async def main() -> None:
        async with world(queues=2, messages=4) as (node, _):
            shards, masters = node.cluster.shards, node.cluster.masters
            node.cluster.shards, node.cluster.masters = shards[:1], masters[:1]
            async with Consumer(node.endpoint, "t", "g") as consumer:
                first = await consumer.receive()
                assert first is not None
                assert first.queue == 0
                await consumer.receive()
                node.cluster.shards, node.cluster.masters = shards, masters
                later = await consumer.receive(5)
                assert later is not None
                assert later.queue == 1

    asyncio.run(main())


@given(st.lists(st.integers(0, 60)))
def test_ranges_cover_exactly_the_offsets(offsets: list[int]) -> None:
    start, end = acks.to_ranges(np.array(offsets, np.int64))
    covered = [offset for s, e in zip(start.tolist(), end.tolist(), strict=True) for offset in range(s, e)]
    assert covered == sorted(set(offsets))
    assert (start[1:] > end[:-1]).all()


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 100)), max_size=30), st.integers(1, 100_000))
def test_prefetch_holds_a_second_of_work_and_never_stops(batches: list[tuple[int, float]], most: int) -> None:
    prefetch = Prefetch(most, 30.0)
    for count, seconds in batches:
        prefetch.measured(count, seconds)
        assert 1 <= prefetch.request_size(1) <= most
        if seconds > 1:
            assert prefetch.request_size(1) <= max(1, count / seconds)
    prefetch.arrived(most * 2)
    assert prefetch.request_size(1) == 0
    prefetch.taken(most * 2)
    assert prefetch.request_size(8) >= 1


def unforeseen(*_: object) -> None:
    raise RuntimeError("nobody thought of this")


def test_poll_that_ends_by_a_fault_of_our_own_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its queue is received from no more, and the consumer waits for ever."""

    async def main() -> None:
        async with world() as (node, _), Consumer(node.endpoint, "t", "g") as consumer:
            monkeypatch.setattr("delayclient.consumer.consumer.decode_message_batch", unforeseen)
            with pytest.raises(errors.DelayError, match=r"receiving from t-\d has failed: .*nobody thought of this"):
                await consumer.receive(10)

    asyncio.run(main())
    assert "Traceback" in caplog.text


def test_fault_of_one_poll_is_said_though_other_queues_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    receive, busy = Consumer._receive, asyncio.Event()

    async def failing(self: Consumer, queue: int, wanted: int, endpoint: str) -> None:
        if queue == 0:
            await busy.wait()
            unforeseen()
        await receive(self, queue, wanted, endpoint)

    async def main() -> None:
        async with world(messages=0) as (node, groups), Consumer(node.endpoint, "t", "g") as consumer:
            monkeypatch.setattr(Consumer, "_receive", failing)
            groups.queues[1].release([b"x"] * 5_000)

            async def work() -> None:
                for _ in range(3_000):  # slower than they come, so that some have always come
                    message = await consumer.receive(10)
                    assert message is not None
                    message.ack()
                    busy.set()
                    await asyncio.sleep(0.001)

            with pytest.raises(errors.DelayError, match="receiving from t-0 has failed"):
                await work()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["a poll", "a lease"])
def test_agent_says_that_its_poll_or_lease_ended_by_a_fault_of_our_own(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world() as (node, _):
            cluster, said = Cluster(node.endpoint), list[dict[str, Any]]()
            link = Subscription(cluster, lambda header, _: said.append(header))
            if what == "a poll":
                monkeypatch.setattr("delayclient.agent.subscription.decode_message_batch", unforeseen)
            else:
                node.unary["Extend"] = lambda request: delay_pb2.ExtendResponse()  # an answer for none of the messages
            await link.ops["consume"](topic="t", group="g", lease_ms=300)
            await until("it is said", lambda: any("error" in header for header in said))
            assert "has failed" in next(it["error"]["message"] for it in said if "error" in it)
            await link.ops["close"]()
            await cluster.close()

    asyncio.run(main())
