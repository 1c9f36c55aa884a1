"""Where a call goes: to the shard's host here, or unread and once to the node that serves it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from delaynode.limits.budget import Answers
from delaynode.node.node import Node
from delaynode.node.routes import RemoteMaster
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.forward import FORWARDED, ForwardedError, Forwarder
from delaynode.server.rpc import abort
from delaynode.store.errors import Damaged, Impossible, Refused

Context: TypeAlias = Any  # grpc.aio.ServicerContext, which comes without types
Body: TypeAlias = bytes
Serve: TypeAlias = Callable[[Body, Context, Answers], Awaitable[Body]]
"""Serves a call. Raises Refused or Passed. Asks `Answers` for room before it has a large answer in memory."""
ServeShard: TypeAlias = Callable[[Any, ShardHost, Answers], Awaitable[Message | Body]]
"""The same for a shard that is here."""


class Dispatch:
    """Shared by the calls of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.forwarder = Forwarder()
        self.flow = node.flow

    def received(self, serve: Serve, *, batch: bool = False) -> grpc.RpcMethodHandler:
        """A unary call whose request is received when its turn has come. To the client it is as any unary call.

        batch: the request counts in the budget for what comes in until the call is served.
        """

        async def handle(_: Any, context: Context) -> Body:
            answers = self.flow.answers(context)
            try:
                body = await (serve_batch if batch else serve_one)(context, answers)
                answers.sent_when_done()
                return body
            except BaseException as error:
                answers.sent()
                if not isinstance(error, Refused | ForwardedError):
                    raise
                ended = without_trail(error)
            return await end(context, ended)

        async def serve_one(context: Context, answers: Answers) -> Body:
            return await serve(_not_missing(await self.flow.read(context)), context, answers)

        async def serve_batch(context: Context, answers: Answers) -> Body:
            data, holds = await self.flow.read_batch(context)
            try:
                return await serve(_not_missing(data), context, answers)
            finally:
                self.flow.release(holds)

        return grpc.stream_unary_rpc_method_handler(handle)

    def for_shard(self, method: str, request_type: type[Message], serve: ServeShard, *, reads: bool = False) -> Serve:
        """Parse a request that names a shard, and serve it here or where the shard is.

        reads: it only reads what is released; an in-sync slave may do, where the cluster says so.
        """

        async def handle(data: Body, context: Context, answers: Answers) -> Body:
            request: Any = parse(request_type, data)
            found = self.find_host(request.topic, request.queue, context, reads=reads)
            if isinstance(found, RemoteMaster):
                body = await self.forwarder.call(found.endpoint, method, data, context.time_remaining())
                await answers.reserve(len(body))
                return body
            try:
                answer = await serve(request, found, answers)
            except (Damaged, OSError) as damaged:
                found.fail(str(damaged), damaged)  # a slave's copy too: it may be the next master's
                raise Refused("SHARD_DAMAGED", str(damaged)) from damaged
            except Impossible as impossible:
                found.log_impossible(method, impossible)
                raise Refused("INTERNAL", f"nothing was changed: {impossible}") from impossible
            return answer if isinstance(answer, bytes) else answer.SerializeToString()

        return handle

    def find_host(self, topic: str, queue: int, context: Context, *, reads: bool = False) -> Any:
        """The host, or where the shard is served; a call that was forwarded already goes no further."""
        found = self.node.finder.find_readable(topic, queue) if reads else self.node.finder.find(topic, queue)
        if isinstance(found, RemoteMaster) and FORWARDED in dict(context.invocation_metadata() or ()):
            raise Refused(
                "NOT_MASTER",
                f"shard {topic}-{queue} is served by {found.endpoint}",
                endpoint=found.endpoint,
                epoch=found.epoch,
            )
        return found


def _not_missing(data: Any) -> Body:
    if data is grpc.aio.EOF:
        raise Refused("BAD_REQUEST", "the call has no request")
    request: Body = data
    return request


def without_trail(error: Refused | ForwardedError) -> Refused | ForwardedError:
    """The same error, without the frames that it came through.

    gRPC keeps what a call was aborted with in a cycle, and the frames would keep megabytes of request until the
    collector comes by: 800 MB were measured, after 200 refused batches.
    """
    if isinstance(error, ForwardedError):
        return ForwardedError(error.error.with_traceback(None))
    return error.fresh()


async def end(context: Context, error: Refused | ForwardedError) -> NoReturn:
    """End the call. Call it outside of `except`: the error that is handled there would be kept as well."""
    if isinstance(error, ForwardedError):
        await error.abort(context)
    await abort(context, error)


def small(serve: Callable[[Any, ShardHost], Awaitable[Message | Body]]) -> ServeShard:
    """The handler of a call whose answers are small."""

    def serve_small(request: Any, host: ShardHost, _: Answers) -> Awaitable[Message | Body]:
        return serve(request, host)

    return serve_small


def streamed(answer: Callable[[AsyncIterator[Body], Context], AsyncGenerator[Body, None]]) -> grpc.RpcMethodHandler:
    """A call with a stream both ways. answer: a generator, which has ended, with its tasks, when the call ends.

    Not so if grpc.aio itself wrote what it yields: of a client that can't be written to it leaves the generator for
    later, whose tasks then use a call that is no more. That is the process's end (a segmentation fault, grpcio 1.85).
    """

    async def handle(requests: AsyncIterator[Body], context: Context) -> None:
        async with aclosing(answer(requests, context)) as bodies:
            async for body in bodies:
                await context.write(body)

    return grpc.stream_stream_rpc_method_handler(handle)


def parse(kind: type[Message], data: Body) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused("BAD_REQUEST", f"not a {kind.DESCRIPTOR.full_name}: {error}") from error
