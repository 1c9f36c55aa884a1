"""The checker itself: each broken promise is seen, and a kept one is not called broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.support.checker import Delivery, Ledger, Place

ONE = Delivery(id=1, queue=0, offset=0, seq=5, due_ms=1_000, asked_ms=900, received_ms=1_001)


def kept() -> Ledger:
    """Three messages: delivered, cancelled, moved."""
    ledger = Ledger(sent={1, 2, 3})
    ledger.acknowledged = {1: Place(0, 5, 1_000), 2: Place(0, 6, 1_000), 3: Place(0, 7, 1_000)}
    ledger.cancelled = {2}
    ledger.moved = {3: 2_000}
    ledger.deliver(ONE)
    ledger.deliver(Delivery(id=3, queue=0, offset=1, seq=7, due_ms=2_000, asked_ms=1_900, received_ms=2_000))
    ledger.ack(0, [0], answered_ms=1_005)
    ledger.ack(0, [0], answered_ms=9_000)
    return ledger


def broken(ledger: Ledger) -> set[str]:
    return {what for what, found in ledger.check().broken.items() if found}


def test_kept_leases_are_not_called_broken() -> None:
    ledger = kept()
    ledger.deliver(replace(ONE, asked_ms=1_005, received_ms=1_400))  # asked for before the Ack was answered
    report = ledger.check()
    assert broken(ledger) == set()
    assert (report.delivered, report.duplicates, report.cancelled, report.moved) == (2, 1, 1, 1)
    assert report.lateness_p50_ms == 0.5


@pytest.mark.parametrize(
    ("delivery", "what"),
    [
        (replace(ONE, received_ms=999), {"early"}),
        (replace(ONE, id=2, offset=2, seq=6), {"uncancelled"}),
        (replace(ONE, offset=2, seq=9), {"stored_twice"}),
        (replace(ONE, offset=2, queue=1), {"stored_twice"}),
        (replace(ONE, id=3, seq=7, due_ms=2_000, received_ms=2_000, asked_ms=0), {"unseen"}),
        (replace(ONE, asked_ms=1_006), {"after_ack"}),
        (replace(ONE, due_ms=900), {"wrong_due"}),
        (replace(ONE, id=3, offset=1, seq=7), {"wrong_due"}),  # at the due that it was moved away from
        (replace(ONE, id=4, offset=2, seq=8), {"invented"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, set) else "",
)
def test_a_broken_lease_is_seen(delivery: Delivery, what: set[str]) -> None:
    ledger = kept()
    ledger.deliver(delivery)
    assert broken(ledger) == what


def test_a_message_that_does_not_come_is_missing() -> None:
    ledger = kept()
    ledger.acknowledged[9] = Place(0, 9, 1_000)
    assert ledger.check().broken["missing"] == [9]


def test_a_reschedule_without_an_answer_allows_both_dues_and_no_other() -> None:
    for due_ms, what in ((1_000, set[str]()), (3_000, set[str]()), (2_500, {"wrong_due"})):
        ledger = Ledger(sent={1}, acknowledged={1: Place(0, 5, 1_000)}, maybe_moved={1: 3_000})
        ledger.deliver(replace(ONE, due_ms=due_ms, received_ms=5_000))
        assert broken(ledger) == what
