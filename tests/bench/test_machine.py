"""The benchmark's description of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.workloads import machine


def test_the_sequential_write_leaves_nothing_behind(tmp_path: Path) -> None:
    assert machine.sequential_write(tmp_path, 3 * machine.CHUNK_BYTES + 5) > 0
    assert list(tmp_path.iterdir()) == []


def test_disk_use_is_what_is_allocated_in_all_directories_below(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "one", tmp_path / "a" / "two"):
        path.write_bytes(os.urandom(100_000))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    assert 200_000 <= machine.disk_bytes(tmp_path) <= 300_000


def test_memory_grows_with_what_a_process_holds_and_its_peak_stays() -> None:
    before = machine.memory(os.getpid())
    held = np.ones(8_000_000)  # 64 MB, touched
    during = machine.memory(os.getpid())
    assert during.rss_bytes >= before.rss_bytes + 0.9 * held.nbytes
    assert during.rss_bytes >= during.anon_bytes > 0
    del held
    assert machine.memory(os.getpid()).peak_bytes >= 0.9 * during.rss_bytes  # the kernel counts it roughly


def test_a_stall_is_seen_and_its_length_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [100.0, 100.06, 107.11, 107.17]  # woken on time, then seven seconds late, then on time
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=lambda: clock_s.pop(0) if clock_s else 107.2))
    with machine.StallWatch() as watch:
        while clock_s:
            time.sleep(0.01)
    assert watch.longest_s == pytest.approx(7.0)


def test_the_machine_line_names_cores_memory_and_file_system(tmp_path: Path) -> None:
    line = machine.describe(tmp_path)
    assert " cores, " in line
    assert " GiB memory, " in line
    assert line.endswith(machine.file_system(tmp_path))
    assert machine.file_system(Path("/proc")) == "proc"
