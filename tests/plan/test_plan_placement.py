"""New shards are spread over the nodes; shards that exist stay where they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from delayoperator.plan import CreateShard, Liveness, Observed, ObservedNode, plan
from delayregistry.model import BootstrapVolumes, ClusterSpec, ShardObject, ShardSpec, TopicSpec, Version
from hypothesis import given, settings
from hypothesis import strategies as st

ALIVE = ObservedNode(Liveness.ALIVE, "a")


def cluster_of(nodes: int, *topics: TopicSpec, replicas: int = 1) -> ClusterSpec:
    """A cluster whose shards are made without a word of what nodes have: see test_plan_bootstrap.py."""
    return ClusterSpec("local", nodes, topics, replicas=replicas, bootstrap_volumes=BootstrapVolumes.IGNORE)


def created(actions: list[object]) -> list[CreateShard]:
    return [action for action in actions if isinstance(action, CreateShard)]


def spread(nodes: tuple[str, ...], places: list[str]) -> int:
    """How far the fullest node is from the emptiest."""
    counts = Counter(places)
    return max(counts[node] for node in nodes) - min(counts[node] for node in nodes)


def existing(spec: ShardSpec) -> ShardObject:
    return ShardObject(spec.name, Version("1"), spec)


@settings(deadline=None)
@given(
    nodes=st.integers(1, 9),
    replicas=st.integers(1, 3),
    queues=st.lists(st.integers(1, 20), min_size=1, max_size=6),
)
def test_replicas_and_masters_of_a_new_cluster_are_balanced_within_one(
    nodes: int, replicas: int, queues: list[int]
) -> None:
    topics = tuple(TopicSpec(f"t{number}", count) for number, count in enumerate(queues))
    cluster = cluster_of(nodes, *topics, replicas=min(replicas, nodes))
    actions = created([*plan(cluster, Observed())])
    assert len(actions) == sum(queues)
    assert all(len(set(action.replicas)) == cluster.replicas for action in actions)
    assert spread(cluster.node_ids, [node for action in actions for node in action.replicas]) <= 1
    for topic in topics:
        of_topic = [action for action in actions if action.topic == topic.name]
        assert spread(cluster.node_ids, [action.replicas[0] for action in of_topic]) <= 1
    if cluster.replicas == 1:
        assert spread(cluster.node_ids, [action.replicas[0] for action in actions]) <= 1


def test_more_queues_add_shards_and_leave_the_others_alone() -> None:
    cluster = cluster_of(3, TopicSpec("orders", 5))
    shards = tuple(existing(ShardSpec(queue + 1, "orders", queue, (f"n{queue}",))) for queue in range(3))
    actions = created([*plan(cluster, Observed(shards))])
    assert [(action.queue, action.replicas) for action in actions] == [(3, ("n0",)), (4, ("n1",))]
    assert actions[0].reason == "topic orders wants 5 queues and orders-3 is missing: to n0"


def test_a_topic_is_spread_even_when_another_one_is_not() -> None:
    crowd = tuple(existing(ShardSpec(queue + 1, "old", queue, ("n0",))) for queue in range(9))
    cluster = cluster_of(3, TopicSpec("old", 9), TopicSpec("new", 6))
    places = [action.replicas[0] for action in created([*plan(cluster, Observed(crowd))])]
    assert Counter(places) == {"n0": 2, "n1": 2, "n2": 2}


def test_dead_nodes_get_no_new_shards_but_unseen_ones_do() -> None:
    cluster = cluster_of(3, TopicSpec("orders", 4))
    seen = Observed(nodes={"n0": ALIVE, "n1": ObservedNode(Liveness.DEAD, "b")})
    assert {action.replicas[0] for action in created([*plan(cluster, seen)])} == {"n0", "n2"}


def test_dead_nodes_are_taken_when_there_are_too_few_others() -> None:
    cluster = cluster_of(3, TopicSpec("orders", 1), replicas=2)
    dead = ObservedNode(Liveness.DEAD, "b")
    seen = Observed(nodes={"n0": dead, "n1": dead, "n2": ALIVE})
    (action,) = created([*plan(cluster, seen)])
    assert action.replicas == ("n2", "n0")


def test_a_shard_on_a_node_that_is_no_longer_wanted_is_left_there() -> None:
    cluster = cluster_of(1, TopicSpec("orders", 1))
    spec = ShardSpec(1, "orders", 0, ("n7",), master="n7", epoch=1, incarnation="a")
    assert plan(cluster, Observed((existing(spec),), {"n7": ALIVE})) == []
    assert plan(replace(cluster, nodes=2), Observed((existing(spec),), {"n7": ALIVE})) == []
