"""RocketMQ's calls ask for the same rights as DelayService's: each, by each of those who may or may not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from delayapi.handle import Handle
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.receipt import Receipt
from delaynode.auth.identity import Identity
from delaynode.server.doors.rocketmq.service import MESSAGING_SERVICE

from tests.auth.serving import SecuredNode, secured
from tests.auth.test_operations import ALWAYS, DESCRIBERS, DOCUMENT, WHO

SERVICE = mq.DESCRIPTOR.services_by_name["MessagingService"]
ANYBODY = {"Heartbeat", "Telemetry", "NotifyClientTermination", "EndTransaction", "SyncLiteSubscription"}
"""Of a client's own id, whose leases are its principal's; or not there at all."""
MAY = {
    "QueryRoute": DESCRIBERS, "QueryAssignment": DESCRIBERS,
    "SendMessage": ALWAYS | {"produce"},
    "ReceiveMessage": ALWAYS | {"consume"}, "AckMessage": ALWAYS | {"consume"},
    "ChangeInvisibleDuration": ALWAYS | {"consume"}, "ForwardMessageToDeadLetterQueue": ALWAYS | {"consume"},
    "RecallMessage": ALWAYS | {"cancel"},
}  # fmt: skip
STREAMS = ("ReceiveMessage",)


def requests_of(topic: str, group: str = "mail") -> dict[str, list[Any]]:
    """By method, those that are about a topic: as many as what they say takes other ways."""
    name, of = mq.Resource(name=topic), mq.Resource(name=group)
    receipt, handle = Receipt(topic, 0, 1, group, 0, 1, 0).encode(), Handle(topic, 0, 1, 1, 1).encode()
    message = mq.Message(topic=name, body=b"x")
    message.system_properties.message_id = "id"
    delayed = mq.Message()
    delayed.CopyFrom(message)
    delayed.system_properties.delivery_timestamp.GetCurrentTime()
    delayed.system_properties.delivery_timestamp.seconds += 3_600
    receive = mq.ReceiveMessageRequest(group=of, message_queue=mq.MessageQueue(topic=name), batch_size=1)
    receive.filter_expression.expression = "*"
    receive.long_polling_timeout.FromMilliseconds(1)
    renewed = mq.ReceiveMessageRequest()
    renewed.CopyFrom(receive)
    receive.invisible_duration.FromSeconds(30)
    renewed.auto_renew = True
    changes = [mq.ChangeInvisibleDurationRequest(group=of, topic=name, receipt_handle=receipt) for _ in range(3)]
    for change, seconds, suspend in zip(changes, (30, 0, 0), (False, False, True), strict=True):
        change.invisible_duration.FromSeconds(seconds)
        change.suspend = suspend
    entry = mq.AckMessageEntry(message_id="id", receipt_handle=receipt)
    dead = mq.ForwardMessageToDeadLetterQueueRequest(group=of, topic=name, receipt_handle=receipt)
    return {
        "QueryRoute": [mq.QueryRouteRequest(topic=name)],
        "QueryAssignment": [mq.QueryAssignmentRequest(topic=name, group=of)],
        "SendMessage": [mq.SendMessageRequest(messages=[one]) for one in (message, delayed)],
        "ReceiveMessage": [receive, renewed],
        "AckMessage": [mq.AckMessageRequest(group=of, topic=name, entries=[entry])],
        "ChangeInvisibleDuration": changes,
        "ForwardMessageToDeadLetterQueue": [dead],
        "RecallMessage": [mq.RecallMessageRequest(topic=name, recall_handle=handle)],
    }


def codes(method: str, bodies: list[bytes]) -> set[str]:
    """Of the answers, by whichever place they have one in."""
    answer, found = getattr(mq, f"{method}Response"), set()
    for data in bodies:
        one = answer.FromString(data)
        found |= {mq.Code.Name(entry.status.code) for entry in getattr(one, "entries", ())}
        if one.HasField("status"):
            found.add(mq.Code.Name(one.status.code))
    return found - {"CODE_UNSPECIFIED", "MULTIPLE_RESULTS"}


async def may(node: SecuredNode, method: str, who: Identity, request: Any) -> bool:
    if method in STREAMS:
        bodies = await node.stream(method, who, request, service=MESSAGING_SERVICE)
    else:
        bodies = [await node.call(method, request, who, MESSAGING_SERVICE)]
    found = codes(method, bodies)
    assert found, "each call is answered by a code"
    assert found == {"FORBIDDEN"} or "FORBIDDEN" not in found, "an answer to who may not has nothing else"
    return found != {"FORBIDDEN"}


async def those_who_may(node: SecuredNode, method: str, request: Any) -> set[str]:
    return {name for name, who in WHO.items() if await may(node, method, who, request)}


def test_each_call_is_in_the_table() -> None:
    assert MAY.keys() == requests_of("orders").keys()
    assert MAY.keys() | ANYBODY == {method.name for method in SERVICE.methods}
    assert not MAY.keys() & ANYBODY


def test_every_call_is_made_by_those_who_may_and_by_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method, requests in requests_of("orders").items():
                for request in requests:
                    assert await those_who_may(node, method, request) == MAY[method], (method, request)

    asyncio.run(run())


def test_a_group_is_consumed_by_those_who_may_consume_that_group(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method, requests in requests_of("orders", "letters").items():
                expected = ALWAYS if MAY[method] == ALWAYS | {"consume"} else MAY[method]
                for request in requests:
                    assert await those_who_may(node, method, request) == expected, (method, request)

    asyncio.run(run())


def test_a_topic_that_there_is_not_is_refused_alike(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method, requests in requests_of("nothing").items():
                for name in ("produce", "consume", "cancel", "admin", "none"):
                    for request in requests:
                        assert not await may(node, method, WHO[name], request), (method, name)

    asyncio.run(run())
