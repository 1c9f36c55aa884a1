"""The hand-made codecs accept, refuse and mean exactly what the generated classes do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delayapi import codec
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.wirefields import WireError, encode_varint
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

CODECS: list[tuple[Any, Callable[[bytes], Any]]] = [
    (delay_pb2.EnqueueRequest, codec.decode_enqueue_request),
    (delay_pb2.EnqueueResponse, codec.decode_enqueue_response),
    (delay_pb2.MessageBatch, codec.decode_message_batch),
]

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
blob = st.binary(max_size=300)


def assert_same(view: Any, message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        expected = getattr(message, field.name)
        got = getattr(view, field.name)
        if field.name == "error":
            assert (got is not None) == message.HasField("error")
            assert got is None or got == expected
        elif isinstance(got, memoryview):
            assert bytes(got) == expected, field.name
        else:
            assert got == expected, field.name


def request(**fields: Any) -> Any:
    return delay_pb2.EnqueueRequest(**fields)


requests = st.builds(
    request,
    topic=st.text(max_size=20),
    queue=u32,
    count=u32,
    time=blob,
    relative=blob,
    size=blob,
    key_hash=blob,
    tag_hash=blob,
    records=blob,
    producer_id=u64,
    number=u64,
)
errors = st.builds(
    delay_pb2.Error,
    code=st.integers(-(2**31), 2**31 - 1),
    reason=st.text(max_size=10),
    message=st.text(max_size=10),
    metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
responses = st.builds(
    delay_pb2.EnqueueResponse,
    uid=u64,
    first_seq=i64,
    count=u32,
    due=blob,
    duplicate=st.booleans(),
    error=st.none() | errors,
)
batches = st.builds(
    delay_pb2.MessageBatch,
    uid=u64,
    count=u32,
    offset=blob,
    due=blob,
    seq=blob,
    size=blob,
    attempt=blob,
    records=blob,
    end_offset=i64,
    next_offset=i64,
    reason_size=blob,
    reasons=blob,
)
messages = requests | responses | batches


@given(requests)
def test_encoded_request_is_read_by_the_generated_class(message: Any) -> None:
    encoded = codec.encode_enqueue_request(
        message.topic,
        message.queue,
        message.count,
        message.time,
        message.size,
        message.records,
        relative=message.relative,
        key_hash=message.key_hash,
        tag_hash=message.tag_hash,
        producer_id=message.producer_id,
        number=message.number,
    )
    assert delay_pb2.EnqueueRequest.FromString(encoded) == message
    assert encoded == message.SerializeToString()
    assert_same(codec.decode_enqueue_request(encoded), message)


@given(responses)
def test_encoded_response_is_read_by_the_generated_class(message: Any) -> None:
    encoded = codec.encode_enqueue_response(
        message.uid,
        message.first_seq,
        message.count,
        message.due,
        duplicate=message.duplicate,
        error=message.error if message.HasField("error") else None,
    )
    assert delay_pb2.EnqueueResponse.FromString(encoded) == message
    assert_same(codec.decode_enqueue_response(encoded), message)


@given(batches, st.lists(blob, max_size=4))
def test_encoded_batch_is_read_by_the_generated_class(message: Any, records: list[bytes]) -> None:
    message.records = b"".join(records)
    encoded = codec.encode_message_batch(
        message.uid,
        message.count,
        message.offset,
        message.due,
        message.seq,
        message.size,
        message.attempt,
        records,
        message.end_offset,
        message.next_offset,
        reason_size=message.reason_size,
        reasons=message.reasons,
    )
    assert encoded == message.SerializeToString()
    assert_same(codec.decode_message_batch(encoded), message)


def test_arrays_are_sent_as_their_bytes() -> None:
    due = np.arange(5, dtype=np.int64)
    bodies = np.arange(20, dtype=np.uint8).reshape(5, 4)
    size = np.full(5, 4, np.uint32)
    view = codec.decode_enqueue_request(codec.encode_enqueue_request("t", 1, 5, due, size, [bodies[:2], bodies[2:]]))
    assert np.frombuffer(view.time, np.int64).tolist() == due.tolist()
    assert bytes(view.records) == bodies.tobytes()
    assert view.records.nbytes == 20


def test_columns_are_views_over_the_given_bytes() -> None:
    encoded = codec.encode_enqueue_request("t", 0, 1, b"12345678", b"\x05\0\0\0", b"hello")
    view = codec.decode_enqueue_request(encoded)
    assert view.records.obj is encoded


unknown = st.one_of(
    st.builds(lambda n, v: encode_varint(n << 3) + encode_varint(v), st.integers(12, 2**29 - 1), u64),
    st.builds(lambda n, v: encode_varint(n << 3 | 2) + encode_varint(len(v)) + v, st.integers(12, 2**29 - 1), blob),
    st.builds(lambda n, v: encode_varint(n << 3 | 1) + v, st.integers(1, 100), st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: encode_varint(n << 3 | 5) + v, st.integers(1, 100), st.binary(min_size=4, max_size=4)),
    st.builds(
        lambda n, v: encode_varint(n << 3 | 3) + b"\x08" + encode_varint(v) + encode_varint(n << 3 | 4),
        st.integers(1, 100),
        u64,
    ),
)


@given(messages, st.lists(messages | unknown, min_size=1, max_size=4), st.randoms())
def test_fields_out_of_order_repeated_and_unknown_mean_the_same(message: Any, more: list[Any], rng: Any) -> None:
    parts = [part if isinstance(part, bytes) else part.SerializeToString() for part in [message, *more]]
    rng.shuffle(parts)
    compare(b"".join(parts))


def compare(data: bytes) -> None:
    for generated, decode in CODECS:
        try:
            expected = generated.FromString(data)
        except DecodeError:
            with pytest.raises(WireError):
                decode(data)
        else:
            assert_same(decode(data), expected)


@settings(max_examples=500)
@given(st.binary(max_size=60))
@example(b"\x04")
@example(b"\x0c")
@example(b"\x0b\x0c")
@example(b"\x0b\x14")
@example(b"\x0b" * 200)
@example(b"\x5b" * 99 + b"\x5c" * 99)
@example(b"\x5b" * 100 + b"\x5c" * 100)
@example(b"\x5b" * 101 + b"\x5c" * 101)
@example(b"\x00")
@example(b"\x0a\x01\xff\x0a\x01a")
@example(b"\x10" + b"\xff" * 9 + b"\x7f")
@example(b"\x10" + b"\xff" * 10 + b"\x01")
@example(b"\x22\xff\xff\xff\xff\x0f")
@example(b"\x22\x80\x80\x80\x80\x80\x00")
@example(b"\x22\x81\x80\x80\x80\x10A")
@example(b"\x90\x80\x80\x80\x10\x01")
@example(b"\x90\x80\x80\x80\x80\x00\x01")
def test_any_bytes_are_refused_or_read_as_the_generated_class_does(data: bytes) -> None:
    compare(data)


@given(messages, st.data())
def test_cut_or_changed_messages_are_refused_or_read_as_the_generated_class_does(message: Any, data: Any) -> None:
    encoded = bytearray(message.SerializeToString())
    if encoded and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    compare(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x0a", r"EnqueueRequest: the number at byte 1 \(topic\) is cut off"),
        (b"\x4a\x05abc", r"the field at byte 0 \(records\) says 5 bytes, 3 are left"),
        (b"\x10\x01\x51\x00", r"field 10 \(producer_id\) at byte 2 needs 8 bytes, 1 are left"),
        (b"\x80", "the field tag at byte 0 is cut off"),
        (b"\x0a\x01\xff", "topic is not UTF-8: invalid start byte at its byte 0"),
        (b"\x06", "no valid field number"),
    ],
)
def test_error_says_what_and_where(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        codec.decode_enqueue_request(data)
