"""Messages between nodes come out as they went in, and nothing else is taken for a message."""

from __future__ import annotations

import contextlib
import struct
from typing import get_args

import pytest
from delaynode.replication.protocol import (
    FORMS,
    HEAD_BYTES,
    MAX_HEARTBEAT_SHARDS,
    MAX_MESSAGE_BYTES,
    Ack,
    BadMessage,
    Bootstrap,
    ChunkRequest,
    Commit,
    Follow,
    FollowerState,
    FollowRefused,
    Frames,
    Heartbeat,
    HeartbeatReply,
    LeaseRelease,
    Message,
    SnapshotChunk,
    Start,
    decode,
    decode_heartbeat,
    encode,
    encode_heartbeat,
)
from hypothesis import given
from hypothesis import strategies as st

U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
BLOB = st.binary(max_size=200)
HEAD = {"uid": U64, "epoch": U32}
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Follow, **HEAD, discardable=st.booleans()),
    st.builds(Start, **HEAD, cut=I64, commit=I64),
    st.builds(Frames, **HEAD, offset=I64, commit=I64, data=st.tuples(BLOB)),
    st.builds(Commit, **HEAD, commit=I64),
    st.builds(Bootstrap, **HEAD, manifest=BLOB),
    st.builds(SnapshotChunk, **HEAD, file=I64, offset=I64, data=BLOB),
    st.builds(LeaseRelease, **HEAD, heartbeat=I64),
    st.builds(
        FollowerState, **HEAD, replica_id=st.text(max_size=60), log_end=I64, committed=I64,
        epochs=st.lists(st.tuples(U32, I64), max_size=5).map(tuple),
    ),
    st.builds(Ack, **HEAD, durable=I64, applied=I64),
    st.builds(FollowRefused, **HEAD, known_epoch=U32, damaged=st.booleans(), reason=st.text(max_size=60)),
    st.builds(ChunkRequest, **HEAD, file=I64, offset=I64, length=I64),
)  # fmt: skip
HEARTBEATS: st.SearchStrategy[Heartbeat | HeartbeatReply] = st.one_of(
    st.builds(
        Heartbeat, node=st.text(max_size=20), incarnation=U64, heartbeat_id=U64, wall_ms=I64,
        shards=st.lists(st.tuples(U64, U32), max_size=5).map(tuple),
    ),
    st.builds(
        HeartbeatReply, node=st.text(max_size=20), incarnation=U64, heartbeat_id=U64, wall_ms=I64, lease_ms=U32,
        shards=st.lists(st.tuples(U64, U32, st.booleans()), max_size=5).map(tuple),
    ),
)  # fmt: skip


def on_the_wire(message: Message) -> bytes:
    return b"".join(encode(message))


def test_each_message_has_one_kind() -> None:
    assert [form.kind for form in FORMS] == list(range(1, 12))
    assert {form.message for form in FORMS} == set(get_args(Message))
    assert len(FORMS) == len(get_args(Message))


def plain(message: Message) -> object:
    """With bytes for views, which compare by what they show but say nothing in a failure."""
    match message:
        case Frames():
            return ("frames", message.uid, message.epoch, message.offset, message.commit, b"".join(message.data))
        case SnapshotChunk():
            return ("piece", message.uid, message.epoch, message.file, message.offset, bytes(message.data))
    return message


@given(MESSAGES)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    data = on_the_wire(message)
    assert struct.unpack_from("<I", data) == (len(data) - 4,)
    assert plain(decode(memoryview(data)[4:])) == plain(message)


def test_frames_in_several_buffers_arrive_as_one_and_are_not_copied() -> None:
    data = bytearray(on_the_wire(Frames(1, 2, 100, 50, (b"abc", memoryview(b"defg")))))
    got = decode(memoryview(data)[4:])
    assert isinstance(got, Frames)
    assert [bytes(part) for part in got.data] == [b"abcdefg"]
    data[-1] = ord("z")
    assert bytes(got.data[0]) == b"abcdefz"  # a view of what was received


@given(MESSAGES, st.data())
def test_a_cut_or_changed_message_is_a_message_or_a_bad_one(message: Message, data: st.DataObject) -> None:
    whole = bytearray(on_the_wire(message)[4:])
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadMessage):
        decode(memoryview(whole))


@given(st.binary(max_size=100))
def test_garbage_is_a_bad_message_or_a_message_but_nothing_else(data: bytes) -> None:
    with contextlib.suppress(BadMessage):
        decode(memoryview(data))
    with contextlib.suppress(BadMessage):
        decode_heartbeat(data)


@pytest.mark.parametrize("count", [0xFFFFFFFF, 1])
def test_a_state_with_another_number_of_epochs_than_it_says_is_bad(count: int) -> None:
    data = struct.pack("<B3xQI", 8, 1, 1) + struct.pack("<qqIH", 0, 0, count, 12) + bytes(12)
    with pytest.raises(BadMessage, match="epochs"):
        decode(memoryview(data))


def test_a_message_that_no_receiver_takes_is_not_even_written() -> None:
    fits = bytes(MAX_MESSAGE_BYTES - (HEAD_BYTES - 4) - 16)
    assert encode(Frames(1, 1, 0, 0, (fits,)))
    with pytest.raises(ValueError, match="at most"):
        encode(Frames(1, 1, 0, 0, (fits, b"1")))


@given(HEARTBEATS)
def test_a_heartbeat_comes_out_as_it_went_in(heartbeat: Heartbeat | HeartbeatReply) -> None:
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat


@given(HEARTBEATS, st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_a_cut_or_longer_datagram_is_no_heartbeat(heartbeat: Heartbeat | HeartbeatReply, at: int, more: bytes) -> None:
    data = encode_heartbeat(heartbeat)
    for bad in (data[: at % len(data)], data + more):
        with pytest.raises(BadMessage):
            decode_heartbeat(bad)


def test_the_largest_heartbeat_and_its_reply_fit_a_datagram() -> None:
    shards = tuple((uid, 1, True) for uid in range(MAX_HEARTBEAT_SHARDS))
    assert len(encode_heartbeat(HeartbeatReply("n" * 63, 1, 1, 0, 3_000, shards))) < 65_507
