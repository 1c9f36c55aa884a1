"""Enqueue requests in groups: each is answered once, and as if it had come alone."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.replication.transport.until import wait_until
from delaynode.server.handlers.rows import FORWARD_LANES, RowCalls
from delaynode.store.merging import MAX_FRAME_REQUESTS
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.support.client import Msg, request
from tests.serve.support.hosts import node
from tests.serve.support.rows import Outcome, Place, Recorded, group, outcome_of

HOUR_MS = 3_600_000
TOO_LATE_MS = 400 * 24 * HOUR_MS


def ask(count: int = 1, producer: int = 0, number: int = 0, delay_ms: int = HOUR_MS) -> pb.EnqueueRequest:
    return request("t", 0, [Msg(b"m", delay_ms=delay_ms)] * count, producer, number)


def run(directory: Path, claim: Callable[[Place, RowCalls], Coroutine[Any, Any, None]]) -> None:
    """The claim, with a shard that is served here and has room. No fault may be reported that it does not expect."""

    async def main() -> None:
        async with node(directory) as made:
            made.hosts["a"].shard.raise_format(2)
            place = Place(made, "a")
            await claim(place, RowCalls(place.as_dispatch()))

    asyncio.run(main())


def take(rows: RowCalls, *requests: pb.EnqueueRequest, **how: Any) -> Recorded:
    answers = Recorded([one.count for one in requests])
    rows.take(group(requests, answers, **how))
    return answers


async def answered(*groups: Recorded) -> list[Outcome]:
    """Of each request its only answer."""
    async with asyncio.timeout(10):
        await wait_until(lambda: all(all(one.outcomes) for one in groups), 0.001)
    await asyncio.sleep(0.01)
    assert [len(its) for one in groups for its in one.outcomes] == [1] * sum(len(one.outcomes) for one in groups)
    return [its[0] for one in groups for its in one.outcomes]


def reasons(outcomes: list[Outcome]) -> list[str]:
    return [one.reason for one in outcomes]


Request = tuple[
    int, int, int, bool
]  # producer, how far its number is from the next, messages, whether it may be stored
REQUESTS = st.tuples(
    st.integers(0, 3), st.sampled_from([0, 0, 0, 0, -1, 1]), st.integers(1, 3), st.integers(0, 9).map(bool)
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("group"), st.booleans(), st.lists(REQUESTS, min_size=1, max_size=24)),
        st.tuples(st.sampled_from(["remote", "full"]), st.booleans(), st.just([])),
        st.tuples(st.just("settle"), st.just(False), st.just([])),
    ),
    max_size=10,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_each_request_is_answered_once_as_if_it_had_come_alone(steps: list[tuple[str, bool, list[Request]]]) -> None:
    """The shard is here, elsewhere or full, and moves meanwhile. The order of a producer's requests stays."""

    async def main(directory: Path) -> None:
        async with node(directory) as made:
            for host in made.hosts.values():
                host.shard.raise_format(2)
            place, alone = Place(made, "a"), Place(made, "b")
            rows, following = RowCalls(place.as_dispatch()), [0] * 4
            groups: list[Recorded] = []
            asked: list[pb.EnqueueRequest] = []
            passed_on: list[bool] = []
            moved = False
            for what, flag, chosen in steps:
                if what == "remote":
                    place.remote, moved = flag, moved or flag
                elif what == "full":
                    place.maintenance.full = flag
                elif what == "settle":
                    place.maintenance.full = False
                    await answered(*groups)
                else:
                    requests = []
                    for producer, off, count, good in chosen:
                        producer *= not flag  # what is passed on may have another answer, and so its producer's later
                        number = max(0, following[producer] + off) if producer else 0
                        following[producer] = max(following[producer], number + 1)
                        requests.append(ask(count, producer, number, HOUR_MS if good else TOO_LATE_MS))
                    groups.append(take(rows, *requests, passed_on=flag))
                    asked += requests
                    passed_on += [flag] * len(requests)
                    await asyncio.sleep(0)
            place.maintenance.full = False
            found = await answered(*groups)
            stored: dict[int, list[range]] = {}
            for one, outcome, once in zip(asked, found, passed_on, strict=True):
                if once and moved and outcome.reason == "NOT_MASTER":  # it is passed on once
                    continue
                same = await outcome_of(alone, one)
                assert (outcome.reason, outcome.count, outcome.duplicate) == (same.reason, same.count, same.duplicate)
                if not (outcome.reason or outcome.duplicate):
                    kept = range(outcome.first_seq, outcome.first_seq + outcome.count)
                    stored.setdefault(one.producer_id if moved else 0, []).append(kept)
            for producer, ranges in stored.items():
                assert (producer == 0 and moved) or ranges == sorted(ranges, key=lambda kept: kept.start)
            seqs = sorted(seq for ranges in stored.values() for kept in ranges for seq in kept)
            assert seqs == list(range(place.shard_host.shard.next_seq))

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))


def test_two_nodes_that_each_believe_the_other_leads_refuse_at_once(tmp_path: Path) -> None:
    """What the other node has passed on waited behind what this one was passing on to it: for 30 s."""

    async def claim(place: Place, rows: RowCalls) -> None:
        place.remote = True
        own = take(rows, ask())
        assert take(rows, ask(), passed_on=True).outcomes == [[Outcome("NOT_MASTER")]]
        assert own.outcomes == [[]]
        await answered(own)

    run(tmp_path, claim)


def test_a_slow_request_elsewhere_keeps_no_other_producers_waiting(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.remote = True
        release, real = asyncio.Event(), place._call_other

        async def slow(node: Any, method: str, data: bytes, seconds: float, caller: Any) -> bytes:
            if pb.EnqueueRequest.FromString(data).producer_id == 1:
                await release.wait()
            return await real(node, method, data, seconds, caller)

        place._call_other = slow  # type: ignore[method-assign]
        slow_one = take(rows, ask(producer=1))
        await answered(take(rows, ask(producer=2)), take(rows, ask(producer=3)))
        later = take(rows, ask(producer=1, number=1))
        await asyncio.sleep(0.05)
        assert not slow_one.outcomes[0]
        assert not later.outcomes[0], "the order of a producer stays"
        release.set()
        assert reasons(await answered(slow_one, later)) == ["", ""]

    run(tmp_path, claim)


@pytest.mark.parametrize("full", [False, True])
def test_what_comes_once_the_shard_is_here_waits_for_what_is_on_its_way_elsewhere(tmp_path: Path, full: bool) -> None:
    """Else the later request of a producer is refused. What another node passes on waits for nothing of this one's."""

    async def claim(place: Place, rows: RowCalls) -> None:
        release, real = asyncio.Event(), place._call_other

        async def slow(*call: Any) -> bytes:
            await release.wait()
            return await real(*call)

        place._call_other = slow  # type: ignore[method-assign]
        place.remote = True
        first = take(rows, ask(producer=1))
        await asyncio.sleep(0.01)
        place.remote, place.maintenance.full = False, full
        passed_on = take(rows, ask(), passed_on=True)
        later = take(rows, ask(producer=1, number=1))
        place.maintenance.full = False
        await answered(passed_on)
        assert (first.outcomes, later.outcomes) == ([[]], [[]])
        release.set()
        assert reasons(await answered(first, later)) == ["", ""]

    run(tmp_path, claim)


def test_a_group_that_is_passed_on_has_a_bounded_number_of_calls_under_way(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.remote, highest = True, 0
        groups = [take(rows, *(ask() for _ in range(100))) for _ in range(3)]
        while not all(all(one.outcomes) for one in groups):
            highest = max(highest, place.forwarding)
            await asyncio.sleep(0)
        assert 1 < highest <= FORWARD_LANES
        await answered(*groups)
        assert not rows._lines

    run(tmp_path, claim)


def test_a_retry_with_another_number_of_messages_is_told_what_was_stored(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        assert await answered(take(rows, ask(3, producer=7))) == [Outcome("", 0, 3)]
        for requests in ([ask(1, producer=7)], [ask(), ask(1, producer=7), ask()]):
            assert Outcome("", 0, 3, duplicate=True) in await answered(take(rows, *requests))

    run(tmp_path, claim)


def test_only_what_the_disk_has_no_room_for_is_refused(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.disk_bytes = group([ask(3)], None).size_bytes
        assert reasons(await answered(take(rows, ask(), ask(9), ask(3), ask()))) == ["", "DISK_FULL", "", ""]

    run(tmp_path, claim)


def test_what_a_client_has_given_up_is_not_stored(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        now = int(time.monotonic() * 1_000)
        found = await answered(take(rows, ask(), ask(), ask(), deadline_ms=[-1, now - 1, now + 60_000]))
        assert reasons(found) == ["", "BUSY", ""]
        place.maintenance.full = True
        waits = take(rows, ask(), ask(), deadline_ms=[-1, int(time.monotonic() * 1_000) + 50])
        await asyncio.sleep(0.1)
        place.maintenance.full = False
        assert reasons(await answered(waits)) == ["", "BUSY"]
        assert place.shard_host.shard.next_seq == 3

    run(tmp_path, claim)


def test_a_request_is_passed_on_for_as_long_as_its_client_waits(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.remote, seconds, real = True, [], place._call_other

        async def noted(node: Any, method: str, data: bytes, until: float, caller: Any) -> bytes:
            seconds.append(until)
            return await real(node, method, data, until, caller)

        place._call_other = noted  # type: ignore[method-assign]
        now = int(time.monotonic() * 1_000)
        found = await answered(take(rows, ask(), ask(), ask(), deadline_ms=[-1, now + 5_000, now - 1]))
        assert reasons(found) == ["", "", "BUSY"]
        assert sorted(seconds) == [pytest.approx(5, abs=1), 30]

    run(tmp_path, claim)


def test_a_stopping_node_refuses_what_waits_and_what_comes(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.maintenance.full = True
        waiting = [take(rows, ask(), ask()) for _ in range(3)]
        await rows.close()
        waiting.append(take(rows, ask()))
        place.maintenance.full = False
        assert reasons(await answered(*waiting)) == ["NOT_SERVING"] * 7
        assert not rows._tasks

    run(tmp_path, claim)


@pytest.mark.parametrize("begun", [False, True])
def test_a_stopping_node_refuses_what_it_was_passing_on(tmp_path: Path, begun: bool) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.remote, called = True, 0

        async def never(*_: Any) -> bytes:
            nonlocal called
            called += 1
            await asyncio.Event().wait()
            raise AssertionError

        place._call_other = never  # type: ignore[method-assign]
        waiting = [take(rows, ask(producer=1), ask(producer=2, number=n)) for n in range(3)]
        if begun:
            await asyncio.sleep(0.01)
        await rows.close()
        assert reasons(await answered(*waiting)) == ["NOT_SERVING"] * 6
        assert called == 2 * begun, "nothing new is begun"

    run(tmp_path, claim)


def test_a_fault_ends_one_request_and_is_reported(tmp_path: Path) -> None:
    """An answer of another node that can't be read ended a lane, and left the others in it without an answer."""

    async def claim(place: Place, rows: RowCalls) -> None:
        faults: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, what: faults.append(type(what["exception"]).__name__)
        )
        place.remote = True

        async def garbage(*_: Any) -> bytes:
            return b"\xff" * 9

        place._call_other = garbage  # type: ignore[method-assign]
        assert reasons(await answered(take(rows, *(ask(producer=1, number=n) for n in range(3))))) == ["INTERNAL"] * 3
        assert faults == ["DecodeError"] * 3
        place.remote = False
        place.find_host = None  # type: ignore[method-assign, assignment]
        assert reasons(await answered(take(rows, ask(), ask()))) == ["INTERNAL"] * 2
        assert faults[3:] == ["TypeError"]

    run(tmp_path, claim)


def test_a_metric_that_fails_leaves_no_request_without_its_answer(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: faults.append(what["exception"]))
        place.node.metrics = None
        assert reasons(await answered(take(rows, ask(), ask()))) == ["", ""]
        assert len(faults) == 1

    run(tmp_path, claim)


def test_more_requests_than_a_frame_may_have_are_stored_in_order(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        requests = [ask(1 + number % 3) for number in range(2 * MAX_FRAME_REQUESTS + 5)]
        for number, one in enumerate(requests):
            if number % 2:
                one.relative, one.time = b"", bytes(8 * one.count)
        found = await answered(take(rows, *requests))
        at = 0
        for one, outcome in zip(requests, found, strict=True):
            assert outcome == Outcome("", at, one.count)
            at += one.count

    run(tmp_path, claim)
