"""Which routes the client believes, how often it asks for them, and which nodes it tries."""

from __future__ import annotations

import asyncio
import time

import pytest
from delayapi.proto.delay.v1 import delay_pb2
from delayclient import errors
from delayclient.routing.reachability import Reachability
from delayclient.routing.route_table import QueueRoute, RouteTable
from delayclient.routing.routing import Cluster

from tests.client.support.fakes import FakeCluster, FakeNode, until

NOBODY = "127.0.0.1:1"


def answer(*queues: tuple[int, int, str], topic: str = "t") -> delay_pb2.QueryRouteResponse:
    """Queues as (uid, epoch, endpoint)."""
    response = delay_pb2.QueryRouteResponse()
    route = response.topics.add(topic=topic)
    for number, (uid, epoch, endpoint) in enumerate(queues):
        route.queues.add(queue=number, uid=uid, epoch=epoch, endpoint=endpoint)
    return response


def test_an_older_term_is_never_believed_again() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:

            async def told(*queues: tuple[int, int, str]) -> list[tuple[int, int, str]]:
                node.cut_off = answer(*queues)
                route = await cluster.refresh("t")
                return [(queue.uid, queue.epoch, queue.endpoint) for queue in route.queues]

            both = [(7, 3, "a:1"), (8, 1, "b:1")]
            assert await told(*both) == both
            assert await told((7, 2, "old:1"), (8, 2, "c:1")) == [(7, 3, "a:1"), (8, 2, "c:1")]
            assert await told((7, 3, ""), (8, 2, "c:1")) == [(7, 3, ""), (8, 2, "c:1")], "its master has died"
            assert await told((7, 4, "d:1")) == [(7, 4, "d:1"), (8, 2, "c:1")], "told by who knows fewer queues"
            assert await told((9, 1, "e:1")) == [(9, 1, "e:1")], "deleted and made again"

    asyncio.run(main())


def test_a_slow_answer_of_before_the_failover_keeps_nobody_from_the_new_master_for_long() -> None:
    """A question took half a second, and told of the old master; the next is asked within half a second."""

    async def main() -> None:
        asked: list[float] = []

        async def query_node(endpoint: str, topic: str) -> delay_pb2.QueryRouteResponse:
            asked.append(time.monotonic())
            await asyncio.sleep(0.5 if len(asked) == 1 else 0)
            return answer((7, len(asked), f"m{len(asked)}:1"))

        async def explain(endpoint: str) -> None:
            return None

        table = RouteTable(("a:1",), query_node, lambda endpoint: False, lambda endpoint: None, explain)
        await table.refresh("t")
        answered = time.monotonic()
        while table.at("t", 0) == QueueRoute(0, 7, 1, "", "m1:1"):
            await asyncio.sleep(0.01)
            await table.refresh("t")
        assert asked[1] - answered < 1.0
        assert asked[1] - answered > 0.3, "it isn't asked all the time either"

    asyncio.run(main())


def test_frozen_node_does_not_hold_up_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayclient.routing.routing._ROUTE_TIMEOUT_S", 60.0)

    async def main() -> None:
        fake = FakeCluster()
        async with FakeNode(fake) as frozen, FakeNode(fake) as well:
            async with Cluster([frozen.endpoint, well.endpoint]) as cluster:
                query_node = cluster.route_table._query_node
                asked: list[str] = []

                async def noted(endpoint: str, topic: str) -> delay_pb2.QueryRouteResponse:
                    asked.append(endpoint)
                    return await query_node(endpoint, topic)

                cluster.route_table._query_node = noted
                frozen.awake.clear()
                began_s = time.monotonic()
                await cluster.refresh("t")
                assert time.monotonic() - began_s < 20, "the silence is not waited out: it takes 60 s"
                assert asked == [frozen.endpoint, well.endpoint]
                asked.clear()
                await cluster.refresh("t")
                assert asked[0] == well.endpoint, "whoever answered is asked first the next time"
            frozen.awake.set()

    asyncio.run(main())


def test_looks_are_few_however_many_ask_for_them() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            await cluster.route("t")
            began_s = time.monotonic()
            while (passed_s := time.monotonic() - began_s) < 1.0 or node.cluster.route_calls <= 3:
                assert passed_s < 60, "it is looked again and again"
                cluster.route_table.refresh_soon("t")
                await asyncio.gather(*[cluster.route_table.refresh("t") for _ in range(50)])
                await asyncio.sleep(0.002)
            passed_s = time.monotonic() - began_s
            assert 3 < node.cluster.route_calls <= 2 + passed_s / 0.1, "a tenth of a second lies between two"
            await node.stop()
            await cluster.route_table.refresh("t")  # says nothing: nobody can be asked now

    asyncio.run(main())


def test_node_that_is_cut_off_is_not_the_only_one_that_is_asked() -> None:
    async def main() -> None:
        fake = FakeCluster()
        async with FakeNode(fake) as cut_off, FakeNode(fake) as new:
            fake.elect(cut_off)
            async with Cluster([cut_off.endpoint, new.endpoint]) as cluster:
                await cluster.route("t")
                cut_off.cut_off = fake.route("t")
                fake.elect(new)
                deadline = time.monotonic() + 5
                while cluster.master("t", 0) != new.endpoint and time.monotonic() < deadline:
                    await cluster.route_table.refresh("t")
                    await asyncio.sleep(0.02)
                assert cluster.master("t", 0) == new.endpoint

    asyncio.run(main())


def test_whoever_waits_for_a_queue_is_woken_by_its_new_route_only() -> None:
    async def main() -> None:
        fake = FakeCluster(queues=2)
        async with FakeNode(fake) as node, FakeNode(fake) as other, Cluster(node.endpoint) as cluster:
            fake.masters = [node, node]
            await cluster.route("t")
            told: list[list[int]] = []
            end = cluster.route_table.listen("t", told.append)
            first = asyncio.create_task(cluster.route_table.wait_changed("t", 0, 60.0))
            second = asyncio.create_task(cluster.route_table.wait_changed("t", 1, 60.0))
            await asyncio.sleep(0.01)
            fake.masters = [node, other]
            await cluster.refresh("t")
            await asyncio.wait_for(second, 1)
            assert told == [[1]]
            assert not first.done()
            end()
            await cluster.close()
            await asyncio.wait_for(first, 1)

    asyncio.run(main())


def test_deleted_topic_is_told_to_who_looks() -> None:
    async def main() -> None:
        async with FakeNode(FakeCluster()) as node, Cluster(node.endpoint) as cluster:
            await cluster.route("t")
            node.cluster.topic = "other"
            await asyncio.sleep(0.2)
            with pytest.raises(errors.NotFound, match="unknown topic 't'"):
                await cluster.route_table.refresh("t")

    asyncio.run(main())


class Pings:
    """Nodes that answer pings, or not."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.asked: list[str] = []
        self.silent: list[str] = []

    async def __call__(self, endpoint: str, seconds: float) -> bool:
        self.asked.append(endpoint)
        if endpoint in self.dead:
            await asyncio.sleep(seconds)
            return False
        return True


def unreachable() -> errors.DelayError:
    return errors.make_error("UNAVAILABLE", "", "connection refused")


def test_detours_are_tried_by_few_until_one_has_worked() -> None:
    async def main() -> None:
        pings = Pings()
        pings.dead = {"m:1"}
        reach = Reachability(("a:1", "b:1"), pings, pings.silent.append)
        assert reach.resolve("m:1") == "m:1"
        reach.record_failure("m:1", errors.make_error("UNAVAILABLE", "NOT_SERVING", "it said so itself"))
        assert reach.resolve("m:1") == "m:1"
        reach.record_failure("m:1", unreachable())
        ways = []
        began_s = time.monotonic()
        for _ in range(100):
            try:
                ways.append(reach.resolve("m:1"))
            except errors.Unavailable:
                await asyncio.sleep(0.003)
        assert set(ways) == {"a:1"}
        assert 0.1 * (len(ways) - 1) <= time.monotonic() - began_s, "a tenth of a second lies between two"
        reach.record_success("a:1", "m:1")
        assert [reach.resolve("m:1") for _ in range(20)] == ["a:1"] * 20
        reach.record_failure(
            "a:1", errors.make_error("UNAVAILABLE", "NOT_SERVING", "the master cannot be reached"), "m:1"
        )
        with pytest.raises(errors.Unavailable):
            [reach.resolve("m:1") for _ in range(20)]
        reach.on_elected("m:1")
        assert [reach.resolve("m:1") for _ in range(20)] == ["m:1"] * 20
        reach.close()

    asyncio.run(main())


def test_node_that_answers_again_is_used_again() -> None:
    async def main() -> None:
        pings = Pings()
        reach = Reachability(("a:1",), pings, pings.silent.append)
        reach.record_failure("m:1", unreachable())
        assert reach.is_unreachable("m:1")
        await until("it is used again", lambda: not reach.is_unreachable("m:1"))
        reach.close()

    asyncio.run(main())


def test_silent_node_is_doubted_first_and_its_polls_are_ended_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayclient.routing.reachability.PING_INTERVAL_S", 0.05)
    monkeypatch.setattr("delayclient.routing.reachability.PATIENCE_S", 0.05)
    monkeypatch.setattr("delayclient.routing.reachability.RECHECK_S", 0.05)
    monkeypatch.setattr("delayclient.routing.reachability.SILENT_S", 0.5)

    async def main() -> None:
        pings = Pings()
        reach = Reachability(("a:1",), pings, pings.silent.append)
        left: list[errors.DelayError] = []
        reach.poll_opened("m:1", left.append)
        await asyncio.sleep(0.3)
        assert not left
        assert not pings.silent
        assert len(pings.asked) < 10, "asked for all polls of a node together, now and then"
        pings.dead = {"m:1"}
        await until("it is doubted", lambda: pings.silent)
        assert set(pings.silent) == {"m:1"}
        assert reach.is_suspect("m:1")
        assert not left
        await until("its polls are ended", lambda: left)
        assert isinstance(left[0], errors.Unavailable)
        assert reach.is_unreachable("m:1")
        reach.close()

    asyncio.run(main())


def test_node_with_busy_polls_is_not_asked_for_signs_of_life() -> None:
    async def main() -> None:
        pings = Pings()
        reach = Reachability(("a:1",), pings, pings.silent.append)
        leave = list[errors.DelayError]().append
        reach.poll_opened("m:1", leave)
        for _ in range(30):
            await asyncio.sleep(0.05)
            reach.record_success("m:1")
        assert not pings.asked
        reach.poll_closed("m:1", leave)
        reach.close()

    asyncio.run(main())
