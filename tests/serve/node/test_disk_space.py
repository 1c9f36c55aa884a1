"""The room that enqueues may take of a disk."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from delaynode.node import disk
from delaynode.node.disk import DiskSpace
from delaynode.store.errors import Refused

FREE, RESERVE = 1_000, 400


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock; the disk has FREE bytes, whatever is let in: nothing of it is written yet."""
    clock = [100.0]
    monkeypatch.setattr(disk, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(os, "statvfs", lambda directory: SimpleNamespace(f_bavail=FREE, f_frsize=1))
    return clock


def test_what_is_let_in_counts_as_used_until_the_disk_is_asked_again(now: list[float]) -> None:
    space = DiskSpace("/data", lambda: RESERVE)
    space.check(500)
    with pytest.raises(Refused, match="are kept for what is stored already"):
        space.check(101)
    now[0] += disk.CHECK_SECONDS
    space.check(600)


def test_what_is_not_written_when_the_disk_is_asked_counts_as_used_all_the_same(now: list[float]) -> None:
    space = DiskSpace("/data", lambda: RESERVE, lambda: 500)
    space.check(100)
    now[0] += disk.CHECK_SECONDS
    with pytest.raises(Refused):
        space.check(101)
    space.check(100)
    assert not space.full()


def test_a_full_disk_for_which_more_waits_has_nothing_free(now: list[float]) -> None:
    space = DiskSpace("/data", lambda: RESERVE, lambda: FREE + 96)
    assert space.poll() == (0, RESERVE)
    assert space.full()
    with pytest.raises(Refused, match="the node's disk has 0 MiB free"):
        space.check(1)
