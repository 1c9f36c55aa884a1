"""Shards without an object: when they are made, empty or from copies that are found, and when a person is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from delayoperator.plan import (
    AdoptCopies,
    CopyView,
    CreateShard,
    Liveness,
    Observed,
    ObservedNode,
    ObservedRole,
    SetConditions,
    plan,
    report_orphans,
)
from delayoperator.plan.adoption import NotAdoptable, adopted
from delayoperator.plan.observed import NotBegun
from delayregistry.model import BootstrapVolumes, ClusterSpec, ShardObject, ShardSpec, TopicSpec, Version

CLUSTER = ClusterSpec("hello", 3, (TopicSpec("orders", 1),), replicas=2)
ALIVE = ObservedNode(Liveness.ALIVE, "a")
LOST = ObservedNode(Liveness.DEAD, "a", replaceable=True)
NODES = {"n0": ALIVE, "n1": ALIVE, "n2": ALIVE}
ALL = dict.fromkeys(NODES, "a")
UID, OTHER = 0xAB, 0xCD


def copy(node: str, log_end: int = 900, epoch: int = 4, **more: Any) -> CopyView:
    """A copy of orders-0 on disk, 5 messages pending in it."""
    fields = {"role": ObservedRole.STORED, "topic": "orders", "queue": 0, "pending": 5, "cluster": "hello"} | more
    return CopyView(f"c-{node}", "a", epoch, epoch, log_end, **fields)


def both(**more: Any) -> dict[str, CopyView]:
    return {"n0": copy("n0", **more), "n1": copy("n1", **more)}


def seen(*histories: dict[str, CopyView], nodes: dict[str, ObservedNode] = NODES, **more: Any) -> Observed:
    found = dict(zip((UID, OTHER), histories, strict=False))
    return Observed(nodes=nodes, answered={"answered": ALL, **more}.pop("answered"), unclaimed=found)


def made(observed: Observed, cluster: ClusterSpec = CLUSTER) -> CreateShard | None:
    actions = plan(cluster, observed)
    assert len(actions) <= 1
    action = actions[0] if actions else None
    assert action is None or isinstance(action, CreateShard)
    return action


def test_a_new_topic_gets_empty_shards_once_every_node_has_said_that_it_has_nothing() -> None:
    assert made(seen(answered={"n0": "a", "n1": "a"})) is None
    assert made(seen(answered={**ALL, "n2": "its former process"})) is None
    action = made(seen())
    assert action is not None
    assert (action.uid, action.epoch, len(action.replicas)) == (None, 0, 2)


def test_who_is_waited_for_is_said() -> None:
    report = report_orphans(CLUSTER, seen(answered={"n0": "a", "n1": "a"}))
    assert (report.waiting, report.unheard, report.orphans) == (("orders-0",), ("n2",), ())
    assert report_orphans(CLUSTER, seen()).waiting == ()


def test_a_node_that_is_lost_is_not_waited_for() -> None:
    nodes = {**NODES, "n2": LOST}
    action = made(seen(nodes=nodes, answered={"n0": "a", "n1": "a"}))
    assert action is not None
    assert action.uid is None


def test_a_node_that_is_only_dead_is_waited_for_and_one_beyond_the_spec_too() -> None:
    dead = {**NODES, "n2": replace(LOST, replaceable=False)}
    assert made(seen(nodes=dead, answered={"n0": "a", "n1": "a"})) is None
    assert made(seen(nodes={**NODES, "n7": ALIVE})) is None
    assert made(seen(nodes={**NODES, "n7": replace(LOST, replaceable=False)})) is not None, "it was scaled in"


def test_one_history_of_this_cluster_is_taken_up_again() -> None:
    action = made(seen({"n0": copy("n0", 900), "n1": copy("n1", 950)}))
    assert action is not None
    assert (action.uid, action.epoch, action.replicas) == (UID, 4, ("n1", "n0"))
    assert action.reason == "orders-0 has no object, its copies are there: n1 with epoch 4, log end 950"


def test_a_master_that_serves_on_without_its_object_is_a_copy_like_others() -> None:
    action = made(seen({"n0": copy("n0", role=ObservedRole.MASTER), "n1": copy("n1", role=ObservedRole.SLAVE)}))
    assert action is not None
    assert action.uid == UID


def test_a_master_that_serves_is_the_only_copy_that_is_sure_to_have_everything() -> None:
    """Seed 58 with moves, drains and hung disks: a copy that was catching up had as much as the master for a moment,
    was named in sync, and lacked what the master acknowledged next."""
    copies = {
        "n0": copy("n0", 900, role=ObservedRole.MASTER, serving_epoch=4),
        "n1": copy("n1", 900, role=ObservedRole.SLAVE),
        "n2": copy("n2", 950, role=ObservedRole.SLAVE),  # it was asked later
    }
    action = decided(lost(), copies)
    assert isinstance(action, AdoptCopies)
    assert (action.status.in_sync, action.spec.replicas[0]) == (("c-n0",), "n0")
    deposed = copies | {"n2": copy("n2", 950, epoch=5)}
    assert adopted(UID, deposed).status.in_sync == ("c-n2",)


def test_a_copy_that_is_still_storing_its_logs_end_is_not_counted_on() -> None:
    """Seed 130814: its disk hung, and what it had received it would have lost with its power."""
    copies = {"n0": copy("n0", role=ObservedRole.SLAVE, unsynced=90), "n1": copy("n1")}
    assert adopted(UID, copies).status.in_sync == ("c-n1",)
    alone = {"n0": copies["n0"], "n1": copy("n1", 890)}
    with pytest.raises(NotAdoptable, match="n0 has the highest log end, and is still storing it"):
        adopted(UID, alone)


def test_a_copy_is_adopted_with_the_boot_in_which_it_was_in_sync() -> None:
    """With Async durability the planner tells by it whether the machine was started again since: seed 56831 said so of
    machines that had not been."""
    kept = {"kept_epoch": 4, "kept_in_sync": ("c-n0@boot0", "c-n1@boot0")}
    on_disk = {"n0": copy("n0", **kept), "n1": copy("n1", **kept)}
    assert adopted(UID, on_disk).status.in_sync == ("c-n0@boot0", "c-n1@boot0")
    started_again = {node: replace(one, replica_id=f"{one.replica_id}@boot1") for node, one in on_disk.items()}
    assert adopted(UID, started_again).status.in_sync == ("c-n0@boot0", "c-n1@boot0")
    master = replace(started_again["n0"], role=ObservedRole.MASTER, serving_epoch=4)
    assert adopted(UID, {**started_again, "n0": master}).status.in_sync == ("c-n0@boot1",)
    older = {node: replace(one, kept_epoch=3) for node, one in started_again.items()}
    assert adopted(UID, older).status.in_sync == ("c-n0@boot1", "c-n1@boot1")


def test_a_copy_that_came_into_the_in_sync_set_after_the_last_checkpoint_may_have_most() -> None:
    """Seed 59487: its master lost the log's end with its power, and is the one whom the checkpoints name."""
    kept = {"kept_epoch": 4, "kept_in_sync": ("c-n0",)}
    action = made(seen({"n0": copy("n0", 900, **kept), "n1": copy("n1", 950, **kept)}))
    assert action is not None
    assert (action.uid, action.replicas[0]) == (UID, "n1")
    later = {"kept_epoch": 4, "kept_in_sync": ("c-lost",)}
    assert made(seen({"n0": copy("n0", 900, **kept), "n1": copy("n1", 950, **later)})) is None
    assert made(seen({"n0": copy("n0", 900, **later), "n1": copy("n1", 950, **kept)})) is None


def test_a_copy_that_does_not_know_its_cluster_is_of_the_one_that_its_history_is_of() -> None:
    """Seed 213974: the machine of a copy lost its power between the transfer and the note of the cluster's name."""
    action = made(seen({"n0": copy("n0"), "n1": copy("n1", 500, cluster="")}))
    assert action is not None
    assert (action.uid, action.replicas) == (UID, ("n0", "n1"))


@pytest.mark.parametrize(
    ("histories", "why"),
    [
        ((both(cluster="other"),), "of other, and this is cluster hello"),
        ((both(cluster=""),), "of a cluster that is not known, and this is cluster hello"),
        (({"n0": copy("n0"), "n1": copy("n1", cluster="other")},), "of other, and this is cluster hello"),
        (({"n0": copy("n0")}, {"n1": copy("n1")}), "2 histories, and only one can go on"),
        ((both(damaged="rot"),), "every copy is damaged"),
        (({"n0": copy("n0"), "n1": copy("n1", 0, damaged="rot")},), "a copy is damaged, and may have had more"),
        ((both(role=ObservedRole.OPENING, log_end=0),), "still being opened"),
        ((both(kept_epoch=4, kept_in_sync=("c-lost",)),), "was not in sync in epoch 4"),
        ((both(role=ObservedRole.OPENING, log_end=3),), "still being opened"),
        ((both(role=ObservedRole.CANDIDATE),), "about to lead"),
        ((both(role=ObservedRole.SLAVE, unsynced=3),), "n0, n1 has the highest log end, and is still storing it"),
    ],
)
def test_what_a_person_has_to_decide_is_left_and_said(histories: tuple[dict[str, CopyView], ...], why: str) -> None:
    assert made(seen(*histories)) is None
    report = report_orphans(CLUSTER, seen(*histories))
    (said,) = report.orphans
    assert said.startswith("orders-0: ")
    assert why in said
    assert "5 pending" in said
    assert report.pending == 5 * len(histories)


def test_nobody_can_count_what_copies_have_that_cannot_be_read() -> None:
    report = report_orphans(CLUSTER, seen(both(damaged="rot", pending=0, log_end=0)))
    assert "00000000000000ab on n0, n1 (nobody can count what is pending): every copy is damaged" in report.orphans[0]
    assert "(n0: rot; n1: rot)" in report.orphans[0]


def test_a_lost_node_may_have_had_a_newer_copy() -> None:
    nodes = {**NODES, "n2": LOST}
    observed = seen(both(), nodes=nodes, answered={"n0": "a", "n1": "a"})
    assert made(observed) is None
    assert "n2 may have a newer copy" in report_orphans(CLUSTER, observed).orphans[0]


@pytest.mark.parametrize(("policy", "uid"), [(BootstrapVolumes.REFUSE, "none"), (BootstrapVolumes.IGNORE, None)])
def test_the_spec_may_refuse_or_ignore_what_is_found(policy: BootstrapVolumes, uid: object) -> None:
    cluster = replace(CLUSTER, bootstrap_volumes=policy)
    action = made(seen(both()), cluster)
    assert (action.uid if action else "none") == uid
    orphans = report_orphans(cluster, seen(both())).orphans
    assert bool(orphans) is (policy is BootstrapVolumes.REFUSE)


def test_copies_in_which_nothing_was_ever_accepted_hide_nothing() -> None:
    action = made(seen(both(log_end=0), {"n2": copy("n2", role=ObservedRole.FETCHING)}))
    assert action is not None
    assert action.uid is None


def test_copies_of_no_topic_are_said_and_left() -> None:
    cluster = replace(CLUSTER, topics=())
    assert plan(cluster, seen(both())) == []
    (said,) = report_orphans(cluster, seen(both())).orphans
    assert said.endswith("on n0, n1 (5 pending): no topic has this shard")


# ---------------------------------------------------------------- an empty shard's object, never led
def answer_to_empty(
    *histories: dict[str, CopyView], policy: BootstrapVolumes = BootstrapVolumes.ADOPT, **more: Any
) -> str:
    """The action for orders-0, whose creation was decided earlier: its type, with the reason."""
    spec = ShardSpec(7, "orders", 0, ("n0", "n1"))
    observed = replace(seen(*histories, **more), shards=(ShardObject(spec.name, Version("1"), spec),))
    actions = plan(replace(CLUSTER, bootstrap_volumes=policy), observed)
    assert len(actions) <= 1
    return f"{type(actions[0]).__name__}: {actions[0].reason}" if actions else "none"


def test_an_empty_shard_is_led_once_every_node_has_said_again_that_it_has_nothing() -> None:
    assert answer_to_empty(answered={"n0": "a", "n1": "a"}) == "none"
    assert answer_to_empty().startswith("StartTerm: the shard has no master yet: n0 is its first living replica")
    dead = {**NODES, "n2": replace(LOST, replaceable=False)}
    said = answer_to_empty(nodes=dead, answered={"n0": "a", "n1": "a"})
    assert said.startswith("SetConditions: n2 is away; the first term waits until all nodes have said")
    assert answer_to_empty(nodes={**NODES, "n2": LOST}, answered={"n0": "a", "n1": "a"}).startswith("StartTerm: ")


def test_an_empty_shard_gives_way_to_copies_of_its_name() -> None:
    """Seed 57713: its creation landed after another's, which took messages, had been deleted."""
    said = answer_to_empty(both())
    assert said.startswith("RemoveEmptyShard: orders-0 is empty, and copies of 00000000000000ab are there: n0, n1 ")
    for histories, policy in (((both(), both()), BootstrapVolumes.ADOPT), ((both(),), BootstrapVolumes.REFUSE)):
        said = answer_to_empty(*histories, policy=policy)
        assert said.startswith("RemoveEmptyShard: orders-0 is empty, and copies of this name are there: ")
    assert answer_to_empty(both(), policy=BootstrapVolumes.IGNORE).startswith("StartTerm: ")
    assert answer_to_empty(both(log_end=0)).startswith("StartTerm: ")
    assert answer_to_empty(both(queue=1)).startswith("StartTerm: ")


# ---------------------------------------------------------------- objects without a status
def lost(**more: Any) -> ShardObject:
    spec = ShardSpec(UID, "orders", 0, ("n0", "n1"), epoch=4, **more)
    return ShardObject(spec.name, Version("1"), spec)


def decided(shard: ShardObject, copies: dict[str, CopyView], **more: Any) -> AdoptCopies | str | None:
    by_shard = {(shard.name, node): view for node, view in copies.items() if node in shard.spec.replicas}
    strays = {node: view for node, view in copies.items() if node not in shard.spec.replicas}
    observed = Observed((shard,), NODES, by_shard, ALL, strays={UID: strays} if strays else {})
    actions = plan(CLUSTER, replace(observed, **more))
    assert len(actions) <= 1
    if actions and isinstance(actions[0], SetConditions):
        return actions[0].conditions[0].message
    assert not actions or isinstance(actions[0], AdoptCopies)
    return actions[0] if actions else None  # type: ignore[return-value]


def test_the_status_of_an_object_that_was_made_again_comes_from_its_copies() -> None:
    action = decided(lost(), {"n0": copy("n0", 900, role=ObservedRole.SLAVE), "n1": copy("n1", 950)})
    assert isinstance(action, AdoptCopies)
    assert (action.spec.epoch, action.spec.master, action.spec.replicas) == (4, None, ("n1", "n0"))
    assert (action.status.serving_epoch, action.status.in_sync) == (4, ("c-n1",))


def test_an_adopted_shard_whose_copies_are_gone_is_not_begun_anew() -> None:
    said = decided(lost(), {})
    assert isinstance(said, str)
    assert "no node has a whole one" in said
    damaged = decided(lost(), {"n0": copy("n0", 0, role=ObservedRole.DAMAGED, damaged="rot")})
    assert isinstance(damaged, str)


def test_a_copy_elsewhere_may_be_the_better_one() -> None:
    action = decided(lost(), {**both(), "n2": copy("n2", 990)})
    assert isinstance(action, AdoptCopies)
    assert action.spec.replicas == ("n2", "n0", "n1")
    ahead = decided(lost(), {**both(), "n2": copy("n2", 990, epoch=7)})
    assert isinstance(ahead, str)
    assert "n2 know of epoch 7, the registry only of 4" in ahead


def test_a_copy_ahead_of_its_object_is_noticed_though_the_object_says_that_it_is_served() -> None:
    served = replace(lost(master="n0", incarnation="a"))
    said = decided(served, {"n2": copy("n2", 990, epoch=7)}, answered={})
    assert isinstance(said, str)
    assert "n2 know of epoch 7" in said


def test_a_first_master_is_not_made_beside_data_elsewhere() -> None:
    action = decided(lost(), {"n2": copy("n2", 990)})
    assert isinstance(action, AdoptCopies)
    assert action.spec.replicas == ("n2",)


def test_a_status_is_not_made_before_all_nodes_have_answered() -> None:
    said = decided(lost(), both(), answered={"n0": "a", "n1": "a"})
    assert isinstance(said, str)
    assert "waiting for n2, which may have a newer copy" in said


@pytest.mark.parametrize("stray", [False, True])
def test_a_damaged_copy_keeps_an_object_without_a_status_from_a_new_beginning(stray: bool) -> None:
    """The object was restored with its master and without its status, and the other copy is gone."""
    node = "n2" if stray else "n1"
    damaged = copy(node, 0, epoch=0, role=ObservedRole.DAMAGED, damaged="rot")
    late = {(UID, 4): NotBegun(60, "it does nothing", ("n0",), again=True)}
    for incarnation, more in (("of a former process", {}), ("a", {"not_begun": late})):
        said = decided(lost(master="n0", incarnation=incarnation), {node: damaged}, **more)
        assert isinstance(said, str)
        assert "every copy is damaged (n" in said
        assert "rot)" in said
