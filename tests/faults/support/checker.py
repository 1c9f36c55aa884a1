"""The set checker compares the promises to producers and cancellers with the messages that consumers saw.

Invariants 1, 2 and 4 (docs/protocol.md), each a set that must be empty:

    missing        acknowledged, not cancelled, never delivered
    early          received before its due, by the same machine's clock
    uncancelled    answered CANCELLED and delivered
    stored_twice   one message under two (queue, seq): a retry was stored again
    unseen         a queue offset that showed one message and later another one
    after_ack      handed out by a call that was made after its Ack had been answered
    wrong_due      delivered with a due that no producer asked for
    invented       delivered, but never sent
    faults         an answer that no caller should get

Deliveries that repeat one are no fault (at least once): they are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery. asked_ms, received_ms: the consumer's clock before the call and at its answer."""

    id: int
    queue: int
    offset: int
    seq: int
    due_ms: int
    asked_ms: int
    received_ms: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where an acknowledged message is stored."""

    queue: int
    seq: int
    due_ms: int


@dataclass(frozen=True)
class Report:
    acknowledged: int
    cancelled: int
    moved: int
    delivered: int
    duplicates: int
    retried_batches: int
    lateness_p50_ms: float
    lateness_p99_ms: float
    broken: dict[str, Sequence[object]]

    def __str__(self) -> str:
        counts = " ".join(f"{name} {len(found)}" for name, found in self.broken.items())
        return (
            f"acknowledged {self.acknowledged} cancelled {self.cancelled} moved {self.moved} "
            f"delivered {self.delivered} duplicates {self.duplicates} retried batches {self.retried_batches} "
            f"lateness ms p50 {self.lateness_p50_ms:.0f} p99 {self.lateness_p99_ms:.0f} (outages included); {counts}"
        )


@dataclass
class Ledger:
    """The load's tasks write it, all on one event loop."""

    sent: set[int] = field(default_factory=set)
    acknowledged: dict[int, Place] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    moved: dict[int, int] = field(default_factory=dict)  # id -> the due that MOVED was answered for
    maybe_moved: dict[int, int] = field(default_factory=dict)  # id -> the due of a reschedule without an answer
    deliveries: list[Delivery] = field(default_factory=list)
    acked_ms: dict[tuple[int, int], int] = field(default_factory=dict)  # (queue, offset) -> when Ack was answered
    delivered: set[int] = field(default_factory=set)
    retried_batches: int = 0
    faults: list[object] = field(default_factory=list)

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.delivered.add(delivery.id)

    def ack(self, queue: int, offsets: list[int], answered_ms: int) -> None:
        """Record an answered Ack. The first one counts: a message that is wrongly delivered again is acked again."""
        for offset in offsets:
            self.acked_ms.setdefault((queue, offset), answered_ms)

    @property
    def missing(self) -> set[int]:
        return self.acknowledged.keys() - self.cancelled - self.delivered

    def check(self) -> Report:
        lateness = [one.received_ms - one.due_ms for one in self._firsts()] or [0]
        return Report(
            acknowledged=len(self.acknowledged),
            cancelled=len(self.cancelled),
            moved=len(self.moved),
            delivered=len(self.delivered),
            duplicates=len(self.deliveries) - len(self.delivered),
            retried_batches=self.retried_batches,
            lateness_p50_ms=float(np.percentile(lateness, 50)),
            lateness_p99_ms=float(np.percentile(lateness, 99)),
            broken={
                "missing": sorted(self.missing),
                "early": [one for one in self.deliveries if one.received_ms < one.due_ms],
                "uncancelled": sorted(self.cancelled & self.delivered),
                "stored_twice": self._stored_twice(),
                "unseen": self._unseen(),
                "after_ack": [
                    one for one in self.deliveries if one.asked_ms > self.acked_ms.get((one.queue, one.offset), 2**62)
                ],
                "wrong_due": [one for one in self.deliveries if one.id in self.sent and not self._asked_for(one)],
                "invented": sorted(self.delivered - self.sent),
                "faults": self.faults,
            },
        )

    def _firsts(self) -> list[Delivery]:
        first: dict[int, Delivery] = {}
        for one in self.deliveries:
            first.setdefault(one.id, one)
        return list(first.values())

    def _stored_twice(self) -> list[object]:
        places: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for one in self.deliveries:
            places[one.id].add((one.queue, one.seq))
        for id_, place in self.acknowledged.items():
            places[id_].add((place.queue, place.seq))
        return [(id_, found) for id_, found in places.items() if len(found) > 1]

    def _unseen(self) -> list[object]:
        seen: dict[tuple[int, int], set[int]] = defaultdict(set)
        for one in self.deliveries:
            seen[one.queue, one.offset].add(one.id)
        return [(place, ids) for place, ids in seen.items() if len(ids) > 1]

    def _asked_for(self, one: Delivery) -> bool:
        place = self.acknowledged.get(one.id)
        if place is None:
            return True  # stored, but the answer got lost for good: no client knows its due
        if one.id in self.moved:
            return one.due_ms == self.moved[one.id]
        return one.due_ms in (place.due_ms, self.maybe_moved.get(one.id))
