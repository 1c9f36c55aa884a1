"""benchmarks/record.py writes the table and leaves the rest of the page alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import hotspots, record

ENQUEUED = {
    "messages_per_second": 700_000.0,
    "bytes_per_second": 179e6,
    "disk_sequential_bytes_per_second": 1e9,
    "disk_share": 0.179,
    "client_cpu_us_per_message": 0.3,
    "node_cpu_us_per_message": 0.9,
}


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Ours\n\nbefore\n{record.BEGIN}\nold\n{record.END}\nafter\n")
    record.write(page, "new")
    record.write(page, "newer")
    assert page.read_text() == f"# Ours\n\nbefore\n{record.BEGIN}\n\nnewer\n\n{record.END}\nafter\n"


def test_a_page_without_marks_gets_them_and_keeps_its_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Ours\n\ntext\n")
    record.write(page, "new")
    assert page.read_text().startswith("# Ours\n\ntext\n\n" + record.BEGIN)
    fresh = tmp_path / "fresh.md"
    record.write(fresh, "new")
    assert fresh.read_text() == f"# Benchmarks\n\n{record.BEGIN}\n\nnew\n\n{record.END}\n"


def test_a_page_with_half_a_pair_of_marks_is_not_touched(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{record.END}\ntext")
    with pytest.raises(ValueError, match="marks"):
        record.write(page, "new")
    assert page.read_text() == f"{record.END}\ntext"


def test_the_median_run_is_the_one_that_meets_or_misses_the_target() -> None:
    slow, fast = {**ENQUEUED, "messages_per_second": 500_000.0}, {**ENQUEUED, "messages_per_second": 800_000.0}
    met = record.line(record.TABLE[0], ["w1"], [fast, slow, ENQUEUED])
    assert "700,000 messages/s" in met
    assert met.endswith("| 3: 500,000 .. 800,000, mean 666,667 | 600,000/s, or half the disk's rate | yes |")
    assert record.line(record.TABLE[0], ["w1"], [slow, slow, fast]).endswith("| no |")


def test_half_of_a_slow_disk_meets_the_enqueue_target() -> None:
    slow_disk: dict[str, Any] = {**ENQUEUED, "messages_per_second": 300_000.0, "disk_share": 0.6}
    assert record.line(record.TABLE[0], ["w1"], [slow_disk]).endswith("| yes |")


def test_the_hot_lines_come_first() -> None:
    raw = (
        "thread (1): MainThread;run (a.py:1);slow (a.py:7) 30\nthread (1): MainThread;run (a.py:1);quick (a.py:9) 10\n"
    )
    lines = list(hotspots.report("node", raw, 2))
    assert [line.split(" %")[1].split() for line in lines if "%" in line] == [
        ["MainThread"],
        ["MainThread", "slow", "(a.py:7)"],
        ["MainThread", "quick", "(a.py:9)"],
        ["run", "(a.py"],
        ["slow", "(a.py"],
    ]
