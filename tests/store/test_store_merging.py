"""Batches that share frames are answered as if each had come alone, and leave the same shard behind."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from delayapi.units import DAY_MS, MINUTE_MS
from delaynode.store import formats, merging
from delaynode.store.errors import Refused
from delaynode.store.log.frames import APPENDS, Frame, FrameKind, parse_append, parse_append_runs
from delaynode.store.log.incoming_batch import ID, IncomingBatch, merge_columns
from delaynode.store.maintenance import persist
from delaynode.store.merging import Answer, Merger
from delaynode.store.shard import Appended, Shard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.support.consuming import World
from tests.store.support.producing import Item
from tests.store.support.walks import times
from tests.store.support.world import ROOT, SMALL

CONFIG = replace(SMALL, format=formats.NEWEST, max_message_ids=7)


class Request(NamedTuple):
    """delays: ms from now, of one message each. step: the number is so much above the producer's last one. ids: of its
    messages, as many as there are; none: they have none."""

    delays: tuple[int, ...]
    relative: bool = False
    producer: int = 0
    step: int = 1
    size: int = 5
    ids: tuple[int, ...] = ()


requests = st.lists(
    st.builds(
        Request,
        delays=st.lists(
            st.sampled_from((0, 1, 30_000, 5 * MINUTE_MS, 3 * DAY_MS, 41 * DAY_MS)), min_size=1, max_size=3
        ).map(tuple),
        relative=st.booleans(),
        producer=st.sampled_from((0, 0, 7, 8, 9)),
        step=st.sampled_from((1, 1, 1, 1, 0, -1, 2)),
        size=st.sampled_from((1, 5, 40)),
        ids=st.just(()) | st.tuples(*[st.integers(0, 9)] * 3),
    ),
    max_size=12,
)


def batches_of(asked: list[Request], now: int, numbers: dict[int, int]) -> list[IncomingBatch]:
    found: list[IncomingBatch] = []
    for at, one in enumerate(asked):
        n = len(one.delays)
        number = 0
        if one.producer and not one.ids:
            number = max(0, numbers.get(one.producer, -1) + one.step)
            numbers[one.producer] = max(number, numbers.get(one.producer, -1))
        time = np.array(one.delays, np.int64) + (0 if one.relative else now)
        zeros = np.zeros(n, np.uint32)
        flags = np.ones(n, np.uint8) if one.relative else np.empty(0, np.uint8)
        body = bytes([at % 256]) * (one.size * n)
        batch = IncomingBatch(time, flags, zeros + one.size, zeros + 1, zeros + 2, body, one.producer, number)
        if one.ids:
            batch = replace(batch, producer=0, number=0, ids=np.array([b"%16d" % id for id in one.ids[:n]], ID))
        found.append(batch)
    return found


def grouped(batches: list[IncomingBatch], lengths: list[int]) -> list[IncomingBatch]:
    """As an edge hands them over: the next so many batches as one of many requests; 0: as they are. One with ids is
    handed over by itself."""
    found, at, next_length = [], 0, iter(lengths)
    while at < len(batches):
        length = next(next_length, 0)
        together = batches[at : at + max(1, length)]
        at += len(together)
        if length == 0 or any(len(batch.ids) for batch in together):
            found += together
            continue
        runs = [run for batch in together for run in batch.requests]
        records = b"".join(bytes(batch.records) for batch in together)
        found.append(replace(merge_columns(together), records=records, producer=0, number=0, runs=runs))
    return found


def singly(batch: IncomingBatch, answer: Answer) -> list[Appended | Exception]:
    """The answers to the requests of a batch."""
    if isinstance(answer, list):
        return [its for _, its in answer]
    if not batch.runs or not isinstance(answer, Appended):
        return [answer] * len(batch.requests)
    found: list[Appended | Exception] = []
    at, due = 0, answer.due
    for run in batch.runs:
        its_due = None if due is None else due[at : at + run.messages]
        found.append(Appended(answer.first_seq + at, run.messages, its_due, answer.log_end))
        at += run.messages
    return found


def told(answer: Appended | Exception) -> tuple[object, ...]:
    if isinstance(answer, Appended):
        due = None if answer.due is None else answer.due.tolist()
        columns = None if answer.seq is None else (answer.seq.tolist(), answer.repeated.tolist())
        return answer.first_seq, answer.count, due, answer.duplicate, columns
    assert isinstance(answer, Refused), answer
    return answer.reason, answer.metadata.get("expected")


def alone(shard: Shard, batch: IncomingBatch, now: int) -> Appended | Exception:
    try:
        return shard.enqueue(batch, now)
    except Refused as refused:
        return refused


def contents(world: World) -> dict[int, tuple[object, ...]]:
    """Of each pending or visible message, by seq: its due and body; and what the producers were answered."""
    shard = world.shard
    window = shard.index.window
    assert window is not None
    rows = shard.queue.read(shard.queue.start, shard.queue.visible)
    bodies = b"".join(shard.read_records(rows))
    ends = np.cumsum(rows["size"]).tolist()
    found: dict[int, tuple[object, ...]] = {
        int(row["seq"]): (int(row["due"]), bodies[end - int(row["size"]) : end])
        for row, end in zip(rows, ends, strict=True)
    }
    producers = shard.producers.rows().copy()
    producers.sort(order="id")
    ids, _ = shard.message_ids.find(np.array([b"%16d" % id for id in range(10)], ID), shard.producers.time_ms)
    found[-1] = (ids.tolist(), shard.next_seq, shard.index.pending, shard.index.pending_bytes, producers.tobytes())
    return found


def frames_of(world: World) -> list[Frame]:
    return [frame for frame in world.shard.log.scan(0) if frame.kind in APPENDS]


@settings(max_examples=times(150), deadline=None)
@given(
    rounds=st.lists(requests, min_size=1, max_size=4),
    lengths=st.lists(st.integers(0, 4), max_size=12),
    known=st.booleans(),
    max_bytes=st.sampled_from((9, 60, 9999)),
)
def test_batches_are_answered_and_stored_as_if_each_came_alone(
    rounds: list[list[Request]], lengths: list[int], known: bool, max_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "MAX_BATCH_BYTES", max_bytes)
        patch.setattr(merging, "MAX_FRAME_BYTES", 2 * max_bytes)
        merged, single = World(1, CONFIG), World(1, CONFIG)
        numbers: dict[int, int] = {}
        first = [Request((0,), producer=producer) for producer in (7, 8, 9)] if known else []
        for asked in [first, *rounds]:
            for world in (merged, single):
                world.now += 1_000
            batches = batches_of(asked, merged.now, numbers)
            handed = grouped(batches, lengths)
            answers = Merger(merged.shard, merged.now).enqueue(handed)
            together = [its for one, answer in zip(handed, answers, strict=True) for its in singly(one, answer)]
            assert [*map(told, together)] == [told(alone(single.shard, batch, single.now)) for batch in batches]
        for world in (merged, single):
            write(world)
        assert contents(merged) == contents(single)
        assert runs_of(merged) == runs_of(single)
        before = contents(merged)
        merged.disk.kill()
        merged.shard, _ = persist.recover(merged.disk, ROOT, CONFIG)
        merged.shard.commit(merged.shard.log.end)
        assert contents(merged) == before


def runs_of(world: World) -> list[tuple[object, ...]]:
    """Of each run in the log: whose it is, its messages' dues and sizes. Of messages with ids: one after the other."""
    found: list[tuple[object, ...]] = []
    for frame in frames_of(world):
        append, at = parse_append(frame), 0
        found += zip(append.ids.tolist(), append.due.tolist(), append.size.tolist(), strict=False)
        for run in append.runs if not len(append.ids) else ():
            part = slice(at, at + run.messages)
            found.append((run, append.due[part].tolist(), append.size[part].tolist()))
            at += run.messages
    return found


def write(world: World) -> None:
    while (batch := world.shard.next_batch(sync=True)) is not None:
        batch.run()
        world.shard.finish_writes(batch)
    world.shard.commit(world.shard.log.synced)


def one(world: World, delay: int = 60_000, producer: int = 0, number: int = 0, size: int = 5) -> IncomingBatch:
    single = np.ones(1, np.uint32)
    return IncomingBatch(
        np.array([world.now + delay]),
        np.empty(0, np.uint8),
        single * size,
        single,
        single,
        b"x" * size,
        producer,
        number,
    )


def test_many_requests_are_one_frame() -> None:
    world = World(1, CONFIG)
    Merger(world.shard, world.now).enqueue([one(world, producer=5)])
    batches = [one(world), one(world, producer=5, number=1), one(world, producer=5, number=2), one(world)]
    answers = Merger(world.shard, world.now).enqueue(batches)
    write(world)
    frames = frames_of(world)
    assert [frame.kind for frame in frames] == [FrameKind.APPEND, FrameKind.APPEND_RUNS]
    assert [tuple(run) for run in parse_append_runs(frames[1])] == [(0, 0, 1), (5, 1, 1), (5, 2, 1), (0, 0, 1)]
    assert [answer.log_end for answer in answers if isinstance(answer, Appended)] == [frames[1].end] * 4


def test_many_requests_with_ids_are_one_frame() -> None:
    world = World(1, CONFIG)
    first, second = (np.array([b"%16d" % id], ID) for id in (1, 2))
    batches = [replace(one(world), ids=ids) for ids in (first, second, first)]
    answers = Merger(world.shard, world.now).enqueue([*batches, one(world)])
    write(world)
    frames = frames_of(world)
    assert [(frame.kind, frame.count) for frame in frames] == [(FrameKind.APPEND_IDS, 2), (FrameKind.APPEND, 1)]
    assert [answer.seq.tolist() for answer in answers[:3] if isinstance(answer, Appended)] == [[0], [1], [0]]
    assert [answer.duplicate for answer in answers[:3] if isinstance(answer, Appended)] == [False, False, True]


@pytest.mark.parametrize("format_", [1, 2])
def test_no_frame_is_written_that_a_node_can_not_read(format_: int) -> None:
    world = World(1, SMALL)
    world.shard.raise_format(format_)
    Merger(world.shard, world.now).enqueue([one(world), one(world)])
    write(world)
    kinds = [frame.kind for frame in frames_of(world)]
    assert kinds == ([FrameKind.APPEND] * 2 if format_ == 1 else [FrameKind.APPEND_RUNS])


def test_a_refused_batch_is_refused_alone() -> None:
    world = World(1, CONFIG)
    batches = [one(world), one(world, 41 * DAY_MS), one(world)]
    stored, refused, after = Merger(world.shard, world.now).enqueue(batches)
    assert isinstance(refused, Refused)
    assert refused.reason == "DELAY_TOO_LONG"
    write(world)
    (frame,) = frames_of(world)
    assert frame.kind is FrameKind.APPEND_RUNS, "the others still share one"
    assert [a.log_end for a in (stored, after) if isinstance(a, Appended)] == [frame.end] * 2


def test_a_producers_later_batches_wait_for_the_clock_with_the_first() -> None:
    """Were they OUT_OF_ORDER, a producer with several batches under way would have to send them again."""
    world = World(1, CONFIG)
    world.enqueue([Item(9_000)], producer=5)
    world.advance(10_000)
    world.settle()
    world.now -= 5_000
    batches = [one(world, 2_000, 5, 1), one(world, 60_000, 5, 2), one(world, 60_000)]
    first, second, other = Merger(world.shard, world.now).enqueue(batches)
    assert [isinstance(x, Refused) and x.reason for x in (first, second)] == ["CLOCK_BEHIND"] * 2
    assert isinstance(other, Appended)
    world.now += 20_000
    again = Merger(world.shard, world.now).enqueue(batches[:2])
    assert [isinstance(answer, Appended) and not answer.duplicate for answer in again] == [True, True]


def test_an_error_of_this_program_is_one_requests_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was proposed: the others are stored, and the copy goes on."""
    world = World(1, CONFIG)
    bad = one(world)
    real = Shard.resolve_due

    def broken(shard: Shard, batch: IncomingBatch, now_ms: int) -> object:
        if batch is bad or len(batch.time) == 3:
            raise ZeroDivisionError
        return real(shard, batch, now_ms)

    monkeypatch.setattr(Shard, "resolve_due", broken)
    answers = Merger(world.shard, world.now).enqueue([one(world), bad, one(world)])
    assert [type(answer) for answer in answers] == [Appended, ZeroDivisionError, Appended]
    assert world.shard.damaged is None


def test_nothing_is_stored_once_an_effect_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, CONFIG)
    monkeypatch.setattr(Shard, "_apply_append", lambda *_: 1 / 0)
    answers = Merger(world.shard, world.now).enqueue([one(world), one(world), one(world)])
    assert all(isinstance(answer, Refused) and answer.reason == "SHARD_DAMAGED" for answer in answers)
    assert len({id(answer) for answer in answers}) == 3, "each has an error of its own"
    assert world.shard.next_batch(sync=True) is None
