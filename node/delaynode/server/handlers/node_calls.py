"""DescribeNode and AcceptClock, calls for one node by its name, asked of any; and CheckAccess, which any answers."""

from __future__ import annotations

from typing import Any

from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayregistry.model import MAX_TOPIC_CHARS
from delayregistry.security import MAX_GROUP_CHARS, MAX_NAME_CHARS, OF_GROUPS, Operation
from google.protobuf.message import Message

from delaynode.auth.identity import ANONYMOUS, Identity, IdentityKind
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
            "CheckAccess": self._check_access,
        }

    async def _check_access(self, data: Body, call: Call, _: Answers) -> Body:
        request = parse(pb.CheckAccessRequest, data)
        operation = _operation(request)
        who = call.identity()
        if request.principal and request.principal != who.principal:
            self._dispatch.check_admin(call)
            kind = IdentityKind.ANONYMOUS if request.principal == ANONYMOUS.principal else IdentityKind.TOKEN
            who = Identity(request.principal, kind, groups=tuple(request.groups))
        elif request.groups:
            raise Refused("BAD_REQUEST", "groups are those of another principal: the caller's are known")
        allowed, why = self._node.security.rights.explain(who, operation, request.topic, request.group)
        answer: bytes = pb.CheckAccessResponse(allowed=allowed, why=why, principal=who.principal).SerializeToString()
        return answer

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


def _operation(request: pb.CheckAccessRequest) -> Operation:
    """What is asked about. Raises Refused where the question means nothing."""
    try:
        operation = Operation(request.operation)
    except ValueError:
        known = ", ".join(Operation)
        raise Refused("BAD_REQUEST", f"operation {request.operation[:100]!r} is none of {known}") from None
    of_topic, of_group = operation is not Operation.ADMIN, operation in OF_GROUPS
    for what, name, wanted in (("topic", request.topic, of_topic), ("group", request.group, of_group)):
        if bool(name) != wanted:
            raise Refused("BAD_REQUEST", f"{operation} is {'of a' if wanted else 'of no'} {what}: found {name[:100]!r}")
    for what, name, limit in (
        ("topic", request.topic, MAX_TOPIC_CHARS), ("group", request.group, MAX_GROUP_CHARS),
        ("principal", request.principal, MAX_NAME_CHARS),
    ):  # fmt: skip
        if len(name) > limit:
            raise Refused("BAD_REQUEST", f"the {what} has {len(name):,} characters; the limit is {limit}")
    return operation
