"""All doors of a node, and what they share."""

from __future__ import annotations

from collections.abc import Mapping

from delaynode.node.node import Node
from delaynode.server.callers import Callers
from delaynode.server.doors.core import Door
from delaynode.server.doors.http_json import HttpDoor
from delaynode.server.doors.keda.service import SCALER_SERVICE, ScalerService
from delaynode.server.doors.receiving import Receiving
from delaynode.server.doors.rocketmq.service import MESSAGING_SERVICE, MessagingService
from delaynode.server.doors.rows import MESSAGE_SERVICE, MessageService
from delaynode.server.edge import Methods
from delaynode.server.handlers.rows import RowCalls
from delaynode.server.listeners import Listener
from delaynode.server.service import DelayService


class Doors:
    """One for a node. rows: what stores messages; the caller closes it."""

    def __init__(self, service: DelayService, rows: RowCalls) -> None:
        methods = service.methods()
        self.door = Door(service.dispatch, {**methods.unary, **methods.batches}, rows)
        self.receiving = Receiving(self.door)
        self.messages = MessageService(self.door, self.receiving)
        self.rocketmq = MessagingService(self.door, self.receiving)
        self.keda = ScalerService(service.dispatch, service.forecasts)

    def services(self) -> Mapping[str, Methods]:
        """By their full names, for the node's edge."""
        return {
            MESSAGE_SERVICE: self.messages.methods(), MESSAGING_SERVICE: self.rocketmq.methods(),
            SCALER_SERVICE: self.keda.methods(),
        }  # fmt: skip

    def over_http(self, node: Node, listener: Listener, callers: Callers) -> HttpDoor:
        """What serves HTTP for that listener."""
        door = HttpDoor(node, listener, callers)
        door.open(self.messages.methods())
        return door

    async def close(self) -> None:
        await self.rocketmq.close()
        await self.receiving.close()
