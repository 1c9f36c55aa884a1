"""The ledger tells what a workload's deliveries were worth."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from delayclient.producer.results import BatchPart, BatchResult

from benchmarks.workloads.ledger import DeliveryRecord, NothingDelivered
from benchmarks.workloads.receive import delivered

DUE_MS = 1_000_000


def stored(queue: int, first_seq: int, n: int) -> BatchResult:
    rows = np.arange(n, dtype=np.int64)
    return BatchResult(n, [BatchPart("t", queue, 7, first_seq, rows, np.full(n, DUE_MS, np.int64))])


def came(ledger: DeliveryRecord, queue: int, seqs: list[int], received_ms: float) -> None:
    ledger.received(queue, np.array(seqs, np.int64), np.full(len(seqs), DUE_MS, np.int64), received_ms)


def test_all_in_time_is_no_fault() -> None:
    ledger = DeliveryRecord()
    ledger.stored(stored(0, 5, 3))
    ledger.stored(stored(1, 5, 1))
    came(ledger, 0, [5, 6], DUE_MS + 10.0)
    came(ledger, 0, [7], DUE_MS + 20.0)
    came(ledger, 1, [5], DUE_MS + 110.0)
    verdict = ledger.verdict()
    assert (verdict.delivered, verdict.early, verdict.missing, verdict.duplicates) == (4, 0, 0, 0)
    assert (verdict.lateness_ms.min, verdict.lateness_ms.max) == (10.0, 110.0)
    assert verdict.seconds == pytest.approx(0.1)
    assert verdict.messages_per_second == pytest.approx(40)


def test_a_message_before_its_due_is_early_even_by_less_than_a_millisecond() -> None:
    ledger = DeliveryRecord()
    ledger.stored(stored(0, 0, 2))
    came(ledger, 0, [0], DUE_MS - 0.25)
    came(ledger, 0, [1], float(DUE_MS))
    assert ledger.verdict().early == 1


def test_the_same_seq_of_another_queue_does_not_make_up_for_a_missing_one() -> None:
    ledger = DeliveryRecord()
    ledger.stored(stored(0, 0, 2))
    ledger.stored(stored(1, 0, 2))
    came(ledger, 0, [0, 1], DUE_MS + 1.0)
    came(ledger, 1, [0], DUE_MS + 1.0)
    assert ledger.missing == 1
    assert ledger.verdict().missing == 1


def test_a_message_that_came_twice_is_delivered_once_and_a_duplicate() -> None:
    ledger = DeliveryRecord()
    ledger.stored(stored(0, 0, 2))
    came(ledger, 0, [0, 1], DUE_MS + 1.0)
    ledger.one_by_one.append((0, 1, DUE_MS, DUE_MS + 2.0, 256))
    assert ledger.delivered == 3
    verdict = ledger.verdict()
    assert (verdict.delivered, verdict.missing, verdict.duplicates) == (2, 0, 1)


def test_messages_of_others_in_the_topic_do_not_count() -> None:
    ledger = DeliveryRecord()
    ledger.stored_one(0, 8)
    came(ledger, 0, [3], DUE_MS - 5000.0)
    came(ledger, 0, [8], DUE_MS + 1.0)
    verdict = ledger.verdict()
    assert (verdict.delivered, verdict.early, verdict.duplicates) == (1, 0, 0)


def test_nothing_at_all_is_an_error_and_not_a_rate() -> None:
    ledger = DeliveryRecord()
    ledger.stored(stored(0, 0, 2))
    with pytest.raises(NothingDelivered, match="none of 2"):
        ledger.verdict()


def test_waiting_ends_when_what_was_stored_has_come_not_so_much_else() -> None:
    ledger = DeliveryRecord()
    ledger.stored(stored(0, 10, 3))

    async def receiver() -> None:
        came(ledger, 0, [0, 1, 2, 3, 10, 11], DUE_MS + 1.0)  # the topic is somebody else's, too
        await asyncio.sleep(0.9)
        came(ledger, 0, [12], DUE_MS + 1.0)
        await asyncio.Event().wait()

    async def main() -> float:
        began = time.monotonic()
        work = asyncio.create_task(receiver())
        await delivered(work, ledger, 3, 30.0, lambda n: None)
        work.cancel()
        return time.monotonic() - began

    assert asyncio.run(main()) < 20, "did not wait for more than that"
    assert ledger.verdict().missing == 0
