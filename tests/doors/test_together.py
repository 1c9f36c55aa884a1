"""Acknowledgements of many callers become one call to the shard, and each gets its own answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.receipt import Receipt
from delaynode.auth.identity import ANONYMOUS, Identity, IdentityKind
from delaynode.server.doors.together import MAX_ROWS, Together
from delaynode.store.errors import Refused

BAD = 999
OF = ("t", 0, 1, "g")


class Shard:
    """Its messages are those of even offsets; 999 is no offset that it could have."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.fails: Refused | None = None
        self.together = Together(
            SimpleNamespace(flow=SimpleNamespace(answers=lambda call: SimpleNamespace(dropped=list))),  # type: ignore[arg-type]
            self.ask,
        )

    async def ask(self, method: str, data: bytes, request: Any, *_: Any) -> bytes:
        asked = pb.AckRequest.FromString(data)
        offsets = [int.from_bytes(asked.offset[at : at + 8], "little") for at in range(0, len(asked.offset), 8)]
        self.calls.append(offsets)
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        if BAD in offsets:
            raise Refused("BAD_REQUEST", "there is no such offset")
        return pb.AckResponse(settlement=bytes(one % 2 for one in offsets)).SerializeToString()

    async def ack(self, *offsets: int, identity: Identity = ANONYMOUS, until: float = 100.5) -> list[int]:
        call: Any = SimpleNamespace(identity=lambda: identity, listener=lambda: "", peer=lambda: "", until=until)
        rows = [Receipt("t", 0, 1, "g", offset, 1, 0) for offset in offsets]
        return list(await self.together.settle("Ack", OF, {}, rows, call, None))  # type: ignore[arg-type]


def test_calls_of_one_turn_are_one_and_each_gets_its_own_answer() -> None:
    async def run() -> None:
        shard = Shard()
        assert await asyncio.gather(shard.ack(1, 2), shard.ack(4), shard.ack(3, 5)) == [[1, 0], [0], [1, 1]]
        assert shard.calls == [[1, 2, 4, 3, 5]]
        assert await shard.ack(7) == [1]
        assert shard.calls[1:] == [[7]]

    asyncio.run(run())


def test_callers_are_never_mixed_nor_are_those_who_can_wait_with_those_who_can_not() -> None:
    async def run() -> None:
        shard, other = Shard(), Identity("token:other", IdentityKind.TOKEN)
        await asyncio.gather(shard.ack(1), shard.ack(2, identity=other), shard.ack(3, until=200.0), shard.ack(4))
        assert sorted(shard.calls) == [[1, 4], [2], [3]]

    asyncio.run(run())


def test_anothers_bad_receipt_spoils_nobody_elses() -> None:
    async def run() -> None:
        shard = Shard()
        found = await asyncio.gather(shard.ack(2), shard.ack(BAD), shard.ack(3), return_exceptions=True)
        assert (found[0], found[2]) == ([0], [1])
        assert isinstance(found[1], Refused)
        assert found[1].reason == "BAD_REQUEST"

    asyncio.run(run())


def test_what_may_have_been_done_is_not_asked_again() -> None:
    async def run() -> None:
        shard = Shard()
        shard.fails = Refused("NOT_ENOUGH_REPLICAS", "no copy has answered")
        found = await asyncio.gather(shard.ack(2), shard.ack(4), return_exceptions=True)
        assert [type(one) for one in found] == [Refused, Refused]
        assert len(shard.calls) == 1

    asyncio.run(run())


def test_a_caller_who_goes_takes_nobody_along() -> None:
    async def run() -> None:
        shard = Shard()
        gone, stays = asyncio.ensure_future(shard.ack(2)), asyncio.ensure_future(shard.ack(3))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == [1]
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(run())


def test_a_call_has_a_limited_size() -> None:
    async def run() -> None:
        shard = Shard()
        await asyncio.gather(*(shard.ack(*range(0, 800, 2)) for _ in range(5)))
        assert len(shard.calls) > 1
        assert max(map(len, shard.calls)) <= MAX_ROWS

    asyncio.run(run())
