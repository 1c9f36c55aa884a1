"""The room that enqueues may take of a disk."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from delaynode.node import disk
from delaynode.node.disk import DiskSpace
from delaynode.node.node import Node
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


def test_a_whole_copy_must_leave_the_reserve_free(now: list[float]) -> None:
    """The room of the copy that it replaces counts: that one goes first."""
    space = DiskSpace("/data", lambda: RESERVE)
    with pytest.raises(Refused, match="is larger than what the disk has"):
        space.check_copy(601, 0)
    with pytest.raises(Refused):
        space.check_copy(901, 300)
    space.check_copy(900, 300)
    with pytest.raises(Refused):
        space.check_copy(1, 0)  # another shard's, before the disk is asked again


def test_a_copy_that_does_not_fit_is_refused_in_figures_that_people_use(monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of_3_gib = SimpleNamespace(f_bavail=3 << 18, f_frsize=4 << 10)
    monkeypatch.setattr(os, "statvfs", lambda directory: disk_of_3_gib)
    with pytest.raises(Refused) as refused:
        DiskSpace("/data", lambda: 834 << 20).check_copy(10 << 30, 1 << 30)
    assert str(refused.value) == (
        "a copy of 10,240 MiB is larger than what the disk has for it, 3,262 MiB: 3,072 MiB are free, the copy that it "
        "replaces has 1,024 MiB, and 834 MiB are kept for what is stored already"
    )


def test_what_is_still_to_come_of_whole_copies_counts_as_used() -> None:
    copies = [SimpleNamespace(total_bytes=900, done_bytes=200), None, SimpleNamespace(total_bytes=50, done_bytes=0)]
    replicas = [SimpleNamespace(local=SimpleNamespace(storage=SimpleNamespace(fetching=one))) for one in copies]
    node: Any = SimpleNamespace(copies=list, _replicas=replicas)
    assert Node._unwritten_bytes(node) == 750


def test_a_full_disk_for_which_more_waits_has_nothing_free(now: list[float]) -> None:
    space = DiskSpace("/data", lambda: RESERVE, lambda: FREE + 96)
    assert space.poll() == (0, RESERVE)
    assert space.full()
    with pytest.raises(Refused, match="the node's disk has 0 MiB free"):
        space.check(1)
