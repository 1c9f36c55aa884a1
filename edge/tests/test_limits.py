"""Each limit: what is over it is refused or waits, and the memory of all clients stays bounded."""

from __future__ import annotations

import contextlib
import time

import grpc
import pytest
from calls import enqueue, enqueue_stream, request, stream, unary
from fakenode import ENQUEUE, ENQUEUE_STREAM, FakeNode
from google.protobuf import any_pb2
from google.rpc import status_pb2
from http2 import DATA, ENHANCE_YOUR_CALM, NO_FLAGS, RST_STREAM, WINDOW_UPDATE, Http2, frame, message

KIB = 1 << 10


def test_an_unknown_limit_is_an_error() -> None:
    with pytest.raises(TypeError, match="max_connections"):
        FakeNode(max_conections=1)


def test_a_message_over_the_limit_is_resource_exhausted(start) -> None:
    node = start(max_message_bytes=1_000)
    with node.channel() as channel:
        assert unary(channel, "Echo")(b"x" * 1_000)
        for call in (unary(channel, "Echo"), channel.unary_unary(ENQUEUE)):
            with pytest.raises(grpc.RpcError) as failed:
                call(b"x" * 1_001)
            assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "1001 bytes, the limit is 1000" in failed.value.details()


def test_17_mib_are_too_many_by_default_and_leave_the_connection_whole(node: FakeNode, channel: grpc.Channel) -> None:
    for _ in range(4):
        with pytest.raises(grpc.RpcError) as failed:
            unary(channel, "Echo")(bytes(17 << 20))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(unary(channel, "Echo")(bytes(3 << 20))) == 3 << 20
    assert node.edge.figures()["connections_taken"] == 1


def test_headers_over_the_limit_are_refused(start) -> None:
    node = start(max_header_bytes=2_000)
    with Http2(node.edge.port) as client:
        fields, _ = client.answer(client.call(x_long="x" * 3_000))
        assert fields[":status"] == "431" or "reset" in fields
        fields, body = client.answer(client.call(body=message(b"on")))
        assert (fields["grpc-status"], body) == ("0", message(b"on"))


def test_calls_over_the_limit_of_a_connection_are_refused_streams(start) -> None:
    node = start(max_streams=5)
    with Http2(node.edge.port) as client:
        client.call(body=message(b"1"))
        client.read_until(DATA)
        for _ in range(5):
            client.call("/test.Test/Hold", body=message(b"x"))
        over = client.call("/test.Test/Hold", body=message(b"x"))
        assert client.read_until(RST_STREAM, stream=over).error == 7  # REFUSED_STREAM
        assert len(node.begun("Hold")) <= 5


def test_connections_over_the_limit_are_closed(start) -> None:
    node = start(max_connections=3)
    clients = [Http2(node.edge.port) for _ in range(3)]
    for client in clients:
        client.answer(client.call(body=message(b"x")))
    assert Http2(node.edge.port, begin=False).read() is None
    clients.pop().socket.close()
    node.wait(lambda: node.edge.figures()["connections"] == 2)
    with Http2(node.edge.port) as client:
        assert client.answer(client.call(body=message(b"x")))[1] == message(b"x")
    node.wait(lambda: node.edge.figures()["connections_refused"] == 1)


def test_requests_in_all_stay_within_the_budget_and_all_are_served(start) -> None:
    node = start(rows_bytes=100 * KIB, rows_bytes_per_connection=60 * KIB, small_bytes=0)
    node.hold = True
    channels = [node.channel() for _ in range(6)]
    calls = [enqueue(channel).future(request(b"x" * 20 * KIB)) for channel in channels for _ in range(3)]
    node.wait(lambda: node.edge.figures() | {"waiting": 14, "rows": 4} == node.edge.figures())
    highest, until = 0, time.monotonic() + 20
    while not all(call.done() for call in calls) and time.monotonic() < until:
        highest = max(highest, node.edge.figures()["rows_bytes"])
        if node.groups:
            node.on_loop(lambda: node.answer(node.groups.pop(0)))
    assert [call.result(10).count for call in calls] == [1] * 18
    assert highest <= 100 * KIB
    for channel in channels:
        channel.close()
    node.wait_at_rest()


def test_a_connection_at_its_part_keeps_no_other_waiting(start) -> None:
    node = start(rows_bytes=1_000 * KIB, rows_bytes_per_connection=50 * KIB, small_bytes=0)
    node.hold = True
    with node.channel() as greedy, node.channel() as other:
        calls = [enqueue(greedy).future(request(b"x" * 20 * KIB)) for _ in range(10)]
        node.wait(lambda: node.edge.figures()["waiting"] == 8)
        calls.append(enqueue(other).future(request(b"y")))
        node.wait(lambda: any(bytes(group.records) == b"y" for group in node.groups))
        node.release()
        assert all(call.result(10).count == 1 for call in calls)


def test_an_ack_waits_for_no_batch(start) -> None:
    node = start(rows_bytes=50 * KIB, small_bytes=0)
    node.hold = True
    with node.channel() as channel:
        calls = [enqueue(channel).future(request(b"x" * 40 * KIB)) for _ in range(3)]
        node.wait(lambda: node.edge.figures()["waiting"] == 2)
        assert unary(channel, "Echo")(b"ack", timeout=5) == b"ack"
        node.release()
        assert all(call.result(10).count == 1 for call in calls)


def test_a_request_larger_than_the_budget_comes_alone(start) -> None:
    node = start(rows_bytes=50 * KIB, rows_bytes_per_connection=10 * KIB, small_bytes=0)
    with node.channel() as channel:
        assert enqueue(channel)(request(b"x" * 2_000 * KIB)).count == 1


def test_a_stream_waits_at_its_unanswered_requests(start) -> None:
    node = start(max_unanswered=4)
    node.hold = True
    with node.channel() as channel:
        answers = enqueue_stream(channel)(iter([request(b"x")] * 20))
        node.wait(lambda: node.edge.figures()["rows"] == 4)
        time.sleep(0.1)
        assert node.edge.figures()["rows"] == 4
        node.release()
        assert [answer.first_seq for answer in answers] == list(range(20))


def test_a_pause_lets_no_request_in_and_its_end_lets_all(node: FakeNode, channel: grpc.Channel) -> None:
    assert unary(channel, "Echo")(b"before") == b"before"
    node.on_loop(lambda: node.edge.pause_reading(True))
    calls = [enqueue(channel).future(request(b"x" * 10_000)) for _ in range(20)]
    echo = unary(channel, "Echo").future(b"after")
    node.wait(lambda: node.edge.figures()["waiting"] == 21)
    time.sleep(0.1)
    assert (node.edge.figures()["rows"], node.edge.figures()["calls_bytes"]) == (0, 0)
    node.on_loop(lambda: node.edge.pause_reading(False))
    assert all(call.result(10).count == 1 for call in calls)
    assert echo.result(10) == b"after"


def test_a_pause_may_be_for_enqueue_alone(node: FakeNode, channel: grpc.Channel) -> None:
    node.on_loop(lambda: node.edge.pause_reading(True, calls=False))
    call = enqueue(channel).future(request(b"x"))
    assert unary(channel, "Echo")(b"ack", timeout=5) == b"ack"
    assert not call.done()
    node.on_loop(lambda: node.edge.pause_reading(False))
    assert call.result(10).count == 1


def test_a_client_that_gives_up_while_it_waits_leaves_nothing(node: FakeNode) -> None:
    node.on_loop(lambda: node.edge.pause_reading(True))
    channel = node.channel()
    calls = [enqueue(channel).future(request(b"x" * 100_000)) for _ in range(10)]
    node.wait(lambda: node.edge.figures()["waiting"] == 10)
    for call in calls[:5]:
        call.cancel()
    node.wait(lambda: node.edge.figures()["waiting"] == 5)
    channel.close()
    node.wait(lambda: node.edge.figures()["waiting"] == 0)
    node.wait_at_rest()


def test_windows_close_when_there_is_no_room(start) -> None:
    """What a client may send before its request has room is its window, not its request."""
    node = start(stream_window_bytes=64 * KIB)
    node.on_loop(lambda: node.edge.pause_reading(True))
    with Http2(node.edge.port) as client:
        stream = client.call("/test.Test/Echo", message(bytes(1 << 20))[: 60 * KIB], end=False)
        client.send(frame(6, NO_FLAGS, 0, b"12345678"))
        while (came := client.read()) is not None and came.kind != 6:
            assert came.kind != 8 or came.stream == 0, "no window for a request that waits"
        node.on_loop(lambda: node.edge.pause_reading(False))
        assert client.read_until(8, stream=stream).stream == stream


def test_a_window_opens_by_the_messages_that_were_taken(start) -> None:
    """By all of them: grpcio's streams go on, slowly, when it opens by some."""
    node = start(connection_window_bytes=64 * KIB)
    with Http2(node.edge.port) as client:
        call = client.call(ENQUEUE_STREAM, end=False)
        body = message(request(b"x" * 300).SerializeToString())
        messages = client.stream_window // len(body)
        for _ in range(messages):
            client.send(frame(DATA, NO_FLAGS, call, body))
        opened = 0
        while opened < client.stream_window // 2:
            opened += int.from_bytes(client.read_until(WINDOW_UPDATE, stream=call, seconds=5).payload)
        assert opened <= messages * len(body)


def test_only_so_many_connections_have_wide_windows(start) -> None:
    node = start(connection_window_bytes=1 << 20, windows_bytes=2 << 20)
    clients = [Http2(node.edge.port) for _ in range(3)]
    windows = []
    for client in clients:
        client.answer(client.call(body=message(b"x")))
        windows.append((client.connection_window, client.stream_window))
    assert windows == [(1 << 20, 256 * KIB), (1 << 20, 256 * KIB), (65_535, 65_535 // 4)]
    clients.pop(0).socket.close()
    node.wait(lambda: node.edge.figures()["connections"] == 2)
    with Http2(node.edge.port) as client:
        client.answer(client.call(body=message(b"x")))
        assert client.connection_window == 1 << 20


def test_calls_over_the_limit_of_all_are_refused(start) -> None:
    node = start(max_calls=5)
    with node.channel() as one, node.channel() as other:
        calls = [stream(one, "HoldStream")(iter([b"x"])) for _ in range(5)]
        node.wait(lambda: node.edge.figures()["calls"] == 5)
        with pytest.raises(grpc.RpcError) as failed:
            unary(other, "Echo")(b"x")
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls.pop().cancel()
        node.wait(lambda: node.edge.figures()["calls"] == 4)
        assert unary(other, "Echo")(b"x") == b"x"


def test_bodies_that_python_has_not_taken_count_though_their_calls_are_gone(start) -> None:
    node = start(calls_bytes=250 * KIB)
    node.looking(False)
    with Http2(node.edge.port) as client:
        streams = [client.call("/test.Test/Hold", message(bytes(100 * KIB))) for _ in range(2)]
        node.wait(lambda: node.edge.figures()["calls_begun"] == 2)
        for stream_id in streams:
            client.send(frame(RST_STREAM, NO_FLAGS, stream_id, (8).to_bytes(4)))
        node.wait(lambda: node.edge.figures()["resets"] == 2)
        client.call("/test.Test/Hold", message(bytes(100 * KIB)))
        node.wait(lambda: node.edge.figures()["waiting"] == 1)
        assert node.edge.figures()["calls_bytes"] > 200 * KIB
        node.looking(True)
        node.wait(lambda: len(node.begun("Hold")) == 3)
    node.wait_at_rest()


def test_an_answer_without_room_is_resource_exhausted(start) -> None:
    node = start(unread_bytes=1 << 20, unread_bytes_per_connection=1 << 20)
    with Http2(node.edge.port) as client:
        for _ in range(3):
            client.call("/test.Test/Big", message(b"700000"))
        node.wait(lambda: len(node.begun("Big")) == 3)
        node.wait(lambda: node.edge.figures()["answers_refused"] == 2)
        assert node.edge.figures()["unread_bytes"] <= 1 << 20
    node.wait_at_rest()


def test_who_does_not_read_is_cut_when_others_wait(start) -> None:
    node = start(unread_bytes=1 << 20, unread_bytes_per_connection=1 << 20, unread_ms=500)
    with Http2(node.edge.port) as lazy, node.channel() as channel:
        lazy.call("/test.Test/Big", message(b"1000000"))
        node.wait(lambda: node.edge.figures()["unread_bytes"] > 700_000)
        time.sleep(0.2)
        with pytest.raises(grpc.RpcError) as failed:
            unary(channel, "Big")(b"200000")
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        node.wait(lambda: node.edge.figures()["connections_cut"] == 1)
        assert len(unary(channel, "Big")(b"200000")) == 200_000


def test_who_asks_for_answers_without_room_does_not_read_either(start) -> None:
    """Answers that found no room once counted as read, and kept their client from being cut."""
    node = start(unread_bytes=1 << 20, unread_bytes_per_connection=1 << 20, unread_ms=500)
    with Http2(node.edge.port) as lazy:
        lazy.call("/test.Test/Big", message(b"900000"))
        node.wait(lambda: node.edge.figures()["unread_bytes"] > 800_000)
        until = time.monotonic() + 10
        while not node.edge.figures()["connections_cut"] and time.monotonic() < until:
            with contextlib.suppress(OSError):
                lazy.call("/test.Test/Big", message(b"300000"))
            time.sleep(0.1)
        assert node.edge.figures()["connections_cut"] == 1
    assert node.edge.figures()["answers_refused"] > 1


def test_who_does_not_read_is_left_alone_when_nobody_waits(start) -> None:
    node = start(unread_ms=200)
    with Http2(node.edge.port) as lazy:
        lazy.call("/test.Test/Big", message(b"1000000"))
        node.wait(lambda: node.edge.figures()["unread_bytes"] > 700_000)
        time.sleep(1)
        assert node.edge.figures()["connections_cut"] == 0


def test_no_request_is_read_from_who_does_not_read(start) -> None:
    node = start(unread_bytes=4 << 20, unread_bytes_per_connection=300_000)
    with Http2(node.edge.port) as client:
        first = client.call("/test.Test/Big", message(b"400000"))
        node.wait(lambda: node.edge.figures()["unread_bytes"] > 300_000)
        second = client.call("/test.Test/Echo", message(b"x"))
        time.sleep(0.2)
        assert not node.begun("Echo")
        for stream in (0, first):
            client.send(frame(8, NO_FLAGS, stream, (1 << 20).to_bytes(4)))
        assert client.answer(second)[1] == message(b"x")


def test_resets_over_the_limit_are_calmed(start) -> None:
    node = start(max_resets=20)
    with Http2(node.edge.port) as client:
        for resets in range(1, 22):
            call = client.call("/test.Test/Hold", message(b"x"))
            node.wait(lambda: len(node.begun("Hold")) == resets)  # noqa: B023 - called here
            client.send(frame(RST_STREAM, NO_FLAGS, call, (8).to_bytes(4)))
            node.wait(lambda: node.edge.figures()["resets"] == resets)  # noqa: B023
            node.wait(lambda: node.edge.figures()["connections_cut"] == (resets == 21))  # noqa: B023
        assert client.ended_within(10) == ENHANCE_YOUR_CALM


def test_answers_make_up_for_resets(start) -> None:
    node = start(max_resets=5)
    with Http2(node.edge.port) as client:
        for resets in range(1, 31):
            call = client.call("/test.Test/Hold", message(b"x"))
            node.wait(lambda: len(node.begun("Hold")) == resets)  # noqa: B023 - called here
            client.send(frame(RST_STREAM, NO_FLAGS, call, (8).to_bytes(4)))
            assert client.answer(client.call(body=message(b"x")))[1] == message(b"x")
    assert node.edge.figures()["connections_cut"] == 0


def test_a_request_that_does_not_go_on_is_ended(start) -> None:
    node = start(request_idle_ms=300)
    with Http2(node.edge.port) as client:
        streams = [
            client.call("/test.Test/Echo", message(b"x" * 100)[:50], end=False),
            client.call("/test.Test/Echo", message(b"x"), end=False),
            client.call("/test.Test/Echo", end=False),
            client.call(ENQUEUE, b"\0\0", end=False),
            client.call("/test.Test/Chat", message(b"x" * 100)[:50], end=False),
        ]
        quiet = client.call("/test.Test/Chat", message(b"hello"), end=False)
        ends = {}
        while len(ends) < len(streams):
            came = client.read_until(1)
            found = dict(client.decoder.decode(came.payload))
            if "grpc-status" in found:
                ends[came.stream] = found["grpc-status"]
        assert ends == dict.fromkeys(streams, "4")
        assert quiet not in ends, "a stream may be quiet between two messages"
    node.wait(lambda: "refused" in node.gone())
    node.wait_at_rest()


def test_a_slow_request_is_ended_when_others_wait(start) -> None:
    node = start(calls_bytes=100 * KIB, slow_request_ms=500, room_ms=20_000)
    with Http2(node.edge.port) as slow, node.channel() as channel:
        slow_stream = slow.call("/test.Test/Echo", message(bytes(90 * KIB))[:1_000], end=False)
        node.wait(lambda: node.edge.figures()["calls_bytes"] > 90 * KIB)
        waiting = unary(channel, "Echo").future(b"y" * 50 * KIB)
        assert len(waiting.result(20)) == 50 * KIB
        assert slow.answer(slow_stream)[0]["grpc-status"] == "8"


def test_a_keepalive_ping_that_is_not_answered_ends_the_connection(start) -> None:
    node = start(keepalive_ms=200, keepalive_timeout_ms=200)
    with Http2(node.edge.port) as silent, node.channel() as channel:
        assert unary(channel, "Echo")(b"x") == b"x"
        assert silent.read_until(6).payload
        assert silent.ended_within(5) is None
        time.sleep(0.5)
        node.wait(lambda: node.edge.figures() | {"connections_cut": 1, "connections": 1} == node.edge.figures())


def test_an_old_connection_gets_goaway_and_its_calls_may_end(start) -> None:
    node = start(max_age_ms=500, age_grace_ms=20_000)
    with node.channel() as channel:
        requests: list[bytes] = []

        def slowly():
            for i in range(10):
                time.sleep(0.2)
                requests.append(b"%d" % i)
                yield requests[-1]

        assert list(stream(channel, "Chat")(slowly())) == requests
        assert unary(channel, "Echo")(b"x") == b"x"
        assert node.edge.figures()["connections_taken"] == 2
    assert node.gone() == []


def test_an_old_connection_is_cut_after_its_grace(start) -> None:
    node = start(max_age_ms=200, age_grace_ms=300)
    with Http2(node.edge.port) as client:
        client.call("/test.Test/Chat", message(b"x"), end=False)
        assert client.ended_within(5) == 0
    node.wait(lambda: node.gone() == ["connection"])


def test_requests_that_wait_leave_the_window_to_those_that_have_room(start) -> None:
    """Twelve on one connection, each larger than its part of the room. What the eleven that wait have sent filled
    the connection's window once, and the first could never end."""
    node = start(calls_bytes=2 << 20, calls_bytes_per_connection=500 * KIB, room_ms=60_000)
    with node.channel() as channel:
        calls = [unary(channel, "Echo").future(bytes(900 * KIB)) for _ in range(12)]
        assert [len(call.result(30)) for call in calls] == [900 * KIB] * 12
    node.wait_at_rest()


def test_a_unary_call_waits_for_room_only_so_long(start) -> None:
    node = start(
        calls_bytes=100 * KIB,
        room_ms=200,
        busy=status_pb2.Status(details=[any_pb2.Any(type_url="again")]).SerializeToString(),
    )
    with Http2(node.edge.port) as slow, node.channel() as channel:
        slow.call("/test.Test/Echo", message(bytes(90 * KIB))[:1_000], end=False)
        node.wait(lambda: node.edge.figures()["calls_bytes"] > 90 * KIB)
        with pytest.raises(grpc.RpcError, match="bytes are in flight in this node, the limit is 102400") as failed:
            unary(channel, "Echo")(bytes(80 * KIB))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = dict(failed.value.trailing_metadata())["grpc-status-details-bin"]
        status = status_pb2.Status.FromString(told)
        assert (status.code, status.message) == (8, failed.value.details())
        assert [one.type_url for one in status.details] == ["again"]
        assert unary(channel, "Echo")(b"small") == b"small", "it waits behind no larger one"
    node.wait_at_rest()


def test_so_many_calls_of_a_connection_wait_and_no_more(start) -> None:
    node = start(calls_bytes=100 * KIB, max_waiting=3, room_ms=60_000)
    with Http2(node.edge.port) as slow, node.channel() as channel:
        slow.call("/test.Test/Echo", message(bytes(90 * KIB))[:1_000], end=False)
        node.wait(lambda: node.edge.figures()["calls_bytes"] > 90 * KIB)
        calls = [unary(channel, "Echo").future(bytes(80 * KIB)) for _ in range(5)]
        node.wait(lambda: sum(call.done() for call in calls) == 2)
        time.sleep(0.3)
        assert node.edge.figures()["waiting"] == 3
        for call in calls:
            call.cancel()
    node.wait_at_rest()
