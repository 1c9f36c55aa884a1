"""Message ids: which messages of the last day are stored, by 16 bytes that their senders' ids are hashed to.

    recent                  at most RECENT ids, in a dict; sealed into a run when it is full, or its hour is over
    runs                    sorted columns that never change: id S16[n], seq i64[n], due i64[n], 32 bytes an id

A run is of one hour of frame time (queue/producers.py). Runs of one hour are merged while the later one has at least
half the ids of the earlier, and all of them when the hour is over, up to MAX_RUN ids: so a lookup searches few of them,
and no merge takes long. An id is known until a day after the end of its hour, so for 24 to 25 hours; then its run is
dropped as a whole. Which ids are known follows from the frames and their times alone; how they are cut into runs does
not matter to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from delayapi.units import HOUR_MS

from delaynode.store.errors import Damaged, Refused
from delaynode.store.log.incoming_batch import ID, ID_BYTES
from delaynode.store.queue.producers import EXPIRY_MS
from delaynode.store.types import I64, Array, Bools, Ids

LIMIT = 10_000_000
RECENT = 2_048
FEW = 256  # of so many ids or more a run is made at once
MAX_RUN = 1 << 19  # to merge two halves of it takes 50 ms
RETRY_MS = 60_000


class _Run(NamedTuple):
    hour: int  # of frame time
    id: Ids  # ascending
    seq: I64
    due: I64


class MessageIds:
    """limit: ids that are known at once, which takes 32 bytes each."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._runs: list[_Run] = []  # in the order of their hours
        self._recent: dict[bytes, tuple[int, int]] = {}  # id -> (seq, due)
        self._hour = 0  # of the recent ones

    def __len__(self) -> int:
        return len(self._recent) + sum(len(run.id) for run in self._runs)

    def find(self, ids: Ids, time_ms: int) -> tuple[I64, I64]:
        """The seq i64[n], -1: not known, and the due i64[n] ms of each id at this frame time."""
        seq, due = np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.int64)
        order = np.argsort(ids, kind="stable")
        wanted = ids[order]  # one after the other they are found sooner
        if self._recent and not _is_over(self._hour, time_ms):
            for row, one in enumerate(_each(ids)):
                if (known := self._recent.get(one)) is not None:
                    seq[row], due[row] = known
        for run in self._runs:
            if _is_over(run.hour, time_ms):
                continue
            at = np.minimum(np.searchsorted(run.id, wanted), len(run.id) - 1)
            found = np.flatnonzero(run.id[at] == wanted)
            if len(found):
                seq[order[found]], due[order[found]] = run.seq[at[found]], run.due[at[found]]
        return seq, due

    def check_room(self, count: int, time_ms: int) -> None:
        """Raises Refused where `count` more ids are not to be known."""
        if len(self) + count > self.limit:
            self.expire(time_ms)
        if len(self) + count > self.limit:
            raise Refused(
                "TOO_MANY_MESSAGE_IDS",
                f"the shard knows {len(self):,} message ids of the last day, at most {self.limit:,}",
                retry_after_ms=RETRY_MS,
            )

    def add(self, ids: Ids, seq: I64, due: I64, time_ms: int) -> None:
        """These n messages were stored by a frame of this frame time."""
        hour = time_ms // HOUR_MS
        if hour != self._hour:
            self._seal()
            self._merge(whole=True)
            self.expire(time_ms)
            self._hour = hour
        if len(ids) >= FEW:
            self._add_run(ids, seq, due)
            return
        self._recent |= zip(_each(ids), zip(seq.tolist(), due.tolist(), strict=True), strict=True)
        if len(self._recent) >= RECENT:
            self._seal()

    def expire(self, time_ms: int) -> None:
        """Drop what is not known any more at this frame time."""
        self._runs = [run for run in self._runs if not _is_over(run.hour, time_ms)]
        if _is_over(self._hour, time_ms):
            self._recent = {}

    def _seal(self) -> None:
        """Make a run of the recent ids."""
        if self._recent:
            recent, self._recent = self._recent, {}
            values = np.array(list(recent.values()), np.int64).reshape(-1, 2)
            self._add_run(np.frombuffer(b"".join(recent), ID), values[:, 0], values[:, 1])

    def _add_run(self, ids: Ids, seq: I64, due: I64) -> None:
        self._runs.append(_sorted(self._hour, ids, seq, due))
        self._merge()

    def _merge(self, *, whole: bool = False) -> None:
        """Merge the hour's last runs while the later one has half the ids of the earlier; whole: all of the hour."""
        while len(self._runs) > 1:
            first, last = self._runs[-2:]
            size = len(first.id) + len(last.id)
            if first.hour != last.hour or size > MAX_RUN or not (whole or 2 * len(last.id) >= len(first.id)):
                return
            columns = [np.concatenate(pair) for pair in zip(first[1:], last[1:], strict=True)]
            self._runs[-2:] = [_sorted(first.hour, *columns)]

    # ------------------------------------------------------------ checkpoint
    def snapshot(self) -> dict[str, Array]:
        """All that is known, as arrays that nobody changes any more."""
        self._seal()
        if not self._runs:
            return {}
        arrays: dict[str, Array] = {"message_ids": np.array([run.hour for run in self._runs], np.int64)}
        for number, run in enumerate(self._runs):
            arrays |= {f"message_ids.{number}.{name}": getattr(run, name) for name in ("id", "seq", "due")}
        return arrays

    def restore(self, arrays: dict[str, Array]) -> None:
        """Know what snapshot() gave, and nothing else. Raises Damaged."""
        runs = []
        for number, hour in enumerate(arrays.get("message_ids", np.empty(0, np.int64)).tolist()):
            columns = [arrays[f"message_ids.{number}.{name}"] for name in ("id", "seq", "due")]
            if len({len(column) for column in columns}) != 1 or columns[0].dtype != ID or not len(columns[0]):
                raise Damaged(f"run {number} of message ids has columns of {[len(column) for column in columns]} rows")
            runs.append(_Run(hour, *(column.copy() for column in columns)))
        self._runs, self._recent = runs, {}
        self._hour = runs[-1].hour if runs else 0


def first_of_each(ids: Ids) -> tuple[npt.NDArray[np.intp], Bools]:
    """For each row the first row with its id, and whether it is that one itself. (n,) -> (n,), (n,)."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    first_row: npt.NDArray[np.intp] = first[inverse]
    return first_row, first_row == np.arange(len(ids))


def _is_over(hour: int, time_ms: int) -> bool:
    return (hour + 1) * HOUR_MS + EXPIRY_MS <= time_ms


def _each(ids: Ids) -> Sequence[bytes]:
    """All 16 bytes of each."""
    data = ids.tobytes()
    return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]


def _sorted(hour: int, ids: Ids, seq: I64, due: I64) -> _Run:
    order = np.argsort(ids, kind="stable")
    return _Run(hour, ids[order], seq[order], due[order])
