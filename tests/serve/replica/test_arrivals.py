"""Batches of many requests at one shard's door: what shares a frame, what waits, and who is told what."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delaynode.replica.hosts import arrivals
from delaynode.replica.hosts.arrivals import Stored
from delaynode.replica.hosts.master import ShardHost
from delaynode.replication.transport.until import wait_until
from delaynode.store.errors import Refused
from delaynode.store.log.batches import WriteBatch
from delaynode.store.log.frames import APPENDS, FrameKind, parse_append_runs
from delaynode.store.log.incoming_batch import BatchRun, IncomingBatch
from delaynode.store.shard import Appended, Shard

from tests.serve.support.hosts import Node, node

HOUR_MS = 3_600_000


def batch(
    made: Node, delay_ms: int = HOUR_MS, *, relative: bool = False, producer: int = 0, number: int = 0
) -> IncomingBatch:
    one = np.ones(1, np.uint32)
    time = np.array([delay_ms if relative else made.clock.now_ms() + delay_ms])
    return IncomingBatch(time, np.ones(1 * relative, np.uint8), one * 5, one, one, b"12345", producer, number)


def runs(*parts: IncomingBatch) -> IncomingBatch:
    """The batches as one, of many requests."""
    time, size, key, tag = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("time", "size", "key", "tag")
    )
    if any(len(part.relative) for part in parts):
        relative = np.concatenate([part.relative if len(part.relative) else np.zeros(1, np.uint8) for part in parts])
    else:
        relative = np.empty(0, np.uint8)
    records = b"".join(part.records for part in parts)
    requests = [BatchRun(part.producer, part.number, len(part.time)) for part in parts]
    return IncomingBatch(time, relative, size, key, tag, records, runs=requests)


async def outcomes(answer: Stored) -> list[Appended | BaseException]:
    """Of each request that is not stored with the others; of all when they are."""
    stored = (await asyncio.gather(answer, return_exceptions=True))[0]
    return await asyncio.gather(*stored, return_exceptions=True) if isinstance(stored, list) else [stored]


def frames(host: ShardHost) -> list[tuple[FrameKind, int]]:
    """Of each APPEND: its kind and the number of requests in it."""
    log = host.shard.log
    return [(f.kind, len(parse_append_runs(f))) for f in log.scan(log.file.start) if f.kind in APPENDS]


def put_clock_right(made: Node) -> None:
    made.off_ms = 0
    made.clock.accept()


class SlowWrites:
    """Writes wait for `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        run = WriteBatch.run

        def slow(batch: WriteBatch) -> None:
            assert self.go.wait(20)
            run(batch)

        monkeypatch.setattr(WriteBatch, "run", slow)


def test_what_comes_while_a_write_is_under_way_shares_the_next_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LATE_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            writes = SlowWrites(monkeypatch)
            first = host.enqueue(batch(made))
            await asyncio.sleep(0.05)
            assert host.resources.syncer.busy(host)
            others = [host.enqueue(batch(made)) for _ in range(5)]
            await asyncio.sleep(0.05)
            assert not any(answer.done() for answer in (first, *others))
            writes.go.set()
            answers = await asyncio.gather(*(host.stored(answer) for answer in (first, *others)))
            assert [one.first_seq for one in answers] == list(range(6))
            assert frames(host) == [(FrameKind.APPEND, 1), (FrameKind.APPEND_RUNS, 5)]

    asyncio.run(main())


def test_a_delay_counts_from_a_moment_after_its_request_came_however_long_the_disk_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            writes = SlowWrites(monkeypatch)
            host.enqueue(batch(made))
            await asyncio.sleep(0.05)
            before = made.clock.now_ms()
            answer = host.enqueue(batch(made, 1_000, relative=True))
            await asyncio.sleep(0.5)
            assert not answer.done()
            writes.go.set()
            appended = await host.stored(answer)
            assert appended.due is not None
            assert before + 1_000 <= appended.due[0] < before + 1_400

    asyncio.run(main())


def test_who_has_gone_before_the_write_has_stored_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "LATE_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            writes = SlowWrites(monkeypatch)
            first = host.enqueue(batch(made))
            await asyncio.sleep(0.05)
            gone, second = host.enqueue(batch(made)), host.enqueue(batch(made))
            gone.cancel()
            writes.go.set()
            answers = await asyncio.gather(host.stored(first), host.stored(second))
            assert [one.first_seq for one in answers] == [0, 1]
            assert host.shard.next_seq == 2

    asyncio.run(main())


def test_those_who_wait_when_the_term_ends_are_refused_each_with_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LATE_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            writes = SlowWrites(monkeypatch)
            waiting = [host.enqueue(batch(made))]
            await asyncio.sleep(0.05)
            waiting += [host.enqueue(batch(made)) for _ in range(3)]
            host.stop_serving("another is chosen")
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(one, Refused) and one.reason for one in errors] == ["NOT_SERVING"] * 4
            assert len({id(one) for one in errors}) == 4
            assert host.shard.next_seq == 1, "what had not been appended is not"
            writes.go.set()
            await host.wind_down("another is chosen")

    asyncio.run(main())


def test_a_batch_whose_neighbour_stops_the_copy_is_not_left_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two frames is appended, the effect of the second fails."""
    real = Shard._apply_append

    def second_fails(shard: Shard, *args: Any) -> None:
        if shard.next_seq:
            raise ZeroDivisionError
        real(shard, *args)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            monkeypatch.setattr(Shard, "_apply_append", second_fails)
            waiting = [host.enqueue(batch(made)) for _ in range(3)]
            async with asyncio.timeout(10):
                errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(one, Refused) and one.reason for one in errors] == ["SHARD_DAMAGED"] * 3
            monkeypatch.undo()

    asyncio.run(main())


@pytest.mark.parametrize("neighbours", [0, 2])
def test_a_refused_request_is_forgotten_at_once(tmp_path: Path, neighbours: int) -> None:
    """Its error keeps the frames that it came through, and they the request: megabytes, until the collector comes."""

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            gc.collect()
            gc.disable()
            try:
                bad = batch(made, 400 * 24 * HOUR_MS)
                request = weakref.ref(bad.time)
                others = [host.enqueue(batch(made)) for _ in range(neighbours)]
                answer = host.enqueue(bad)

                async def call(kept: IncomingBatch) -> None:
                    await host.stored(answer)
                    raise AssertionError(f"{kept} is stored")

                with pytest.raises(Refused, match="is delayed by") as caught:
                    await call(bad)
                del caught, bad
                await asyncio.gather(*map(host.stored, others))
                await asyncio.sleep(0.05)
                assert request() is None
            finally:
                gc.enable()

    asyncio.run(main())


def test_a_host_that_stops_stores_and_answers_what_has_come(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            waiting = [host.enqueue(batch(made)) for _ in range(3)]
            stopping = asyncio.create_task(host.stop())
            answers = await asyncio.gather(*waiting)
            await stopping
            assert [type(one) for one in answers] == [Appended] * 3

    asyncio.run(main())


def test_a_clock_that_is_behind_is_waited_for_and_others_are_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "CLOCK_WAIT_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            await made.send("a", [1], relative=True)
            await made.until_released("a", 1)
            made.off_ms = -10_000
            waits = host.enqueue(batch(made, 9_000))
            other = await host.stored(host.enqueue(batch(made)))
            assert other.first_seq == 1
            assert not waits.done()
            put_clock_right(made)
            assert (await host.stored(waits)).first_seq == 2

    asyncio.run(main())


def test_a_producers_later_batch_waits_behind_the_one_that_waits_for_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "CLOCK_WAIT_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            await host.stored(host.enqueue(batch(made, 1, relative=True, producer=7, number=0)))
            await made.until_released("a", 1)
            made.off_ms = -10_000
            waits = host.enqueue(batch(made, 9_000, producer=7, number=1))
            other = await host.stored(host.enqueue(batch(made)))
            later = host.enqueue(batch(made, producer=7, number=2))
            again = await host.stored(host.enqueue(batch(made, 1, relative=True, producer=7, number=0)))
            assert again.duplicate, "a retry of what is stored waits for nothing"
            another = await host.stored(host.enqueue(batch(made)))
            assert not waits.done()
            assert not later.done()
            put_clock_right(made)
            answers = [other, another, await host.stored(waits), await host.stored(later)]
            assert [one.first_seq for one in answers] == [1, 2, 3, 4]

    asyncio.run(main())


def test_what_is_taken_and_not_appended_yet_counts_among_the_units_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LATE_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            monkeypatch.setattr(type(host.shard.config), "max_unflushed", 4)
            writes = SlowWrites(monkeypatch)
            first = host.enqueue(batch(made))
            await asyncio.sleep(0.05)
            assert (host.arriving, host.maintenance.full) == (0, False)
            others = [host.enqueue(batch(made)) for _ in range(3)]
            assert (host.arriving, host.maintenance.full) == (3, True)
            writes.go.set()
            await asyncio.gather(*map(host.stored, (first, *others)))
            assert host.arriving == 0

    asyncio.run(main())


def test_an_error_that_is_no_batchs_own_ends_the_copy_and_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]

            def fails() -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(host, "check_in_sync", fails)
            waiting = [host._arrivals.add(batch(made)) for _ in range(3)]
            async with asyncio.timeout(10):
                errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(one, Refused) and one.reason for one in errors] == ["SHARD_DAMAGED"] * 3
            assert "appending: ZeroDivisionError" in (host.failure or "")

    asyncio.run(main())


def test_a_call_that_is_given_up_before_its_commit_keeps_nothing_of_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            gc.collect()
            gc.disable()
            try:
                monkeypatch.setattr(host, "advance", lambda: None)  # no slave answers
                ones = np.ones(1_000, np.uint32)
                dues = np.full(1_000, made.clock.now_ms() + HOUR_MS)
                request = weakref.ref(dues)
                answer = host.enqueue(IncomingBatch(dues, np.empty(0, np.uint8), ones, ones, ones, bytes(1_000)))
                del dues
                async with asyncio.timeout(20):
                    await wait_until(lambda: host.durable == host.shard.log_end > host.shard.committed_offset, 0.001)
                    assert answer.cancel()
                    # the thread that synced it has it until it runs again, which may be after it has told us
                    await wait_until(lambda: request() is None, 0.001)
                monkeypatch.undo()
            finally:
                gc.enable()

    asyncio.run(main())


def test_requests_that_come_together_are_stored_and_answered_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            await host.stored(host.enqueue(batch(made, producer=7)))
            group = runs(batch(made), batch(made, producer=7, number=1), batch(made, producer=7, number=2))
            (stored,) = await outcomes(host.enqueue_many(group))
            assert isinstance(stored, Appended)
            assert (stored.first_seq, stored.count) == (1, 3)
            assert frames(host) == [(FrameKind.APPEND, 1), (FrameKind.APPEND_RUNS, 3)]

    asyncio.run(main())


def test_requests_behind_their_producers_one_that_waits_for_the_clock_wait_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "CLOCK_WAIT_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            await host.stored(host.enqueue(batch(made, 1, relative=True, producer=7)))
            await made.until_released("a", 1)
            made.off_ms = -10_000
            waits = host.enqueue(batch(made, 9_000, producer=7, number=1))
            await asyncio.sleep(0.05)
            group = host.enqueue_many(runs(batch(made), batch(made, producer=7, number=2), batch(made)))
            parts = await group
            assert isinstance(parts, list)
            assert [(await parts[0]).first_seq, (await parts[2]).first_seq] == [1, 2]
            assert not parts[1].done()
            put_clock_right(made)
            assert [(await waits).first_seq, (await parts[1]).first_seq] == [3, 4]

    asyncio.run(main())


def test_of_a_group_only_what_the_clock_has_not_reached_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And, with it, the later requests of its producer."""
    monkeypatch.setattr(arrivals, "CLOCK_WAIT_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            await host.stored(host.enqueue(batch(made, 1, relative=True, producer=7)))
            await made.until_released("a", 1)
            made.off_ms = -10_000
            group = runs(
                batch(made), batch(made, 9_000, producer=7, number=1), batch(made, producer=7, number=2), batch(made)
            )
            parts = await host.enqueue_many(group)
            assert isinstance(parts, list)
            assert [(await parts[0]).first_seq, (await parts[3]).first_seq] == [1, 2]
            assert not parts[1].done()
            assert not parts[2].done()
            put_clock_right(made)
            assert [(await parts[1]).first_seq, (await parts[2]).first_seq] == [3, 4]
            assert host.arriving == 0

    asyncio.run(main())


def test_requests_of_a_group_that_wait_when_the_term_ends_are_refused_each_with_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LATE_SECONDS", 20)
    monkeypatch.setattr(arrivals, "CLOCK_WAIT_SECONDS", 20)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            await host.stored(host.enqueue(batch(made, 1, relative=True, producer=7)))
            await made.until_released("a", 1)
            made.off_ms = -10_000
            group = runs(batch(made, 9_000, producer=7, number=1), batch(made, producer=7, number=2))
            held = host.enqueue_many(group)  # split, as its clock is behind
            parts = await held
            assert isinstance(parts, list)
            writes = SlowWrites(monkeypatch)
            host.enqueue(batch(made))
            await asyncio.sleep(0.05)
            waiting = host.enqueue_many(runs(batch(made), batch(made)))  # split, as a producer is held
            whole = await waiting
            assert isinstance(whole, list)
            host.stop_serving("another is chosen")
            errors = await asyncio.gather(*parts, *whole, return_exceptions=True)
            assert [isinstance(one, Refused) and one.reason for one in errors] == ["NOT_SERVING"] * 4
            assert len({id(one) for one in errors}) == 4
            assert host.arriving == 0
            writes.go.set()
            await host.wind_down("another is chosen")

    asyncio.run(main())


@pytest.mark.parametrize("together", [True, False])
def test_a_group_that_stops_the_copy_is_not_left_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Its effect fails, or the host: where a request of it is refused, each has an answer of its own."""

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)

            def fails(*_: Any) -> None:
                raise ZeroDivisionError

            if together:
                monkeypatch.setattr(host, "append", fails)
            else:
                monkeypatch.setattr(Shard, "_apply_append", fails)
            waiting = [host.enqueue_many(runs(batch(made), batch(made))) for _ in range(2)]
            async with asyncio.timeout(10):
                errors = [error for one in waiting for error in await outcomes(one)]
            assert {isinstance(one, Refused) and one.reason for one in errors} == {"SHARD_DAMAGED"}
            monkeypatch.undo()

    asyncio.run(main())


def test_a_large_request_alone_is_not_copied_into_a_frame_that_others_share(tmp_path: Path) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            host.shard.raise_format(2)
            small = batch(made)
            size, ones = np.array([100_000], np.uint32), small.key
            large = IncomingBatch(
                small.time, small.relative, size, ones, ones, bytes(100_000), runs=[BatchRun(0, 0, 1)]
            )
            answers = [host.enqueue(small), host.enqueue_many(large), host.enqueue(small), host.enqueue(small)]
            await asyncio.gather(*map(outcomes, answers))
            assert (FrameKind.APPEND, 1) in frames(host)
            assert sum(requests for _, requests in frames(host)) == 4
            assert max(requests for _, requests in frames(host)) == 2

    asyncio.run(main())
