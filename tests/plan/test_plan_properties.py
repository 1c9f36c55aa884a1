"""From any world, under any interleaving of deaths, restarts, wishes and half-applied plans: the planner's invariants
(DESIGN section 11: 3, 7 and 5.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from delaynode.registry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    ShardObject,
    ShardSpec,
    ShardStatus,
    TopicSpec,
    Version,
    shard_name,
)
from delayoperator.plan import (
    Action,
    CopyView,
    CreateShard,
    Liveness,
    NodeView,
    Observed,
    SetConditions,
    StartReign,
    plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

NODES = ("n0", "n1", "n2")
node_ids = st.sampled_from(NODES)
incarnations = st.sampled_from(["a", "b", "c"])
node_views = st.builds(
    lambda liveness, incarnation: NodeView(liveness if incarnation else Liveness.UNCERTAIN, incarnation),
    st.sampled_from(Liveness),
    st.none() | incarnations,
)
blocked = st.builds(Condition, st.just(ConditionType.BLOCKED), st.just("NodeAway"), st.just("gone"), st.just(5))


@st.composite
def any_shard(draw: st.DrawFn, topic: str, queue: int) -> ShardObject:
    replicas = tuple(draw(st.lists(node_ids, min_size=1, max_size=3, unique=True)))
    spec = ShardSpec(queue + 1, topic, queue, replicas)
    if draw(st.booleans()):
        spec = replace(
            spec,
            master=draw(st.sampled_from(replicas)),
            epoch=draw(st.integers(1, 9)),
            incarnation=draw(incarnations),
        )
    status = None
    if spec.epoch and draw(st.booleans()):
        in_sync = tuple(draw(st.lists(st.sampled_from([f"c-{node}" for node in replicas]), min_size=1, unique=True)))
        status = ShardStatus(draw(st.integers(1, spec.epoch)), draw(incarnations), in_sync)
    conditions = (draw(blocked),) if draw(st.booleans()) else ()
    return ShardObject(spec.name, Version("0"), spec, status, conditions)


@st.composite
def any_world(draw: st.DrawFn) -> tuple[ClusterSpec, Observed]:
    topics = tuple(TopicSpec(name, draw(st.integers(1, 5))) for name in draw(st.sets(st.sampled_from("abc"))))
    cluster = ClusterSpec("local", 3, topics, replicas=draw(st.integers(1, 3)))
    keys = draw(st.sets(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=6))
    shards = tuple(draw(any_shard(topic, queue)) for topic, queue in sorted(keys))
    nodes = draw(st.dictionaries(node_ids, node_views))
    copies = {
        (shard.name, node): CopyView(f"c-{node}", draw(st.integers(0, 9)), draw(st.integers(0, 3)), draw(st.booleans()))
        for shard in shards
        for node in shard.spec.replicas
        if draw(st.booleans())
    }
    return cluster, Observed(shards, nodes, copies)


def applied(shards: Mapping[str, ShardObject], action: Action) -> dict[str, ShardObject]:
    """The world after an action, as a registry would have it: refused at another version."""
    after = dict(shards)
    if isinstance(action, CreateShard):
        name = shard_name(action.topic, action.queue)
        if name not in after:
            spec = ShardSpec(7, action.topic, action.queue, action.replicas)
            after[name] = ShardObject(name, Version("0"), spec)
        return after
    current = after[action.shard.name]
    if current.version == action.shard.version:
        version = Version(str(int(current.version) + 1))
        if isinstance(action, StartReign):
            after[current.name] = replace(current, version=version, spec=action.spec)
        else:
            stamped = tuple(replace(condition, since_ms=1) for condition in action.conditions)
            after[current.name] = replace(current, version=version, conditions=stamped)
    return after


def check(action: Action, observed: Observed) -> None:
    """What no single action may do, whatever the world looks like."""
    assert action.reason
    if isinstance(action, CreateShard):
        assert len(set(action.replicas)) == len(action.replicas) > 0
        return
    shard = action.shard
    if isinstance(action, SetConditions):
        assert action.conditions != shard.conditions
        return
    new, old = action.spec, shard.spec
    assert new.epoch == old.epoch + 1
    assert (new.uid, new.topic, new.queue, new.replicas) == (old.uid, old.topic, old.queue, old.replicas)
    assert new.master in old.replicas
    view = observed.node(new.master)
    assert view.liveness is not Liveness.DEAD
    assert new.incarnation == view.incarnation is not None
    if shard.status is not None and len(old.replicas) > 1:
        copy = observed.copies[shard.name, new.master]
        assert copy.copy_id in shard.status.in_sync
        assert not copy.damaged
        rivals = [
            other
            for node in old.replicas
            if (other := observed.copies.get((shard.name, node))) is not None
            and other.copy_id in shard.status.in_sync
            and not other.damaged
            and observed.node(node).liveness is Liveness.ALIVE
        ]
        assert (copy.epoch, copy.log_end) == max((other.epoch, other.log_end) for other in rivals)


@settings(max_examples=500, deadline=None)
@given(any_world())
def test_plans_converge_from_any_world_and_then_nothing_moves(world: tuple[ClusterSpec, Observed]) -> None:
    cluster, observed = world
    shards = {shard.name: shard for shard in observed.shards}
    for _ in range(4):  # create, reign, conditions: and then none
        now = replace(observed, shards=tuple(shards.values()))
        actions = plan(cluster, now)
        touched = [a.shard.name for a in actions if not isinstance(a, CreateShard)]
        assert len(set(touched)) == len(touched)
        for action in actions:
            check(action, now)
            shards = applied(shards, action)
    assert actions == []
    for topic in cluster.topics:
        assert all(shard_name(topic.name, queue) in shards for queue in range(topic.queues))
    for shard in shards.values():
        spec = shard.spec
        if len(spec.replicas) == 1 and observed.node(spec.replicas[0]).liveness is Liveness.ALIVE:
            assert spec.incarnation == observed.node(spec.replicas[0]).incarnation
            assert all(condition.type is not ConditionType.BLOCKED for condition in shard.conditions)


@settings(deadline=None)
@given(any_world())
def test_a_plan_depends_on_nothing_but_its_arguments(world: tuple[ClusterSpec, Observed]) -> None:
    assert plan(*world) == plan(*world)


class Life(RuleBasedStateMachine):
    """A cluster's life: nodes die and return as new processes, masters take up reigns, wishes change, and an operator
    acts on observations that may be old by the time it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: dict[str, ShardObject] = {}
        self.nodes: dict[str, NodeView] = {}
        self.started = 0
        self.pending: list[Action] = []
        self.reigns: dict[tuple[str, int], tuple[str | None, str | None]] = {}

    @initialize(replicas=st.integers(1, 2))
    def wish(self, replicas: int) -> None:
        self.cluster = ClusterSpec("local", 3, (TopicSpec("a", 3),), replicas=replicas)

    def observed(self) -> Observed:
        copies = {
            (shard.name, node): CopyView(f"c-{node}", shard.spec.epoch, 10)
            for shard in self.shards.values()
            for node in shard.spec.replicas
            if self.nodes.get(node, NodeView(Liveness.UNCERTAIN)).liveness is Liveness.ALIVE and shard.status
        }
        return Observed(tuple(self.shards.values()), dict(self.nodes), copies)

    @rule(node=node_ids)
    def a_node_starts(self, node: str) -> None:
        self.started += 1
        self.nodes[node] = NodeView(Liveness.ALIVE, f"process-{self.started}")

    @rule(node=node_ids, liveness=st.sampled_from(Liveness))
    def a_node_is_seen_differently(self, node: str, liveness: Liveness) -> None:
        if node in self.nodes:
            self.nodes[node] = replace(self.nodes[node], liveness=liveness)

    @rule(topic=st.sampled_from("ab"), queues=st.integers(1, 5))
    def somebody_wants_queues(self, topic: str, queues: int) -> None:
        topics = {it.name: it for it in self.cluster.topics} | {topic: TopicSpec(topic, queues)}
        self.cluster = replace(self.cluster, topics=tuple(topics.values()))

    @rule(topic=st.sampled_from("ab"))
    def somebody_removes_a_topic(self, topic: str) -> None:
        self.cluster = replace(self.cluster, topics=tuple(it for it in self.cluster.topics if it.name != topic))

    @rule()
    def the_operator_looks(self) -> None:
        now = self.observed()
        self.pending = plan(self.cluster, now)
        for action in self.pending:
            check(action, now)

    @rule(count=st.integers(1, 10))
    def the_operator_writes(self, count: int) -> None:
        for action in self.pending[:count]:
            self.apply(action)
        self.pending = self.pending[count:]

    @rule()
    def a_second_operator_acts(self) -> None:
        for action in plan(self.cluster, self.observed()):
            self.apply(action)

    @rule(data=st.data())
    def a_master_takes_up_its_reign(self, data: st.DataObject) -> None:
        ready = [
            shard
            for shard in self.shards.values()
            if shard.spec.master in self.nodes
            and self.nodes[shard.spec.master].incarnation == shard.spec.incarnation
            and (shard.status is None or shard.status.serving_epoch < shard.spec.epoch)
        ]
        if ready:
            shard = data.draw(st.sampled_from(ready))
            assert shard.spec.incarnation is not None
            keep = [f"c-{node}" for node in shard.spec.replicas if node != shard.spec.master]
            in_sync = (
                f"c-{shard.spec.master}",
                *data.draw(st.lists(st.sampled_from(keep), unique=True) if keep else st.just([])),
            )
            status = ShardStatus(shard.spec.epoch, shard.spec.incarnation, in_sync)
            version = Version(str(int(shard.version) + 1))
            self.shards[shard.name] = replace(shard, version=version, status=status)

    def apply(self, action: Action) -> None:
        before = self.shards
        self.shards = applied(before, action)
        for name, shard in self.shards.items():
            old = before.get(name)
            assert old is None or shard.spec.epoch >= old.spec.epoch
            if old is None or shard.spec.epoch > old.spec.epoch:
                # One (node, process) per epoch, and that for ever.
                assert (name, shard.spec.epoch) not in self.reigns
            self.reigns[name, shard.spec.epoch] = (shard.spec.master, shard.spec.incarnation)

    @invariant()
    def a_reign_never_changes_hands(self) -> None:
        for name, shard in self.shards.items():
            assert self.reigns[name, shard.spec.epoch] == (shard.spec.master, shard.spec.incarnation)

    @invariant()
    def no_shard_is_ever_deleted(self) -> None:
        assert {name for name, _ in self.reigns} == set(self.shards)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        for _ in range(4):
            actions = plan(self.cluster, self.observed())
            for action in actions:
                self.apply(action)
        assert actions == []


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
