"""DescribeNode and AcceptClock: calls for one node by its name, asked of any."""

from __future__ import annotations

from typing import Any

from delayapi.proto.delay.v1 import delay_pb2 as pb
from google.protobuf.message import Message

from delaynode.limits.budget import Answers
from delaynode.node.conditions import conditions, state
from delaynode.node.node import Node
from delaynode.node.routes import RemoteNode
from delaynode.server.dispatch import Dispatch, parse
from delaynode.server.edge import Body, Call, Serve
from delaynode.store.errors import Refused


class NodeCalls:
    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._node: Node = dispatch.node

    def calls(self) -> dict[str, Serve]:
        return {
            "DescribeNode": self._unary("DescribeNode", pb.DescribeNodeRequest, self._describe),
            "AcceptClock": self._unary("AcceptClock", pb.AcceptClockRequest, self._accept_clock),
        }

    def _unary(self, method: str, kind: type[Message], serve: Any) -> Serve:
        async def handle(data: Body, call: Call, _: Answers) -> Body:
            request = parse(kind, data)
            self._dispatch.check(method, call)
            node = self._elsewhere(request.node, call)
            if node is not None:
                forwarder = self._dispatch.forwarder
                return await forwarder.call(node, method, data, call.time_remaining(), call.identity())
            answer: bytes = (await serve(request)).SerializeToString()
            return answer

        return handle

    def _elsewhere(self, name: str, call: Call) -> RemoteNode | None:
        """The node of that name; None when it is this one. Raises Refused."""
        own = self._node.config.node
        if name in ("", own):
            return None
        lease = self._node.routes.leases.get(name)
        if lease is None or call.forwarded():
            raise Refused("UNKNOWN_NODE", f"node {own} knows no node {name!r}")
        return self._node.routes.reach(lease)

    async def _describe(self, _: pb.DescribeNodeRequest) -> pb.NodeState:
        node = self._node
        now_ms = node.clock.now_ms()
        figures = state(node)
        return pb.NodeState(
            node=node.config.node, endpoint=node.config.advertise, now_ms=now_ms,
            clock_disbelieved_ms=figures.clock_disbelieved_ms, clock_behind_ms=figures.clock_behind_ms,
            disk_free_bytes=figures.disk_free_bytes, disk_reserve_bytes=figures.disk_reserve_bytes,
            not_ready=node.not_ready() or "", conditions=[condition.text for condition in conditions(node)],
            nodes=sorted(node.routes.leases), zone=node.config.zone, edge=node.config.edge,
        )  # fmt: skip

    async def _accept_clock(self, request: pb.AcceptClockRequest) -> pb.AcceptClockResponse:
        moved_ms = await self._node.accept_clock(request.disbelieved_ms)
        return pb.AcceptClockResponse(moved_ms=moved_ms, now_ms=self._node.clock.now_ms())
