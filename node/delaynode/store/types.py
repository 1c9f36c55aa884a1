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
Ids = npt.NDArray[np.bytes_]  # S16: NumPy compares all 16 bytes; an element by itself lacks the zeros at its end
Records = npt.NDArray[np.void]  # a structured array; the dtype's name says which
Buffer = bytes | bytearray | memoryview
Buffers = Sequence[Buffer]

Array = npt.NDArray[Any]  # a column of whatever dtype
MAX_SEQ = 2**63 - 1

Row = tuple[int, int, int, int, int, int, int, int]
"""A unit (timer/units.py) as plain numbers, in the order of its fields: due and seq come first, so rows sort by
them."""


def raw(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return memoryview(array.view(np.uint8)).cast("B")  # type: ignore[arg-type]


class Pair(NamedTuple):
    """A point in release order. The watermark is one: everything at or below it has been released."""

    due: int  # ms
    seq: int
