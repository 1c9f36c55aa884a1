"""Looks at what is pending and changes it: cancel, reschedule, list, groups, dead letters and schedules."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Unpack

import numpy as np
from delayapi.codec import decode_message_batch
from delayapi.durations import duration_ms, instant_ms
from delayapi.handle import Handle
from delayapi.proto.delay.v1 import delay_pb2

from delayclient.admin.changes import HandleChanges, together
from delayclient.admin.schedules import ScheduleAdmin
from delayclient.admin.views import (
    AccessView,
    CancelledByKey,
    DeletedGroup,
    Forecast,
    GroupQueue,
    NodeView,
    Outcome,
    Pending,
    PendingPage,
    Rescheduled,
    Wheel,
    column,
    forecast_of,
    group_of,
    node_of,
    pending_rows,
    wheel_of,
)
from delayclient.consumer.received import NoAcks, ReceivedBatch, ReceivedMessage
from delayclient.errors import DelayError, NotFound, Unavailable
from delayclient.routing.access import Access
from delayclient.routing.routing import DEFAULT_ENDPOINT, Cluster, ClusterUser, TopicRoute

_MAX_MS: Final = (1 << 63) - 1
_NO_ACKS: Final = NoAcks("a dead letter cannot be acknowledged: redrive or drop it")
_NODE_S: Final = 3.0
"""How long a node is asked for while there are others."""


class Admin(ClusterUser):
    """Administration over one cluster. An async context manager; belongs to one event loop."""

    def __init__(
        self,
        endpoint: str | Iterable[str] | Cluster = DEFAULT_ENDPOINT,
        *,
        timeout: int | str = "30s",
        **access: Unpack[Access],
    ) -> None:
        """`timeout` bounds each call, its retries included; it should outlast a failover, some 5 s."""
        super().__init__(endpoint, **access)
        self._timeout_s = duration_ms(timeout) / 1000
        self.schedules = ScheduleAdmin(self.cluster, self._timeout_s)

    async def route(self, topic: str) -> TopicRoute:
        """A topic's limits, queues and masters, asked anew."""
        return await self.cluster.refresh(topic)

    async def topics(self) -> tuple[TopicRoute, ...]:
        """All topics."""
        return await self.cluster.topics()

    # ------------------------------------------------------------------------------ cancel, reschedule

    async def cancel(self, handles: Sequence[str | Handle]) -> list[Outcome]:
        """Cancels messages; the outcomes are in the handles' order. Raises BadHandle before anything is cancelled.

        CANCELLED and ALREADY_CANCELLED both say that the message is never delivered. When an answer was lost, in a
        failover most likely, and the call was made again, what is cancelled by then counts as CANCELLED: by this call,
        though another one may have been first.
        """
        return await HandleChanges(self.cluster, handles, self._timeout_s).cancel()

    async def cancel_by_key(
        self, topic: str, key: str, from_: int | str | datetime = 0, to: int | str | datetime = _MAX_MS
    ) -> list[CancelledByKey]:
        """Cancels every pending message with this key and from_ <= due < to.

        All of them are cancelled when this returns. When an answer was lost and the call made again, those that the
        lost one had cancelled are not in the list.
        """
        if not key:
            raise ValueError("the key must not be empty")
        route = await self.cluster.route(topic)
        found: list[CancelledByKey] = []
        for queue in _queues_of(route, key):
            request = delay_pb2.CancelRequest(
                topic=topic, queue=queue, key=key, from_ms=instant_ms(from_), to_ms=instant_ms(to)
            )
            answer = await self._call("Cancel", request, delay_pb2.CancelResponse.FromString)
            n = len(answer.outcome)
            due, seq = column(answer.due, "<i8", n), column(answer.seq, "<i8", n)
            for outcome, due_ms, number in zip(answer.outcome, due.tolist(), seq.tolist(), strict=True):
                handle = Handle(topic, queue, route.queues[queue].uid, due_ms, number)
                found.append(CancelledByKey(handle.encode(), due_ms, Outcome(outcome)))
        return found

    async def reschedule(
        self,
        handles: Sequence[str | Handle],
        *,
        at: int | str | datetime | None = None,
        delay: int | str | timedelta | None = None,
    ) -> list[Rescheduled]:
        """Gives messages a new time, `at` or `delay` from now by the master's clock. The old handles are dead then.

        When an answer was lost and the call made again, RESCHEDULED may be this call's own doing: with `at` it is
        looked up, and MOVED if the message is pending at that very time. With `delay` the new handle is lost then:
        list_pending() finds it.
        """
        if (at is None) == (delay is None):
            raise ValueError("give at or delay")
        changing = HandleChanges(self.cluster, handles, self._timeout_s)
        if at is not None:
            return await changing.reschedule(instant_ms(at), relative=False)
        return await changing.reschedule(duration_ms(delay), relative=True)  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------------------- views

    async def list_pending(
        self,
        topic: str,
        *,
        queue: int | None = None,
        from_: int | str | datetime = 0,
        to: int | str | datetime = 0,
        key: str = "",
        with_records: bool = False,
        page: int = 1000,
    ) -> AsyncIterator[Pending]:
        """Messages not yet released with from_ <= due < to (0: no bound), queue by queue, by (due, seq). key: only
        those with this key, which come with their records."""
        route = await self.cluster.route(topic)
        from_ms, to_ms = instant_ms(from_), instant_ms(to)
        for number in _queues_of(route, key) if queue is None else [queue]:
            after, more = (0, 0), True
            while more:
                found = await self.pending_page(
                    topic, number, from_ms, to_ms, after=after, key=key, with_records=with_records, limit=page
                )
                for row in found.rows:
                    yield row
                after, more = found.last, found.more

    async def pending_page(
        self,
        topic: str,
        queue: int,
        from_ms: int = 0,
        to_ms: int = 0,
        *,
        after: tuple[int, int] = (0, 0),
        key: str = "",
        with_records: bool = False,
        limit: int = 1000,
    ) -> PendingPage:
        """The next messages of one queue behind `after`, a (due_ms, seq), as list_pending() has them."""
        request = delay_pb2.ListPendingRequest(
            topic=topic,
            queue=queue,
            from_ms=from_ms,
            to_ms=to_ms,
            after_due=after[0],
            after_seq=after[1],
            limit=limit,
            with_records=with_records or bool(key),
            key=key,
        )
        batch = await self._call("ListPending", request, delay_pb2.PendingBatch.FromString)
        rows = pending_rows(topic, queue, batch)
        last = (rows[-1].due_ms, rows[-1].seq) if rows else after
        if key:  # a node of an older release answers with all
            rows = [row for row in rows if row.shown().key == key]
        return PendingPage(rows, batch.more and last != after, last)

    async def wheel(
        self,
        topic: str = "",
        *,
        queue: int | None = None,
        from_: int | str | datetime = 0,
        to: int | str | datetime = 0,
    ) -> list[Wheel]:
        """The slot counts of a topic's shards, or of all."""
        routes = [await self.cluster.route(topic)] if topic else await self.cluster.topics()
        shards = [(route.topic, q.queue) for route in routes for q in route.queues if queue in (None, q.queue)]
        from_ms, to_ms = instant_ms(from_), instant_ms(to)

        async def one(shard: tuple[str, int]) -> list[Wheel]:
            request = delay_pb2.GetWheelRequest(topic=shard[0], queue=shard[1], from_ms=from_ms, to_ms=to_ms)
            answer = await self._call("GetWheel", request, delay_pb2.GetWheelResponse.FromString)
            return [wheel_of(wheel, answer.now_ms) for wheel in answer.shards]

        return [wheel for wheels in await together(map(one, shards)) for wheel in wheels]

    async def forecast(
        self, topic: str = "", group: str = "", *, bucket: int | str | timedelta = "1m", buckets: int = 60
    ) -> list[Forecast]:
        """What a topic, or each of them, has coming, and what its groups, or this one, have to do already.

        Raises Unavailable where a queue has no master that answers: no number is of less than all queues.
        """
        request = delay_pb2.ForecastRequest(topic=topic, group=group, bucket_ms=duration_ms(bucket), buckets=buckets)
        answer = await self._ask_node("Forecast", request, delay_pb2.ForecastResponse.FromString)
        return [forecast_of(one, answer) for one in answer.topics]

    # ------------------------------------------------------------------------------------------ groups

    async def groups(self, topic: str, group: str = "") -> list[GroupQueue]:
        """The state of a group, or of all groups, on each queue. A queue that the group never used has no row."""

        async def one(queue: int) -> list[GroupQueue]:
            request = delay_pb2.DescribeGroupRequest(topic=topic, queue=queue, group=group)
            answer = await self._ask_group("DescribeGroup", request, delay_pb2.DescribeGroupResponse.FromString)
            return [] if answer is None else [group_of(topic, queue, it, answer.now_ms) for it in answer.groups]

        return [state for states in await self._each_queue(topic, one) for state in states]

    async def describe_group(self, topic: str, group: str) -> list[GroupQueue]:
        """The state of a group on each queue. Raises NotFound when no queue knows it."""
        states = await self.groups(topic, group)
        if not states:
            raise NotFound(f"topic {topic!r} has no group {group!r}", code="NOT_FOUND", reason="UNKNOWN_GROUP")
        return states

    async def delete_group(self, topic: str, group: str) -> DeletedGroup:
        """Deletes a group with its progress and dead letters, on each queue that knows it.

        All queues are tried; the first failure is raised then, and to call again does the rest. A queue whose answer
        was lost, and that does not know the group when asked again, is not counted.
        """
        failures: list[DelayError] = []

        async def one(queue: int) -> DeletedGroup:
            request = delay_pb2.DeleteGroupRequest(topic=topic, queue=queue, group=group)
            try:
                answer = await self._ask_group("DeleteGroup", request, delay_pb2.DeleteGroupResponse.FromString)
            except DelayError as error:
                failures.append(error)
                answer = None
            return DeletedGroup(0, 0, 0) if answer is None else DeletedGroup(1, answer.unfinished, answer.dead)

        found = await self._each_queue(topic, one)
        if failures:
            raise failures[0]
        return DeletedGroup(sum(d.queues for d in found), sum(d.unfinished for d in found), sum(d.dead for d in found))

    # ------------------------------------------------------------------------------------ dead letters

    async def dead_letters(
        self, topic: str, group: str, *, queue: int | None = None, page: int = 1000
    ) -> AsyncIterator[ReceivedMessage]:
        """A group's dead letters, queue by queue, by offset. They cannot be acknowledged: redrive or drop them."""
        route = await self.cluster.route(topic)
        for number in [q.queue for q in route.queues] if queue is None else [queue]:
            after = -1
            while True:
                request = delay_pb2.ListDeadLettersRequest(
                    topic=topic, queue=number, group=group, after_offset=after, limit=page
                )
                view = await self._ask_group("ListDeadLetters", request, decode_message_batch)
                if view is None:
                    break
                batch = ReceivedBatch(topic, number, view, 0, _NO_ACKS)
                for message in batch:
                    yield message
                if len(batch) == 0:
                    break
                after = int(batch.offset[-1])

    async def redrive(self, topic: str, group: str, *, queue: int | None = None, offsets: Sequence[int] = ()) -> int:
        """Puts dead letters back to work, their attempts start anew: all of the group, or some of one queue."""
        return await self._resolve(topic, group, delay_pb2.ResolveDeadLettersRequest.REDRIVE, queue, offsets)

    async def drop(self, topic: str, group: str, *, queue: int | None = None, offsets: Sequence[int] = ()) -> int:
        """Gives dead letters up: all of the group, or some of one queue. Returns how many."""
        return await self._resolve(topic, group, delay_pb2.ResolveDeadLettersRequest.DROP, queue, offsets)

    async def _resolve(self, topic: str, group: str, action: Any, queue: int | None, offsets: Sequence[int]) -> int:
        if len(offsets) and queue is None:
            raise ValueError("offsets belong to one queue: give it")

        async def one(number: int) -> int:
            request = delay_pb2.ResolveDeadLettersRequest(
                topic=topic, queue=number, group=group, action=action, offset=np.array(offsets, "<i8").tobytes()
            )
            decode = delay_pb2.ResolveDeadLettersResponse.FromString
            answer = await self._ask_group("ResolveDeadLetters", request, decode)
            return 0 if answer is None else int(answer.resolved)

        return sum([await one(queue)] if queue is not None else await self._each_queue(topic, one))

    # ------------------------------------------------------------------------------------------ nodes

    async def nodes(self) -> list[NodeView]:
        """All nodes that have registered, by name; of one that can't be asked, its `problem`."""
        state = await self._ask_node("DescribeNode", delay_pb2.DescribeNodeRequest(), delay_pb2.NodeState.FromString)

        async def one(name: str) -> NodeView:
            try:
                return await self.node(name)
            except DelayError as error:
                return NodeView(name, problem=str(error))

        return await together(one(name) for name in state.nodes)

    async def node(self, name: str) -> NodeView:
        """One node. Raises NotFound, Unavailable."""
        request = delay_pb2.DescribeNodeRequest(node=name)
        return node_of(await self._ask_node("DescribeNode", request, delay_pb2.NodeState.FromString))

    async def accept_clock(self, name: str, disbelieved_ms: int) -> int:
        """Let a node believe its wall clock, as far ahead as it said; returns by how many ms its time moved ahead."""
        request = delay_pb2.AcceptClockRequest(node=name, disbelieved_ms=disbelieved_ms)
        answer = await self._ask_node("AcceptClock", request, delay_pb2.AcceptClockResponse.FromString)
        return int(answer.moved_ms)

    async def can_i(
        self, operation: str, topic: str = "", group: str = "", *, principal: str = "", groups: Sequence[str] = ()
    ) -> AccessView:
        """Whether the caller may do an operation (Produce, Consume, Cancel, Browse, Describe, ManageGroup, Admin).

        principal: another one, with `groups` of its token; only who may Admin can ask about others (NotAllowed).
        Raises InvalidRequest where the question means nothing, such as an unknown operation.
        """
        request = delay_pb2.CheckAccessRequest(
            operation=operation, topic=topic, group=group, principal=principal, groups=groups
        )
        answer = await self._ask_node("CheckAccess", request, delay_pb2.CheckAccessResponse.FromString)
        return AccessView(answer.allowed, answer.why, answer.principal)

    async def _ask_node(self, method: str, request: Any, decode: Any) -> Any:
        """Any node that answers passes the question on. Raises TlsFailed where TLS is in the way of the last one."""
        failure: DelayError | None = None
        left = sorted(self.cluster.endpoints, key=self.cluster.reachability.is_suspect)
        for endpoint in left:
            seconds = self._timeout_s if endpoint is left[-1] else min(self._timeout_s, _NODE_S)
            try:
                return await self.cluster.call_at(endpoint, method, request, decode, seconds)
            except Unavailable as error:
                failure = error
        assert failure is not None
        unconnected = failure.code == "UNAVAILABLE" and not failure.reason
        why = await self.cluster.access.explain(left[-1]) if unconnected else None
        raise why or failure

    # ----------------------------------------------------------------------------------------- helpers

    async def _call(self, method: str, request: Any, decode: Any) -> Any:
        """Asks the master of the queue that the request names."""
        return await self.cluster.call(method, request.topic, request.queue, request, decode, timeout_s=self._timeout_s)

    async def _ask_group(self, method: str, request: Any, decode: Any) -> Any:
        """_call() for a group; None where the queue does not know it."""
        try:
            return await self._call(method, request, decode)
        except NotFound as error:
            if error.reason != "UNKNOWN_GROUP":
                raise
            return None

    async def _each_queue(self, topic: str, one: Any) -> list[Any]:
        route = await self.cluster.route(topic)
        return await together(one(queue.queue) for queue in route.queues)


def _queues_of(route: TopicRoute, key: str) -> list[int]:
    """All queues; with a key the one first that the producer put it in, unless their number has changed since."""
    first = zlib.crc32(key.encode()) % max(1, len(route.queues)) if key else 0
    return sorted((queue.queue for queue in route.queues), key=lambda queue: (queue != first, queue))
