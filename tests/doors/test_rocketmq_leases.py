"""Leases of push consumers that work for minutes and hours, in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from delayapi.receipt import Receipt
from delaynode.auth.identity import ANONYMOUS
from delaynode.server.doors.rocketmq.clients import Clients
from delaynode.server.doors.rocketmq.leases import CLIENT_SECONDS, LEASE_MS, LOOK_SECONDS, MAX_MS, Leases
from delaynode.store.errors import Refused

KEY = ("", "client")
MINUTE = 60.0
RECEIPT = Receipt(topic="t", group="g", queue=0, uid=1, offset=5, attempt=1, until_ms=60_000)


class Jumping(selectors.SelectSelector):
    """Waits for nothing: the loop's time goes on by what it would have waited."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class Shard:
    """A door whose leases end at `ends_ms`, unless they are extended before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.ends_ms, self.late = loop, LEASE_MS, 0
        self.extended: list[int] = []
        self.ended: list[str] = []
        self.refusal: Refused | None = None
        self.node: Any = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: round(loop.time() * 1_000)))
        self.dispatch: Any = SimpleNamespace(
            flow=SimpleNamespace(answers=lambda call: SimpleNamespace(dropped=lambda: None))
        )

    async def extend(self, call: Any, receipts: list[Receipt], *_: Any, lease_ms: int) -> list[Refused | None]:
        now = self.node.clock.now_ms()
        if not lease_ms:
            self.ended.append("given back")
            return [None] * len(receipts)
        self.extended.append(now)
        self.late += now >= self.ends_ms
        if self.refusal is None:
            self.ends_ms = now + lease_ms
        return [self.refusal] * len(receipts)

    async def nack(self, call: Any, receipts: list[Receipt], *_: Any, backoff_ms: int) -> list[None]:
        self.ended.append("not done")
        return [None] * len(receipts)


def run(act: Callable[[Shard, Leases, Clients], Awaitable[None]]) -> Shard:
    """A client's push consumer has been handed one message, at 0."""
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    shard, clients = Shard(loop), Clients()
    leases = Leases(shard, clients)  # type: ignore[arg-type]

    async def main() -> None:
        clients.came(KEY, "peer")
        call: Any = SimpleNamespace(identity=lambda: ANONYMOUS, listener=lambda: "", peer=lambda: "peer")
        leases.add(KEY, call, [RECEIPT])
        await act(shard, leases, clients)
        await leases.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return shard


def test_a_lease_is_extended_before_it_ends_until_the_work_is_done() -> None:
    async def act(shard: Shard, leases: Leases, clients: Clients) -> None:
        await asyncio.sleep(30 * MINUTE)
        assert not shard.late
        assert len(shard.extended) > 30
        assert shard.ends_ms > shard.node.clock.now_ms()
        leases.done(KEY, [RECEIPT])
        shard.extended.clear()
        await asyncio.sleep(10 * MINUTE)
        assert not shard.extended
        assert not len(leases)

    run(act)


def test_a_lease_is_extended_for_three_hours_at_most() -> None:
    async def act(shard: Shard, leases: Leases, clients: Clients) -> None:
        await asyncio.sleep(4 * 60 * MINUTE)
        assert MAX_MS - LEASE_MS < shard.ends_ms <= MAX_MS + LEASE_MS
        assert not len(leases)

    run(act)


def test_a_lease_whose_connection_has_ended_is_extended_no_more() -> None:
    async def act(shard: Shard, leases: Leases, clients: Clients) -> None:
        clients.came(KEY, "other")  # the client lives on by another connection
        await asyncio.sleep(10)
        clients.left(KEY, "peer")
        leases.disconnected(KEY, "peer")
        await asyncio.sleep(2 * MINUTE)
        assert not shard.extended
        assert not shard.ended
        assert not len(leases)

    run(act)


def test_what_a_client_held_that_is_gone_is_not_done_unless_it_comes_back() -> None:
    async def act(shard: Shard, leases: Leases, clients: Clients) -> None:
        clients.left(KEY, "peer")
        leases.disconnected(KEY, "peer")
        clients.came(KEY, "peer")
        await asyncio.sleep(2 * CLIENT_SECONDS)
        assert not shard.ended
        clients.left(KEY, "peer")
        leases.disconnected(KEY, "peer")
        await asyncio.sleep(2 * CLIENT_SECONDS)
        assert shard.ended == ["not done"]

    run(act)


def test_a_lease_that_cannot_be_extended_is_tried_until_it_ends_and_then_forgotten() -> None:
    async def act(shard: Shard, leases: Leases, clients: Clients) -> None:
        shard.refusal = Refused("NOT_SERVING", "there is no master")
        await asyncio.sleep(2 * MINUTE)
        assert len(shard.extended) == round((LEASE_MS - shard.extended[0]) / 1_000 / LOOK_SECONDS)
        assert not len(leases)

    run(act)


def test_a_client_that_says_it_ends_gives_back_what_it_has() -> None:
    async def act(shard: Shard, leases: Leases, clients: Clients) -> None:
        leases.ended(KEY)
        await asyncio.sleep(1)
        assert shard.ended == ["given back"]

    run(act)
