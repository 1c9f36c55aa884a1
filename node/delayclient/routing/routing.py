"""The way to a shard's master: routes, and the channels to the nodes, shared by producers, consumers and admins.

Calls go straight to a shard's master. A master that cannot be reached from here (a port-forward, an Ingress) is
asked through the endpoint that the user gave: any node forwards. While a shard fails over, its calls wait for the
next master, which the routes name (delayclient.routing.route_table).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Self, TypeVar, Unpack

import grpc
import grpc.aio
from delayapi.connections import Connection, Connections
from delayapi.credentials import ClientCredentials
from delayapi.proto.delay.v1 import delay_pb2

from delayclient.errors import Busy, Closed, DelayError, NotFound, NotMaster, Unavailable, from_rpc
from delayclient.routing.access import Access, NodeAccess
from delayclient.routing.calls import MAX_REQUEST_BYTES, STREAMED_METHODS, CallMultiplexer
from delayclient.routing.reachability import PATIENCE_S, RECHECK_S, Reachability
from delayclient.routing.route_table import QueueRoute, RouteTable, TopicRoute, unknown

__all__ = ["DEFAULT_ENDPOINT", "Cluster", "ClusterUser", "QueueRoute", "TopicRoute", "backoff_s", "split_endpoints"]

SERVICE: Final = "/delay.v1.DelayService/"
DEFAULT_ENDPOINT: Final = "127.0.0.1:7070"
MAX_MESSAGE_BYTES: Final = 64 << 20

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A connection that is gone without a word is noticed by pings, within 15 s; only while calls are open.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The defaults wait up to two minutes before a restarted node is tried again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 300),
    # Retries are decided here, where it is known what may be sent twice.
    ("grpc.enable_retries", 0),
    # A pod's HTTP_PROXY is for the outside world, not for the cluster's own service.
    ("grpc.enable_http_proxy", 0),
)

_HEALTH: Final = "/grpc.health.v1.Health/Check"
_NO_SIGN_OF_LIFE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
_ROUTE_TIMEOUT_S: Final = 3.0
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_LAST_S: Final = 0.5
_BACKOFF_SOON_S: Final = 0.25
_SOON_FAILURES: Final = 10
"""The first failures in a row, some two seconds: a planned move of a master takes half of one."""
_RETRY_WAIT_S: Final = 1.0
"""So long calls wait for the one of them that tries; then each tries."""
_MAX_REDIRECTS: Final = 3
"""Answers NOT_MASTER in a row that are followed at once: nodes that are cut off may name each other."""

T = TypeVar("T")


def backoff_s(failures: int) -> float:
    """Seconds to wait after the n-th failure in a row: 20 to 250 ms, doubling; 500 ms from the tenth; half random."""
    last_s = _BACKOFF_SOON_S if failures < _SOON_FAILURES else _BACKOFF_LAST_S
    limit: float = min(last_s, _BACKOFF_FIRST_S * 2 ** min(failures, _SOON_FAILURES))
    return limit * random.uniform(0.5, 1.0)


def split_endpoints(endpoint: str | Iterable[str]) -> tuple[str, ...]:
    """The addresses of 'host:port,host:port' or of several of them. Raises ValueError when one has no port."""
    texts = endpoint.split(",") if isinstance(endpoint, str) else list(endpoint)
    endpoints = tuple(text.strip() for text in texts if text.strip())
    if not endpoints:
        raise ValueError("no endpoint: give host:port")
    for text in endpoints:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"endpoint {text!r} is not host:port")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"endpoint {text!r}: an IPv6 address goes between brackets, as in [fd00::1]:7070")
    return endpoints


Retrying = dict[tuple[str, int], asyncio.Future[None]]
"""For each queue whose master does not serve: the one call that tries. Done when that call has an answer."""


class RetryGate:
    """One call's part in this: of all that were told so of a queue one tries again, the others wait for it a while."""

    def __init__(self, retrying: Retrying, queue: tuple[str, int]) -> None:
        self._retrying, self._queue = retrying, queue
        self._mine: asyncio.Future[None] | None = None

    async def wait_turn(self, deadline_s: float) -> None:
        """Returns when this call may be tried."""
        other = self._retrying.get(self._queue)
        if other is not None and other is not self._mine:
            await asyncio.wait([other], timeout=min(_RETRY_WAIT_S, max(0.0, deadline_s - time.monotonic())))

    def may_retry(self, error: DelayError) -> bool:
        """It has failed. False: another one tries again, and wait_turn() waits for that one."""
        if not _is_not_served(error):
            self.release()  # a master that says anything else is there
            return True
        if self._queue not in self._retrying:
            self._mine = self._retrying[self._queue] = asyncio.get_running_loop().create_future()
        return self._retrying[self._queue] is self._mine

    def release(self) -> None:
        """It has its answer, or has given up."""
        if self._mine is not None:
            del self._retrying[self._queue]
            self._mine.set_result(None)
            self._mine = None


def _is_not_served(error: DelayError) -> bool:
    """The endpoint does not serve the queue, whatever the call. An endpoint that is only slow may serve others."""
    if isinstance(error, NotMaster):
        return True
    return isinstance(error, Unavailable) and error.reason in ("", "NOT_SERVING") and error.code != "DEADLINE_EXCEEDED"


class Cluster:
    """A connection to the cluster. Belongs to the event loop in which it is first used."""

    def __init__(
        self,
        endpoint: str | Iterable[str] = DEFAULT_ENDPOINT,
        *,
        dial: Callable[[str], str] | None = None,
        **access: Unpack[Access],
    ) -> None:
        """`endpoint` is 'host:port' of any node, several of them, or a comma-separated text.

        dial: where to connect to for an endpoint, those that routes name included; for a cluster that is reached
        through a tunnel. Everything else, errors too, speaks of the endpoint. Raises ValueError: an endpoint or the
        credentials cannot be used.
        """
        self.endpoints = split_endpoints(endpoint)
        self.access = NodeAccess(ClientCredentials(**access), self.endpoints, dial)
        self.reachability = Reachability(self.endpoints, self._ping, self._refresh_routes_to)
        self.route_table = RouteTable(
            self.endpoints,
            self._query_routes,
            self.reachability.is_suspect,
            self.reachability.on_elected,
            self.access.explain,
        )
        self._connections: dict[str, Connections] = {}
        self._call_streams: dict[str, CallMultiplexer] = {}
        self._retrying: Retrying = {}
        self._without_call_stream: set[str] = set()
        # Endpoints of nodes of an older release, which know no CallStream.
        self.closed = False
        """close() was called."""

    async def close(self) -> None:
        """Closes all channels; calls in progress fail."""
        self.closed = True
        self.route_table.close()
        self.reachability.close()
        for call_stream in self._call_streams.values():
            call_stream.close()
        connections, self._connections = list(self._connections.values()), {}
        for one in connections:
            await one.close()

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------ routes

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route, cached. Raises NotFound or Unreachable."""
        return self.route_table.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """The topic's route, asked anew. Raises NotFound or Unreachable."""
        for route in await self.route_table.query(topic):
            if route.topic == topic:
                return route
        raise unknown(topic)

    async def topics(self) -> tuple[TopicRoute, ...]:
        """All topics, asked anew. Raises Unreachable."""
        return await self.route_table.query("")

    async def address(self, topic: str, queue: int) -> str:
        """Where to send a call for this queue. Raises NotFound, Unavailable (no master) or Unreachable."""
        route = await self.route(topic)
        if queue >= len(route.queues):
            route = await self.refresh(topic)
        if queue >= len(route.queues):
            message = f"topic {topic!r} has {len(route.queues)} queues, no queue {queue}"
            raise NotFound(message, code="NOT_FOUND", reason="UNKNOWN_QUEUE")
        endpoint = route.queues[queue].endpoint
        if not endpoint:
            raise Unavailable(f"{topic}-{queue} has no master now", code="UNAVAILABLE", reason="NOT_SERVING")
        return self.reachability.resolve(endpoint)

    def master(self, topic: str, queue: int) -> str:
        """The address of a queue's master, as far as is known; empty when it is not."""
        route = self.route_table.at(topic, queue)
        return route.endpoint if route is not None else ""

    def master_changed(self, topic: str, queue: int, since: QueueRoute | None) -> bool:
        """The queue has another master than it had, or another term of the same one."""
        route = self.route_table.at(topic, queue)
        if route is None or since is None or not route.endpoint:
            return False
        return (route.uid, route.epoch, route.endpoint) != (since.uid, since.epoch, since.endpoint)

    def has_direct_route(self, topic: str, queue: int, endpoint: str) -> bool:
        """A queue's master can be reached directly, and `endpoint` is not it."""
        master = self.master(topic, queue)
        return master not in ("", endpoint) and not self.reachability.is_unreachable(master)

    def _refresh_routes_to(self, endpoint: str) -> None:
        for topic in self.route_table.led_by(endpoint):
            self.route_table.refresh_soon(topic)

    async def _query_routes(self, endpoint: str, topic: str) -> delay_pb2.QueryRouteResponse:
        request = delay_pb2.QueryRouteRequest(topic=topic)
        decode = delay_pb2.QueryRouteResponse.FromString
        return await self.call_at(endpoint, "QueryRoute", request, decode, _ROUTE_TIMEOUT_S)

    # ------------------------------------------------------------------------------------------- calls

    def connection(self, endpoint: str) -> Connection:
        """A connection to an endpoint with room for a call, made at first use."""
        connections = self._connections.get(endpoint)
        if connections is None:
            if self.closed:
                raise Closed("cluster connection")
            connections = self._connections[endpoint] = self.access.connections(endpoint, CHANNEL_OPTIONS)
        return connections.pick()

    def stream(self, endpoint: str, method: str) -> Any:
        """Opens a bidirectional stream of raw bytes."""
        connection = self.connection(endpoint)
        call = connection.channel.stream_stream(SERVICE + method)(metadata=self.access.metadata())
        connection.calls += 1
        call.add_done_callback(connection.ended)
        return call

    async def unary(self, endpoint: str, path: str, request: bytes, timeout_s: float) -> bytes:
        """One unary call of raw bytes. Raises grpc.RpcError, grpc.aio.UsageError or Closed."""
        connection = self.connection(endpoint)
        connection.calls += 1
        try:
            answer: bytes = await connection.unary(path)(request, timeout=timeout_s, metadata=self.access.metadata())
            return answer
        finally:
            connection.ended()

    def _call_stream(self, endpoint: str) -> CallMultiplexer:
        call_stream = self._call_streams.get(endpoint)
        if call_stream is None or call_stream.ended is not None:
            call_stream = self._call_streams[endpoint] = CallMultiplexer(
                endpoint, lambda: self.stream(endpoint, "CallStream")
            )
        return call_stream

    async def _ping(self, endpoint: str, seconds: float) -> bool:
        """A node answers, whatever it says."""
        try:
            await self.unary(endpoint, _HEALTH, b"", seconds)
        except grpc.RpcError as error:
            return error.code() not in _NO_SIGN_OF_LIFE
        except (grpc.aio.UsageError, Closed):
            return False
        return True

    async def call_at(
        self, endpoint: str, method: str, request: Any, decode: Callable[[bytes], T], timeout_s: float
    ) -> T:
        """One call to one endpoint. Raises DelayError."""
        data = request.SerializeToString()
        if method in STREAMED_METHODS and len(data) <= MAX_REQUEST_BYTES and endpoint not in self._without_call_stream:
            try:
                return decode(await self._call_stream(endpoint).call(method, data, timeout_s))
            except DelayError as error:
                if error.code != "UNIMPLEMENTED":
                    self.reachability.record_failure(endpoint, error)
                    raise self.access.judged(error) from None
                self._without_call_stream.add(endpoint)
            except grpc.aio.UsageError:
                raise Closed("cluster connection") from None
        try:
            answer = decode(await self.unary(endpoint, SERVICE + method, data, timeout_s))
            self.access.taken()
            return answer
        except grpc.RpcError as error:
            typed = self.access.judged(from_rpc(error))
            self.reachability.record_failure(endpoint, typed)
            raise typed from None
        except grpc.aio.UsageError:
            # The channel was closed under the call.
            raise Closed("cluster connection") from None
        except asyncio.CancelledError:
            # Closing a channel cancels its calls, not the task that awaits them.
            task = asyncio.current_task()
            if self.closed and task is not None and not task.cancelling():
                raise Closed("cluster connection") from None
            raise

    async def call(
        self,
        method: str,
        topic: str,
        queue: int,
        request: Any,
        decode: Callable[[bytes], T],
        *,
        attempt_s: float = 10.0,
        timeout_s: float = 30.0,
        on_doubt: Callable[[], None] | None = None,
    ) -> T:
        """A unary call to a queue's master, tried again while the error says so, for `timeout_s`. Raises DelayError.

        Only for calls that may be done twice. `on_doubt` is called when one was tried and may have been done, before
        it is tried again.
        """
        deadline = time.monotonic() + timeout_s
        failures, gate = 0, RetryGate(self._retrying, (topic, queue))
        try:
            while True:
                endpoint = ""
                try:
                    await gate.wait_turn(deadline)
                    endpoint = await self.address(topic, queue)
                    left = max(0.1, min(attempt_s, deadline - time.monotonic()))
                    call = self.call_at(endpoint, method, request, decode, left)
                    return await self._watched(topic, queue, endpoint, call)
                except DelayError as error:
                    left = deadline - time.monotonic()
                    if not error.retryable or left <= (error.retry_after_ms / 1000 if isinstance(error, Busy) else 0.0):
                        raise
                    if error.in_doubt and endpoint and on_doubt is not None:
                        on_doubt()
                    if gate.may_retry(error):
                        await self.after_failure(topic, queue, error, failures, endpoint, max_wait_s=left)
                    failures += 1
        finally:
            gate.release()

    async def _watched(self, topic: str, queue: int, endpoint: str, call: Coroutine[Any, Any, T]) -> T:
        """The call's result; it is given up when it takes long and the queue has another master by then."""
        since = self.route_table.at(topic, queue)
        task = asyncio.ensure_future(call)
        wait_s = PATIENCE_S
        try:
            while not (await asyncio.wait({task}, timeout=wait_s))[0]:
                if self.master_changed(topic, queue, since):
                    raise Unavailable(f"{endpoint} is not the master any more", code="ABORTED", reason="NOT_SERVING")
                wait_s = RECHECK_S
                self.route_table.refresh_soon(topic)
            result = task.result()
        finally:
            task.cancel()
        self.reachability.record_success(endpoint, since.endpoint if since is not None else "")
        return result

    async def after_failure(
        self,
        topic: str,
        queue: int,
        error: DelayError,
        failures: int,
        endpoint: str = "",
        *,
        max_wait_s: float = float("inf"),
    ) -> None:
        """Returns when a call that failed `failures` times before may be tried again: after its backoff, or as soon
        as the queue has another master. `endpoint`: where it was sent. Raises the error when another try has no use.
        """
        if not error.retryable:
            raise error
        if endpoint:
            self.reachability.record_failure(endpoint, error, self.master(topic, queue))
        if isinstance(error, NotMaster) and self.route_table.learn(topic, queue, error) and failures < _MAX_REDIRECTS:
            self.route_table.refresh_soon(topic)  # its other queues may have moved as well
            return
        wait_s = min(backoff_s(failures), max_wait_s)
        if isinstance(error, Busy):  # it is the master that says so
            await asyncio.sleep(max(wait_s, error.retry_after_ms / 1000))
            return
        until_s = time.monotonic() + wait_s
        since = self.route_table.at(topic, queue)
        await self.route_table.refresh(topic)
        left_s = until_s - time.monotonic()
        if left_s > 0 and self.route_table.at(topic, queue) == since:
            await self.route_table.wait_changed(topic, queue, left_s)


class ClusterUser:
    """Calls a cluster through a connection that it was given, or through one of its own, which it closes."""

    def __init__(self, endpoint: str | Iterable[str] | Cluster, **access: Unpack[Access]) -> None:
        """access: of a connection of its own."""
        if isinstance(endpoint, Cluster) and access:
            raise ValueError(f"{', '.join(access)}: the connection that is given has its own")
        self.cluster = endpoint if isinstance(endpoint, Cluster) else Cluster(endpoint, **access)
        self._owns_cluster = self.cluster is not endpoint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection, unless it was given."""
        if self._owns_cluster:
            await self.cluster.close()
