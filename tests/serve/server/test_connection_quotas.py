"""A user's quota of connections to a node, by both edges: who is over it is told so, and one that ends makes room."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from delayclient import Tls
from delayclient.errors import QuotaExceeded, from_rpc
from delayclient.sync import Producer
from delayregistry.security import SecurityUser, StaticToken, UserQuotas

from tests.serve.support.asking import DOCUMENT, TOPIC, Asking, rules, secret, sha256_of
from tests.serve.support.client import poll
from tests.serve.support.secured import CLUSTER, NAME, Secured

LIMIT = 3
SPIFFE = "spiffe://example.org/few"
FEW = ("few", "again", "later", "sdk")
QUOTA = UserQuotas(connections=LIMIT)


def document(**of_later: UserQuotas):
    return dataclasses.replace(
        DOCUMENT,
        tokens=(*DOCUMENT.tokens, *(StaticToken(name, sha256_of(name)) for name in FEW)),
        users=(
            *DOCUMENT.users,
            *(SecurityUser(f"token:{name}", rules("produce"), QUOTA) for name in ("few", "again", "sdk")),
            SecurityUser("token:later", rules("produce"), **of_later),
            SecurityUser(SPIFFE, rules("produce"), QUOTA),
        ),
    )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("connections")
    with Secured(directory, "permissive", nodes=1, document=document()).run() as running:
        yield running


class Connection:
    def __init__(self, secured: Secured, name: str) -> None:
        own = secured.client_ca.issue(SPIFFE) if name == SPIFFE else None
        self.client = secured.dial("mtls" if own else "tokens", own)
        self.asking = Asking(self.client.channel, None if own else f"Bearer {secret(name)}")

    def refusal(self) -> QuotaExceeded | None:
        ended = self.asking.ask("QueryRoute")
        if ended is None:
            return None
        assert ended.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, ended.details()
        error = from_rpc(ended)
        assert isinstance(error, QuotaExceeded)
        return error


@pytest.mark.parametrize("name", ["few", SPIFFE])
def test_who_has_as_many_as_its_quota_gets_no_more_until_one_ends(secured: Secured, name: str) -> None:
    held = [Connection(secured, name) for _ in range(LIMIT)]
    assert [one.refusal() for one in held] == [None] * LIMIT
    over, other = Connection(secured, name), Connection(secured, "super")
    for _ in range(2):
        told = over.refusal()
        assert told is not None
        principal = name if name == SPIFFE else f"token:{name}"
        assert f"user {principal!r}, at this node, has 3 of 3 connections (quota connections)" in str(told)
        assert not told.retryable
    assert other.refusal() is None, "others have their own"
    assert [one.refusal() for one in held] == [None] * LIMIT, "those that are there stay"
    held.pop().client.close()
    poll("one that has ended makes room", lambda: over.refusal() is None)
    for one in (*held, over, other):
        one.client.close()


def test_one_that_ends_without_a_call_and_a_broken_one_leave_nothing_behind(secured: Secured) -> None:
    for _ in range(3 * LIMIT):
        connection = Connection(secured, "again")
        poll("there is room again", lambda: connection.refusal() is None)  # noqa: B023
        connection.client.close()
        host, port = secured.endpoint("tokens").split(":")
        socket.create_connection((host, int(port))).close()


def test_a_quota_that_is_made_later_counts_and_one_that_is_taken_away_no_more(secured: Secured) -> None:
    registry = secured.running.registry
    held = [Connection(secured, "later") for _ in range(LIMIT)]
    assert [one.refusal() for one in held] == [None] * LIMIT
    version = registry.put_security(document(quotas=QUOTA), registry.read_security().version)
    poll("it counts", lambda: _over(secured, held))
    registry.put_security(document(), version)
    fourth = Connection(secured, "later")
    poll("it counts no more", lambda: fourth.refusal() is None)
    for one in (*held, fourth):
        one.client.close()


def _over(secured: Secured, held: list[Connection]) -> bool:
    assert [one.refusal() for one in held] == [None] * LIMIT
    another = Connection(secured, "later")
    try:
        return another.refusal() is not None
    finally:
        another.client.close()


def test_the_sdk_says_so_at_once(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(secured.ca.pem)
    (tmp_path / "token").write_text(secret("sdk"))
    tls = Tls(tmp_path / "ca.crt", server_name=NAME)
    with ExitStack() as stack:
        producers = [
            stack.enter_context(Producer(secured.endpoint("tokens"), tls=tls, token_file=tmp_path / "token"))
            for _ in range(LIMIT + 1)
        ]
        for one in producers[:LIMIT]:
            one.send(TOPIC, b"x", delay=3_600_000)
        with pytest.raises(QuotaExceeded, match="quota connections"):
            producers[LIMIT].send(TOPIC, b"x", delay=3_600_000)
        producers[0].send(TOPIC, b"x", delay=3_600_000)


def test_nodes_have_no_quota(secured: Secured) -> None:
    own = secured.peer_ca.issue(CLUSTER + "node")
    for _ in range(3 * LIMIT):
        with secured.dial("internal", own, roots=secured.peer_ca.pem) as client:
            asking = Asking(client.channel, None, ("x-delay-principal", "token:few"))
            assert asking.may("QueryRoute")
