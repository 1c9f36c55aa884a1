"""Copies of one queue on fake nodes: each knows of the committed messages up to its own end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
from delayapi import codec
from delayapi.proto.delay.v1 import delay_pb2

from tests.client.support.fakes import FakeNode, Refusal


@dataclass
class Copy:
    """One node's copy of the queue."""

    node: FakeNode
    bodies: list[bytes]
    """All released messages, shared by the copies."""
    end: int = 0
    behind_ms: int = 0
    start: int = 0
    uid: int = 100
    fetches: int = 0
    most: int = 1 << 20

    def __post_init__(self) -> None:
        self.node.unary["Fetch"] = self.fetch

    async def fetch(self, request: Any) -> bytes:
        self.fetches += 1
        if request.offset > self.end:
            raise Refusal("NOT_SERVING")
        if request.offset < self.start:
            raise Refusal("OFFSET_TRIMMED", start=self.start)
        for _ in range(request.wait_ms // 10):
            if request.offset < self.end:
                break
            await asyncio.sleep(0.01)
        offsets = np.arange(request.offset, min(self.end, request.offset + min(request.max_messages, self.most)))
        records = [delay_pb2.Message(body=self.bodies[offset]).SerializeToString() for offset in offsets]
        return codec.encode_message_batch(
            self.uid,
            len(offsets),
            offsets,
            offsets + 1000,
            offsets * 2,
            np.array([len(record) for record in records], "<u4"),
            b"",
            records,
            self.end,
            int(offsets[-1]) + 1 if len(offsets) else self.end,
            self.behind_ms,
        )
