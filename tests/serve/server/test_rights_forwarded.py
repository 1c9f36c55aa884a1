"""Rights where the shard is on another node: the node that is called asks, and passes the caller's name on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb

from tests.auth.test_operations import MAY, request_of
from tests.serve.support.asking import DENIED, DOCUMENT, TOPIC, UNKNOWN, among, callers
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
