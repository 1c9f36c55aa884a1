"""The bounds on what clients make a node hold: its budgets, the gate and the watch, made from the node's settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from delaynode.config import NodeConfig
from delaynode.limits import connections
from delaynode.limits.budget import AnsweredCall, Answers, Budget, Hold, ReadingGate
from delaynode.limits.receive_memory import ReceiveMemory
from delaynode.metrics import FlowFigures

if TYPE_CHECKING:
    from delayedge import Figures

ONE_CONNECTION = 4  # a connection holds at most one part in so many of a budget


class ReadCall(AnsweredCall, Protocol):
    async def read(self) -> bytes | None: ...


class Flow:
    """One for a node. coming_in: batches until they are committed; calls: those of CallStreams until they are served;
    going_out: answers until they are read."""

    def __init__(self, config: NodeConfig, log: Callable[..., None]) -> None:
        self._log = log
        self._ports = frozenset(int(one.listen.rpartition(":")[2]) for one in config.listeners)
        limit = config.in_flight_bytes
        self.coming_in = Budget("of messages wait for the disk", limit, limit // ONE_CONNECTION)
        self.calls = Budget("of calls are under way", limit, limit // ONE_CONNECTION)  # an ack waits for no batch
        limit = config.unread_bytes
        self.going_out = Budget("of answers wait to be read", limit, limit // ONE_CONNECTION, self._give_up)
        self.receiving = ReceiveMemory(self._ports, config.memory_bytes, log)
        self.edge_figures: Callable[[], Figures] | None = None  # of the compiled edge, which has budgets of its own
        self._batches, self._others = ReadingGate(), ReadingGate()  # an ack does not queue behind batches
        self._cuts = 0
        self._cutting: set[asyncio.Future[None]] = set()

    def answers(self, call: AnsweredCall) -> Answers:
        """The bounds of one call."""
        return Answers(self.going_out, call)

    async def read(self, call: ReadCall) -> bytes | None:
        """The request of a call that has one; None when it has none. Raises Refused BUSY."""
        data: bytes | None = await self._others.read(call.read)
        return data

    async def read_batch(self, call: ReadCall, holds: list[Hold]) -> bytes | None:
        """read(). The bytes that the request holds of the budget for requests are added to `holds`, for the caller to
        give back."""

        async def read_within_budget() -> bytes | None:  # the next one is received when this one has its part
            data = await call.read()
            if data is not None:
                holds.append(await self.coming_in.acquire_soon(call.peer(), len(data)))
            return data

        data: bytes | None = await self._batches.read(read_within_budget)
        return data

    def release(self, holds: list[Hold]) -> None:
        while holds:
            self.coming_in.release(holds.pop())

    def _give_up(self, peers: set[str]) -> None:
        cutting = asyncio.get_running_loop().run_in_executor(None, self._cut, peers)
        self._cutting.add(cutting)
        cutting.add_done_callback(self._cutting.discard)

    def _cut(self, peers: set[str]) -> None:
        found = connections.cut({connections.address_of(peer) for peer in peers})
        if found:
            self._cuts += found
            self._log("connections-cut", count=found, reason="they do not read their answers, and others wait")

    async def figures(self) -> FlowFigures:
        """For the metrics."""
        cuts = self._cuts + self.receiving.cut
        if self.edge_figures is not None:
            edge = self.edge_figures()
            unread = max(self.going_out.used, edge["unread_bytes"])  # an answer is in both, but while it is made
            return FlowFigures(
                edge["connections"], edge["rows_bytes"], unread, cuts + edge["connections_cut"], edge["waiting"],
                edge["calls_refused"] + edge["answers_refused"], edge["panics"],
            )  # fmt: skip
        loop = asyncio.get_running_loop()
        clients = await loop.run_in_executor(None, connections.received, self._ports)
        waiting = sum(budget.waiting for budget in (self.coming_in, self.calls))
        return FlowFigures(len(clients), self.coming_in.used, self.going_out.used, cuts, waiting)
