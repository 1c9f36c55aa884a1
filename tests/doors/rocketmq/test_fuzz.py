"""Requests that nobody would send, of each method, among good ones: the node answers each, and loses nothing.

DELAY_FUZZ_ROCKETMQ_CASES=10000 for a larger sample of each edge; DELAY_FUZZ_SEED for another one.
"""

from __future__ import annotations

import os
import random
from typing import Any

import grpc
import pytest
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delaynode.server.doors.rocketmq.messages import duration

from tests.doors.rocketmq.support.nodes import EDGES
from tests.doors.rocketmq.support.wire import SERVICE, Rocket, message, now_ms
from tests.serve.support.fuzz_wire import Wire

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_ROCKETMQ_CASES", "1500"))
UNARY = [
    "QueryRoute", "QueryAssignment", "Heartbeat", "SendMessage", "AckMessage", "ChangeInvisibleDuration",
    "ForwardMessageToDeadLetterQueue", "RecallMessage", "NotifyClientTermination", "EndTransaction",
    "SyncLiteSubscription",
]  # fmt: skip
STREAMS: dict[str, Any] = {"ReceiveMessage": mq.ReceiveMessageResponse, "Telemetry": mq.TelemetryCommand}
GROUP = "fuzzed"


def good(name: str, topic: str, got: mq.Message, handle: str) -> Any:
    """A request that would be answered well, to be spoiled."""
    where = {"topic": mq.Resource(name=topic), "group": mq.Resource(name=GROUP)}
    receipt = got.system_properties.receipt_handle
    match name:
        case "QueryRoute":
            return mq.QueryRouteRequest(topic=where["topic"])
        case "QueryAssignment":
            return mq.QueryAssignmentRequest(**where)
        case "SendMessage":
            sent = message(topic, b"fuzz", at_ms=now_ms() + 3_600_000, tag="t", keys=["k"])
            sent.user_properties["p"] = "v"
            return mq.SendMessageRequest(messages=[sent, sent])
        case "AckMessage":
            return mq.AckMessageRequest(**where, entries=[mq.AckMessageEntry(message_id="m", receipt_handle=receipt)])
        case "ChangeInvisibleDuration":
            lease = duration(30_000)
            return mq.ChangeInvisibleDurationRequest(**where, receipt_handle=receipt, invisible_duration=lease)
        case "ForwardMessageToDeadLetterQueue":
            return mq.ForwardMessageToDeadLetterQueueRequest(**where, receipt_handle=receipt)
        case "RecallMessage":
            return mq.RecallMessageRequest(topic=where["topic"], recall_handle=handle)
        case "ReceiveMessage":
            return mq.ReceiveMessageRequest(
                group=where["group"], message_queue=mq.MessageQueue(topic=where["topic"]), batch_size=1,
                filter_expression=mq.FilterExpression(type=mq.TAG, expression="a||b"),
                long_polling_timeout=duration(0), invisible_duration=duration(1_000),
            )  # fmt: skip
        case "Telemetry":
            settings = mq.Settings(client_type=mq.PUSH_CONSUMER)
            settings.subscription.subscriptions.add(topic=where["topic"])
            return mq.TelemetryCommand(settings=settings)
        case _:
            return getattr(mq, f"{name}Request")()


def status_of(answer: Any) -> int:
    return int(answer.status.code)


@pytest.mark.parametrize("cluster", EDGES, indirect=True, scope="session")
def test_every_request_gets_an_answer_of_the_protocol_and_nothing_is_lost(rocket: Rocket, topic: str) -> None:
    wire = Wire(random.Random(SEED))
    rocket.send(message(topic, b"held"))
    (held,) = rocket.receive(topic, "keeper", lease_ms=12 * 3_600_000)
    handle = rocket.send(message(topic, b"pending", at_ms=now_ms() + 86_400_000)).entries[0].recall_handle
    unparsed = 0
    for _ in range(CASES):
        name = wire.choose.choice([*UNARY, *STREAMS])
        request = good(name, topic, held, handle)
        data = wire.spoiled(request.SerializeToString()) if wire.choose.random() < 0.8 else (
            wire.message(request.DESCRIPTOR))  # fmt: skip
        ended = None
        try:
            if name in STREAMS:
                method = rocket.channel.stream_stream(SERVICE + name, None, STREAMS[name].FromString)
                codes = {
                    one.status.code for one in method(iter([data]), timeout=2, metadata=rocket.metadata)
                    if one.HasField("status")
                }  # fmt: skip
            else:
                unary = rocket.channel.unary_unary(SERVICE + name, None, getattr(mq, f"{name}Response").FromString)
                codes = {status_of(unary(data, timeout=5, metadata=rocket.metadata))}
        except grpc.RpcError as error:
            codes, ended = set(), error.code()
        # a Telemetry of no client's kind ends so too; a long poll may be asked for, and lasts
        assert ended in (None, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED), (name, data)
        unparsed += mq.BAD_REQUEST in codes
        assert not codes & {0, mq.INTERNAL_SERVER_ERROR}, (name, data, codes)
    assert CASES // 100 < unparsed < CASES
    assert rocket.ack(topic, "keeper", held).status.code in (mq.OK, mq.INVALID_RECEIPT_HANDLE)
    sent = message(topic, b"after", tag="after")
    assert rocket.send(sent).status.code == mq.OK
    assert [one.body for one in rocket.receive(topic, "reader", tags="after")] == [b"after"]
