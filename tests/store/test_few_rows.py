"""Few rows taken as plain numbers leave the same bytes and the same state as in NumPy's columns."""

from __future__ import annotations

import random
from itertools import product
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest
from delaynode.store import columns, shard
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log import checks
from delaynode.store.log.frames import Frame, FrameKind, append_prefix, column_bytes
from delaynode.store.log.incoming_batch import BatchRun, columns_of, resolve_due
from delaynode.store.queue import consume_queue
from delaynode.store.queue.consume_queue import OWN_WORD, QUEUED, QUEUED_BYTES
from delaynode.store.types import MAX_SEQ, Pair
from hypothesis import given
from hypothesis import strategies as st

from tests.store.support.consuming import World
from tests.store.support.walks import few_rows, times, walk
from tests.store.support.world import SMALL
from tests.store.test_store_model import EVERYTHING

MANY = (0, 0)  # nothing counts as few
NUMBERS = st.integers(0, 2**40)


@pytest.mark.parametrize("few", [(1, 1), (8, 4), (8, 1024)])
def test_the_same_life_leaves_the_same_files(few: tuple[int, int]) -> None:
    for seed in range(4 * 10**6 + few[1], 4 * 10**6 + few[1] + times(12)):
        one, other = (walk(seed, EVERYTHING, length=40, few=rows) for rows in (MANY, few))
        assert files_of(one) == files_of(other), f"seed {seed}"
        assert one.shard.index.pending_bytes == other.shard.index.pending_bytes
        assert one.shard.producers.rows().tobytes() == other.shard.producers.rows().tobytes()
        assert one.shard.space.ledger.segments.tobytes() == other.shard.space.ledger.segments.tobytes()


@pytest.mark.parametrize(("after_ms", "seq"), [*product((-1, 0, 1), (-1, 0, MAX_SEQ))])
def test_a_message_at_the_windows_bound_is_in_it_both_ways_or_in_neither(after_ms: int, seq: int) -> None:
    """Frames may say anything: a negative seq too, which no master gives."""
    held = []
    for few in (MANY, (8, 0)):
        with few_rows(*few):
            copy = World(1, SMALL).shard
            copy.loader.load_past(Pair(copy.wall_ms + 1_000, 0))
            bound = copy.index.window.bound
            size = np.array([9], np.uint32)
            columns = column_bytes(np.array([bound.due + after_ms]), size, size, size)
            payload = memoryview(b"".join((append_prefix([BatchRun(0, 0, 1)]), *columns, bytes(9))))
            copy.apply(Frame(FrameKind.APPEND, 0, 1, 1, seq, copy.wall_ms, copy.applied, 0, payload))
            assert copy.index.pending == 1
            held.append(len(copy.index.window))
    assert held == [int((after_ms, seq) <= (-1, MAX_SEQ))] * 2


def files_of(world: World) -> dict[str, bytes]:
    return {path: bytes(file.data) for path, file in world.disk.files.items() if not path.endswith("shard.json")}


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), NUMBERS, NUMBERS)
def test_what_is_asked_of_columns_has_one_answer(rows: list[tuple[int, int]], low: int, start: int) -> None:
    due, seq = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    answers = []
    for few in (MANY, (12, 0)):
        with few_rows(*few):
            answers.append(
                (
                    columns.total(due), columns.highest(due), columns.lowest(due),
                    columns.at_or_below(due, seq, Pair(low, low)).tolist(),
                    columns.release_order(due, seq).tolist(), columns.offsets_from(seq, start).tolist(),
                    columns.distinct(seq),
                )
            )  # fmt: skip
    assert answers[0] == answers[1]


@given(st.integers(1, 40), st.integers(0, 2**62), st.integers(0, 2**64 - 1), st.integers(0, 2**32))
def test_checks_have_one_value(count: int, start: int, uid: int, seed: int) -> None:
    rng = random.Random(seed)
    units = np.frombuffer(rng.randbytes(count * QUEUED_BYTES), QUEUED)
    positions = np.arange(start, start + count)
    size = np.array([rng.randrange(1, 300) for _ in range(count)], np.uint32)
    records = rng.randbytes(int(size.sum()))
    answers = []
    for few, is_compiled in product((MANY, (8, 0)), {False, checks.IS_COMPILED}):
        with few_rows(*few), patch.object(checks, "IS_COMPILED", is_compiled):
            of_units = [
                checks.unit_checks(units, positions, own, bits, uid).tolist() for own, bits in ((OWN_WORD, 32), (3, 16))
            ]
            answers.append((of_units, checks.record_checks(records, start, size, positions).tolist()))
    assert answers == answers[:1] * len(answers)


@pytest.mark.parametrize("count", [3, 9])
def test_checks_take_columns_wherever_they_lie(count: int) -> None:
    """As those of rows do, between others and not on a multiple of their width."""
    rng = random.Random(count)
    rows = np.zeros(count, [("pad", "u1"), ("offset", "<i8"), ("size", "<i8"), ("seq", "<i8")])
    rows["offset"], rows["size"], rows["seq"] = rng.sample(range(2**40), count), 20, range(count)
    records = [rng.randbytes(20) for _ in range(count)]
    for is_compiled in {False, checks.IS_COMPILED}:
        with patch.object(checks, "IS_COMPILED", is_compiled):
            found = checks.checks_of(records, rows["offset"], rows["size"], rows["seq"]).tolist()
            alone = [
                int(checks.record_checks(record, int(row["offset"]), row["size"][None], row["seq"][None])[0])
                for record, row in zip(records, rows, strict=True)
            ]
        assert found == alone


@given(
    st.lists(st.tuples(st.integers(-2, 2**41), st.integers(0, 2), st.sampled_from([0, 1, 300, 5 << 20]))),
    st.booleans(),
    st.integers(-1, 1),
)
def test_a_batch_is_taken_or_refused_in_the_same_words(
    rows: list[tuple[int, int, int]], with_flags: bool, excess: int
) -> None:
    """Of the numbers on either side of each limit, and records that are as long as said, or a byte more or less."""
    time, flags, size = zip(*rows, strict=True) if rows else ((), (), ())
    records = bytes(min(max(0, sum(size) + excess), 9 << 20))
    with few_rows(*MANY):
        expected = taken(time, flags if with_flags else (), size, records)
    with few_rows(8, 0):
        assert taken(time, flags if with_flags else (), size, records) == expected


def taken(time: tuple[int, ...], flags: tuple[int, ...], size: tuple[int, ...], records: bytes) -> object:
    try:
        batch = columns_of(
            len(time), np.array(time, "<i8").tobytes(), np.array(flags, "u1").tobytes(),
            np.array(size, "<u4").tobytes(), b"", b"", records, 0, 0,
        )  # fmt: skip
        return resolve_due(batch.time, batch.relative, 10**12, 2**40).tolist()
    except Refused as refused:
        return refused.reason, refused.message


@pytest.mark.parametrize("few", [MANY, (8, 0)])
def test_the_first_bad_flag_is_named(few: tuple[int, int]) -> None:
    with few_rows(*few):
        answer = taken((5, 5, 5), (0, 2, 3), (1, 1, 1), bytes(3))
    assert answer == ("BAD_COLUMNS", "column relative: message 1 is neither 0 nor 1")


@pytest.mark.parametrize(
    ("where", "name"), [(checks, "_scalar_unit_checks"), (consume_queue, "unit_check"), (shard, "record_check")]
)
def test_a_planted_difference_is_found(where: ModuleType, name: str) -> None:
    """The comparison can fail: where few rows get a wrong check, a read finds it, or the files differ."""
    real = getattr(where, name)

    def wrong(*arguments: object) -> object:
        answer = real(*arguments)
        return answer ^ (1 if isinstance(answer, int) else np.uint64(1))

    with patch.object(where, name, wrong), pytest.raises((AssertionError, Damaged)):
        test_the_same_life_leaves_the_same_files((8, 1024))
