"""plan(desired, observed) -> actions: pure, without I/O or clock (docs/control-plane.md).

Each round proposes at most one action per shard; the next round sees its effect. A round without actions means
that nothing is left to do until the world changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from delayregistry.model import ClusterSpec, Condition, ConditionType, ShardObject, ShardSpec, Switchover, shard_name

from delayoperator.plan import balance
from delayoperator.plan.adoption import was_adopted
from delayoperator.plan.bootstrap import (
    MakeEmpty,
    TakeUp,
    decide_missing,
    histories_by_shard,
    missing_shards,
    unheard_nodes,
)
from delayoperator.plan.moves import Held, SpecStep, begins, next_step
from delayoperator.plan.observed import (
    Action,
    AdoptCopies,
    ChangeSpec,
    CreateShard,
    Liveness,
    Observed,
    RemoveEmptyShard,
    SetConditions,
    StartTerm,
)
from delayoperator.plan.placement import Placement
from delayoperator.plan.replica_health import ReplicaHealth, classify_replicas
from delayoperator.plan.term import (
    UNCLEAN_FAILOVER,
    Adopt,
    Decision,
    GiveWay,
    Keep,
    Promote,
    Refuse,
    WaitForEvidence,
    decide_term,
    previous_master_exited,
)
from delayoperator.plan.topology import Topology

MAX_MOVES = 8  # copies on their way at a time: they share the disks and the network with the clients
MAX_SWITCHOVERS = 64  # at a time: each pauses its shard for a moment
UNKNOWN_TERMS = 100_000  # begun by nobody: 93 days of a term each 80 s (NotTakenUp); an epoch has 32 bits


def plan(desired: ClusterSpec, observed: Observed) -> list[Action]:
    return [*_missing_shards(desired, observed), *_shard_actions(desired, observed)]


def _missing_shards(desired: ClusterSpec, observed: Observed) -> Iterator[Action]:
    missing = set(missing_shards(desired, observed.shards))
    if not missing:
        return
    views = {node: observed.node(node) for node in desired.node_ids}
    unwelcome = {node for node, view in views.items() if view.liveness is Liveness.DEAD or view.stopping}
    placement = _placement(desired, observed, unwelcome.union(desired.drained))
    histories, unheard = histories_by_shard(observed), unheard_nodes(desired, observed)
    for topic in desired.topics:
        for queue in range(topic.queues):
            name = shard_name(topic.name, queue)
            if name not in missing:
                continue
            match decide_missing(desired, histories.get(name, {}), observed, unheard):
                case MakeEmpty():
                    replicas = placement.place(topic.name, desired.replicas)
                    wanted = f"topic {topic.name} wants {topic.queues} queues and {name} is missing"
                    yield CreateShard(topic.name, queue, replicas, f"{wanted}: to {', '.join(replicas)}")
                case TakeUp(uid, found):
                    placement.count(topic.name, found.spec.replicas)
                    spec, reason = found.spec, f"{name} has no object, its copies are there: {found.from_copies}"
                    yield CreateShard(topic.name, queue, spec.replicas, reason, uid, spec.epoch, found.status)


def _shard_actions(desired: ClusterSpec, observed: Observed) -> Iterator[Action]:
    steady: list[ShardObject] = []
    for shard in observed.shards:
        decision = decide_term(desired, shard, observed)
        if isinstance(decision, Keep):
            steady.append(shard)
        elif isinstance(decision, Adopt):
            yield AdoptCopies(shard, decision.found.spec, decision.found.status, decision.reason)
        elif isinstance(decision, GiveWay):
            yield RemoveEmptyShard(shard, decision.reason)
        elif isinstance(decision, Promote):
            yield _start_term(desired, shard, decision, vacant=previous_master_exited(shard, observed))
        else:
            yield from _condition_changes(desired, shard, decision, None)
    yield from _steady_actions(desired, steady, observed)


def _next_epoch(spec: ShardSpec) -> int:
    """An object that was made from copies has an epoch and no master. Copies know of the terms that were begun only; an
    epoch that was given to a process and never begun must not be given to another, for an object of then may be put
    back (seed 64668)."""
    return spec.epoch + 1 + (UNKNOWN_TERMS if was_adopted(spec) else 0)


def _start_term(desired: ClusterSpec, shard: ShardObject, choice: Promote, *, vacant: bool) -> Action:
    epoch, risk = _next_epoch(shard.spec), choice.risk
    unclean = risk is not None and risk.reason == UNCLEAN_FAILOVER and bool(shard.unclean_allowed_by)
    spec = replace(
        shard.spec,
        master=choice.node,
        epoch=epoch,
        incarnation=choice.incarnation,
        switchover=None,  # what was asked of the old master ends with its term
        leaving=tuple(node for node in shard.spec.leaving if node != choice.node),
        vacant=vacant,
        unclean_epoch=epoch if unclean else 0,
    )
    risks = [] if risk is None else [Condition(ConditionType.RISKED, risk.reason, risk.message, epoch=spec.epoch)]
    if risks != [it for it in unstamped(shard) if it.type is ConditionType.RISKED and it.epoch == spec.epoch]:
        # Said first: once the term has begun nothing shows any more what it may have cost.
        conditions = (*risks, *_surplus(desired, shard))
        return SetConditions(shard, conditions, risk.message if risk else "nothing is risked after all")
    return StartTerm(shard, spec, f"{choice.reason}; epoch {spec.epoch} begins")


def _steady_actions(desired: ClusterSpec, shards: Sequence[ShardObject], observed: Observed) -> Iterator[Action]:
    load = _placement(desired, observed, balance.unplaceable(desired, observed))
    served = [it for it in shards if it.status is not None and it.status.serving_epoch == it.spec.epoch]
    leads = balance.choose_masters(desired, served, observed, load)
    aims = balance.choose_targets(desired, [shard for shard in served if shard.name not in leads], observed, load)
    moves = sum(_is_moving(shard, observed) for shard in observed.shards)
    switchovers = sum(shard.spec.switchover is not None for shard in observed.shards)
    for shard in shards:
        lead, aim = leads.get(shard.name), aims.get(shard.name)
        if lead is not None and switchovers < MAX_SWITCHOVERS:
            switchovers += 1
            yield ChangeSpec(shard, replace(shard.spec, switchover=Switchover(lead.to)), lead.reason)
            continue
        if isinstance(aim, balance.TargetChoice):
            reason = f"{aim.reason}: copies are to be on {', '.join(aim.target)}"
            yield ChangeSpec(shard, replace(shard.spec, target=aim.target), reason)
            continue
        forgotten = balance.outdated(desired, shard, observed)
        if forgotten is not None:
            yield ChangeSpec(shard, forgotten, "a node that a rebalance moved it from or to begins anew")
            continue
        step = next_step(shard, observed, load, may_begin=moves < MAX_MOVES)
        if isinstance(step, SpecStep):
            moves += begins(shard)
            yield ChangeSpec(shard, step.spec, step.reason)
            continue
        yield from _condition_changes(desired, shard, Keep(), step or aim or _unsure(shard, observed))


def _placement(desired: ClusterSpec, observed: Observed, avoid: Set[str]) -> Placement:
    topology = Topology({node: view.location for node, view in observed.nodes.items()})
    return Placement((shard.spec for shard in observed.shards), desired.node_ids, topology, avoid=avoid)


def _is_moving(shard: ShardObject, observed: Observed) -> bool:
    """A copy of it is on its way. A copy whose node is away holds up no other move."""
    target = shard.spec.target
    if target is None or begins(shard):
        return False
    return all(observed.node(node).liveness is not Liveness.DEAD for node in target)


def _unsure(shard: ShardObject, observed: Observed) -> WaitForEvidence | None:
    """Whether the last report about a move may still be true: a node gave no answer."""
    spec = shard.spec
    if spec.switchover is None and spec.target is None:
        return None
    return WaitForEvidence() if ReplicaHealth.UNCERTAIN in classify_replicas(shard, observed).values() else None


def _condition_changes(
    desired: ClusterSpec, shard: ShardObject, decision: Decision, held: Held | WaitForEvidence | None
) -> Iterator[SetConditions]:
    """The conditions as they should be, where they are not."""
    before = unstamped(shard)
    conditions = [it for it in before if it.type is ConditionType.RISKED and it.epoch == shard.spec.epoch]
    if isinstance(decision, Refuse):
        conditions.append(Condition(ConditionType.BLOCKED, decision.reason, decision.message))
    elif isinstance(decision, WaitForEvidence):
        # Nothing new is known, so what was said before stands.
        conditions += [it for it in before if it.type in (ConditionType.BLOCKED, ConditionType.HELD)]
    if isinstance(held, Held):
        conditions.append(Condition(ConditionType.HELD, held.reason, held.message))
    elif isinstance(held, WaitForEvidence):
        conditions += [it for it in before if it.type is ConditionType.HELD]
    conditions += _surplus(desired, shard)
    if tuple(conditions) != before:
        reason = "; ".join(condition.message for condition in conditions) or "what was wrong is over"
        yield SetConditions(shard, tuple(conditions), reason)


def unstamped(shard: ShardObject) -> tuple[Condition, ...]:
    """Its conditions without the time, which a plan does not know."""
    return tuple(replace(condition, since_ms=0) for condition in shard.conditions)


def _surplus(desired: ClusterSpec, shard: ShardObject) -> Iterator[Condition]:
    spec = shard.spec
    topic = desired.topic(spec.topic)
    if topic is None:
        message = f"topic {spec.topic} is no longer wanted; the shard keeps its messages and goes on serving"
        yield Condition(ConditionType.SURPLUS, "TopicRemoved", message)
    elif spec.queue >= topic.queues:
        message = f"topic {spec.topic} has {topic.queues} queues now; the shard keeps its messages and goes on serving"
        yield Condition(ConditionType.SURPLUS, "FewerQueues", message)
