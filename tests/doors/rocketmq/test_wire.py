"""Each rule of the protocol, by a client that says what it likes."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
import zlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from delayapi.handle import Handle
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.receipt import Receipt
from delayclient.sync import SyncAdmin
from delaylocal import LocalCluster
from delaynode.server.doors.rocketmq.messages import MAX_BODY_BYTES

from tests.doors.rocketmq.support.nodes import EVERYTHING
from tests.doors.rocketmq.support.wire import SERVICE, Rocket, message, now_ms

DAY_MS = 86_400_000
GROUP = "g"


# ------------------------------------------------------------ who calls, and where to
@pytest.mark.parametrize("name", ["QueryRoute", "SendMessage", "AckMessage", "Heartbeat", "RecallMessage"])
def test_call_without_client_id_is_refused(cluster: LocalCluster, name: str) -> None:
    with Rocket(cluster.endpoints[0], client_id="") as nameless:
        assert nameless.call(name, getattr(mq, f"{name}Request")()).status.code == mq.CLIENT_ID_REQUIRED


def test_route_has_one_broker_for_each_node_and_the_types_of_the_topic(rocket: Rocket, topic: str) -> None:
    answer = rocket.route(topic)
    (queue,) = answer.message_queues
    host, port = rocket.endpoint.split(":")
    assert (queue.broker.name, queue.broker.id, queue.permission) == ("n0", 0, mq.READ_WRITE)
    assert queue.broker.endpoints == mq.Endpoints(scheme=mq.IPv4, addresses=[mq.Address(host=host, port=int(port))])
    assert list(queue.accept_message_types) == [mq.NORMAL, mq.DELAY]
    assert list(rocket.route("delayed").message_queues[0].accept_message_types) == [mq.DELAY]
    assert list(rocket.route("ordinary").message_queues[0].accept_message_types) == [mq.NORMAL]


def test_assignment_is_the_route(rocket: Rocket, topic: str) -> None:
    request = mq.QueryAssignmentRequest(topic=mq.Resource(name=topic), group=mq.Resource(name=GROUP))
    answer = rocket.call("QueryAssignment", request)
    assert [one.message_queue for one in answer.assignments] == list(rocket.route(topic).message_queues)


@pytest.mark.parametrize(("resource", "code"), [
    (mq.Resource(name="nowhere"), mq.TOPIC_NOT_FOUND),
    (mq.Resource(name="Upper%Case"), mq.TOPIC_NOT_FOUND),
    (mq.Resource(), mq.TOPIC_NOT_FOUND),
    (mq.Resource(resource_namespace="ns", name="t0"), mq.ILLEGAL_TOPIC),
])  # fmt: skip
def test_route_of_a_topic_that_is_not_there(rocket: Rocket, resource: mq.Resource, code: Any) -> None:
    assert rocket.call("QueryRoute", mq.QueryRouteRequest(topic=resource)).status.code == code


# ------------------------------------------------------------ settings
def test_producer_is_told_its_limits(rocket: Rocket, topic: str) -> None:
    told = rocket.start(mq.PRODUCER, topic)
    assert told.status.code == mq.OK
    assert told.settings.publishing.max_body_size == MAX_BODY_BYTES
    assert told.settings.publishing.topics[0].name == topic
    assert told.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert not told.settings.metric.on


@pytest.mark.parametrize(("language", "strategy"), [
    ("JAVA", "customized_backoff"), ("PYTHON", "customized_backoff"), ("HTTP", "exponential_backoff"),
])  # fmt: skip
def test_push_consumer_is_told_backoffs_that_its_language_knows(
    cluster: LocalCluster, language: str, strategy: str
) -> None:
    with Rocket(cluster.endpoints[0], language=language) as client:
        told = client.start(mq.PUSH_CONSUMER, "mortal", GROUP).settings
    assert told.backoff_policy.WhichOneof("strategy") == strategy
    assert told.backoff_policy.max_attempts == 2  # the topic's
    assert (told.subscription.fifo, told.subscription.receive_batch_size) == (False, 32)
    assert told.subscription.long_polling_timeout.seconds == 20


def test_settings_are_answered_each_time_on_the_same_stream(rocket: Rocket, topic: str) -> None:
    stream = rocket.telemetry()
    settings = mq.Settings(client_type=mq.SIMPLE_CONSUMER, subscription=mq.Subscription(group=mq.Resource(name=GROUP)))
    assert [stream.tell(settings).status.code for _ in range(3)] == [mq.OK] * 3


@pytest.mark.parametrize("kind", [mq.PULL_CONSUMER, mq.LITE_PUSH_CONSUMER, mq.CLIENT_TYPE_UNSPECIFIED, 99])
def test_client_of_another_kind_is_told_so_and_its_stream_ends(rocket: Rocket, kind: Any) -> None:
    stream = rocket.telemetry()
    assert stream.tell(mq.Settings(client_type=kind)).status.code == mq.UNRECOGNIZED_CLIENT_TYPE
    with pytest.raises(grpc.RpcError) as ended:
        next(stream.call)
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ------------------------------------------------------------ sending
def test_message_arrives_as_it_was_sent(rocket: Rocket, topic: str) -> None:
    sent = message(topic, b"\x00\xff body", tag="a", keys=["k1", "k2"], born_host="h", trace_context="00-t")
    sent.user_properties["n"] = "v"
    sent.system_properties.born_timestamp.FromMilliseconds(1_234)
    answer = rocket.send(sent)
    assert (answer.status.code, answer.entries[0].message_id) == (mq.OK, sent.system_properties.message_id)
    assert answer.entries[0].recall_handle == ""
    (got,) = rocket.receive(topic, GROUP)
    system = got.system_properties
    assert (got.topic.name, got.body, dict(got.user_properties)) == (topic, sent.body, {"n": "v"})
    assert (system.tag, list(system.keys), system.message_id) == ("a", ["k1", "k2"], sent.system_properties.message_id)
    assert (system.born_host, system.trace_context, system.born_timestamp.ToMilliseconds()) == ("h", "00-t", 1_234)
    assert (system.message_type, system.body_encoding, system.delivery_attempt) == (mq.NORMAL, mq.IDENTITY, 1)
    assert system.body_digest == mq.Digest(type=mq.MD5, checksum=hashlib.md5(sent.body).hexdigest().upper())
    assert not system.HasField("delivery_timestamp")


def test_gzip_is_inflated_so_that_every_door_can_read_it(rocket: Rocket, topic: str) -> None:
    packed = gzip.compress(b"plain" * 100)
    digest = mq.Digest(type=mq.CRC32, checksum=f"{zlib.crc32(packed):X}")
    sent = message(topic, packed, body_encoding=mq.GZIP)
    sent.system_properties.body_digest.CopyFrom(digest)
    assert rocket.send(sent).status.code == mq.OK
    (got,) = rocket.receive(topic, GROUP)
    assert (got.body, got.system_properties.body_encoding) == (b"plain" * 100, mq.IDENTITY)


def wrong(**system: Any) -> Callable[[mq.Message], None]:
    def change(one: mq.Message) -> None:
        for name, value in system.items():
            field = getattr(one.system_properties, name)
            if isinstance(value, list):
                field.extend(value)
            elif hasattr(field, "CopyFrom"):
                field.CopyFrom(value)
            else:
                setattr(one.system_properties, name, value)

    return change


def with_properties(count: int, size: int, name: str = "p") -> Callable[[mq.Message], None]:
    return lambda one: one.user_properties.update({f"{name}{at}": "x" * size for at in range(count)})


def with_body(body: bytes) -> Callable[[mq.Message], None]:
    return lambda one: setattr(one, "body", body)


@pytest.mark.parametrize(("change", "code"), [
    (with_body(b""), mq.MESSAGE_BODY_EMPTY),
    (with_body(bytes(MAX_BODY_BYTES + 1)), mq.MESSAGE_BODY_TOO_LARGE),
    (wrong(message_id=""), mq.ILLEGAL_MESSAGE_ID),
    (wrong(message_id="x" * 257), mq.ILLEGAL_MESSAGE_ID),
    (wrong(tag=" "), mq.ILLEGAL_MESSAGE_TAG),
    (wrong(tag="a|b"), mq.ILLEGAL_MESSAGE_TAG),
    (wrong(keys=["k", "\n"]), mq.ILLEGAL_MESSAGE_KEY),
    (with_properties(129, 1), mq.MESSAGE_PROPERTIES_TOO_LARGE),
    (with_properties(2, 9_000), mq.MESSAGE_PROPERTIES_TOO_LARGE),
    (with_properties(1, 1, "rocketmq."), mq.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (with_properties(1, 1, "\t"), mq.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (wrong(message_type=mq.FIFO), mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (wrong(message_type=mq.TRANSACTION), mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (wrong(message_group="m"), mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (wrong(lite_topic="l"), mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (wrong(priority=1), mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (wrong(body_digest=mq.Digest(type=mq.MD5, checksum="00")), mq.MESSAGE_CORRUPTED),
    (wrong(body_digest=mq.Digest(type=mq.SHA1, checksum="")), mq.MESSAGE_CORRUPTED),
    (wrong(body_encoding=mq.GZIP), mq.MESSAGE_CORRUPTED),
    (wrong(body_encoding=7), mq.MESSAGE_CORRUPTED),
])  # fmt: skip
def test_wrong_message_is_refused_with_the_protocols_code(
    rocket: Rocket, change: Callable[[mq.Message], None], code: Any
) -> None:
    one = message("short")
    change(one)
    answer = rocket.send(one)
    assert (answer.status.code, answer.entries[0].status.code) == (code, code), answer


def test_gzip_bomb_is_refused_before_it_is_inflated(rocket: Rocket) -> None:
    bomb = gzip.compress(bytes(64 << 20), 1)
    assert rocket.send(message("short", bomb, body_encoding=mq.GZIP)).status.code == mq.MESSAGE_BODY_TOO_LARGE


def test_largest_body_is_stored_and_received(rocket: Rocket, topic: str) -> None:
    assert rocket.send(message(topic, bytes(MAX_BODY_BYTES))).status.code == mq.OK
    options = [("grpc.max_receive_message_length", 8 << 20), ("grpc.use_local_subchannel_pool", 1)]
    rocket.channel = grpc.insecure_channel(rocket.endpoint, options)
    (got,) = rocket.receive(topic, GROUP)
    assert len(got.body) == MAX_BODY_BYTES


@pytest.mark.parametrize(("name", "at_ms", "code"), [
    ("t0", 41 * DAY_MS, mq.ILLEGAL_DELIVERY_TIME),
    ("t0", 39 * DAY_MS, mq.OK),
    ("short", 7_200_000, mq.ILLEGAL_DELIVERY_TIME),
    ("ordinary", 60_000, mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("delayed", None, mq.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
])  # fmt: skip
def test_how_long_a_topic_lets_messages_wait(rocket: Rocket, name: str, at_ms: int | None, code: Any) -> None:
    sent = message(name, at_ms=None if at_ms is None else now_ms() + at_ms)
    assert rocket.send(sent).status.code == code


def test_entries_of_a_request_have_statuses_of_their_own(rocket: Rocket, topic: str) -> None:
    answer = rocket.send(message(topic, b"good"), message(topic, b""), message(topic, b"too"))
    assert answer.status.code == mq.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [mq.OK, mq.MESSAGE_BODY_EMPTY, mq.OK]
    got: list[bytes] = []
    while len(got) < 2:
        got += [one.body for one in rocket.receive(topic, GROUP)]
    assert sorted(got) == [b"good", b"too"]


def test_request_about_no_topic_or_two_is_refused(rocket: Rocket, topic: str) -> None:
    assert rocket.send().status.code == mq.BAD_REQUEST
    assert rocket.send(message(topic), message("t0")).status.code == mq.MESSAGE_CORRUPTED
    assert rocket.send(message("nowhere")).status.code == mq.TOPIC_NOT_FOUND


# ------------------------------------------------------------ recall
def test_recalled_message_never_comes_and_the_answer_is_true(rocket: Rocket, topic: str) -> None:
    due_ms = now_ms() + 4_000
    gone, kept = message(topic, b"gone", at_ms=due_ms), message(topic, b"kept", at_ms=due_ms)
    handles = [rocket.send(one).entries[0].recall_handle for one in (gone, kept)]
    answer = rocket.recall(topic, handles[0])
    assert (answer.status.code, answer.message_id) == (mq.OK, gone.system_properties.message_id)
    assert rocket.recall(topic, handles[0]).status.code == mq.OK  # a client asks again that got no answer
    (got,) = rocket.receive(topic, GROUP, wait_ms=10_000)
    assert (got.body, got.system_properties.delivery_timestamp.ToMilliseconds()) == (b"kept", due_ms)
    assert due_ms <= now_ms() < due_ms + 500
    late = rocket.recall(topic, handles[1])
    assert (late.status.code, "too late" in late.status.message) == (mq.NOT_FOUND, True), late
    assert rocket.receive(topic, GROUP, wait_ms=500) == []


def test_handle_of_any_door_can_be_recalled_and_no_other(rocket: Rocket, topic: str) -> None:
    handle = rocket.send(message(topic, at_ms=now_ms() + 60_000)).entries[0].recall_handle.partition(".")[0]
    parts = Handle.decode(handle)
    assert rocket.recall("t0", handle).status.code == mq.BAD_REQUEST
    assert rocket.recall(topic, handle[:-3] + "AAA").status.code == mq.BAD_REQUEST
    assert rocket.recall(topic, "").status.code == mq.BAD_REQUEST
    other = Handle(topic, parts.queue, parts.uid ^ 1, parts.due_ms, parts.seq).encode()
    assert rocket.recall(topic, other).status.code == mq.INVALID_RECEIPT_HANDLE
    none = Handle(topic, parts.queue, parts.uid, parts.due_ms, parts.seq + 1).encode()
    assert rocket.recall(topic, none).status.code == mq.NOT_FOUND
    assert rocket.recall(topic, handle).status.code == mq.OK


# ------------------------------------------------------------ deliveries
def test_answer_is_a_status_the_messages_and_a_time(rocket: Rocket, topic: str) -> None:
    rocket.send(message(topic), message(topic))
    kinds = [one.WhichOneof("content") for one in rocket.responses(topic, GROUP)]
    assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
    begun = time.monotonic()
    empty = list(rocket.responses(topic, "other-" + GROUP, tags="none", wait_ms=1_000))
    assert [one.WhichOneof("content") for one in empty] == ["status", "delivery_timestamp"]
    assert empty[0].status.code == mq.MESSAGE_NOT_FOUND
    assert 0.9 <= time.monotonic() - begun < 2


def test_poll_is_answered_before_its_deadline(rocket: Rocket, topic: str) -> None:
    assert rocket.receive(topic, GROUP, wait_ms=20_000, seconds=3.5) == []


@pytest.mark.parametrize(("asked", "code"), [
    ({"tags": "a |b"}, mq.ILLEGAL_FILTER_EXPRESSION), ({"tags": "a || "}, mq.ILLEGAL_FILTER_EXPRESSION),
    ({"tags": "n > 5", "filter_type": mq.SQL}, mq.ILLEGAL_FILTER_EXPRESSION), ({"most": 0}, mq.BAD_REQUEST),
    ({"lease_ms": 0}, mq.ILLEGAL_INVISIBLE_TIME), ({"lease_ms": 12 * 3_600_000 + 1}, mq.ILLEGAL_INVISIBLE_TIME),
])  # fmt: skip
def test_wrong_receive_is_refused(rocket: Rocket, asked: dict[str, Any], code: Any) -> None:
    assert rocket.refused("short", GROUP, **asked) == code


def test_groups_filter_is_the_one_that_it_was_made_with(rocket: Rocket, topic: str) -> None:
    for tag in ("a", "b", "c"):
        rocket.send(message(topic, tag.encode(), tag=tag))
    got: list[mq.Message] = []
    while len(got) < 2:
        got += rocket.receive(topic, GROUP, tags="b||a", lease_ms=60_000)
    assert sorted(one.body for one in got) == [b"a", b"b"]
    assert rocket.receive(topic, GROUP, tags="a || b", wait_ms=300) == []
    assert rocket.refused(topic, GROUP, tags="*") == mq.ILLEGAL_FILTER_EXPRESSION


def test_ack_is_refused_once_the_lease_is_over(rocket: Rocket, topic: str) -> None:
    rocket.send(message(topic))
    (first,) = rocket.receive(topic, GROUP, lease_ms=500)
    (second,) = rocket.receive(topic, GROUP, lease_ms=60_000)
    assert second.system_properties.delivery_attempt == 2
    assert rocket.ack(topic, GROUP, first).entries[0].status.code == mq.INVALID_RECEIPT_HANDLE
    assert rocket.ack(topic, GROUP, first, second).status.code == mq.MULTIPLE_RESULTS
    assert rocket.ack(topic, GROUP, second).status.code == mq.INVALID_RECEIPT_HANDLE


def test_receipt_of_another_group_forged_or_garbled_is_refused(rocket: Rocket, topic: str) -> None:
    rocket.send(message(topic))
    (got,) = rocket.receive(topic, GROUP)
    assert rocket.ack(topic, "other", got).status.code == mq.INVALID_RECEIPT_HANDLE
    assert rocket.ack("t0", GROUP, got).status.code == mq.INVALID_RECEIPT_HANDLE
    receipt = Receipt.decode(got.system_properties.receipt_handle)
    texts = ["", "x", "é" * 9, got.system_properties.receipt_handle[:-1]]
    for change in ({"uid": receipt.uid ^ 1}, {"offset": 99}, {"attempt": 7}, {"queue": 900}):
        fields = {name: getattr(receipt, name) for name in receipt.__slots__}
        texts.append(Receipt(**{**fields, **change}).encode())
    for text in texts:
        forged = mq.Message()
        forged.CopyFrom(got)
        forged.system_properties.receipt_handle = text
        code = rocket.ack(topic, GROUP, forged).status.code
        assert code in (mq.INVALID_RECEIPT_HANDLE, mq.NOT_FOUND), (text, code)
        assert rocket.change(topic, GROUP, forged, 1_000).receipt_handle == text
    assert rocket.ack(topic, GROUP, got).status.code == mq.OK


def test_simple_consumer_keeps_a_message_for_longer_as_the_same_attempt(rocket: Rocket, topic: str) -> None:
    rocket.start(mq.SIMPLE_CONSUMER, topic, GROUP)
    rocket.send(message(topic))
    (got,) = rocket.receive(topic, GROUP, lease_ms=3_000)
    answer = rocket.change(topic, GROUP, got, 60_000)
    assert (answer.status.code, answer.receipt_handle) == (mq.OK, got.system_properties.receipt_handle)
    assert rocket.receive(topic, GROUP, wait_ms=4_000) == []
    assert rocket.ack(topic, GROUP, got).status.code == mq.OK


def test_push_consumer_that_has_failed_gets_it_again_after_its_backoff(rocket: Rocket, topic: str) -> None:
    rocket.start(mq.PUSH_CONSUMER, topic, GROUP)
    rocket.send(message(topic))
    (first,) = rocket.receive(topic, GROUP, lease_ms=None)
    changed = time.monotonic()
    assert rocket.change(topic, GROUP, first, 1_000).status.code == mq.OK
    assert rocket.ack(topic, GROUP, first).status.code == mq.INVALID_RECEIPT_HANDLE
    begun = time.monotonic()
    (second,) = rocket.receive(topic, GROUP, lease_ms=None)
    assert time.monotonic() - changed >= 1
    assert time.monotonic() - begun < 2
    assert second.system_properties.delivery_attempt == 2


def test_message_is_dead_after_its_topics_attempts_or_when_a_client_says_so(
    cluster: LocalCluster, rocket: Rocket
) -> None:
    rocket.start(mq.PUSH_CONSUMER, "mortal", GROUP)
    rocket.send(message("mortal", b"twice"))
    for _ in range(2):
        (got,) = rocket.receive("mortal", GROUP, lease_ms=None)
        rocket.change("mortal", GROUP, got, 1_000)
    rocket.send(message("mortal", b"at once"))
    (got,) = rocket.receive("mortal", GROUP, lease_ms=None)
    request = mq.ForwardMessageToDeadLetterQueueRequest(
        topic=mq.Resource(name="mortal"), group=mq.Resource(name=GROUP),
        receipt_handle=got.system_properties.receipt_handle,
    )  # fmt: skip
    assert rocket.call("ForwardMessageToDeadLetterQueue", request).status.code == mq.OK
    assert rocket.call("ForwardMessageToDeadLetterQueue", request).status.code == mq.INVALID_RECEIPT_HANDLE
    with SyncAdmin(cluster.endpoints[0]) as admin:
        assert sorted(one.body for one in admin.dead_letters("mortal", GROUP)) == [b"at once", b"twice"]


def test_client_that_says_it_ends_gives_back_what_it_held(cluster: LocalCluster, rocket: Rocket, topic: str) -> None:
    rocket.start(mq.PUSH_CONSUMER, topic, GROUP)
    rocket.send(message(topic))
    rocket.receive(topic, GROUP, lease_ms=None)
    request = mq.NotifyClientTerminationRequest(group=mq.Resource(name=GROUP))
    assert rocket.call("NotifyClientTermination", request).status.code == mq.OK
    with Rocket(cluster.endpoints[0]) as other:
        (got,) = other.receive(topic, GROUP, wait_ms=2_000)
    assert got.system_properties.delivery_attempt == 1


def test_what_a_lost_client_held_comes_again_as_the_next_attempt(cluster: LocalCluster, topic: str) -> None:
    with Rocket(cluster.endpoints[0]) as lost:
        lost.start(mq.PUSH_CONSUMER, topic, GROUP)
        lost.send(message(topic))
        lost.receive(topic, GROUP, lease_ms=None)
    with Rocket(cluster.endpoints[0]) as other:
        (got,) = other.receive(topic, GROUP, wait_ms=12_000)
    assert got.system_properties.delivery_attempt == 2


def test_what_is_not_known_here_is_not_implemented(rocket: Rocket, topic: str) -> None:
    ended = rocket.call("EndTransaction", mq.EndTransactionRequest(topic=mq.Resource(name=topic)))
    assert ended.status.code == mq.NOT_IMPLEMENTED
    synced = rocket.call("SyncLiteSubscription", mq.SyncLiteSubscriptionRequest())
    assert synced.status.code == mq.NOT_IMPLEMENTED


@pytest.mark.parametrize("hours", [-26, -3, 3, 26])
def test_clients_whose_clock_is_hours_off_get_messages_at_the_nodes_time(
    cluster: LocalCluster, topic: str, hours: int
) -> None:
    """What is their past is now, and leases are the node's."""
    off_ms = hours * 3_600_000
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + off_ms / 1_000))
    with Rocket(cluster.endpoints[0], **{"x-mq-date-time": date}) as rocket:
        due_ms = now_ms() + 4_000
        sent = [message(topic, b"now"), message(topic, b"past", at_ms=now_ms() - abs(off_ms))]
        sent += [message(topic, b"soon", at_ms=due_ms), message(topic, b"recalled", at_ms=due_ms)]
        for one in sent:
            one.system_properties.born_timestamp.FromMilliseconds(now_ms() + off_ms)
        assert rocket.recall(topic, rocket.send(*sent).entries[3].recall_handle).status.code == mq.OK
        got: list[mq.Message] = []
        while len(got) < 3:
            found = rocket.receive(topic, GROUP, lease_ms=60_000)
            assert now_ms() >= due_ms or all(one.body != b"soon" for one in found)
            got += found
        assert sorted(one.body for one in got) == [b"now", b"past", b"soon"]
        assert all(
            abs(one.system_properties.born_timestamp.ToMilliseconds() - off_ms - now_ms()) < 60_000 for one in got
        )
        assert rocket.ack(topic, GROUP, *got).status.code == mq.OK


@pytest.mark.timeout(3_600 if EVERYTHING else 300)
def test_many_clients_may_be_known_at_once(cluster: LocalCluster, topic: str) -> None:
    """10,000 with DELAY_ROCKETMQ_TESTS=all, by 20 connections. Each has its Telemetry open, and sends.

    That is a minute of processor time with grpcio, of which other work may leave a tenth. A client's part of it is the
    same from the first to the last.
    """
    count = 10_000 if EVERYTHING else 400
    settings = mq.TelemetryCommand(settings=mq.Settings(client_type=mq.PRODUCER, publishing=mq.Publishing()))

    async def run() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(cluster.endpoints[0], options) for _ in range(20)]
        few = asyncio.Semaphore(100)
        streams: list[Any] = []

        async def come(at: int) -> None:
            metadata = [("x-mq-client-id", f"many-{at}"), ("x-mq-language", "JAVA")]
            channel = channels[at % len(channels)]
            async with few:
                stream = channel.stream_stream(
                    SERVICE + "Telemetry", mq.TelemetryCommand.SerializeToString, mq.TelemetryCommand.FromString
                )(metadata=metadata)  # fmt: skip
                streams.append(stream)
                await stream.write(settings)
                assert (await stream.read()).status.code == mq.OK
                send = channel.unary_unary(
                    SERVICE + "SendMessage", mq.SendMessageRequest.SerializeToString, mq.SendMessageResponse.FromString
                )
                request = mq.SendMessageRequest(messages=[message(topic, str(at).encode())])
                assert (await send(request, metadata=metadata)).status.code == mq.OK

        try:
            await asyncio.gather(*(come(at) for at in range(count)))
            assert not any(stream.done() for stream in streams), "a client's stream has ended"
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*(channel.close() for channel in channels))

    asyncio.run(run())
    with Rocket(cluster.endpoints[0]) as rocket:
        got: set[bytes] = set()
        while len(got) < count:
            got |= {one.body for one in rocket.receive(topic, GROUP, most=1_000, lease_ms=600_000)}
