"""The official clients in Java, Python and Node.js, as their registries have them, against a node."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator

import pytest
from delayapi.units import DAY_MS, HOUR_MS
from delayclient.sync import SyncConsumer, SyncProducer
from delaylocal import LocalCluster
from delaynode.server.doors.rocketmq.messages import MAX_BODY_BYTES

from tests.doors.rocketmq.support.judges import Judge, start_judge
from tests.doors.rocketmq.support.nodes import TRIED_EDGES
from tests.doors.rocketmq.support.wire import now_ms

LANGUAGES = ["java", "python", "node"]
pytestmark = pytest.mark.parametrize("cluster", TRIED_EDGES, indirect=True, scope="session")


@pytest.fixture(scope="module", params=LANGUAGES)
def started(
    cluster: LocalCluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Judge]:
    """One process of each client, for all tests: Java's takes a second to start."""
    judge = start_judge(request.param, tmp_path_factory.mktemp(request.param), cluster.endpoints[0])
    judge.ask("producer")
    yield judge
    judge.kill()  # to end well a push consumer waits for its last poll


@pytest.fixture
def one(started: Judge) -> Judge:
    started.received.clear()
    return started


def test_push_consumer_gets_what_is_sent_and_what_is_delayed_when_it_is_due(topic: str, one: Judge) -> None:
    one.ask("push", topic, "g", "*")
    sent, _ = one.send(topic, "now ü", tag="a", keys="k1,k2", name="colour", value="red")
    due_ms = -(-(now_ms() + 2_500) // 1_000) * 1_000  # Python's producer cuts times to seconds
    later, _ = one.send(topic, "later", at_ms=due_ms)
    first, second = one.until(2)
    assert (first.body, first.id, first.tag, first.keys, first.attempt) == ("now ü", sent, "a", ("k1", "k2"), 1)
    assert first.properties == "colour=red"
    assert (second.body, second.id, second.due_ms) == ("later", later, due_ms)
    assert due_ms <= second.at_ms < due_ms + 500


def test_a_second_and_forty_days_are_stored_and_more_is_refused(topic: str, one: Judge) -> None:
    one.ask("push", topic, "g", "*")
    due_ms = -(-(now_ms() + 1_000) // 1_000) * 1_000
    one.send(topic, "a second", at_ms=due_ms)
    later = [one.send(topic, "later", at_ms=now_ms() + ms)[1] for ms in (40 * DAY_MS - HOUR_MS, 40 * DAY_MS)]
    kind, why = one.tell("send", topic, "too late", now_ms() + 40 * DAY_MS + HOUR_MS, "", "", "", "")
    assert kind == "refused"
    assert "DELAY_TOO_LONG: message 0 is delayed by 40 days " in why, why
    assert "the limit is 40 days" in why, why
    (first,) = one.until(1)
    assert (first.body, first.due_ms) == ("a second", due_ms)
    assert first.at_ms >= due_ms
    for handle in later:
        one.ask("recall", topic, handle)
        kind, why = one.tell("recall", topic, handle)
        assert kind == "recalled", "asked again it is recalled still"
    assert len(one.received) == 1


def test_the_largest_body_goes_through_and_a_larger_one_is_refused(topic: str, one: Judge) -> None:
    """With the limits that the client has by default. The body can't be compressed."""
    body = base64.b64encode(random.Random(1).randbytes(MAX_BODY_BYTES)).decode()[:MAX_BODY_BYTES]
    one.ask("push", topic, "g", "*")
    one.send(topic, body)
    (first,) = one.until(1, 60)
    assert (first.body == body, first.attempt) == (True, 1)
    kind, why = one.tell("send", topic, f"{body}x", "", "", "", "", "")
    assert kind == "refused"
    assert f"exceeds the threshold, max size={MAX_BODY_BYTES} bytes" in why, why[:400]
    assert len(one.received) == 1


def test_recall_says_what_became_of_the_message(topic: str, one: Judge) -> None:
    one.ask("push", topic, "g", "*")
    due_ms = -(-(now_ms() + 3_000) // 1_000) * 1_000
    id_, handle = one.send(topic, "recalled", at_ms=due_ms)
    _, kept = one.send(topic, "kept", at_ms=due_ms)
    said = one.ask("recall", topic, handle)
    assert id_ in said[0]
    one.until(1)
    kind, why = one.tell("recall", topic, kept)
    assert kind == "refused"
    assert "too late" in why or "no such message" in why, why
    assert [message.body for message in one.received] == ["kept"]


def test_what_a_listener_fails_comes_again_as_the_next_attempt(topic: str, one: Judge) -> None:
    one.ask("push", topic, "g", "*")
    one.send(topic, "fail once")
    first, second = one.until(2)
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.at_ms - first.at_ms >= 900  # the first backoff is one second


def test_push_consumer_gets_the_tags_that_it_asks_for_and_no_other(topic: str, one: Judge) -> None:
    one.ask("push", topic, "g", "a || b")
    for tag in ("a", "c", "b", ""):
        one.send(topic, f"of {tag}", tag=tag)
        one.send(topic, f"later of {tag}", tag=tag, at_ms=-(-(now_ms() + 1_000) // 1_000) * 1_000)
    one.until(4)
    one.send(topic, "last", tag="b")
    found = one.until(5)
    assert sorted(message.body for message in found) == ["last", "later of a", "later of b", "of a", "of b"]
    assert {message.tag for message in found} == {"a", "b"}


def test_simple_consumer_receives_filters_extends_and_acknowledges(topic: str, one: Judge) -> None:
    one.ask("simple", topic, "g", "a || b", 3)
    one.send(topic, "of a", tag="a")
    one.send(topic, "of c", tag="c")
    one.send(topic, "of b", tag="b")
    while len(one.received) < 2:
        one.ask("receive", 16, 10)
    assert sorted(message.body for message in one.received) == ["of a", "of b"]
    first, second = one.received
    one.ask("ack", first.id)
    one.ask("change", second.id, 30)
    one.ask("ack", second.id)
    kind, why = one.tell("ack", second.id)
    assert kind == "refused"
    assert "40013" in why or "lease is over" in why, why


def test_messages_are_the_same_by_either_door(cluster: LocalCluster, topic: str, one: Judge) -> None:
    one.send(topic, "from RocketMQ", tag="x", keys="k", name="n", value="v")
    with SyncConsumer(cluster.endpoints[0], topic, "ours") as consumer:
        got = consumer.receive(10)
        assert got is not None
        assert (got.body, got.tag, got.key, got.properties["n"]) == (b"from RocketMQ", "x", "k", "v")
    one.ask("push", topic, "theirs", "*")
    with SyncProducer(cluster.endpoints[0]) as producer:
        producer.send(topic, b"from the SDK", tag="y", key="q", properties={"m": "w"}, delay="1s")
    found = next(message for message in one.until(2) if message.body == "from the SDK")
    assert (found.tag, found.keys, found.properties, found.attempt) == ("y", ("q",), "m=w", 1)
