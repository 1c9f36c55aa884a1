"""The demo's check: it passes a clean run, and each way to lose, hurry or revive a message fails it."""

import numpy as np
from numpy.typing import NDArray

from demo.ledger import DELIVERY, Expected, Ledger, Produced, judge

DUE_MS = 1_000


def produced() -> Produced:
    """Six messages in two queues; the last one is to be cancelled."""
    return Produced(
        queue=np.array([1, 0, 1, 0, 1, 0]),
        seq=np.array([0, 0, 1, 1, 2, 2]),
        due_ms=np.full(6, DUE_MS),
        key_hash=np.arange(6, dtype=np.uint32),
    )


def deliveries(rows: list[int], late_ms: int = 5) -> NDArray[np.void]:
    made = produced()
    records = np.zeros(len(rows), DELIVERY)
    for name in ("queue", "seq", "due_ms", "key_hash"):
        records[name] = getattr(made, name)[rows]
    records["received_ms"] = records["due_ms"] + late_ms
    return records


def run(*batches: NDArray[np.void], cancel: int = 1, killed: bool = False, ready_ms: int = 1) -> tuple[str, ...]:
    ledger = Ledger(produced())
    ledger.cancel(np.array([5])[:cancel])
    for batch in batches:
        ledger.deliver(batch)
    return judge(ledger, Expected(flights=6, not_flown=1, killed=killed, ready_ms=ready_ms)).failures


def test_a_clean_run_passes() -> None:
    assert run(deliveries([0, 2]), deliveries([4, 1, 3])) == ()


def test_a_missing_message_fails() -> None:
    assert run(deliveries([0, 1, 2, 3])) == ("1 messages are missing",)


def test_an_early_message_fails() -> None:
    assert run(deliveries([0, 1, 2, 3]), deliveries([4], late_ms=-1)) == ("1 deliveries came early",)


def test_a_cancelled_message_that_is_delivered_fails() -> None:
    assert run(deliveries([0, 1, 2, 3, 4, 5])) == ("1 cancelled messages were delivered",)


def test_a_cancel_that_came_too_late_fails() -> None:
    assert run(deliveries([0, 1, 2, 3, 4, 5]), cancel=0) == ("0 of 1 cancels came in time",)


def test_production_that_ends_after_the_first_due_fails() -> None:
    assert run(deliveries([0, 1, 2, 3, 4]), ready_ms=-7)[0].startswith("production ended 7 ms after the first due")


def test_a_duplicate_fails_unless_a_node_was_killed() -> None:
    batches = deliveries([0, 1, 2, 3, 4]), deliveries([4])
    assert run(*batches) == ("1 duplicates although no node died",)
    assert run(*batches, killed=True) == ()


def test_a_duplicate_within_one_batch_is_seen() -> None:
    assert run(deliveries([0, 1, 2, 3, 4, 4])) == ("1 duplicates although no node died",)


def test_a_message_that_was_never_produced_fails() -> None:
    stranger = deliveries([0])
    stranger["seq"] = 99
    assert run(deliveries([0, 1, 2, 3, 4]), stranger)[0].startswith("1 deliveries were of nothing produced")


def test_a_message_with_another_key_fails() -> None:
    altered = deliveries([4])
    altered["key_hash"] += 1
    assert run(deliveries([0, 1, 2, 3]), altered)[0].startswith("1 deliveries were of nothing produced")


def test_fewer_acknowledged_than_flights_fails() -> None:
    ledger = Ledger(produced())
    ledger.cancel(np.array([5]))
    ledger.deliver(deliveries([0, 1, 2, 3, 4]))
    assert judge(ledger, Expected(7, 1, False, 1)).failures == ("6 of 7 flights were acknowledged",)


def test_lateness_is_that_of_the_first_delivery() -> None:
    ledger = Ledger(produced())
    ledger.deliver(deliveries([0], late_ms=3))
    ledger.deliver(deliveries([0], late_ms=9_000))
    assert judge(ledger, Expected(6, 1, True, 1)).lateness_max_ms == 3
