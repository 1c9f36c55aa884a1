"""The events of a run, line by line: virtual ms, process, shard, epoch, event. Formatted only when they are read."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from heapq import merge

RING = 1_500
CLIENT_RING = 200  # clients write many lines, and few are of use

Line = tuple[int, int, str, str, dict[str, object]]


class Trace:
    """Keeps the last lines, or with `whole` all of them."""

    def __init__(self, time_ns: Callable[[], int], *, whole: bool = False) -> None:
        self._time_ns = time_ns
        self._lines: deque[Line] = deque(maxlen=None if whole else RING)
        self._of_clients: deque[Line] = deque(maxlen=None if whole else CLIENT_RING)
        self.count = 0

    def add(self, who: str, event: str, **fields: object) -> None:
        self.count += 1
        lines = self._of_clients if who == "client" else self._lines
        lines.append((self.count, self._time_ns(), who, event, fields))

    def lines(self) -> list[str]:
        return [_line(*line[1:]) for line in merge(self._lines, self._of_clients, key=lambda line: line[0])]

    def text(self) -> str:
        return "\n".join(self.lines())

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()


def _line(at_ns: int, who: str, event: str, fields: dict[str, object]) -> str:
    shard, epoch = fields.get("shard", ""), fields.get("epoch", "")
    rest = " ".join(f"{name}={_short(value)}" for name, value in fields.items() if name not in ("shard", "epoch"))
    return f"{at_ns / 1e6:12.3f} {who:8} {shard!s:5} {epoch!s:>3} {event:22} {rest}".rstrip()


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_short(one) for one in value) + "]"
    return str(value)
