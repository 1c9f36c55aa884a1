"""CheckAccess says what the calls themselves find: of each caller, by which rule, and of others only to who may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.auth.identity import Identity, IdentityKind
from delaynode.server.operations import OPERATIONS
from delaynode.store.errors import Refused
from delayregistry.security import (
    OF_GROUPS,
    AccessRule,
    AuthorizationMode,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
)

from tests.auth.serving import SecuredNode, secured
from tests.auth.test_operations import DOCUMENT, MAY, WHO

GROUPED = replace(
    DOCUMENT,
    users=(
        *DOCUMENT.users,
        SecurityUser("group:team", (AccessRule((Operation.PRODUCE,), NamePattern(prefix="team-")),)),
    ),
)


def question(operation: Operation, **more: object) -> pb.CheckAccessRequest:
    topic = "" if operation is Operation.ADMIN else "orders"
    fields = {"topic": topic, "group": "mail" if operation in OF_GROUPS else "", **more}
    return pb.CheckAccessRequest(operation=operation, **fields)  # type: ignore[arg-type]


async def ask(node: SecuredNode, who: Identity, request: pb.CheckAccessRequest) -> pb.CheckAccessResponse:
    return pb.CheckAccessResponse.FromString(await node.call("CheckAccess", request, who))


def run(directory: Path, claim: Callable[[SecuredNode], Awaitable[None]], document: SecuritySpec = GROUPED) -> None:
    async def main() -> None:
        async with secured(directory, document) as node:
            await claim(node)
            assert not node.node.metrics.denied, "nobody was refused anything"
            assert not node.audit

    asyncio.run(main())


def test_it_says_what_the_calls_find(tmp_path: Path) -> None:
    async def claim(node: SecuredNode) -> None:
        for operation in Operation:
            method = next(name for name, its in OPERATIONS.items() if its is operation)
            said = {name for name, who in WHO.items() if (await ask(node, who, question(operation))).allowed}
            assert said == MAY[method], operation

    run(tmp_path, claim)


@pytest.mark.parametrize(
    ("name", "operation", "allowed", "why"),
    [
        ("produce", Operation.PRODUCE, True, "a rule of 'token:produce' allows Produce on topic 'orders'"),
        ("produce", Operation.DESCRIBE, True, "a rule of 'token:produce' allows Produce on topic 'orders'"),
        ("consume", Operation.CONSUME, True, "allows Consume on topic 'orders', group 'mail'"),
        ("admin", Operation.ADMIN, True, "a rule of 'token:admin' allows Admin on the cluster"),
        ("super", Operation.ADMIN, True, "'token:super' is a super user"),
        ("operator", Operation.PRODUCE, True, "it is the cluster's own operator"),
        ("produce", Operation.CANCEL, False, "none of its rules allows that"),
        ("stranger", Operation.PRODUCE, False, "this cluster has no user of that principal"),
        ("anonymous", Operation.PRODUCE, False, "by a listener that does not ask who calls"),
    ],
)
def test_it_says_by_which_rule(tmp_path: Path, name: str, operation: Operation, allowed: bool, why: str) -> None:
    async def claim(node: SecuredNode) -> None:
        found = await ask(node, WHO[name], question(operation))
        assert (found.allowed, found.principal) == (allowed, WHO[name].principal)
        assert why in found.why

    run(tmp_path, claim)


def test_who_may_admin_asks_about_others_as_they_would_about_themselves(tmp_path: Path) -> None:
    async def claim(node: SecuredNode) -> None:
        for name in ("produce", "none", "stranger", "anonymous", "super"):
            request = question(Operation.PRODUCE, principal=WHO[name].principal)
            own = await ask(node, WHO[name], question(Operation.PRODUCE))
            assert await ask(node, WHO["admin"], request) == own
            assert await ask(node, WHO[name], request) == own, "to name oneself is to ask about oneself"
        request = question(Operation.PRODUCE, topic="team-a", principal="oidc:https://x#y", groups=["team"])
        found = await ask(node, WHO["admin"], request)
        assert found.allowed
        assert "a rule of 'group:team' allows Produce on topic prefix 'team-'" in found.why

    run(tmp_path, claim)


def test_nobody_else_learns_about_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with secured(tmp_path, GROUPED) as node:
            for name in ("produce", "none", "stranger", "anonymous", "rebalance"):
                with pytest.raises(Refused) as refused:
                    await ask(node, WHO[name], question(Operation.PRODUCE, principal="token:super"))
                assert refused.value.reason == "PERMISSION_DENIED"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (pb.CheckAccessRequest(operation="Fly", topic="orders"), "'Fly' is none of Produce, Consume"),
        (pb.CheckAccessRequest(operation="Produce"), "Produce is of a topic"),
        (pb.CheckAccessRequest(operation="Admin", topic="orders"), "Admin is of no topic"),
        (pb.CheckAccessRequest(operation="Consume", topic="orders"), "Consume is of a group"),
        (pb.CheckAccessRequest(operation="Produce", topic="orders", group="g"), "Produce is of no group"),
        (pb.CheckAccessRequest(operation="Produce", topic="o" * 51), "51 characters; the limit is 50"),
        (pb.CheckAccessRequest(operation="Produce", topic="orders", groups=["team"]), "groups are those of another"),
    ],
)
def test_a_question_that_means_nothing_is_refused(tmp_path: Path, request_: pb.CheckAccessRequest, says: str) -> None:
    async def claim(node: SecuredNode) -> None:
        with pytest.raises(Refused) as refused:
            await ask(node, WHO["super"], request_)
        assert (refused.value.reason, says in refused.value.message) == ("BAD_REQUEST", True)

    run(tmp_path, claim)


def test_where_rights_are_not_asked_for_or_only_counted_it_says_so(tmp_path: Path) -> None:
    for mode, says in ((AuthorizationMode.OFF, "the mode is Off"), (AuthorizationMode.PERMISSIVE, "is Permissive")):

        async def claim(node: SecuredNode, says: str = says) -> None:
            found = await ask(node, WHO["none"], question(Operation.CANCEL))
            assert found.allowed
            assert says in found.why

        run(tmp_path / mode, claim, replace(GROUPED, authorization=mode))


def test_a_token_that_was_withdrawn_is_no_answer(tmp_path: Path) -> None:
    async def claim(node: SecuredNode) -> None:
        gone = Identity("token:super", IdentityKind.TOKEN, credential="sha256:" + "0" * 64)
        with pytest.raises(Refused) as refused:
            await ask(node, gone, question(Operation.PRODUCE))
        assert refused.value.reason == "UNAUTHENTICATED"

    run(tmp_path, claim)
