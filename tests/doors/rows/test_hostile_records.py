"""Records that a hostile producer has made by hand: they are handed out as whatever they are, and keep no consumer from
the others' messages. The node stores any bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from zlib import crc32

import grpc
import pytest
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import messages_pb2 as rows

from tests.doors.rocketmq.support.wire import Rocket
from tests.doors.support.asking import Asking, Node

Ask = Callable[..., Asking]
TAG = "sold"
NO_MESSAGE = b"\xff\xff no message"
RECORDS = [
    NO_MESSAGE,
    pb.Message(body=b"-1", born_ms=-1).SerializeToString(),
    pb.Message(body=b"long ago", born_ms=-(2**63)).SerializeToString(),
    pb.Message(body=b"at last", born_ms=2**63 - 1).SerializeToString(),
    pb.Message(body=b"1e999").SerializeToString(),
    pb.Message(body=rb'"\ud800"').SerializeToString(),
    pb.Message(body=b"[" * 985 + b"]" * 985).SerializeToString(),
    pb.Message(properties={f"{at:06}": "" for at in range(50_000)}).SerializeToString(),
    pb.Message(tag=TAG, body=b"a good one").SerializeToString(),
]


def store(node: Node, topic: str, tag: str = "") -> None:
    request = pb.EnqueueRequest(
        topic=topic, count=len(RECORDS), time=bytes(8 * len(RECORDS)), records=b"".join(RECORDS),
        size=b"".join(len(one).to_bytes(4, "little") for one in RECORDS),
        tag_hash=crc32(tag.encode()).to_bytes(4, "little") * len(RECORDS) if tag else b"",
    )  # fmt: skip
    with grpc.insecure_channel(node.grpc) as channel:
        channel.unary_unary("/delay.v1.DelayService/Enqueue")(request.SerializeToString(), timeout=20)


@pytest.mark.parametrize("body_format", ["BODY_FORMAT_BYTES", "BODY_FORMAT_TEXT", "BODY_FORMAT_JSON"])
def test_a_consumer_of_http_gets_them_all_at_their_first_attempt(
    ask: Ask, nodes: list[Node], topic: str, body_format: str
) -> None:
    store(nodes[0], topic)
    client = ask(1, "json")
    found: list[dict[str, object]] = []
    while len(found) < len(RECORDS):
        asked = {"topic": topic, "group": "g", "wait": "10s", "lease": "600s", "bodyFormat": body_format}
        answer = json.loads(client.post("Receive", json.dumps(asked).encode()), parse_constant=pytest.fail)
        found += answer["deliveries"]
    assert {one["attempt"] for one in found} == {1}
    done = client.json("Ack", {"receipts": [one["receipt"] for one in found]})
    assert done == {"results": [{"settled": True}] * len(RECORDS)}


def test_they_are_dead_letters_and_pending_messages_like_others(ask: Ask, nodes: list[Node], topic: str) -> None:
    store(nodes[0], topic)
    client = ask(0, "grpc")
    found: list[rows.Delivery] = []
    while len(found) < len(RECORDS):
        found += client.call("Receive", topic=topic, group="g", wait={"seconds": 10}, lease={"seconds": 600}).deliveries
    client.call("Nack", receipts=[one.receipt for one in found], dead=True)
    dead: list[rows.Delivery] = []
    token = ""
    while len(dead) < len(RECORDS) and (token or not dead):
        page = client.call("ListDeadLetters", topic=topic, group="g", page_token=token)
        dead, token = [*dead, *page.deliveries], page.next_page_token
    assert sorted(len(one.body) for one in dead) == sorted(len(one.body) for one in found)


def test_a_consumer_of_rocketmq_gets_those_that_have_its_tag(nodes: list[Node], topic: str) -> None:
    store(nodes[0], topic, TAG)
    found: list[mq.Message] = []
    with Rocket(nodes[0].grpc) as rocket:
        while not found:
            found = rocket.receive(topic, "g", tags=TAG, lease_ms=60_000, wait_ms=5_000)
        assert not rocket.receive(topic, "g", tags=TAG, wait_ms=100)
    assert [one.body for one in found] == [b"a good one"]


def test_a_consumer_of_rocketmq_gets_times_that_its_library_takes(nodes: list[Node], topic: str) -> None:
    store(nodes[0], topic)
    found: list[mq.Message] = []
    with Rocket(nodes[0].grpc) as rocket:
        while len(found) < len(RECORDS):
            found += rocket.receive(topic, "g", lease_ms=60_000, wait_ms=5_000)
    for one in found:
        assert one.system_properties.born_timestamp.ToDatetime() is not None
        assert one.system_properties.delivery_attempt == 1
