"""Rights where the shard is on another node: the node that is called asks, and passes the caller's name on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb

from tests.auth.test_operations import MAY, request_of
from tests.serve.support.asking import DENIED, DOCUMENT, TOPIC, UNKNOWN, among, callers
from tests.serve.support.client import Msg, Shard, poll
from tests.serve.support.secured import Secured

QUEUES = 6


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("forwarded")
    with Secured(directory, "required", nodes=2, document=DOCUMENT).run() as running:
        yield running


def test_a_call_is_asked_for_once_wherever_its_shard_is(secured: Secured) -> None:
    with callers(secured) as who:
        routes = pb.QueryRouteResponse.FromString(who["super"].unary("QueryRoute"))
        assert {route.node for topic in routes.topics for route in topic.queues} == {"n0", "n1"}
        for method in (
            "Enqueue",
            "EnqueueStream",
            "Receive",
            "Ack",
            "Cancel",
            "ListPending",
            "GetWheel",
            "DescribeGroup",
        ):
            for queue in range(QUEUES):
                request = request_of(method, TOPIC)
                request.queue = queue
                for name, caller in who.items():
                    ended = caller.ask(method, request)
                    code = None if ended is None else ended.code()
                    assert code is not UNKNOWN, (method, queue, name)
                    assert (code is not DENIED) is among(name, MAY[method]), (method, queue, name)


def test_what_waits_elsewhere_gets_nothing_once_the_right_is_taken(secured: Secured) -> None:
    """The node that was called asks again, before it passes the answer on. What it does not pass on is the next one's,
    as the first attempt."""
    registry = secured.running.registry
    with callers(secured) as who, ThreadPoolExecutor(1) as pool:
        (topic,) = pb.QueryRouteResponse.FromString(who["super"].unary("QueryRoute")).topics
        asked = request_of("Receive", TOPIC)
        asked.queue, asked.wait_ms = next(one.queue for one in topic.queues if one.node != "n0"), 18_000
        waiting = pool.submit(who["consume"].ask, "Receive", asked)
        time.sleep(1.0)
        assert not waiting.done()
        left = replace(DOCUMENT, users=tuple(one for one in DOCUMENT.users if one.principal != "token:consume"))
        version = registry.put_security(left, registry.read_security().version)
        try:
            poll("the right is taken", lambda: not who["consume"].may("Ack"))
            with secured.dial("tokens") as client:
                data = Shard(client, TOPIC, asked.queue).request(Msg(b"secret", delay_ms=0)).SerializeToString()
            who["produce"].unary("Enqueue", data)
            ended = waiting.result(60)
        finally:
            registry.put_security(DOCUMENT, version)
        assert ended is not None, "it has the message"
        assert ended.code() is DENIED
        poll("the right is back", lambda: who["consume"].may("Ack"))
        found = pb.MessageBatch.FromString(who["consume"].unary("Receive", asked.SerializeToString()))
        assert (found.count, found.attempt) == (1, b"")
