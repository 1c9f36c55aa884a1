"""Who serves which queue: cached routes and the channels to the nodes, shared by producers, consumers and admins.

Calls go straight to a shard's master. A master that cannot be reached from here (a port-forward, an Ingress) is
asked through the endpoint that the user gave: any node forwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from delayclient.errors import Closed, DelayError, NotFound, NotMaster, Unavailable, Unreachable, from_rpc
from delayclient.proto.delay.v1 import delay_pb2

SERVICE: Final = "/delay.v1.DelayService/"
DEFAULT_ENDPOINT: Final = "127.0.0.1:7070"
MAX_MESSAGE_BYTES: Final = 64 << 20

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A frozen or cut-off node is noticed by pings, within 15 s; only while calls are open.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The defaults wait up to two minutes before a restarted node is tried again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Retries are decided here, where it is known what may be sent twice.
    ("grpc.enable_retries", 0),
    # A pod's HTTP_PROXY is for the outside world, not for the cluster's own service.
    ("grpc.enable_http_proxy", 0),
)

_ROUTE_TIMEOUT_S: Final = 3.0
_PROBE_TIMEOUT_S: Final = 2.0
_PROBE_LAST_S: Final = 10.0
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_LAST_S: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueRoute:
    """One queue's shard: its uid, epoch, master node and the master's address (empty while there is none)."""

    queue: int
    uid: int
    epoch: int
    node: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's limits and its queues, ordered by queue."""

    topic: str
    max_delay_ms: int
    max_attempts: int
    queues: tuple[QueueRoute, ...]


def backoff_s(failures: int) -> float:
    """Seconds to wait after the n-th failure in a row: doubling from 20 ms to 1 s, each half random."""
    limit: float = min(_BACKOFF_LAST_S, _BACKOFF_FIRST_S * 2 ** min(failures, 10))
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
    return endpoints


class Cluster:
    """A connection to the cluster. Belongs to the event loop in which it is first used."""

    def __init__(self, endpoint: str | Iterable[str] = DEFAULT_ENDPOINT) -> None:
        """`endpoint` is 'host:port' of any node, several of them, or a comma-separated text."""
        self.endpoints = split_endpoints(endpoint)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._methods: dict[tuple[str, str], Any] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._fetches: dict[str, asyncio.Task[tuple[TopicRoute, ...]]] = {}
        # Endpoints that could not be reached, each tried in the background until it can.
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._last_good = self.endpoints[0]
        self._closed = False

    async def close(self) -> None:
        """Closes all channels; calls in progress fail."""
        self._closed = True
        for task in (*self._fetches.values(), *self._probes.values()):
            task.cancel()
        channels, self._channels = list(self._channels.values()), {}
        self._methods.clear()
        for channel in channels:
            await channel.close()

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------ routes

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route, cached. Raises NotFound or Unreachable."""
        return self._routes.get(topic) or await self.refresh(topic)

    def cached_route(self, topic: str) -> TopicRoute | None:
        """The topic's route if it is known already."""
        return self._routes.get(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """The topic's route, asked anew. Raises NotFound or Unreachable."""
        for route in await self._fetch(topic):
            if route.topic == topic:
                return route
        self._routes.pop(topic, None)
        raise NotFound(f"unknown topic {topic!r}", code="NOT_FOUND", reason="UNKNOWN_TOPIC")

    async def topics(self) -> tuple[TopicRoute, ...]:
        """All topics, asked anew. Raises Unreachable."""
        return await self._fetch("")

    def learn(self, topic: str, queue: int, error: NotMaster) -> bool:
        """Takes over the master that a NOT_MASTER answer names; false when it names none or a known one."""
        route = self._routes.get(topic)
        endpoint = error.metadata.get("endpoint", "")
        epoch = error.metadata.get("epoch", "")
        if route is None or not endpoint or queue >= len(route.queues):
            return False
        old = route.queues[queue]
        new_epoch = int(epoch) if epoch.isdecimal() else old.epoch
        if endpoint == old.endpoint or new_epoch < old.epoch:
            return False
        changed = replace(old, endpoint=endpoint, epoch=new_epoch, node="")
        self._routes[topic] = replace(route, queues=(*route.queues[:queue], changed, *route.queues[queue + 1 :]))
        return True

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
        return self.reachable(endpoint)

    def reachable(self, endpoint: str) -> str:
        """The endpoint itself, or one of the user's while it cannot be reached: any node forwards."""
        if endpoint in self._probes:
            for other in self.endpoints:
                if other not in self._probes:
                    return other
        return endpoint

    def better(self, topic: str, queue: int, endpoint: str) -> bool:
        """A queue's master can be reached directly, and `endpoint` is not it."""
        route = self._routes.get(topic)
        master = route.queues[queue].endpoint if route is not None and queue < len(route.queues) else ""
        return master not in ("", endpoint) and master not in self._probes

    def failed(self, endpoint: str, error: DelayError) -> None:
        """Notes that a call to an endpoint failed; one that cannot be reached is avoided until it can."""
        if isinstance(error, Unavailable) and not error.reason and endpoint not in self._probes and not self._closed:
            self._probes[endpoint] = asyncio.create_task(self._probe(endpoint))

    async def _probe(self, endpoint: str) -> None:
        try:
            for failures in itertools.count():
                await asyncio.sleep(min(_PROBE_LAST_S, 0.1 * 2 ** min(failures, 10)))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.channel(endpoint).channel_ready(), _PROBE_TIMEOUT_S)
                    return
        finally:
            self._probes.pop(endpoint, None)

    async def _fetch(self, topic: str) -> tuple[TopicRoute, ...]:
        # One question at a time a topic: a failover makes every queue of it ask.
        task = self._fetches.get(topic)
        if task is None:
            if self._closed:
                raise Closed("cluster connection")
            task = asyncio.create_task(self._ask_for_route(topic))
            self._fetches[topic] = task
            task.add_done_callback(lambda _: self._fetches.pop(topic, None))
        return await asyncio.shield(task)

    async def _ask_for_route(self, topic: str) -> tuple[TopicRoute, ...]:
        known = {queue.endpoint for route in self._routes.values() for queue in route.queues if queue.endpoint}
        failures: list[str] = []
        request = delay_pb2.QueryRouteRequest(topic=topic)
        for endpoint in dict.fromkeys((self._last_good, *self.endpoints, *sorted(known))):
            try:
                answer = await self.call_at(
                    endpoint, "QueryRoute", request, delay_pb2.QueryRouteResponse.FromString, _ROUTE_TIMEOUT_S
                )
            except NotFound:
                self._routes.pop(topic, None)
                return ()
            except DelayError as error:
                if not error.retryable:
                    raise
                failures.append(f"{endpoint}: {error.message}")
                continue
            self._last_good = endpoint
            routes = tuple(_topic_route(route) for route in answer.topics)
            self._routes.update((route.topic, route) for route in routes)
            return routes
        raise Unreachable(f"cannot reach the cluster: {'; '.join(failures)}", code="UNAVAILABLE")

    # ------------------------------------------------------------------------------------------- calls

    def channel(self, endpoint: str) -> grpc.aio.Channel:
        """The channel to an endpoint, made at first use."""
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._closed:
                raise Closed("cluster connection")
            channel = self._channels[endpoint] = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        return channel

    @property
    def closed(self) -> bool:
        """close() was called."""
        return self._closed

    def stream(self, endpoint: str, method: str) -> Any:
        """Opens a bidirectional stream of raw bytes."""
        return self.channel(endpoint).stream_stream(SERVICE + method)()

    async def call_at(
        self, endpoint: str, method: str, request: Any, decode: Callable[[bytes], T], timeout_s: float
    ) -> T:
        """One unary call to one endpoint. Raises DelayError."""
        callable_ = self._methods.get((endpoint, method))
        if callable_ is None:
            callable_ = self._methods[endpoint, method] = self.channel(endpoint).unary_unary(SERVICE + method)
        try:
            return decode(await callable_(request.SerializeToString(), timeout=timeout_s))
        except grpc.RpcError as error:
            typed = from_rpc(error)
            self.failed(endpoint, typed)
            raise typed from None
        except grpc.aio.UsageError:
            # The channel was closed under the call.
            raise Closed("cluster connection") from None
        except asyncio.CancelledError:
            # Closing a channel cancels its calls, not the task that awaits them.
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
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
    ) -> T:
        """A unary call to a queue's master, tried again while the error says so, for `timeout_s`. Raises DelayError.

        Only for calls that may be done twice.
        """
        deadline = time.monotonic() + timeout_s
        failures = 0
        while True:
            try:
                endpoint = await self.address(topic, queue)
                left = max(0.1, min(attempt_s, deadline - time.monotonic()))
                return await self.call_at(endpoint, method, request, decode, left)
            except DelayError as error:
                wait = max(backoff_s(failures), getattr(error, "retry_after_ms", 0) / 1000)
                if not error.retryable or time.monotonic() + wait >= deadline:
                    raise
                await asyncio.sleep(wait)
                await self.after_failure(topic, queue, error)
                failures += 1

    async def after_failure(self, topic: str, queue: int, error: DelayError) -> None:
        """Brings the route up to date after a retryable error, as far as the cluster can be asked."""
        if isinstance(error, NotMaster) and self.learn(topic, queue, error):
            return
        try:
            await self.refresh(topic)
        except DelayError as failure:
            if not failure.retryable:
                raise


def _topic_route(route: delay_pb2.TopicRoute) -> TopicRoute:
    queues = (QueueRoute(q.queue, q.uid, q.epoch, q.node, q.endpoint) for q in route.queues)
    return TopicRoute(
        route.topic, route.max_delay_ms, route.max_attempts, tuple(sorted(queues, key=lambda queue: queue.queue))
    )
