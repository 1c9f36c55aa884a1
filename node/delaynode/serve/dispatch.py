"""Where a call goes: to the shard's host here, or unread and once to the node that serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from delaynode.serve.forward import FORWARDED, Forwarder, Passed
from delaynode.serve.host import ShardHost
from delaynode.serve.node import Elsewhere, Node
from delaynode.serve.rpc import abort
from delaynode.store.errors import Damaged, Refused

Context: TypeAlias = Any  # grpc.aio.ServicerContext, which comes without types
Body: TypeAlias = bytes
Handler: TypeAlias = Callable[[Body, Context], Awaitable[Body]]


class Dispatch:
    """Shared by the calls of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.forwarder = Forwarder()

    def unary(
        self, method: str, request_type: type[Message], serve: Callable[[Any, ShardHost], Awaitable[Message | Body]]
    ) -> Handler:
        async def handle(data: Body, context: Context) -> Body:
            try:
                request: Any = parse(request_type, data)
                place = self.place(request.topic, request.queue, context)
                if isinstance(place, Elsewhere):
                    return await self.forwarder.call(place.endpoint, method, data, context.time_remaining())
                answer = await serve(request, place)
                return answer if isinstance(answer, bytes) else answer.SerializeToString()
            except Refused as refused:
                await abort(context, refused)
            except Passed as passed:
                await passed.abort(context)
            except (Damaged, OSError) as damaged:
                self.fail(request, damaged)
                await abort(context, Refused("SHARD_DAMAGED", str(damaged)))

        return handle

    def fail(self, request: Any, damaged: Exception) -> None:
        try:
            place = self.node.find(request.topic, request.queue)
        except Refused:
            return  # another call found it out before
        if isinstance(place, ShardHost):
            place.fail(str(damaged))

    def place(self, topic: str, queue: int, context: Context) -> ShardHost | Elsewhere:
        """Where the shard is served; a call that was forwarded already goes no further."""
        place = self.node.find(topic, queue)
        if isinstance(place, Elsewhere) and FORWARDED in dict(context.invocation_metadata() or ()):
            raise Refused(
                "NOT_MASTER",
                f"shard {topic}-{queue} is served by {place.endpoint}",
                endpoint=place.endpoint,
                epoch=place.epoch,
            )
        return place


def parse(kind: type[Message], data: Body) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused("BAD_REQUEST", f"not a {kind.DESCRIPTOR.full_name}: {error}") from error
