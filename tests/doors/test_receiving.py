"""Calls to other nodes that nobody waits for: what they bring is some consumer's, whatever the moment."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

from delayapi.codec import encode_message_batch
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.receipt import Receipt
from delaynode.auth.identity import ANONYMOUS
from delaynode.server.doors.receiving import Ask, Delivered, Receiving

ASK = Ask("t", "g", max_messages=1)
NOTHING = encode_message_batch(1, 0, b"", b"", b"", b"", b"", b"", 0, 0)


def batch(*offsets: int) -> bytes:
    column = b"".join(one.to_bytes(8, "little") for one in offsets)
    sizes = (1).to_bytes(4, "little") * len(offsets)
    return encode_message_batch(1, len(offsets), column, column, column, sizes, b"", b"x" * len(offsets), 0, 0)


class Elsewhere:
    """A door whose shard is on another node, which answers as the test says."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[bytes]] = deque()
        self.given_back: list[Receipt] = []
        clock = SimpleNamespace(now_ms=lambda: 1_000)
        self.node: Any = SimpleNamespace(clock=clock)
        answers = SimpleNamespace(dropped=list)
        self.dispatch: Any = SimpleNamespace(flow=SimpleNamespace(answers=lambda call: answers))

    def queues(self, *_: object) -> list[Any]:
        return [SimpleNamespace(spec=SimpleNamespace(queue=0))]

    def local(self, *_: object) -> bool:
        return False

    def host(self, *_: object) -> None:
        return None

    async def ask_bytes(self, method: str, data: bytes, request: pb.ReceiveRequest, *_: object) -> bytes:
        if not request.wait_ms:
            return NOTHING
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    async def extend(self, call: object, receipts: list[Receipt], *_: object, lease_ms: int) -> list[None]:
        assert not lease_ms
        self.given_back += receipts
        return [None] * len(receipts)


def offsets(found: list[Delivered]) -> list[int]:
    return [one.receipt.offset for one in found]


CALL: Any = SimpleNamespace(identity=lambda: ANONYMOUS)


def receiving() -> tuple[Elsewhere, Receiving]:
    door = Elsewhere()
    return door, Receiving(door)  # type: ignore[arg-type]


def test_what_nobody_waits_for_is_given_back() -> None:
    async def run() -> None:
        door, found = receiving()
        assert not await found.receive(CALL, ASK, 0.01)
        door.waiting[0].set_result(batch(7))
        for _ in range(5):
            await asyncio.sleep(0)
        assert [one.offset for one in door.given_back] == [7]

    asyncio.run(run())


def test_the_next_consumer_goes_on_with_the_call_that_was_left() -> None:
    async def run() -> None:
        door, found = receiving()
        assert not await found.receive(CALL, ASK, 0.01)
        asyncio.get_running_loop().call_later(0.01, lambda: door.waiting[0].set_result(batch(7)))
        assert offsets(await found.receive(CALL, ASK, 5)) == [7]
        assert len(door.waiting) == 1
        assert not door.given_back

    asyncio.run(run())


def test_a_message_is_some_consumers_at_whatever_turn_of_the_loop_it_comes() -> None:
    """The call ends while the next consumer takes it over: at each turn between its answer and that."""

    async def run(turns: int) -> None:
        door, found = receiving()
        assert not await found.receive(CALL, ASK, 0.01)
        door.waiting[0].set_result(batch(7, 8))
        for _ in range(turns):
            await asyncio.sleep(0)
        got = offsets(await found.receive(CALL, ASK, 0.02))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sorted([*got, *(one.offset for one in door.given_back)]) == [7, 8], turns

    for turns in range(6):
        asyncio.run(run(turns))


def test_a_consumer_that_is_cancelled_takes_nothing_along() -> None:
    async def run(turns: int) -> None:
        door, found = receiving()
        task = asyncio.create_task(found.receive(CALL, ASK, 5))
        for _ in range(3):
            await asyncio.sleep(0)
        door.waiting[0].set_result(batch(7))
        for _ in range(turns):
            await asyncio.sleep(0)
        got = offsets(task.result()) if task.done() else []
        task.cancel()
        for _ in range(8):
            await asyncio.sleep(0)
        if not got and task.done() and not task.cancelled():
            got = offsets(task.result())
        assert [*got, *(one.offset for one in door.given_back)] == [7], turns

    for turns in range(6):
        asyncio.run(run(turns))
