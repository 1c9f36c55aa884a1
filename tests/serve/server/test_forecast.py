"""Forecast: the sums of all nodes, from any of them, or an error: never of less than all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2
from delayapi.proto.externalscaler import externalscaler_pb2 as keda
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.serve.server.test_keda import TRIGGER, Keda
from tests.serve.support.client import Client, Failure, Msg, Shard, poll, wait_served

TOPICS = [TopicSpec("t", 6), TopicSpec("paced", 2, max_release_per_second=10), TopicSpec("empty", 1)]
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("forecast"), nodes=3, topics=TOPICS) as running:
        wait_served(running)
        yield running


@pytest.fixture(scope="module")
def clients(three: LocalCluster) -> Iterator[list[Client]]:
    made = [Client(endpoint) for endpoint in three.endpoints]
    yield made
    for client in made:
        client.close()


def forecast(client: Client, topic: str = "t", **fields: Any) -> pb.TopicForecast:
    (one,) = client.call("Forecast", topic=topic, **fields).topics
    return one


def arrivals(found: pb.TopicForecast) -> list[int]:
    return np.frombuffer(found.arrivals, "<i8").tolist()


def group(found: pb.TopicForecast, name: str) -> pb.GroupForecast:
    (one,) = [one for one in found.groups if one.group == name]
    return one


def test_both_edges_tell_it(client: Client) -> None:
    assert arrivals(forecast(client, "foreseen")) == [0] * 60
    Shard(client, "foreseen", 0).send(*(Msg(delay_ms=30 * 60_000) for _ in range(3)))
    found = arrivals(forecast(client, "foreseen"))
    assert (found[:20], found[30:]) == ([0] * 20, [3] * 30)


def test_any_node_tells_what_all_of_them_have_coming(clients: list[Client]) -> None:
    for queue in range(6):
        far = [Msg(delay_ms=queue * HOUR_MS + 30 * 60_000) for _ in range(10)]
        Shard(clients[0], "t", queue).send(*far)
    for client in clients:
        found = forecast(client, bucket_ms=HOUR_MS, buckets=7)
        assert arrivals(found) == [10, 20, 30, 40, 50, 60, 60]
        assert (found.pending, list(found.queues)) == (60, [0, 1, 2, 3, 4, 5])
        everything = client.call("Forecast")
        assert [one.topic for one in everything.topics] == ["empty", "paced", "t"]
        assert (everything.bucket_ms, everything.buckets) == (60_000, 60)
        assert len(arrivals(everything.topics[0])) == 60
    own = [client.call("Forecast", topic="t", own=True).topics[0] for client in clients]
    assert sorted(queue for one in own for queue in one.queues) == [0, 1, 2, 3, 4, 5]
    assert all(0 < len(one.queues) < 6 for one in own)
    assert sum(one.pending for one in own) == 60


def test_a_group_is_told_of_with_what_queues_keep_that_it_has_not_reached(clients: list[Client]) -> None:
    ways = [Shard(clients[queue % 3], "t", queue) for queue in range(6)]
    released = [way.stored()[1] for way in ways]
    for way in ways:
        way.send(Msg(), Msg(), Msg())

    def unseen() -> bool:
        return group(forecast(clients[0], group="new"), "new").unseen == sum(released) + 18

    poll("all are released", unseen)
    assert "new" not in {one.group for one in forecast(clients[1]).groups}, "it is told of where it is asked for"
    assert len(ways[2].receive("new", max_messages=2, wait_ms=10_000)) == 2
    one = group(forecast(clients[1]), "new")
    assert (one.in_flight, one.available) == (2, released[2] + 1)
    assert one.unseen == 0, "without being asked for, a group is told of by the queues that know it"
    assert group(forecast(clients[1], group="new"), "new").unseen == sum(released) + 18 - released[2] - 3
    assert one.oldest_age_ms >= 0


def test_a_paced_topic_has_coming_what_its_rate_lets_through(clients: list[Client]) -> None:
    Shard(clients[0], "paced", 0).send(*(Msg(delay_ms=90_000) for _ in range(1_000)))
    found = arrivals(forecast(clients[1], "paced", buckets=8))
    assert found[0] == 0
    steps = np.diff(found).tolist()
    assert max(steps) <= 5 * 60, "a queue of two has half of 10/s"
    assert found[-1] == 1_000
    assert found[3] < 1_000


def test_firings_to_come_are_expected(clients: list[Client]) -> None:
    shard = Shard(clients[0], "empty", 0)
    schedule = schedules_pb2.Schedule(id="minutely", cron=["* * * * *"], body=b"x", max_firings=20)
    assert shard.call("PutSchedule", schedule=schedule).changed
    try:
        topic = forecast(clients[2], "empty", buckets=40)
        found = arrivals(topic)
        assert np.frombuffer(topic.firings, "<i8").tolist() == found, "nothing else is pending"
        assert found[9] in (9, 10, 11)
        assert found[-1] in (19, 20), "it has 20 firings, of which one may have been by now"
    finally:
        shard.call("DeleteSchedule", id="minutely")
    assert arrivals(forecast(clients[2], "empty"))[-1] == 0
    assert not forecast(clients[2], "t").firings


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"bucket_ms": 999}, "bucket_ms: 999 ms is not within 1.0 s and 1 d"),
        ({"bucket_ms": -1}, "bucket_ms"),
        ({"bucket_ms": 86_400_001}, "bucket_ms"),
        ({"buckets": 1_441}, "buckets: 1,441 asked for, the limit is 1,440"),
        ({"group": "g"}, "name the topic too"),
        ({"topic": "t" * 300}, "the topic has 300 characters"),
        ({"topic": "t", "group": "g" * 300}, "the group has 300 characters"),
    ],
)
def test_nonsense_is_refused(clients: list[Client], fields: dict[str, Any], says: str) -> None:
    with pytest.raises(Failure, match=says) as caught:
        clients[0].call("Forecast", **fields)
    assert caught.value.reason == "BAD_REQUEST"
    with pytest.raises(Failure) as caught:
        clients[0].call("Forecast", topic="nothing")
    assert caught.value.reason == "UNKNOWN_TOPIC"


def test_a_master_that_does_not_answer_is_an_error_and_never_less(three: LocalCluster, clients: list[Client]) -> None:
    """Frozen, it holds its leases in the registry for a while: it is asked, and says nothing."""
    before = forecast(clients[0]).pending
    scaler = Keda(clients[2], TRIGGER | {"topic": "t"})
    push = clients[2].channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")
    pushed = push(scaler.ref().SerializeToString(), timeout=60)
    next(pushed)
    three.kill("n1", signal.SIGSTOP)
    try:
        with pytest.raises(Failure) as caught:
            forecast(clients[0])
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_SERVING")
        is_active = partial(scaler._call, "IsActive", scaler.ref(), keda.IsActiveResponse)
        for ask in (scaler.poll, is_active, partial(next, pushed)):
            with pytest.raises(grpc.RpcError) as told:
                ask()
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE, "KEDA falls back, where a 0 sends workers home"
    finally:
        three.kill("n1", signal.SIGCONT)
    wait_served(three)
    assert poll("all are there again", lambda: _pending(clients[0]), 60) == before


def _pending(client: Client) -> int | None:
    try:
        return forecast(client).pending
    except Failure:
        return None
