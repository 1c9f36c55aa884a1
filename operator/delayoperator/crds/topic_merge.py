"""A cluster's DelayTopics -> the topics that it has beside spec.topics, whose they are, and why others are left out.

Pure, and the same for the same objects in whatever order they come. A topic's name belongs to a namespace from the
first DelayTopic that has it until its last shard is gone: messages that were left behind are nobody else's. What has
been accepted is kept as it is where its object can't be followed any more: only a DelayTopic that is gone, or whose
namespace is not allowed any more, takes its topic away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from delayapi.durations import parse_duration_ms
from delayregistry.codec import camel
from delayregistry.model import MAX_QUEUES, BadSpec, ClusterSpec, TopicQuotas, TopicSpec
from pydantic import ValidationError

from delayoperator.cluster.annotations import OWNER_PREFIX
from delayoperator.cluster.shard_summary import some
from delayoperator.crds import limits
from delayoperator.crds.convert import impossible_topic, topic_spec, topic_taken_back
from delayoperator.crds.refusal import from_pydantic
from delayoperator.crds.tenancy import NamespaceLimits
from delayoperator.crds.topic import DelayTopicSpec, TopicReason

Json = Mapping[str, Any]
ObjectKey = tuple[str, str]
"""A DelayTopic's namespace and name."""


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """Whose a topic is. delay_topic: the object that asks for it now; "": none does, and its messages are kept."""

    namespace: str
    delay_topic: str = ""


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """What was before. accepted: the spec that nodes have; None: there is none, nor any owner. kept: see desired_of.
    granted: by topic, the namespace that people gave it to (cluster.annotations)."""

    accepted: ClusterSpec | None = None
    owners: Mapping[str, TopicOwner] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    granted: Mapping[str, str] = field(default_factory=dict)

    def lent(self, own: Collection[str] = ()) -> tuple[TopicSpec, ...]:
        """The topics that nodes have of DelayTopics. own: names of spec.topics."""
        if self.accepted is None:
            return ()
        held = (it for it in self.accepted.topics if it.name not in own)
        return tuple(it for it in held if (owner := self.owners.get(it.name)) is not None and owner.delay_topic)

    def providers(self) -> dict[ObjectKey, str]:
        """By the DelayTopics that are accepted, their topics."""
        return {(owner.namespace, owner.delay_topic): name for name, owner in self.owners.items() if owner.delay_topic}


@dataclass(frozen=True, slots=True)
class ToldTopic:
    """What became of one DelayTopic. spec: what the cluster has of it; None: nothing. refused: why it is not as the
    object says."""

    spec: TopicSpec | None = None
    refused: TopicReason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class MergedTopics:
    topics: tuple[TopicSpec, ...] = ()  # beside spec.topics, by name
    owners: Mapping[str, TopicOwner] = field(default_factory=dict)
    told: Mapping[ObjectKey, ToldTopic] = field(default_factory=dict)
    own: frozenset[str] = frozenset()  # names of spec.topics

    def of_namespace(self, namespace: str) -> Mapping[str, bool]:
        """By name, the topics that are the namespace's, with whether they take messages: not those left behind."""
        return {
            name: bool(owner.delay_topic) or name in self.own
            for name, owner in sorted(self.owners.items())
            if owner.namespace == namespace
        }


def kept_as_they_are(own: ClusterSpec, known: KnownTopics) -> MergedTopics:
    """Where DelayTopics can't be read."""
    names = frozenset(it.name for it in own.topics)
    return MergedTopics(known.lent(names), known.owners, own=names)


def merge_topics(
    bodies: Sequence[Json],
    namespace: str,
    own: ClusterSpec,
    known: KnownTopics,
    allowed: Callable[[str], bool | None],
    most: NamespaceLimits | None = None,
) -> MergedTopics:
    """bodies: the DelayTopics of the cluster that `own` is the spec of, as its DelayCluster in `namespace` has it.
    allowed: whether a namespace may have topics there; None: that is not known. most: what each other
    namespace may ask for."""
    merge = _Merge(namespace, own, known, allowed, most or NamespaceLimits.model_validate({}))
    for body in sorted(bodies, key=merge.precedence):
        merge.add(body)
    return merge.result()


class _Merge:
    def __init__(
        self,
        namespace: str,
        own: ClusterSpec,
        known: KnownTopics,
        allowed: Callable[[str], bool | None],
        most: NamespaceLimits,
    ) -> None:
        self._namespace, self._own, self._known, self._allowed, self._most = namespace, own, known, allowed, most
        self._names = frozenset(it.name for it in own.topics)
        self._before = {it.name: it for it in known.lent(self._names)}
        self._providers = known.providers()
        self._owners = {name: TopicOwner(it.namespace) for name, it in known.owners.items()}
        self._owners |= {name: TopicOwner(namespace) for name, namespace in known.granted.items()}
        self._found: dict[str, tuple[ObjectKey, TopicSpec]] = {}
        self._told: dict[ObjectKey, ToldTopic] = {}
        self._queues = sum(it.queues for it in own.topics)
        # Those that are accepted are counted before any other, so that none that comes takes their place.
        self._promised = dict(self._before)

    def precedence(self, body: Json) -> tuple[bool, str, str, str]:
        """What is accepted first, then the older."""
        meta = body["metadata"]
        key = _key(body)
        return key not in self._providers, str(meta.get("creationTimestamp") or ""), *key

    def add(self, body: Json) -> None:
        key = _key(body)
        raw = body.get("spec") or {}
        said = raw.get("name")
        name = said if isinstance(said, str) else key[1]
        before = self._before.get(name) if self._providers.get(key) == name else None  # it was accepted with that
        taken = self._not_its_own(key, name)
        found = self._asked(key[0], name, raw, before) if taken is None else ToldTopic(None, *taken)
        if found.spec is not None:
            self._found[name] = key, found.spec
            self._owners[name] = TopicOwner(*key)
            if found.refused is not None:
                found = replace(found, message=f"{found.message}; what was accepted before stays in force")
        elif before is not None:
            del self._promised[name]
        self._told[key] = found

    def result(self) -> MergedTopics:
        accepted = () if self._known.accepted is None else {it.name for it in self._known.accepted.topics}
        owners = {
            name: owner
            for name, owner in self._owners.items()
            # Nodes that had the topic a moment ago may be making its shards yet.
            if name in self._found or self._known.kept.get(name) or name in accepted or name in self._known.granted
        }
        topics = tuple(spec for _, (_, spec) in sorted(self._found.items()))
        return MergedTopics(topics, owners, self._told, self._names)

    def _asked(self, namespace: str, name: str, raw: object, before: TopicSpec | None) -> ToldTopic:
        known = self._known
        has_been = None if known.accepted is None else known.accepted.topic(name)
        try:
            spec = DelayTopicSpec.model_validate(raw)
            refusals = [
                *impossible_topic(spec, "spec.", self._own.horizon_days),
                *topic_taken_back(spec, "spec.", has_been, known.kept.get(name, 0)),
            ]
            if refusals:
                return ToldTopic(before, TopicReason.INVALID_SPEC, "; ".join(map(str, refusals)))
            asked = topic_spec(name, spec)
        except ValidationError as error:
            return ToldTopic(before, TopicReason.INVALID_SPEC, "; ".join(map(str, from_pydantic(error, raw)[:5])))
        except BadSpec as error:
            return ToldTopic(before, TopicReason.INVALID_SPEC, f"spec: {error}")
        others = [it for it in self._promised.values() if it.name != name]
        queues = self._queues + sum(it.queues for it in others)
        if queues + asked.queues > MAX_QUEUES or len(self._names) + len(others) >= limits.MAX_TOPICS:
            said = (
                f"the cluster has {len(self._names) + len(others)} other topics with {queues} queues, and this one "
                f"asks for {asked.queues}; the limits are {limits.MAX_TOPICS} topics and {MAX_QUEUES} queues"
            )
            return ToldTopic(before, TopicReason.CLUSTER_FULL, said)
        over = "; ".join(self._over_limit(namespace, asked)) if namespace != self._namespace else ""
        if over:
            return ToldTopic(before, TopicReason.OVER_LIMIT, over)
        self._promised[name] = asked
        return ToldTopic(asked)

    def _over_limit(self, namespace: str, asked: TopicSpec) -> Iterator[str]:
        most = self._most
        names = {name for name, owner in self._owners.items() if owner.namespace == namespace} - {asked.name}
        others = [self._promised[name] for name in names if name in self._promised]
        left = {name: self._known.kept.get(name, 0) for name in sorted(names) if name not in self._promised}
        removed = {name: kept for name, kept in left.items() if kept and name not in self._names}
        queues = asked.queues + sum(it.queues for it in others) + sum(left.values())
        if most.queues is not None and queues > most.queues:
            said = f"are {queues} in all topics of the namespace"
            if removed:
                said += (
                    f", {sum(removed.values())} of them in topics that were removed and keep their shards "
                    f"({some(tuple(removed))}), which `delayctl shards retire --topic NAME` deletes"
                )
            yield f"spec.queues: {said}; the cluster's limit for it is {most.queues}"
        for field_name, limit in most:
            if limit is None or field_name not in TopicQuotas.__slots__:
                continue
            path, quota = f"spec.quotas.{camel(field_name)}", _quota(asked, field_name)
            if quota is None:
                yield f"{path}: has to be said: the cluster limits it to {limit} for all topics of the namespace"
            elif (total := quota + sum(_quota(it, field_name) or 0 for it in others)) > limit:
                yield f"{path}: is {total} in all topics of the namespace; the cluster's limit for it is {limit}"
        longest_ms = None if most.retention is None else parse_duration_ms(most.retention)
        for field_name in ("retention", "dlq_retention"):
            if longest_ms is not None and getattr(asked, f"{field_name}_ms") > longest_ms:
                yield f"spec.{camel(field_name)}: the cluster's limit for the namespace is {most.retention}"

    def _not_its_own(self, key: ObjectKey, name: str) -> tuple[TopicReason, str] | None:
        """Why the topic is not this object's, or its namespace may have none. Of others' no more than that there is
        something is said."""
        namespace = key[0]
        allowed = namespace == self._namespace or self._allowed(namespace)
        if allowed is False:
            said = f"the DelayCluster does not allow namespace {namespace}: its spec.allowedNamespaces says which"
            return TopicReason.NAMESPACE_NOT_ALLOWED, said
        if name in self._names:
            return TopicReason.NAME_TAKEN, f"spec.topics of the DelayCluster has topic {name}"
        if name in self._found:
            other = self._found[name][0]
            whose = f"DelayTopic {other[1]}, which is older" if other[0] == namespace else "another namespace"
            return TopicReason.NAME_TAKEN, f"topic {name} is of {whose}"
        owner = self._owner(name)
        if owner not in ("", namespace):
            said = (
                f"topic {name} is another namespace's, or its messages are left there; who may change the DelayCluster "
                f"gives it by the annotation {OWNER_PREFIX}{name}={namespace}"
            )
            return TopicReason.NAME_TAKEN, said
        if allowed is None and self._providers.get(key) != name:
            said = f"the operator can't read the labels of namespace {namespace}, which spec.allowedNamespaces asks for"
            return TopicReason.NAMESPACE_UNKNOWN, said
        return None

    def _owner(self, name: str) -> str:
        """The namespace that the topic belongs to; "": none yet. A topic of which only the shards are known was of
        spec.topics."""
        if name in self._owners:
            return self._owners[name].namespace
        accepted = self._known.accepted
        there = accepted is not None and (accepted.topic(name) is not None or self._known.kept.get(name))
        return self._namespace if there else ""


def _quota(topic: TopicSpec, name: str) -> int | None:
    found: int | None = None if topic.quotas is None else getattr(topic.quotas, name)
    return found


def _key(body: Json) -> ObjectKey:
    return str(body["metadata"].get("namespace", "")), str(body["metadata"]["name"])
