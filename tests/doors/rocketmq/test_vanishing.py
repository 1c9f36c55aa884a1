"""RocketMQ clients that are gone at once, in each phase: they lose no message and hold nothing."""

from __future__ import annotations

import grpc
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delaylocal import LocalCluster

from tests.doors.rocketmq.support.wire import SERVICE, Rocket, message
from tests.serve.support.client import poll

GROUP = "g"
EACH = 5  # clients in a phase


def test_clients_that_vanish_in_any_phase_lose_nothing_and_hold_nothing(cluster: LocalCluster, topic: str) -> None:
    def come() -> list[Rocket]:
        return [Rocket(cluster.endpoints[0]) for _ in range(EACH)]

    def vanish(clients: list[Rocket]) -> None:
        for one in clients:
            one.channel.close()

    connected, telling, settled, sending, polling, working = (come() for _ in range(6))
    for one in connected:
        grpc.channel_ready_future(one.channel).result(60)
    for one in telling:
        one.telemetry()
    for one in settled:
        one.start(mq.PUSH_CONSUMER, topic, GROUP)
    for one in sending:
        send = one.channel.unary_unary(
            SERVICE + "SendMessage", mq.SendMessageRequest.SerializeToString, mq.SendMessageResponse.FromString
        )
        send.future(mq.SendMessageRequest(messages=[message(topic, b"vanished")]), metadata=one.metadata)
    for one in polling:
        one.start(mq.PUSH_CONSUMER, topic, GROUP)
        one.responses(topic, GROUP, lease_ms=None, wait_ms=20_000)
    for clients in (connected, telling, settled, sending, polling):
        vanish(clients)

    kept = {f"kept {at}".encode() for at in range(20)}
    with Rocket(cluster.endpoints[0]) as producer:
        assert producer.send(*(message(topic, name) for name in kept)).status.code == mq.OK
    for one in working:
        one.start(mq.PUSH_CONSUMER, topic, GROUP)
        one.receive(topic, GROUP, lease_ms=None, most=2)
    vanish(working)

    came: set[bytes] = set()
    with Rocket(cluster.endpoints[0]) as consumer:

        def receive() -> bool:
            found = consumer.receive(topic, GROUP, wait_ms=1_000, lease_ms=60_000)
            assert all(one.system_properties.delivery_attempt <= 2 for one in found), "one lost client had each at most"
            came.update(one.body for one in found)
            if found:
                consumer.ack(topic, GROUP, *found)
            return kept <= came

        poll("all that was kept has come", receive, 120)
    assert came - kept <= {b"vanished"}
