"""The decoder takes and refuses the same bytes as Python's protobuf does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import accumulate, islice, pairwise

import pytest
from calls import request
from delayapi.codec import decode_enqueue_request
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.wirefields import WireError
from fakenode import ENQUEUE_STREAM, FakeNode, column
from google.protobuf.message import DecodeError
from http2 import DATA, NO_FLAGS, WINDOW_UPDATE, Http2, frame, message

CASES = int(os.environ.get("DECODER_CASES", "4000"))
BATCH = 200  # cases that are under way at once: they fit into a stream's window, and come in groups
OPEN_BYTES = 20_000  # a window for each answer would be a flood
IN_COLUMNS, AS_BYTES = b"C", b"B"

pytestmark = pytest.mark.timeout(120 + CASES // 100)


def test_a_sample_of_mutations_is_decoded_as_protobuf_does(node: FakeNode) -> None:
    """Each case is a request of one EnqueueStream. Its answer, an error, is what the node was given of it."""
    node.answer = lambda group: refuse_group(node, group)  # type: ignore[method-assign]
    node._call_EnqueueStream = lambda event: refuse(node, event.token, AS_BYTES + event.body)  # type: ignore[attr-defined]
    columns = plain = 0
    with Http2(node.edge.port) as client:
        call = client.call(ENQUEUE_STREAM, end=False)
        generated = mutations(random.Random(11), CASES)
        while cases := list(islice(generated, BATCH)):
            for case, taken in zip(cases, answers(client, call, cases), strict=True):
                wanted = expected(case)
                if taken == AS_BYTES + case and wanted is not None:
                    # protobuf skips a field 0 in a group that it does not know; the node does not
                    with pytest.raises(WireError):
                        decode_enqueue_request(case)
                    continue
                if wanted is None:
                    assert taken == AS_BYTES + case, case.hex()
                    plain += 1
                else:
                    assert taken[:1] == IN_COLUMNS, case.hex()
                    assert pb.EnqueueRequest.FromString(taken[1:]) == wanted, case.hex()
                    columns += 1
            node.events.clear()
            node._methods.clear()
    assert columns > CASES / 50
    assert plain > CASES / 50
    node.wait_at_rest()
    assert node.edge.figures()["panics"] == 0


def answers(client: Http2, call: int, cases: list[bytes]) -> Iterator[bytes]:
    """The errors that the requests are answered with. Frames by hand: grpcio takes five times as long."""
    body = b"".join(map(message, cases))
    for at in range(0, len(body), 16_384):
        client.send(frame(DATA, NO_FLAGS, call, body[at : at + 16_384]))
    came, left, unopened = b"", len(cases), 0
    while left:
        while len(came) < 5 or len(came) < 5 + int.from_bytes(came[1:5]):
            data = client.read_until(DATA, stream=call).payload
            came += data
            unopened += len(data)
            if unopened > OPEN_BYTES:
                open_windows(client, call, unopened)
                unopened = 0
        end = 5 + int.from_bytes(came[1:5])
        yield error_of(came[5:end])
        came, left = came[end:], left - 1
    open_windows(client, call, unopened)


def open_windows(client: Http2, call: int, size: int) -> None:
    for stream in (0, call):
        client.send(frame(WINDOW_UPDATE, NO_FLAGS, stream, size.to_bytes(4)))


def error_of(answer: bytes) -> bytes:
    """Field 6 of an EnqueueResponse, and all of it: the test's own bytes, no delay.v1.Error."""
    assert answer[:1] == b"\x32"
    at = 1
    while answer[at] >= 0x80:
        at += 1
    return answer[at + 1 :]


def expected(case: bytes) -> pb.EnqueueRequest | None:
    """What comes in columns; None for what comes as bytes. Written anew, as plainly as can be."""
    try:
        one = pb.EnqueueRequest.FromString(case)
    except DecodeError:
        return None
    n, size, time = one.count, column4(one.size), column8(one.time)
    optional = ((one.relative, 1), (one.key_hash, 4), (one.tag_hash, 4))
    fits = (
        not one.message_id and 0 < n <= 65_536 and len(one.time) == 8 * n and len(one.size) == 4 * n
        and all(not data or len(data) == width * n for data, width in optional)
        and max(one.relative, default=0) <= 1 and min(time) >= 0
        and min(size) > 0 and max(size) <= 4 << 20 and sum(size) == len(one.records)
    )  # fmt: skip
    if not fits:
        return None
    one.DiscardUnknownFields()
    one.relative = one.relative if any(one.relative) else b""  # in a group it may be zeros beside those of others
    one.key_hash, one.tag_hash = one.key_hash or bytes(4 * n), one.tag_hash or bytes(4 * n)
    return one


def column4(data: bytes) -> list[int]:
    return column("I", data[: len(data) // 4 * 4]) or [0]


def column8(data: bytes) -> list[int]:
    return column("q", data[: len(data) // 8 * 8]) or [0]


def refuse_group(node: FakeNode, group) -> None:
    """Each of its requests, built anew from the columns."""
    count, size = column("I", group.count), column("I", group.size)
    record = [0, *accumulate(size)]
    producer, number = column("Q", group.producer), column("Q", group.number)
    ends = pairwise([0, *accumulate(count)])
    for at, (token, (begin, end)) in enumerate(zip(column("Q", group.token), ends, strict=True)):
        relative = group.relative[begin:end]
        one = pb.EnqueueRequest(
            topic=group.topic, queue=group.queue, count=count[at], time=group.time[8 * begin : 8 * end],
            relative=relative if any(relative) else b"", size=group.size[4 * begin : 4 * end],
            key_hash=group.key[4 * begin : 4 * end], tag_hash=group.tag[4 * begin : 4 * end],
            records=group.records[record[begin] : record[end]], producer_id=producer[at], number=number[at],
        )  # fmt: skip
        refuse(node, token, IN_COLUMNS + one.SerializeToString())


def refuse(node: FakeNode, token: int, error: bytes) -> None:
    node.edge.refuse_row(token, 1, "", b"", error)


def mutations(chance: random.Random, count: int) -> Iterator[bytes]:
    seeds = [
        request(b"abc", topic="orders", queue=3, producer_id=7, number=9).SerializeToString(),
        request(b"a", b"bc", relative=b"\0\1", key_hash=bytes(8), tag_hash=b"\1" * 8).SerializeToString(),
        request(b"a").SerializeToString() + bytes([13 << 3 | 3, 1 << 3, 5, 13 << 3 | 4]),
        request(b"a", topic="\u00e9").SerializeToString() * 2,
        request(b"a", topic="once", message_id=bytes(16)).SerializeToString(),
    ]
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            at = chance.randrange(len(data)) if data else 0
            match chance.randrange(6):
                case 0:
                    del data[at:]
                case 1:
                    data.insert(at, chance.randrange(256))
                case 2 if data:
                    data[at] ^= 1 << chance.randrange(8)
                case 3 if data:
                    data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
                case 4:
                    data += data[at:]
                case _:
                    data += bytes([chance.randrange(16) << 3 | chance.randrange(8), chance.randrange(4)])
        yield bytes(data)
