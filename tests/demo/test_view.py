"""The demo's output."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from demo.ledger import Verdict
from demo.view import COLUMNS, LiveView, PlainView, Snapshot, clock, final_table, heat_row, hours_row

SEVEN = Snapshot(
    day_ms=8_750,
    window_ms=30_000,
    cells=np.zeros((2, COLUMNS), np.int64),
    pending=281_000,
    released=33_000,
    delivered=32_990,
    duplicates=1,
    early=0,
    lateness_ms=np.array([3, 4, 50]),
)


def test_the_clock_is_that_of_the_folded_day() -> None:
    assert clock(SEVEN) == "07:00"
    assert clock(replace(SEVEN, day_ms=-2_000)) == "the day starts in 2 s"
    assert clock(replace(SEVEN, day_ms=30_000)) == "after midnight"


def test_the_fullest_slot_is_solid_and_a_single_message_is_seen() -> None:
    assert heat_row(np.array([0, 1, 500, 1000]), most=1000).plain == " ·▒█"


def test_the_ruler_is_as_wide_as_the_heat_map() -> None:
    assert len(hours_row()) == COLUMNS


def test_the_live_view_draws_every_queue_and_the_counts() -> None:
    drawn = io.StringIO()
    view = LiveView(Console(file=drawn, force_terminal=True, width=100))
    with view:
        view.note("a node does not answer")
        view.show(SEVEN)
    text = drawn.getvalue()
    for words in ("queue 0", "queue 1", "07:00", "281,000", "33,000", "32,990", "p50 4 ms", "does not answer"):
        assert words in text


def test_plain_lines_come_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.show(SEVEN)
    view.show(SEVEN)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["07:00  pending 281,000  released 33,000  delivered 32,990  lateness p50 4 ms, p99 49 ms"]


def test_the_table_has_every_claim() -> None:
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(final_table(Verdict(10, 2, 8, 0, 0, 0, 0, 0, 1.0, 2.0, 3.0, ())))
    for name in (
        "produced",
        "cancelled",
        "delivered",
        "missing",
        "early",
        "duplicates",
        "lateness p50",
        "lateness p99",
    ):
        assert name in drawn.getvalue()
