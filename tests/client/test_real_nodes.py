"""Producer, Consumer and Admin, async and sync, against real nodes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from delayapi.handle import BadHandle, Handle
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import errors, sync
from delayclient.admin.admin import Admin
from delayclient.admin.views import Outcome
from delayclient.consumer.consumer import Consumer
from delayclient.producer.producer import Producer
from delayclient.routing.routing import Cluster
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.client.test_cli import delayctl, lines


def test_message_comes_at_its_time_and_not_before(endpoint: str) -> None:
    async def main() -> None:
        async with Producer(endpoint) as producer, Consumer(endpoint, "sdk0", "g") as consumer:
            sent = await producer.send("sdk0", b"hello", delay="700ms", key="k", tag="t", properties={"a": "b"})
            message = await consumer.receive(10)
            assert message is not None
            assert (message.body, message.key, message.tag, message.properties) == (b"hello", "k", "t", {"a": "b"})
            assert (message.handle, message.due_ms, message.attempt) == (sent.handle, sent.due_ms, 1)
            assert message.received_ms >= message.due_ms
            message.ack()
            await consumer.flush()

    asyncio.run(main())


def test_cancelled_and_rescheduled_messages(endpoint: str) -> None:
    async def main() -> None:
        async with Producer(endpoint) as producer, Admin(endpoint) as admin:
            handles = [(await producer.send("sdk1", str(i), delay="1h")).handle for i in range(20)]
            assert await admin.cancel(handles[:10]) == [Outcome.CANCELLED] * 10
            assert await admin.cancel(handles[8:12]) == [Outcome.ALREADY_CANCELLED] * 2 + [Outcome.CANCELLED] * 2
            moved = await admin.reschedule(handles[10:14], delay=1)
            assert [result.outcome for result in moved] == [Outcome.ALREADY_CANCELLED] * 2 + [Outcome.MOVED] * 2
            assert await admin.cancel(handles[12:14]) == [Outcome.RESCHEDULED] * 2
            later = await admin.reschedule(handles[14:15], delay="2h")
            assert await admin.cancel([later[0].handle]) == [Outcome.CANCELLED]
            with pytest.raises(ValueError, match="at or delay"):
                await admin.reschedule(handles, at=1, delay=1)
            with pytest.raises(BadHandle):
                await admin.cancel([*handles, "nonsense"])
            foreign = Handle("sdk1", 0, 12345, 0, 0)
            with pytest.raises(errors.ForeignHandle):
                await admin.cancel([foreign])
            async with Consumer(endpoint, "sdk1", "g") as consumer:
                bodies = set()
                for _ in range(2):
                    message = await consumer.receive(10)
                    assert message is not None
                    bodies.add(message.body)
                    message.ack()
                assert bodies == {b"12", b"13"}

    asyncio.run(main())


def test_cancel_by_key_takes_only_the_key_and_the_time(endpoint: str) -> None:
    async def main() -> None:
        async with Producer(endpoint) as producer, Admin(endpoint) as admin:
            now = int(time.time() * 1000)
            due = now + 3_600_000 + np.arange(300) * 1000
            await producer.send_batch("sdk2", [b"x"] * 300, due_ms=due, keys=[f"k{i % 3}" for i in range(300)])
            found = await admin.cancel_by_key("sdk2", "k1", due[0], due[150])
            assert sorted(row.due_ms for row in found) == due[1:150:3].tolist()
            assert {row.outcome for row in found} == {Outcome.CANCELLED}
            assert await admin.cancel([row.handle for row in found]) == [Outcome.ALREADY_CANCELLED] * 50
            assert await admin.cancel_by_key("sdk2", "nobody") == []

    asyncio.run(main())


def test_pending_messages_and_the_wheel_agree(endpoint: str) -> None:
    async def main() -> None:
        async with Producer(endpoint) as producer, Admin(endpoint) as admin:
            now = int(time.time() * 1000)
            due = now + 600_000 + np.arange(5000) * 7
            result = await producer.send_batch("sdk3", np.zeros((5000, 10), np.uint8), due_ms=due, tags="g")
            rows = [row async for row in admin.list_pending("sdk3", page=300)]
            assert sorted(row.handle for row in rows) == sorted(result.handles)
            for queue in range(4):
                mine = [(row.due_ms, row.seq) for row in rows if row.queue == queue]
                assert mine == sorted(mine)
            some = [
                row async for row in admin.list_pending("sdk3", from_=int(due[10]), to=int(due[20]), with_records=True)
            ]
            assert sorted(row.due_ms for row in some) == due[10:20].tolist()
            assert {row.decode().tag for row in some} == {"g"}
            wheels = await admin.wheel("sdk3")
            assert len(wheels) == 4
            assert sum(wheel.pending for wheel in wheels) == 5000
            assert sum(int(wheel.messages.sum()) for wheel in wheels) == 5000
            for wheel in wheels:
                assert (np.diff(wheel.slot_start) > 0).all()

    asyncio.run(main())


def test_dead_letters_are_listed_redriven_and_dropped(endpoint: str) -> None:
    async def main() -> None:
        async with Producer(endpoint) as producer, Admin(endpoint) as admin:
            route = await admin.route("sdk4")
            await producer.send_batch("sdk4", [str(i).encode() for i in range(6)])
            async with Consumer(endpoint, "sdk4", "g") as consumer:
                nacks = 0
                while nacks < 6 * route.max_attempts:
                    message = await consumer.receive(10)
                    assert message is not None
                    message.nack(0)
                    nacks += 1
                await consumer.flush()
            dead = [message async for message in admin.dead_letters("sdk4", "g", page=2)]
            assert sorted(message.body for message in dead) == [str(i).encode() for i in range(6)]
            states = await admin.describe_group("sdk4", "g")
            assert sum(state.dead for state in states) == 6
            with pytest.raises(TypeError, match="redrive or drop"):
                dead[0].ack()
            assert await admin.drop("sdk4", "g", queue=dead[0].queue, offsets=[dead[0].offset]) == 1
            assert await admin.redrive("sdk4", "g") == 5
            async with Consumer(endpoint, "sdk4", "g") as consumer:
                for _ in range(5):
                    message = await consumer.receive(10)
                    assert message is not None
                    assert message.body != dead[0].body
                    message.ack()
                await consumer.flush()
            assert [message async for message in admin.dead_letters("sdk4", "g")] == []
            assert (await admin.delete_group("sdk4", "g")).queues > 0
            assert await admin.groups("sdk4") == []
            assert (await admin.delete_group("sdk4", "g")).queues == 0
            with pytest.raises(errors.NotFound):
                await admin.describe_group("sdk4", "g")

    asyncio.run(main())


def test_a_dead_letter_says_the_reason_of_its_nack(endpoint: str) -> None:
    async def main() -> None:
        async with (
            Producer(endpoint) as producer,
            Admin(endpoint) as admin,
            Consumer(endpoint, "sdk4", "reasons", from_end=True) as consumer,
        ):
            await consumer.receive(1)
            deadline_s = time.monotonic() + 60
            while len(await admin.groups("sdk4", "reasons")) < 4:  # what is sent before is before its beginning
                assert time.monotonic() < deadline_s, "the group is not on each queue"
                await asyncio.sleep(0.05)
            for _ in range(60):  # while the cluster is some seconds old, reasons are not written
                await producer.send("sdk4", b"b")
                message = await consumer.receive(60)
                assert message is not None
                with pytest.raises(ValueError, match="reason: 1,025 bytes of UTF-8 are more than the limit, 1,024"):
                    message.nack(dead=True, reason="x" * 1_025)
                message.nack(dead=True, reason="nö: \x1b[31m" + "x" * 1_000)
                await consumer.flush()
                found = [letter.dead_reason async for letter in admin.dead_letters("sdk4", "reasons")]
                if found[-1]:
                    break
                await admin.drop("sdk4", "reasons")
                await asyncio.sleep(1)
            assert found == ["nö: \x1b[31m" + "x" * 1_000]

    asyncio.run(main())
    listed = delayctl("dlq", "list", "sdk4", "--group", "reasons", endpoint=endpoint).stdout
    assert "  nö: \\x1b[31mxxx" in listed, "what others have written does nothing to a terminal"
    (line,) = lines(delayctl("dlq", "list", "sdk4", "--group", "reasons", "--json", endpoint=endpoint))
    assert line["reason"] == "nö: \x1b[31m" + "x" * 1_000


def test_tag_filter_belongs_to_the_group(endpoint: str) -> None:
    async def main() -> None:
        async with Producer(endpoint) as producer:
            for i in range(40):
                producer.send("sdk5", str(i), tag=["red", "blue"][i % 2])
            await producer.flush()
            async with Consumer(endpoint, "sdk5", "reds", tags=["red"]) as consumer:
                seen = set()
                for _ in range(20):
                    message = await consumer.receive(10)
                    assert message is not None
                    seen.add(int(message.body))
                    message.ack()
                assert seen == {*range(0, 40, 2)}
                assert await consumer.receive(0.3) is None
            async with Consumer(endpoint, "sdk5", "reds", tags=["blue"]) as consumer:
                with pytest.raises(errors.InvalidRequest, match="GROUP_MISMATCH"):
                    await consumer.receive(10)

    asyncio.run(main())


def test_everything_shares_one_connection(endpoint: str) -> None:
    async def main() -> None:
        async with Cluster(endpoint) as cluster:
            async with (
                Producer(cluster) as producer,
                Consumer(cluster, "sdk6", "g") as consumer,
                Admin(cluster) as admin,
            ):
                await producer.send("sdk6", b"x")
                assert await consumer.receive(10) is not None
                assert len((await admin.route("sdk6")).queues) == 4
            assert {route.topic for route in await cluster.topics()} >= {"sdk6", "cli0"}

    asyncio.run(main())


def test_sync_face_does_the_same(endpoint: str) -> None:
    with sync.SyncProducer(endpoint) as producer, sync.SyncAdmin(endpoint) as admin:
        first = producer.send("sdk7", b"now", key="k")
        kept = producer.send("sdk7", b"later", delay="1h")
        futures = [producer.submit("sdk7", str(i), delay="1h") for i in range(50)]
        assert len({future.result().handle for future in futures}) == 50
        result = producer.send_batch("sdk7", [b"a", b"b"], delay_ms=3_600_000)
        assert len(list(admin.list_pending("sdk7"))) == 53
        assert admin.cancel([kept.handle, *result.handles]) == [Outcome.CANCELLED] * 3
        with pytest.raises(errors.NotFound):
            producer.send("nope", b"x")
        with sync.SyncConsumer(endpoint, "sdk7", "g") as consumer:
            for message in consumer:
                assert (message.body, message.handle) == (b"now", first.handle)
                assert consumer.extend(message, "1m")
                consumer.give_back(message)
                break
            for message in consumer:
                assert (message.body, message.attempt) == (b"now", 1)
                consumer.ack(message)
                break
            consumer.flush()
            assert consumer.receive(0.3) is None
        assert sum(state.lag for state in admin.describe_group("sdk7", "g")) == 0


def test_messages_of_a_sync_consumer_may_be_settled_in_any_thread(endpoint: str) -> None:
    """By their own methods too, which close() and flush() know of."""
    with sync.SyncProducer(endpoint) as producer, sync.SyncAdmin(endpoint) as admin:
        for body in (b"acked", b"alone", b"refused", b"dead", b"back"):
            producer.send("settled", body)
        with sync.SyncConsumer(endpoint, "settled", "g") as consumer:
            by_body = {}
            while len(by_body) < 5:
                message = consumer.receive(60)
                assert message is not None
                by_body[message.body] = message
            assert asyncio.run(by_body[b"refused"].extend("1m")), "by another event loop"
            with ThreadPoolExecutor(4) as pool:
                pool.submit(by_body[b"acked"].ack).result()
                pool.submit(by_body[b"refused"].nack, 0).result()
                pool.submit(by_body[b"dead"].nack, dead=True).result()
                pool.submit(by_body[b"back"].give_back).result()
            consumer.flush()
            again = {}
            while len(again) < 2:
                message = consumer.receive(60)
                assert message is not None
                again[message.body] = message.attempt
                message.ack()
            assert again == {b"refused": 2, b"back": 1}
            by_body[b"alone"].ack()  # and close() sends it
        assert sum(state.lag for state in admin.describe_group("settled", "g")) == 0
        assert [dead.body for dead in admin.dead_letters("settled", "g")] == [b"dead"]


def test_a_sync_consumer_that_is_closed_says_so(endpoint: str) -> None:
    with sync.SyncProducer(endpoint) as producer, sync.SyncConsumer(endpoint, "settled", "closed") as consumer:
        producer.send("settled", b"x")
        message = consumer.receive(60)
        assert message is not None
    for use in (
        message.ack,
        message.nack,
        message.give_back,
        consumer.stop,
        consumer.flush,
        lambda: consumer.receive(1),
    ):
        with pytest.raises(errors.Closed, match="the consumer is closed"):
            use()
    with pytest.raises(errors.Closed, match="the producer is closed"):
        producer.send("settled", b"x")


def test_messages_with_ids_are_stored_once_whoever_sends_them_again(endpoint: str) -> None:
    async def main() -> None:
        async with Producer(endpoint) as one, Producer(endpoint) as other, Admin(endpoint) as admin:
            first = await one.send("once", b"first", delay="1h", message_id="order-1")
            assert not first.repeated
            again = await other.send("once", b"again", delay="2h", message_id="order-1")
            assert (again.repeated, again.handle, again.due_ms) == (True, first.handle, first.due_ms)
            ids = [f"order-{number}" for number in range(2, 300)]
            results = await asyncio.gather(*(one.send("once", i, delay="1h", message_id=i) for i in ids))
            assert len({result.handle for result in results}) == len(ids)
            assert {result.queue for result in results} == {0, 1, 2, 3}, "they go where their ids say"
            twice = await asyncio.gather(*(other.send("once", i, delay="1h", message_id=i) for i in ids * 2))
            assert [result[:5] for result in twice] == [result[:5] for result in results] * 2
            assert all(result.repeated for result in twice)
            keyed = await one.send("once", b"", delay="1h", key="k", message_id="order-1000")
            assert (await other.send("once", b"", delay="1h", key="k", message_id="order-1000")).repeated
            plain = await one.send("once", b"no id", delay="1h")
            assert await admin.cancel([again.handle, keyed.handle, plain.handle]) == [Outcome.CANCELLED] * 3
            pending = [message async for message in admin.list_pending("once")]
            assert sorted(message.handle for message in pending) == sorted(result.handle for result in results)
            with pytest.raises(ValueError, match="1 to 256 bytes, this one 0"):
                one.send("once", b"", message_id="")
            unknown = await one.send("sdk8", b"", delay="1h", message_id="order-1")
            assert not (await one.send("sdk8", b"", delay="1h", message_id="order-1")).repeated
            assert unknown.queue == (await one.send("sdk8", b"", delay="1h", message_id="order-1")).queue

    asyncio.run(main())


def test_message_that_is_worked_on_for_three_invisible_times_is_delivered_once(endpoint: str) -> None:
    with (
        sync.SyncProducer(endpoint) as producer,
        sync.SyncAdmin(endpoint) as admin,
        sync.SyncConsumer(endpoint, "sdk7", "long", from_end=True, invisible="3s", max_lease="1m") as consumer,
    ):
        assert consumer.receive(0.5) is None
        deadline_s = time.monotonic() + 60
        while len(admin.groups("sdk7", "long")) < 4:  # what is sent before is before its beginning
            assert time.monotonic() < deadline_s, "the group is not on each queue"
            time.sleep(0.05)
        producer.send("sdk7", b"long")
        message = consumer.receive(60)
        assert message is not None
        assert consumer.receive(9) is None, "another consumer would have it by now"
        consumer.ack(message)
        consumer.flush()
        assert consumer.receive(4) is None


def test_sync_consumers_of_many_queues_end_without_a_word(endpoint: str) -> None:
    program = """if True:
        import sys
        from delayclient import sync
        for seconds in (0.01, 0.1, 1, 0.01):
            with sync.Consumer(sys.argv[1], "wide", "g") as consumer:
                assert consumer.receive(seconds) is None
        """
    run = subprocess.run([sys.executable, "-c", program, endpoint], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_consumers_that_come_and_go_cost_no_message_an_attempt(endpoint: str) -> None:
    """What a node was about to hand out, or has just sent, when they leave."""

    async def main() -> None:
        async with Producer(endpoint) as producer:
            left, sent, attempts = asyncio.Event(), 0, list[int]()

            async def send() -> None:
                nonlocal sent
                while not left.is_set():
                    await producer.send_batch("leaving", [b"x"] * 20)
                    sent += 20

            sending = asyncio.create_task(send())
            for _ in range(20):
                async with Consumer(endpoint, "leaving", "g") as consumer:
                    for _ in range(3):
                        batch = await consumer.receive_batch(60)
                        assert batch is not None
                        attempts += batch.attempt.tolist()
                        batch.ack()
            left.set()
            await sending
            async with Consumer(endpoint, "leaving", "g") as consumer:
                while len(attempts) < sent:
                    batch = await consumer.receive_batch(60)
                    assert batch is not None
                    attempts += batch.attempt.tolist()
                    batch.ack()
        assert attempts == [1] * sent

    asyncio.run(main())


def test_killed_nodes_lose_nothing_acknowledged_and_store_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def main(cluster: LocalCluster) -> None:
        endpoints = ",".join(cluster.endpoints)
        acknowledged: dict[str, bytes] = {}
        delivered: Counter[bytes] = Counter()
        early = 0

        async def produce(stop: asyncio.Event) -> None:
            async with Producer(endpoints, timeout="60s") as producer:
                number = 0
                while not stop.is_set():
                    bodies = [str(number + i).encode() for i in range(100)]
                    number += 100
                    futures = [producer.send("t", body, delay=1000) for body in bodies[:50]]
                    result = await producer.send_batch("t", bodies[50:], delay_ms=1000)
                    acknowledged.update(zip(result.handles, bodies[50:], strict=True))
                    results = await asyncio.gather(*futures)
                    acknowledged.update((r.handle, body) for r, body in zip(results, bodies, strict=False))

        async def consume() -> None:
            nonlocal early
            async with Consumer(endpoints, "t", "g") as consumer:
                async for message in consumer:
                    early += message.received_ms < message.due_ms
                    assert acknowledged.get(message.handle, message.body) == message.body
                    delivered[message.body] += 1
                    message.ack()

        stop = asyncio.Event()
        producing, consuming = asyncio.create_task(produce(stop)), asyncio.create_task(consume())
        for kill in range(4):
            await asyncio.sleep(1.0)
            cluster.kill(f"n{kill % 2}")
            await asyncio.to_thread(cluster.wait_ready)
        stop.set()
        await producing
        for _ in range(300):
            if delivered.keys() >= set(acknowledged.values()):
                break
            await asyncio.sleep(0.1)
        consuming.cancel()
        assert not set(acknowledged.values()) - delivered.keys(), "acknowledged and lost"
        assert early == 0
        assert len(set(acknowledged.values())) == len(acknowledged)
        # Handed out twice is allowed after a kill; stored twice is not.
        async with Admin(endpoints) as admin:
            wheels = await admin.wheel("t")
        assert sum(wheel.released for wheel in wheels) == len(acknowledged)

    with LocalCluster(tmp_path_factory.mktemp("killed"), nodes=2, topics=[TopicSpec("t", 4)]) as cluster:
        cluster.wait_ready()
        asyncio.run(main(cluster))


def test_more_calls_wait_at_a_node_than_one_connection_takes(endpoint: str) -> None:
    """A consumer of a thousand queues: behind its long polls a ping or a route must not wait."""

    async def main() -> None:
        async with Cluster(endpoint) as cluster:
            request = delay_pb2.ReceiveRequest(topic="sdk9", queue=0, group="g", wait_ms=20_000).SerializeToString()
            polls: list[Any] = []
            opened = 0
            while len(polls) < 1_100:  # of a thousand opened at once grpc.aio now and then loses a few
                opened += 1_100 - len(polls)
                assert opened <= 1_155, "one in twenty was lost"
                new = [cluster.stream(endpoint, "ReceiveStream") for _ in range(1_100 - len(polls))]
                await asyncio.gather(*(poll.write(request) for poll in new), return_exceptions=True)
                assert [route.topic for route in await asyncio.wait_for(cluster.topics(), 5)], "behind all of them"
                polls = [poll for poll in (*polls, *new) if not poll.done()]
            assert [route.topic for route in await asyncio.wait_for(cluster.topics(), 5)]
            assert all(not poll.done() for poll in polls)

    asyncio.run(main())
