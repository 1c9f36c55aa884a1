"""The demo's live view on a terminal, plain progress lines elsewhere, and the final table."""

import sys
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.flights import MINUTES_A_DAY
from demo.ledger import Verdict

COLUMNS = 72  # of the heat map: 20 minutes of the folded day each
SHADES = " ·░▒▓█"
HEAT = ("default", "color(24)", "color(30)", "color(178)", "color(202)", "color(196)")
PLAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Snapshot:
    """The figures that the view shows at one moment.

    day_ms: how far the folded day is, negative before it starts; window_ms: its length. cells: i64[queues, COLUMNS]
    messages still to come. released, pending: as the nodes' wheels tell. lateness_ms: i64[k] since the last snapshot.
    """

    day_ms: int
    window_ms: int
    cells: NDArray[np.int64]
    pending: int
    released: int
    delivered: int
    duplicates: int
    early: int
    lateness_ms: NDArray[np.int64]


class View(Protocol):
    """Where the demo says what it does."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def say(self, words: str) -> None: ...
    def note(self, words: str) -> None: ...
    def show(self, snapshot: Snapshot) -> None: ...


def clock(snapshot: Snapshot) -> str:
    """The folded day's time of day, or how long until it starts."""
    if snapshot.day_ms < 0:
        return f"the day starts in {-snapshot.day_ms / 1000:.0f} s"
    minute = snapshot.day_ms * MINUTES_A_DAY // snapshot.window_ms
    return f"{minute // 60:02}:{minute % 60:02}" if minute < MINUTES_A_DAY else "after midnight"


def lateness(values_ms: NDArray[np.int64]) -> str:
    """p50 and p99 in words."""
    if not len(values_ms):
        return "-"
    p50, p99 = np.percentile(values_ms, [50, 99])
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms"


def heat_row(cells: NDArray[np.int64], most: int) -> Text:
    """One queue's row: the count picks the shade; one message is still seen."""
    row = Text()
    levels = np.ceil(cells / max(most, 1) * (len(SHADES) - 1)).astype(int)
    for level in levels.tolist():
        row.append(SHADES[level], style=HEAT[level])
    return row


def hours_row() -> str:
    """The heat map's ruler: every third hour at its column."""
    width = COLUMNS // 8
    return "".join(f"{hour:02}".ljust(width) for hour in range(0, 24, 3))


class LiveView:
    """Redrawn in place: the wheel as a heat map, the counts, the last events."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._most = 1
        self._note = ""
        self._shown = False
        self._recent: deque[NDArray[np.int64]] = deque(maxlen=8)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, words: str) -> None:
        self._console.print(words, highlight=False)

    def note(self, words: str) -> None:
        """A passing word below the heat map."""
        self._note = words
        if not self._shown:
            self._live.update(Text(words, style="dim"), refresh=True)

    def show(self, snapshot: Snapshot) -> None:
        self._shown = True
        self._most = max(self._most, int(snapshot.cells.max(initial=0)))
        self._recent.append(snapshot.lateness_ms)
        grid = Table.grid(padding=(0, 1))
        grid.add_row("", Text(hours_row(), style="dim"))
        column = min(max(snapshot.day_ms, 0) * COLUMNS // snapshot.window_ms, COLUMNS - 1)
        grid.add_row(Text("now", style="dim"), Text(" " * column + "▼", style="bold"))
        for queue, cells in enumerate(snapshot.cells):
            grid.add_row(f"queue {queue}", heat_row(cells, self._most))
        counts = Table.grid(padding=(0, 3))
        counts.add_row("time of day", clock(snapshot), "delivered", f"{snapshot.delivered:,}")
        counts.add_row("pending", f"{snapshot.pending:,}", "duplicates", f"{snapshot.duplicates:,}")
        counts.add_row("released", f"{snapshot.released:,}", "early", f"{snapshot.early:,}")
        counts.add_row("lateness", lateness(np.concatenate(self._recent)))
        title = Text("messages still to come, by queue and time of departure", style="bold")
        self._live.update(Group(title, grid, Text(), counts, Text(self._note, style="dim")), refresh=True)
        self._note = ""


class PlainView:
    """A line a second on stderr."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._since: list[NDArray[np.int64]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    def note(self, words: str) -> None:
        """Nothing: a log needs no passing words."""

    def show(self, snapshot: Snapshot) -> None:
        self._since.append(snapshot.lateness_ms)
        if time.monotonic() - self._last_s < PLAIN_SECONDS:
            return
        self._last_s = time.monotonic()
        self.say(
            f"{clock(snapshot)}  pending {snapshot.pending:,}  released {snapshot.released:,}"
            f"  delivered {snapshot.delivered:,}  lateness {lateness(np.concatenate(self._since))}"
        )
        self._since = []


def choose_view(plain: bool) -> View:
    """The live view when stderr is a terminal and nothing asks for plain lines."""
    console = Console(stderr=True)
    return LiveView(console) if console.is_terminal and not plain else PlainView()


def final_table(verdict: Verdict) -> Table:
    """The checked result, one line a claim."""
    table = Table(title="a year of flights in one day", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = [
        ("produced", verdict.produced),
        ("cancelled", verdict.cancelled),
        ("delivered", verdict.delivered),
        ("missing", verdict.missing),
        ("early", verdict.early),
        ("duplicates", verdict.duplicates),
        ("cancelled but delivered", verdict.cancelled_but_delivered),
        ("unknown or altered", verdict.unknown_or_altered),
    ]
    for name, count in rows:
        table.add_row(name, f"{count:,}")
    table.add_row("lateness p50", f"{verdict.lateness_p50_ms:,.0f} ms")
    table.add_row("lateness p99", f"{verdict.lateness_p99_ms:,.0f} ms")
    table.add_row("lateness, the last one", f"{verdict.lateness_max_ms:,.0f} ms")
    return table
