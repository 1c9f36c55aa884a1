"""A node whose names of topics, nodes and shards are what the test says: no real one has such"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2

from tests.client.support.fakes import FakeCluster, FakeNode


class _Lies(FakeCluster):
    def __init__(self, topic: str, node: str) -> None:
        super().__init__(topic=topic)
        self._node = node

    def route(self, topic: str) -> delay_pb2.QueryRouteResponse:
        answer = super().route(topic)
        for queue in answer.topics[0].queues:
            queue.node = self._node
        return answer


@contextmanager
def lying_node(topic: str, node: str, due_ms: int) -> Iterator[str]:
    """Its endpoint. A message waits in its only shard."""

    def wheel(_: delay_pb2.GetWheelRequest) -> delay_pb2.GetWheelResponse:
        start, width, one = (np.array([it], "<i8").tobytes() for it in (due_ms, 60_000, 1))
        answer = delay_pb2.GetWheelResponse(now_ms=due_ms - 60_000)
        answer.shards.add(topic=topic, node=node, epoch=1, slot_start=start, slot_width=width, messages=one, bytes=one,
                          pending=1, pending_bytes=1)  # fmt: skip
        return answer

    made = FakeNode(_Lies(topic, node))
    made.unary["GetWheel"] = wheel
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="lying-node", daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(made.start(), loop).result(10)
    try:
        yield made.endpoint
    finally:
        asyncio.run_coroutine_threadsafe(made.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
