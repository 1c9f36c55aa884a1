"""Limits of cancel by key that take more messages than a test should send: with smaller limits, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.server.handlers import pending
from delayregistry.model import TopicSpec

from tests.serve.support.client import Msg, ints, now_ms, request
from tests.serve.support.fuzz_inside import Aborted, Inside, OneNode

FOR_EVER = 2**62


def with_messages(directory: Path, keys: list[str], work: Callable[[Inside], Awaitable[None]]) -> None:
    """A node with a message an hour ahead for each key."""

    async def run() -> None:
        inside = await Inside.start(directory, OneNode((TopicSpec("t", 1),)))
        try:
            batch = request("t", 0, [Msg(key=key, at_ms=now_ms() + 3_600_000) for key in keys])
            await inside.ask("Enqueue", batch, pb.EnqueueResponse)
            await work(inside)
        finally:
            await inside.stop()

    asyncio.run(run())


async def cancel(inside: Inside, key: str) -> pb.CancelResponse:
    answer: pb.CancelResponse = await inside.ask(
        "Cancel", pb.CancelRequest(topic="t", key=key, to_ms=FOR_EVER), pb.CancelResponse
    )
    return answer


def test_a_key_of_too_many_messages_is_refused_and_nothing_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "MAX_OF_KEY", 3)

    async def work(inside: Inside) -> None:
        with pytest.raises(Aborted) as caught:
            await cancel(inside, "many")
        assert caught.value.reason == "BATCH_TOO_LARGE"
        assert "part of it" in caught.value.message
        page = await inside.ask("ListPending", pb.ListPendingRequest(topic="t"), pb.PendingBatch)
        assert page.count == 7
        assert bytes((await cancel(inside, "few")).outcome) == bytes([pb.CANCELLED] * 3)

    with_messages(tmp_path, ["many"] * 4 + ["few"] * 3, work)


def test_a_key_of_more_messages_than_a_frame_takes_is_cancelled_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "MAX_BATCH_MESSAGES", 4)

    async def work(inside: Inside) -> None:
        answer = await cancel(inside, "many")
        assert bytes(answer.outcome) == bytes([pb.CANCELLED] * 10)
        assert len(ints(answer.due)) == 10
        assert ints(answer.seq) == list(range(10))
        page = await inside.ask("ListPending", pb.ListPendingRequest(topic="t"), pb.PendingBatch)
        assert ints(page.seq) == [10, 11]

    with_messages(tmp_path, ["many"] * 10 + ["other"] * 2, work)
