"""One look at a cluster's DelayTopics: the topics that it has of them, and what each is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from delayregistry.model import ClusterSpec, ShardObject
from delayregistry.port import Registry

from delayoperator.cluster.conditions import ClusterProblem
from delayoperator.cluster.shard_summary import ShardSummary, some
from delayoperator.control_loop.loop import LoopClock
from delayoperator.control_loop.probe import GrpcProber, Prober
from delayoperator.crds.tenancy import NamespaceLimits
from delayoperator.crds.topic import TopicReason
from delayoperator.crds.topic_merge import KnownTopics, MergedTopics, ToldTopic, kept_as_they_are, merge_topics
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.apply import problem
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.kinds import DELAY_TOPIC
from delayoperator.kube.referring import ReferringObjects, present
from delayoperator.kube.topic_deletion import TopicDeletions, is_leaving, topic_of
from delayoperator.kube.topic_loads import TopicLoads

FIGURES = ("pending", "dueWithinHour", "oldestUnfinished")
WAITING_S, STEP_S = 5.0, 0.5  # between looks at topics that are deleted
LAG_MS = 60_000  # what was released a shorter time ago is on its way


@dataclass(frozen=True, slots=True)
class TopicsLook:
    """bodies: the DelayTopics, none where they could not be read. leaving: those that were deleted and wait, with
    their messages."""

    merged: MergedTopics
    bodies: Sequence[Json] = ()
    leaving: Sequence[Json] = ()
    problems: Sequence[ClusterProblem] = ()


class Topics:
    """For one DelayCluster. namespaces: where the operator looks; "" is everywhere."""

    def __init__(
        self,
        api: Api,
        registry: Registry,
        namespace: str,
        cluster: str,
        clock: LoopClock,
        namespaces: Sequence[str],
    ) -> None:
        self._namespace, self._cluster, self._clock, self._registry = namespace, cluster, clock, registry
        self._objects = ReferringObjects(api, DELAY_TOPIC, (namespace, cluster), namespaces)
        self._deletions = TopicDeletions(api, registry)
        self._loads = TopicLoads(clock)

    def look(
        self,
        held: HeldObjects,
        own: ClusterSpec,
        known: KnownTopics,
        allowed: Callable[[str], bool | None],
        most: NamespaceLimits | None,
    ) -> TopicsLook:
        """own: as the DelayCluster has it. allowed, most: see merge_topics."""
        providers = known.providers()
        try:
            found = self._objects.held(held)
            if providers.keys() - {_key(it) for it in present(found)}:
                # What would take a topic away is asked for: a kind that was not served for a moment, or whose
                # definition is away, is no wish.
                found = self._objects.listed()
        except ApiError as error:
            unused = error.forbidden and not providers  # of an operator whose rights are of an earlier release
            return TopicsLook(kept_as_they_are(own, known), problems=[] if unused else [problem(error)])
        bodies, leaving = present(found), [it for it in found if is_leaving(it)]
        # Their messages are their namespace's until the last copy is gone.
        kept = {**dict.fromkeys((topic_of(it) for it in leaving), 1), **known.kept}
        merged = merge_topics(bodies, self._namespace, own, replace(known, kept=kept), allowed, most)
        return TopicsLook(merged, bodies, leaving)

    def delete(
        self,
        found: TopicsLook,
        accepted: ClusterSpec | None,
        shards: Sequence[ShardObject],
        new_prober: Callable[[], Prober],
    ) -> tuple[list[ApiError], float | None]:
        """A step towards the end of those that are leaving. Returns when to look again, in seconds."""
        errors: list[ApiError] = []
        held = False
        for body in (*found.bodies, *found.leaving):
            try:
                held |= self._deletions.hold(body, found.merged)
            except ApiError as error:
                errors.append(error)
        if held or not found.leaving:  # what was written is newer than what is known here
            return _counted(errors), STEP_S if held or errors else None
        prober, again_s = new_prober(), WAITING_S
        try:
            for body in found.leaving:
                if not isinstance(prober, GrpcProber):
                    break
                try:
                    step = self._deletions.advance(body, found.merged, accepted, shards, prober)
                    again_s = min(again_s, STEP_S if step.under_way else WAITING_S)
                    if step.waits_for:
                        self._objects.tell(body, self._clock, False, str(TopicReason.DELETION_WAITS), step.waits_for)
                except ApiError as error:
                    errors.append(error)
        finally:
            prober.close()
        return _counted(errors), again_s

    def tell(
        self,
        found: TopicsLook,
        accepted: ClusterSpec | None,
        counted: ShardSummary,
        new_prober: Callable[[], Prober] | None,
    ) -> list[ApiError]:
        """Writes what became of each where that is news. accepted: what nodes are told. new_prober: of the nodes, which
        are asked for figures; None: they can't be asked yet."""
        errors = []
        unserved = dict(zip(counted.unserved_names, counted.unserved, strict=True))
        topics = [it.spec for body in found.bodies if (it := found.merged.told[_key(body)]).spec is not None]
        waiting = {name.rpartition("-")[0] for name in unserved}
        served = {it.name: it.queues for it in topics if it is not None and it.name not in waiting}
        if served and new_prober is not None and self._loads.due(served):
            self._ask(new_prober())
        for body in found.bodies:
            told = found.merged.told[_key(body)]
            try:
                self._tell_one(body, told, accepted, unserved)
            except ApiError as error:
                errors.append(error)
        return _counted(errors)

    def _tell_one(
        self,
        body: Json,
        told: ToldTopic,
        accepted: ClusterSpec | None,
        unserved: Mapping[str, str],
    ) -> None:
        if told.spec is None:
            reason = told.refused or TopicReason.NOT_APPLIED
            self._objects.tell(
                body, self._clock, False, str(reason), told.message, shards=None, servedShards=None,
                **dict.fromkeys(FIGURES),
            )  # fmt: skip
            return
        topic = told.spec
        names = [f"{topic.name}-{queue}" for queue in range(topic.queues)]
        waiting = [unserved[name] for name in names if name in unserved]
        in_force = accepted is not None and accepted.topic(topic.name) == topic
        if told.refused is not None:
            ready, reason, message = False, told.refused, told.message
        elif not in_force:
            said = "the cluster's nodes are not told of it yet; the DelayCluster's conditions say why"
            ready, reason, message = False, TopicReason.NOT_APPLIED, said
        elif waiting:
            ready, reason, message = False, TopicReason.SHARDS_COMING, some(waiting)
        else:
            ready, reason, message = True, TopicReason.SERVING, f"served: {topic.queues} of {topic.queues} shards"
        served = topic.queues - len(waiting) if in_force else 0
        figures = self._figures(body, topic.name, topic.queues)
        self._objects.tell(
            body, self._clock, ready, str(reason), message, shards=topic.queues, servedShards=served, **figures
        )

    def _ask(self, prober: Prober) -> None:
        try:
            if isinstance(prober, GrpcProber):
                self._loads.look(self._registry.list_leases(), prober)
        finally:
            prober.close()

    def _figures(self, body: Json, topic: str, queues: int) -> Json:
        """What is written of it already, where a shard's master has not said it."""
        load = self._loads.of(topic, queues)
        if load is None:
            before = body.get("status") or {}
            return {field: before.get(field) for field in FIGURES}
        late = load.oldest_ms and self._clock.wall_ms() - load.oldest_ms > LAG_MS
        oldest = datetime.fromtimestamp(load.oldest_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if late else None
        return dict(zip(FIGURES, (rounded(load.pending), rounded(load.due), oldest), strict=True))


def _counted(errors: Sequence[ApiError]) -> list[ApiError]:
    """Without those of objects that are gone, or have changed: the next round's."""
    return [it for it in errors if not it.not_found and not it.conflict]


def rounded(count: int) -> int:
    """To two digits, so that a count that hardly changes is not written again and again."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return (count + unit // 2) // unit * unit


def _key(body: Json) -> tuple[str, str]:
    return str(body["metadata"]["namespace"]), str(body["metadata"]["name"])
