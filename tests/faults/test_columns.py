"""The checker in columns sees every promise that is broken; so a report without one says something."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.faults.support.columns import I64, Columns
from tests.faults.support.failover import longest_gap

ZERO = 1_700_000_000_000


def ids(*values: int) -> I64:
    return np.array(values, np.int64)


def kept() -> Columns:
    """Four messages, of which 0 to 2 were acknowledged, with dues 100, 200, 300; and delivered in time to both."""
    columns = Columns(ZERO)
    assert columns.new(4) == 0
    columns.acknowledge(ids(0, 1, 2), 1, ids(7, 8, 9), ZERO + ids(100, 200, 300))
    for group in (0, 1):
        deliver(columns, group, 0, 1, 2)
    return columns


def deliver(columns: Columns, group: int, *which: int, at_ms: int = 1_000) -> None:
    rows = ids(*which)
    columns.deliver(group, 1, rows, rows, rows + 7, ZERO + (rows + 1) * 100, ZERO + at_ms)


def test_what_is_kept_breaks_nothing() -> None:
    columns = kept()
    deliver(columns, 1, 2)
    totals = columns.totals()
    assert totals.broken == {}
    assert (totals.sent, totals.acknowledged, totals.delivered, totals.duplicates) == (4, 3, (3, 3), (0, 1))


def missing(columns: Columns) -> None:
    columns.acknowledge(ids(3), 1, ids(10), ZERO + ids(400))
    deliver(columns, 0, 3)


def early(columns: Columns) -> None:
    deliver(columns, 0, 2, at_ms=299)


def uncancelled(columns: Columns) -> None:
    columns.cancel(ids(1))


def stored_twice(columns: Columns) -> None:
    columns.deliver(0, 1, ids(2), ids(50), ids(51), ZERO + ids(300), ZERO + 1_000)


def unseen(columns: Columns) -> None:
    columns.acknowledge(ids(3), 1, ids(10), ZERO + ids(400))
    for group in (0, 1):
        columns.deliver(group, 1, ids(3), ids(2), ids(10), ZERO + ids(400), ZERO + 1_000)


def wrong_due(columns: Columns) -> None:
    columns.deliver(0, 1, ids(2), ids(2), ids(9), ZERO + ids(301), ZERO + 1_000)


def invented(columns: Columns) -> None:
    deliver(columns, 0, 4)


@pytest.mark.parametrize("breach", [missing, early, uncancelled, stored_twice, unseen, wrong_due, invented])
def test_a_broken_lease_is_seen(breach: Callable[[Columns], None]) -> None:
    columns = kept()
    breach(columns)
    (what,) = columns.totals().broken
    assert what.startswith(breach.__name__)


def test_a_moved_message_may_come_at_its_new_due_or_where_that_is_unsure_at_either() -> None:
    columns = Columns(ZERO)
    columns.new(2)
    columns.acknowledge(ids(0, 1), 1, ids(7, 8), ZERO + ids(100, 200))
    columns.maybe_move(ids(0, 1), ZERO + 900)
    columns.move(ids(0), np.array([True]))
    for group in (0, 1):
        columns.deliver(group, 1, ids(0, 1), ids(0, 1), ids(7, 8), ZERO + ids(900, 200), ZERO + 1_000)
    assert columns.totals().broken == {}
    columns.deliver(0, 1, ids(0), ids(0), ids(7), ZERO + ids(100), ZERO + 1_000)
    assert list(columns.totals().broken) == ["wrong_due"]


def test_a_message_whose_cancel_has_no_answer_may_come_or_not() -> None:
    columns = Columns(ZERO)
    columns.new(3)
    columns.acknowledge(ids(0, 1, 2), 1, ids(7, 8, 9), ZERO + ids(100, 200, 300))
    columns.doubt_cancel(ids(0, 1))
    for group in (0, 1):
        columns.deliver(group, 1, ids(1), ids(0), ids(8), ZERO + ids(200), ZERO + 1_000)
    assert list(columns.totals().broken) == ["missing from g", "missing from h"]
    assert [columns.missing(group).tolist() for group in (0, 1)] == [[2], [2]], "the control"


def test_the_longest_gap_is_that_after_the_harm() -> None:
    assert longest_gap([1.0, 3.0, 9.5, 10.0, 10.2, 13.2, 13.3], harmed=10.1) == 3.0
    assert longest_gap([9.5, 10.0], harmed=10.1) is None
