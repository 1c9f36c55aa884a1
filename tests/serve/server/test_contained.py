"""An operation that the shard's own counts contradict ends that operation, and nothing else (audit C2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import numpy as np
import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.auth.identity import ANONYMOUS
from delaynode.auth.rights import Rights
from delaynode.limits.budget import Answers
from delaynode.metrics import NodeMetrics
from delaynode.node.node import Node
from delaynode.server.dispatch import Dispatch, ServeShard
from delaynode.server.edge import Call
from delaynode.store.errors import Damaged, Refused
from delayregistry.model import TopicSpec

from tests.serve.support.client import Msg, now_ms, request
from tests.serve.support.fuzz_inside import Aborted, Inside, OneNode


def test_a_cancel_that_is_not_possible_is_answered_internal_and_the_shard_serves_on(tmp_path: Path) -> None:
    async def run() -> None:
        inside = await Inside.start(tmp_path, OneNode((TopicSpec("t", 1),)))
        try:
            due = now_ms() + 60_000
            await inside.ask("Enqueue", request("t", 0, [Msg(at_ms=due)]), pb.EnqueueResponse)
            shard = inside.node.hosts()[0].shard
            segments = shard.space.ledger.segments
            held, segments["count"] = segments["count"].copy(), 0
            asked = pb.CancelRequest(
                topic="t", queue=0, uid=shard.identity.uid, due=np.array([due]).tobytes(), seq=np.array([0]).tobytes()
            )
            end = shard.log_end
            with pytest.raises(Aborted, match="nothing was changed") as told:
                await inside.ask("Cancel", asked, pb.CancelResponse)
            assert (told.value.code, told.value.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
            assert shard.log_end == end
            assert inside.node.metrics.impossible == {"t": 1}
            segments["count"] = held
            answer = await inside.ask("Cancel", asked, pb.CancelResponse)
            assert list(answer.outcome) == [pb.CANCELLED]
        finally:
            await inside.stop()

    asyncio.run(run())


def test_a_slave_that_finds_damage_while_it_answers_a_client_gives_its_copy_up() -> None:
    """It answered SHARD_DAMAGED and stayed in the in-sync set, from which a failover could choose it."""
    failed: list[str] = []
    copy = SimpleNamespace(fail=lambda why, error: failed.append(why))  # as find_readable() gives it, a SlaveHost
    finder = SimpleNamespace(find_readable=lambda topic, queue: copy, find=lambda topic, queue: None)
    security = SimpleNamespace(rights=Rights(closed=False))
    node = SimpleNamespace(flow=None, finder=finder, certificates=None, security=security, metrics=NodeMetrics())
    call = SimpleNamespace(identity=lambda: ANONYMOUS)

    async def fetch(request: object, place: object, answers: object) -> pb.MessageBatch:
        raise Damaged("queue: the check of the unit at queue offset 41 differs")

    async def run() -> None:
        serve = Dispatch(cast(Node, node)).for_shard("Fetch", pb.FetchRequest, cast(ServeShard, fetch), reads=True)
        with pytest.raises(Refused, match="queue offset 41"):
            await serve(pb.FetchRequest(topic="t", queue=0).SerializeToString(), cast(Call, call), cast(Answers, None))

    asyncio.run(run())
    assert failed == ["queue: the check of the unit at queue offset 41 differs"]
