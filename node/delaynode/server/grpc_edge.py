"""The edge on grpc.aio: its server, its calls, and the fences around the memory that it does not bound (limits/)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc
from delayapi.errors import DETAILS_KEY
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from delaynode.limits.budget import Answers, Hold
from delaynode.limits.flow import Flow
from delaynode.server.edge import MAX_CALLS, Body, Methods, Serve, ServeStream
from delaynode.server.forward import FORWARDED, ForwardedError
from delaynode.server.rpc import EndedError, status_of
from delaynode.store.errors import Refused

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", 12 << 20),  # the largest batch has 9.4 MiB
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client that is gone without a word leaves its connection behind: ask it once a minute.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 1_000),
    # A stream that is not read holds at most 64 KiB of requests. Left on, the window grows to megabytes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.max_frame_size", 1 << 20),  # what the probe would have found: fewer frames, less work
)
GRACE_SECONDS = 1.0
End: TypeAlias = Refused | ForwardedError | EndedError
ENDS = (Refused, ForwardedError, EndedError)
Context: TypeAlias = Any  # grpc.aio.ServicerContext, which comes without types


class GrpcEdge:
    """services: by name."""

    def __init__(self, max_connections: int, flow: Flow, services: Mapping[str, Methods]) -> None:
        options = (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", max_connections))
        self._flow = flow
        self._watching: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
        self._server.add_generic_rpc_handlers(
            tuple(handlers(name, methods, flow) for name, methods in services.items())
        )
        self._health, self._told = health.aio.HealthServicer(), ("", *services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, listen: str) -> None:
        self._server.add_insecure_port(listen)
        await self._server.start()
        self._watching = asyncio.create_task(self._flow.receiving.watch())
        self._watching.add_done_callback(_report)

    async def tell_health(self, *, serving: bool) -> None:
        """What the health service says of the node and its services."""
        statuses = health_pb2.HealthCheckResponse
        for name in self._told:
            await self._health.set(name, statuses.SERVING if serving else statuses.NOT_SERVING)

    async def stop(self, meanwhile: Callable[[], Any]) -> None:
        """Take no new call. Those under way have GRACE_SECONDS, in which `meanwhile` is awaited."""
        await self._health.enter_graceful_shutdown()
        stopped = asyncio.create_task(self._server.stop(grace=GRACE_SECONDS))
        await meanwhile()
        await stopped
        if self._watching is not None:
            self._watching.cancel()


def _report(watching: asyncio.Task[None]) -> None:
    if not watching.cancelled() and (error := watching.exception()) is not None:
        message = "requests that fill the memory are watched no more"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class GrpcCall:
    """A call, or a stream, of grpc.aio."""

    __slots__ = ("_context", "_flow", "peer", "time_remaining")

    def __init__(self, context: Context, flow: Flow) -> None:
        self._context, self._flow = context, flow
        self.peer, self.time_remaining = context.peer, context.time_remaining

    def forwarded(self) -> bool:
        return FORWARDED in dict(self._context.invocation_metadata() or ())

    def on_done(self, done: Callable[[], None]) -> None:
        self._context.add_done_callback(lambda _: done())

    async def read(self) -> Body | None:
        data = await self._context.read()
        if data is grpc.aio.EOF:
            return None
        body: Body = data
        self._flow.receiving.count(self.peer(), len(body))
        return body


def handlers(service: str, methods: Methods, flow: Flow) -> grpc.GenericRpcHandler:
    rpcs = {name: _unary(serve, flow, batch=False) for name, serve in methods.unary.items()}
    rpcs |= {name: _unary(serve, flow, batch=True) for name, serve in methods.batches.items()}
    rpcs |= {name: streamed(serve, flow) for name, serve in methods.streams.items()}
    rpcs |= {name: _internal(serve, flow) for name, serve in methods.internal.items()}
    return grpc.method_handlers_generic_handler(service, rpcs)


def _unary(serve: Serve, flow: Flow, *, batch: bool) -> grpc.RpcMethodHandler:
    """A unary call whose request is received when its turn has come. To the client it is as any unary call.

    batch: the request counts in the budget for what comes in until the call is served.
    """

    async def handle(_: Any, context: Context) -> Body:
        call = GrpcCall(context, flow)
        answers = flow.answers(call)
        try:
            body = await (serve_batch if batch else serve_one)(call, answers)
            answers.sent_when_done()
            return body
        except BaseException as error:
            answers.dropped()
            if not isinstance(error, ENDS):
                raise
            ended = without_trail(error)
        return await end(context, ended)

    async def serve_one(call: GrpcCall, answers: Answers) -> Body:
        return await serve(_not_missing(await flow.read(call)), call, answers)

    async def serve_batch(call: GrpcCall, answers: Answers) -> Body:
        holds: list[Hold] = []
        try:  # nothing here refers to the request: who serves it forgets it once it is copied into a frame
            return await serve(_not_missing(await flow.read_batch(call, holds)), call, answers)
        finally:
            flow.release(holds)

    return grpc.stream_unary_rpc_method_handler(handle)


def _internal(serve: Serve, flow: Flow) -> grpc.RpcMethodHandler:
    async def handle(data: Body, context: Context) -> Body:
        call = GrpcCall(context, flow)
        try:
            return await serve(data, call, flow.answers(call))
        except ENDS as error:
            ended = without_trail(error)
        return await end(context, ended)

    return grpc.unary_unary_rpc_method_handler(handle)


def _not_missing(data: Body | None) -> Body:
    if data is None:
        raise Refused("BAD_REQUEST", "the call has no request")
    return data


def streamed(serve: ServeStream, flow: Flow) -> grpc.RpcMethodHandler:
    """A call with a stream both ways. serve: a generator, which has ended, with its tasks, when the call ends.

    Not so if grpc.aio itself wrote what it yields: of a client that can't be written to it leaves the generator for
    later, whose tasks then use a call that is no more. That is the process's end (a segmentation fault, grpcio 1.85).
    """

    async def handle(_: AsyncIterator[Body], context: Context) -> None:
        try:
            async with aclosing(serve(GrpcCall(context, flow))) as bodies:
                async for body in bodies:
                    await context.write(body)
            return
        except ENDS as error:
            ended = without_trail(error)
        await end(context, ended)

    return grpc.stream_stream_rpc_method_handler(handle)


def without_trail(error: End) -> End:
    """The same error, without the frames that it came through.

    gRPC keeps what a call was aborted with in a cycle, and the frames would keep megabytes of request until the
    collector comes by: 800 MB were measured, after 200 refused batches.
    """
    if isinstance(error, ForwardedError):
        return ForwardedError(error.error.with_traceback(None))
    return error.fresh() if isinstance(error, Refused) else error


async def end(context: Context, error: End) -> NoReturn:
    """End the call. Call it outside of `except`: the error that is handled there would be kept as well."""
    status = status_of(error) if isinstance(error, Refused) else error.status()
    await context.abort(status.code, status.message, ((DETAILS_KEY, status.details),) if status.details else ())
    raise AssertionError("abort returned")
