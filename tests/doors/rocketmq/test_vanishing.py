"""RocketMQ clients that are gone at once, in each phase: they lose no message, and the node keeps nothing of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delaylocal import LocalCluster
from prometheus_client.parser import text_string_to_metric_families

from tests.doors.rocketmq.support.judges import wait
from tests.doors.rocketmq.support.nodes import EVERYTHING
from tests.doors.rocketmq.support.wire import SERVICE, Rocket, message, now_ms
from tests.doors.support.relay import Relay
from tests.serve.support.client import poll

GROUP = "g"
EACH = 5  # clients in a phase
GONE_SECONDS = 100.0  # the node pings a connection on which nothing comes for 60 s, and gives it 20 s to answer
HELD = ("delay_connections", "delay_rocketmq_clients", "delay_rocketmq_leases", "delay_in_flight_bytes",
        "delay_waiting_requests")  # fmt: skip


class Vanishing(Rocket):
    """A client of a relay's."""

    def __init__(self, node: str) -> None:
        self.relay = Relay(node)
        self.calls: list[Any] = []  # under way: one that nobody holds is cancelled
        super().__init__(self.relay.endpoint)

    def ask(self, name: str, request: Any, *, answered: bool = True) -> None:
        """A call whose answer, OK, never comes to the client. answered: the node has done what it is asked for."""
        self.relay.hold_answers()
        before = self.relay.passed
        method = self.channel.unary_unary(
            SERVICE + name, type(request).SerializeToString, getattr(mq, f"{name}Response").FromString
        )
        self.calls.append(method.future(request, metadata=self.metadata))
        size = request.ByteSize()
        poll("the node has it", lambda: self.relay.passed - before >= size, 60)
        if answered:
            poll("the node has answered", lambda: mq.Status(message="OK").SerializeToString() in self.relay.held, 60)


def held(cluster: LocalCluster) -> dict[str, float]:
    """What the node holds for its clients."""
    text = urlopen(f"http://{cluster.http[0]}/metrics", timeout=60).read().decode()
    found = dict.fromkeys(HELD, 0.0)
    for family in text_string_to_metric_families(text):
        if family.name in found:
            found[family.name] = sum(one.value for one in family.samples)
    descriptors = [*Path(f"/proc/{cluster.pids['n0']}/fd").iterdir()]
    sockets = sum(os.readlink(one).startswith("socket:") for one in descriptors if one.is_symlink())
    return found | {"sockets": sockets}


@pytest.fixture
def come(cluster: LocalCluster) -> Iterator[Callable[[], list[Vanishing]]]:
    """Clients, whose sockets and threads are gone in the end."""
    came: list[Vanishing] = []

    def make() -> list[Vanishing]:
        found = [Vanishing(cluster.endpoints[0]) for _ in range(EACH)]
        came.extend(found)
        return found

    yield make
    for one in came:
        one.relay.reset()
        one.__exit__()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ending", ["reset", pytest.param("silence", marks=pytest.mark.skipif(
    not EVERYTHING, reason="80 s until a silent connection is cut: DELAY_ROCKETMQ_TESTS=all"))])  # fmt: skip
def test_clients_that_vanish_in_any_phase_lose_nothing_and_hold_nothing(
    cluster: LocalCluster, take: Callable[[], str], come: Callable[[], list[Vanishing]], ending: str
) -> None:
    topic, settled_topic, before = take(), take(), held(cluster)
    of, group = mq.Resource(name=settled_topic), mq.Resource(name=GROUP)

    def vanish(clients: list[Vanishing]) -> None:
        for one in clients:
            getattr(one.relay, ending)()

    connected, telling, settled, sending, polling, working = (come() for _ in range(6))
    acking, changing, dying, recalling = (come() for _ in range(4))
    for one in connected:
        grpc.channel_ready_future(one.channel).result(60)
    for one in telling:
        one.relay.hold_answers()
        one.telemetry()
    for one in settled:
        one.start(mq.PUSH_CONSUMER, topic, GROUP)
    for one in polling:
        one.start(mq.PUSH_CONSUMER, topic, GROUP)
        one.calls.append(one.responses(topic, GROUP, lease_ms=None, wait_ms=20_000))
    for one in sending:
        grpc.channel_ready_future(one.channel).result(60)
        one.ask("SendMessage", mq.SendMessageRequest(messages=[message(topic, b"vanished")]), answered=False)
    for clients in (connected, telling, settled, sending, polling):
        vanish(clients)

    # Between a call and its answer: the node has done what was asked for.
    handles = []
    for one in recalling:
        sent = one.send(message(settled_topic, b"recalled", at_ms=now_ms() + 3_600_000))
        handles.append(sent.entries[0].recall_handle)
        one.ask("RecallMessage", mq.RecallMessageRequest(topic=of, recall_handle=handles[-1]))
    for clients, name in ((acking, b"acked"), (changing, b"changed"), (dying, b"dead")):
        for one in clients:
            assert one.send(message(settled_topic, name)).status.code == mq.OK
            one.start(mq.PUSH_CONSUMER, settled_topic, GROUP)
            (got,) = one.receive(settled_topic, GROUP, lease_ms=None, most=1)
            assert got.body == name
            receipt = got.system_properties.receipt_handle
            common = {"topic": of, "group": group}
            if clients is acking:
                entries = [mq.AckMessageEntry(message_id="id", receipt_handle=receipt)]
                one.ask("AckMessage", mq.AckMessageRequest(**common, entries=entries))
            elif clients is changing:
                change = mq.ChangeInvisibleDurationRequest(**common, receipt_handle=receipt)
                change.invisible_duration.FromSeconds(10)
                one.ask("ChangeInvisibleDuration", change)
            else:
                dead = mq.ForwardMessageToDeadLetterQueueRequest(**common, receipt_handle=receipt)
                one.ask("ForwardMessageToDeadLetterQueue", dead)
    for clients in (recalling, acking, changing, dying):
        vanish(clients)

    kept = {f"kept {at}".encode() for at in range(20)}
    with Rocket(cluster.endpoints[0]) as producer:
        assert producer.send(*(message(topic, name) for name in kept)).status.code == mq.OK
    for one in working:
        one.start(mq.PUSH_CONSUMER, topic, GROUP)
        one.receive(topic, GROUP, lease_ms=None, most=2)
    vanish(working)

    came: set[bytes] = set()
    again: list[mq.Message] = []
    with Rocket(cluster.endpoints[0]) as consumer:

        def receive() -> bool:
            found = consumer.receive(topic, GROUP, wait_ms=1_000, lease_ms=60_000)
            assert all(one.system_properties.delivery_attempt <= 2 for one in found), "one lost client had each at most"
            came.update(one.body for one in found)
            if found:
                consumer.ack(topic, GROUP, *found)
            again.extend(got := consumer.receive(settled_topic, GROUP, wait_ms=100, lease_ms=60_000))
            if got:
                consumer.ack(settled_topic, GROUP, *got)
            return kept <= came and len(again) >= EACH

        poll("all that was kept has come", receive, 300)
        assert [one.body for one in again] == [b"changed"] * EACH, "what was acknowledged or is dead comes no more"
        assert {one.system_properties.delivery_attempt for one in again} == {2}
        recalled = [consumer.recall(settled_topic, handle).status.code for handle in handles]
        assert recalled == [mq.OK] * EACH, "a client that got no answer asks again"
    assert came - kept <= {b"vanished"}

    def too_much() -> dict[str, float]:
        now = held(cluster)
        return {name: now[name] - before[name] for name in before if now[name] > before[name]}

    wait(lambda: not too_much(), "the node holds no more than before", GONE_SECONDS, lambda: repr(too_much()))
