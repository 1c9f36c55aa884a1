"""Each call needs its operation: the table is whole, and the node asks by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.auth.identity import ANONYMOUS, Identity, IdentityKind
from delaynode.server.operations import AUDITED, OPERATIONS, REPLICATION_SERVICE, SERVICE, STREAMED, UNCHECKED
from delaynode.server.rpc import EndedError
from delaynode.store.errors import Refused
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
)
from google.protobuf.message_factory import GetMessageClass

from tests.auth.serving import SecuredNode, SecuredRegistry, secured, until

SERVICES = {SERVICE: pb.DESCRIPTOR.services_by_name["DelayService"],
            REPLICATION_SERVICE: pb.DESCRIPTOR.services_by_name["ReplicationService"]}  # fmt: skip
METHODS = {method.name: service for service, found in SERVICES.items() for method in found.methods}


SOON = 5.0  # seconds; it takes 0.05 s, unless the machine is busy


def user(name: str, *rules: AccessRule) -> SecurityUser:
    return SecurityUser(f"token:{name}", rules)


def on(operation: Operation, topic: str = "orders", group: str = "") -> AccessRule:
    return AccessRule((operation,), NamePattern(topic), NamePattern(group) if group else None)


ALL = NamePattern(prefix="")
OTHERS = NamePattern(prefix="order-")
USERS = (
    user("produce", on(Operation.PRODUCE)),
    user("consume", on(Operation.CONSUME, group="mail")),
    user("cancel", on(Operation.CANCEL)),
    user("browse", on(Operation.BROWSE)),
    user("describe", on(Operation.DESCRIBE)),
    user("manage", on(Operation.MANAGE_GROUP, group="mail")),
    user("admin", AccessRule((Operation.ADMIN,))),
    user("other", AccessRule(tuple(one for one in Operation if one is not Operation.ADMIN), OTHERS, ALL)),
    user("none"),
)
DOCUMENT = SecuritySpec(AuthorizationMode.REQUIRED, super_users=("token:super",), users=USERS)
WHO = {
    name: Identity(f"token:{name}", IdentityKind.TOKEN)
    for name in ("produce", "consume", "cancel", "browse", "describe", "manage", "admin", "other", "none", "super")
}
WHO |= {"stranger": Identity("token:stranger", IdentityKind.TOKEN), "anonymous": ANONYMOUS}
WHO |= {
    role: Identity(f"spiffe://x/role/{role}", IdentityKind.PEER, role=role)
    for role in ("node", "operator", "rebalance")
}
WHO |= {"forwarded": Identity("token:anybody", IdentityKind.FORWARDED)}

# Who may, of those above: written out by hand, so that a change of the table of operations shows here.
ALWAYS = {"super", "node", "operator", "forwarded"}
DESCRIBERS = ALWAYS | {"produce", "consume", "cancel", "browse", "describe", "manage", "rebalance"}
MAY = {
    "QueryRoute": DESCRIBERS, "GetWheel": DESCRIBERS, "Forecast": DESCRIBERS, "DescribeGroup": DESCRIBERS,
    "Enqueue": ALWAYS | {"produce"}, "EnqueueStream": ALWAYS | {"produce"},
    "Receive": ALWAYS | {"consume"}, "ReceiveStream": ALWAYS | {"consume"}, "Fetch": ALWAYS | {"consume"},
    "Ack": ALWAYS | {"consume"}, "Nack": ALWAYS | {"consume"},
    "Extend": ALWAYS | {"consume"},
    "Cancel": ALWAYS | {"cancel"}, "Reschedule": ALWAYS | {"cancel"},
    "ListPending": ALWAYS | {"browse"}, "ListDeadLetters": ALWAYS | {"browse"},
    "DeleteGroup": ALWAYS | {"manage"}, "ResolveDeadLetters": ALWAYS | {"manage"},
    **dict.fromkeys(
        ("PutSchedule", "PauseSchedule", "ResumeSchedule", "TriggerSchedule", "BackfillSchedule", "DeleteSchedule"),
        ALWAYS | {"produce"},
    ),
    "GetSchedule": ALWAYS | {"browse"}, "ListSchedules": ALWAYS | {"browse"},
    "DescribeNode": ALWAYS | {"admin"}, "AcceptClock": ALWAYS | {"admin"},
    "ReplicaStatus": ALWAYS | {"admin"}, "PurgeCopy": ALWAYS | {"admin"},
}  # fmt: skip


def request_of(method: str, topic: str = "orders", group: str = "mail") -> Any:
    """A request of the method's type that names topic and group, where it has them."""
    service = SERVICES[METHODS[method]]
    request: Any = GetMessageClass(service.methods_by_name[method].input_type)()
    for name, value in (("topic", topic), ("group", group)):
        if name in request.DESCRIPTOR.fields_by_name:
            setattr(request, name, value)
    return request


def denied(error: Refused) -> bool:
    return error.reason == "PERMISSION_DENIED"


async def may(node: SecuredNode, method: str, who: Identity, request: Any = None) -> bool:
    """Whether the node let them; whatever else it said of the request."""
    request = request_of(method) if request is None else request
    streamed = SERVICES[METHODS[method]].methods_by_name[method].client_streaming
    try:
        if streamed and method == "EnqueueStream":
            (body,) = await node.stream(method, who, request)
            return pb.EnqueueResponse.FromString(body).error.reason != "PERMISSION_DENIED"
        if streamed:
            await node.stream(method, who, request)
        else:
            await node.call(method, request, who, METHODS[method])
    except Refused as refused:
        return not denied(refused)
    except EndedError:
        return True
    return True


def test_every_call_of_the_services_has_an_operation() -> None:
    assert OPERATIONS.keys() | UNCHECKED == METHODS.keys(), "name the new call in node/delaynode/server/operations.py"
    assert not OPERATIONS.keys() & UNCHECKED
    assert MAY.keys() == OPERATIONS.keys(), "and who may make it, above"
    assert OPERATIONS.keys() >= AUDITED
    assert set(STREAMED) <= OPERATIONS.keys()
    assert len(METHODS) == sum(len(service.methods) for service in SERVICES.values()), "no name is in both"


def test_every_service_of_the_proto_is_looked_at() -> None:
    assert {service.full_name for service in pb.DESCRIPTOR.services_by_name.values()} == SERVICES.keys()


def test_every_call_is_made_by_those_who_may_and_by_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method, expected in MAY.items():
                found = {name for name, who in WHO.items() if await may(node, method, who)}
                assert found == expected, method

    asyncio.run(run())


def test_a_topic_that_there_is_not_is_refused_alike(tmp_path: Path) -> None:
    """Whoever may not see a topic does not learn whether there is one."""

    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method in OPERATIONS:
                request = request_of(method, topic="nothing")
                if "topic" in request.DESCRIPTOR.fields_by_name:
                    for name in ("produce", "admin", "none"):
                        assert not await may(node, method, WHO[name], request), (method, name)

    asyncio.run(run())


def test_a_call_stream_asks_for_each_of_its_calls(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for name in ("consume", "cancel", "none", "super"):
                calls = [pb.Call(id=number, method=method, request=request_of(method).SerializeToString())
                         for number, method in enumerate(STREAMED)]  # fmt: skip
                answers = [one for body in await node.stream("CallStream", WHO[name], pb.Calls(call=calls))
                           for one in pb.Answers.FromString(body).answer]  # fmt: skip
                let = {STREAMED[one.id] for one in answers if one.error.reason != "PERMISSION_DENIED"}
                assert let == {method for method in STREAMED if name in MAY[method]}, name

    asyncio.run(run())


def test_a_fetch_without_a_group_is_browsing(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            plain = request_of("Fetch", group="")
            assert {name for name, who in WHO.items() if await may(node, "Fetch", who, plain)} == ALWAYS | {"browse"}

    asyncio.run(run())


def test_answers_about_all_topics_leave_out_what_the_caller_may_not_see(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT, ("orders", "order-a", "order-b", "secret")) as node:
            seen = {}
            for name in ("produce", "other", "none", "anonymous", "admin", "super", "rebalance"):
                routes = pb.QueryRouteResponse.FromString(
                    await node.call("QueryRoute", pb.QueryRouteRequest(), WHO[name])
                )
                wheel = pb.GetWheelResponse.FromString(await node.call("GetWheel", pb.GetWheelRequest(), WHO[name]))
                seen[name] = {one.topic for one in routes.topics}
                assert seen[name] == {one.topic for one in wheel.shards}
            everything = {"orders", "order-a", "order-b", "secret"}
            assert seen == {
                "produce": {"orders"}, "other": {"order-a", "order-b"}, "none": set(), "anonymous": set(),
                "admin": set(), "super": everything, "rebalance": everything,
            }  # fmt: skip

    asyncio.run(run())


def test_a_refusal_is_counted_and_written_into_the_audit_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for _ in range(3):
                assert not await may(node, "Enqueue", WHO["consume"])
            assert node.node.metrics.denied == {("Produce", "NoRule", "false"): 3}
            assert node.audit == [
                {"event": "audit-refused", "principal": "token:consume", "operation": "Produce",
                 "resource": "topic 'orders'", "why": "NoRule", "again": 0}
            ]  # fmt: skip

    asyncio.run(run())


def test_who_administers_is_written_into_the_audit_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            for method in OPERATIONS:
                await may(node, method, WHO["super"])
            assert {line["method"] for line in node.audit} == AUDITED
            assert {line["principal"] for line in node.audit} == {"token:super"}

    asyncio.run(run())


def test_permissive_refuses_nobody_and_counts(tmp_path: Path) -> None:
    async def run() -> None:
        document = SecuritySpec(AuthorizationMode.PERMISSIVE, users=USERS)
        async with secured(tmp_path, document) as node:
            assert await may(node, "Enqueue", ANONYMOUS)
            assert await may(node, "Enqueue", WHO["produce"])
            assert node.node.metrics.denied == {("Produce", "Anonymous", "true"): 1}
            assert [line["event"] for line in node.audit] == ["audit-would-refuse"]

    asyncio.run(run())


def authorization(node: SecuredNode) -> str:
    """Of the document that the node said last to be in force; it tells other things too."""
    told: list[str] = [one["authorization"] for one in node.events if "authorization" in one]
    return told[-1]


def test_a_document_is_in_force_within_a_second_and_a_bad_one_never(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            assert not await may(node, "Enqueue", WHO["none"])
            node.registry.put(SecuritySpec(AuthorizationMode.OFF))
            await until(lambda: authorization(node) == "Off", SOON)
            assert await may(node, "Enqueue", WHO["none"])
            node.registry.put(DOCUMENT)
            await until(lambda: authorization(node) == "Required", SOON)
            node.registry.put('{"authorization":"Off","more":1}')
            await until(lambda: any(one["event"] == "security-document-bad" for one in node.events), SOON)
            assert not await may(node, "Enqueue", WHO["none"])
            assert node.node.not_ready() is None, "it serves on by the document before"
            state = pb.NodeState.FromString(await node.call("DescribeNode", pb.DescribeNodeRequest(), WHO["super"]))
            assert [one for one in state.conditions if "more is not known to this release" in one]

    asyncio.run(run())


def test_a_node_that_starts_without_a_document_is_closed_and_with_a_kept_one_is_not(tmp_path: Path) -> None:
    async def run() -> None:
        registry = SecuredRegistry(())
        closed = SecuredNode(tmp_path, registry)
        await closed.node.read_cluster()
        await closed.node.prepare()
        await closed.node.start()
        await until(lambda: closed.node.not_ready() == "waiting for the security document")
        for name in ("super", "none", "anonymous"):
            with pytest.raises(Refused, match="has not read the security document yet"):
                await closed.call("DescribeNode", pb.DescribeNodeRequest(), WHO[name])
        await closed.call("DescribeNode", pb.DescribeNodeRequest(), WHO["operator"])
        registry.put(DOCUMENT)
        await until(lambda: closed.node.not_ready() is None)
        await until((tmp_path / "security").exists)
        await closed.stop()
        registry.put(None)
        again = SecuredNode(tmp_path, registry)
        await again.node.read_cluster()
        await again.node.prepare()
        await again.node.start()
        await until(lambda: again.node.not_ready() is None)
        await again.call("DescribeNode", pb.DescribeNodeRequest(), WHO["super"])
        assert not await may(again, "DescribeNode", WHO["none"])
        await again.stop()

    asyncio.run(run())
