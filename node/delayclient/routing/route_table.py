"""The known routes, queue to endpoint: asked for once, for all callers.

A thousand shards may fail over at once. So there is one question at a time for all queues of a topic, quick ones take
a fifth of the time at most, and one that is not answered at once is put to the next node as well. An answer never
takes a queue back to an older term: a node that is cut off goes on telling of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from delayapi.proto.delay.v1 import delay_pb2

from delayclient.errors import Closed, DelayError, NotFound, NotMaster, TlsFailed, Unreachable

_HEDGE_S: Final = 0.3
"""A node that has not answered by then is most likely frozen: the next one is asked too."""
_AGAIN_S: Final = 0.1
_SHARE: Final = 4.0
"""After a question there is none for so many times its duration ..."""
_MAX_PAUSE_S: Final = 0.5
"""... but for no longer than this: a slow answer may be older than the new master."""
_FIRST_CONTACT_S: Final = 2.0
"""For so long a cluster is asked that has never answered: a Service leads to a pod a second after the pod is ready."""
_FIRST_CONTACT_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class QueueRoute:
    """One queue's shard: its uid, epoch, master node and the master's address (empty while there is none).

    `readable`: the addresses where it can be read by offset; empty when only at the master.
    """

    queue: int
    uid: int
    epoch: int
    node: str
    endpoint: str
    readable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's limits and its queues, ordered by queue."""

    topic: str
    max_delay_ms: int
    max_attempts: int
    queues: tuple[QueueRoute, ...]


QueryNode = Callable[[str, str], Awaitable[delay_pb2.QueryRouteResponse]]
"""Asks an endpoint for a topic's route; raises DelayError."""
Changed = Callable[[list[int]], None]
"""Is told which queues of a topic have another master, or another term."""
Explain = Callable[[str], Awaitable[TlsFailed | None]]
"""Looks why an endpoint could not be connected to; None: TLS is not the reason."""


class RouteTable:
    """The routes of one connection. `doubted(endpoint)`: it is asked last. `elected(endpoint)`: a term began there."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        query_node: QueryNode,
        is_suspect: Callable[[str], bool],
        on_elected: Callable[[str], None],
        explain: Explain,
    ) -> None:
        self._endpoints = endpoints
        self._query_node = query_node
        self._is_suspect = is_suspect
        self._on_elected = on_elected
        self._explain = explain
        self._routes: dict[str, TopicRoute] = {}
        self._queries: dict[str, asyncio.Task[tuple[TopicRoute, ...]]] = {}
        self._not_before: dict[str, float] = {}
        self._listeners: dict[str, list[Changed]] = {}
        self._waiting: dict[tuple[str, int], set[asyncio.Future[None]]] = {}
        self._last_good = endpoints[0]
        self._answered = False  # some endpoint has, at some time
        self._rotation = 0
        self._closed = False

    def close(self) -> None:
        """Cancels the lookups under way; their callers look again."""
        self._closed = True
        for task in list(self._queries.values()):
            task.cancel()
        for topic, queue in list(self._waiting):
            self._wake(topic, queue)

    # ------------------------------------------------------------------------------------------- known

    def get(self, topic: str) -> TopicRoute | None:
        """The topic's route, if it is known."""
        return self._routes.get(topic)

    def at(self, topic: str, queue: int) -> QueueRoute | None:
        """A queue's route, if it is known."""
        route = self._routes.get(topic)
        return route.queues[queue] if route is not None and queue < len(route.queues) else None

    def led_by(self, endpoint: str) -> list[str]:
        """The topics that have a queue whose master is there."""
        return [
            topic for topic, route in self._routes.items() if any(queue.endpoint == endpoint for queue in route.queues)
        ]

    def listen(self, topic: str, changed: Changed) -> Callable[[], None]:
        """Calls `changed` whenever queues of the topic have another route. Returns what ends that."""
        listeners = self._listeners.setdefault(topic, [])
        listeners.append(changed)
        return lambda: listeners.remove(changed)

    async def wait_changed(self, topic: str, queue: int, max_wait_s: float) -> None:
        """Waits until the queue has another route, at most `max_wait_s` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault((topic, queue), set())
        waiting.add(future)
        timer = loop.call_later(max_wait_s, _done, future)
        try:
            await future
        finally:
            timer.cancel()
            waiting.discard(future)
            if not waiting and self._waiting.get((topic, queue)) is waiting:
                del self._waiting[topic, queue]

    def learn(self, topic: str, queue: int, error: NotMaster) -> bool:
        """Takes over the master that a NOT_MASTER answer names; false when it names none or a known one."""
        route, old = self._routes.get(topic), self.at(topic, queue)
        endpoint = error.metadata.get("endpoint", "")
        epoch = error.metadata.get("epoch", "")
        if route is None or old is None or not endpoint:
            return False
        new_epoch = int(epoch) if epoch.isdecimal() else old.epoch
        if endpoint == old.endpoint or new_epoch < old.epoch:
            return False
        new = replace(old, endpoint=endpoint, epoch=new_epoch, node="")
        self._merge(replace(route, queues=(*route.queues[:queue], new, *route.queues[queue + 1 :])))
        return True

    # --------------------------------------------------------------------------------------------- ask

    async def query(self, topic: str) -> tuple[TopicRoute, ...]:
        """The routes of a topic ("": of all), asked anew; none when there is no such topic. Raises DelayError."""
        return await asyncio.shield(self._queries.get(topic) or self._start(topic))

    async def refresh(self, topic: str) -> None:
        """Asks anew, unless that was done a moment ago, of another node each time. Raises NotFound.

        Nothing is said of a cluster that cannot be asked now.
        """
        if topic not in self._queries and self._loop().time() < self._not_before.get(topic, 0.0):
            return
        self._rotation += 1
        try:
            await self.query(topic)
        except DelayError as error:
            if not error.retryable:
                raise
            return
        if topic and topic not in self._routes:
            raise unknown(topic)

    def refresh_soon(self, topic: str) -> None:
        """Starts look() and does not wait for it."""
        if not self._closed and topic not in self._queries and self._loop().time() >= self._not_before.get(topic, 0.0):
            self._rotation += 1
            self._start(topic)

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _start(self, topic: str) -> asyncio.Task[tuple[TopicRoute, ...]]:
        if self._closed:
            raise Closed("cluster connection")
        started_s = self._loop().time()

        def ended(task: asyncio.Task[tuple[TopicRoute, ...]]) -> None:
            if self._queries.get(topic) is task:
                del self._queries[topic]
            now_s = task.get_loop().time()
            self._not_before[topic] = now_s + min(max(_AGAIN_S, _SHARE * (now_s - started_s)), _MAX_PAUSE_S)
            if not task.cancelled():
                task.exception()  # read, since perhaps no caller waits for it

        task = self._queries[topic] = self._loop().create_task(self._query(topic))
        task.add_done_callback(ended)
        return task

    def _order(self) -> list[str]:
        known = {queue.endpoint for route in self._routes.values() for queue in route.queues if queue.endpoint}
        endpoints = list(dict.fromkeys((self._last_good, *self._endpoints, *sorted(known))))
        turn = self._rotation % len(endpoints)
        return sorted(endpoints[turn:] + endpoints[:turn], key=self._is_suspect)

    async def _query(self, topic: str) -> tuple[TopicRoute, ...]:
        until_s = self._loop().time() + _FIRST_CONTACT_S
        while True:
            try:
                return await self._ask_all(topic)
            except TlsFailed:
                raise
            except Unreachable:
                if self._answered or self._loop().time() + _FIRST_CONTACT_AGAIN_S > until_s:
                    raise
            await asyncio.sleep(_FIRST_CONTACT_AGAIN_S)

    async def _ask_all(self, topic: str) -> tuple[TopicRoute, ...]:
        """Asks the endpoints in turn until one answers. Raises Unreachable, or what is not worth asking again."""
        failures: dict[str, DelayError] = {}
        left = self._order()
        asked: dict[asyncio.Task[delay_pb2.QueryRouteResponse], str] = {}
        try:
            while left or asked:
                if left:
                    endpoint = left.pop(0)
                    asked[asyncio.ensure_future(self._query_node(endpoint, topic))] = endpoint
                done, _ = await asyncio.wait(
                    asked, timeout=_HEDGE_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    endpoint = asked.pop(task)
                    try:
                        answer = task.result()
                    except NotFound:
                        self._answered = True
                        self._routes.pop(topic, None)
                        return ()
                    except DelayError as error:
                        if not error.retryable:
                            raise
                        failures[endpoint] = error
                        continue
                    self._last_good, self._answered = endpoint, True
                    return tuple(self._merge(_topic_route(route)) for route in answer.topics)
        finally:
            for task in asked:
                task.cancel()
        raise await self._unreachable(failures)

    async def _unreachable(self, failures: Mapping[str, DelayError]) -> Unreachable:
        """TlsFailed where nothing but TLS is in the way, and no endpoint has ever answered."""
        unconnected = [at for at, error in failures.items() if error.code == "UNAVAILABLE" and not error.reason]
        looked = await asyncio.gather(*(self._explain(endpoint) for endpoint in unconnected))
        found = {endpoint: why for endpoint, why in zip(unconnected, looked, strict=True) if why is not None}
        if not self._answered and found and len(found) == len(failures):
            return next(iter(found.values()))
        told = (f"{at}: {error.message}" if at not in found else found[at].message for at, error in failures.items())
        return Unreachable(f"cannot reach the cluster: {'; '.join(told)}", code="UNAVAILABLE")

    # -------------------------------------------------------------------------------------------- take

    def _merge(self, new: TopicRoute) -> TopicRoute:
        """Merges what was told with what is known, and tells who should hear of it."""
        old = self._routes.get(new.topic)
        if old is None:
            self._routes[new.topic] = new
            return new
        merged = replace(new, queues=tuple(_newer(old.queues, new.queues)))
        self._routes[new.topic] = merged
        if merged.queues != old.queues:
            pairs = [pair for pair in zip(old.queues, merged.queues, strict=False) if pair[0] != pair[1]]
            for endpoint in {after.endpoint: None for before, after in pairs if after.epoch > before.epoch}:
                self._on_elected(endpoint)
            changed = [after.queue for _, after in pairs]
            for listener in list(self._listeners.get(new.topic, ())):
                listener(changed)
            for queue in changed:
                self._wake(new.topic, queue)
        return merged

    def _wake(self, topic: str, queue: int) -> None:
        for future in self._waiting.pop((topic, queue), ()):
            _done(future)


def unknown(topic: str) -> NotFound:
    return NotFound(f"unknown topic {topic!r}", code="NOT_FOUND", reason="UNKNOWN_TOPIC")


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _newer(old: tuple[QueueRoute, ...], new: tuple[QueueRoute, ...]) -> Iterable[QueueRoute]:
    for before, after in zip(old, new, strict=False):
        yield before if before.uid == after.uid and after.epoch < before.epoch else after
    if len(new) >= len(old):
        yield from new[len(old) :]
    elif new and new[0].uid == old[0].uid:
        yield from old[len(new) :]  # told by a node that has not heard of the later ones; a topic never shrinks


def _topic_route(route: delay_pb2.TopicRoute) -> TopicRoute:
    queues = (QueueRoute(q.queue, q.uid, q.epoch, q.node, q.endpoint, tuple(q.readable)) for q in route.queues)
    return TopicRoute(
        route.topic, route.max_delay_ms, route.max_attempts, tuple(sorted(queues, key=lambda queue: queue.queue))
    )
