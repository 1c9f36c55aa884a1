"""The groups of topics, asked queue by queue: a shard that does not answer hides itself, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from delayapi.proto.delay.v1 import delay_pb2
from delayclient.admin.admin import Admin
from delayclient.admin.views import GroupQueue, group_of
from delayclient.errors import DelayError
from delayclient.routing.route_table import TopicRoute

QUEUE_S: Final = 3.0
AT_ONCE: Final = 64
NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class GroupTotal:
    """A group of a topic, its queues together. oldest_ms: the age of its oldest message that is not done."""

    topic: str
    group: str
    tags: tuple[str, ...]
    queues: tuple[GroupQueue, ...]

    def total(self, field: str) -> int:
        return sum(getattr(queue, field) for queue in self.queues)

    @property
    def oldest_ms(self) -> int | None:
        return max((it.oldest_age_ms for it in self.queues if it.oldest_age_ms is not None), default=None)

    @property
    def full(self) -> tuple[int, ...]:
        """The queues that take no more dead letters."""
        return tuple(it.queue for it in self.queues if it.dead_full)


@dataclass(frozen=True, slots=True)
class ClusterGroups:
    """groups: those that lag most first. problems: sentences."""

    groups: tuple[GroupTotal, ...]
    problems: tuple[str, ...]


async def cluster_groups(admin: Admin, routes: Sequence[TopicRoute]) -> ClusterGroups:
    few = asyncio.Semaphore(AT_ONCE)
    queues = [(route.topic, queue.queue) for route in routes for queue in route.queues]
    answers = await asyncio.gather(*(_asked(admin, few, *queue) for queue in queues))
    found: dict[tuple[str, str], list[GroupQueue]] = {}
    for states, _ in answers:
        for state in states:
            found.setdefault((state.topic, state.group), []).append(state)
    groups = (GroupTotal(topic, group, states[0].tags, tuple(states)) for (topic, group), states in found.items())
    silent = [problem for _, problem in answers if problem]
    more = f" And {len(silent) - NAMED:,} more." if len(silent) > NAMED else ""
    problems = (" ".join(silent[:NAMED]) + more,) if silent else ()
    return ClusterGroups(tuple(sorted(groups, key=lambda it: (-it.total("lag"), it.topic, it.group))), problems)


async def _asked(admin: Admin, few: asyncio.Semaphore, topic: str, queue: int) -> tuple[list[GroupQueue], str]:
    """The queue's groups, and why there are none."""
    request = delay_pb2.DescribeGroupRequest(topic=topic, queue=queue)
    decode = delay_pb2.DescribeGroupResponse.FromString
    try:
        async with few:
            answer = await admin.cluster.call("DescribeGroup", topic, queue, request, decode, timeout_s=QUEUE_S)
    except DelayError as error:
        return [], f"{topic}-{queue} has not answered: {error}."
    return [group_of(topic, queue, it, answer.now_ms) for it in answer.groups], ""
