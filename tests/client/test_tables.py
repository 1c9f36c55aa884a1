"""Tables of `delayctl` where there is no terminal, and sizes in words."""

from __future__ import annotations

import pytest
from delayapi.units import format_bytes
from delayctl.common import print_table
from rich.table import Table

CELLS = ("delaycluster-hello-2.example.internal:7070", "0123456789abcdef", "x" * 90, "copies of shards: a-0, b-1 " * 8)


def wide() -> Table:
    table = Table("ENDPOINT", "UID", "SHARD", "REMARKS", box=None, pad_edge=False)
    table.add_row(*CELLS)
    return table


def test_a_table_is_whole_and_a_line_a_row_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(wide())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(cell.strip() in lines[1] for cell in CELLS)


def test_a_width_that_was_asked_for_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table(wide())
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1 << 20, "1 MiB"),
        (3 << 29, "1.5 GiB"),
        ((4 << 20) + 1, "4,194,305 bytes"),
        (384 << 10, "384 KiB"),
    ],
)
def test_a_size_in_words_is_exact(size: int, words: str) -> None:
    assert format_bytes(size) == words
