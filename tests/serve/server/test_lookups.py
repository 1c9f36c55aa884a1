"""Cancels and reschedules of messages that are not in the due window share their scans."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.replica.hosts.maintenance import Maintenance
from delaynode.replica.hosts.master import ShardHost
from delaynode.replication.transport.until import wait_until
from delaynode.server.handlers.lookups import Lookups
from delaynode.store.errors import Damaged
from delaynode.store.lookup import CANCELLED, MOVED_NOW, Lookup
from delaynode.store.shard import Shard
from delaynode.store.timer.scan import ScanJob
from delayregistry.model import TopicSpec

from tests.serve.support.client import Msg, ints, now_ms, request
from tests.serve.support.fuzz_inside import Aborted, Inside, OneNode

FAR = 3_600_000  # ms ahead, far beyond the due window
Due = list[int]


class Scans:
    """The scans of a node, which wait while the test holds `turn`."""

    def __init__(self, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turn = asyncio.Semaphore(1)
        self.begun = 0
        self.host: ShardHost = inside.node.hosts()[0]
        pending = inside._service.pending
        self.lookups = pending._lookups = Lookups(self.turn, pending._slot_cache, inside.node.clock)
        begin = Shard.begin_lookup

        def counted(shard: Shard, *args: Any) -> Lookup:
            found = begin(shard, *args)
            self.begun += found.job is not None
            return found

        monkeypatch.setattr(Shard, "begin_lookup", counted)

    @property
    def left_over(self) -> int:
        return len(self.host.shard.index._views)

    async def gathered(self, requests: int) -> None:
        """Returns when so many requests wait for the next scans."""
        waiting = self.lookups._batches
        await wait_until(lambda: sum(len(one.requests) for one in waiting.values()) == requests, 0.005)

    def held(self) -> AbstractAsyncContextManager[None]:
        return self.turn


def with_messages(
    directory: Path, count: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[Inside, Scans, Due], Awaitable[None]]
) -> None:
    """A node with messages `FAR` ahead: seq 0 to count - 1, and their dues."""

    async def run() -> None:
        inside = await Inside.start(directory, OneNode((TopicSpec("t", 1),)))
        try:
            due = [now_ms() + FAR + at for at in range(count)]
            await inside.ask("Enqueue", request("t", 0, [Msg(at_ms=one) for one in due]), pb.EnqueueResponse)
            await work(inside, Scans(inside, monkeypatch), due)
        finally:
            await inside.stop()

    asyncio.run(run())


def named(scans: Scans, due: Due, *seqs: int) -> dict[str, Any]:
    return {
        "topic": "t",
        "uid": scans.host.shard.identity.uid,
        "due": np.array([due[seq] for seq in seqs], "<i8").tobytes(),
        "seq": np.array(seqs, "<i8").tobytes(),
    }


def cancel(inside: Inside, scans: Scans, due: Due, *seqs: int) -> asyncio.Task[pb.CancelResponse]:
    asked = pb.CancelRequest(**named(scans, due, *seqs))
    return asyncio.create_task(inside.ask("Cancel", asked, pb.CancelResponse))


def move(inside: Inside, scans: Scans, due: Due, seq: int) -> asyncio.Task[pb.RescheduleResponse]:
    time = np.array([due[seq] + 60_000], "<i8").tobytes()
    asked = pb.RescheduleRequest(**named(scans, due, seq), time=time)
    return asyncio.create_task(inside.ask("Reschedule", asked, pb.RescheduleResponse))


def test_a_change_waits_while_too_many_units_wait_to_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds units, in memory, as a new message does."""

    async def work(inside: Inside, scans: Scans, due: Due) -> None:
        monkeypatch.setattr(Maintenance, "full", True)
        asked = cancel(inside, scans, due, 0), move(inside, scans, due, 1)
        done, _ = await asyncio.wait(asked, timeout=0.1)
        assert not done
        assert scans.host.shard.index.pending == 2
        monkeypatch.setattr(Maintenance, "full", False)
        await scans.host.maintenance.checkpoint(copy_wheels=False)
        cancelled, moved = await asyncio.gather(*asked)
        assert cancelled.outcome == bytes([CANCELLED])
        assert moved.outcome == bytes([MOVED_NOW])

    with_messages(tmp_path, 2, monkeypatch, work)


def test_requests_that_wait_share_a_scan_and_each_learns_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(inside: Inside, scans: Scans, due: Due) -> None:
        async with scans.held():
            twice = [cancel(inside, scans, due, seq // 2) for seq in range(40)]
            several = cancel(inside, scans, due, 30, 31, 30)
            moves = [move(inside, scans, due, seq) for seq in (35, 36)]
            await scans.gathered(43)
        outcomes = [list((await one).outcome) for one in twice]
        assert sorted(outcomes) == sorted([[pb.CANCELLED], [pb.ALREADY_CANCELLED]] * 20)
        assert all({*outcomes[at], *outcomes[at + 1]} == {pb.CANCELLED, pb.ALREADY_CANCELLED} for at in range(0, 40, 2))
        assert list((await several).outcome) == [pb.CANCELLED, pb.CANCELLED, pb.ALREADY_CANCELLED]
        assert [ints((await one).due) for one in moves] == [[due[35] + 60_000], [due[36] + 60_000]]
        assert scans.begun == 2, "one for the cancels, one for the others"
        assert scans.left_over == 0
        assert list((await cancel(inside, scans, due, 35)).outcome) == [pb.RESCHEDULED]
        assert scans.begun == 3

    with_messages(tmp_path, 40, monkeypatch, work)


def test_those_that_go_away_spoil_nothing_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(inside: Inside, scans: Scans, due: Due) -> None:
        async with scans.held():
            first, second = cancel(inside, scans, due, 0), cancel(inside, scans, due, 1)
            await scans.gathered(2)
            first.cancel()
        assert list((await second).outcome) == [pb.CANCELLED]
        async with scans.held():
            alone = cancel(inside, scans, due, 2)
            await scans.gathered(1)
            alone.cancel()
        await asyncio.wait([alone])
        assert list((await cancel(inside, scans, due, 2)).outcome) == [pb.CANCELLED]
        assert scans.left_over == 0

    with_messages(tmp_path, 3, monkeypatch, work)


def test_a_scan_that_fails_is_each_ones_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(inside: Inside, scans: Scans, due: Due) -> None:
        def fail(job: ScanJob) -> None:
            raise Damaged("the TimerLog can't be read")

        async with scans.held():
            both = [cancel(inside, scans, due, seq) for seq in range(2)]
            await scans.gathered(2)
            monkeypatch.setattr(ScanJob, "run", fail)
        errors = await asyncio.gather(*both, return_exceptions=True)
        assert [error.reason for error in errors if isinstance(error, Aborted)] == ["SHARD_DAMAGED"] * 2
        assert scans.left_over == 0

    with_messages(tmp_path, 2, monkeypatch, work)


def test_a_reschedule_that_is_refused_is_no_others_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(inside: Inside, scans: Scans, due: Due) -> None:
        async with scans.held():
            well = move(inside, scans, due, 0)
            time = np.array([due[1] + 400 * 86_400_000], "<i8").tobytes()
            asked = pb.RescheduleRequest(**named(scans, due, 1), time=time)
            wrong = asyncio.create_task(inside.ask("Reschedule", asked, pb.RescheduleResponse))
            await asyncio.wait([wrong], timeout=5)
        assert isinstance(wrong.exception(), Aborted), "at once"
        assert ints((await well).due) == [due[0] + 60_000]

    with_messages(tmp_path, 2, monkeypatch, work)


def test_a_scan_is_of_no_more_messages_than_a_request_may_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaynode.server.handlers.lookups.MAX_BATCH_MESSAGES", 4)

    async def work(inside: Inside, scans: Scans, due: Due) -> None:
        async with scans.held():
            each = [cancel(inside, scans, due, seq, seq + 1) for seq in range(0, 10, 2)]
            await scans.gathered(1)  # those of the last scan: the others can be joined no more
        assert [list((await one).outcome) for one in each] == [[pb.CANCELLED] * 2] * 5
        assert scans.begun == 3
        assert scans.left_over == 0

    with_messages(tmp_path, 10, monkeypatch, work)


def test_a_cancel_that_waited_for_room_finds_that_the_master_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(inside: Inside, scans: Scans, due: Due) -> None:
        host, soon = scans.host, now_ms() + 60_000
        stored = await inside.ask("Enqueue", request("t", 0, [Msg(at_ms=soon)]), pb.EnqueueResponse)

        async def rests() -> None:
            host.pause("being handed over")

        monkeypatch.setattr(host.maintenance, "wait_room", rests)
        end = host.shard.log_end
        with pytest.raises(Aborted, match="being handed over"):
            await cancel(inside, scans, {stored.first_seq: soon}, stored.first_seq)  # type: ignore[arg-type]
        assert host.shard.log_end == end
        host.resume()

    with_messages(tmp_path, 1, monkeypatch, work)
