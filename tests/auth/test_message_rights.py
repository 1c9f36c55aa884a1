"""MessageService asks for the same rights as DelayService: each of its calls, by each of those who may or may not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from delayapi.handle import Handle
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delayapi.receipt import Receipt
from delaynode.auth.identity import Identity
from delaynode.server.doors.rows import MESSAGE_SERVICE
from delaynode.store.errors import Refused

from tests.auth.serving import SecuredNode, secured
from tests.auth.test_operations import ALWAYS, DESCRIBERS, DOCUMENT, WHO

SERVICE = rows.DESCRIPTOR.services_by_name["MessageService"]
MAY = {
    "Send": ALWAYS | {"produce"},
    "Receive": ALWAYS | {"consume"}, "ReceiveStream": ALWAYS | {"consume"},
    "Ack": ALWAYS | {"consume"}, "Nack": ALWAYS | {"consume"}, "Extend": ALWAYS | {"consume"},
    "Cancel": ALWAYS | {"cancel"}, "Reschedule": ALWAYS | {"cancel"},
    "ListPending": ALWAYS | {"browse"}, "ListDeadLetters": ALWAYS | {"browse"},
    "ListGroups": DESCRIBERS,
    "DeleteGroup": ALWAYS | {"manage"}, "RedriveDeadLetters": ALWAYS | {"manage"},
    "DropDeadLetters": ALWAYS | {"manage"},
    "GetSchedule": ALWAYS | {"browse"}, "ListSchedules": ALWAYS | {"browse"},
    "PutSchedule": ALWAYS | {"produce"}, "PauseSchedule": ALWAYS | {"produce"},
    "ResumeSchedule": ALWAYS | {"produce"}, "TriggerSchedule": ALWAYS | {"produce"},
    "BackfillSchedule": ALWAYS | {"produce"}, "DeleteSchedule": ALWAYS | {"produce"},
}  # fmt: skip


def request_of(method: str, topic: str = "orders", group: str = "mail") -> Any:
    """A request that could be served, as far as it says what it is about."""
    request = getattr(rows, SERVICE.methods_by_name[method].input_type.name)()
    for name, value in (("topic", topic), ("group", group)):
        if name in request.DESCRIPTOR.fields_by_name and method != "Cancel":
            setattr(request, name, value)
    if method == "Send":
        request.messages.add(body=b"x")
    if method in ("Ack", "Nack", "Extend"):
        request.receipts.append(Receipt(topic, 0, 1, group, 0, 1, 0).encode())
    if method in ("Cancel", "Reschedule"):
        request.handles.append(Handle(topic, 0, 1, 1, 1).encode())
    if method == "Reschedule":
        request.delay.FromSeconds(1)
    return request


async def may(node: SecuredNode, method: str, who: Identity, request: Any, seconds: float = 20.0) -> bool:
    """seconds: a stream that nothing has ended by then is let."""
    try:
        if method == "ReceiveStream":
            async with asyncio.timeout(seconds):
                await node.stream(method, who, request, service=MESSAGE_SERVICE)
        else:
            await node.call(method, request, who, MESSAGE_SERVICE)
    except Refused as refused:
        return refused.reason != "PERMISSION_DENIED"
    except TimeoutError:
        pass
    return True


def test_each_call_is_in_the_table() -> None:
    assert MAY.keys() == {method.name for method in SERVICE.methods}


def test_every_call_is_made_by_those_who_may_and_by_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method, expected in MAY.items():
                found = {
                    name
                    for name, who in WHO.items()
                    if await may(node, method, who, request_of(method), 0.2 if name in expected else 20.0)
                }
                assert found == expected, method

    asyncio.run(run())


def test_a_topic_that_there_is_not_is_refused_alike(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method in MAY:
                for name in ("produce", "admin", "none"):
                    assert not await may(node, method, WHO[name], request_of(method, topic="nothing")), (method, name)

    asyncio.run(run())


def test_whoever_may_cancel_may_do_it_by_key(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            request = rows.CancelMessagesRequest(topic="orders", key="k")
            found = {name for name, who in WHO.items() if await may(node, "Cancel", who, request)}
            assert found == MAY["Cancel"]

    asyncio.run(run())


def test_what_administers_is_written_into_the_audit_log_once_a_shard(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            await node.call("Receive", request_of("Receive"), WHO["consume"], MESSAGE_SERVICE)
            before = len(node.audit)
            await node.call("DeleteGroup", request_of("DeleteGroup"), WHO["manage"], MESSAGE_SERVICE)
            assert [one["method"] for one in node.audit[before:]] == ["DeleteGroup"]

    asyncio.run(run())
