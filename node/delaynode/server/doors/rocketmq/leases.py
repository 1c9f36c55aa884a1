"""Renews the leases of what push consumers work on: they say of none how long they need, and never ask for more.

handed out ---- renewed every 40 s or so, for 3 h at most ----> acknowledged, not done, or dead
    |
    +-- its connection has ended: renewed no more. An answer may have been lost with it, and then nobody works on it
    +-- its client is gone: not done, after CLIENT_SECONDS
    +-- its client has said that it ends: given back, as the same attempt
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from delayapi.receipt import Receipt

from delaynode.limits.budget import Answers
from delaynode.server.doors.calls import LaterCall
from delaynode.server.doors.core import Door
from delaynode.server.doors.rocketmq.clients import ClientKey, Clients
from delaynode.server.edge import Call
from delaynode.store.errors import Refused

LEASE_MS = 60_000
LOOK_SECONDS = 5.0
RENEW_MS = 20_000  # before the end
MAX_MS = 3 * 3_600_000
CLIENT_SECONDS = 5.0  # a client opens a stream that has ended again after one
GONE_BACKOFF_MS = 1_000


@dataclass(slots=True)
class HeldLease:
    call: LaterCall
    since_ms: int
    until_ms: int
    renewed: bool = True  # while its connection lasts


class Leases:
    """One for a node. Owned by the event loop. As many as groups may have handed out at once."""

    def __init__(self, door: Door, clients: Clients) -> None:
        self._door, self._clients = door, clients
        self._held: dict[ClientKey, dict[Receipt, HeldLease]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def add(self, key: ClientKey, call: Call, receipts: Iterable[Receipt]) -> None:
        later = LaterCall(call.identity(), call.listener(), call.peer())
        now_ms = self._now_ms()
        self._held.setdefault(key, {}).update((one, HeldLease(later, now_ms, now_ms + LEASE_MS)) for one in receipts)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    def done(self, key: ClientKey, receipts: Iterable[Receipt]) -> None:
        """They need no lease any more."""
        held = self._held.get(key, {})
        for one in receipts:
            held.pop(one, None)
        if not held:
            self._held.pop(key, None)

    def disconnected(self, key: ClientKey, peer: str) -> None:
        """The client has no stream by that connection any more."""
        for one in self._held.get(key, {}).values():
            if one.call.connection == peer:
                one.renewed = False
        if key in self._held and not self._clients.is_here(key):
            self._start(self._gone(key))

    def ended(self, key: ClientKey) -> None:
        """The client has said so."""
        if held := self._held.pop(key, None):
            self._start(self._settle(held, lambda *args: self._door.extend(*args, lease_ms=0)))

    async def _gone(self, key: ClientKey) -> None:
        await asyncio.sleep(CLIENT_SECONDS)
        if not self._clients.is_here(key) and (held := self._held.pop(key, None)):
            await self._settle(held, lambda *args: self._door.nack(*args, backoff_ms=GONE_BACKOFF_MS))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now_ms = self._now_ms()
            for key, held in list(self._held.items()):
                due: dict[Receipt, HeldLease] = {}
                for receipt, one in list(held.items()):
                    if one.until_ms <= now_ms:
                        del held[receipt]
                    elif one.renewed and one.until_ms - now_ms < RENEW_MS and now_ms - one.since_ms < MAX_MS:
                        due[receipt] = one
                if not held:
                    del self._held[key]
                if due:
                    self._start(self._renew(due))

    async def _renew(self, due: dict[Receipt, HeldLease]) -> None:
        until_ms = self._now_ms() + LEASE_MS
        results = await self._settle(due, lambda *args: self._door.extend(*args, lease_ms=LEASE_MS))
        for receipt, one in due.items():
            if results.get(receipt) is None:
                one.until_ms = until_ms

    async def _settle(
        self, held: dict[Receipt, HeldLease],
        settle: Callable[[LaterCall, Sequence[Receipt], Answers], Awaitable[list[Refused | None]]],
    ) -> dict[Receipt, Refused | None]:  # fmt: skip
        """What became of each. Where it fails the leases end by themselves."""
        by_call: dict[LaterCall, list[Receipt]] = {}
        for receipt, one in held.items():
            by_call.setdefault(one.call, []).append(receipt)
        results: dict[Receipt, Refused | None] = {}
        for call, receipts in by_call.items():
            answers = self._door.dispatch.flow.answers(call)
            try:
                results |= zip(receipts, await settle(call, receipts, answers), strict=True)
            finally:
                answers.dropped()
        return results

    def _start(self, work: Awaitable[object]) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now_ms(self) -> int:
        return self._door.node.clock.now_ms()

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
