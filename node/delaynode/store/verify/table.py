"""Columns that grow, and questions about sets of (due, seq) pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from delaynode.store.columns import release_order
from delaynode.store.types import I64, Array

PART = 1 << 20  # pairs compared at a time, about


class Table:
    """Rows with named columns, appended in batches; about the rows' own bytes of memory."""

    def __init__(self, **dtypes: str) -> None:
        self._columns = {name: np.empty(1024, dtype) for name, dtype in dtypes.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, count: int, **columns: object) -> None:
        """`count` rows; a scalar is repeated."""
        end = self._count + count
        for name, column in self._columns.items():
            if end > len(column):
                column.resize(max(end, len(column) + (len(column) >> 2)), refcheck=False)
            column[self._count : end] = columns[name]
        self._count = end

    def __getitem__(self, name: str) -> Array:
        return self._columns[name][: self._count]


@dataclass(frozen=True, slots=True)
class PairSource:
    """Pairs (n,); each counts `sign` in its group (0, 1, ...)."""

    due: I64
    seq: I64
    group: int
    sign: int = 1


@dataclass(frozen=True, slots=True)
class PairTally:
    """Distinct pairs (n,), and how often each group has them: i64 (n,) a group."""

    due: I64
    seq: I64
    counts: tuple[I64, ...]


def tallies(*sources: PairSource) -> Iterator[PairTally]:
    """How often each pair is in each group of sources, a range of seqs at a time, so that memory stays bounded."""
    groups = 1 + max(source.group for source in sources)
    total = sum(len(source.seq) for source in sources)
    if not total:
        return
    parts = -(-total // PART)
    sample = np.sort(np.concatenate([source.seq[:: max(1, total // 100_000)] for source in sources]))
    cuts = np.unique(sample[(np.arange(1, parts) * len(sample)) // parts]).tolist()
    for low, high in zip([None, *cuts], [*cuts, None], strict=True):
        dues, seqs, signs, group_of = [], [], [], []
        for source in sources:
            inside = np.ones(len(source.seq), bool)
            if low is not None:
                inside &= source.seq >= low
            if high is not None:
                inside &= source.seq < high
            dues.append(source.due[inside])
            seqs.append(source.seq[inside])
            signs.append(np.full(len(dues[-1]), source.sign, np.int64))
            group_of.append(np.full(len(dues[-1]), source.group, np.int8))
        due, seq = np.concatenate(dues), np.concatenate(seqs)
        if not len(due):
            continue
        order = release_order(due, seq)
        due, seq = due[order], seq[order]
        starts = np.flatnonzero(np.concatenate(([True], (due[1:] != due[:-1]) | (seq[1:] != seq[:-1]))))
        which, weight = np.concatenate(group_of)[order], np.concatenate(signs)[order]
        counts = tuple(np.add.reduceat(np.where(which == group, weight, 0), starts) for group in range(groups))
        yield PairTally(due[starts], seq[starts], counts)
