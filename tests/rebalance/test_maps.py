"""Map and settings from what the registry and Kubernetes say, and the plan's way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayoperator.crds.rebalance import DelayRebalance, PlanModel
from delayoperator.kube.api import ApiError
from delayoperator.kube.kinds import DELAY_REBALANCE, ObjectKind
from delayoperator.kube.views import locations_of
from delayoperator.plan.topology import NodeLocation
from delayoperator.rebalance_plan import digest
from delayoperator.resources import names
from delayrebalance.maps import as_map
from delayrebalance.model import RebalanceError
from delayrebalance.publish import publish
from delayrebalance.spec import settings_of
from delayregistry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Switchover,
    Version,
)

SPEC = ShardSpec(1, "orders", 0, ("n0", "n1"), master="n0", epoch=3, incarnation="i")
SERVES = ShardStatus(3, "i", ("c",))


def shard(spec: ShardSpec = SPEC, status: ShardStatus | None = SERVES, *conditions: Condition) -> ShardObject:
    return ShardObject(spec.name, Version("1"), spec, status, conditions)


def lease(node: str, **changed: Any) -> NodeLease:
    return NodeLease(node, "i", f"{node}:7070", f"{node}:7170", **changed)


def test_only_nodes_that_are_there_to_stay_get_anything() -> None:
    cluster = ClusterSpec("c", nodes=4, drained=("n2",))
    leases = [lease("n0"), lease("n1", stopping=True), lease("n2"), lease("n7")]
    found = as_map(cluster, [shard()], leases, {"n0": NodeLocation(zone="east")}, generation=5)
    assert {it.name: it.usable for it in found.nodes} == {
        "n0": True,
        "n1": False,
        "n2": False,
        "n3": False,
        "n7": False,
    }
    assert (found.nodes[0].zone, found.nodes[0].endpoint, found.generation) == ("east", "n0:7070", 5)


def test_a_nodes_own_word_is_its_zone_as_the_planner_has_it_and_the_operators_is_the_others() -> None:
    said = [{"node": "n1", "machine": "m1", "zone": "west"}, {"node": "n2", "zone": "south"}]
    leases = [lease("n0", zone="east"), lease("n1", zone="east"), lease("n2")]
    found = as_map(ClusterSpec("c", nodes=4), [], leases, locations_of({"status": {"locations": said}}))
    assert [(it.zone, it.machine) for it in found.nodes] == [("east", ""), ("east", "m1"), ("south", ""), ("", "")]


def test_a_shard_at_rest_may_move() -> None:
    found = as_map(ClusterSpec("c", nodes=2), [shard()], [lease("n0")], {}).shards[0]
    assert (found.name, found.master, found.replicas, found.fixed) == ("orders-0", "n0", ("n0", "n1"), False)


@pytest.mark.parametrize(
    "unrest",
    [
        shard(replace(SPEC, target=("n0", "n2"))),
        shard(replace(SPEC, switchover=Switchover("n1"))),
        shard(replace(SPEC, leaving=("n1",))),
        shard(replace(SPEC, epoch=4)),
        shard(replace(SPEC, master="n1")),
        shard(replace(SPEC, master=None), None),
        shard(SPEC, replace(SERVES, resigned="disk")),
        shard(SPEC, SERVES, Condition(ConditionType.HELD, "NodeAway", "n1 is away")),
    ],
)
def test_a_shard_that_is_not_at_rest_stays(unrest: ShardObject) -> None:
    assert as_map(ClusterSpec("c", nodes=3), [unrest], [lease("n0")], {}).shards[0].fixed


class FakeApi:
    """The calls that are made, over objects in a dict; `conflicts` writes are refused first."""

    def __init__(self, objects: dict[tuple[str, str], dict[str, Any]], conflicts: int = 0) -> None:
        self.objects, self.conflicts = objects, conflicts

    def get(self, kind: ObjectKind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.name == "Node":
            raise ApiError("get Node", 403, "Forbidden", "not yours")
        return self.objects.get((kind.name, name))

    def list(self, kind: ObjectKind, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        return [it for (known, _), it in self.objects.items() if known == kind.name]

    def create(self, kind: ObjectKind, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        DelayRebalance.model_validate(body)
        made = {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}
        return self.objects.setdefault((kind.name, body["metadata"]["name"]), made)

    def merge(self, kind: ObjectKind, namespace: str, name: str, body: dict[str, Any], sub: str = "") -> dict[str, Any]:
        assert sub == "status"
        found = self.objects[kind.name, name]
        if self.conflicts or body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            self.conflicts -= 1
            raise ApiError("patch", 409, "Conflict", "changed")
        found.setdefault("status", {})["plan"] = body["status"]["plan"]
        return found


CLUSTER: dict[str, Any] = {
    "metadata": {"name": "shop", "uid": "u", "generation": 4},
    "spec": {"rebalance": {"threshold": 2.0, "approval": "Automatic", "schedule": "@daily", "horizon": "48h"}},
}


def plan(*moves: tuple[str, str, str]) -> PlanModel:
    made = PlanModel.model_validate({"moves": [{"shard": s, "from": a, "to": b} for s, a, b in moves], "movedBytes": 7})
    return made.model_copy(update={"hash": digest(made)})


def written(api: FakeApi) -> PlanModel:
    return PlanModel.model_validate(api.objects[DELAY_REBALANCE.name, "shop-rebalance"]["status"]["plan"])


def test_the_first_plan_makes_the_object_without_spec_of_its_own() -> None:
    api, proposed = FakeApi({}, conflicts=2), plan(("orders-0", "n0", "n1"))
    said = publish(api, "ns", names.rebalance("shop"), CLUSTER, proposed)  # type: ignore[arg-type]
    made = api.objects[DELAY_REBALANCE.name, "shop-rebalance"]
    assert proposed.hash is not None
    assert proposed.hash in said
    assert made["spec"] == {"cluster": "shop"}, "the cluster's spec holds as it is later, too"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert written(api) == proposed


def test_nothing_to_propose_makes_no_object_but_answers_who_waits() -> None:
    api = FakeApi({})
    assert "nothing to propose" in publish(api, "ns", names.rebalance("shop"), CLUSTER, plan())  # type: ignore[arg-type]
    assert api.objects == {}
    waits = {"metadata": {"name": "shop-rebalance", "resourceVersion": "1"}, "status": {"state": "PendingProposal"}}
    api = FakeApi({(DELAY_REBALANCE.name, "shop-rebalance"): waits})
    publish(api, "ns", names.rebalance("shop"), CLUSTER, plan())  # type: ignore[arg-type]
    assert written(api).moves == []


@pytest.mark.parametrize(
    ("state", "notes", "why"),
    [
        ("Rebalancing", {}, "under way"),
        ("ReconciliationPaused", {}, "under way"),
        ("Stopped", {}, "was stopped"),
        ("PendingProposal", {"delaycluster.io/rebalance": "stop"}, "about to be stopped"),
    ],
)
def test_a_plan_under_way_and_the_rest_of_a_stopped_one_stay(state: str, notes: dict[str, str], why: str) -> None:
    kept = {"hash": "0123456789ab"}
    meta = {"name": "shop-rebalance", "resourceVersion": "1", "annotations": notes}
    busy: dict[str, Any] = {"metadata": meta, "status": {"state": state, "plan": kept}}
    api = FakeApi({(DELAY_REBALANCE.name, "shop-rebalance"): busy})
    said = publish(api, "ns", names.rebalance("shop"), CLUSTER, plan(("orders-0", "n0", "n1")))  # type: ignore[arg-type]
    assert why in said
    assert busy["status"]["plan"] == kept


@pytest.mark.parametrize("state", ["PendingProposal", "ProposalReady", "NotReady", "Ready"])
def test_whoever_waits_or_has_ended_gets_the_plan(state: str) -> None:
    found = {"metadata": {"name": "shop-rebalance", "resourceVersion": "1"}, "status": {"state": state}}
    api, proposed = FakeApi({(DELAY_REBALANCE.name, "shop-rebalance"): found}), plan(("orders-0", "n0", "n1"))
    publish(api, "ns", names.rebalance("shop"), CLUSTER, proposed)  # type: ignore[arg-type]
    assert written(api) == proposed


def test_an_object_that_always_changes_is_given_up_in_words() -> None:
    with pytest.raises(RebalanceError, match="changed 5 times meanwhile"):
        publish(FakeApi({}, conflicts=99), "ns", "shop-rebalance", CLUSTER, plan(("orders-0", "n0", "n1")))  # type: ignore[arg-type]


def test_a_rebalances_spec_stand_over_its_clusters() -> None:
    general = settings_of(CLUSTER, None)
    assert (general.threshold, general.horizon_ms, general.slot_ms) == (2.0, 2 * DAY_MS, 5 * MINUTE_MS)
    own = {
        "spec": {"cluster": "shop", "mode": "RemoveNodes", "nodes": ["n1"], "threshold": 1.2, "excludedTopics": ["a"]}
    }
    found = settings_of(CLUSTER, own)
    assert (found.threshold, found.away_from, found.onto) == (1.2, frozenset({"n1"}), frozenset())
    assert found.excluded_topics == frozenset({"a"})
    assert settings_of({}, None).horizon_ms == 24 * HOUR_MS


@pytest.mark.parametrize("wrong", [{"slot": "1s"}, {"horizon": "never"}, {"threshold": 0.5}])
def test_spec_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RebalanceError):
        settings_of({"spec": {"rebalance": wrong}}, None)
