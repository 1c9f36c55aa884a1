"""What is asked of columns: as plain numbers where rows are few, since NumPy costs more than it saves there.

Both ways give the same answers; the tests take both (see FEW).
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from delaynode.store.types import I64, Array, Bools, Pair

FEW = 8  # rows: up to so many are quicker one by one


def is_few(count: int) -> bool:
    return count <= FEW


def is_one(count: int) -> bool:
    """Whether there is one row, to be taken as plain numbers: no row is where tests have FEW as 0."""
    return count == 1 <= FEW


def total(column: Array) -> int:
    """The sum of a column (n,) of whole numbers."""
    return sum(column.tolist()) if is_few(len(column)) else int(column.sum(dtype=np.int64))


def highest(column: Array) -> tuple[int, int]:
    """The largest number of a column (n,), n > 0, and the first row that has it."""
    if is_few(len(column)):
        values = column.tolist()
        value = max(values)
        return value, values.index(value)
    at = int(column.argmax())
    return int(column[at]), at


def lowest(column: Array) -> tuple[int, int]:
    """The smallest number of a column (n,), n > 0, and the first row that has it."""
    if is_few(len(column)):
        values = column.tolist()
        value = min(values)
        return value, values.index(value)
    at = int(column.argmin())
    return int(column[at]), at


def distinct(column: Array) -> set[int]:
    """The numbers that a column (n,) has."""
    return set(column.tolist() if is_few(len(column)) else np.unique(column).tolist())


def offsets_from(size: Array, start: int) -> I64:
    """Where things of these sizes (n,) begin that lie one after the other from `start` on, (n,)."""
    if is_few(len(size)):
        return np.array([*accumulate(size.tolist(), initial=start)][:-1], np.int64)
    begin = np.cumsum(size, dtype=np.int64)
    begin -= size
    begin += start
    return begin


def at_or_below(due: I64, seq: I64, pair: Pair) -> Bools:
    """Which rows of (due, seq) lie at or below `pair`. Shapes (n,) -> (n,)."""
    if is_few(len(due)):
        return np.array([row <= pair for row in zip(due.tolist(), seq.tolist(), strict=True)], bool)
    below: Bools = (due < pair.due) | ((due == pair.due) & (seq <= pair.seq))
    return below


def release_order(due: I64, seq: I64) -> npt.NDArray[np.intp]:
    """The stable permutation that sorts rows by (due, seq). Shapes (n,), (n,) -> (n,).

    One sort of a combined key where the two ranges fit in 63 bits together (a minute's dues and 2^47 seqs do):
    half the work of two stable sorts, and fast on the presorted runs that a chain consists of.
    """
    if is_few(len(due)):
        rows = list(zip(due.tolist(), seq.tolist(), strict=True))
        return np.array(sorted(range(len(rows)), key=rows.__getitem__), np.intp)
    low_due, low_seq = int(due.min()), int(seq.min())
    due_bits = (int(due.max()) - low_due).bit_length()
    seq_bits = (int(seq.max()) - low_seq).bit_length()
    if due_bits + seq_bits <= 62:
        return np.argsort(((due - low_due) << seq_bits) | (seq - low_seq), kind="stable")
    return np.lexsort((seq, due))
