"""The parts that bound what clients make a node hold, each by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from delaynode.limits import budget as budgets
from delaynode.limits.budget import Answers, Budget, Hold, ReadingGate
from delaynode.replica.hosts.waiters import WaitQueues
from delaynode.store.errors import Refused

MIB = 1 << 20


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # what it looks at tells nobody
            await asyncio.sleep(0.005)


# ------------------------------------------------------------ budgets
async def started(budget: Budget, *wanted: tuple[str, int]) -> list[asyncio.Task[Hold]]:
    tasks = [asyncio.create_task(budget.acquire(peer, size)) for peer, size in wanted]
    await turn()
    return tasks


def test_a_full_budget_refuses_who_cannot_wait_long_and_says_which_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "SOON_SECONDS", 0.05)

    async def run() -> None:
        budget = Budget("of messages wait", 100, 60)
        first = await budget.acquire_soon("a", 60)
        with pytest.raises(
            Refused, match="60 bytes of messages wait for this connection, the limit is 60 bytes"
        ) as caught:
            await budget.acquire_soon("a", 1)
        assert caught.value.reason == "BUSY"
        assert int(caught.value.metadata["retry_after_ms"]) > 0
        with pytest.raises(Refused, match="60 bytes of messages wait in this node, the limit is 100 bytes"):
            await budget.acquire_soon("b", 41)
        (large,) = await started(budget, ("b", 50))
        words = "60 bytes of messages wait in this node, the limit is 100 bytes; requests that came before this one"
        with pytest.raises(Refused, match=words):
            await budget.acquire_soon("c", 1)
        large.cancel()
        monkeypatch.setattr(budgets, "SOON_SECONDS", 20.0)
        soon = asyncio.create_task(budget.acquire_soon("b", 41))
        await turn()
        budget.release(first)
        assert (await soon).size == 41
        assert budget.used == 41

    asyncio.run(run())


def test_one_alone_may_be_larger_than_any_limit() -> None:
    async def run() -> None:
        budget = Budget("", 100, 60)
        hold = await budget.acquire("a", 1_000)
        (other,) = await started(budget, ("b", 1))
        assert not other.done()
        budget.release(hold)
        budget.release(await other)
        assert budget.used == 0

    asyncio.run(run())


def test_who_waits_for_the_node_is_served_in_order_and_nobody_passes() -> None:
    async def run() -> None:
        budget = Budget("", 100, 100)
        first = await budget.acquire("a", 90)
        large, tiny = await started(budget, ("b", 50), ("c", 5))
        assert not large.done()
        assert not tiny.done()
        budget.release(first)
        assert (await large).size == 50
        assert (await tiny).size == 5
        assert budget.used == 55

    asyncio.run(run())


def test_who_waits_for_its_own_connection_keeps_no_other_waiting() -> None:
    async def run() -> None:
        budget = Budget("", 100, 30)
        mine = await budget.acquire("a", 30)
        second, other = await started(budget, ("a", 30), ("b", 30))
        assert not second.done()
        assert other.done()
        budget.release(mine)
        await second
        assert budget.used == 60

    asyncio.run(run())


def test_who_goes_away_while_waiting_or_just_served_leaves_nothing_held() -> None:
    async def run() -> None:
        budget = Budget("", 100, 100)
        first = await budget.acquire("a", 100)
        waiting, served = await started(budget, ("b", 100), ("c", 100))
        waiting.cancel()
        await turn()
        budget.release(first)
        served.cancel()  # it has its place, and does not know it yet
        await asyncio.gather(waiting, served, return_exceptions=True)
        assert budget.used == 0
        assert budget.waiting == 0

    asyncio.run(run())


def test_those_who_do_not_read_are_given_up_when_others_wait_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("WAIT_SECONDS", 0.01), ("UNREAD_SECONDS", 0.05), ("AGAIN_SECONDS", 0.0)):
        monkeypatch.setattr(budgets, name, seconds)
    given_up: list[set[str]] = []

    async def run() -> None:
        budget = Budget("", 100, 50, given_up.append)
        deaf = [await budget.acquire("deaf", 50), await budget.acquire("deaf too", 50)]
        await asyncio.sleep(0.1)
        assert not given_up
        (waiting,) = await started(budget, ("honest", 10))
        await until(lambda: bool(given_up))
        assert given_up[0] == {"deaf", "deaf too"}
        for hold in deaf:
            budget.release(hold)
        await waiting
        given_up.clear()
        (waiting,) = await started(budget, ("honest", 45))  # waits for nobody but itself
        await asyncio.sleep(0.1)
        assert not given_up
        waiting.cancel()

    asyncio.run(run())


class Call:
    """A call from connection `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done: list[Callable[[], None]] = []

    def peer(self) -> str:
        return self.name

    def on_done(self, done: Callable[[], None]) -> None:
        self.done.append(done)


def test_a_connection_gets_large_answers_once_it_has_shown_that_it_reads() -> None:
    async def run() -> None:
        budget = Budget("", 256 * MIB, 64 * MIB)
        answers = Answers(budget, Call("a"))
        windows = [answers.window]
        for _ in range(12):
            await answers.reserve(answers.window)
            assert answers.window == windows[-1]
            answers.sent()
            windows.append(answers.window)
        assert windows[0] <= MIB
        assert windows[-1] == 64 * MIB
        assert all(later <= 2 * window for window, later in pairwise(windows))
        assert Answers(budget, Call("b")).window == windows[0]

    asyncio.run(run())


def test_a_unary_answer_is_held_until_its_call_is_over() -> None:
    async def run() -> None:
        budget, call = Budget("", 100 * MIB, 50 * MIB), Call("a")
        answers = Answers(budget, call)
        await answers.reserve(MIB)
        answers.sent_when_done()
        assert budget.used == 2 * MIB
        call.done[0]()
        assert budget.used == 0

    asyncio.run(run())


# ------------------------------------------------------------ the gate
def test_few_requests_are_received_at_a_time_and_slow_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("SLOW_SECONDS", 0.02), ("TOO_SLOW_SECONDS", 0.15)):
        monkeypatch.setattr(budgets, name, seconds)

    async def run() -> None:
        gate, under_way, most, came = ReadingGate(2, 3), 0, 0, asyncio.Event()

        async def slow() -> str:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                await came.wait()
            finally:
                under_way -= 1
            return "slow"

        async def quick() -> str:
            return "quick"

        crowd = [asyncio.create_task(gate.read(slow)) for _ in range(20)]
        await until(lambda: most >= 5)
        await asyncio.sleep(0.1)
        assert most == 5  # two in their places, three slow ones
        async with asyncio.timeout(20):
            assert await gate.read(quick) == "quick"  # the slow ones before it were too slow
        assert most == 5
        came.set()
        ended = await asyncio.gather(*crowd, return_exceptions=True)
        refused = [one for one in ended if isinstance(one, Refused)]
        assert {one.reason for one in refused} == {"BUSY"}
        assert len(refused) + ended.count("slow") == 20
        assert len(refused) >= 10

    asyncio.run(run())


def test_who_goes_away_while_it_sends_leaves_its_place() -> None:
    async def run() -> None:
        gate = ReadingGate(1, 1)

        async def never() -> None:
            await asyncio.Event().wait()

        async def quick() -> str:
            return "quick"

        reading = asyncio.create_task(gate.read(never))
        await turn()
        reading.cancel()
        async with asyncio.timeout(5):
            assert await gate.read(quick) == "quick"
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(run())


# ------------------------------------------------------------ who waits for messages
class Group:
    """The part of a consumer group that Waiting reads."""

    def __init__(self, tags: tuple[int, ...] = ()) -> None:
        self.tags = tuple(map(str, tags))
        self.tag_hashes = np.array(tags, np.uint32)
        self.ready = 0
        self.visible_ms = 2**63 - 1
        self.looks = 0

    def readable(self, _: object, now_ms: int) -> bool:
        self.looks += 1
        return self.ready > 0 or self.visible_ms <= now_ms

    def next_visible(self) -> int:
        return self.visible_ms


class World:
    """Waiting over groups of the test's own, at a time of the test's own."""

    def __init__(self, **groups: Group) -> None:
        self.groups = groups
        self.now_ms = 1_000
        self.waiting = WaitQueues(self, None, lambda: self.now_ms)  # type: ignore[arg-type]
        self.woken: list[tuple[str, int]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def wait(self, group: str, count: int, seconds: float = 60.0) -> None:
        async def one(number: int) -> None:
            await self.waiting.wait_for_group(group, seconds)
            self.woken.append((group, number))

        first = len(self.tasks)
        self.tasks += [asyncio.create_task(one(first + n)) for n in range(count)]
        await turn()

    def released(self, *tags: int) -> None:
        rows = np.zeros(len(tags), [("tag", "<u4")])
        rows["tag"] = tags
        self.waiting.on_released([rows])

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert len(self.waiting) == 0


def test_news_of_one_message_wakes_one_of_five_hundred_consumers_the_first() -> None:
    async def run() -> None:
        world = World(g=Group(), other=Group())
        await world.wait("g", 500)
        await world.wait("other", 1)
        world.groups["g"].ready = 1
        world.released(0)
        world.groups["g"].ready = 0  # as it takes it
        await turn()
        assert world.woken == [("g", 0)]
        world.groups["g"].ready = 1
        world.released(0)
        await turn()
        assert world.woken == [("g", 0), ("g", 1)]
        await world.end()

    asyncio.run(run())


def test_each_waits_for_its_own_time_whoever_came_before() -> None:
    async def run() -> None:
        world, loop = World(g=Group(), other=Group()), asyncio.get_running_loop()
        began = loop.time()
        await world.wait("g", 1, 3_600.0)
        await world.wait("g", 1, 0.2)
        await world.wait("other", 2, 0.1)
        await world.wait("g", 1, 0.3)
        await asyncio.gather(*world.tasks[1:])
        assert loop.time() - began >= 0.3
        assert world.woken == [("other", 2), ("other", 3), ("g", 1), ("g", 4)]
        await world.end()

    asyncio.run(run())


def test_who_takes_some_and_leaves_others_wakes_the_next() -> None:
    async def run() -> None:
        world = World(g=Group())
        await world.wait("g", 3)
        world.groups["g"].ready = 2
        world.released(0)
        await turn()
        assert len(world.woken) == 1
        world.waiting.wake_first("g")
        await turn()
        assert len(world.woken) == 2
        await world.end()

    asyncio.run(run())


def test_a_consumer_that_goes_away_as_it_is_woken_wakes_the_next() -> None:
    async def run() -> None:
        world = World(g=Group())
        await world.wait("g", 2)
        world.groups["g"].ready = 1
        world.released(0)
        world.tasks[0].cancel()
        await turn()
        assert world.woken == [("g", 1)]
        await world.end()

    asyncio.run(run())


def test_what_comes_between_the_look_and_the_wait_is_not_missed() -> None:
    async def run() -> None:
        world = World(g=Group())
        world.groups["g"].ready = 1
        await world.wait("g", 1)
        assert world.woken == [("g", 0)]

    asyncio.run(run())


def test_a_retry_wakes_one_when_it_becomes_visible_and_a_wait_ends_in_time() -> None:
    async def run() -> None:
        world = World(g=Group())
        await world.wait("g", 2)
        world.groups["g"].visible_ms = world.now_ms + 50
        world.waiting.wake_all()
        world.now_ms += 50
        assert world.woken == []
        await until(lambda: bool(world.woken))
        world.groups["g"].visible_ms = 2**63 - 1  # as it takes it
        await asyncio.sleep(0.1)
        assert world.woken == [("g", 0)]
        began = time.monotonic()
        await world.wait("g", 1, seconds=0.3)
        await until(lambda: len(world.woken) == 2)
        assert world.woken[1] == ("g", 2), "its own time is over"
        assert time.monotonic() - began >= 0.29
        await world.end()

    asyncio.run(run())


def test_a_group_whose_filter_leaves_the_news_out_is_not_even_looked_at() -> None:
    async def run() -> None:
        world = World(g=Group((7, 9)), every=Group())
        for name in world.groups:
            await world.wait(name, 1)
        looks = world.groups["g"].looks
        world.released(8, 8)
        assert world.groups["g"].looks == looks
        world.groups["g"].ready = world.groups["every"].ready = 1
        world.released(8, 9)
        await turn()
        assert sorted(world.woken) == [("every", 1), ("g", 0)]
        await world.end()

    asyncio.run(run())


def test_the_end_of_a_group_or_of_the_shard_wakes_all() -> None:
    async def run() -> None:
        world = World(g=Group(), h=Group())
        await world.wait("g", 3)
        await world.wait("h", 2)
        del world.groups["g"]
        world.waiting.wake_all()
        await turn()
        assert len(world.woken) == 3
        world.waiting.end()
        await turn()
        assert len(world.woken) == 5
        assert len(world.waiting) == 0

    asyncio.run(run())
