"""Array types and the few value types that the store's modules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]  # a structured array; the dtype's name says which
Buffer = bytes | bytearray | memoryview
Buffers = Sequence[Buffer]

Array = npt.NDArray[Any]  # a column of whatever dtype
MAX_SEQ = 2**63 - 1


def raw(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return memoryview(array.view(np.uint8)).cast("B")  # type: ignore[arg-type]


class Pair(NamedTuple):
    """A point in release order. The watermark is one: everything at or below it has been released."""

    due: int  # ms
    seq: int


def at_or_below(due: I64, seq: I64, pair: Pair) -> Bools:
    """Which rows of (due, seq) lie at or below `pair`. Shapes (n,) -> (n,)."""
    below: Bools = (due < pair.due) | ((due == pair.due) & (seq <= pair.seq))
    return below


def release_order(due: I64, seq: I64) -> npt.NDArray[np.intp]:
    """The stable permutation that sorts rows by (due, seq). Shapes (n,), (n,) -> (n,).

    One sort of a combined key where the two ranges fit in 63 bits together (a minute's dues and 2^47 seqs do):
    half the work of two stable sorts, and fast on the presorted runs that a chain consists of.
    """
    if len(due) < 2:
        return np.zeros(len(due), np.intp)
    low_due, low_seq = int(due.min()), int(seq.min())
    due_bits = (int(due.max()) - low_due).bit_length()
    seq_bits = (int(seq.max()) - low_seq).bit_length()
    if due_bits + seq_bits <= 62:
        return np.argsort(((due - low_due) << seq_bits) | (seq - low_seq), kind="stable")
    return np.lexsort((seq, due))
