"""DelayRebalances with kopf really running: proposed, approved, carried out, stopped, resumed by another operator."""

from __future__ import annotations

import time
from typing import Any

from tests.kube import fakekinds
from tests.operator.stage import NAMESPACE, Stage

Json = dict[str, Any]
ORDERS = {"name": "orders", "queues": 6}
APPROVE, VERB = "delaycluster.io/approve", "delaycluster.io/rebalance"


def placed(stage: Stage) -> dict[str, list[str]]:
    """The nodes of each shard, wished ones first."""
    specs = {it["metadata"]["name"].partition(".")[2]: it["spec"] for it in stage.server.list("delayshards", NAMESPACE)}
    return {name: list(spec.get("target") or spec["replicas"]) for name, spec in specs.items()}


def masters(stage: Stage) -> dict[str, str]:
    return {
        it["metadata"]["name"].partition(".")[2]: it["spec"]["master"]
        for it in stage.server.list("delayshards", NAMESPACE)
    }


def onto(stage: Stage, node: str) -> list[Json]:
    return [
        {"shard": name, "from": nodes[0], "to": node}
        for name, nodes in sorted(placed(stage).items())
        if node not in nodes
    ]


def ask(stage: Stage, name: str = "by-hand", **spec: Any) -> None:
    body = {"metadata": {"name": name}, "spec": {"cluster": "shop", **spec}}
    stage.server.store.create(fakekinds.find("delayrebalances"), NAMESPACE, body, "kubectl")


def annotate(stage: Stage, key: str, value: str, name: str = "by-hand") -> None:
    stage.patch("delayrebalances", name, {"metadata": {"annotations": {key: value}}})


def status(stage: Stage, name: str = "by-hand") -> Json:
    found: Json = (stage.get("delayrebalances", name) or {}).get("status") or {}
    return found


def until(stage: Stage, state: str, name: str = "by-hand") -> Json:
    stage.until(lambda: status(stage, name).get("state") == state, lambda: status(stage, name) or "no status")
    return status(stage, name)


def approve(stage: Stage, name: str = "by-hand") -> None:
    annotate(stage, APPROVE, until(stage, "ProposalReady", name)["plan"]["hash"], name)


def jobs(stage: Stage) -> list[Json]:
    return list(stage.server.list("jobs", NAMESPACE))


def finish(stage: Stage, job: Json, kind: str) -> None:
    condition = {"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "it has failed"}
    where = fakekinds.find("jobs")
    stage.server.store.patch(
        where, NAMESPACE, job["metadata"]["name"], {"status": {"conditions": [condition]}}, "k", "status"
    )


def settled(stage: Stage, **spec: Any) -> None:
    stage.create(topics=[ORDERS], **spec)
    stage.settled()


def test_moves_by_hand_are_proposed_approved_and_made(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=1)
    ask(stage, moves=onto(stage, "n0"))
    proposed = until(stage, "ProposalReady")
    assert [it["type"] for it in proposed["conditions"]] == ["ProposalReady"]
    before = placed(stage)
    time.sleep(1)
    assert placed(stage) == before, "nothing moves before it is approved"
    approve(stage)
    done = until(stage, "Ready")
    assert done["progress"]["percent"] == 100
    assert {it["state"] for it in done["plan"]["moves"]} == {"Done"}
    assert set(map(tuple, placed(stage).values())) == {("n0",)}
    assert set(masters(stage).values()) == {"n0"}
    annotations = stage.there("delayrebalances", "by-hand")["metadata"].get("annotations") or {}
    assert APPROVE not in annotations, "a verb that was answered is taken away"
    stage.settled()
    stage.until(lambda: stage.reason("Rebalancing") == "NotRebalancing")
    assert set(map(tuple, placed(stage).values())) == {("n0",)}, "nothing brings them back"
    told = {it["reason"] for it in stage.events(name="by-hand")}
    assert {"WaitsForApproval", "PlanApproved", "MoveStarted", "MoveDone", "MovesDone"} <= told


def test_a_plan_of_the_job_with_switchovers_is_carried_out(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=2)
    name, (master, slave) = next(iter(sorted(placed(stage).items())))
    ask(stage, moves=[])  # as the job makes one: the plan comes into its status
    plan = {
        "hash": "0123456789ab",
        "moves": [{"shard": name, "from": master, "to": slave, "replicas": [master, slave], "bytes": 0}],
    }
    kind = fakekinds.find("delayrebalances")
    stage.server.store.patch(kind, NAMESPACE, "by-hand", {"status": {"plan": plan}}, "job", "status")
    stage.until(lambda: status(stage).get("planSeen") == "0123456789ab")
    annotate(stage, APPROVE, "0123456789ab")
    until(stage, "Ready")
    assert masters(stage)[name] == slave
    assert placed(stage)[name] == [slave, master]


def test_another_hash_starts_nothing_and_that_is_said(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=1)
    ask(stage, moves=onto(stage, "n0"))
    until(stage, "ProposalReady")
    annotate(stage, APPROVE, "0123456789ab")
    stage.until(lambda: stage.events("ApprovalRefused", "by-hand"))
    assert status(stage)["state"] == "ProposalReady"


def test_another_operator_goes_on_in_the_middle(stage: Stage) -> None:
    """The first is killed with moves under way; the second knows nothing but what the objects say."""
    first = stage.process()
    settled(stage, replicas=1)
    ask(stage, moves=onto(stage, "n2"), maxInFlight=1)
    approve(stage)
    stage.until(lambda: any(it.get("state") == "Done" for it in status(stage)["plan"]["moves"]))
    stage.kill(first)
    left = [it for it in status(stage)["plan"]["moves"] if it.get("state") != "Done"]
    assert left, "it was killed too late to show anything"
    stage.operator()
    done = until(stage, "Ready")
    assert {it["state"] for it in done["plan"]["moves"]} == {"Done"}
    assert set(map(tuple, placed(stage).values())) == {("n2",)}


def test_a_stop_keeps_the_rest_and_the_same_hash_goes_on_with_it(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=1)
    ask(stage, moves=onto(stage, "n2"), maxInFlight=1)
    approve(stage)
    until(stage, "Rebalancing")
    stage.until(lambda: stage.reason("Rebalancing") == "Rebalancing")
    annotate(stage, VERB, "stop")
    stopped = until(stage, "Stopped")
    left = [it for it in stopped["plan"]["moves"] if it.get("state") not in ("Done", "Refused")]
    assert left
    assert "coolDownUntil" in stopped
    annotate(stage, APPROVE, stopped["plan"]["hash"])
    until(stage, "Ready")


def test_a_verb_is_answered_once_although_others_write_the_object_meanwhile(stage: Stage) -> None:
    """A stop that is still there when somebody approves the rest would stop that too."""
    stage.operator()
    settled(stage, replicas=1)
    ask(stage, moves=onto(stage, "n2"), notBefore="2100-01-01T00:00:00Z")
    approve(stage)
    until(stage, "Rebalancing")
    stage.until(lambda: APPROVE not in (stage.there("delayrebalances", "by-hand")["metadata"].get("annotations") or {}))
    lost = stage.server.fault(method="PATCH", path=r"/delayrebalances/by-hand(\?|$)", code=409, times=2)
    annotate(stage, VERB, "stop")
    until(stage, "Stopped")
    stage.until(lambda: VERB not in (stage.there("delayrebalances", "by-hand")["metadata"].get("annotations") or {}))
    stage.until(lambda: stage.events("StoppedByRequest", "by-hand"))
    assert lost.met == 2
    assert stage.events("VerbRefused", "by-hand") == []


def test_a_paused_cluster_is_not_rebalanced_and_the_plan_outlasts_the_pause(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=1)
    ask(stage, moves=onto(stage, "n0"))
    plan = until(stage, "ProposalReady")["plan"]
    stage.edit(paused=True)
    until(stage, "ReconciliationPaused")
    annotate(stage, APPROVE, plan["hash"])
    time.sleep(1)
    annotations = stage.there("delayrebalances", "by-hand")["metadata"]["annotations"]
    assert annotations[APPROVE] == plan["hash"], "kept for later"
    stage.edit(paused=False)
    done = until(stage, "Ready")
    assert done["plan"]["hash"] == plan["hash"], "two generations later it is the same cluster"
    assert set(map(tuple, placed(stage).values())) == {("n0",)}


def test_the_clusters_approval_holds_for_a_rebalance_that_was_there_before(stage: Stage) -> None:
    """`delayctl rebalance` makes such an object, without a spec of its own."""
    stage.operator()
    settled(stage, replicas=1, rebalance={})
    ask(stage, "shop-rebalance")
    until(stage, "PendingProposal", "shop-rebalance")
    plan = {"hash": "0123456789ab", "moves": onto(stage, "n0")}
    kind = fakekinds.find("delayrebalances")
    stage.server.store.patch(kind, NAMESPACE, "shop-rebalance", {"status": {"plan": plan}}, "job", "status")
    until(stage, "ProposalReady", "shop-rebalance")
    stage.edit(rebalance={"approval": "Automatic"})
    until(stage, "Ready", "shop-rebalance")
    assert set(map(tuple, placed(stage).values())) == {("n0",)}


def test_the_job_runs_once_for_a_rebalance_without_moves(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=1, rebalance={})
    ask(stage)
    until(stage, "PendingProposal")
    stage.until(lambda: len(jobs(stage)) == 1)
    (job,) = jobs(stage)
    assert "--name=by-hand" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    annotate(stage, "somebody/else", "1")  # a look more
    time.sleep(1.5)
    assert len(jobs(stage)) == 1
    finish(stage, job, "Failed")
    failed = until(stage, "NotReady")
    assert failed["conditions"][0]["reason"] == "JobFailed"
    annotate(stage, VERB, "refresh")
    stage.until(lambda: len(jobs(stage)) == 2)
    finish(stage, next(it for it in jobs(stage) if it["metadata"]["uid"] != job["metadata"]["uid"]), "Complete")
    assert until(stage, "Ready")["conditions"][0]["reason"] == "Balanced"


def test_without_spec_for_a_job_a_rebalance_says_so(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=1)
    ask(stage)
    failed = until(stage, "NotReady")
    assert "spec.rebalance" in failed["conditions"][0]["message"]
    assert jobs(stage) == []


def test_the_cronjob_comes_and_goes_with_its_schedule(stage: Stage) -> None:
    stage.operator()
    settled(stage, rebalance={"schedule": "0 3 * * *"})
    stage.until(lambda: stage.names("cronjobs") == {"shop-rebalance"})
    assert stage.there("cronjobs", "shop-rebalance")["spec"]["schedule"] == "0 3 * * *"
    stage.edit(rebalance={"schedule": None})
    stage.until(lambda: stage.names("cronjobs") == set())
    assert "shop-rebalance" in stage.names("serviceaccounts"), "a Job may still be asked for"
    stage.edit(rebalance=None)
    stage.until(lambda: "shop-rebalance" not in stage.names("serviceaccounts") | stage.names("roles"))
    stage.settled()
    assert "shop-node" in stage.names("roles")


def test_what_waits_for_approval_causes_no_write(stage: Stage) -> None:
    stage.operator(resync_s=1.0)
    settled(stage, replicas=1)
    ask(stage, moves=onto(stage, "n0"))
    until(stage, "ProposalReady")
    stage.until(lambda: stage.writes(time.monotonic() - 2) == 0)
    since_s = time.monotonic()
    time.sleep(4)
    assert stage.server.requests("GET", "/delayclusters/shop", since_s), "the operator looks again and again"
    assert stage.writes(since_s) == 0


def test_a_rebalance_that_cannot_be_read_harms_nobody(stage: Stage) -> None:
    stage.operator()
    settled(stage, replicas=1)
    ask(stage, "bad", moves="all of them")
    stage.until(lambda: stage.events("InvalidSpec", "bad"))
    ask(stage, moves=onto(stage, "n0")[:1])
    approve(stage)
    until(stage, "Ready")
    stage.settled()
