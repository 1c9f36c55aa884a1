"""Calls that Python serves: bytes in, bytes out."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import grpc
import pytest
from calls import enqueue, request, stream, unary
from fakenode import DETAILS, ENQUEUE, ENQUEUE_STREAM, FakeNode
from http2 import Http2, message


def test_a_unary_call_is_answered(node: FakeNode, channel: grpc.Channel) -> None:
    assert unary(channel, "Echo")(b"hello") == b"hello"
    assert unary(channel, "Echo")(b"") == b""


def test_what_is_told_of_a_call(node: FakeNode, channel: grpc.Channel) -> None:
    unary(channel, "Echo")(b"a", timeout=5, metadata=[("x-delay-forwarded", "node-1")])
    unary(channel, "Echo")(b"b")
    first, second = node.begun("Echo")
    assert first.method == "/test.Test/Echo"
    assert first.peer.startswith("ipv4:127.0.0.1:")
    assert (first.forwarded, second.forwarded) == (True, False)
    assert 4 < first.seconds_left <= 5.1
    assert second.seconds_left is None


def test_an_error_has_its_code_text_and_details(node: FakeNode, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        unary(channel, "Fail")(b"")
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert failed.value.details() == "100% weg: é\n"
    assert ("grpc-status-details-bin", DETAILS) in failed.value.trailing_metadata()


@pytest.mark.parametrize("method", ["/test.Test/Nothing", "/delay.v1.DelayService/Nothing", "/" + "x" * 5_000])
def test_an_unknown_method_is_unimplemented(method: str, node: FakeNode, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(method)(b"")
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert unary(channel, "Echo")(b"on") == b"on"


@pytest.mark.parametrize("method", ["/test.Test/Echo", "/delay.v1.DelayService/Enqueue"])
def test_a_unary_call_with_two_messages_is_refused(method: str, node: FakeNode, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        channel.stream_unary(method)(iter([b"a", b"b"]))
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    node.wait(lambda: node.edge.figures()["calls_bytes"] + node.edge.figures()["rows_bytes"] == 0)


def test_a_unary_call_without_a_message_is_pythons_to_refuse(node: FakeNode, channel: grpc.Channel) -> None:
    assert channel.stream_unary("/test.Test/Echo")(iter([])) == b"none"
    with pytest.raises(grpc.RpcError) as failed:
        channel.stream_unary("/delay.v1.DelayService/Enqueue")(iter([]))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [event.body for event in node.begun("Enqueue")] == [None]


@pytest.mark.parametrize("size", [1, 4_091, 4_092, 65_535, 65_536, 300_000, 12 << 20, 16 << 20])
def test_messages_of_all_sizes_come_and_go(size: int, node: FakeNode, channel: grpc.Channel) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    assert unary(channel, "Echo")(body[:size]) == body[:size]
    node.wait(lambda: node.edge.figures()["calls_bytes"] == 0)


def test_an_answer_that_is_told_of_ends_with_sent(node: FakeNode, channel: grpc.Channel) -> None:
    assert len(unary(channel, "Told")(b"300000")) == 300_000
    node.wait(lambda: "sent" in node.kinds())
    assert node.kinds(node.begun("Told")[0].token) == ["call", "sent"]


def test_a_stream_goes_both_ways_and_ends_well(node: FakeNode, channel: grpc.Channel) -> None:
    bodies = [b"%d" % i * (i + 1) for i in range(100)]
    assert list(stream(channel, "Chat")(iter(bodies))) == bodies
    assert "gone" not in node.kinds()


def test_a_stream_is_answered_while_it_is_open(node: FakeNode, channel: grpc.Channel) -> None:
    requests: queue.Queue[bytes | None] = queue.Queue()
    answers = stream(channel, "Chat")(iter(requests.get, None))
    for body in (b"one", b"two", b"three"):
        requests.put(body)
        assert next(answers) == body
    requests.put(None)
    assert list(answers) == []


def test_a_stream_may_fail_after_an_answer(node: FakeNode, channel: grpc.Channel) -> None:
    answers = stream(channel, "FailLate")(iter([b"a"]))
    assert next(answers) == b"one"
    with pytest.raises(grpc.RpcError) as failed:
        next(answers)
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "no more")


def test_a_stream_has_only_so_many_messages_that_are_not_dealt_with(start) -> None:
    node = start(max_unread_messages=3)
    with node.channel() as channel:
        call = stream(channel, "HoldStream")(iter([b"x"] * 50))
        node.wait(lambda: node.kinds().count("message") == 3)
        time.sleep(0.1)
        assert node.kinds().count("message") == 3
        token = node.begun("HoldStream")[0].token
        node.on_loop(lambda: node.edge.more(token))
        node.wait(lambda: node.kinds().count("message") == 4)
        call.cancel()
        node.wait(lambda: node.gone() == ["cancelled"])
        node.wait(lambda: node.edge.figures()["calls_bytes"] == 0)


@pytest.mark.parametrize("name", ["Hold", "HoldStream"])
def test_python_is_told_of_a_cancelled_call(name: str, node: FakeNode, channel: grpc.Channel) -> None:
    call = unary(channel, name).future(b"a") if name == "Hold" else stream(channel, name)(iter([b"a"]))
    node.wait(lambda: node.begun(name))
    call.cancel()
    node.wait(lambda: node.gone() == ["cancelled"])
    node.wait(lambda: node.edge.figures() | {"calls": 0, "calls_bytes": 0, "resets": 1} == node.edge.figures())


@pytest.mark.parametrize("name", ["Hold", "HoldStream"])
def test_python_is_told_of_a_deadline(name: str, node: FakeNode, channel: grpc.Channel) -> None:
    def slow() -> Iterator[bytes]:
        yield b"a"
        time.sleep(3)

    call = (
        unary(channel, name).future(b"a", timeout=0.3) if name == "Hold" else stream(channel, name)(slow(), timeout=0.3)
    )
    assert call.exception(10).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    node.wait(lambda: node.gone())
    assert node.gone()[0] in ("deadline", "cancelled")  # the client's own clock may be first
    node.wait(lambda: node.edge.figures()["calls"] == 0)


@pytest.mark.parametrize("path", ["/test.Test/Hold", "/test.Test/HoldStream", ENQUEUE, ENQUEUE_STREAM])
def test_the_edge_itself_ends_a_call_at_its_deadline(path: str, node: FakeNode) -> None:
    node.hold = True
    with Http2(node.edge.port) as client:  # grpcio would end it by its own clock
        body = request(b"x").SerializeToString()
        assert client.answer(client.call(path, message(body), grpc_timeout="200m"))[0]["grpc-status"] == "4"
        told = [] if path in (ENQUEUE, ENQUEUE_STREAM) else ["deadline"]
        node.wait(lambda: node.gone() == told)
    node.release()
    node.wait_at_rest()


def test_python_is_told_of_a_lost_connection(node: FakeNode) -> None:
    channel = node.channel()
    calls = [unary(channel, "Hold").future(b"a"), stream(channel, "HoldStream")(iter([b"b"]))]
    node.wait(lambda: node.begun("Hold") and "message" in node.kinds())
    channel.close()
    node.wait(lambda: len(node.gone()) == 2)
    assert set(node.gone()) <= {"connection", "cancelled"}
    node.wait_at_rest()
    del calls


def test_an_answer_to_a_call_that_is_gone_does_nothing(node: FakeNode, channel: grpc.Channel) -> None:
    call = unary(channel, "Hold").future(b"a")
    node.wait(lambda: node.begun("Hold"))
    token = node.begun("Hold")[0].token
    call.cancel()
    node.wait(lambda: node.gone())
    node.on_loop(lambda: node.edge.respond(token, b"late"))
    node.on_loop(lambda: node.edge.end(token, 5, "late"))
    node.on_loop(lambda: node.edge.more(token))
    assert not node.on_loop(lambda: node.edge.write(token, b"late"))
    node.wait(lambda: node.edge.figures()["unread_bytes"] == 0)
    assert unary(channel, "Echo")(b"on") == b"on"


def test_tokens_that_never_were_do_nothing(node: FakeNode, channel: grpc.Channel) -> None:
    for token in (0, 1, 2**32, 2**63, 2**64 - 1):
        for what in (node.edge.respond, node.edge.write):
            assert not what(token, b"x")
        node.edge.end(token, 1, "x")
        node.edge.more(token)
        node.edge.refuse_row(token, 1, "x")
    assert enqueue(channel)(request(b"a")).count == 1


def test_a_download_waits_for_its_reader_and_comes_whole(start) -> None:
    node = start(write_bytes=50_000)
    with node.channel() as channel:
        answers = stream(channel, "Download")(iter([b"200 30000"]))
        first = next(answers)
        time.sleep(0.3)
        assert node.edge.figures()["unread_bytes"] < 200_000, "Python writes on only when there is room"
        sizes = [len(first), *map(len, answers)]
        assert sizes == [30_000] * 200
        assert "writable" in node.kinds()
        node.wait(lambda: node.edge.figures()["unread_bytes"] == 0)


@pytest.mark.parametrize(("messages", "size"), [(0, 0), (1, 0), (3, 10), (100, 1_000)])
def test_the_last_answers_come_with_the_end_of_their_stream(node, channel, messages: int, size: int) -> None:
    answers = list(stream(channel, "Last")(iter([f"{messages} {size}".encode()])))
    assert answers == [b"first", *[bytes(size)] * messages]
    node.wait(lambda: node.edge.figures()["unread_bytes"] == 0 == node.edge.figures()["calls"])


def test_health_and_reflection_need_nothing_of_their_own() -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from delayedge import Edge

    edge = Edge(
        "127.0.0.1:0", rows={}, unary=["/grpc.health.v1.Health/Check"], streams=["/grpc.health.v1.Health/Watch"]
    )
    with grpc.insecure_channel(f"127.0.0.1:{edge.port}") as channel:
        call = health_pb2_grpc.HealthStub(channel).Check.future(health_pb2.HealthCheckRequest(service="x"))
        until = time.monotonic() + 10
        events: list = []
        while not events and time.monotonic() < until:
            events = edge.take()[1]
        assert health_pb2.HealthCheckRequest.FromString(events[0].body).service == "x"
        serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        edge.respond(events[0].token, serving.SerializeToString())
        assert call.result(10) == serving
    edge.close()
