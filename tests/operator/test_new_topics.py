"""A topic that is added, removed and added again: nobody loses a served shard by it, and nobody is told so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delayoperator.cluster.conditions import conditions
from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.shard_summary import (
    COMING_MS,
    ShardSummary,
    coming_since,
    summarize_shards,
    without_new,
)
from delayoperator.crds.convert import InvalidSpec, desired_of
from delayoperator.kube.spec import kept_queues
from delayoperator.kube.status import was_ready
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

from tests.operator.stage import Stage
from tests.operator.test_conditions import STOPPED, WELL, said

SPEC = ClusterSpec("shop", 3, (TopicSpec("old", 1), TopicSpec("new", 1)), replicas=2)


def shard(topic: str, *in_sync: str, epoch: int = 1, master: str | None = "n0", blocked: bool = False) -> ShardObject:
    spec = ShardSpec(1, topic, 0, ("n0", "n1"), master=master, epoch=epoch, incarnation="i0")
    status = ShardStatus(epoch, "i0", in_sync) if in_sync else None
    found = (Condition(ConditionType.BLOCKED, "NotTakenUp", "it does nothing"),) if blocked else ()
    return ShardObject(spec.name, Version("1"), spec, status, found)


OLD = shard("old", "c0", "c1", epoch=7)


def look(
    *shards: ShardObject, before: dict[str, int] | None = None, known: tuple[str, ...] = (), now_ms: int = 1_000
) -> tuple[ShardSummary, dict[str, int]]:
    counted = summarize_shards(SPEC, shards, {})
    since_ms = coming_since(counted, before or {}, known, now_ms)
    return without_new(counted, since_ms, now_ms), since_ms


@pytest.mark.parametrize(
    "new",
    [
        (),
        (shard("new", epoch=0, master=None),),
        (shard("new"),),
    ],
)
def test_a_ready_cluster_stays_ready_while_a_topic_is_added(new: tuple[ShardObject, ...]) -> None:
    counted, _ = look(OLD, *new)
    assert (counted.served, counted.desired, len(counted.coming)) == (1, 2, 1)
    seen = replace(WELL, shard_summary=counted)
    assert (said(seen, "Ready").status, said(seen, "Ready").reason) == (True, Reason.SERVING)
    assert said(seen, "Ready").message.startswith("served: 1 of 2 shards")
    assert (said(seen, "Progressing").status, said(seen, "Progressing").reason) == (True, Reason.TOPICS_COMING)
    assert said(seen, "Progressing").message.startswith("1 new shard on the way: new-0 ")
    assert said(seen, "Degraded").reason is Reason.HEALTHY


def test_a_new_shard_that_is_served_before_its_second_copy_is_there_is_still_on_its_way() -> None:
    _, before = look(OLD)
    counted, since_ms = look(OLD, shard("new", "c0"), before=before)
    assert counted.coming == ("new-0 has 1 of 2 copies in sync",)
    assert counted.unsynced == ()
    counted, since_ms = look(OLD, shard("new", "c0", "c1"), before=since_ms)
    assert (counted.coming, since_ms) == ((), {})
    counted, _ = look(OLD, shard("new", "c0"), before=since_ms)
    assert counted.unsynced == ("new-0 has 1 of 2 copies in sync",), "once it was whole it is a shard like any other"


def test_a_new_shard_that_does_not_come_is_a_fault_after_five_minutes() -> None:
    _, before = look(OLD, now_ms=1_000)
    assert look(OLD, before=before, now_ms=1_000 + COMING_MS - 1)[0].unserved == ()
    counted, _ = look(OLD, before=before, now_ms=1_000 + COMING_MS)
    assert counted.unserved == ("new-0 does not exist yet",)
    assert counted.coming == ()
    assert said(replace(WELL, shard_summary=counted), "Ready").reason is Reason.SHARDS_NOT_SERVED


@pytest.mark.parametrize(
    ("shards", "known", "unserved"),
    [
        ((OLD,), ("new-0",), "new-0 does not exist yet"),  # its object was deleted: clients wait
        ((OLD, shard("new", blocked=True)), (), "new-0 is not yet served by n0 in epoch 1"),
        ((OLD, shard("new", epoch=4)), (), "new-0 is not yet served by n0 in epoch 4"),  # its status was lost
        ((replace(OLD, status=ShardStatus(6, "i0", ("c0",))),), (), "old-0 is not yet served by n0 in epoch 7"),
    ],
)
def test_a_shard_that_was_served_before_is_missed(
    shards: tuple[ShardObject, ...], known: tuple[str, ...], unserved: str
) -> None:
    counted, _ = look(*shards, known=known)
    assert unserved in counted.unserved
    assert said(replace(WELL, shard_summary=counted), "Ready").status is False


def test_without_topics_a_cluster_whose_pods_are_all_gone_is_not_ready() -> None:
    gone = replace(WELL, shard_summary=ShardSummary(), pods=())
    ready = said(gone, "Ready")
    assert (ready.status, ready.reason) == (False, Reason.NO_NODES_READY)
    assert ready.message == "ready: 0 of 3 nodes. See docs/operations.md#nonodesready"
    added = replace(gone, shard_summary=ShardSummary(desired=1, coming=("new-0 does not exist yet",)))
    assert said(added, "Ready").reason is Reason.NO_NODES_READY, "nor is it once a topic is added that nobody can make"
    stopped = replace(gone, pods=(STOPPED,))
    assert "shop-2: CrashLoopBackOff: exit code 1" in said(stopped, "Ready").message
    assert said(replace(gone, pods=WELL.pods), "Ready").status is True
    written = [{"type": it.type, "status": str(it.status), "reason": it.reason} for it in conditions(gone)]
    assert was_ready({"conditions": written}), "it has been complete before, and is no beginning"


def wanted(queues: int) -> dict[str, object]:
    topics = [{"name": "orders", "queues": 4}, {"name": "new", "queues": queues}]
    return {"metadata": {"name": "shop"}, "spec": {"nodes": 3, "topics": topics}}


def test_a_topic_that_comes_back_needs_as_many_queues_as_its_shards_have() -> None:
    accepted = ClusterSpec("shop", 3, (TopicSpec("orders", 4),))
    specs = [ShardSpec(number + 1, "new", number, ("n0",)) for number in (2, 0, 1)]
    kept = kept_queues([ShardObject(it.name, Version("1"), it) for it in specs])
    assert kept == {"new": 3}
    with pytest.raises(InvalidSpec) as refused:
        desired_of(wanted(2), accepted, kept)
    (refusal,) = refused.value.refusals
    assert str(refusal).startswith("spec.topics[new].queues: is 2, but the topic was removed with 3 queues, whose ")
    for queues in (3, 5):
        assert desired_of(wanted(queues), accepted, kept).cluster.topic("new") is not None
    assert desired_of(wanted(1), accepted, {}).cluster.topic("new") is not None, "its shards are gone"


def test_on_an_api_server_ready_stays_true_while_topics_come_and_none_comes_back_smaller(stage: Stage) -> None:
    stage.operator()
    orders, new = {"name": "orders", "queues": 4}, {"name": "new", "queues": 12}
    stage.create(topics=[orders])
    stage.settled()
    since = stage.condition("Ready")["lastTransitionTime"]
    stage.edit(topics=[orders, new])
    stage.settled()
    assert "shop.new-11" in stage.names("delayshards")
    assert stage.condition("Ready")["lastTransitionTime"] == since
    assert stage.events("ShardsNotServed") == []
    assert stage.events("CopiesOutOfSync") == []
    stage.edit(topics=[orders])
    stage.settled()
    stage.edit(topics=[orders, {**new, "queues": 2}])
    stage.until(lambda: "removed with 12 queues" in stage.condition("Progressing").get("message", ""))
    assert stage.reason("Degraded") == "InvalidSpec"
    stage.edit(topics=[orders, new])
    stage.settled()
