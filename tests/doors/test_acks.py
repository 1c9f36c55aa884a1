"""Acknowledgements that the edge has read: each becomes what it would become by a call of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delayapi import checked_text
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delayapi.receipt import Receipt
from delaynode.auth.identity import ANONYMOUS
from delaynode.server.doors.receiving import Ask
from delaynode.server.doors.rocketmq.acks import Acks
from delaynode.server.doors.rocketmq.clients import key_of
from delaynode.server.doors.rocketmq.service import MESSAGING_SERVICE
from delaynode.server.handlers.rows import RowGroup
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import BatchRun

from tests.auth.serving import GivenCall, secured, until
from tests.auth.test_operations import DOCUMENT, WHO
from tests.auth.test_rocketmq_rights import MAY
from tests.doors.test_fuzz_rows import Served, served
from tests.doors.test_singles import Told

CALL = GivenCall(ANONYMOUS)
MESSAGES = 40
SECONDS = 30.0


def group_of(receipts: Sequence[Receipt]) -> RowGroup:
    """As the edge hands them over."""
    packed = [checked_text.decode(one.encode(), "receipt", 10_000) for one in receipts]
    size, hashes = np.array([len(one) for one in packed], "<u4").tobytes(), bytes(4 * len(packed))
    answers: Any = None
    return RowGroup(
        key_of(CALL)[1], 0, ANONYMOUS, False, bytes(8 * len(packed)), b"", size, hashes, hashes, b"".join(packed),
        [BatchRun(0, 0, 1)] * len(packed), np.full(len(packed), int(time.monotonic() * 1_000) + 10_000), answers,
    )  # fmt: skip


async def received(node: Served) -> list[Receipt]:
    messages = [rows.OutgoingMessage(body_text=f"m{number}", key=f"k{number}") for number in range(MESSAGES)]
    await node.call("Send", rows.SendRequest(topic="fuzz", messages=messages).SerializeToString())
    found: list[Receipt] = []
    while len(found) < MESSAGES:
        ask = Ask("fuzz", "g", max_messages=MESSAGES, lease_ms=600_000)
        found += [one.receipt for one in await node.doors.receiving.receive(CALL, ask, SECONDS)]
    return found


async def taken(node: Served, receipts: Sequence[Receipt]) -> list[Any]:
    """What became of each: a code."""
    told = Told(range(len(receipts)))
    node.doors.rocketmq.methods().readable["AckMessage"].take(group_of(receipts), told)
    await until(lambda: len(told.became) == len(receipts))
    return [mq.Status.FromString(told.became[number]).code for number in range(len(receipts))]


async def called(node: Served, receipt: Receipt) -> Any:
    """What becomes of it by a call of its own."""
    request = mq.AckMessageRequest(
        topic=mq.Resource(name=receipt.topic), group=mq.Resource(name=receipt.group),
        entries=[mq.AckMessageEntry(message_id="m", receipt_handle=receipt.encode())],
    )  # fmt: skip
    answers = node.node.flow.answers(CALL)
    body = await node.doors.rocketmq.methods().unary["AckMessage"](request.SerializeToString(), CALL, answers)
    return mq.AckMessageResponse.FromString(bytes(body)).status.code


@pytest.mark.parametrize("seed", range(6))
def test_each_becomes_what_it_would_by_itself(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    wrong = [
        lambda one: replace(one, offset=10**9), lambda one: replace(one, attempt=9), lambda one: replace(one, uid=1),
        lambda one: replace(one, topic="none"), lambda one: replace(one, group="none"),
        lambda one: replace(one, queue=77), lambda one: replace(one, offset=-1),
    ]  # fmt: skip

    async def run() -> None:
        async with served(tmp_path) as node:
            good = await received(node)
            draw.shuffle(good)
            while good:
                count = draw.randrange(1, 9)
                now, good = good[:count], good[count:]
                bad = [draw.choice(wrong)(one) for one in now if draw.random() < 0.2]
                mixed = draw.sample([*now, *bad], len(now) + len(bad))
                leases = node.doors.rocketmq.leases
                leases.add(key_of(CALL), CALL, now)
                became = await taken(node, mixed)
                assert len(leases) == 0
                for one, code in zip(mixed, became, strict=True):
                    if one in now:
                        assert code == mq.OK
                        assert await called(node, one) == mq.INVALID_RECEIPT_HANDLE, "it is done"
                    else:
                        assert code == await called(node, one) != mq.OK
                assert set(await taken(node, now)) == {mq.INVALID_RECEIPT_HANDLE}

    asyncio.run(run())


def test_who_may_not_consume_may_not_acknowledge(tmp_path: Path) -> None:
    async def run() -> None:
        async with secured(tmp_path, DOCUMENT) as node:
            take = node.methods(MESSAGING_SERVICE).readable["AckMessage"].take
            may = set()
            for name, who in WHO.items():
                told = Told([0])
                take(replace(group_of([Receipt("orders", 0, 1, "mail", 0, 1, 0)]), caller=who), told)
                await until(lambda told=told: len(told.became) == 1)
                if mq.Status.FromString(told.became[0]).code != mq.FORBIDDEN:
                    may.add(name)
            assert may == MAY["AckMessage"]

    asyncio.run(run())


def test_no_call_inside_has_too_many() -> None:
    async def run() -> None:
        asked: list[int] = []

        async def ack(call: Any, receipts: Sequence[Receipt], answers: Any) -> list[Refused | None]:
            asked.append(len(receipts))
            return [None] * len(receipts)

        flow = SimpleNamespace(answers=lambda call: SimpleNamespace(dropped=list))
        door: Any = SimpleNamespace(ack=ack, dispatch=SimpleNamespace(flow=flow))
        told, done = Told(range(2_001)), list[Receipt]()
        receipts = [Receipt("t", 0, 1, "g", offset, 1, 0) for offset in range(2_001)]
        Acks(door, lambda key, some: done.extend(some), lambda refused: b"ok").take(group_of(receipts), told)
        await until(lambda: len(told.became) == len(receipts))
        assert (asked, done) == ([1_000, 1_000, 1], receipts)

    asyncio.run(run())


def test_a_fault_ends_the_calls(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async def fails(*_: Any) -> list[Refused | None]:
            raise OSError("no disk")

        flow = SimpleNamespace(answers=lambda call: SimpleNamespace(dropped=list))
        door: Any = SimpleNamespace(ack=fails, dispatch=SimpleNamespace(flow=flow))
        told = Told("xy")
        Acks(door, lambda key, receipts: None, lambda refused: b"").take(
            group_of([Receipt("t", 0, 1, "g", offset, 1, 0) for offset in (1, 2)]), told
        )
        await until(lambda: len(told.became) == 2)
        assert told.became == dict.fromkeys("xy", "INTERNAL")

    asyncio.run(run())
    assert "no disk" in caplog.text
