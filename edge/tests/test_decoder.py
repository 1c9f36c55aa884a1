"""The decoder takes and refuses the same bytes as Python's protobuf does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import grpc
import pytest
from calls import request
from delayapi.codec import decode_enqueue_request
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.wirefields import WireError
from fakenode import ENQUEUE_STREAM, FakeNode, column
from google.protobuf.message import DecodeError

CASES = int(os.environ.get("DECODER_CASES", "4000"))


def test_a_sample_of_mutations_is_decoded_as_protobuf_does(node: FakeNode, channel: grpc.Channel) -> None:
    chance = random.Random(11)
    cases = list(mutations(chance, CASES))
    node.hold = True
    seen: list[pb.EnqueueRequest | bytes] = []
    node.answer = lambda group: seen.extend(rebuilt(node, group))  # type: ignore[method-assign]
    node._call_EnqueueStream = lambda event: refused(node, event, seen)  # type: ignore[attr-defined]
    node.hold = False
    columns = plain = 0
    for case in cases:
        call = channel.stream_stream(ENQUEUE_STREAM)(iter([case]))
        list(call)
        taken = seen.pop()
        assert not seen
        wanted = expected(case)
        if taken == case and wanted is not None:
            with pytest.raises(
                WireError
            ):  # protobuf skips a field 0 in a group that it does not know; the node does not
                decode_enqueue_request(case)
            continue
        assert taken == (case if wanted is None else wanted), case.hex()
        columns += wanted is not None
        plain += wanted is None
    assert columns > CASES / 50
    assert plain > CASES / 50


def expected(case: bytes) -> pb.EnqueueRequest | None:
    """What comes in columns; None for what comes as bytes. Written anew, as plainly as can be."""
    try:
        one = pb.EnqueueRequest.FromString(case)
    except DecodeError:
        return None
    n, size, time = one.count, column4(one.size), column8(one.time)
    optional = ((one.relative, 1), (one.key_hash, 4), (one.tag_hash, 4))
    fits = (
        0 < n <= 65_536 and len(one.time) == 8 * n and len(one.size) == 4 * n
        and all(not data or len(data) == width * n for data, width in optional)
        and max(one.relative, default=0) <= 1 and min(time) >= 0
        and min(size) > 0 and max(size) <= 4 << 20 and sum(size) == len(one.records)
    )  # fmt: skip
    if not fits:
        return None
    one.DiscardUnknownFields()
    one.relative = one.relative if any(one.relative) or one.relative else b""
    one.key_hash, one.tag_hash = one.key_hash or bytes(4 * n), one.tag_hash or bytes(4 * n)
    return one


def column4(data: bytes) -> list[int]:
    return column("I", data[: len(data) // 4 * 4]) or [0]


def column8(data: bytes) -> list[int]:
    return column("q", data[: len(data) // 8 * 8]) or [0]


def rebuilt(node: FakeNode, group) -> Iterator[pb.EnqueueRequest]:
    yield pb.EnqueueRequest(
        topic=group.topic, queue=group.queue, count=column("I", group.count)[0], time=bytes(group.time),
        relative=bytes(group.relative), size=bytes(group.size), key_hash=bytes(group.key), tag_hash=bytes(group.tag),
        records=bytes(group.records), producer_id=column("Q", group.producer)[0], number=column("Q", group.number)[0],
    )  # fmt: skip
    node.edge.refuse_row(column("Q", group.token)[0], 1, "", b"", b"")  # once it is among what was seen


def refused(node: FakeNode, event, seen: list) -> None:
    seen.append(event.body)
    node.edge.refuse_row(event.token, 1, "", b"", b"")


def mutations(chance: random.Random, count: int) -> Iterator[bytes]:
    seeds = [
        request(b"abc", topic="orders", queue=3, producer_id=7, number=9).SerializeToString(),
        request(b"a", b"bc", relative=b"\0\1", key_hash=bytes(8), tag_hash=b"\1" * 8).SerializeToString(),
        request(b"a").SerializeToString() + bytes([13 << 3 | 3, 1 << 3, 5, 13 << 3 | 4]),
        request(b"a", topic="\u00e9").SerializeToString() * 2,
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
