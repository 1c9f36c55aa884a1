"""Shards, nodes and copies for the tables of which node may start a term, and the planner's actions for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from delayoperator.plan import (
    ChangeSpec,
    CopyView,
    CreateShard,
    Liveness,
    NotBegun,
    Observed,
    ObservedNode,
    SetConditions,
    StartTerm,
    plan,
)
from delayregistry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
)

CLUSTER = ClusterSpec("local", 3, (TopicSpec("orders", 1),))
SOLE = ShardSpec(1, "orders", 0, ("n1",), master="n1", epoch=4, incarnation="first")
PAIR = replace(SOLE, replicas=("n1", "n2"))
THREE = replace(SOLE, replicas=("n0", "n1", "n2"))
NONE: Mapping[str, CopyView] = {}


def alive(incarnation: str) -> ObservedNode:
    return ObservedNode(Liveness.ALIVE, incarnation)


def dead(incarnation: str) -> ObservedNode:
    return ObservedNode(Liveness.DEAD, incarnation)


def unsure(incarnation: str | None = None) -> ObservedNode:
    return ObservedNode(Liveness.UNCERTAIN, incarnation)


def copy(entry: str, log_epoch: int, log_end: int, **more: Any) -> CopyView:
    """A copy as the node's present process would report it; planned() fills in the incarnation."""
    return CopyView(entry, more.pop("incarnation", ""), more.pop("epoch", log_epoch), log_epoch, log_end, **more)


def shard(spec: ShardSpec, *in_sync: str, conditions: tuple[Condition, ...] = (), **status: Any) -> ShardObject:
    """A shard. With in-sync entries, the process that the spec names serves it."""
    served = ShardStatus(status.pop("serving_epoch", spec.epoch), spec.incarnation or "", in_sync, **status)
    return ShardObject(spec.name, Version("1"), spec, served if in_sync else None, conditions)


def planned(
    it: ShardObject,
    nodes: Mapping[str, ObservedNode],
    copies: Mapping[str, CopyView] = NONE,
    *,
    answered: Iterable[str] = (),
    unfit: Mapping[str, str] | None = None,
    late: NotBegun | None = None,
    cluster: ClusterSpec | None = None,
    by_another: bool = False,
) -> StartTerm | SetConditions | ChangeSpec | None:
    """The one action for the shard, or None. Each node with a copy has answered, as the process of its lease."""
    by_shard = {
        (it.name, node): replace(view, incarnation=view.incarnation or nodes[node].incarnation or "")
        for node, view in copies.items()
    }
    cluster = cluster or replace(CLUSTER, replicas=len(it.spec.replicas))
    heard = {node: nodes[node].incarnation or "" for node in answered}
    heard |= {node: view.incarnation for (_, node), view in by_shard.items()}
    seen = Observed((it,), nodes, by_shard, heard, unfit or {})
    if late is not None:
        seen = replace(seen, not_begun={(it.spec.uid, it.spec.epoch): late})
    if by_another:
        seen = replace(seen, served_by_another=frozenset({(it.spec.uid, it.spec.epoch)}))
    actions = plan(cluster, seen)
    assert len(actions) <= 1
    action = actions[0] if actions else None
    assert not isinstance(action, CreateShard)
    return action


def term(action: StartTerm | SetConditions | ChangeSpec | None) -> tuple[str | None, int, str | None]:
    assert isinstance(action, StartTerm)
    return action.spec.master, action.spec.epoch, action.spec.incarnation


def refusal(action: StartTerm | SetConditions | ChangeSpec | None) -> str:
    assert isinstance(action, SetConditions)
    (condition,) = action.conditions
    assert condition.type is ConditionType.BLOCKED
    assert condition.message
    return condition.reason


BOTH = {"n1": alive("first"), "n2": alive("x")}
