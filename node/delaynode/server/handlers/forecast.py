"""Forecast: what the masters of all nodes have coming, and what groups have to do, as sums over each topic's queues.

Each node is asked once for all that it serves. A number that lacks a shard would let a scaler send workers home, so a
shard that nobody answers for fails the whole call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from delayapi.durations import format_ms
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import DAY_MS, MINUTE_MS
from delayregistry.model import MAX_TOPIC_CHARS
from delayregistry.security import MAX_GROUP_CHARS

from delaynode.limits.budget import Answers
from delaynode.metrics import GroupLoad
from delaynode.node.loads import arrivals, group_load
from delaynode.node.routes import RemoteMaster, RemoteNode
from delaynode.replica.hosts.master import ShardHost
from delaynode.server.dispatch import Dispatch, parse
from delaynode.server.edge import Body, Call
from delaynode.server.forward import ForwardedError
from delaynode.store.errors import Refused
from delaynode.store.queue.rate_limit import paced
from delaynode.store.types import I64

MIN_BUCKET_MS, MAX_BUCKET_MS = 1_000, DAY_MS
MAX_BUCKETS = 1_440
NODE_SECONDS = 2.0  # in which another node must answer
ANSWER_SECONDS = 0.2  # before the caller's deadline it is told who has not

NONE: I64 = np.empty(0, np.int64)
Shard: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Work:
    """What a group has to do. unseen: released messages kept on queues that do not know it yet."""

    load: GroupLoad = field(default_factory=GroupLoad)
    unseen: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.load + other.load, self.unseen + other.unseen)


@dataclass(slots=True)
class Sums:
    """Of some of a topic's queues. arrivals, firings: i64 (k,), see TopicForecast."""

    arrivals: I64
    firings: I64
    pending: int = 0
    queues: list[int] = field(default_factory=list)
    groups: dict[str, Work] = field(default_factory=lambda: defaultdict(Work))

    def add(self, other: Sums) -> None:
        self.arrivals += other.arrivals
        self.firings += other.firings
        self.pending += other.pending
        self.queues += other.queues
        for name, work in other.groups.items():
            self.groups[name] += work


class Forecasts:
    """One for a node."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch, self._node = dispatch, dispatch.node

    async def forecast(self, data: Body, call: Call, _: Answers) -> Body:
        body: Body = (await self.of(parse(pb.ForecastRequest, data), call)).SerializeToString()
        return body

    async def of(self, request: pb.ForecastRequest, call: Call) -> pb.ForecastResponse:
        """Raises Refused."""
        request = _checked(request)
        names = self._topics(request, call)
        here, there = self._find(names, own=request.own)
        now_ms = self._node.clock.now_ms()
        after_ms = request.bucket_ms * np.arange(1, request.buckets + 1, dtype=np.int64)
        found = await asyncio.gather(
            self._own(here, request.group, now_ms, after_ms),
            *(self._ask(node, shards, request, call) for node, shards in there.items()),
        )
        sums = {name: Sums(*np.zeros((2, request.buckets), np.int64)) for name in names}
        for name, part in (one for parts in found for one in parts):
            if name in sums:
                sums[name].add(part)
        if not request.own:
            self._check_whole(sums)
        answer = pb.ForecastResponse(now_ms=now_ms, bucket_ms=request.bucket_ms, buckets=request.buckets)
        answer.topics.extend(_encoded(name, one) for name, one in sums.items())
        return answer

    def _topics(self, request: pb.ForecastRequest, call: Call) -> list[str]:
        if not request.topic:
            return [name for name in self._node.routes.topics() if self._dispatch.allows("Forecast", call, name)]
        self._dispatch.check("Forecast", call, request.topic)
        self._node.routes.queues(request.topic)
        return [request.topic]

    def _find(self, names: Iterable[str], *, own: bool) -> tuple[list[ShardHost], Mapping[RemoteNode, list[Shard]]]:
        """The shards that are served here, and those that each other node serves. Raises Refused: one is not served."""
        here: list[ShardHost] = []
        there: dict[RemoteNode, list[Shard]] = defaultdict(list)
        if own:
            return [host for host in self._node.hosts() if host.serving and host.topic in names], there
        for name in names:
            for shard in self._node.routes.queues(name):
                found = self._node.finder.find(name, shard.spec.queue)
                if isinstance(found, RemoteMaster):
                    there[found.node].append((name, shard.spec.queue))
                else:
                    here.append(found)
        return here, there

    async def _own(self, hosts: Sequence[ShardHost], group: str, now_ms: int, after_ms: I64) -> list[tuple[str, Sums]]:
        found, log_ends = [], []
        for host in hosts:
            host.check_serving()
            shard, names = host.shard, [group] if group else sorted(host.shard.consumers.groups)
            sums = Sums(NONE, NONE, shard.index.pending, [shard.identity.queue])
            for name in names:
                known = name in shard.consumers.groups
                kept = max(0, shard.queue.visible - shard.queue.start)
                sums.groups[name] = Work(group_load(shard, name, now_ms)) if known else Work(unseen=kept)
            log_ends.append(shard.log_end)
            pending, sums.firings = await arrivals(host, now_ms + after_ms)
            sums.arrivals = pending + sums.firings
            if (rate := host.release_rate) is not None:
                sums.arrivals = paced(sums.arrivals, rate, after_ms)
            found.append((host.topic, sums))
        for host, log_end in zip(hosts, log_ends, strict=True):
            await host.wait_committed(log_end)
        return found

    async def _ask(
        self, node: RemoteNode, shards: Sequence[Shard], request: pb.ForecastRequest, call: Call
    ) -> list[tuple[str, Sums]]:
        asked = pb.ForecastRequest()
        asked.CopyFrom(request)
        asked.own = True
        left = call.time_remaining()
        seconds = NODE_SECONDS if left is None else min(NODE_SECONDS, max(left / 2, left - ANSWER_SECONDS))
        try:
            data = await self._dispatch.forwarder.call(
                node, "Forecast", asked.SerializeToString(), seconds, call.identity()
            )
        except ForwardedError as error:
            name, queue = shards[0]
            more = f" and {len(shards) - 1} more" if len(shards) > 1 else ""
            raise Refused(
                "NOT_SERVING",
                f"node {node.endpoint}, the master of shard {name}-{queue}{more}, gave no forecast: "
                f"{error.status().message or error.status().code.name}",
            ) from error
        return [(one.topic, _decoded(one)) for one in pb.ForecastResponse.FromString(data).topics]

    def _check_whole(self, sums: Mapping[str, Sums]) -> None:
        """Raises Refused where a queue is missing, or is there twice: its master has just changed."""
        for name, one in sums.items():
            wanted = [shard.spec.queue for shard in self._node.routes.queues(name)]
            if sorted(one.queues) != wanted:
                wrong = sorted(set(wanted) ^ set(one.queues)) or one.queues
                raise Refused("NOT_SERVING", f"shard {name}-{wrong[0]} has just changed its master: ask again")


def _checked(request: pb.ForecastRequest) -> pb.ForecastRequest:
    """With its defaults. Raises Refused."""
    request.bucket_ms, request.buckets = request.bucket_ms or MINUTE_MS, request.buckets or 60
    if not MIN_BUCKET_MS <= request.bucket_ms <= MAX_BUCKET_MS:
        raise Refused(
            "BAD_REQUEST",
            f"bucket_ms: {format_ms(request.bucket_ms)} is not within {format_ms(MIN_BUCKET_MS)} and "
            f"{format_ms(MAX_BUCKET_MS)}",
        )
    if request.buckets > MAX_BUCKETS:
        raise Refused("BAD_REQUEST", f"buckets: {request.buckets:,} asked for, the limit is {MAX_BUCKETS:,}")
    if request.group and not request.topic:
        raise Refused("BAD_REQUEST", "a group is one of a topic: name the topic too")
    for what, name, limit in (("topic", request.topic, MAX_TOPIC_CHARS), ("group", request.group, MAX_GROUP_CHARS)):
        if len(name) > limit:
            raise Refused("BAD_REQUEST", f"the {what} has {len(name):,} characters; the limit is {limit}")
    return request


def _encoded(topic: str, sums: Sums) -> pb.TopicForecast:
    return pb.TopicForecast(
        topic=topic, queues=sorted(sums.queues), arrivals=sums.arrivals.tobytes(), pending=sums.pending,
        firings=sums.firings.tobytes() if sums.firings.any() else b"",
        groups=[
            pb.GroupForecast(
                group=name, available=work.load.available, in_flight=work.load.in_flight,
                waiting_retry=work.load.waiting_retry, oldest_age_ms=round(work.load.oldest_seconds * 1000),
                unseen=work.unseen,
            )
            for name, work in sorted(sums.groups.items())
        ],
    )  # fmt: skip


def _decoded(topic: pb.TopicForecast) -> Sums:
    found = np.frombuffer(topic.arrivals, "<i8").copy()
    firings = np.frombuffer(topic.firings, "<i8") if topic.firings else np.zeros_like(found)
    sums = Sums(found, firings, topic.pending, list(topic.queues))
    for one in topic.groups:
        load = GroupLoad(one.available, one.in_flight, one.waiting_retry, one.oldest_age_ms / 1000)
        sums.groups[one.group] = Work(load, one.unseen)
    return sums
