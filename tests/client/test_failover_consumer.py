"""Consumers and admins through failovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from delayapi.handle import Handle
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import errors
from delayclient.admin.admin import Admin
from delayclient.admin.views import Outcome
from delayclient.consumer.consumer import Consumer
from delayclient.routing.routing import Cluster

from tests.client.support.fakegroup import Groups
from tests.client.support.fakes import FakeCluster, FakeNode, Refusal, until

UNKNOWN_OUTCOME = Refusal("NOT_SERVING")
"""Says nothing of what was done."""


@asynccontextmanager
async def pair(queues: int = 2) -> AsyncIterator[tuple[FakeNode, FakeNode, Groups]]:
    """The master, another node, and the groups of both."""
    cluster = FakeCluster(queues=queues)
    async with FakeNode(cluster) as new, FakeNode(cluster) as old:
        groups = Groups(old)
        groups.serve_at(new)
        yield old, new, groups
        old.awake.set()


def fail_over(groups: Groups, new: FakeNode) -> None:
    """Deliveries are memory of the old master only."""
    for queue in groups.queues:
        queue.visible_at.clear()
    new.cluster.elect(new)


@pytest.fixture
def endless_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No poll and no try of a call ends by its own time: what is over within seconds was ended by something else."""
    monkeypatch.setattr("delayclient.consumer.consumer._WAIT_MS", 300_000)
    monkeypatch.setattr("delayclient.routing.reachability.SILENT_S", 300.0)
    monkeypatch.setattr("delayclient.consumer.acks.RETRY_S", 300.0)
    monkeypatch.setitem(Cluster.call.__kwdefaults__, "attempt_s", 300.0)


async def received(consumer: Consumer, wanted: bytes, seconds: float) -> float:
    """Acknowledges messages until one is `wanted`; how long that took."""
    started = time.monotonic()
    while time.monotonic() < started + seconds:
        message = await consumer.receive(seconds)
        if message is not None:
            message.ack()
            if message.body == wanted:
                return time.monotonic() - started
    raise AssertionError(f"{wanted!r} was not delivered within {seconds} s")


async def begin(consumer: Consumer, groups: Groups) -> None:
    """A first message goes all the way."""
    groups.queues[0].release([b"first"])
    await received(consumer, b"first", 5)
    await consumer.flush()


@pytest.mark.usefixtures("endless_waits")
def test_idle_polls_at_a_frozen_master_are_reopened_at_its_successor() -> None:
    async def main() -> None:
        async with (
            pair() as (old, new, groups),
            Consumer([old.endpoint, new.endpoint], "t", "g", invisible="60s") as consumer,
        ):
            await begin(consumer, groups)
            await until("a poll is under way on each queue", lambda: all(groups.waiting[n] for n in (0, 1)))
            old.awake.clear()
            fail_over(groups, new)
            groups.queues[1].release([b"second"])
            await received(consumer, b"second", 30)  # sooner than the poll's own time
            await consumer.flush()
            assert groups.all_acked()

    asyncio.run(main())


@pytest.mark.usefixtures("endless_waits")
def test_acks_that_the_old_master_never_confirmed_reach_the_new_one() -> None:
    async def main() -> None:
        async with (
            pair(queues=1) as (old, new, groups),
            Consumer([old.endpoint, new.endpoint], "t", "g") as consumer,
        ):
            groups.queues[0].release([str(i).encode() for i in range(10)])
            messages = [await consumer.receive(5) for _ in range(10)]
            old.awake.clear()
            for message in messages:
                assert message is not None
                message.ack()
            await until("the frozen node has the acks", lambda: old.came["Ack"])
            fail_over(groups, new)
            await asyncio.wait_for(consumer.flush(), 30)
            assert groups.all_acked()
            assert consumer.lost_acks == 0

    asyncio.run(main())


def test_consumer_goes_on_through_a_time_without_a_master() -> None:
    async def main() -> None:
        async with (
            pair() as (old, new, groups),
            Consumer([old.endpoint, new.endpoint], "t", "g") as consumer,
        ):
            await begin(consumer, groups)
            await old.stop()
            new.cluster.elect(None)
            receiving = asyncio.create_task(received(consumer, b"second", 30))
            await asyncio.sleep(1.5)
            assert not receiving.done()
            groups.queues[1].release([b"second"])
            fail_over(groups, new)
            assert await receiving < 1.5 + 2.5

    asyncio.run(main())


@pytest.mark.usefixtures("endless_waits")
def test_poll_at_a_former_master_is_left_as_soon_as_the_route_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayclient.routing.reachability.PING_INTERVAL_S", 300.0)

    async def main() -> None:
        async with (
            pair(queues=1) as (old, new, groups),
            Consumer([old.endpoint, new.endpoint], "t", "g") as consumer,
        ):
            await begin(consumer, groups)
            await until("the queue's poll is under way", lambda: groups.waiting[0])
            old.awake.clear()
            fail_over(groups, new)
            groups.queues[0].release([b"second"])
            await consumer.cluster.refresh("t")
            await received(consumer, b"second", 30)

    asyncio.run(main())


def test_what_a_node_hands_out_as_it_becomes_the_master_is_not_left_behind() -> None:
    """The poll is at a node that was to pass it on, as its master could not be reached."""

    async def main() -> None:
        async with (
            pair(queues=1) as (old, new, groups),
            Consumer([old.endpoint, new.endpoint], "t", "g") as consumer,
        ):
            await begin(consumer, groups)
            await old.stop()
            await until("the poll is at the other node", lambda: groups.waiting[0])
            new.answers_late = True
            groups.queues[0].release([b"second"])
            await until("it is handed out", lambda: len(groups.queues[0].handed_out) == 2)
            new.cluster.elect(new)
            await consumer.cluster.refresh("t")
            new.answers_late = False
            await received(consumer, b"second", 20)  # of 30 s for which it is this consumer's
            await consumer.flush()
            assert groups.queues[0].handed_out == [(0, 1), (1, 1)]

    asyncio.run(main())


def test_message_handed_out_by_the_old_master_may_be_nacked_or_acked_at_the_new_one() -> None:
    async def main() -> None:
        async with (
            pair(queues=1) as (old, new, groups),
            Consumer([old.endpoint, new.endpoint], "t", "g") as consumer,
        ):
            groups.queues[0].release([b"a", b"b"])
            first, second = await consumer.receive(5), await consumer.receive(5)
            assert first is not None
            assert second is not None
            await old.stop()
            fail_over(groups, new)
            first.ack()
            second.nack(0)
            await consumer.flush()
            assert groups.queues[0].acked == {0}
            await received(consumer, b"b", 5)  # though the new master handed out nothing yet, and ignored the nack
            await consumer.flush()
            assert groups.all_acked()

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------- admin


def lost_answers(serve: Callable[[Any], Any], times: int = 1) -> Callable[[Any], Any]:
    """Does it, and fails without an answer, so many times."""
    left = [UNKNOWN_OUTCOME] * times

    def losing(request: Any) -> Any:
        done = serve(request)
        if left:
            raise left.pop()
        return done

    return losing


class Messages:
    """A shard's knowledge of some messages, by seq: each message's due, and the outcome of the next cancel."""

    def __init__(self, node: FakeNode) -> None:
        self.due = {seq: 5_000_000 + seq for seq in range(10)}
        self.gone: dict[int, Outcome] = {}
        node.unary.update(Cancel=self.cancel, Reschedule=self.reschedule, ListPending=self.list_pending)

    def handle(self, seq: int) -> str:
        return Handle("t", 0, 100, self.due[seq], seq).encode()

    def _outcome(self, due: int, seq: int, done: Outcome) -> Outcome:
        if seq in self.gone:
            return self.gone[seq]
        return done if self.due[seq] == due else Outcome.RESCHEDULED

    def cancel(self, request: Any) -> Any:
        outcomes = []
        for due, seq in zip(np.frombuffer(request.due, "<i8"), np.frombuffer(request.seq, "<i8"), strict=True):
            outcomes.append(self._outcome(int(due), int(seq), Outcome.CANCELLED))
            if outcomes[-1] == Outcome.CANCELLED:
                self.gone[int(seq)] = Outcome.ALREADY_CANCELLED
        return delay_pb2.CancelResponse(outcome=bytes(outcomes))

    def reschedule(self, request: Any) -> Any:
        outcomes, dues = [], []
        columns = [np.frombuffer(column, "<i8").tolist() for column in (request.due, request.seq, request.time)]
        for due, seq, at in zip(*columns, strict=True):
            outcomes.append(self._outcome(due, seq, Outcome.MOVED))
            moved = outcomes[-1] == Outcome.MOVED
            if moved:
                self.due[seq] = at + (1_000_000 if request.relative else 0)
            dues.append(self.due[seq] if moved else 0)
        return delay_pb2.RescheduleResponse(outcome=bytes(outcomes), due=np.array(dues, "<i8").tobytes())

    def list_pending(self, request: Any) -> Any:
        after = (request.after_due, request.after_seq)
        rows = sorted((due, seq) for seq, due in self.due.items() if seq not in self.gone)
        rows = [row for row in rows if request.from_ms <= row[0] < request.to_ms and row > after][: request.limit]
        due, seq = (np.array([row[i] for row in rows], "<i8").tobytes() for i in (0, 1))
        return delay_pb2.PendingBatch(uid=100, count=len(rows), due=due, seq=seq)


def test_cancel_whose_answer_was_lost_is_told_as_done() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Admin(node.endpoint) as admin:
            messages = Messages(node)
            messages.gone[2] = Outcome.TOO_LATE
            node.unary["Cancel"] = lost_answers(messages.cancel)
            handles = [messages.handle(seq) for seq in (1, 2, 3)]
            assert await admin.cancel(handles) == [Outcome.CANCELLED, Outcome.TOO_LATE, Outcome.CANCELLED]
            again = await admin.cancel(handles)
            assert again == [Outcome.ALREADY_CANCELLED, Outcome.TOO_LATE, Outcome.ALREADY_CANCELLED], "no doubt here"

    asyncio.run(main())


def test_refusals_before_a_cancel_leave_no_doubt() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Admin(node.endpoint) as admin:
            messages = Messages(node)
            messages.gone[1] = Outcome.ALREADY_CANCELLED
            answers = [Refusal("NOT_MASTER"), Refusal("BUSY", retry_after_ms=1)]

            def cancel(request: Any) -> Any:
                if answers:
                    raise answers.pop()
                return messages.cancel(request)

            node.unary["Cancel"] = cancel
            assert await admin.cancel([messages.handle(1)]) == [Outcome.ALREADY_CANCELLED]
            assert not answers

    asyncio.run(main())


def test_reschedule_whose_answer_was_lost_is_looked_up() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Admin(node.endpoint) as admin:
            messages = Messages(node)
            node.unary["Reschedule"] = lost_answers(messages.reschedule)
            others = messages.handle(4)
            messages.due[4] = 1_234  # somebody else has moved it
            moved = await admin.reschedule([messages.handle(1), messages.handle(2), others], at=7_000_000)
            assert [row.outcome for row in moved] == [Outcome.MOVED, Outcome.MOVED, Outcome.RESCHEDULED]
            assert [Handle.decode(row.handle).due_ms for row in moved[:2]] == [7_000_000] * 2
            assert moved[2].handle == ""
            assert await admin.cancel([row.handle for row in moved[:2]]) == [Outcome.CANCELLED] * 2
            node.unary["Reschedule"] = lost_answers(messages.reschedule)
            later = await admin.reschedule([messages.handle(5)], delay="1h")
            assert later[0].outcome is Outcome.RESCHEDULED, "its new time is the master's secret"

    asyncio.run(main())


@pytest.mark.usefixtures("endless_waits")
def test_admin_call_at_a_frozen_master_is_made_at_its_successor() -> None:
    async def main() -> None:
        async with pair(queues=1) as (old, new, _):
            messages = Messages(old)
            new.unary = dict(old.unary)
            async with Admin([old.endpoint, new.endpoint], timeout="5m") as admin:
                await admin.route("t")
                old.awake.clear()
                cancelling = asyncio.create_task(admin.cancel([messages.handle(1)]))
                await until("the frozen node has the call", lambda: old.came["Cancel"])
                new.cluster.elect(new)
                assert await asyncio.wait_for(cancelling, 30) == [Outcome.CANCELLED]

    asyncio.run(main())


def test_node_that_is_frozen_does_not_keep_others_from_being_asked_about_nodes() -> None:
    async def main() -> None:
        async with pair(queues=1) as (old, new, _), Admin([old.endpoint, new.endpoint]) as admin:
            new.unary["DescribeNode"] = lambda request: delay_pb2.NodeState(node="n1", nodes=["n1"])
            old.awake.clear()
            started = time.monotonic()
            assert (await admin.node("n1")).node == "n1"
            assert time.monotonic() - started < 8
            with pytest.raises(errors.Unavailable):
                await Admin(old.endpoint, timeout="500ms").node("n1")

    asyncio.run(main())
