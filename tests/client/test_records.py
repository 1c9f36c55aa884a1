from __future__ import annotations

import zlib

import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.wirefields import WireError
from delayclient.records import (
    EncodedRecords,
    decode_record,
    encode_records,
    hash_text,
    record_head,
    record_tail,
    shown_record,
)  # fmt: skip
from hypothesis import given
from hypothesis import strategies as st

BORN = 1_700_000_000_123
text = st.text(max_size=12)


def unpack(records: EncodedRecords) -> list[delay_pb2.Message]:
    blob = memoryview(records.blob).cast("B") if isinstance(records.blob, bytes) else memoryview(records.blob.tobytes())
    ends = np.cumsum(records.size, dtype=np.int64).tolist()
    assert (ends[-1] if ends else 0) == len(blob)
    return [decode_record(blob[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


@given(st.binary(max_size=300), text, text, st.dictionaries(text, text, max_size=3))
def test_one_record_is_the_generated_message(body: bytes, key: str, tag: str, properties: dict[str, str]) -> None:
    record = record_head(len(body), key, tag, properties) + body + record_tail(BORN)
    expected = delay_pb2.Message(key=key, tag=tag, properties=properties, body=body, born_ms=BORN)
    assert delay_pb2.Message.FromString(record) == expected


@given(
    st.lists(st.tuples(st.binary(max_size=20), text, text), max_size=20),
    st.booleans(),
    st.sampled_from(["none", "one", "each"]),
)
def test_many_records_are_the_generated_messages(rows: list[tuple[bytes, str, str]], keyed: bool, tagged: str) -> None:
    bodies = [body for body, _, _ in rows]
    keys = [key for _, key, _ in rows] if keyed else None
    tags = {"none": None, "one": "all", "each": [tag for _, _, tag in rows]}[tagged]
    records = encode_records(bodies, BORN, keys, tags)
    expected = [
        delay_pb2.Message(
            key=key if keyed else "", tag={"none": "", "one": "all", "each": tag}[tagged], body=body, born_ms=BORN
        )
        for body, key, tag in rows
    ]
    assert unpack(records) == expected
    if keyed:
        assert records.key_hash.tolist() == [zlib.crc32(key.encode()) for key in keys or ()]
    else:
        assert len(records.key_hash) == 0
    if tagged != "none":
        assert records.tag_hash.tolist() == [zlib.crc32(message.tag.encode()) for message in expected]


@given(st.integers(0, 5), st.integers(0, 300), st.booleans())
def test_rows_of_an_array_are_bodies(n: int, size: int, keyed: bool) -> None:
    bodies = np.arange(n * size, dtype=np.uint64).astype(np.uint8).reshape(n, size)
    keys = [str(i) for i in range(n)] if keyed else None
    messages = unpack(encode_records(bodies, BORN, keys, "t"))
    assert [m.body for m in messages] == [row.tobytes() for row in bodies]
    assert all(m.tag == "t" and m.born_ms == BORN for m in messages)
    assert [m.key for m in messages] == (keys or [""] * n)


def test_hash_of_nothing_is_zero() -> None:
    assert hash_text(None) == hash_text("") == zlib.crc32(b"") == 0
    assert hash_text("k") == zlib.crc32(b"k")


def test_lengths_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="2 keys for 1 bodies"):
        encode_records([b"x"], BORN, ["a", "b"])
    with pytest.raises(ValueError, match="u8"):
        encode_records(np.zeros((2, 2), np.int32), BORN)  # type: ignore[arg-type]


def test_record_that_is_no_message_is_refused() -> None:
    with pytest.raises(WireError, match=r"is not a delay\.v1\.Message"):
        decode_record(memoryview(b"\x0a\xff"))
    assert shown_record(memoryview(b"\x0a\xff")) == delay_pb2.Message(body=b"\x0a\xff")
