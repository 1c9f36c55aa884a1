"""From any world, under any interleaving of deaths, restarts, moves, spec and half-applied plans: the planner's
invariants (docs/protocol.md: invariants 3 and 7, and section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from delayoperator.plan import (
    Action,
    AdoptCopies,
    ChangeSpec,
    CopyView,
    CreateShard,
    Liveness,
    Observed,
    ObservedNode,
    ObservedRole,
    RemoveEmptyShard,
    SetConditions,
    plan,
    report_orphans,
)
from delayoperator.plan.planner import UNKNOWN_TERMS
from delayoperator.plan.topology import NodeLocation
from delayregistry.model import (
    BootstrapVolumes,
    ClusterSpec,
    Condition,
    ConditionType,
    Handover,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Switchover,
    TopicSpec,
    Version,
    shard_name,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.plan.cluster import Cluster

NAMES = ("local", "local", "local", "other", "")  # of the clusters that copies on disks are of
PARTIAL = (ObservedRole.FETCHING, ObservedRole.LEAVING)
NODES = ("n0", "n1", "n2", "n3")
node_ids = st.sampled_from(NODES)
incarnations = st.sampled_from(["a", "b", "c"])
locations = st.sampled_from(
    [NodeLocation(), *(NodeLocation(*it) for it in (("m1", "a"), ("m2", "a"), ("m3", "b"), ("m4", ""), ("", "b")))]
)
node_views = st.builds(
    lambda liveness, incarnation, stopping, gone, settled, at: ObservedNode(
        liveness if incarnation else Liveness.UNCERTAIN,
        incarnation,
        stopping=stopping,
        replaceable=gone and liveness is Liveness.DEAD,
        stable=settled,
        zone=at.zone,
        machine=at.machine,
    ),
    st.sampled_from(Liveness),
    st.none() | incarnations,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    locations,
)
conditions = st.builds(
    Condition,
    st.sampled_from(ConditionType),
    st.just("NodeAway"),
    st.just("gone"),
    st.just(5),
    st.integers(0, 9),
)
some_nodes = st.lists(node_ids, min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def any_shard(draw: st.DrawFn, topic: str, queue: int) -> ShardObject:
    replicas = draw(some_nodes)
    spec = ShardSpec(queue + 1, topic, queue, replicas)
    if draw(st.booleans()):
        spec = replace(
            spec,
            master=draw(st.sampled_from(replicas)),
            epoch=draw(st.integers(1, 9)),
            incarnation=draw(incarnations),
            switchover=draw(st.none() | st.builds(Switchover, node_ids)),
            target=draw(st.none() | some_nodes),
            leaving=tuple(draw(st.lists(st.sampled_from(replicas), unique=True, max_size=1))),
            unclean_epoch=draw(st.integers(0, 9)),
        )
    status = None
    if spec.epoch and draw(st.booleans()):
        in_sync = tuple(draw(st.lists(st.sampled_from([f"c-{node}" for node in replicas]), min_size=1, unique=True)))
        handover = draw(st.none() | st.builds(Handover, st.just(spec.epoch), st.integers(0, 3)))
        resigned = draw(st.none() | st.just("slow"))
        status = ShardStatus(draw(st.integers(1, spec.epoch)), draw(incarnations), in_sync, handover, resigned)
    found = tuple(draw(st.lists(conditions, max_size=2)))
    return ShardObject(spec.name, Version("0"), spec, status, found, draw(st.sampled_from(["", "kim"])))


@st.composite
def stored_copies(draw: st.DrawFn) -> Mapping[str, CopyView]:
    """Copies of one uid that no object has, by node."""
    topic, queue = draw(st.sampled_from("abcd")), draw(st.integers(0, 5))
    numbers = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))
    views = st.builds(
        lambda three, role, cluster: CopyView("c", "a", *three, role=role, topic=topic, queue=queue, cluster=cluster),
        numbers,
        st.sampled_from(ObservedRole),
        st.sampled_from(NAMES),
    )
    return draw(st.dictionaries(node_ids, views, min_size=1, max_size=3))


@st.composite
def any_world(draw: st.DrawFn) -> tuple[ClusterSpec, Observed]:
    topics = tuple(TopicSpec(name, draw(st.integers(1, 5))) for name in sorted(draw(st.sets(st.sampled_from("abc")))))
    cluster = ClusterSpec(
        "local",
        4,
        topics,
        replicas=draw(st.integers(1, 3)),
        drained=tuple(draw(st.lists(node_ids, unique=True, max_size=2))),
        allow_unclean_failover=draw(st.booleans()),
        bootstrap_volumes=draw(st.sampled_from(BootstrapVolumes)),
    )
    keys = draw(st.sets(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=6))
    shards = tuple(draw(any_shard(topic, queue)) for topic, queue in sorted(keys))
    nodes = draw(st.dictionaries(node_ids, node_views))
    copies = {
        (shard.name, node): CopyView(
            draw(st.sampled_from([f"c-{node}", f"c-{node}@boot", "other", ""])),
            draw(incarnations),
            draw(st.integers(0, 9)),
            draw(st.integers(0, 9)),
            draw(st.integers(0, 3)),
            damaged=draw(st.none() | st.just("rot")),
            role=draw(st.sampled_from(ObservedRole)),
        )
        for shard in shards
        for node in shard.spec.replicas
        if draw(st.booleans())
    }
    answered = draw(st.dictionaries(node_ids, incarnations))
    unfit = draw(st.dictionaries(node_ids, st.just("its clock"), max_size=1))
    ended = draw(st.frozensets(incarnations, max_size=2))
    unclaimed = {uid: draw(stored_copies()) for uid in draw(st.sets(st.integers(100, 103)))}
    return cluster, Observed(shards, nodes, copies, answered, unfit, ended, unclaimed=unclaimed)


def applied(shards: Mapping[str, ShardObject], action: Action) -> dict[str, ShardObject]:
    """The world after an action, as a registry would have it: refused at another version."""
    after = dict(shards)
    if isinstance(action, CreateShard):
        name = shard_name(action.topic, action.queue)
        spec = ShardSpec(action.uid or 7, action.topic, action.queue, action.replicas, epoch=action.epoch)
        after.setdefault(name, ShardObject(name, Version("0"), spec, action.status))
        return after
    current = after[action.shard.name]
    assert current.version == action.shard.version
    version = Version(str(int(current.version) + 1))
    if isinstance(action, RemoveEmptyShard):
        del after[current.name]
    elif isinstance(action, SetConditions):
        stamped = tuple(replace(condition, since_ms=1) for condition in action.conditions)
        after[current.name] = replace(current, version=version, conditions=stamped)
    elif isinstance(action, AdoptCopies):
        after[current.name] = replace(current, version=version, spec=action.spec, status=action.status)
    else:
        after[current.name] = replace(current, version=version, spec=action.spec)
    return after


def check(cluster: ClusterSpec, action: Action, observed: Observed) -> None:
    """Check the rules that no single action may break, whatever the world looks like."""
    assert action.reason
    if isinstance(action, CreateShard):
        assert len(set(action.replicas)) == len(action.replicas) > 0
        check_made(cluster, action, observed)
        return
    shard = action.shard
    if isinstance(action, RemoveEmptyShard):
        assert (shard.spec.epoch, shard.spec.master, shard.status) == (0, None, None), "nothing was accepted in it"
        assert cluster.bootstrap_volumes is not BootstrapVolumes.IGNORE
        assert not [copy for node in NODES if (copy := observed.copies.get((shard.name, node))) and copy.log_end > 0]
        assert any(copy.shard == shard.name for copies in observed.unclaimed.values() for copy in copies.values())
        return
    if isinstance(action, AdoptCopies):
        assert shard.status is None
        assert cluster.bootstrap_volumes is BootstrapVolumes.ADOPT
        assert (action.spec.uid, action.spec.name, action.spec.master) == (shard.spec.uid, shard.name, None)
        assert action.spec.epoch == action.status.serving_epoch >= shard.spec.epoch
        return
    if isinstance(action, SetConditions):
        assert action.conditions != shard.conditions
        assert all(condition.message for condition in action.conditions)
        return
    new, old = action.spec, shard.spec
    assert (new.uid, new.topic, new.queue) == (old.uid, old.topic, old.queue)
    assert len(set(new.replicas)) == len(new.replicas) > 0
    if isinstance(action, ChangeSpec):
        assert new != old
        assert (new.master, new.epoch, new.incarnation) == (old.master, old.epoch, old.incarnation)
        if new.leaving != old.leaving:
            assert set(new.leaving) <= set(new.replicas) - {new.master}
        check_dropped(action, observed)
        return
    was_adopted = old.epoch > 0 and old.master is None
    assert new.epoch == old.epoch + 1 + (UNKNOWN_TERMS if was_adopted else 0)
    assert new.replicas == old.replicas
    assert new.master in old.replicas
    if old.epoch == 0 and cluster.bootstrap_volumes is not BootstrapVolumes.IGNORE:
        check_empty(cluster, shard.name, observed)
    view = observed.node(new.master)
    assert view.liveness is not Liveness.DEAD
    assert new.incarnation == view.incarnation is not None
    assert new.incarnation not in observed.ended
    served = shard.status is not None and shard.status.serving_epoch == old.epoch
    assert not new.vacant or (served and old.incarnation in observed.ended)
    if shard.status is not None and len(old.replicas) > 1:
        copy = observed.copies.get((shard.name, new.master))
        if copy is None or copy.incarnation != new.incarnation:
            assert len(shard.status.in_sync) == len(old.replicas), "without an answer it must be sure that it is named"
            assert (view.liveness, view.stable) == (Liveness.ALIVE, True)
            assert new.master != old.master
            return
        assert not copy.damaged
        risks = [it for it in shard.conditions if it.type is ConditionType.RISKED and it.epoch == new.epoch]
        assert copy.replica_id in shard.status.in_sync or [it.reason for it in risks] in (
            ["AllRebooted"],
            ["UncleanFailover"] if cluster.allow_unclean_failover or shard.unclean_allowed_by else [],
        )
        assert new.unclean_epoch in (0, new.epoch if shard.unclean_allowed_by else 0)


def check_made(cluster: ClusterSpec, action: CreateShard, observed: Observed) -> None:
    """Nothing that was stored is hidden by an empty shard, unless people said so."""
    if cluster.bootstrap_volumes is BootstrapVolumes.IGNORE:
        assert action.uid is None
        return
    if action.uid is None:
        check_empty(cluster, action.name, observed)
        return
    check_heard(cluster, observed)
    assert cluster.bootstrap_volumes is BootstrapVolumes.ADOPT
    copies = observed.unclaimed[action.uid]
    assert {copy.cluster for copy in copies.values()} == {cluster.name}
    assert action.epoch == max(copy.epoch for copy in copies.values() if copy.role not in PARTIAL)
    assert set(action.replicas) <= copies.keys()


def check_heard(cluster: ClusterSpec, observed: Observed) -> None:
    for node in cluster.node_ids:
        view = observed.node(node)
        assert view.replaceable or observed.answered[node] == view.incarnation, "a node has not said what it has"


def check_empty(cluster: ClusterSpec, name: str, observed: Observed) -> None:
    check_heard(cluster, observed)
    copies = [copy for copies in observed.unclaimed.values() for copy in copies.values() if copy.shard == name]
    assert not [copy for copy in copies if copy.role not in PARTIAL and copy.log_end > 0]


def check_dropped(action: ChangeSpec, observed: Observed) -> None:
    shard = action.shard
    dropped = set(shard.spec.replicas) - set(action.spec.replicas)
    if dropped:
        assert shard.status is not None
        assert action.spec.master not in dropped
        staying = {
            copy.replica_id
            for node in action.spec.replicas
            if (copy := observed.copies.get((shard.name, node))) is not None
            and copy.incarnation == observed.node(node).incarnation
        }
        assert set(shard.status.in_sync) <= staying


@settings(max_examples=500, deadline=None)
@given(any_world())
def test_plans_converge_from_any_world_and_then_nothing_moves(world: tuple[ClusterSpec, Observed]) -> None:
    cluster, observed = world
    shards = {shard.name: shard for shard in observed.shards}
    for _ in range(20):  # far fewer are needed: the nodes do nothing meanwhile
        now = replace(observed, shards=tuple(shards.values()))
        actions = plan(cluster, now)
        touched = [a.shard.name for a in actions if not isinstance(a, CreateShard)]
        assert len(set(touched)) == len(touched)
        for action in actions:
            check(cluster, action, now)
            shards = applied(shards, action)
        if not actions:
            break
    assert actions == []
    waits = report_orphans(cluster, replace(observed, shards=tuple(shards.values())))
    explained = {*waits.waiting, *(said.partition(":")[0] for said in waits.orphans)}
    for topic in cluster.topics:
        names = {shard_name(topic.name, queue) for queue in range(topic.queues)}
        assert names <= shards.keys() | explained, "made, or it is said why not"


@settings(deadline=None)
@given(any_world())
def test_a_plan_depends_on_nothing_but_its_arguments(world: tuple[ClusterSpec, Observed]) -> None:
    assert plan(*world) == plan(*world)


class Life(RuleBasedStateMachine):
    """A cluster's life: nodes die, stop and return as new processes, masters work, people want things, and an operator
    acts on observations that may be old by the time it writes. In the end all nodes are well, and all must come right.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Action] = []

    @initialize(replicas=st.integers(1, 3), places=st.lists(locations, min_size=4, max_size=4))
    def request(self, replicas: int, places: list[NodeLocation]) -> None:
        self.world = Cluster(ClusterSpec("local", 4, (TopicSpec("a", 3),), replicas=replicas))
        self.world.locations = dict(zip(NODES, places, strict=True))
        for node in NODES[:3]:
            self.world.start(node)

    @rule(node=node_ids)
    def a_node_starts(self, node: str) -> None:
        self.world.start(node)

    @rule(node=node_ids, at=locations)
    def a_node_starts_somewhere_else(self, node: str, at: NodeLocation) -> None:
        self.world.locations[node] = at
        self.world.start(node)

    @rule(node=node_ids, gone=st.booleans())
    def a_node_dies(self, node: str, gone: bool) -> None:
        if node in self.world.nodes:
            self.world.kill(node)
            self.world.nodes[node].gone = gone

    @rule(node=node_ids)
    def a_node_dies_and_somebody_sees_it(self, node: str) -> None:
        if node in self.world.nodes:
            self.world.end(node)

    @rule(node=node_ids)
    def a_node_is_to_stop(self, node: str) -> None:
        if node in self.world.nodes:
            self.world.nodes[node].stopping = True

    @rule(node=node_ids, liveness=st.sampled_from(Liveness), answers=st.booleans())
    def a_living_node_is_seen_differently(self, node: str, liveness: Liveness, answers: bool) -> None:
        if node in self.world.nodes and self.world.nodes[node].runs:
            self.world.nodes[node].seen = liveness
            self.world.nodes[node].answers = answers

    @rule(topic=st.sampled_from("ab"), queues=st.integers(1, 4))
    def somebody_wants_queues(self, topic: str, queues: int) -> None:
        topics = {it.name: it for it in self.world.spec.topics} | {topic: TopicSpec(topic, queues)}
        self.world.spec = replace(self.world.spec, topics=tuple(topics.values()))

    @rule(replicas=st.integers(1, 3))
    def somebody_wants_more_or_fewer_copies(self, replicas: int) -> None:
        self.world.spec = replace(self.world.spec, replicas=replicas)

    @rule(nodes=st.lists(node_ids, unique=True, max_size=2))
    def somebody_drains(self, nodes: list[str]) -> None:
        self.world.spec = replace(self.world.spec, drained=tuple(nodes))

    @rule(data=st.data(), to=node_ids)
    def somebody_moves_a_copy(self, data: st.DataObject, to: str) -> None:
        if self.world.shards:
            shard = self.world.shards[data.draw(st.sampled_from(sorted(self.world.shards)))]
            target = (to, *(node for node in shard.spec.replicas[1:] if node != to))
            if (target, ()) == (shard.spec.target, shard.spec.leaving):
                return
            self.apply(ChangeSpec(shard, replace(shard.spec, target=target, leaving=()), "asked for"))

    @rule(data=st.data(), to=node_ids)
    def somebody_wants_another_master(self, data: st.DataObject, to: str) -> None:
        if self.world.shards:
            shard = self.world.shards[data.draw(st.sampled_from(sorted(self.world.shards)))]
            if shard.spec.switchover is None:
                self.apply(ChangeSpec(shard, replace(shard.spec, switchover=Switchover(to)), "asked for"))

    @rule()
    def the_operator_looks(self) -> None:
        now = self.world.observed()
        self.pending = plan(self.world.spec, now)
        for action in self.pending:
            check(self.world.spec, action, now)

    @rule(count=st.integers(1, 10))
    def the_operator_writes(self, count: int) -> None:
        for action in self.pending[:count]:
            self.apply(action)
        self.pending = self.pending[count:]

    @rule()
    def a_second_operator_acts(self) -> None:
        for action in plan(self.world.spec, self.world.observed()):
            self.apply(action)

    @rule()
    def masters_work(self) -> None:
        self.world.nodes_act()

    @rule(queue=st.integers(0, 2))
    def a_client_writes(self, queue: int) -> None:
        self.world.write(f"a-{queue}")

    def apply(self, action: Action) -> None:
        self.world.apply(action)

    @invariant()
    def a_term_never_changes_hands(self) -> None:
        if hasattr(self, "world"):
            for name, shard in self.world.shards.items():
                term = shard.spec.master, shard.spec.incarnation
                assert self.world.terms[name, shard.spec.epoch] == term

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for node in NODES:
            if node not in self.world.nodes or not self.world.nodes[node].runs or self.world.nodes[node].stopping:
                self.world.start(node)
            self.world.nodes[node].seen, self.world.nodes[node].answers = Liveness.ALIVE, True
        for _ in range(150):
            actions = plan(self.world.spec, self.world.observed())
            for action in actions:
                self.world.apply(action)
            acted = self.world.nodes_act()
            if not actions and not acted:
                break
        assert actions == []
        assert not acted
        assert self.world.faults() == []


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
