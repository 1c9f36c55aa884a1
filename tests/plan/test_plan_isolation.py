"""One wrong object stops nothing but its own shard: the planner goes on with all others, and says which it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delayoperator.plan import Action, CreateShard, Observed, SetConditions, StartTerm, plan_isolating, planner
from delayoperator.plan.term import Decision, decide_term
from delayregistry.codec import BadRecord, from_json, to_json
from delayregistry.model import BadSpec, ClusterSpec, ConditionType, ShardObject, ShardSpec

from tests.plan.cluster import Cluster
from tests.plan.test_plan_moving import cluster, settle, want


def fail_on(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The planner meets something that it does not expect in these shards' objects."""

    def decide(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> Decision:
        if shard.name in names:
            raise KeyError(f"nobody expected {shard.name}")
        return decide_term(desired, shard, seen)

    monkeypatch.setattr(planner, "decide_term", decide)


def planned(world: Cluster) -> list[Action]:
    actions = plan_isolating(world.spec, world.observed())
    for action in actions:
        world.apply(action)
    return actions


@pytest.mark.parametrize("wrong", [["t-0"], ["t-3", "t-7"], ["t-0", "t-1", "t-2", "t-8"]])
def test_a_shard_that_the_planner_fails_on_keeps_no_other_from_its_failover(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = cluster(nodes=3, queues=9, replicas=2)
    fail_on(monkeypatch, *wrong)
    before = {name: shard.spec for name, shard in world.shards.items()}
    led = {name for name, spec in before.items() if spec.master == "n1"}
    world.kill("n1")
    actions = planned(world)
    terms = {action.shard.name for action in actions if isinstance(action, StartTerm)}
    assert terms == led - set(wrong)
    assert not any(isinstance(action, CreateShard) for action in actions), "a shard that is there is made again"
    for name in wrong:
        (condition,) = world.shards[name].conditions
        assert (condition.type, condition.reason) == (ConditionType.BLOCKED, "NotPlanned")
        assert f"nobody expected {name}" in condition.message
        assert world.shards[name].spec == before[name], "it is left as it is"
    assert not any(isinstance(action, SetConditions) for action in planned(world)), "it is said once"


def test_a_shard_that_was_corrected_is_planned_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster(nodes=3, queues=3, replicas=2)
    with monkeypatch.context() as broken:
        fail_on(broken, "t-1")
        planned(world)
    settle(world)
    assert not any(shard.conditions for shard in world.shards.values())


def test_a_fault_that_no_single_shard_is_to_blame_for_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster(nodes=3, queues=3, replicas=2)

    def surprised(desired: ClusterSpec, observed: Observed, avoid: object) -> None:
        if len(observed.shards) == 3:
            raise KeyError("all three")

    monkeypatch.setattr(planner, "_placement", surprised)
    monkeypatch.setattr(planner, "_missing_shards", lambda desired, observed: planner._placement(desired, observed, ()))
    monkeypatch.setattr(planner, "_shard_actions", lambda desired, observed: ())
    with pytest.raises((KeyError, TypeError)):
        plan_isolating(world.spec, world.observed())


@pytest.mark.parametrize("field", ["replicas", "target"])
@pytest.mark.parametrize(("nodes", "fault"), [((), "names no node"), (("n0", "n0"), "names a node twice: n0, n0")])
def test_a_shard_without_nodes_can_not_be_made_or_read(field: str, nodes: tuple[str, ...], fault: str) -> None:
    """Both would end every round of the control loop."""
    sound = ShardSpec(7, "t", 0, ("n0", "n1"), target=("n1", "n2"))
    with pytest.raises(BadSpec, match=f"shard t-0: {field} {fault}"):
        replace(sound, **{field: nodes})  # type: ignore[arg-type]
    with pytest.raises(BadRecord, match=fault):
        from_json(ShardSpec, {**to_json(sound), field: list(nodes)})


@pytest.mark.parametrize("field", ["replicas", "target"])
def test_copies_on_nodes_that_the_cluster_does_not_have_are_made_elsewhere(field: str) -> None:
    """A person mistyped a node's name. It once held the shard at one copy, or in an endless move, without a word."""
    world = cluster(nodes=3, queues=2, replicas=2)
    if field == "replicas":
        master = world.shards["t-0"].spec.master
        assert master is not None
        shard = world.shards["t-0"]
        world._put(replace(shard, spec=replace(shard.spec, replicas=(master, "n33"))))
    else:
        want(world, "t-0", target=("n33", "n1"))
    settle(world)
    spec = world.shards["t-0"].spec
    assert set(spec.replicas) <= set(world.spec.node_ids)
    assert (len(spec.replicas), spec.target, world.faults()) == (2, None, [])
