"""Nodes that answer GetWheel as they are told, and write down what they were asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

SERVICE = "delay.v1.DelayService"
NOW_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Told:
    """A shard's slots, as (start ms, width ms, messages); a message has 100 bytes."""

    shard: str
    slots: Sequence[tuple[int, int, int]]
    epoch: int = 1


@dataclass
class WheelNode:
    node: str
    tells: Sequence[Told]
    most_slots: int = 1 << 40  # of an answer: beyond it the node answers ANSWER_TOO_LARGE
    delay_s: float = 0.0
    endpoint: str = ""
    asked: list[tuple[int, int]] = field(default_factory=list)
    slots_sent: list[int] = field(default_factory=list)

    def get_wheel(self, request: pb.GetWheelRequest, context: Any) -> pb.GetWheelResponse:
        self.asked.append((request.from_ms, request.to_ms))
        time.sleep(self.delay_s)
        low, high = request.from_ms, request.to_ms or 1 << 60
        answer, count = pb.GetWheelResponse(now_ms=NOW_MS), 0
        for told in self.tells:
            kept = [it for it in told.slots if it[0] + it[1] > low and it[0] < high]
            count += len(kept)
            columns = np.array(kept, dtype=np.int64).reshape(-1, 3)
            topic, _, queue = told.shard.rpartition("-")
            pending = sum(it[2] for it in told.slots)
            answer.shards.add(
                topic=topic, queue=int(queue), node=self.node, epoch=told.epoch, pending=pending,
                pending_bytes=100 * pending, slot_start=columns[:, 0].tobytes(), slot_width=columns[:, 1].tobytes(),
                messages=columns[:, 2].tobytes(), bytes=(100 * columns[:, 2]).tobytes(),
            )  # fmt: skip
        if count > self.most_slots:
            detail = any_pb2.Any()
            detail.Pack(error_details_pb2.ErrorInfo(reason="ANSWER_TOO_LARGE", domain="delaycluster.io"))
            code = grpc.StatusCode.OUT_OF_RANGE
            context.abort_with_status(
                rpc_status.to_status(status_pb2.Status(code=code.value[0], message="too much", details=[detail]))
            )
        self.slots_sent.append(count)
        return answer


@contextmanager
def serving(*nodes: WheelNode) -> Iterator[str]:
    """The nodes' endpoints, as the option takes them."""
    servers = []
    for node in nodes:
        server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            node.get_wheel, pb.GetWheelRequest.FromString, pb.GetWheelResponse.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"GetWheel": handler}),))
        node.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
    try:
        yield ",".join(node.endpoint for node in nodes)
    finally:
        for server in servers:
            server.stop(None)
