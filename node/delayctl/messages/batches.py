"""The messages that `delayctl produce` sends, in chunks: made up, or read from JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
from delayapi.durations import instant_ms
from delayclient.records import Bodies
from numpy.typing import NDArray

_CHUNK_BYTES: Final = 16 << 20
_CHUNK_MESSAGES: Final = 65_536
_LINES: Final = 8_192
_FIELDS: Final = frozenset({"body", "due", "key", "tag"})


class BadLine(ValueError):
    """A line of input that is not a message. `before` has the messages between the last chunk and it."""

    def __init__(self, number: int, why: str, before: InputChunk) -> None:
        super().__init__(f"line {number}: {why}")
        self.before = before


@dataclass(frozen=True, slots=True)
class DueRule:
    """When messages are due that do not say so themselves: one of these, or none: at once."""

    at_ms: int | None = None
    delay_ms: int | None = None
    spread_ms: tuple[int, int] | None = None

    def times(self, n: int) -> tuple[int | None, NDArray[np.int64] | int | None]:
        """(due_ms, delay_ms) of n messages."""
        if self.spread_ms is not None:
            low, high = self.spread_ms
            return None, np.random.default_rng().integers(low, high, n, endpoint=True)
        return self.at_ms, None if self.at_ms is not None else self.delay_ms or 0


@dataclass(frozen=True, slots=True)
class SendArguments:
    """The arguments of one send_batch()."""

    bodies: Bodies
    due_ms: NDArray[np.int64] | list[int] | int | None
    delay_ms: NDArray[np.int64] | int | None
    keys: list[str] | None
    tags: list[str] | str | None


@dataclass(frozen=True, slots=True)
class InputChunk:
    """Some messages; `due_ms` has a None for each that takes its time from `when`."""

    bodies: Bodies
    due_ms: list[int | None] | None
    keys: list[str] | None
    tags: list[str] | str | None
    when: DueRule

    @property
    def count(self) -> int:
        return len(self.bodies)

    def batches(self) -> Iterator[tuple[range | list[int], SendArguments]]:
        """(rows, batch): one batch, or two when some messages have their own time and others do not."""
        if self.due_ms is None:
            due, delay = self.when.times(self.count)
            yield range(self.count), SendArguments(self.bodies, due, delay, self.keys, self.tags)
            return
        own = [row for row, due_ms in enumerate(self.due_ms) if due_ms is not None]
        other = [row for row, due_ms in enumerate(self.due_ms) if due_ms is None]
        if own:
            times = [due_ms for due_ms in self.due_ms if due_ms is not None]
            yield own, self._some(own, times, None)
        if other:
            yield other, self._some(other, *self.when.times(len(other)))

    def _some(self, rows: list[int], due_ms: Any, delay_ms: Any) -> SendArguments:
        tags = [self.tags[row] for row in rows] if isinstance(self.tags, list) else self.tags
        keys = None if self.keys is None else [self.keys[row] for row in rows]
        return SendArguments([self.bodies[row] for row in rows], due_ms, delay_ms, keys, tags)


def made_up(
    n: int, size: int, body: str | None, when: DueRule, key: str | None, tag: str | None
) -> Iterator[InputChunk]:
    """n messages; a body that is made up is its number, padded with dots to `size` bytes."""
    fixed = None if body is None else body.encode()
    width = size if fixed is None else len(fixed)
    step = max(1, min(_CHUNK_MESSAGES, _CHUNK_BYTES // max(1, width)))
    for start in range(0, n, step):
        rows = min(step, n - start)
        bodies = _numbered(start, rows, size) if fixed is None else np.tile(np.frombuffer(fixed, np.uint8), (rows, 1))
        yield InputChunk(bodies, None, [key] * rows if key else None, tag, when)


def _numbered(start: int, n: int, size: int) -> NDArray[np.uint8]:
    digits = min(size, 12)
    bodies = np.full((n, size), ord("."), np.uint8)
    numbers = np.arange(start, start + n)
    for place in range(digits):
        bodies[:, digits - 1 - place] = numbers // 10**place % 10 + ord("0")
    return bodies


def read_lines(lines: IO[bytes], when: DueRule, key: str | None, tag: str | None) -> Iterator[InputChunk]:
    """Messages from JSON lines; empty lines are passed over. Raises BadLine."""
    bodies: list[bytes] = []
    due: list[int | None] = []
    keys: list[str] = []
    tags: list[str] = []
    nbytes = 0

    def taken() -> InputChunk:
        nonlocal bodies, due, keys, tags, nbytes
        chunk = InputChunk(bodies, due, keys if any(keys) else None, tags if any(tags) else None, when)
        bodies, due, keys, tags, nbytes = [], [], [], [], 0
        return chunk

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body, due_ms, own_key, own_tag = _message(line)
        except ValueError as error:
            raise BadLine(number, str(error), taken()) from None
        bodies.append(body)
        due.append(due_ms)
        keys.append(own_key or key or "")
        tags.append(own_tag or tag or "")
        nbytes += len(body)
        if len(bodies) >= _LINES or nbytes >= _CHUNK_BYTES:
            yield taken()
    yield taken()


def _message(line: bytes) -> tuple[bytes, int | None, str, str]:
    """(body, due_ms, key, tag) of a line. Raises ValueError."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f'expected an object with "body", not {type(value).__name__}')
    unknown = sorted(value.keys() - _FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; known are body, due, key and tag")
    if not isinstance(value.get("body"), str):
        raise ValueError('"body" must be a string')
    texts = []
    for name in ("key", "tag"):
        text = value.get(name)
        if text is not None and not isinstance(text, str):
            raise ValueError(f'"{name}" must be a string')
        texts.append(text or "")
    due = value.get("due")
    try:
        due_ms = None if due is None else instant_ms(due)
        # A lone surrogate is valid JSON and no valid text.
        encoded = [text.encode() for text in (value["body"], *texts)]
    except TypeError:
        raise ValueError('"due" must be ISO 8601 or milliseconds since 1970') from None
    return encoded[0], due_ms, texts[0], texts[1]
