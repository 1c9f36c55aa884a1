"""Invariant 7, looked at in each round of the control loop: what is planned leads somewhere, and nothing is undone.

This module applies each plan to a model of the registry, with the same view of nodes and copies, and plans again, until
nothing is left to do. So the planner has to come to rest from each state that any seed comes across; and an action that
a later one takes back has no new cause, since nothing else has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

from delayoperator.control_loop import loop
from delayoperator.plan import (
    Action,
    AdoptCopies,
    ChangeSpec,
    CreateShard,
    Observed,
    RemoveEmptyShard,
    SetConditions,
    StartTerm,
    plan,
)
from delayregistry.model import ClusterSpec, ShardObject, ShardSpec, Version

if TYPE_CHECKING:
    from tests.simulation.support.world import World

MOST_STEPS = 12  # a step takes one action a shard; a shard's longest way has half as many


class Convergence:
    def __init__(self, world: World) -> None:
        self._world = world
        self._acted_ns = 0  # when the control loop last planned something
        self.plans = 0  # plans that had something to do

    def quiet_ns(self) -> int:
        """How long nothing has been left to do."""
        return self._world.scheduler.now_ns - self._acted_ns

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts, check each plan of the control loop."""

        def watched(desired: ClusterSpec, observed: Observed) -> list[Action]:
            actions = plan(desired, observed)
            if actions:
                self._acted_ns = self._world.scheduler.now_ns
                self.plans += 1
                self._follow(desired, observed, actions)
            return actions

        with patch.object(loop, "plan_isolating", watched):
            yield

    def _follow(self, desired: ClusterSpec, observed: Observed, actions: list[Action]) -> None:
        been = {_state(observed)}
        done: list[str] = []
        for _ in range(MOST_STEPS):
            if not actions:
                return
            done += [f"{type(action).__name__}: {action.reason}" for action in actions]
            observed = applied(observed, actions)
            state = _state(observed)
            if state in been:
                self._world.fail(f"invariant 7: the planner undoes what it has just done: {'; then '.join(done)}")
                return
            been.add(state)
            actions = plan(desired, observed)
        self._world.fail(f"invariant 7: the planner does not come to rest: {'; then '.join(done)}")


def applied(observed: Observed, actions: list[Action]) -> Observed:
    """The registry after these actions; nothing else has changed."""
    shards = {shard.name: shard for shard in observed.shards}
    copies, unclaimed = dict(observed.copies), dict(observed.unclaimed)
    for action in actions:
        match action:
            case CreateShard():
                uid = action.uid or len(shards) + 1
                spec = ShardSpec(uid, action.topic, action.queue, action.replicas, epoch=action.epoch)
                shards[spec.name] = ShardObject(spec.name, Version("0"), spec, action.status)
                copies |= {(spec.name, node): copy for node, copy in unclaimed.pop(uid, {}).items()}
            case RemoveEmptyShard():
                del shards[action.shard.name]
            case AdoptCopies():
                shards[action.shard.name] = replace(shards[action.shard.name], spec=action.spec, status=action.status)
            case StartTerm() | ChangeSpec():
                shards[action.shard.name] = replace(shards[action.shard.name], spec=action.spec)
            case SetConditions():
                shards[action.shard.name] = replace(shards[action.shard.name], conditions=action.conditions)
    return replace(observed, shards=tuple(shards.values()), copies=copies, unclaimed=unclaimed)


def _state(observed: Observed) -> frozenset[object]:
    """The state that the planner can change. A term begins once, so its epoch tells it from the one before."""
    return frozenset(
        (one.name, one.spec, one.status, tuple(replace(condition, since_ms=0) for condition in one.conditions))
        for one in observed.shards
    )
