"""What spec.autoscaling makes of a cluster: its load is asked of the masters once a minute, the advice given each
round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

import grpc
import numpy as np
from delayapi.hot_slots import F64
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.units import HOUR_MS
from delayregistry.model import ClusterSpec, ShardObject, shard_name
from delayregistry.port import Registry

from delayoperator.cluster.conditions import ClusterObservation, conditions
from delayoperator.cluster.node_scaling import (
    SLOT_MS,
    ClusterLoad,
    NodeAdvice,
    ScalingFacts,
    ScalingSettings,
    advise,
    load_per_second,
)
from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.shard_summary import some
from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.probe import GrpcProber, Prober
from delayoperator.kube.api import Json
from delayoperator.plan import Liveness

ASK_MS = 60_000
ASK_AGAIN_MS = 5_000  # where a master has not answered: a new shard has none for a moment
ASKING_PART = 6  # of the time, one in so many: a node that hangs must not hold up the rounds
TIMEOUT_S = 10.0  # of all nodes together: a busy node takes 5 s to count 1,000 shards
SAY_MS = 300_000  # an advice that stays is said again: who follows it sees that there is an operator
WATCHED_MS = HOUR_MS  # of enqueues
MIN_WATCHED_MS = (
    WATCHED_MS // 4
)  # over which they are spread at least: a burst of a new operator's first minute is no rate


@dataclass(slots=True)
class _Answers:
    """All masters'. due: f64[S] by topic, messages that fall due in each slot from now on, those of schedules that will
    fire among them. forecast: the shards that they are of. stored: by shard, messages stored so far that were not
    cancelled before their due."""

    due: dict[str, F64] = field(default_factory=dict)
    forecast: set[str] = field(default_factory=set)
    stored: dict[str, int] = field(default_factory=dict)
    pending_bytes: int = 0

    def add_forecast(self, answer: pb.ForecastResponse) -> None:
        for it in answer.topics:
            arrivals = np.diff(np.frombuffer(it.arrivals, "<i8").astype(float), prepend=0.0)
            self.due[it.topic] = self.due[it.topic] + arrivals if it.topic in self.due else arrivals
            self.forecast |= {shard_name(it.topic, queue) for queue in it.queues}

    def add_wheels(self, answer: pb.GetWheelResponse) -> None:
        for it in answer.shards:
            self.stored[shard_name(it.topic, it.queue)] = it.pending + it.released
            self.pending_bytes += it.pending_bytes


class NodeScaler:
    """For one DelayCluster."""

    def __init__(self, registry: Registry, clock: LoopClock) -> None:
        self._registry, self._clock = registry, clock
        self._asked_ms: int | None = None  # monotonic
        self._pause_ms = ASK_AGAIN_MS  # until it is asked again
        self._load: ClusterLoad | str = "no node was asked yet"
        self._stored: tuple[int, Mapping[str, int]] | None = None  # as it was last known, and when (monotonic)
        self._enqueued: deque[tuple[int, int, int]] = deque()  # (from, to, messages) of the last hour, monotonic
        self._said: NodeAdvice | None = None

    def advise(
        self,
        settings: ScalingSettings,
        cluster: ClusterSpec,
        seen: ClusterObservation,
        before: Json,
        shards: Sequence[ShardObject],
        new_prober: Callable[[], Prober] | None,
    ) -> tuple[NodeAdvice, float]:
        """The advice, and in how many seconds it is due again. cluster: with the topics of DelayTopics. before: the
        status as it is. new_prober: None: nodes can't be asked yet."""
        now_ms = self._clock.monotonic_ms()
        if new_prober is not None and (self._asked_ms is None or now_ms - self._asked_ms >= self._pause_ms):
            self._asked_ms = now_ms
            self._load = self._ask(settings, cluster, shards, new_prober())
            took_ms = self._clock.monotonic_ms() - now_ms
            soon_ms = min(ASK_MS, max(ASK_AGAIN_MS, ASKING_PART * took_ms))
            self._pause_ms = soon_ms if isinstance(self._load, str) else ASK_MS
        wall_ms = self._clock.wall_ms()
        under_way, still_ms = _changes(seen, before, wall_ms)
        facts = ScalingFacts(
            wall_ms, seen.wanted_nodes, cluster.replicas, seen.shard_summary.desired, self._load,
            drained=sum(int(node[1:]) < seen.wanted_nodes for node in seen.drains.drained),
            zones=_zones(seen), under_way=under_way, still_ms=still_ms,
        )  # fmt: skip
        found, said = advise(settings, facts), self._said
        same = said is not None and (said.nodes, said.reason) == (found.nodes, found.reason)
        if found.reason in (Reason.LOAD_UNKNOWN, Reason.SCALING_WAITS):  # which speak of what others say as well
            same = same and said is not None and said.because == found.because
        if said is None or not same or wall_ms - said.at_ms >= SAY_MS:
            self._said = said = replace(found, at_ms=wall_ms)
        return said, ((now_ms if self._asked_ms is None else self._asked_ms) + self._pause_ms - now_ms) / 1_000

    def _ask(
        self, settings: ScalingSettings, cluster: ClusterSpec, shards: Sequence[ShardObject], prober: Prober
    ) -> ClusterLoad | str:
        """A text where not every master has answered: why."""
        start_ms = self._clock.wall_ms()
        try:
            if not isinstance(prober, GrpcProber):
                return "nodes can't be asked"
            found = _asked(self._registry, prober, settings.horizon_ms // SLOT_MS)
        finally:
            prober.close()
        wanted = {shard_name(topic.name, queue) for topic in cluster.topics for queue in range(topic.queues)}
        if missing := sorted(({shard.name for shard in shards} | wanted) - (found.stored.keys() & found.forecast)):
            return f"the masters of these shards have not answered: {some(missing)}"
        self._count(found.stored)
        caps = {it.name: it.max_release_per_second for it in cluster.topics if it.max_release_per_second is not None}
        watched_ms = sum(to_ms - from_ms for from_ms, to_ms, _ in self._enqueued)
        enqueued = sum(it[2] for it in self._enqueued) * 1_000 / max(watched_ms, MIN_WATCHED_MS)
        due = found.due or {"": np.zeros(settings.horizon_ms // SLOT_MS)}
        per_second = load_per_second(due, caps, settings.max_lateness_ms, enqueued)
        return ClusterLoad(start_ms, per_second, found.pending_bytes, watched_ms)

    def _count(self, stored: Mapping[str, int]) -> None:
        """The messages that were enqueued since the last look. One that was cancelled meanwhile is not counted."""
        now_ms = self._clock.monotonic_ms()
        if self._stored is not None:
            since_ms, before = self._stored
            new = sum(max(0, count - before[name]) for name, count in stored.items() if name in before)
            self._enqueued.append((since_ms, now_ms, new))
        while self._enqueued and now_ms - self._enqueued[0][0] > WATCHED_MS:
            self._enqueued.popleft()
        self._stored = now_ms, stored


def _asked(registry: Registry, prober: GrpcProber, slots: int) -> _Answers:
    """Each node about what it leads. Of one that does not answer the shards are missing."""
    found = _Answers()
    clients = [prober.client(lease) for lease in registry.list_leases()]
    load = pb.ForecastRequest(bucket_ms=SLOT_MS, buckets=slots, own=True)
    sums = pb.GetWheelRequest(to_ms=1)  # of no slots
    try:
        forecasts = [it.forecast.future(load, timeout=TIMEOUT_S) for it in clients]  # all at once
        wheels = [it.get_wheel.future(sums, timeout=TIMEOUT_S) for it in clients]
        for forecast in forecasts:
            with suppress(grpc.RpcError):
                found.add_forecast(forecast.result())
        for wheel in wheels:
            with suppress(grpc.RpcError):
                found.add_wheels(wheel.result())
    finally:
        for client in clients:
            client.close()
    return found


def _changes(seen: ClusterObservation, before: Json, wall_ms: int) -> tuple[str, int | None]:
    """What is being changed, and since when nothing is."""
    said = {it.type: it for it in conditions(seen)}
    progressing = said["Progressing"]
    if progressing.reason is not Reason.SETTLED:
        return progressing.message, None
    if said["Rebalancing"].status:
        return "", None
    times = [
        _ms(it.get("lastTransitionTime")) if it.get("status") == "False" else wall_ms
        for it in before.get("conditions") or ()
        if it.get("type") in ("Progressing", "Rebalancing")
    ]
    return "", max(times, default=wall_ms)


def _ms(text: str | None) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000) if text else 0


def _zones(seen: ClusterObservation) -> int:
    zones = {it.location.zone for it in seen.nodes.values() if it.liveness is Liveness.ALIVE}
    return 1 if "" in zones else max(1, len(zones))
