"""`delayctl top`: rates, lateness and the load to come, live: a line a topic, and one for each of its groups."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
from delayapi.durations import format_ms
from delayapi.options import DURATION
from delayapi.slots import spread_slots
from delayapi.units import HOUR_MS, MINUTE_MS
from numpy.typing import NDArray

from delayctl.common import WHOLE_COLUMNS, CommandSettings, common_options, harmless, print_table, put_json, run_admin
from delayctl.heat_map import cells

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.admin.views import GroupQueue, Wheel
    from rich.live import Live
    from rich.table import Table

MINUTES: Final = 60
MIN_INTERVAL_MS: Final = 500
INTERRUPT: Final = b"\x03"  # Ctrl-C
QUIT: Final = b"qQ" + INTERRUPT
INTERRUPTED: Final = 130  # exit status
CALL_TIMEOUT: Final = "30s"
LOOK_TIMEOUT: Final = "5s"  # of a call of a live look: that a node is away is to be said soon
WIDE: Final = 160  # columns of a terminal that has room for the coming hour


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """minutes: messages due in each of the next 60, f64[60]. late_ms: since the oldest message that is not released
    was due. stored, released: since the shards' beginning; stored does not count what was cancelled."""

    shards: int
    pending: int
    stored: int
    released: int
    late_ms: int
    minutes: NDArray[np.float64]

    def due_within(self, minutes: int) -> int:
        return round(float(self.minutes[:minutes].sum()))


@dataclass(frozen=True, slots=True)
class GroupFigures:
    available: int
    in_flight: int
    waiting_retry: int
    dead: int
    oldest_age_ms: int


@dataclass(frozen=True, slots=True)
class Sample:
    """at_s: monotonic. groups: by topic and group."""

    at_s: float
    topics: Mapping[str, TopicFigures]
    groups: Mapping[tuple[str, str], GroupFigures]


def topic_figures(wheels: Sequence[Wheel]) -> TopicFigures:
    """Of one topic's shards, as GetWheel gives them for the next hour."""
    minutes = np.zeros(MINUTES)
    for one in wheels:
        edges = one.now_ms + np.arange(MINUTES + 1, dtype=np.int64) * MINUTE_MS
        minutes += spread_slots(one.slot_start, one.slot_width, one.messages, edges)
    pending, released = sum(one.pending for one in wheels), sum(one.released for one in wheels)
    late_ms = max((one.late_ms for one in wheels), default=0)
    return TopicFigures(len(wheels), pending, pending + released, released, late_ms, minutes)


def group_figures(queues: Sequence[GroupQueue]) -> GroupFigures:
    return GroupFigures(
        sum(queue.available for queue in queues),
        sum(queue.in_flight for queue in queues),
        sum(queue.waiting_retry for queue in queues),
        sum(queue.dead for queue in queues),
        max((queue.oldest_age_ms or 0 for queue in queues), default=0),
    )


async def sample(admin: Admin, topic: str) -> Sample:
    """Of a topic, or of all. Raises DelayError."""
    wheels = await admin.wheel(topic, to=time.time_ns() // 1_000_000 + HOUR_MS + MINUTE_MS)
    topics: dict[str, list[Wheel]] = {}
    for one in wheels:
        topics.setdefault(one.topic, []).append(one)
    groups: dict[tuple[str, str], list[GroupQueue]] = {}
    for name in topics:
        for queue in await admin.groups(name):
            groups.setdefault((name, queue.group), []).append(queue)
    return Sample(
        time.monotonic(),
        {name: topic_figures(mine) for name, mine in sorted(topics.items())},
        {name: group_figures(queues) for name, queues in sorted(groups.items())},
    )


def rates(topic: str, now: Sample, before: Sample | None) -> tuple[float, float] | None:
    """Messages stored and released a second between two samples; None: there are no two of this topic yet."""
    if before is None or topic not in before.topics:
        return None
    seconds, new, old = now.at_s - before.at_s, now.topics[topic], before.topics[topic]
    return max(0, new.stored - old.stored) / seconds, max(0, new.released - old.released) / seconds


@click.command()
@click.argument("topic", required=False)
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Between two looks; at least 500ms.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="End after so many looks  [default: on a terminal at q or Ctrl-C, elsewhere after 2]",
)
@common_options
def top(settings: CommandSettings, topic: str | None, interval: int, count: int | None) -> None:
    """Watch TOPIC, or all topics.

    In/s is what was stored less what was cancelled, Out/s what was released. Late: since the oldest message that is
    not released yet was due. On a wide terminal the last column is the coming hour, from cold to the hottest of all.
    """
    if interval < MIN_INTERVAL_MS:
        raise click.UsageError(f"--interval {format_ms(interval)}: at least {MIN_INTERVAL_MS} ms")
    live = sys.stdout.isatty() and not settings.as_json
    looks = count or (None if live else 2)

    async def shown(admin: Admin) -> int | None:
        if live:
            return await _live(admin, topic or "", interval / 1000, looks)
        before: Sample | None = None
        for left in reversed(range(looks or 1)):
            now = await sample(admin, topic or "")
            if settings.as_json:
                for line in lines(now, before):
                    put_json(line)
            elif not left:
                print_table(_table(now, before))
            before = now
            if left:
                await asyncio.sleep(interval / 1000)
        return None

    run_admin(settings, shown, LOOK_TIMEOUT if live else CALL_TIMEOUT)


async def _live(admin: Admin, topic: str, interval_s: float, looks: int | None) -> int | None:
    """Returns the exit status, None for 0."""
    from rich.live import Live

    with Live(auto_refresh=False, screen=looks is None) as live, keys_pressed() as pressed:
        screen = _Screen(live)
        looking = asyncio.create_task(_look_on(admin, topic, interval_s, looks, screen))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, screen.draw)
        loop.add_signal_handler(signal.SIGINT, pressed.put_nowait, INTERRUPT)  # it ends as q does
        quitting = asyncio.create_task(_awaited(pressed, QUIT))
        try:
            await asyncio.wait((looking, quitting), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
            return INTERRUPTED if quitting.done() and INTERRUPT in quitting.result() else None
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGWINCH)
            looking.cancel()
            quitting.cancel()


async def _look_on(admin: Admin, topic: str, interval_s: float, looks: int | None, screen: _Screen) -> None:
    """A node that is away is said, and looked for again: that is when somebody watches."""
    from delayclient.errors import DelayError

    while True:
        try:
            screen.show(await sample(admin, topic))
        except DelayError as error:
            screen.say(f"no look: {error}")
        looks = None if looks is None else looks - 1
        if looks == 0:
            return
        await asyncio.sleep(interval_s)


class _Screen:
    """The last look, drawn anew where the terminal has another size."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._now: Sample | None = None
        self._before: Sample | None = None
        self._said = ""

    def show(self, now: Sample) -> None:
        self._before, self._now, self._said = self._now, now, ""
        self.draw()

    def say(self, what: str) -> None:
        """Above the last look, whose rates are over."""
        self._before, self._said = None, what
        self.draw()

    def draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        said = [Text(self._said, style="bold red")] if self._said else []
        last = [] if self._now is None else [_table(self._now, self._before, self._live.console.width)]
        self._live.update(Group(*said, *last), refresh=True)


@contextmanager
def keys_pressed() -> Iterator[asyncio.Queue[bytes]]:
    """Keys of the terminal as they are pressed, not shown; without one there are none. Ctrl-C stays a signal."""
    pressed = asyncio.Queue[bytes]()
    if not sys.stdin.isatty():
        yield pressed
        return
    file, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    hung_up = select.poll()
    hung_up.register(file, 0)

    def read() -> None:
        found = os.read(file, 64)
        if found:
            pressed.put_nowait(found)
        elif hung_up.poll(0):  # the terminal is gone
            loop.remove_reader(file)

    kept = termios.tcgetattr(file)
    tty.setcbreak(file)
    # Ctrl-C takes back the keys before it: a read of what is there no more must not wait for the next key.
    modes = termios.tcgetattr(file)
    modes[6][termios.VMIN] = 0
    termios.tcsetattr(file, termios.TCSADRAIN, modes)
    loop.add_reader(file, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, kept)


async def _awaited(pressed: asyncio.Queue[bytes], keys: bytes) -> bytes:
    """Until one of the keys is pressed; what was."""
    while not set(found := await pressed.get()) & set(keys):
        pass
    return found


def lines(now: Sample, before: Sample | None) -> list[dict[str, Any]]:
    """A JSON object for each topic."""
    told = []
    for name, figures in now.topics.items():
        found = rates(name, now, before)
        groups = {
            group: {
                "available": it.available, "in_flight": it.in_flight, "waiting_retry": it.waiting_retry,
                "dead": it.dead, "oldest_age_ms": it.oldest_age_ms,
            }
            for (topic, group), it in now.groups.items() if topic == name
        }  # fmt: skip
        told.append(
            {
                "topic": name, "shards": figures.shards, "pending": figures.pending,
                "stored_per_second": None if found is None else round(found[0], 1),
                "released_per_second": None if found is None else round(found[1], 1),
                "late_ms": figures.late_ms, "due_within_1m": figures.due_within(1),
                "due_within_5m": figures.due_within(5), "due_within_1h": figures.due_within(MINUTES), "groups": groups,
            }
        )  # fmt: skip
    return told


def _table(now: Sample, before: Sample | None, width: int = WHOLE_COLUMNS) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    table.add_column("Topic, group")
    for name in ("Pending", "In/s", "Out/s", "Late", "Due 1m", "5m", "1h", "Ready", "Taken", "Retry", "Dead", "Lag"):
        table.add_column(name, justify="right", no_wrap=True)
    wide = width >= WIDE
    if wide:
        table.add_column("The next 60 minutes", no_wrap=True)
    hottest = max((float(figures.minutes.max()) for figures in now.topics.values()), default=0.0)
    for topic, figures in now.topics.items():
        found = rates(topic, now, before)
        moving = ("", "") if found is None else (f"{found[0]:,.0f}", f"{found[1]:,.0f}")
        due = (f"{figures.due_within(minutes):,}" for minutes in (1, 5, MINUTES))
        late = format_ms(figures.late_ms) if figures.late_ms else "0"
        heat = [cells(figures.minutes, hottest)] * wide
        table.add_row(Text(topic), f"{figures.pending:,}", *moving, late, *due, *[""] * 5, *heat)
        for (of, group), it in now.groups.items():
            if of == topic:
                counts = (f"{count:,}" for count in (it.available, it.in_flight, it.waiting_retry, it.dead))
                lag = format_ms(it.oldest_age_ms) if it.oldest_age_ms else "0"
                table.add_row(Text(harmless(f"  {group}")), *[""] * 7, *counts, lag)
    return table
