"""A message's body for people: as text where it is some, else as bytes in hexadecimal. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

SHOWN_BYTES: Final = 64 << 10
SHOWN_BINARY_BYTES: Final = 4 << 10
_ROW: Final = 16


@dataclass(frozen=True, slots=True)
class BodyText:
    """kind: JSON, text, bytes or empty. shown: how many bytes of it are in `text`."""

    kind: str
    text: str
    size: int
    shown: int


def body_text(body: bytes) -> BodyText:
    """The first SHOWN_BYTES of text, or SHOWN_BINARY_BYTES of other bytes. JSON that is shown whole is indented."""
    if not body:
        return BodyText("empty", "", 0, 0)
    text = _text(body[:SHOWN_BYTES], cut=len(body) > SHOWN_BYTES)
    if text is None:
        part = body[:SHOWN_BINARY_BYTES]
        return BodyText("bytes", _hexadecimal(part), len(body), len(part))
    if len(body) <= SHOWN_BYTES and text.lstrip()[:1] in ("{", "["):
        try:
            return BodyText("JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False), len(body), len(body))
        except (ValueError, RecursionError):
            pass
    return BodyText("text", text, len(body), min(len(body), SHOWN_BYTES))


def _text(part: bytes, *, cut: bool) -> str | None:
    """UTF-8 without control characters; None where it is none. cut: the last character may lack some bytes."""
    for lost in range(4 if cut else 1):
        try:
            text = part[: len(part) - lost].decode()
        except UnicodeDecodeError:
            continue
        return None if any(ord(it) < 32 and it not in "\t\r\n" for it in text) else text
    return None


def _hexadecimal(part: bytes) -> str:
    lines = []
    for start in range(0, len(part), _ROW):
        row = part[start : start + _ROW]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _ROW - 1}}  {shown}")
    return "\n".join(lines)
