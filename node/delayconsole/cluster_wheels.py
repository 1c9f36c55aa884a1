"""The load to come of all shards, asked node by node: a node that hangs hides its own shards, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from delayapi.proto.delay.v1 import delay_pb2
from delayclient.admin.admin import Admin
from delayclient.admin.views import Wheel, wheel_of
from delayclient.errors import DelayError
from delayclient.routing.route_table import TopicRoute

NODE_S: Final = 3.0
"""So long a node may take for its wheels. A person waits, and the other nodes' are there."""


@dataclass(frozen=True, slots=True)
class ClusterWheels:
    """wheels: of the shards that answered, by topic and queue. problems: sentences, one for each node that did not
    answer. shards: how many there are. topics: all that the visitor may see."""

    wheels: tuple[Wheel, ...]
    problems: tuple[str, ...]
    shards: int
    topics: tuple[str, ...]


async def cluster_wheels(admin: Admin, topic: str, from_ms: int, to_ms: int, slot_ms: int = 0) -> ClusterWheels:
    """Of one topic, or of all. slot_ms: nodes put narrower slots together to such ones; 0: they do not. Raises
    DelayError where not even the topics can be asked for."""
    routes = await admin.topics()
    names = tuple(sorted(route.topic for route in routes))
    chosen = [route for route in routes if topic in ("", route.topic)]
    masters = sorted({(queue.node, queue.endpoint) for route in chosen for queue in route.queues if queue.endpoint})
    request = delay_pb2.GetWheelRequest(from_ms=from_ms, to_ms=to_ms, slot_ms=slot_ms)
    answers = await asyncio.gather(*(_node_wheels(admin, *master, request) for master in masters))
    wanted = {(route.topic, queue.queue) for route in chosen for queue in route.queues}
    found: dict[tuple[str, int], Wheel] = {}
    for wheels, _ in answers:
        for wheel in wheels:
            key = wheel.topic, wheel.queue
            if key in wanted and (key not in found or found[key].epoch < wheel.epoch):
                found[key] = wheel
    problems = [problem for _, problem in answers if problem]
    if leaderless := _leaderless(chosen):
        problems.append(leaderless)
    return ClusterWheels(tuple(found[key] for key in sorted(found)), tuple(problems), len(wanted), names)


async def _node_wheels(
    admin: Admin, node: str, endpoint: str, request: delay_pb2.GetWheelRequest
) -> tuple[Sequence[Wheel], str]:
    """Those of the shards that it is the master of, and why there are none."""
    decode = delay_pb2.GetWheelResponse.FromString
    try:
        answer = await admin.cluster.call_at(endpoint, "GetWheel", request, decode, NODE_S)
        return [wheel_of(wheel, answer.now_ms) for wheel in answer.shards], ""
    except DelayError as error:
        if error.code == "DEADLINE_EXCEEDED":
            return [], f"{node} has not answered within {NODE_S:.0f} s: what is on it is not shown"
        return [], f"{node} has not told what is on it: {error}"


def _leaderless(routes: Sequence[TopicRoute]) -> str:
    names = [f"{route.topic}-{queue.queue}" for route in routes for queue in route.queues if not queue.endpoint]
    if not names:
        return ""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}: no master now"
