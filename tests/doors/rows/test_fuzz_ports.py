"""The random requests of tests/doors/test_fuzz_rows.py over the ports of both edges: what its handlers refuse in place
comes to a client as the same reason, and each message that was stored comes out once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import grpc
from delaynode.store.errors import Refused

from tests.doors.support.asking import METHODS, SECONDS, SERVICE, Asking, Node, failed
from tests.doors.test_fuzz_rows import fuzz

CASES = int(os.environ.get("DELAY_FUZZ_PORTS_CASES", "800"))


class Port:
    """A node's port for gRPC."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.events: list[str] = []  # the cluster's fixture reads the logs

    async def call(self, method: str, data: bytes) -> Any:
        """Raises Refused."""
        try:
            answer = self._channel.unary_unary(SERVICE + method)(data, timeout=SECONDS)
        except grpc.RpcError as error:
            ended = failed(error)
            raise Refused(ended.reason, ended.message) from error
        return METHODS[method][1].FromString(answer)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def test_random_requests_over_a_port_are_refused_or_right(nodes: list[Node], ask: Callable[..., Asking]) -> None:
    with grpc.insecure_channel(nodes[1].grpc) as channel:
        asyncio.run(fuzz(Port(channel), CASES))
    assert ask(1).call("Send", topic="fuzz", messages=[{"body_text": "after"}]).results[0].handle
