"""Checks that travel with a record, an index unit and a queue entry, so that a flipped bit is noticed on read.

record  32 bits, in every unit and queue entry that names the record. On the grid of 8-byte words at CommitLog offsets
        that are multiples of 8, bytes of other records masked to 0:
            h = sum over words w at index i = log offset / 8 of (w ^ w >> 32) * (2 i + 1), mod 2^64
        then size and seq are mixed in: a whole body that belongs to another message is noticed too.
unit    the unit as 32-bit words w, its place and its shard's uid: sum of w * FACTORS, mod 2^64, of which the highest
        bits are kept: 16 in a TimerLog unit, 32 in a queue entry; a unit that stands in another's place, or is another
        shard's, is noticed.

A flipped bit always changes the sum: the factors are odd, and w ^ w >> 32 keeps the highest bit from being shifted
out. So do two in one record, as the factors of its words differ. In a unit the bits that are kept change for certain
when one flips; for the rest a change is missed once in 2^32 (2^16) times. A crc32 a record would need a loop per
message and cost five times as much.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from delaynode.store.columns import is_few, offsets_from
from delaynode.store.types import I64, U32, Array, Buffer, Records, raw

try:  # a distribution of its own, which need not be there
    from delayedge import record_sum, record_sums, unit_sum, unit_sums
except ImportError:  # or is of an earlier release
    IS_COMPILED = False
else:
    IS_COMPILED = True
"""Whether the sums are compiled code's: without the interpreter's lock where there are many."""

U64 = npt.NDArray[np.uint64]

CHUNK_BYTES = 256 << 10  # records of so many bytes are looked at together: what they need stays in the cache
CHUNK_WORDS = CHUNK_BYTES // 8 + 2
CHUNK_UNITS = 1024
MAX_SCALAR_RECORDS = 3  # so many are quicker one by one
MAX_SCALAR_UNITS = 4
HALF = np.uint64(32)
EVEN = np.arange(0, 2 * CHUNK_WORDS, 2, dtype=np.uint64)
ONES = np.ones(CHUNK_WORDS, np.uint64)
WORD = 2**64 - 1
LOW_BYTES = np.array([(1 << 8 * k) - 1 for k in range(8)], np.uint64)  # masks of a word's first k bytes
PADS = [bytes(k) for k in range(9)]
MIX = [np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)]
MIX_INTS = [int(odd) for odd in MIX]
FACTORS = np.array(
    [
        0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3, 0x1D8E4E27C47D124F,
        0xEB44ACCAB455D165, 0x9C9E3D5F1A7B8C2D, 0x6C62272E07BB0143, 0xC2B2AE3D27D4EB4F, 0x27D4EB2F165667C5,
        0x85EBCA77C2B2AE63, 0xAEF17502108EF2D9, 0xD1310BA698DFB5AD, 0x2FFD72DBD01ADFB7,
    ],
    np.uint64,
)  # fmt: skip
"""Odd; no power of two below 2^32 times one of them is near 0 in its highest 16 bits, so every flip reaches these."""
FACTOR_INTS: list[int] = FACTORS.tolist()


class _Scratch(threading.local):
    """A thread's arrays for one piece: allocated anew each time, their page faults would cost more than the sums."""

    def __init__(self) -> None:
        self.words, self.sums, self.factors = (np.empty(CHUNK_WORDS, np.uint64) for _ in range(3))
        self.units = np.empty(CHUNK_UNITS * len(FACTORS), np.uint64)


_scratch = _Scratch()


# ---------------------------------------------------------------- records
def record_checks(records: Buffer, start: int, size: U32 | I64, seq: I64) -> U32:
    """The checks (n,) of records that lie one after the other from log offset `start` on; sizes (n,) bytes."""
    if len(size) <= MAX_SCALAR_RECORDS:
        if len(size) == 1:
            return _scalar_checks((records,), (start,), seq.tolist())
        ends = [*accumulate(size.tolist())]
        parts = [memoryview(records)[low:high] for low, high in pairwise([0, *ends])]
        begins = [start + end - len(part) for end, part in zip(ends, parts, strict=True)]
        return _scalar_checks(parts, begins, seq.tolist())
    size = size.astype(np.int64)
    if IS_COMPILED:
        at = offsets_from(size, 0)
        return _mixed(_compiled_sums(records, at, at + start, size), size, seq)
    if len(records) <= CHUNK_BYTES:
        return _chunk_checks(records, start, size, seq)
    stop = np.cumsum(size)
    view, checks = memoryview(records), np.empty(len(size), np.uint32)
    low = 0
    while low < len(size):
        begin = int(stop[low] - size[low])
        high = max(low + 1, int(np.searchsorted(stop, begin + CHUNK_BYTES, "right")))
        part = view[begin : int(stop[high - 1])]
        checks[low:high] = _chunk_checks(part, start + begin, size[low:high], seq[low:high])
        low = high
    return checks


def _compiled_sums(records: Buffer, begin: I64, offset: I64, size: I64) -> U64:
    """The sums (n,) over the words of records at bytes `begin` (n,) of `records` and at these log offsets."""
    return np.frombuffer(record_sums(records, _numbers(begin), _numbers(offset), _numbers(size)), np.uint64)


def _numbers(column: I64) -> memoryview:
    """In a row and aligned: it may be a column of rows, or of a frame."""
    # NumPy arrays have the buffer protocol, but before Python 3.12 no type says so.
    return memoryview(cast(Any, np.array(column)))


def _chunk_checks(records: Buffer, start: int, size: I64, seq: I64) -> U32:
    low, pad, length = start >> 3, start & 7, len(records)
    count = (pad + length >> 3) + 1
    if count <= CHUNK_WORDS:
        words, sums, factors = (array[:count] for array in (_scratch.words, _scratch.sums, _scratch.factors))
        np.add(EVEN[:count], np.uint64(2 * low + 1), out=factors)
    else:  # one record of megabytes
        words, sums = np.empty(count, np.uint64), np.empty(count, np.uint64)
        factors = np.arange(2 * low + 1, 2 * (low + count) + 1, 2, dtype=np.uint64)
    words.view(np.uint8)[pad : pad + length] = np.frombuffer(records, np.uint8)
    begin = np.cumsum(size)
    begin -= size
    begin += pad
    return _checks(words, sums, factors, begin, size, seq)


def checks_of(records: Sequence[Buffer], offset: I64, size: I64, seq: I64) -> U32:
    """The checks (n,) of records, each in a buffer of its own, from log offsets (n,)."""
    if len(records) <= MAX_SCALAR_RECORDS:
        return _scalar_checks(records, offset.tolist(), seq.tolist())
    joined = join_padded(offset.tolist(), records)
    return checks_in(joined, offset, offset + size, np.arange(len(records)), offset, size, seq)


def _scalar_checks(records: Sequence[Buffer], offset: Sequence[int], seq: Sequence[int]) -> U32:
    return np.array([*map(record_check, records, offset, seq)], np.uint32)


def record_check(record: Buffer, offset: int, seq: int) -> int:
    """The check of one record, which lies at this log offset."""
    total = record_sum(record, offset) if IS_COMPILED else _record_sum(record, offset)
    first, second, third, fourth = MIX_INTS
    total = total * first & WORD
    total = (total ^ total >> 32) + len(record) * second + seq * third & WORD
    return (total ^ total >> 32) * fourth >> 32 & 0xFFFFFFFF


def _record_sum(record: Buffer, offset: int) -> int:
    """The sum over a record's words, not yet mod 2^64."""
    words = np.frombuffer(b"".join((PADS[offset & 7], record, PADS[-(offset + len(record)) & 7])), "<u8")
    words = words ^ (words >> HALF)
    if len(words) <= CHUNK_WORDS:
        even, ones = EVEN[: len(words)], ONES[: len(words)]
    else:
        even, ones = np.arange(0, 2 * len(words), 2, dtype=np.uint64), np.ones(len(words), np.uint64)
    return (2 * (offset >> 3) + 1) * int(words @ ones) + int(words @ even)  # a dot is quicker than a sum


def join_padded(low: Sequence[int], extents: Sequence[Buffer]) -> bytes:
    """Extents of the log from offsets `low` on as one buffer, in which each begins as far into a word as in the log."""
    parts: list[Buffer] = []
    for at, data in zip(low, extents, strict=True):
        parts += PADS[at & 7], data, PADS[8 - (at + len(data) & 7)]
    return b"".join(parts)


def position_shifts(low: I64, high: I64) -> I64:
    """Bytes to add to a log offset to find it in the join_padded() extents [low, high) (k,), by extent (k,)."""
    counts = (high >> 3) - (low >> 3) + 1
    moved: I64 = 8 * (np.cumsum(counts) - counts - (low >> 3))
    return moved


def checks_in(joined: bytes, low: I64, high: I64, which: I64, offset: I64, size: I64, seq: I64) -> U32:
    """The checks (n,) of records at log offsets (n,) out of the join_padded() extents [low, high) (k,).

    which: the extent (n,) in which each record lies whole.
    """
    moved = position_shifts(low, high)
    if IS_COMPILED:
        return _mixed(_compiled_sums(joined, offset + moved[which], offset, size), size, seq)
    words = np.frombuffer(joined, "<u8")
    index = np.arange(len(words), dtype=np.int64)
    index -= np.repeat(moved >> 3, (high >> 3) - (low >> 3) + 1)
    factors = (2 * index + 1).view(np.uint64)
    return _checks(words, np.empty_like(words), factors, offset + moved[which], size, seq)


def _checks(words: U64, sums: U64, factors: U64, begin: I64, size: I64, seq: I64) -> U32:
    """The checks of records at bytes `begin` (n,) of `words` (m,), the last of which lies behind every record's end.

    sums, factors: (m,), the former to be overwritten.
    """
    np.right_shift(words, HALF, out=sums)
    sums ^= words
    sums *= factors
    np.add.accumulate(sums, out=sums)
    end = begin + size
    first, last = begin >> 3, end >> 3
    whole = sums[last - 1] - sums[first]  # of the words that hold nothing but the record
    head = words[first] & ~LOW_BYTES[begin & 7]
    kept = LOW_BYTES[end & 7]
    if (within := first == last).any():  # parts of one word
        head[within] &= kept[within]
        whole[within] = kept[within] = 0
    tail = words[last] & kept
    head ^= head >> HALF
    head *= factors[first]
    tail ^= tail >> HALF
    tail *= factors[last]
    whole += head
    whole += tail
    return _mixed(whole, size, seq)


def _mixed(sums: U64, size: I64, seq: I64) -> U32:
    """The sums with size and seq, 64 bits to 32; overwrites `sums`."""
    sums *= MIX[0]
    sums ^= sums >> HALF
    sums += size.astype(np.uint64) * MIX[1]
    sums += seq.astype(np.uint64) * MIX[2]
    sums ^= sums >> HALF
    sums *= MIX[3]
    sums >>= HALF
    return sums.astype(np.uint32)


# ---------------------------------------------------------------- units
def unit_checks(units: Records, positions: I64 | range, own: int, bits: int, uid: int = 0) -> U64:
    """The own checks (n,) of units (n,) as they are stored, at `positions` (n,) of shard `uid`: the highest `bits` of
    64.

    own: which of a unit's 32-bit words has the own check as its highest `bits`; they count as 0.
    """
    width = units.dtype.itemsize // 4
    if len(units) <= MAX_SCALAR_UNITS:
        places = positions if isinstance(positions, range) else positions.tolist()
        return _scalar_unit_checks(units, places, own, bits, uid)
    words = units.view("<u4").reshape(len(units), width)
    if isinstance(positions, range):
        positions = np.arange(positions.start, positions.stop, dtype=np.int64)
    sums = positions.astype(np.uint64)
    sums += np.uint64(uid)
    sums *= FACTORS[width]
    if IS_COMPILED:
        sums += np.frombuffer(unit_sums(raw(units), _factor_bytes(width, own)), np.uint64)
    else:
        _add_unit_sums(sums, words, _factors(width, own))
    if bits < 32:
        sums += (words[:, own] & np.uint32((1 << 32 - bits) - 1)) * FACTORS[own]
    sums >>= np.uint64(64 - bits)
    return sums


def _add_unit_sums(sums: U64, words: U32, factors: U64) -> None:
    """Add to sums (n,) those of units, words (n, k) times factors (k,)."""
    for low in range(0, len(words), CHUNK_UNITS):
        part = words[low : low + CHUNK_UNITS]
        wide = _scratch.units[: part.size].reshape(part.shape)
        wide[:] = part
        sums[low : low + CHUNK_UNITS] += wide @ factors


def _scalar_unit_checks(units: Records, positions: Sequence[int], own: int, bits: int, uid: int) -> U64:
    """unit_checks() of a few, as plain numbers."""
    stored, size = units.tobytes(), units.dtype.itemsize
    each = [stored[at : at + size] for at in range(0, len(stored), size)]
    checks = [unit_check(unit, place, own, bits, uid) for unit, place in zip(each, positions, strict=True)]
    return np.array(checks, np.uint64)


def unit_check(unit: bytes, position: int, own: int, bits: int, uid: int = 0) -> int:
    """unit_checks() of one unit as it is stored, a number of `bits` bits."""
    width = len(unit) // 4
    mixed = (position + uid) * FACTOR_INTS[width]
    if IS_COMPILED and bits == 32:  # nothing of the word counts that has the own check
        mixed += unit_sum(unit, _factor_bytes(width, own))
    else:
        words = list(struct.unpack(f"<{width}I", unit))
        words[own] &= (1 << 32 - bits) - 1  # of the word that holds the own check, what is not the check
        mixed += sum(map(mul, words, FACTOR_INTS))
    return (mixed & WORD) >> 64 - bits


@lru_cache
def _factors(width: int, own: int) -> U64:
    factors = FACTORS[:width].copy()
    factors[own] = 0
    return factors


@lru_cache
def _factor_bytes(width: int, own: int) -> bytes:
    return _factors(width, own).tobytes()


def first_difference(found: Array, expected: Array) -> int:
    """The first row at which two columns (n,) differ; -1: none."""
    if is_few(len(found)) and found.tolist() == expected.tolist():
        return -1
    differs = found != expected
    return int(np.argmax(differs)) if np.count_nonzero(differs) else -1
