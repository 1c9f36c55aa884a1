"""A message as a CloudEvent 1.0, over HTTP or a broker. Pure.

binary       attributes are headers `ce-NAME`, the body is the message's
structured   one JSON object, with the body in `data`, or in `data_base64` where it is neither JSON nor text
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from delaysink.settings import content_type_problem

CONTENT_TYPE: Final = "content-type"
"""A message's property that says what its body is."""
STRUCTURED_TYPE: Final = "application/cloudevents+json"
MAX_EXTENSIONS: Final = 32
MAX_EXTENSION_CHARS: Final = 1_024
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,20}")
_OWN: Final = (
    *("id", "source", "specversion", "type", "time", "subject", "datacontenttype", "dataschema", "data"),
    *("delayattempt", "delaytag"),
)
TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE: Final = re.compile(r"[!-~](?:[ -~]{0,510}[!-~])?")
_SAFE: Final = frozenset(range(0x21, 0x7F)) - frozenset(b'"%')
_ALL_SAFE: Final = re.compile(f"[{''.join(map(re.escape, map(chr, sorted(_SAFE))))}]*")
_NEVER: Final = "9999-12-31T23:59:59.999Z"


class Undeliverable(ValueError):
    """A message that can't be delivered as the sink wants it, however often it is tried; says why."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """id: its handle, the same for each attempt. due_ms: Unix time. attempt: 1 is the first."""

    id: str
    due_ms: int
    attempt: int
    body: bytes = b""
    key: str = ""
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def content_type(message: OutgoingMessage, default: str) -> str:
    """Raises Undeliverable."""
    found = message.properties.get(CONTENT_TYPE, default)
    if problem := content_type_problem(found):
        raise Undeliverable(f"property {CONTENT_TYPE}: {problem}")
    return found


def attributes(message: OutgoingMessage, source: str, kind: str) -> dict[str, str]:
    """The event's, but for the type of its data. Properties that can be extension attributes are among them."""
    found = {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": kind,
        "time": rfc3339(message.due_ms),
        "delayattempt": str(message.attempt),
    }
    if message.key:
        found["subject"] = message.key
    if message.tag:
        found["delaytag"] = message.tag
    room = MAX_EXTENSIONS
    for name, value in message.properties.items():
        fits = _EXTENSION.fullmatch(name) and name not in _OWN and len(value) <= MAX_EXTENSION_CHARS
        if fits and value and room:
            found[name] = value
            room -= 1
    return found


def trace_context(message: OutgoingMessage) -> dict[str, str]:
    """W3C's headers, from the properties that a traced producer sets. What is malformed is left out."""
    found = {}
    if _TRACE_PARENT.fullmatch(parent := message.properties.get(TRACE_PARENT, "")):
        found[TRACE_PARENT] = parent
        if _TRACE_STATE.fullmatch(state := message.properties.get(TRACE_STATE, "")):
            found[TRACE_STATE] = state
    return found


def binary_headers(found: Mapping[str, str]) -> dict[str, str]:
    """ce-* headers of these attributes."""
    return {f"ce-{name}": percent_encoded(value) for name, value in found.items()}


def structured(found: Mapping[str, str], body: bytes, kind: str) -> bytes:
    """The JSON object of an event whose data has the content type `kind`."""
    head: dict[str, Any] = {**found, "datacontenttype": kind}
    if found.get("delayattempt"):
        head["delayattempt"] = int(found["delayattempt"])
    if _is_json(kind) and (text := _json_text(body)) is not None:
        return f'{json.dumps(head)[:-1]}, "data": {text}}}'.encode()
    if kind.startswith("text/") and (text := _utf8(body)) is not None:
        return json.dumps({**head, "data": text}).encode()
    return json.dumps({**head, "data_base64": base64.b64encode(body).decode()}).encode()


def percent_encoded(value: str) -> str:
    """As CloudEvents' HTTP binding writes header values."""
    if _ALL_SAFE.fullmatch(value):  # most are, and a character at a time costs more than the rest of the event
        return value
    return "".join(chr(it) if it in _SAFE else f"%{it:02X}" for it in value.encode("utf-8", "replace"))


def rfc3339(at_ms: int) -> str:
    """A time in UTC, to the millisecond."""
    try:
        text = datetime.fromtimestamp(at_ms // 1_000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return _NEVER
    return f"{text[:19]}.{at_ms % 1_000:03d}Z"


def _is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media == "application/json" or media.endswith("+json")


def _utf8(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _json_text(body: bytes) -> str | None:
    """The body, if it is JSON as every reader takes it: no NaN, no depth that ends a parser."""
    text = _utf8(body)
    if text is None:
        return None
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
