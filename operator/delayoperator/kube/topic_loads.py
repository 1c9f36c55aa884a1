"""What is in the shards of DelayTopics: asked of each node at most once a minute, one call for all that it leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.slots import spread_slots
from delayapi.units import HOUR_MS
from delayregistry.model import NodeLease

from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.probe import GrpcProber

ASK_MS = 60_000
TIMEOUT_S = 10.0  # of all nodes together: a busy node takes 5 s to count 1,000 shards


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """due: of the messages pending, those due within an hour. oldest_ms: about when the oldest message was released
    that a group is not done with; 0: none."""

    pending: int
    due: int
    oldest_ms: int


class TopicLoads:
    """For one DelayCluster."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._asked_ms: int | None = None  # when the minute began
        self._asked_for: set[str] = set()  # topics that were not known when the nodes were asked in it
        self._queues: dict[str, dict[int, TopicBacklog]] = {}

    def due(self, served: Mapping[str, int]) -> bool:
        """Whether to ask now: a minute is over, or a topic is served of which the nodes were not asked in it. served:
        the topics whose shards all have masters, with their queues."""
        unknown = {topic for topic, queues in served.items() if self.of(topic, queues) is None}
        now_ms, asked_ms = self._clock.monotonic_ms(), self._asked_ms
        over = asked_ms is None or now_ms - asked_ms >= ASK_MS
        if over:
            self._asked_ms, self._asked_for = now_ms, set()
        due = over or bool(unknown - self._asked_for)
        self._asked_for |= unknown
        return due

    def look(self, leases: Sequence[NodeLease], prober: GrpcProber, timeout_s: float = TIMEOUT_S) -> None:
        """Asks. A node that does not answer leaves its topics unknown until the next time."""
        self._queues = {}
        to_ms = self._clock.wall_ms() + HOUR_MS
        clients = [prober.client(lease) for lease in leases]
        try:
            request = pb.GetWheelRequest(to_ms=to_ms)
            for call in [it.get_wheel.future(request, timeout=timeout_s) for it in clients]:
                try:
                    shards = call.result().shards
                except grpc.RpcError:
                    continue
                for it in shards:
                    self._queues.setdefault(it.topic, {})[it.queue] = _load(it, to_ms)
        finally:
            for client in clients:
                client.close()

    def of(self, topic: str, queues: int) -> TopicBacklog | None:
        """None: some shard's master has not said it."""
        known: Mapping[int, TopicBacklog] = self._queues.get(topic, {})
        if any(queue not in known for queue in range(queues)):
            return None
        loads = [known[queue] for queue in range(queues)]
        oldest = min((it.oldest_ms for it in loads if it.oldest_ms), default=0)
        return TopicBacklog(sum(it.pending for it in loads), sum(it.due for it in loads), oldest)


def _load(shard: pb.ShardWheel, to_ms: int) -> TopicBacklog:
    start, width, messages = (np.frombuffer(it, "<i8") for it in (shard.slot_start, shard.slot_width, shard.messages))
    due = float(spread_slots(start, width, messages, np.array([0, to_ms]))[0])
    return TopicBacklog(shard.pending, round(due), shard.oldest_ms)
