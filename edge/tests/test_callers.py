"""Listeners that ask who calls: Python is asked once, and no call is taken before it has answered."""

from __future__ import annotations

import threading

import grpc
import pytest
from calls import enqueue, enqueue_stream, request, stream, unary
from fakenode import FakeNode

TOKEN = (("authorization", "Bearer good"),)


@pytest.fixture
def asking(node: FakeNode) -> FakeNode:
    """Its listener `tokens` asks."""
    node.identities = {"Bearer good": "alice", "Bearer other": "bob", "Bearer bad": False, "": False}
    node.port = node.edge.listen("127.0.0.1:0", "tokens", identifies=True)
    return node


def dial(node: FakeNode) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{node.port}", [("grpc.use_local_subchannel_pool", 1)])


def questions(node: FakeNode) -> list:
    return [(one.authorization, one.principal) for one in node.events if one.kind == "identify"]


def test_python_is_asked_once_a_connection_and_token(asking: FakeNode) -> None:
    for _ in range(2):
        with dial(asking) as channel:
            for token, name in [("good", "alice"), ("other", "bob"), ("good", "alice")]:
                metadata = (("authorization", f"Bearer {token}"),)
                answer = unary(channel, "Who")(b"", metadata=metadata, timeout=10)
                assert answer == f"tokens {name} False".encode()
    assert questions(asking) == [("Bearer good", None), ("Bearer other", None)] * 2
    asked = next(one for one in asking.events if one.kind == "identify")
    assert (asked.listener, asked.names, asked.peer.startswith("ipv4:127.0.0.1:")) == ("tokens", [], True)


def test_the_plain_listener_beside_it_asks_nobody(asking: FakeNode) -> None:
    with asking.channel() as channel:
        assert unary(channel, "Who")(b"", metadata=TOKEN, timeout=10) == b"plain None False"
    assert questions(asking) == []


@pytest.mark.parametrize("method", ["Echo", "Chat", "Enqueue", "EnqueueStream"])
@pytest.mark.parametrize("token", ["Bearer bad", None])
def test_one_that_is_nobody_is_told_so_and_nothing_is_taken(asking: FakeNode, method: str, token: str | None) -> None:
    metadata = () if token is None else (("authorization", token),)
    call = {
        "Echo": lambda channel, **how: unary(channel, "Echo")(b"", **how),
        "Chat": lambda channel, **how: list(stream(channel, "Chat")(iter([b"x"]), **how)),
        "Enqueue": lambda channel, **how: enqueue(channel)(request(b"x"), **how),
        "EnqueueStream": lambda channel, **how: list(enqueue_stream(channel)(iter([request(b"x")]), **how)),
    }[method]
    with dial(asking) as channel, pytest.raises(grpc.RpcError) as raised:
        call(channel, metadata=metadata, timeout=10)
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert raised.value.details() == "not known"
    assert {one.kind for one in asking.events} - {"left"} == {"identify"}
    assert asking.edge.figures()["requests_taken"] == 0


def test_calls_wait_for_the_answer_and_their_requests_are_not_read(asking: FakeNode) -> None:
    slow = (("authorization", "Bearer slow"),)
    with dial(asking) as channel:
        calls = [unary(channel, "Who").future(bytes(30_000), metadata=slow, timeout=20) for _ in range(3)]
        asking.wait(lambda: asking.edge.figures()["calls"] == 3)
        assert asking.edge.figures()["calls_bytes"] == 0
        with pytest.raises(grpc.RpcError) as raised:
            unary(channel, "Who")(b"", metadata=slow, timeout=0.3)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert unary(channel, "Who")(b"", metadata=TOKEN, timeout=10) == b"tokens alice False"
        asking.identities["Bearer slow"] = "carol"
        (question,) = [one for one in asking.events if one.authorization == "Bearer slow"]
        asking.on_loop(lambda: asking.identify(question))
        assert [call.result(10) for call in calls] == [b"tokens carol False"] * 3


def test_rows_of_different_identities_are_never_in_one_group(asking: FakeNode) -> None:
    asking.hold = True
    with dial(asking) as channel:
        send = enqueue(channel)
        calls = [
            send.future(request(b"x"), metadata=(("authorization", f"Bearer {token}"),), timeout=20)
            for token in ["good", "other"] * 20
        ]
        asking.wait(lambda: asking.edge.figures()["rows"] == 40)
        asking.on_loop(lambda: None)
        found = {(group.identity, group.topic) for group in asking.groups}
        sizes = {name: sum(len(one.token) // 8 for one in asking.groups if one.identity == name) for name, _ in found}
        asking.release()
        assert sizes == {"alice": 20, "bob": 20}
        assert {call.result(10).count for call in calls} == {1}


def test_a_stream_ends_when_its_callers_identity_does(asking: FakeNode) -> None:
    asking.seconds_left = 0.5
    with dial(asking) as channel:
        for open_stream in (stream(channel, "HoldStream"), enqueue_stream(channel)):
            with pytest.raises(grpc.RpcError) as raised:
                list(open_stream(_never_ends(), metadata=TOKEN, timeout=20))
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "expired" in raised.value.details()
            assert dict(raised.value.trailing_metadata())["grpc-status-details-bin"].endswith(b"\x1a\x02hi")
            asking.seconds_left = 0.5
    asking.wait(lambda: asking.gone() == ["refused"])


def _never_ends():
    threading.Event().wait(5)
    yield from ()


def test_one_that_has_expired_is_asked_for_again(asking: FakeNode) -> None:
    asking.seconds_left = 0.0
    with dial(asking) as channel:
        for _ in range(2):
            assert unary(channel, "Who")(b"", metadata=TOKEN, timeout=10) == b"tokens alice False"
    assert len(questions(asking)) == 2


@pytest.mark.parametrize("forwards", [False, True])
def test_whether_a_call_was_forwarded_is_believed_of_whom_python_says(asking: FakeNode, forwards: bool) -> None:
    asking.forwards = forwards
    metadata = (*TOKEN, ("x-delay-forwarded", "1"), ("x-delay-principal", "dave"))
    with dial(asking) as channel:
        assert unary(channel, "Who")(b"", metadata=metadata, timeout=10) == f"tokens alice {forwards}".encode()
    assert questions(asking) == [("Bearer good", "dave")]


def test_many_tokens_of_one_connection_are_all_served(asking: FakeNode) -> None:
    asking.identities |= {f"Bearer {number}": f"user{number}" for number in range(200)}
    with dial(asking) as channel:
        for number in [*range(200), 0]:
            metadata = (("authorization", f"Bearer {number}"),)
            assert unary(channel, "Who")(b"", metadata=metadata, timeout=10) == f"tokens user{number} False".encode()
    assert len(questions(asking)) == 201


def test_two_listeners_have_two_names(asking: FakeNode) -> None:
    with pytest.raises(ValueError, match="there is a listener tokens already"):
        asking.edge.listen("127.0.0.1:0", "tokens")
