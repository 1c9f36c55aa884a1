"""Requests that are compressed: inflated, counted by what they expand to, or refused."""

from __future__ import annotations

import gzip
import random
import time
import zlib
from collections.abc import Callable, Iterator

import grpc
import pytest
from calls import enqueue, enqueue_stream, request, stream, unary
from fakenode import ENQUEUE, ENQUEUE_STREAM, FakeNode
from http2 import DATA, END_STREAM, HEADERS, NO_FLAGS, RST_STREAM, Http2, frame, message

KIB, MIB = 1 << 10, 1 << 20
ACCEPTED = "identity,gzip,deflate"
ENCODINGS = {"gzip": gzip.compress, "deflate": zlib.compress}
GRPCIO = pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
BY_HAND = pytest.mark.parametrize("encoding", ENCODINGS)
PATHS = pytest.mark.parametrize("path", ["/test.Test/Echo", "/test.Test/Chat", ENQUEUE, ENQUEUE_STREAM])


@pytest.fixture(autouse=True)
def nothing_is_left(node: FakeNode) -> Iterator[None]:
    yield
    with node.channel() as channel:
        assert unary(channel, "Echo")(b"on", timeout=20) == b"on"
    node.wait_at_rest()
    assert node.edge.figures()["panics"] == 0


def compressed(encoding: str, body: bytes) -> bytes:
    return message(ENCODINGS[encoding](body), compressed=1)


@GRPCIO
@pytest.mark.parametrize("size", [0, 1, 1_000, 65_536, 12 * MIB])
def test_a_unary_call_may_be_compressed(size: int, compression, node: FakeNode, channel: grpc.Channel) -> None:
    body = (b"a line of a log, again and again\n" * (size // 30 + 1))[:size]
    assert unary(channel, "Echo")(body, compression=compression) == body
    noise = random.Random(size).randbytes(size)
    assert unary(channel, "Echo")(noise, compression=compression) == noise


@GRPCIO
def test_rows_may_be_compressed(compression, node: FakeNode, channel: grpc.Channel) -> None:
    node.hold = True
    records = [b"x" * 5_000, b"y" * 200_000]
    calls = [enqueue(channel).future(request(record, number=1), compression=compression) for record in records]
    node.wait(lambda: sum(len(group.records) for group in node.groups) == sum(map(len, records)))
    assert sorted(b"".join(bytes(group.records) for group in node.groups)) == sorted(b"".join(records))
    assert node.edge.figures()["rows_bytes"] == sum(request(record, number=1).ByteSize() + KIB for record in records), (
        "each counts what it expands to"
    )
    node.release()
    assert [call.result(10).count for call in calls] == [1, 1]


@GRPCIO
def test_a_row_stream_may_be_compressed(compression, node: FakeNode, channel: grpc.Channel) -> None:
    requests = (request(b"%d" % i * (1 + i % 900), number=i + 100) for i in range(1_000))
    answers = enqueue_stream(channel)(requests, compression=compression)
    assert [answer.first_seq for answer in answers] == list(range(1_000))


@GRPCIO
def test_a_stream_may_be_compressed(compression, node: FakeNode, channel: grpc.Channel) -> None:
    bodies = [b"%d" % i * (i + 1) for i in range(100)]
    assert list(stream(channel, "Chat")(iter(bodies), compression=compression)) == bodies


@BY_HAND
def test_answers_say_what_is_accepted_and_are_not_compressed(encoding: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        call = client.call(body=compressed(encoding, b"x" * 1_000), grpc_encoding=encoding)
        fields, data = client.answer(call)
        assert (fields["grpc-status"], data) == ("0", message(b"x" * 1_000))
        assert fields["grpc-accept-encoding"] == ACCEPTED
        assert "grpc-encoding" not in fields


@BY_HAND
def test_messages_of_a_call_need_not_be_compressed(encoding: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        body = message(b"plain") + compressed(encoding, b"small") + message(b"plain")
        fields, data = client.answer(client.call("/test.Test/Chat", body, grpc_encoding=encoding))
        assert (fields["grpc-status"], data) == ("0", message(b"plain") + message(b"small") + message(b"plain"))


@BY_HAND
@pytest.mark.parametrize("piece", [1, 1_000])
def test_a_compressed_message_may_come_in_pieces(piece: int, encoding: str, node: FakeNode) -> None:
    body = random.Random(1).randbytes(50 * piece) + bytes(100_000)
    whole = compressed(encoding, body) + compressed(encoding, b"next")
    with Http2(node.edge.port) as client:
        call = client.call("/test.Test/Chat", end=False, grpc_encoding=encoding)
        for at in range(0, len(whole), piece):
            client.send(frame(DATA, NO_FLAGS, call, whole[at : at + piece]))
        client.send(frame(DATA, END_STREAM, call))
        for stream_id in (0, call):
            client.send(frame(8, NO_FLAGS, stream_id, MIB.to_bytes(4)))
        assert client.answer(call)[1] == message(body) + message(b"next")


@BY_HAND
def test_a_long_stream_of_compressed_messages_has_its_windows_opened(encoding: str, node: FakeNode) -> None:
    """Three times what the windows hold: a window that is not opened stops it."""
    noise = random.Random(2)
    bodies = [noise.randbytes(100_000) for _ in range(30)]
    options = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
    with node.channel() as channel:
        answers = stream(channel, "Chat")(iter(body + bytes(50_000) for body in bodies), compression=options[encoding])
        assert [answer[:100_000] for answer in answers] == bodies


@PATHS
@pytest.mark.parametrize("encoding", ["br", "snappy", "GZIP", ""])
def test_an_unknown_encoding_is_unimplemented_and_says_what_is(encoding: str, path: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        plain = client.answer(client.call("/test.Test/Echo", message(b"plain"), grpc_encoding="br"))
        assert plain[1] == message(b"plain"), "an encoding that is not used does no harm"
        fields, _ = client.answer(client.call(path, message(b"x", compressed=1), grpc_encoding=encoding or "x"))
        assert (fields["grpc-status"], fields["grpc-accept-encoding"]) == ("12", ACCEPTED)
        assert ACCEPTED in fields["grpc-message"]


def test_an_unknown_encoding_after_an_answer_says_so_in_the_trailers(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        call = client.call("/test.Test/Chat", message(b"x"), end=False, grpc_encoding="br")
        client.decoder.decode(client.read_until(HEADERS, stream=call).payload)
        client.read_until(DATA, stream=call)
        client.send(frame(DATA, END_STREAM, call, message(b"x", compressed=1)))
        fields, _ = client.answer(call)
        assert (fields["grpc-status"], fields["grpc-accept-encoding"]) == ("12", ACCEPTED)


@PATHS
@pytest.mark.parametrize(("flag", "encoding"), [(1, ""), (1, "identity"), (2, "gzip"), (255, "")])
def test_a_flag_that_does_not_fit_is_internal(flag: int, encoding: str, path: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        call = client.call(path, message(gzip.compress(b"x"), compressed=flag), grpc_encoding=encoding)
        assert client.answer(call)[0]["grpc-status"] == "13"
        assert client.answer(client.call(body=message(b"on")))[1] == message(b"on")


@PATHS
@BY_HAND
def test_a_broken_message_is_internal_and_leaves_the_connection_whole(encoding: str, path: str, node: FakeNode) -> None:
    whole = ENCODINGS[encoding](bytes(300) + b"hello")
    broken = [whole[:-1], whole[:5], b"", whole + b"x", whole[:-4] + b"sums", b"no" + whole[2:], b"\xff" * 100]
    with Http2(node.edge.port) as client:
        for body in broken:
            call = client.call(path, message(body, compressed=1), grpc_encoding=encoding)
            fields, _ = client.answer(call)
            assert fields["grpc-status"] == "13", body
            assert fields["grpc-message"].startswith("the message is compressed, and broken: ")
        cut_off = client.call(path, message(whole, compressed=1)[:-1], grpc_encoding=encoding)
        assert client.answer(cut_off)[0]["grpc-message"] == "the call ended within a message"
        assert client.answer(client.call(body=message(b"on")))[1] == message(b"on")


@BY_HAND
def test_a_bomb_counts_what_it_expands_to(encoding: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        bomb = compressed(encoding, bytes(10 * MIB))
        assert len(bomb) < 11 * KIB
        client.call("/test.Test/Hold", bomb, grpc_encoding=encoding)
        node.wait(lambda: node.begun("Hold"))
        assert node.edge.figures()["calls_bytes"] == 10 * MIB + KIB
        client.call("/test.Test/Hold", bomb, grpc_encoding=encoding)
        node.wait(lambda: node.edge.figures()["waiting"] == 1)
        assert node.edge.figures()["calls_bytes"] == 10 * MIB + KIB, "one at a time fits into a connection's part"
        node.on_loop(lambda: node.edge.end(node.begun("Hold")[0].token))
        node.wait(lambda: len(node.begun("Hold")) == 2)


@PATHS
@BY_HAND
def test_a_bomb_over_the_limit_is_resource_exhausted(encoding: str, path: str, start: Callable[..., FakeNode]) -> None:
    node = start(max_message_bytes=MIB)
    with Http2(node.edge.port) as client:
        for size in (MIB + 1, 10 * MIB):
            call = client.call(path, compressed(encoding, bytes(size)), grpc_encoding=encoding)
            fields, _ = client.answer(call)
            assert (fields["grpc-status"], str(MIB) in fields["grpc-message"]) == ("8", True)
        large = client.call(path, message(bytes(MIB + 1), compressed=1)[:100], grpc_encoding=encoding, end=False)
        assert client.answer(large)[0]["grpc-status"] == "8"
        call = client.call("/test.Test/Hold", compressed(encoding, bytes(MIB)), grpc_encoding=encoding)
        node.wait(lambda: node.begun("Hold"))
        assert node.begun("Hold")[0].body == bytes(MIB)
    node.wait_at_rest()


@BY_HAND
def test_compressed_requests_stay_within_the_budget_and_all_are_served(
    encoding: str, start: Callable[..., FakeNode]
) -> None:
    node = start(max_message_bytes=100 * KIB, rows_bytes=400 * KIB, rows_bytes_per_connection=250 * KIB)
    compression = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}[encoding]
    node.hold = True
    channels = [node.channel() for _ in range(4)]
    calls = [
        enqueue(channel).future(request(b"x" * 80 * KIB), compression=compression)
        for channel in channels
        for _ in range(5)
    ]
    highest, until = 0, time.monotonic() + 20
    while not all(call.done() for call in calls) and time.monotonic() < until:
        highest = max(highest, node.edge.figures()["rows_bytes"])
        if node.groups:
            node.on_loop(lambda: node.answer(node.groups.pop(0)))
    assert [call.result(10).count for call in calls] == [1] * 20
    assert 80 * KIB < highest <= 400 * KIB
    for channel in channels:
        channel.close()
    node.wait_at_rest()


def test_a_compressed_request_waits_for_the_most_that_it_may_be(start: Callable[..., FakeNode]) -> None:
    """It never waits once it is begun, so requests that wait for each other's room are not possible."""
    node = start(max_message_bytes=MIB, rows_bytes=MIB)
    node.hold = True
    with node.channel() as one, node.channel() as other:
        plain = enqueue(one).future(request(b"x" * 100 * KIB))
        node.wait(lambda: node.edge.figures()["rows"] == 1)
        call = enqueue(other).future(request(b"y" * 860 * KIB), compression=grpc.Compression.Gzip)
        node.wait(lambda: node.edge.figures()["waiting"] == 1)
        node.release()
        assert [call.result(10).count for call in (plain, call)] == [1, 1]


@BY_HAND
@pytest.mark.parametrize("how", ["reset", "lost", "deadline"])
def test_a_client_may_be_gone_within_a_compressed_message(how: str, encoding: str, node: FakeNode) -> None:
    bomb = compressed(encoding, random.Random(3).randbytes(5_000) + bytes(MIB))
    timeout = {"grpc_timeout": "300m"} if how == "deadline" else {}
    with Http2(node.edge.port) as client:
        for path in ("/test.Test/Echo", "/test.Test/Chat"):
            for end in (5, 8, 3_000, len(bomb) - 1):
                call = client.call(path, bomb[:end], end=False, grpc_encoding=encoding, **timeout)
                node.wait(lambda: node.edge.figures()["calls_bytes"] > MIB)
                if how == "lost":
                    continue
                if how == "reset":
                    client.send(frame(RST_STREAM, NO_FLAGS, call, (8).to_bytes(4)))
                node.wait(lambda: node.edge.figures()["calls_bytes"] == 0)
    node.wait_at_rest()


def test_a_slow_compressed_request_is_ended_when_others_wait(start: Callable[..., FakeNode]) -> None:
    node = start(calls_bytes=100 * KIB, slow_request_ms=500)
    with Http2(node.edge.port) as slow, node.channel() as channel:
        body = compressed("gzip", random.Random(4).randbytes(10_000))
        call = slow.call("/test.Test/Echo", body[:1_000], end=False, grpc_encoding="gzip")
        node.wait(lambda: node.edge.figures()["calls_bytes"] > MIB)
        assert len(unary(channel, "Echo")(b"y" * 50 * KIB, timeout=20)) == 50 * KIB
        assert slow.answer(call)[0]["grpc-status"] == "8"
