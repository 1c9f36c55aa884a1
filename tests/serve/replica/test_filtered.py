"""A group whose filter leaves millions of messages out is looked at in steps: others have their turns (audit L10)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.store.queue import consumers, groups
from delaynode.store.types import Records
from delayregistry.model import TopicSpec

from tests.serve.support.client import Msg, request
from tests.serve.support.fuzz_inside import Inside, OneNode

STEP, MESSAGES = 100, 2_000


@pytest.mark.parametrize("call", ["Receive", "Ack", "Nack"])
def test_what_a_filter_leaves_out_is_read_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """On the event loop, all at once, 10 million entries took 400 MB, and every shard of the node waited."""
    monkeypatch.setattr(consumers, "SKIP_ROWS", STEP)
    monkeypatch.setattr(groups, "FILTER_STEP", STEP // 4)

    async def run() -> None:
        inside = await Inside.start(tmp_path, OneNode((TopicSpec("t", 1),)))
        try:
            asked = pb.ReceiveRequest(topic="t", queue=0, group="g", tags=["rare"], max_messages=1)
            await inside.ask("Receive", asked, pb.MessageBatch)
            for _ in range(MESSAGES // 500):
                await inside.ask("Enqueue", request("t", 0, [Msg(at_ms=1)] * 500), pb.EnqueueResponse)
            shard = inside.node.hosts()[0].shard
            turn, read, of_turn = 0, shard.queue.read, Counter[int]()

            def counted(offset: int, count: int) -> Records:
                rows = read(offset, count)
                of_turn[turn] += len(rows)
                return rows

            monkeypatch.setattr(shard.queue, "read", counted)

            async def turns() -> None:
                nonlocal turn
                while True:
                    turn += 1
                    await asyncio.sleep(0)

            others = asyncio.create_task(turns())
            if call == "Receive":
                await inside.ask("Receive", asked, pb.MessageBatch)
            elif call == "Ack":
                columns = {"start": np.array([MESSAGES - 1]).tobytes(), "end": np.array([MESSAGES]).tobytes()}
                await inside.ask("Ack", pb.AckRequest(topic="t", queue=0, group="g", **columns), pb.AckResponse)
            else:
                nack = pb.NackRequest(topic="t", queue=0, group="g", offset=np.array([MESSAGES - 1]).tobytes())
                nack.attempt = np.array([1], np.uint32).tobytes()
                await inside.ask("Nack", nack, pb.NackResponse)
            others.cancel()
            assert shard.consumers.groups["g"].first_unacked == MESSAGES
            assert max(of_turn.values()) <= 2 * STEP
        finally:
            await inside.stop()

    asyncio.run(run())
