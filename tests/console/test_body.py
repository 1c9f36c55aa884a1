"""Bodies as people see them."""

from __future__ import annotations

import json

import pytest
from delayconsole.body import SHOWN_BINARY_BYTES, SHOWN_BYTES, body_text
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "empty", ""),
        (b"pay, please", "text", "pay, please"),
        ("größer €".encode(), "text", "größer €"),
        (b'{"b":1,"a":[2]}', "JSON", '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'),
        (b"{not json", "text", "{not json"),
        (b"[" * 5_000, "text", "[" * 5_000),
        (b"\x00\x01AB", "bytes", "00000000  00 01 41 42" + " " * 38 + "..AB"),
        (b"\xff\xfe", "bytes", "00000000  ff fe" + " " * 44 + ".."),
        (b"bell \x07", "bytes", "00000000  62 65 6c 6c 20 07" + " " * 32 + "bell ."),
    ],
)
def test_a_body_is_shown_as_what_it_is(body: bytes, kind: str, text: str) -> None:
    found = body_text(body)
    assert (found.kind, found.text, found.size, found.shown) == (kind, text, len(body), len(body))


def test_of_a_large_body_a_part_is_shown() -> None:
    letters, binary = body_text(b"x" * (4 << 20)), body_text(bytes(4 << 20))
    assert (letters.kind, len(letters.text), letters.shown) == ("text", SHOWN_BYTES, SHOWN_BYTES)
    assert (binary.kind, binary.shown) == ("bytes", SHOWN_BINARY_BYTES)
    assert len(binary.text) < 40_000
    euros = body_text("€".encode() * SHOWN_BYTES)
    assert (euros.kind, set(euros.text)) == ("text", {"€"})
    large = body_text(json.dumps(list(range(40_000))).encode())
    assert large.kind == "text", "half of a JSON text is none"


@given(st.binary(max_size=300))
def test_any_bytes_have_a_text(body: bytes) -> None:
    found = body_text(body)
    assert found.shown == len(body)
    assert not any(ord(it) < 32 and it not in "\t\r\n" for it in found.text)
