from __future__ import annotations

import base64
from contextlib import suppress

import numpy as np
import pytest
from delayapi.handle import BadHandle, Handle, encode_handles
from hypothesis import given
from hypothesis import strategies as st

i64 = st.integers(-(2**63), 2**63 - 1)
topics = st.text(min_size=1, max_size=60)
handles = st.builds(Handle, topics, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), i64, i64)


@given(handles)
def test_handle_survives_its_text(handle: Handle) -> None:
    assert Handle.decode(handle.encode()) == handle


def test_layout_is_the_documented_one() -> None:
    raw = base64.urlsafe_b64decode(Handle("ab", 3, 7, -1, 5).encode() + "==")
    assert raw[:4] == b"\x01\x02ab"
    assert raw[4:8] == (3).to_bytes(4, "little")
    assert raw[8:16] == (7).to_bytes(8, "little")
    assert raw[16:24] == b"\xff" * 8
    assert raw[24:32] == (5).to_bytes(8, "little")
    assert len(raw) == 36


@given(handles, st.lists(st.tuples(i64, i64), max_size=20))
def test_many_handles_at_once_are_the_same_as_one_by_one(handle: Handle, rows: list[tuple[int, int]]) -> None:
    due = np.array([due for due, _ in rows], np.int64)
    seq = np.array([seq for _, seq in rows], np.int64)
    expected = [Handle(handle.topic, handle.queue, handle.uid, d, s).encode() for d, s in rows]
    assert encode_handles(handle.topic, handle.queue, handle.uid, due, seq) == expected


@given(handles, st.data())
def test_changed_handle_is_refused(handle: Handle, data: st.DataObject) -> None:
    text = handle.encode()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from("AZaz09-_").filter(lambda c: c != text[at])) + text[at + 1 :]
    try:
        # The last character has bits that belong to no byte: changing only those changes nothing.
        assert Handle.decode(changed) == handle
        assert at == len(text) - 1
    except BadHandle:
        pass


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda b: base64.urlsafe_b64encode(b).decode().rstrip("=")))
def test_any_text_is_refused_or_decoded(text: str) -> None:
    with suppress(BadHandle):
        assert Handle.decode(text).encode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("!!!", "a character outside"),
        ("AAAAA", "cut off"),
        ("A" * 1000, "too long"),
        (base64.urlsafe_b64encode(b"\x02" + bytes(40)).decode().rstrip("="), "version 2"),
        (base64.urlsafe_b64encode(b"\x01\x05" + bytes(40)).decode().rstrip("="), "topic length 5"),
        (base64.urlsafe_b64encode(b"\x01\x02" + bytes(34)).decode().rstrip("="), "fails its check"),
    ],
)
def test_refusal_says_why(text: str, says: str) -> None:
    with pytest.raises(BadHandle, match=says):
        Handle.decode(text)


def test_topic_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 255"):
        Handle("t" * 256, 0, 1, 0, 0).encode()
