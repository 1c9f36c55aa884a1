"""maxReleasePerSecond at a real node (attack B7): exact, in order, through kills, and changed while it runs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.serve.support.client import Client, Failure, Got, Msg, Shard, now_ms, poll, wait_served

RATE = 200


@pytest.fixture
def capped(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "own", nodes=1, topics=[TopicSpec("t", 1, max_release_per_second=RATE)]) as running:
        wait_served(running)
        yield running


@pytest.fixture
def shard(capped: LocalCluster) -> Iterator[Shard]:
    with Client(capped.endpoints[0]) as client:
        yield Shard(client, "t", 0)


def set_rate(cluster: LocalCluster, rate: int | None) -> None:
    found = cluster.registry.read_cluster()
    assert found is not None
    topics = tuple(dataclasses.replace(topic, max_release_per_second=rate) for topic in found.spec.topics)
    cluster.registry.put_cluster(dataclasses.replace(found.spec, topics=topics), found.version)


def keys(got: list[Got]) -> list[tuple[int, int]]:
    return [(one.due_ms, one.seq) for one in got]


def test_a_thousand_due_at_once_take_five_seconds_at_two_hundred_a_second_in_order(shard: Shard) -> None:
    due = shard.send(*(Msg(delay_ms=500) for _ in range(1_000))).due[0]
    got = shard.receive_all(1_000, seconds=20)
    assert keys(got) == [(due, seq) for seq in range(1_000)]
    seconds = (got[-1].received_ms - due) / 1_000
    assert 4.4 <= seconds < 10  # a burst of 20 may come at once
    halfway = (got[500].received_ms - due) / 1_000
    assert halfway >= 1.9


def test_cancelled_messages_take_no_part_of_the_rate_nor_time(shard: Shard) -> None:
    due = now_ms() + 5_000
    first = shard.send(*(Msg(at_ms=due) for _ in range(20_000)))
    assert set(shard.cancel(first)) == {pb.CANCELLED}
    last = shard.send(Msg(at_ms=due + 1))
    (got,) = shard.receive_all(1, seconds=20)
    assert got.seq == last.seqs[0]
    assert got.received_ms - got.due_ms < 1_000


def test_kills_in_the_middle_release_nothing_twice_lose_nothing_and_are_no_way_round(
    capped: LocalCluster, shard: Shard
) -> None:
    due = shard.send(*(Msg(delay_ms=300) for _ in range(800))).due[0]
    for _ in range(3):
        time.sleep(0.7)
        capped.kill("n0")
        wait_served(capped)

    def released() -> list[Got]:
        try:
            return shard.fetch(max_messages=1_000)
        except Failure:
            return []

    got = poll("all are released", lambda: found if len(found := released()) == 800 else None, seconds=20)
    assert keys(got) == [(due, seq) for seq in range(800)]
    assert now_ms() - due >= 3_800


def test_ordinary_messages_pass_at_once_and_what_waits_goes_on(shard: Shard) -> None:
    """They take tokens, but at most half of those to come: neither stops the other."""
    waiting = shard.send(*(Msg(delay_ms=300) for _ in range(400)))
    due = waiting.due[0]
    poll("the first are released", lambda: shard.wheel().released > 0)
    sent_at = now_ms()
    at_once = shard.send(*(Msg(at_ms=due - 1_000) for _ in range(5_000)))
    got = shard.receive_all(5_400, seconds=20)
    ordinary = [one for one in got if one.seq in set(at_once.seqs)]
    assert max(one.received_ms for one in ordinary) - sent_at < 1_500
    held = [one for one in got if one.seq in set(waiting.seqs)]
    assert [one.seq for one in held] == waiting.seqs
    assert 1_800 <= held[-1].received_ms - due < 8_000


def test_a_rate_that_is_changed_holds_at_once(capped: LocalCluster, shard: Shard) -> None:
    due = shard.send(*(Msg(delay_ms=300) for _ in range(20_000))).due[0]
    for _ in range(2):
        shard.send(*(Msg(delay_ms=300) for _ in range(20_000)))
    poll("the first are released", lambda: shard.wheel().released > 0)
    time.sleep(0.4)
    assert shard.wheel().released <= 40 + RATE * (now_ms() - due) / 1_000
    set_rate(capped, 2_000)
    wheel = poll("they come faster", lambda: found if (found := shard.wheel()).released >= 6_000 else None, seconds=20)
    set_rate(capped, None)
    assert wheel.pending > 2_000 * 20
    poll("all are released", lambda: shard.wheel().released == 60_000, seconds=20)
    set_rate(capped, 1)

    def capped_again() -> bool:
        """Three of one due: without a cap they go in one tick."""
        before = shard.wheel().released
        shard.send(*(Msg(delay_ms=100) for _ in range(3)))
        return poll("some are released", lambda: shard.wheel().released - before) < 3

    poll("one a second", capped_again, seconds=20)
    released, due = shard.wheel().released, now_ms()
    shard.send(*(Msg(delay_ms=100) for _ in range(10)))
    time.sleep(1.2)
    assert shard.wheel().released - released <= 1 + (now_ms() - due) / 1_000
