"""A local cluster's desired spec: what its directory holds already, and what this start asks for on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

from delaynode.store import formats
from delayregistry.model import (
    MIN_LEASE_SECONDS,
    BadSpec,
    ClusterSpec,
    ConditionType,
    Delivery,
    Durability,
    NodeLease,
    ShardObject,
    TopicSpec,
    shard_name,
)

DEFAULT_NODES = 3
DEFAULT_HORIZON_DAYS = 40


class LocalSpec(TypedDict, total=False):
    """The options of one start. None, or left out: as found, else the default."""

    nodes: int | None
    topics: Sequence[TopicSpec]
    durability: Durability | None
    horizon_days: int | None
    replicas: int | None
    min_in_sync: int | None
    delivery: Delivery | None
    lease_seconds: int | None


def merge(found: ClusterSpec | None, requested: LocalSpec, on_disk: int = 0) -> ClusterSpec:
    """The new spec. Topics are added to those found. on_disk: so many nodes it takes for all that have data here: where
    the registry was lost, a shard would be made empty whose copies lie with a node that is left out.

    Raises BadSpec for what can't be taken back (fewer nodes, fewer queues of a topic, a shorter horizon), and for a
    lease that living nodes could not keep up.
    """
    nodes, horizon_days = requested.get("nodes"), requested.get("horizon_days")
    if found is None:
        _not_less("nodes", nodes, on_disk)
        found = ClusterSpec(
            "local",
            nodes or max(DEFAULT_NODES, on_disk),
            horizon_days=horizon_days or DEFAULT_HORIZON_DAYS,
            nodes_version=formats.OLDEST if on_disk else formats.NEWEST,  # a new one's nodes are all of this release
        )
    _not_less("nodes", nodes, found.nodes)
    _not_less("horizon days", horizon_days, found.horizon_days)
    lease_seconds = requested.get("lease_seconds")
    if lease_seconds is not None and lease_seconds < MIN_LEASE_SECONDS:
        allowed = f"allowed: at least {MIN_LEASE_SECONDS}, since a node renews its lease twice in that time"
        raise BadSpec(f"lease seconds: {lease_seconds} asked for; {allowed}")
    merged = {topic.name: topic for topic in found.topics}
    for topic in requested.get("topics", ()):
        if topic.name in merged:
            _not_less(f"queues of topic {topic.name}", topic.queues, merged[topic.name].queues)
        merged[topic.name] = topic
    given: dict[str, Any] = {name: value for name, value in requested.items() if value}
    return replace(found, **{**given, "topics": tuple(merged.values())})


def unmet(
    desired: ClusterSpec, shards: Sequence[ShardObject], leases: Sequence[NodeLease], former: dict[str, str]
) -> list[str]:
    """Why the cluster is not ready, a sentence each; empty when every shard wished for is served, with all its copies.

    former: the incarnation that a node's lease named before its present process started, by node id.
    """
    present = {lease.node: lease.incarnation for lease in leases if lease.incarnation != former.get(lease.node)}
    missing = [f"{node} has not registered" for node in desired.node_ids if node not in present]
    by_name = {shard.name: shard for shard in shards}
    names = [shard_name(topic.name, queue) for topic in desired.topics for queue in range(topic.queues)]
    unready = {name: why for name in names if (why := _unready(by_name.get(name), present))}
    blocked = blocked_shards(shards)
    return missing + [f"shard {name} {blocked.get(name, why)}" for name, why in unready.items()]


def blocked_shards(shards: Sequence[ShardObject]) -> dict[str, str]:
    """By name, why a shard can't have a master, as the end of a sentence."""
    return {
        shard.name: f"is blocked, {it.reason}: {it.message}"
        for shard in shards
        for it in shard.conditions
        if it.type is ConditionType.BLOCKED
    }


def unsynced(shard: ShardObject) -> str | None:
    """Why a served shard does not have all its copies, as the end of a sentence; None when it has."""
    in_sync = 0 if shard.status is None else len(shard.status.in_sync)
    wanted = len(shard.spec.replicas)
    return None if in_sync >= wanted else f"has {in_sync} of {wanted} copies in sync"


def _unready(shard: ShardObject | None, present: dict[str, str]) -> str | None:
    if shard is None:
        return "does not exist yet"
    spec, status = shard.spec, shard.status
    if spec.master is None:
        return "has no master yet"
    if spec.incarnation != present.get(spec.master):
        return f"waits for a new term on {spec.master}"
    if status is None or (status.serving_epoch, status.incarnation) != (spec.epoch, spec.incarnation):
        return f"is not yet served by {spec.master} in epoch {spec.epoch}"
    return unsynced(shard)


def _not_less(what: str, requested: int | None, found: int) -> None:
    if requested is not None and requested < found:
        raise BadSpec(f"{what}: {requested} asked for, but this cluster has {found}, and that can't shrink")
