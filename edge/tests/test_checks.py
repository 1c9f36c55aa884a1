"""The sums of many records and units refuse what they can't read; their values are compared in tests/store."""

from __future__ import annotations

import numpy as np
import pytest

from delayedge import record_sum, record_sums, unit_sum, unit_sums

ONE = np.array([1])


@pytest.mark.parametrize(("begin", "size"), [(-1, 1), (0, -1), (0, 9), (9, 0), (2**63 - 1, 2**63 - 1)])
def test_a_record_outside_of_the_bytes_is_refused(begin: int, size: int) -> None:
    with pytest.raises(ValueError, match="a record lies outside of the bytes"):
        record_sums(bytes(8), np.array([begin]), ONE, np.array([size]))


def test_columns_of_another_kind_are_refused() -> None:
    for wrong in (np.arange(4)[::2], ONE.astype(np.int32), ONE.astype(float)):
        with pytest.raises(BufferError):
            record_sums(bytes(8), ONE, ONE, wrong)


def test_columns_that_differ_in_length_are_refused() -> None:
    two = np.arange(2)
    for columns in ((ONE, two, two), (two, ONE, two), (two, two, ONE)):
        with pytest.raises(ValueError, match="the columns differ in length"):
            record_sums(bytes(8), *columns)


def test_many_are_what_each_is_alone() -> None:
    data, begin, offset, size = bytes(range(64)), np.array([0, 7, 30]), np.array([5, 2**40, 0]), np.array([7, 23, 34])
    alone = [
        record_sum(data[at:][:n], of) for at, of, n in zip(begin.tolist(), offset.tolist(), size.tolist(), strict=True)
    ]
    assert np.frombuffer(record_sums(data, begin, offset, size), np.uint64).tolist() == alone
    factors = np.array([3, 2**64 - 1], np.uint64).tobytes()
    assert np.frombuffer(unit_sums(data, factors), np.uint64).tolist() == [
        unit_sum(data[at : at + 8], factors) for at in range(0, 64, 8)
    ]
    assert unit_sums(b"", factors) == record_sums(b"", *[np.empty(0, np.int64)] * 3) == b""
