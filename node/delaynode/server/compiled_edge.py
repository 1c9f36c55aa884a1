"""The edge in compiled code (edge/, the distribution delaycluster-edge): it reads, decodes and groups Enqueue requests,
bounds its own memory, and takes no turn of the event loop for a request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from delaynode.auth.identity import ANONYMOUS, Identity
from delaynode.config import NodeConfig
from delaynode.limits.budget import BUSY_RETRY_MS
from delaynode.limits.flow import Flow
from delaynode.replication.transport.until import wait_until
from delaynode.server.callers import Callers, Said, ends_ms
from delaynode.server.edge import MAX_CALLS, METADATA, Body, Last, Methods, Readable, Serve, ServeStream
from delaynode.server.forward import ForwardedError
from delaynode.server.handlers.rows import RowCalls, RowGroup, refuse
from delaynode.server.health import HEALTH_SERVICE, REFLECTION_SERVICE, Health, reflection_methods
from delaynode.server.listeners import AGE_GRACE_MS, Listener, bound
from delaynode.server.rpc import EndedError, Status, as_error, details_of, status_of
from delaynode.store.columns import offsets_from
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.shard import Appended
from delaynode.store.types import U32, Array

if TYPE_CHECKING:
    from delayedge import Edge, Event, Rows

End: TypeAlias = Refused | ForwardedError | EndedError
ENDS = (Refused, ForwardedError, EndedError)
GRACE_SECONDS = 1.0
BUSY = Refused("BUSY", "", retry_after_ms=BUSY_RETRY_MS)  # the edge's own refusals, each with a text of its own
EXPIRED = Refused("UNAUTHENTICATED", "")
MAX_MESSAGE_BYTES = 12 << 20  # the largest batch has 9.4 MiB
NO_COUNT = np.empty(0, np.uint32)


class CompiledEdge:
    """rows: takes the requests of `enqueue` and `enqueue_stream` (methods' full names) in groups."""

    def __init__(
        self, config: NodeConfig, flow: Flow, rows: RowCalls, enqueue: str, enqueue_stream: str,
        services: Mapping[str, Methods], listeners: Sequence[Listener], callers: Callers, log: Callable[..., None],
    ) -> None:  # fmt: skip
        self._health = Health(services)
        self._listeners, self._callers, self._log = listeners, callers, log
        services = {**services, HEALTH_SERVICE: self._health.methods()}
        if not any(listener.identifies for listener in listeners):
            services[REFLECTION_SERVICE] = reflection_methods((*services, REFLECTION_SERVICE))
        self._config, self._flow, self._rows = config, flow, rows
        self._row_methods = {enqueue: "unary", enqueue_stream: "stream"}
        self._readable: dict[str, Readable] = {}  # by door
        self._unary: dict[str, Serve] = {}
        self._streams: dict[str, ServeStream] = {}
        for service, methods in services.items():
            for name, serve in {**methods.unary, **methods.batches, **methods.internal}.items():
                self._unary[f"/{service}/{name}"] = serve
            for name, serve_stream in methods.streams.items():
                self._streams[f"/{service}/{name}"] = serve_stream
            for name, readable in methods.readable.items():
                self._row_methods[f"/{service}/{name}"] = readable.door
                self._readable[readable.door] = readable
        self._serve_rows = {**self._unary, enqueue_stream: self._unary[enqueue]}
        self._calls: dict[int, _Call] = {}
        self._identifying: dict[tuple[str, str], set[asyncio.Task[None]]] = {}  # by listener and peer
        self._edge: Edge | None = None

    async def start(self) -> None:
        """Listen. Raises OSError, which names the address."""
        from delayedge import Edge  # a distribution of its own, which need not be there

        loop, edge = asyncio.get_running_loop(), self._make(Edge)
        for listener in self._listeners:
            try:
                with bound(listener.config.listen) as at:
                    edge.listen(
                        at.fileno(), listener.name, tls=listener.config.tls, identifies=listener.identifies,
                        forwards=listener.forwards, max_age_ms=listener.max_age_ms,
                    )  # fmt: skip
            except OSError:
                edge.close()
                raise
        self._edge = edge
        for listener in self._listeners:
            if listener.config.tls:
                listener.subscribe(partial(loop.call_soon_threadsafe, self._certify, listener))
        self._flow.edge_figures = edge.figures
        loop.add_reader(edge.fileno(), self._look)

    def _certify(self, listener: Listener) -> None:
        """Use the listener's newest certificates for handshakes to come."""
        assert self._edge is not None
        material = listener.material()
        if material is None:
            return
        own, roots = material.own, material.client_roots_pem
        try:
            self._edge.set_certificates(listener.name, own.chain_pem, own.key_pem, roots)
        except ValueError as error:
            self._log("certificate-unusable", listener=listener.name, reason=str(error))

    def _make(self, make: type[Edge]) -> Edge:
        limit, unread = self._config.in_flight_bytes, self._config.unread_bytes
        return make(
            None, rows=self._row_methods,
            unary=[name for name in self._unary if name not in self._row_methods],
            streams=[name for name in self._streams if name not in self._row_methods],
            metadata=list(METADATA), max_connections=self._config.max_connections, max_calls=MAX_CALLS,
            max_message_bytes=MAX_MESSAGE_BYTES,
            rows_bytes=limit, rows_bytes_per_connection=limit // 4, calls_bytes=limit,
            calls_bytes_per_connection=limit // 4, unread_bytes=unread, unread_bytes_per_connection=unread // 4,
            busy=details_of(BUSY), expired=details_of(EXPIRED), age_grace_ms=AGE_GRACE_MS,
        )  # fmt: skip

    async def tell_health(self, *, serving: bool) -> None:
        """Set what the health service says of the node and its services."""
        self._health.tell(serving=serving)

    async def stop(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Take no new call. Those under way have GRACE_SECONDS, in which `meanwhile` is awaited."""
        assert self._edge is not None
        self._health.tell(serving=False)
        edge, loop = self._edge, asyncio.get_running_loop()
        edge.drain(GRACE_SECONDS)
        ends = loop.time() + GRACE_SECONDS
        try:
            await meanwhile()
            await wait_until(lambda: not edge.figures()["connections"] or loop.time() >= ends, 0.01)
        finally:
            loop.remove_reader(edge.fileno())
            for tasks in self._identifying.values():
                for identifying in tasks:
                    identifying.cancel()
            cancelled = [task for call in self._calls.values() if (task := call.gone()) is not None]
            await self._rows.close()
            if cancelled:
                await asyncio.wait(cancelled, timeout=GRACE_SECONDS)
            await loop.run_in_executor(None, edge.close)  # it waits for threads

    # ------------------------------------------------------------ what has come
    def _look(self) -> None:
        assert self._edge is not None
        groups, events = self._edge.take()
        if groups:
            with self._rows.turn():
                self._take_groups(self._edge, groups)
        for event in events:
            try:
                self._on_event(event)
            except Exception as error:
                _end(self._edge, event.token, _fault(error))

    def _take_groups(self, edge: Edge, groups: Sequence[Rows]) -> None:
        for rows in groups:  # a fault ends one group alone: take() does not give the others again
            token, count = np.frombuffer(rows.token, "<u8"), np.frombuffer(rows.count, "<u4")
            answers = _RowAnswers(edge, token, count)
            try:
                group = _group(rows, count, answers)
                if rows.door is None:
                    self._rows.take(group)
                else:
                    self._readable[rows.door].take(group, _ReadCalls(edge, token))
            except Exception as error:
                refuse(answers, 0, len(token), error)

    def _on_event(self, event: Event) -> None:
        if event.kind == "call":
            self._begin(event)
        elif event.kind == "identify":
            self._track(asyncio.create_task(self._identify(event)), event)
        elif event.kind == "left":
            self._track(asyncio.create_task(self._left(event)), event)
        elif event.kind == "failed":
            self._log("handshake-failed", reason=event.reason)
        elif event.token in self._calls:
            self._calls[event.token].on_event(event)

    def _track(self, task: asyncio.Task[None], event: Event) -> None:
        """Keep what is done about a connection, in order."""
        connection = event.listener or "", event.peer or ""
        tasks = self._identifying.setdefault(connection, set())
        tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not tasks and self._identifying.get(connection) is tasks:
                del self._identifying[connection]

        task.add_done_callback(done)

    async def _left(self, event: Event) -> None:
        """The connection has ended: it is nobody's, once those are known who were asked for."""
        listener, peer = event.listener or "", event.peer or ""
        me = asyncio.current_task()
        if others := [one for one in self._identifying.get((listener, peer), ()) if one is not me]:
            await asyncio.wait(others)
        self._callers.left(listener, peer)

    async def _identify(self, event: Event) -> None:
        """Find out who calls: what has come of it waits."""
        assert self._edge is not None
        assert event.listener is not None
        try:
            ends = None if event.certificate is None else ends_ms(event.certificate)
            said = Said(tuple(event.names), event.authorization, event.principal, ends)
            found = await self._callers.find(event.listener, said)
            await self._callers.admit(found, event.listener, event.peer or "")
            self._edge.identify(event.token, found.identity, found.seconds_left(), forwards=found.forwards)
        except Exception as error:
            status = _status(error) if isinstance(error, Refused) else _fault(error)
            self._edge.refuse_caller(event.token, status.code.value[0], status.message, status.details)

    def _begin(self, event: Event) -> None:
        assert self._edge is not None
        assert event.method is not None
        call = _Call(self._edge, event, self._ended)
        self._calls[event.token] = call
        if event.method in self._row_methods:  # it is no row, or is served as a call all the same
            call.run(self._serve_row(call, self._serve_rows[event.method], event.body))
        elif event.method in self._unary:
            call.run(self._serve(call, self._unary[event.method], event.body))
        else:
            call.run(self._serve_stream(call, self._streams[event.method]))

    def _ended(self, call: _Call) -> None:
        self._calls.pop(call.token, None)

    async def _serve(self, call: _Call, serve: Serve, body: Body | None) -> None:
        assert self._edge is not None
        answers = self._flow.answers(call)
        try:
            answer = await serve(_not_missing(body), call, answers)
        except BaseException as error:
            answers.dropped()
            if not isinstance(error, ENDS):
                raise
            _end(self._edge, call.token, _status(error))
            return
        call.sending = answers.counted
        answers.sent_when_done()
        if not self._edge.respond(call.token, answer, tell=call.sending):
            call.sending = False
            answers.dropped()

    async def _serve_stream(self, call: _Call, serve: ServeStream) -> None:
        assert self._edge is not None
        try:
            async with aclosing(serve(call)) as bodies:
                async for body in bodies:
                    if isinstance(body, Last):
                        self._edge.write_last(call.token, body.bodies)
                    elif not self._edge.write(call.token, body):
                        await call.writable()
        except ENDS as error:
            _end(self._edge, call.token, _status(error))
            return
        self._edge.end(call.token)  # unless it has ended

    async def _serve_row(self, call: _Call, serve: Serve, body: Body | None) -> None:
        """Serve a request with message ids; refuse one whose columns do not fit with what `serve` finds wrong."""
        assert self._edge is not None
        answers, row = self._flow.answers(call), _RowAnswers(self._edge, np.array([call.token], "<u8"), NO_COUNT)
        try:
            self._edge.answer_row(call.token, await serve(_not_missing(body), call, answers))
        except BaseException as error:
            refuse(row, 0, 1, error)
            if not isinstance(error, Exception):
                raise
        finally:
            answers.dropped()


class _Call:
    """A call, or a stream."""

    def __init__(self, edge: Edge, event: Event, ended: Callable[[_Call], None]) -> None:
        self.token = event.token
        self.sending = False  # the answer holds memory until "sent"
        self._edge, self._ended, self._peer, self._forwarded = edge, ended, event.peer or "", event.forwarded
        self._listener, self._identity = event.listener or "", _identity(event)
        self._metadata = dict(event.metadata)
        self._loop = asyncio.get_running_loop()
        self._until = None if event.seconds_left is None else self._loop.time() + event.seconds_left
        self._done: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._messages: deque[Body | None] = deque()
        self._given = False  # read() has given a message that is being dealt with
        self._next: Callable[[Body], None] | None = None  # told of what comes before read()
        self._wakeup: asyncio.Future[None] | None = None
        self._may_write = True

    def peer(self) -> str:
        return self._peer

    def listener(self) -> str:
        return self._listener

    def forwarded(self) -> bool:
        return self._forwarded

    def identity(self) -> Identity:
        return self._identity

    def metadata(self, name: str) -> str | None:
        return self._metadata.get(name)

    def time_remaining(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - self._loop.time())

    def on_done(self, done: Callable[[], None]) -> None:
        self._done.append(done)

    def on_next(self, told: Callable[[Body], None]) -> None:
        self._next = told
        if self._messages:
            self._tell_next()

    def _tell_next(self) -> None:
        told, self._next = self._next, None
        body = self._messages[0]
        if told is not None and body is not None:
            told(body)

    async def read(self) -> Body | None:
        self._next = None
        if self._given:
            self._given = False
            self._edge.more(self.token)
        while not self._messages:
            await self._wait()
        if self._messages[0] is None:  # it stays: whoever reads on is told again
            return None
        self._given = True
        return self._messages.popleft()

    async def writable(self) -> None:
        self._may_write = False
        while not self._may_write:
            await self._wait()

    async def _wait(self) -> None:
        self._wakeup = self._loop.create_future()
        await self._wakeup

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # also from inside: the client may still wait
            _end(self._edge, self.token, _status(Refused("NOT_SERVING", "the node has given the call up")))
        elif (error := task.exception()) is not None:
            _end(self._edge, self.token, _fault(error))
        if not self.sending:
            self._over()

    def _over(self) -> None:
        done, self._done = self._done, []
        for one in done:
            one()
        self._ended(self)

    def gone(self) -> asyncio.Task[None] | None:
        """The client does not wait any more. Returns the task that ends now, if there is one."""
        if self._task is None or self._task.done():
            return None
        self._task.cancel()
        return self._task

    def on_event(self, event: Event) -> None:
        if event.kind == "gone":
            self.gone()
        elif event.kind == "sent":
            self.sending = False
            if self._task is not None and self._task.done():
                self._over()
        else:
            if event.kind == "message":
                self._messages.append(event.body)
                self._tell_next()
            elif event.kind == "half_closed":
                self._messages.append(None)
            self._may_write = self._may_write or event.kind == "writable"
            wakeup, self._wakeup = self._wakeup, None
            if wakeup is not None and not wakeup.done():
                wakeup.set_result(None)


class _RowAnswers:
    """The way back for a group's answers. token: u64[r], by which the edge knows the requests; count: u32[r], the
    messages of each."""

    __slots__ = ("_count", "_edge", "_token")

    def __init__(self, edge: Edge, token: Array, count: U32) -> None:
        self._edge, self._token, self._count = edge, token, count

    def stored(self, first: int, end: int, uid: int, appended: Appended) -> None:
        # A duplicate is answered by itself, with what was stored the first time.
        count = np.array([appended.count], np.uint32) if appended.duplicate else self._count[first:end]
        first_seq = offsets_from(count, appended.first_seq)
        due = None if appended.due is None else np.ascontiguousarray(appended.due).data
        duplicate = np.ones(1, np.uint8).data if appended.duplicate else None
        self._edge.answer_rows(self._token[first:end].data, count.data, uid, first_seq.data, due, duplicate)

    def refused(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        status = _status(error)
        inside = error.as_error() if isinstance(error, ForwardedError) else as_error(error)
        encoded = inside.SerializeToString()
        for token in self._token[first:end].tolist():
            self._edge.refuse_row(token, status.code.value[0], status.message, status.details, encoded)


class _ReadCalls:
    """Calls of a door, as rows. token: u64[r], by which the edge knows them."""

    __slots__ = ("_edge", "_token")

    def __init__(self, edge: Edge, token: Array) -> None:
        self._edge, self._token = edge, token

    def at(self, places: Sequence[int]) -> _ReadCalls:
        return _ReadCalls(self._edge, self._token[np.asarray(places)])

    def stored(self, first: int, end: int, queue: int, uid: int, appended: Appended) -> None:
        count, seq = np.ones(end - first, np.uint32), appended.first_seq
        first_seq = np.arange(seq, seq + end - first, dtype=np.int64)
        due = None if appended.due is None else np.ascontiguousarray(appended.due).data
        self._edge.answer_rows(self._token[first:end].data, count.data, uid, first_seq.data, due, queue=queue)

    def answered(self, first: int, end: int, status: bytes) -> None:
        for token in self._token[first:end].tolist():
            self._edge.answer_single(token, status)

    def end(self, first: int, end: int, error: Refused | ForwardedError) -> None:
        status = _status(error)
        for token in self._token[first:end].tolist():
            self._edge.refuse_row(token, status.code.value[0], status.message, status.details)

    def serve(self, first: int, end: int) -> None:
        self._edge.as_calls(self._token[first:end].data)


def _identity(of: Event | Rows) -> Identity:
    return of.identity if isinstance(of.identity, Identity) else ANONYMOUS


def _group(rows: Rows, count: U32, answers: _RowAnswers) -> RowGroup:
    producer, number = np.frombuffer(rows.producer, "<u8"), np.frombuffer(rows.number, "<u8")
    runs = [*map(BatchRun, producer.tolist(), number.tolist(), count.tolist())]
    return RowGroup(
        rows.topic, rows.queue, _identity(rows), rows.forwarded,
        rows.time, rows.relative, rows.size, rows.key, rows.tag, memoryview(rows.records),
        runs, np.frombuffer(rows.deadline_ms, "<i8"), answers,
    )  # fmt: skip


def _status(error: End) -> Status:
    return status_of(error) if isinstance(error, Refused) else error.status()


def _end(edge: Edge, token: int, status: Status) -> None:
    edge.end(token, status.code.value[0], status.message, status.details)


def _fault(error: BaseException) -> Status:
    """How a call ends by a fault of this program, which is reported."""
    asyncio.get_running_loop().call_exception_handler({"message": "a call has failed", "exception": error})
    return _status(Refused("INTERNAL", f"{type(error).__name__}: {error}"))


def _not_missing(body: Body | None) -> Body:
    if body is None:
        raise Refused("BAD_REQUEST", "the call has no request")
    return body
