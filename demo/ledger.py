"""The ledger of produced, cancelled and delivered messages, row by row, and the verdict over it."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

# One delivery as a worker records it; 32 bytes.
DELIVERY = np.dtype([("queue", "<u4"), ("key_hash", "<u4"), ("seq", "<i8"), ("due_ms", "<i8"), ("received_ms", "<i8")])
SEQ_BITS = 44  # a row's identity is queue and seq in one i64


@dataclass(frozen=True)
class Produced:
    """The n acknowledged messages in the order they were produced: queue, seq, due_ms i64[n], key_hash u32[n]."""

    queue: NDArray[np.int64]
    seq: NDArray[np.int64]
    due_ms: NDArray[np.int64]
    key_hash: NDArray[np.uint32]


def identity(queue: NDArray[np.int64], seq: NDArray[np.int64]) -> NDArray[np.int64]:
    """i64[n]: (queue, seq) as one number."""
    ids: NDArray[np.int64] = (queue.astype(np.int64) << SEQ_BITS) | seq.astype(np.int64)
    return ids


class Ledger:
    """Deliveries counted against what was produced.

    times: i32[n] deliveries of each row; lateness_ms: i64[n] of its first one; cancelled: bool[n].
    unidentified senders: deliveries of nothing that was produced; altered: deliveries with another due or key than
    produced;
    early: deliveries before their due.
    """

    def __init__(self, produced: Produced) -> None:
        self.produced = produced
        n = len(produced.seq)
        ids = identity(produced.queue, produced.seq)
        self._order = np.argsort(ids)
        self._ids = ids[self._order]
        if n and (np.diff(self._ids) == 0).any():
            raise ValueError("two messages were acknowledged with the same queue and seq")
        self.times = np.zeros(n, np.int32)
        self.lateness_ms = np.zeros(n, np.int64)
        self.cancelled = np.zeros(n, np.bool_)
        self.strangers = self.altered = self.early = 0

    def cancel(self, rows: NDArray[np.int64]) -> None:
        """Notes that these rows were answered CANCELLED."""
        self.cancelled[rows] = True

    def deliver(self, deliveries: NDArray[np.void]) -> NDArray[np.int64]:
        """Counts DELIVERY records; answers the rows that were delivered for the first time."""
        if not len(deliveries) or not len(self._ids):
            self.strangers += len(deliveries)
            return np.zeros(0, np.int64)
        ids = identity(deliveries["queue"], deliveries["seq"])
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        known = self._ids[at] == ids
        self.strangers += int((~known).sum())
        rows, deliveries = self._order[at[known]], deliveries[known]
        late = deliveries["received_ms"] - deliveries["due_ms"]
        self.early += int((late < 0).sum())
        self.altered += int(
            (
                (deliveries["due_ms"] != self.produced.due_ms[rows])
                | (deliveries["key_hash"] != self.produced.key_hash[rows])
            ).sum()
        )
        first_at = np.unique(rows, return_index=True)[1]
        first_at = first_at[self.times[rows[first_at]] == 0]
        first_rows: NDArray[np.int64] = rows[first_at]
        self.lateness_ms[first_rows] = late[first_at]
        np.add.at(self.times, rows, 1)
        return first_rows

    @property
    def missing(self) -> int:
        """Rows neither cancelled nor delivered."""
        return int(((self.times == 0) & ~self.cancelled).sum())


@dataclass(frozen=True)
class Verdict:
    """The final table. `failures` says in words what does not hold; empty when all does."""

    produced: int
    cancelled: int
    delivered: int
    missing: int
    early: int
    duplicates: int
    cancelled_but_delivered: int
    unknown_or_altered: int
    lateness_p50_ms: float
    lateness_p99_ms: float
    lateness_max_ms: float
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class Expected:
    """The numbers that the data asks for, and the run's circumstances.

    killed: a node was killed, so a message may come twice. ready_ms: from the last cancel to the first due.
    """

    flights: int
    not_flown: int
    killed: bool
    ready_ms: int


def judge(ledger: Ledger, expected: Expected) -> Verdict:
    """Compares the ledger with what the data asks for."""
    seen = ledger.times > 0
    lateness = ledger.lateness_ms[seen]
    p50, p99, worst = np.percentile(lateness, [50, 99, 100]) if len(lateness) else (0.0, 0.0, 0.0)
    produced, cancelled = len(ledger.times), int(ledger.cancelled.sum())
    delivered, duplicates = int(seen.sum()), int(np.maximum(ledger.times - 1, 0).sum())
    revived = int((seen & ledger.cancelled).sum())
    wrong = ledger.strangers + ledger.altered
    claims = [
        (produced == expected.flights, f"{produced:,} of {expected.flights:,} flights were acknowledged"),
        (cancelled == expected.not_flown, f"{cancelled:,} of {expected.not_flown:,} cancels came in time"),
        (
            expected.ready_ms > 0,
            f"production ended {-expected.ready_ms:,} ms after the first due",
        ),
        (ledger.missing == 0, f"{ledger.missing:,} messages are missing"),
        (ledger.early == 0, f"{ledger.early:,} deliveries came early"),
        (expected.killed or duplicates == 0, f"{duplicates:,} duplicates although no node died"),
        (revived == 0, f"{revived:,} cancelled messages were delivered"),
        (wrong == 0, f"{wrong:,} deliveries were of nothing produced, or not as produced"),
    ]
    return Verdict(
        produced=produced,
        cancelled=cancelled,
        delivered=delivered,
        missing=ledger.missing,
        early=ledger.early,
        duplicates=duplicates,
        cancelled_but_delivered=revived,
        unknown_or_altered=wrong,
        lateness_p50_ms=round(float(p50), 1),
        lateness_p99_ms=round(float(p99), 1),
        lateness_max_ms=float(worst),
        failures=tuple(words for holds, words in claims if not holds),
    )
