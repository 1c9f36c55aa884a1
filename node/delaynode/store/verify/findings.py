"""What is wrong with a copy, and where; and what was looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_PER_KIND = 10  # findings of one kind in one file that are told one by one


@dataclass(frozen=True, slots=True)
class Finding:
    """path: the file. offset: byte in it, or -1 for the file as a whole. where: the same as the shard counts.

    A note is no damage: a torn tail, say.
    """

    path: str
    offset: int
    where: str
    what: str
    expected: str = ""
    found: str = ""
    note: bool = False

    def __str__(self) -> str:
        where = self.path if self.offset < 0 else f"{self.path} at byte {self.offset}"
        where += f" ({self.where})" if self.where else ""
        beside = [f"{word} {value}" for word, value in (("expected", self.expected), ("found", self.found)) if value]
        return f"{where}: {self.what}" + (f": {', '.join(beside)}" if beside else "")


@dataclass(slots=True)
class Summary:
    """What was read of one shard."""

    frames: int = 0
    messages: int = 0  # whose records are in the log
    units: int = 0  # of the TimerLog
    slots: int = 0  # of the copy of the wheels
    entries: int = 0  # of the ConsumeQueue
    bytes: int = 0
    pending: int = 0  # messages, as of the checkpoint
    seconds: float = 0.0
    damage: int = 0  # findings that are damage, those that are not told one by one included
    notes: int = 0
    marked: bool = False  # a node has found it damaged before, and said so in its directory


@dataclass(slots=True)
class Report:
    """Collects findings; `on_finding` gets each one as it is found."""

    on_finding: Callable[[Finding], None]
    progress: Callable[[int], None] = lambda read: None  # bytes read so far
    summary: Summary = field(default_factory=Summary)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(
        self,
        path: str,
        offset: int,
        what: str,
        *,
        where: str = "",
        expected: object = "",
        found: object = "",
        note: bool = False,
    ) -> None:
        if note:
            self.summary.notes += 1
        else:
            self.summary.damage += 1
        self._counts[path, what] += 1
        if self._counts[path, what] <= MAX_PER_KIND:
            self.on_finding(Finding(path, int(offset), where, what, str(expected), str(found), note))

    def more(self, path: str, what: str, count: int) -> None:
        """`count` more of a kind that was told often enough."""
        self.summary.damage += count
        self._counts[path, what] += count

    def read(self, size: int) -> None:
        """So many bytes more were read."""
        self.summary.bytes += size
        self.progress(self.summary.bytes)

    def end(self) -> None:
        """Tell how many findings of each kind were not told."""
        for (path, what), count in self._counts.items():
            if count > MAX_PER_KIND:
                self.on_finding(Finding(path, -1, "", f"{count - MAX_PER_KIND:,} more of this kind: {what}", note=True))
