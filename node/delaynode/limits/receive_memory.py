"""Requests that are being received: memory of gRPC that no handler sees, and that it does not bound.

A stream waits for its next request for hours, and while it waits gRPC takes up to a whole request of it into memory.
So thousands of streams that each send half a request and stop can fill the node. What each connection has sent is
known from its socket, and what handlers were given of it is counted here: the difference is held by gRPC. Nobody looks
at it until the process is larger than its limit; then the connections that hold most are cut.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from delaynode.limits import connections
from delaynode.limits.connections import Address
from delaynode.memory import give_back

POLL_SECONDS = 0.05  # between two looks at the process's memory: a flood brings a gigabyte a second
FREED_SECONDS = 0.1  # in which gRPC frees what connections held that are cut
AGAIN_SECONDS = 0.25  # between two looks at all connections, of which the first found nothing to cut
TARGET_SHARE = 0.75  # of the limit: what is cut brings the process down to it
MIN_CUT_BYTES = 1 << 20  # what an honest client has under way for longer than a moment
REQUEST_OVERHEAD_BYTES = 512  # headers and frames of a request, at most
FRAME_OVERHEAD = 1 / 512  # of the bytes
MANY_PEERS = 20_000
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class ReceivedBytes:
    """The bytes of a connection's requests that handlers were given."""

    requests: int = 0
    size: int = 0

    def sent(self) -> int:
        """The bytes on the wire that this was, at most."""
        return self.size + int(self.size * FRAME_OVERHEAD) + self.requests * REQUEST_OVERHEAD_BYTES


class ReceiveMemory:
    """ports: where the clients connect. limit: bytes of memory of this process."""

    def __init__(self, ports: Collection[int], limit: int, log: Callable[..., None]) -> None:
        self._ports = ports
        self._limit = limit
        self._log = log
        self._received: dict[str, ReceivedBytes] = {}
        self._tidy_at = MANY_PEERS
        self.cut = 0  # connections, so far

    def count(self, peer: str, size: int) -> None:
        """A handler was given a request of `size` bytes."""
        received_by = self._received.get(peer)
        if received_by is None:
            received_by = self._received[peer] = ReceivedBytes()
        received_by.requests += 1
        received_by.size += size

    async def watch(self) -> None:
        """Runs as long as the server. Not for one whose requests are not counted: its honest clients would be cut."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            over = resident_bytes() > self._limit
            if not over and len(self._received) < self._tidy_at:
                continue
            if not await self._check(over):
                await asyncio.sleep(AGAIN_SECONDS)

    async def _check(self, over: bool) -> bool:
        """Whether connections were cut: then more may come on the others."""
        loop = asyncio.get_running_loop()
        known = set(self._received)
        received = await loop.run_in_executor(None, connections.received, self._ports)
        received_by = {connections.address_of(peer): counted for peer, counted in self._received.items()}
        self._received = {
            peer: counted
            for peer, counted in self._received.items()
            if connections.address_of(peer) in received or peer not in known  # who came meanwhile
        }
        self._tidy_at = MANY_PEERS + 2 * len(self._received)
        if not over:
            return False
        held = {
            peer: size - (received_by[peer].sent() if peer in received_by else 0) for peer, size in received.items()
        }
        chosen = to_cut(held, self._excess())
        if sum(held[peer] for peer in chosen) < self._excess():
            await loop.run_in_executor(None, give_back)  # it may be no more than holes in the heap
            if resident_bytes() <= self._limit:
                return False
            chosen = to_cut(held, self._excess())
        if not chosen:
            return False
        self.cut += await loop.run_in_executor(None, connections.cut, chosen)  # at once: more comes meanwhile
        size = sum(held[peer] for peer in chosen)
        self._log("connections-cut", count=len(chosen), bytes=size, reason="requests that do not end fill the node")
        await asyncio.sleep(FREED_SECONDS)
        await loop.run_in_executor(None, give_back)
        return True

    def _excess(self) -> int:
        """Bytes that are to go."""
        return resident_bytes() - int(self._limit * TARGET_SHARE)


def to_cut(held: dict[Address, int], excess: int) -> list[Address]:
    """The connections with most bytes in unfinished requests that together hold `excess`; none that holds little."""
    chosen, total = [], 0
    for size, peer in sorted(((size, peer) for peer, size in held.items()), reverse=True):
        if size < MIN_CUT_BYTES or total >= excess:
            break
        chosen.append(peer)
        total += size
    return chosen


def resident_bytes() -> int:
    """Memory of this process that is not mapped from files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared = file.read().split()[:3]
    return (int(resident) - int(shared)) * PAGE_BYTES
