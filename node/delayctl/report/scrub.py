"""What a report leaves out of objects, logs and texts. Pure.

Whatever may be a secret or come out of a message goes, known or not: values of environment variables, headers,
ConfigMaps and Secrets, the query and the user of URLs, keys, tokens, and what a sink's receiver answered. Names stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

LEFT_OUT: Final = "(left out)"

_SECRET_NAME: Final = re.compile(
    r"passw|token|secret|credential|authorization|cookie|api.?key|private.?key|signature", re.I
)
_NAMES_ONE: Final = re.compile(r"(name|file|path|seconds|ms|kind|bytes|count|audience|hash|expires?)s?$", re.I)
"""After a secret's name: it says where one is, or how much of it there is."""
_VALUES: Final = frozenset(("env", "headers", "data", "stringData", "binaryData", "properties"))
"""All values in these go; of lists, the `value` of each."""
_CONTENT: Final = frozenset(
    ("body", "bodyText", "bodyJson", "bodyBase64", "body_text", "payload", "answer", "key", "keys", "sha256")
)
"""Out of messages, in specs and log lines, where they are texts; and a token's hash: a short token can be guessed."""
_OWN_ANNOTATIONS: Final = "delaycluster.io/"

_PATTERNS: Final = tuple(
    (re.compile(pattern, flags), into)
    for pattern, flags, into in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S, LEFT_OUT),
        (r"\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*", 0, LEFT_OUT),  # a JWT
        (r"\bS[ACNOUX][A-Z2-7]{56}\b", 0, LEFT_OUT),  # a seed of NATS
        (r"\bwhsec_[\w+/=-]+", 0, LEFT_OUT),
        (r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.I, rf"\1 {LEFT_OUT}"),
        (r"(\w://[^\s\"'?]*)\?[^\s\"']+", 0, rf"\1?{LEFT_OUT}"),
        (r"(://)[^/\s\"'@]+@", 0, rf"\1{LEFT_OUT}@"),
        (
            r"((?:passw(?:or)?d|token|secret|api[_-]?key|access[_-]?key)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&)]{4,}",
            re.I, rf"\1{LEFT_OUT}",
        ),
    )
)  # fmt: skip


def scrub_text(text: str, known: Collection[str] = ()) -> str:
    """`known`: secrets that the caller has at hand."""
    for secret in known:
        text = text.replace(secret, LEFT_OUT)
    for pattern, into in _PATTERNS:
        text = pattern.sub(into, text)
    return text


def scrub_object(found: Any, known: Collection[str] = ()) -> Any:
    """A JSON value without what may be secret."""
    match found:
        case dict():
            return {name: _field(name, value, known) for name, value in found.items() if name != "managedFields"}
        case list():
            return [scrub_object(one, known) for one in found]
        case str():
            return scrub_text(found, known)
    return found


def _field(name: str, value: Any, known: Collection[str]) -> Any:
    if name == "annotations" and isinstance(value, dict):
        return {key: _own(key, text, known) for key, text in value.items()}
    if name in _VALUES and isinstance(value, dict):
        return dict.fromkeys(value, LEFT_OUT)
    if name in _VALUES and isinstance(value, list):
        return [{**scrub_object(one, known), **_value(one)} if isinstance(one, dict) else LEFT_OUT for one in value]
    if isinstance(value, (str, list)) and name in _CONTENT and value:
        return LEFT_OUT
    if _is_secret(name) and value and (isinstance(value, str) or _has_texts(value)):
        return LEFT_OUT
    if name in ("args", "command") and isinstance(value, list):
        return _arguments(value, known)
    return scrub_object(value, known)


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name) and not _NAMES_ONE.search(name))


def _has_texts(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, str) for one in value)


def _arguments(words: list[Any], known: Collection[str]) -> list[Any]:
    """`--password X` without X."""
    before = ["", *words]
    return [
        LEFT_OUT if str(option).startswith("-") and "=" not in str(option) and _is_secret(str(option)) else
        scrub_object(word, known)
        for option, word in zip(before, words, strict=False)
    ]  # fmt: skip


def _own(key: str, text: Any, known: Collection[str]) -> Any:
    return scrub_object(text, known) if key.startswith(_OWN_ANNOTATIONS) else LEFT_OUT


def _value(one: dict[str, Any]) -> dict[str, str]:
    return {"value": LEFT_OUT} if "value" in one else {}


def scrub_log(text: str, known: Collection[str] = ()) -> str:
    """Lines of JSON by their fields, others by patterns."""
    return scrub_text("".join(_lines(text, known)), known)


def _lines(text: str, known: Collection[str]) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        try:
            event = json.loads(line) if line.startswith("{") else None
        except ValueError:
            event = None
        yield line if event is None else json.dumps(scrub_object(event, known), ensure_ascii=False) + "\n"
