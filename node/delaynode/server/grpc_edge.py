"""The edge on grpc.aio: its servers, its calls, and the fences around the memory that it does not bound (limits/).

gRPC does not say by which port a call has come, so each listener is a server of its own. main.py keeps TLS 1.2 out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc
from delayapi.errors import DETAILS_KEY
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from delaynode.auth.identity import ANONYMOUS, PRINCIPAL, Identity
from delaynode.limits.budget import Answers, Hold
from delaynode.limits.flow import Flow
from delaynode.server.callers import Caller, Callers, Said, ends_ms, shown_by
from delaynode.server.edge import MAX_CALLS, Body, Methods, Serve, ServeStream, bodies_of
from delaynode.server.forward import FORWARDED, ForwardedError
from delaynode.server.health import HEALTH_SERVICE, Health
from delaynode.server.listeners import AGE_GRACE_MS, Listener, bound
from delaynode.server.rpc import EndedError, status_of
from delaynode.store.errors import Refused

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", 12 << 20),  # the largest batch has 9.4 MiB
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),  # RocketMQ's clients ping without calls
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
LISTEN_AGAIN_SECONDS = 5.0
End: TypeAlias = Refused | ForwardedError | EndedError
ENDS = (Refused, ForwardedError, EndedError)
Context: TypeAlias = Any  # grpc.aio.ServicerContext, which comes without types


class GrpcEdge:
    """services: by name."""

    def __init__(
        self, max_connections: int, flow: Flow, services: Mapping[str, Methods], listeners: Sequence[Listener],
        callers: Callers,
    ) -> None:  # fmt: skip
        self._flow, self._services, self._listeners = flow, services, listeners
        self._watching: asyncio.Task[None] | None = None
        self._health, self._told = health.aio.HealthServicer(), ("", *services)
        self._health_for_known = Health(services)
        self._reflects = not any(listener.identifies for listener in listeners)
        self._servers = {
            listener.name: self._make_server(listener, max_connections, GrpcCallers(listener, callers))
            for listener in listeners
        }
        self._starting: set[asyncio.Task[None]] = set()
        self._again: dict[CertifiedListener, asyncio.TimerHandle] = {}  # whose port was taken

    def _make_server(self, listener: Listener, max_connections: int, callers: GrpcCallers) -> Any:
        options = [*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", max_connections)]
        if listener.max_age_ms is not None:
            options += [
                ("grpc.max_connection_age_ms", listener.max_age_ms),
                ("grpc.max_connection_age_grace_ms", AGE_GRACE_MS),
            ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
        services = dict(self._services)
        if listener.identifies:
            services[HEALTH_SERVICE] = self._health_for_known.methods()
        else:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        server.add_generic_rpc_handlers(
            tuple(handlers(name, methods, self._flow, callers) for name, methods in services.items())
        )
        if self._reflects:
            names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        return server

    async def start(self) -> None:
        """Listen. A listener with TLS does once it has certificates; its port must be free now. Raises RuntimeError,
        OSError: can't listen."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            server = self._servers[listener.name]
            if listener.config.tls:
                with bound(listener.config.listen):
                    certified = CertifiedListener(listener, server)
                listener.subscribe(partial(loop.call_soon_threadsafe, self._certify, certified))
            else:
                server.add_insecure_port(listener.config.listen)
                await server.start()
        self._watching = asyncio.create_task(self._flow.receiving.watch())
        self._watching.add_done_callback(_report)

    def _certify(self, certified: CertifiedListener) -> None:
        """Use the listener's newest certificates for handshakes to come. The first ones let it listen."""
        if (again := self._again.pop(certified, None)) is not None:
            again.cancel()
        try:
            listens_now = certified.prepare()
        except RuntimeError as error:  # gRPC does not say which of them it is
            loop = asyncio.get_running_loop()
            if (taken := certified.port_taken()) is None:
                told = {"message": "gRPC can't use these certificates: it listens with the next", "exception": error}
            else:
                told = {"message": f"{taken}, which is tried again", "exception": taken}
                self._again[certified] = loop.call_later(LISTEN_AGAIN_SECONDS, self._certify, certified)
            loop.call_exception_handler(told)
            return
        if listens_now:
            task = asyncio.create_task(certified.server.start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def tell_health(self, *, serving: bool) -> None:
        """What the health service says of the node and its services."""
        self._health_for_known.tell(serving=serving)
        statuses = health_pb2.HealthCheckResponse
        for name in self._told:
            await self._health.set(name, statuses.SERVING if serving else statuses.NOT_SERVING)

    async def stop(self, meanwhile: Callable[[], Any]) -> None:
        """Take no new call. Those under way have GRACE_SECONDS, in which `meanwhile` is awaited."""
        self._health_for_known.tell(serving=False)
        await self._health.enter_graceful_shutdown()
        servers = self._servers.values()
        stopped = asyncio.gather(*(server.stop(grace=GRACE_SECONDS) for server in servers))
        for again in self._again.values():
            again.cancel()
        await meanwhile()
        await stopped
        if self._watching is not None:
            self._watching.cancel()


class CertifiedListener:
    """A listener with TLS. gRPC asks for certificates at each handshake, in a thread of its own that must not wait: it
    gets what was prepared, once."""

    def __init__(self, listener: Listener, server: Any) -> None:
        self.server = server
        self._listener = listener
        self._listens = False
        self._prepared: Any = None

    def prepare(self) -> bool:
        """Returns whether it listens from now on, for which the server must be started. Raises RuntimeError: the port
        is taken, or gRPC can't use the certificates."""
        material = self._listener.material()
        if material is None:
            return False
        own, roots = material.own, material.client_roots_pem
        self._prepared = grpc.ssl_server_certificate_configuration([(own.key_pem, own.chain_pem)], roots)
        if self._listens:
            return False
        credentials = grpc.dynamic_ssl_server_credentials(self._prepared, self._fetch, roots is not None)
        self.server.add_secure_port(self._listener.config.listen, credentials)
        self._listens = True
        return True

    def port_taken(self) -> OSError | None:
        try:
            with bound(self._listener.config.listen):
                return None
        except OSError as error:
            return error

    def _fetch(self) -> Any:
        """None: they are as they were."""
        prepared, self._prepared = self._prepared, None
        return prepared


class GrpcCallers:
    """Who calls by a listener."""

    def __init__(self, listener: Listener, callers: Callers) -> None:
        self.listener = listener.name
        self._callers, self._anybody = callers, Caller(ANONYMOUS, listener.forwards)
        self._identifies = listener.identifies

    async def find(self, context: Context) -> Caller:
        """Raises Refused."""
        if not self._identifies:
            return self._anybody
        metadata = dict(context.invocation_metadata() or ())
        proved = context.auth_context()
        names = (name.decode() for name in proved.get("peer_uri", ()))
        names_of_hosts = (f"dns:{name.decode()}" for name in proved.get("peer_dns", ()))
        shown = proved.get("x509_pem_cert")
        ends = ends_ms(shown[0]) if shown else None
        said = Said((*names, *names_of_hosts), shown_by(metadata), metadata.get(PRINCIPAL), ends)
        peer = context.peer()
        found = await self._callers.find_kept(self.listener, peer, said)
        await self._callers.admit(found, self.listener, peer)
        return found


def _report(watching: asyncio.Task[None]) -> None:
    if not watching.cancelled() and (error := watching.exception()) is not None:
        message = "requests that fill the memory are watched no more"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class GrpcCall:
    """A call, or a stream, of grpc.aio."""

    __slots__ = ("_ahead", "_caller", "_context", "_flow", "_listener", "_peer", "time_remaining")

    def __init__(self, context: Context, flow: Flow, listener: str, caller: Caller) -> None:
        self._context, self._flow, self._listener, self._caller = context, flow, listener, caller
        self.time_remaining = context.time_remaining
        self._peer: str = context.peer()  # grpcio ends the process where this is asked of a call that is over
        self._ahead: asyncio.Task[Any] | None = None  # the next request, asked for before read()

    def peer(self) -> str:
        return self._peer

    def listener(self) -> str:
        return self._listener

    def forwarded(self) -> bool:
        return self._caller.forwards and FORWARDED in dict(self._context.invocation_metadata() or ())

    def identity(self) -> Identity:
        return self._caller.identity

    def metadata(self, name: str) -> str | None:
        value = dict(self._context.invocation_metadata() or ()).get(name)  # of many the last
        return value if isinstance(value, str) else None

    def on_done(self, done: Callable[[], None]) -> None:
        self._context.add_done_callback(lambda _: done())

    async def read(self) -> Body | None:
        ahead, self._ahead = self._ahead, None
        data = await (self._context.read() if ahead is None else ahead)
        if data is grpc.aio.EOF:
            return None
        body: Body = data
        self._flow.receiving.count(self.peer(), len(body))
        return body

    def on_next(self, told: Callable[[Body], None]) -> None:
        def came(ahead: asyncio.Task[Any]) -> None:
            there = not ahead.cancelled() and ahead.exception() is None and ahead.result() is not grpc.aio.EOF
            if there and self._ahead is ahead:
                told(ahead.result())

        self._ahead = asyncio.create_task(self._context.read())
        self._ahead.add_done_callback(came)


def handlers(service: str, methods: Methods, flow: Flow, callers: GrpcCallers) -> grpc.GenericRpcHandler:
    rpcs = {name: _unary(serve, flow, callers, batch=False) for name, serve in methods.unary.items()}
    rpcs |= {name: _unary(serve, flow, callers, batch=True) for name, serve in methods.batches.items()}
    rpcs |= {name: streamed(serve, flow, callers) for name, serve in methods.streams.items()}
    rpcs |= {name: _internal(serve, flow, callers) for name, serve in methods.internal.items()}
    return grpc.method_handlers_generic_handler(service, rpcs)


def _unary(serve: Serve, flow: Flow, callers: GrpcCallers, *, batch: bool) -> grpc.RpcMethodHandler:
    """A unary call whose request is received when its turn has come. To the client it is as any unary call.

    batch: the request counts in the budget for what comes in until the call is served.
    """

    async def handle(_: Any, context: Context) -> Body:
        try:
            return await serve_known(context, await callers.find(context))
        except ENDS as error:
            ended = without_trail(error)
        return await end(context, ended)

    async def serve_known(context: Context, caller: Caller) -> Body:
        call = GrpcCall(context, flow, callers.listener, caller)
        answers = flow.answers(call)
        try:
            body = await (serve_batch if batch else serve_one)(call, answers)
            answers.sent_when_done()
            return body
        except BaseException:
            answers.dropped()
            raise

    async def serve_one(call: GrpcCall, answers: Answers) -> Body:
        return await serve(_not_missing(await flow.read(call)), call, answers)

    async def serve_batch(call: GrpcCall, answers: Answers) -> Body:
        holds: list[Hold] = []
        try:  # nothing here refers to the request: who serves it forgets it once it is copied into a frame
            return await serve(_not_missing(await flow.read_batch(call, holds)), call, answers)
        finally:
            flow.release(holds)

    return grpc.stream_unary_rpc_method_handler(handle)


def _internal(serve: Serve, flow: Flow, callers: GrpcCallers) -> grpc.RpcMethodHandler:
    async def handle(data: Body, context: Context) -> Body:
        try:
            call = GrpcCall(context, flow, callers.listener, await callers.find(context))
            return await serve(data, call, flow.answers(call))
        except ENDS as error:
            ended = without_trail(error)
        return await end(context, ended)

    return grpc.unary_unary_rpc_method_handler(handle)


def _not_missing(data: Body | None) -> Body:
    if data is None:
        raise Refused("BAD_REQUEST", "the call has no request")
    return data


def streamed(serve: ServeStream, flow: Flow, callers: GrpcCallers) -> grpc.RpcMethodHandler:
    """A call with a stream both ways. serve: a generator, which has ended, with its tasks, when the call ends.

    Not so if grpc.aio itself wrote what it yields: of a client that can't be written to it leaves the generator for
    later, whose tasks then use a call that is no more. That is the process's end (a segmentation fault, grpcio 1.85).
    """

    async def handle(_: AsyncIterator[Body], context: Context) -> None:
        try:
            caller = await callers.find(context)
            await serve_known(context, caller)
            return
        except ENDS as error:
            ended = without_trail(error)
        await end(context, ended)

    async def serve_known(context: Context, caller: Caller) -> None:
        timeout = asyncio.timeout(caller.seconds_left())
        try:
            async with timeout, aclosing(serve(GrpcCall(context, flow, callers.listener, caller))) as bodies:
                async for body in bodies:
                    for one in bodies_of(body):
                        await context.write(one)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Refused("UNAUTHENTICATED", "what the caller was known by has expired") from None

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
