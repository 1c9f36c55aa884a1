"""Enqueue and EnqueueStream: what Python gets in columns, and what the client gets for its answer."""

from __future__ import annotations

import struct
import threading
import time
from array import array

import grpc
import pytest
from calls import enqueue, enqueue_stream, request
from delayapi.proto.delay.v1 import delay_pb2 as pb
from fakenode import DETAILS, ENQUEUE, UID, FakeNode, column
from http2 import Http2, message

from delayedge import Buffer


def test_one_request_comes_in_columns_and_is_answered(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    call = enqueue(channel).future(
        request(b"abc", b"de", topic="orders", queue=3, time=9, producer_id=2**63 + 1, number=4,
                key_hash=struct.pack("<2I", 1, 2), tag_hash=struct.pack("<2I", 3, 2**32 - 1))
    )  # fmt: skip
    node.wait(lambda: node.groups)
    group = node.groups[0]
    assert (group.topic, group.queue, group.forwarded) == ("orders", 3, False)
    assert (column("q", group.time), column("I", group.size)) == ([9, 9], [3, 2])
    assert (column("I", group.key), column("I", group.tag)) == ([1, 2], [3, 2**32 - 1])
    assert (bytes(group.records), bytes(group.relative)) == (b"abcde", b"")
    assert (column("I", group.count), column("Q", group.producer), column("Q", group.number)) == ([2], [2**63 + 1], [4])
    assert column("q", group.deadline_ms) == [-1]
    assert node.edge.figures()["rows_bytes"] > 0
    node.release()
    assert call.result(10) == pb.EnqueueResponse(uid=UID, first_seq=0, count=2)
    node.wait(lambda: node.edge.figures()["rows_bytes"] == 0)


def test_absent_hashes_are_zeros(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    call = enqueue(channel).future(request(b"a", b"b"))
    node.wait(lambda: node.groups)
    assert (column("I", node.groups[0].key), column("I", node.groups[0].tag)) == ([0, 0], [0, 0])
    node.release()
    call.result(10)


def test_only_relative_requests_of_a_group_get_their_dues(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    node.looking(False)
    calls = [enqueue(channel).future(request(b"a", number=1))]
    node.wait(lambda: node.edge.figures()["rows"] == 1)
    calls.append(enqueue(channel).future(request(b"b", b"c", time=8, relative=b"\x01\x00", number=2)))
    node.wait(lambda: node.edge.figures()["rows"] == 2)
    calls.append(enqueue(channel).future(request(b"d", number=13)))
    node.wait(lambda: node.edge.figures()["rows"] == 3)
    node.looking(True)
    node.wait(lambda: node.groups)
    assert [bytes(group.relative) for group in node.groups] == [b"\0\1\0\0"]
    node.release()
    first, second, third = [call.result(10) for call in calls]
    assert first == pb.EnqueueResponse(uid=UID, count=1)
    assert second == pb.EnqueueResponse(uid=UID, first_seq=1, count=2, due=struct.pack("<2q", 1008, 8))
    assert third == pb.EnqueueResponse(uid=UID, first_seq=3, count=1, duplicate=True)


def test_requests_of_many_queues_are_merged_by_queue(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    node.looking(False)
    calls = [enqueue(channel).future(request(b"%d" % i, queue=i % 3, number=i)) for i in range(30)]
    node.wait(lambda: node.edge.figures()["rows"] == 30)
    node.looking(True)
    node.wait(lambda: node.groups)
    assert sorted(group.queue for group in node.groups) == [0, 1, 2]
    for group in node.groups:
        numbers = column("Q", group.number)
        assert sorted(numbers) == list(range(group.queue, 30, 3))
        assert bytes(group.records) == b"".join(b"%d" % number for number in numbers)
    node.release()
    for call in calls:
        call.result(10)


def test_a_large_request_is_a_group_of_its_own_and_not_copied(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    node.looking(False)
    answers = enqueue_stream(channel)(iter([request(b"a"), request(b"b" * 2_000_000), request(b"c"), request(b"d")]))
    node.wait(lambda: node.edge.figures()["rows"] == 4)
    node.looking(True)
    node.wait(lambda: len(node.groups) == 3)
    assert [column("I", group.count) for group in node.groups] == [[1], [1], [1, 1]]
    assert isinstance(node.groups[1].records, Buffer)
    view = memoryview(node.groups[1].records)
    assert view.readonly
    assert view == b"b" * 2_000_000
    node.release()
    assert [answer.first_seq for answer in answers] == [0, 1, 2, 3]
    assert view[5] == ord("b")  # the view keeps it


@pytest.mark.parametrize(
    "bad",
    [
        request(),
        request(b"a", count=2),
        request(b"a", count=2**32 - 1),
        request(b"a", b""),
        request(b"a", relative=b"\2"),
        request(b"a", time=-1),
        request(b"a", key_hash=b"abc"),
        request(*[b"a" * (4 << 20)] * 3),
        request(*[b"a"] * 65_537),
    ],
    ids=lambda bad: f"{bad.count}-{len(bad.records)}",
)
def test_what_does_not_fit_comes_with_its_bytes(bad: pb.EnqueueRequest, node: FakeNode, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        enqueue(channel)(bad)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ("grpc-status-details-bin", DETAILS) in refused.value.trailing_metadata()
    (event,) = node.begun("Enqueue")
    assert event.body == bad.SerializeToString()
    assert not node.edge.figures()["requests_taken"]


def test_bytes_that_are_no_request_come_as_they_are(node: FakeNode, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError):
        channel.unary_unary("/delay.v1.DelayService/Enqueue")(b"\xff\xff")
    assert [event.body for event in node.begun("Enqueue")] == [b"\xff\xff"]


def test_a_refused_request_of_a_stream_is_an_answer_in_its_place(node: FakeNode, channel: grpc.Channel) -> None:
    requests = [request(b"a"), request(b"b", count=7), request(b"c")]
    answers = list(enqueue_stream(channel)(iter(requests)))
    assert [answer.error.message for answer in answers] == ["", "bad", ""]
    assert [answer.first_seq for answer in answers] == [0, 0, 1]


def test_a_stream_is_answered_in_order_when_its_queues_are_not(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    answers = enqueue_stream(channel)(iter([request(b"a" * (i + 1), queue=i) for i in range(10)]))
    node.wait(lambda: len(node.groups) == 10)
    node.groups.reverse()
    node.on_loop(lambda: node.answer(node.groups.pop(0)))
    time.sleep(0.05)
    assert node.edge.figures()["calls"] == 1
    node.next_seq = {("t", i): i for i in range(10)}
    node.release()
    assert [answer.first_seq for answer in answers][:9] == list(range(9))


def test_a_long_stream_keeps_its_order(node: FakeNode, channel: grpc.Channel) -> None:
    answers = enqueue_stream(channel)(request(b"%d" % i, number=i + 100) for i in range(3_000))
    assert [answer.first_seq for answer in answers] == list(range(3_000))


def test_requests_of_a_connection_come_in_order(node: FakeNode) -> None:
    node.hold = True
    with Http2(node.edge.port) as client:  # grpcio's own calls may overtake each other
        for i in range(50):
            last = client.call(
                ENQUEUE, message(request(b"x" * (i % 7 * 5_000 + 1), number=i + 100).SerializeToString())
            )
            time.sleep(0.001)
        node.wait(lambda: sum(len(group.token) // 8 for group in node.groups) == 50)
        assert [n for group in node.groups for n in column("Q", group.number)] == list(range(100, 150))
        node.release()
        assert pb.EnqueueResponse.FromString(client.answer(last)[1][5:]).first_seq == 49


def test_forwarded_requests_are_told_from_others(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    calls = [
        enqueue(channel).future(request(b"a")),
        enqueue(channel).future(request(b"b"), metadata=[("x-delay-forwarded", "1")]),
    ]
    node.wait(lambda: len(node.groups) == 2)
    assert {bytes(group.records): group.forwarded for group in node.groups} == {b"a": False, b"b": True}
    node.release()
    for call in calls:
        call.result(10)


def test_a_rows_deadline_ends_its_call_and_is_on_pythons_clock(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    call = enqueue(channel).future(request(b"a"), timeout=1.0)
    node.wait(lambda: node.groups)
    (deadline_ms,) = column("q", node.groups[0].deadline_ms)
    assert 0 < deadline_ms - time.monotonic() * 1000 <= 1_100
    assert call.exception(10).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    node.wait(lambda: node.edge.figures()["calls"] == 0)
    assert node.edge.figures()["rows_bytes"] > 0, "Python still has it"
    node.release()  # for nobody
    node.wait(lambda: node.edge.figures()["rows_bytes"] == 0)


def test_rows_of_a_client_that_died_count_until_python_answers(node: FakeNode) -> None:
    node.hold = True
    channel = node.channel()
    calls = enqueue(channel).future(request(b"a")), enqueue_stream(channel)(iter([request(b"b")] * 5))
    node.wait(lambda: node.edge.figures()["rows"] == 6)
    channel.close()
    node.wait(lambda: node.edge.figures()["connections"] == 0)
    assert node.edge.figures()["rows_bytes"] > 6_000
    node.release()
    node.wait_at_rest()
    del calls


def test_an_answer_given_twice_is_for_nobody(node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    first = enqueue(channel).future(request(b"a"))
    node.wait(lambda: node.groups)
    group = node.groups.pop()
    node.on_loop(lambda: node.answer(group))
    assert first.result(10).first_seq == 0
    second = enqueue(channel).future(request(b"b"))  # it has the place of the first
    node.wait(lambda: node.groups)
    node.on_loop(lambda: node.answer(group))
    node.release()
    assert second.result(10).first_seq == 2


def test_columns_of_an_answer_must_fit(node: FakeNode) -> None:
    token, count, seq = array("Q", [1]), array("I", [1]), array("q", [0])
    for wrong in (
        (token, array("I"), 1, seq),
        (token, count, 1, array("q")),
        (token, count, 1, seq, array("q", [0, 0])),
    ):
        with pytest.raises(ValueError):
            node.edge.answer_rows(*wrong)
    with pytest.raises(BufferError):
        node.edge.answer_rows(count, count, 1, seq)
    node.edge.answer_rows(array("Q"), array("I"), 1, array("q"), b"", b"")


def test_take_leaves_what_is_over_the_limit(node: FakeNode, channel: grpc.Channel) -> None:
    node.take_bytes = 1
    calls = [enqueue(channel).future(request(b"x" * 100, queue=i)) for i in range(20)]
    assert all(call.result(10).count == 1 for call in calls)


def test_many_clients_at_once_get_their_own_answers(node: FakeNode) -> None:
    wrong: list[object] = []

    def client(number: int) -> None:
        with node.channel() as channel:
            call = enqueue(channel)
            for i in range(50):
                size = (number * 50 + i) % 7 + 1
                if call(request(*[b"m"] * size, queue=number % 4, number=100)).count != size:
                    wrong.append((number, i))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert node.edge.figures()["requests_taken"] == 400
    node.wait_at_rest()
