"""Where a call goes: to the shard's host here, or unread and once to the node that serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from delayapi.field_counts import has_more_fields
from delayregistry.security import OF_GROUPS, Operation
from google.protobuf.message import DecodeError, Message

from delaynode.limits.budget import Answers
from delaynode.node.node import Node
from delaynode.node.routes import RemoteMaster
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.edge import Body, Call, Forwardable, Serve
from delaynode.server.forward import Forwarder
from delaynode.server.operations import AUDITED, OPERATIONS, needed
from delaynode.server.quotas import EnqueueQuotas
from delaynode.store.errors import Damaged, Impossible, Refused

ServeShard: TypeAlias = Callable[[Any, ShardHost, Answers], Awaitable[Message | Body]]
"""Serves a call for a shard that is here."""
ServeCaller: TypeAlias = Callable[[Any, ShardHost, Answers, Call], Awaitable[Message | Body]]
"""The same, for which it matters who calls."""
MAX_FIELDS = 30_000  # of a request: 1,000 messages with 20 properties each, and what holds the event loop for 0.1 s
WAITING = frozenset({"Receive", "Fetch"})
"""Calls that may wait for a minute before they have an answer: whether their caller may have it is asked again then."""


class ForQueue(Protocol):
    """A request for a queue of a topic; it may have a group too."""

    @property
    def topic(self) -> str: ...

    @property
    def queue(self) -> int: ...


class Dispatch:
    """Shared by the calls of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.forwarder = Forwarder(node.certificates)
        self.flow = node.flow
        self.quotas = EnqueueQuotas(node.security.rights, node.metrics)

    def for_shard(self, method: str, request_type: type[Message], serve: ServeShard, *, reads: bool = False) -> Serve:
        """Parse a request that names a shard, and serve it here or where the shard is.

        reads: it only reads what is released; an in-sync slave may do, where the cluster says so.
        """
        return self.for_caller(method, request_type, lambda one, host, told, _: serve(one, host, told), reads=reads)

    def for_caller(self, method: str, request_type: type[Message], serve: ServeCaller, *, reads: bool = False) -> Serve:
        """The same, with who calls."""

        async def handle(data: Body, call: Call, answers: Answers) -> Body:
            request: Any = parse(request_type, data)
            found = self.find_host(method, request, call, reads=reads)
            if isinstance(found, RemoteMaster):
                body = await self.forwarder.call(found.node, method, data, call.time_remaining(), call.identity())
                try:
                    self.check_still(method, call, request)
                    await answers.reserve(len(body))
                except BaseException:  # also that who asked has gone
                    if method == "Receive":
                        self.forwarder.give_back(found.node, request, body, call.identity())
                    raise
                return body
            try:
                answer = await serve(request, found, answers, call)
            except (Damaged, OSError) as damaged:
                found.fail(str(damaged), damaged)  # a slave's copy too: it may be the next master's
                raise Refused("SHARD_DAMAGED", str(damaged)) from damaged
            except Impossible as impossible:
                found.log_impossible(method, impossible)
                raise Refused("INTERNAL", f"nothing was changed: {impossible}") from impossible
            return answer if isinstance(answer, bytes) else answer.SerializeToString()

        return handle

    def check(self, method: str, call: Forwardable, topic: str = "", group: str = "") -> None:
        """Raises Refused where the caller may not do that. Every call comes by here, or by allows()."""
        self.check_right(method, call, topic, group)
        if method in AUDITED:
            operation = needed(method, group)
            group = group if operation in OF_GROUPS else ""
            self.node.security.administered(method, operation, call.identity(), topic, group)

    def check_right(self, method: str, call: Forwardable, topic: str, group: str = "") -> None:
        """The same, of what such calls are yet to be made for."""
        operation = needed(method, group)
        self.node.security.rights.check(call.identity(), operation, topic, group if operation in OF_GROUPS else "")

    def check_still(self, method: str, call: Forwardable, request: ForQueue) -> None:
        """The right again, of a call that may have waited long for its answer. Raises Refused."""
        if method in WAITING:
            self.check_right(method, call, request.topic, getattr(request, "group", ""))

    def check_admin(self, call: Forwardable) -> None:
        """The same, for Admin and whatever call."""
        self.node.security.rights.check(call.identity(), Operation.ADMIN)

    def allows(self, method: str, call: Forwardable, topic: str) -> bool:
        """Whether an answer about all topics may tell the caller of this one."""
        return self.node.security.rights.allows(call.identity(), OPERATIONS[method], topic)

    def find_host(self, method: str, request: ForQueue, call: Forwardable, *, reads: bool = False) -> Any:
        """The host, or where the shard is served; a call that was forwarded already goes no further.

        Raises Refused, also where the caller may not do that.
        """
        topic, queue = request.topic, request.queue
        self.check(method, call, topic, getattr(request, "group", ""))
        found = self.node.finder.find_readable(topic, queue) if reads else self.node.finder.find(topic, queue)
        if isinstance(found, RemoteMaster) and call.forwarded():
            raise Refused(
                "NOT_MASTER",
                f"shard {topic}-{queue} is served by {found.node.endpoint}",
                endpoint=found.node.endpoint,
                epoch=found.epoch,
            )
        return found


def small(serve: Callable[[Any, ShardHost], Awaitable[Message | Body]]) -> ServeShard:
    """The handler of a call whose answers are small."""

    def serve_small(request: Any, host: ShardHost, _: Answers) -> Awaitable[Message | Body]:
        return serve(request, host)

    return serve_small


def parse(kind: type[Message], data: Body) -> Any:
    """Raises Refused."""
    if has_more_fields(kind, data, MAX_FIELDS):
        raise Refused(
            "BATCH_TOO_LARGE", f"the {kind.DESCRIPTOR.name} has over {MAX_FIELDS:,} fields and entries, the limit"
        )
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused("BAD_REQUEST", f"not a {kind.DESCRIPTOR.full_name}: {error}") from error
