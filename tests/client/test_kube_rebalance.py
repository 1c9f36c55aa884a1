"""`delayctl --kube rebalance`: the DelayRebalance that the operator carries out, through its annotations."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from delayapi.proto.delay.v1 import delay_pb2
from delayctl.cluster import rebalance
from delayctl.main import main

from tests.client.support.fakepods import NAMESPACE
from tests.client.support.kubeworld import NAME, KubeWorld, kube_world
from tests.kube.fakekinds import find

KIND = find("delayrebalances")
OBJECT = f"{NAME}-rebalance"
APPROVE, VERB = "delaycluster.io/approve", "delaycluster.io/rebalance"
HASH = "0123456789ab"
PLAN: dict[str, Any] = {
    "hash": HASH,
    "expiresAt": "2100-01-01T00:00:00Z",
    "movedBytes": 3 << 20,
    "before": {"peakMessages": 900, "hotSlots": 2, "lowerBoundMessages": 400.0},
    "after": {"peakMessages": 420, "hotSlots": 0, "lowerBoundMessages": 400.0},
    "moves": [{"shard": "t-0", "from": "n0", "to": "n1", "replicas": ["n0", "n1"], "bytes": 0, "messages": 7}],
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeWorld]:
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.setattr(rebalance, "POLL_S", 0.02)
    monkeypatch.delenv("DELAYCTL_ENDPOINT", raising=False)
    monkeypatch.setenv("DELAYCTL_KUBE", NAME)
    with kube_world(kubeconfig) as found:
        yield found


def delayctl(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def there(world: KubeWorld, name: str = OBJECT) -> dict[str, Any] | None:
    return next((it for it in world.api.list("delayrebalances", NAMESPACE) if it["metadata"]["name"] == name), None)


def proposed(world: KubeWorld, state: str = "ProposalReady", cluster: str = NAME, **plan: Any) -> None:
    world.api.store.create(KIND, NAMESPACE, {"metadata": {"name": OBJECT}, "spec": {"cluster": cluster}})
    told(world, {"state": state, "plan": {**PLAN, **plan}})


def told(world: KubeWorld, status: dict[str, Any]) -> None:
    world.api.store.patch(KIND, NAMESPACE, OBJECT, {"status": status}, sub="status")


@contextmanager
def operator(world: KubeWorld, **answers: dict[str, Any]) -> Iterator[list[str]]:
    """Answers each verb with a status, and removes it. `job`: what a new object, or a refresh, gets. Gives the verbs
    that it was asked for."""
    stop, heard = threading.Event(), list[str]()

    def work() -> None:
        while not stop.wait(0.02):
            found = there(world)
            if found is None:
                continue
            asked = found["metadata"].get("annotations") or {}
            verbs = [name for name in (APPROVE, VERB) if name in asked]
            for name in verbs:
                heard.append(asked[name])
                told(world, answers["approve" if name == APPROVE else asked[name]])
                gone = {"metadata": {"annotations": {name: None}}}
                world.api.store.patch(KIND, NAMESPACE, OBJECT, gone)
            if not verbs and "job" in answers and not found.get("status"):
                told(world, answers["job"])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield heard
    finally:
        stop.set()
        thread.join()


def test_without_an_object_one_is_made_and_its_plan_is_shown(world: KubeWorld) -> None:
    with operator(world, job={"state": "ProposalReady", "plan": PLAN}):
        result = delayctl("rebalance", "--threshold", "2")
    assert result.exit_code == 0, result.stderr
    made = there(world)
    assert made is not None
    assert made["spec"] == {"cluster": NAME, "threshold": 2.0}
    assert "900 now, 420 then, 1.05 times what no plan gets below (400)" in result.stdout
    assert f"--approve {HASH}" in result.stdout


def test_with_one_the_job_is_asked_for_again(world: KubeWorld) -> None:
    proposed(world, state="Ready")
    with operator(world, refresh={"state": "ProposalReady", "plan": PLAN}) as heard:
        result = delayctl("rebalance", "--json")
    assert heard == ["refresh"]
    assert json.loads(result.stdout)["state"] == "ProposalReady"


def test_the_plan_that_was_looked_at_is_approved_by_its_name(world: KubeWorld) -> None:
    proposed(world)
    other = delayctl("rebalance", "--approve", "ffffffff")
    assert (other.exit_code, f"the plan is {HASH}, not ffffffff" in other.stderr) == (1, True)
    under_way = {"state": "Rebalancing", "approved": HASH, "progress": {"movesDone": 0, "movesTotal": 1}}
    with operator(world, approve=under_way) as heard:
        result = delayctl("rebalance", "--approve")
    assert (result.exit_code, heard) == (0, [HASH]), result.stderr
    assert "0 of 1 moves done" in result.stdout


def test_an_approval_that_the_operator_refuses_is_a_failure_with_its_words(world: KubeWorld) -> None:
    proposed(world)
    refused = {"type": "NotReady", "status": "True", "reason": "ClusterChanged", "message": "generation is 3"}
    with operator(world, approve={"state": "NotReady", "conditions": [refused]}):
        result = delayctl("rebalance", "--approve", HASH)
    assert result.exit_code == 1
    assert "was not approved: NotReady (ClusterChanged): generation is 3" in result.stderr


def test_waiting_ends_with_the_moves(world: KubeWorld) -> None:
    proposed(world)
    done = {"movesDone": 1, "movesTotal": 1, "bytesDone": 3 << 20, "percent": 100}
    with operator(world, approve={"state": "Ready", "approved": HASH, "progress": done}):
        result = delayctl("rebalance", "--approve", "--wait", "--json")
    assert (result.exit_code, json.loads(result.stdout)["progress"]) == (0, done)


def test_what_is_under_way_is_stopped_and_not_replaced(world: KubeWorld) -> None:
    proposed(world, state="Rebalancing")
    again = delayctl("rebalance")
    assert (again.exit_code, "is being carried out" in again.stderr) == (1, True)
    with operator(world, stop={"state": "Stopped"}) as heard:
        assert delayctl("rebalance", "--stop").exit_code == 0
    assert heard == ["stop"]
    nothing = delayctl("rebalance", "--stop")
    assert (nothing.exit_code, "there is nothing to stop: Stopped" in nothing.stderr) == (1, True)


def test_an_operator_that_is_away_is_named(world: KubeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "TAKEN_UP_S", 0.2)
    proposed(world)
    result = delayctl("rebalance", "--approve")
    assert result.exit_code == 1
    assert "nobody has taken it up within 0.2 s: the operator does that" in result.stderr


def test_what_can_not_be_is_refused_before_anything_is_written(world: KubeWorld) -> None:
    for arguments, why in (
        (("--status",), "nothing was proposed yet"),
        (("--approve",), "nothing was proposed yet"),
        (("--dry-run",), "--dry-run is for a local cluster"),
        (("--slot", "1m"), "--slot: in Kubernetes that is spec.rebalance of the DelayCluster 'orders'"),
    ):
        result = delayctl("rebalance", *arguments)
        assert (result.exit_code, why in result.stderr) == (1, True), result.stderr
    assert there(world) is None
    proposed(world, expiresAt="2020-01-01T00:00:00Z")
    late = delayctl("rebalance", "--approve")
    assert (late.exit_code, "expired at 2020-01-01" in late.stderr) == (1, True)


def test_an_object_of_another_cluster_is_left_alone(world: KubeWorld) -> None:
    proposed(world, cluster="others")
    result = delayctl("rebalance", "--approve")
    assert (result.exit_code, "is about the cluster 'others'" in result.stderr) == (1, True)


def test_without_the_cluster_nothing_is_made(world: KubeWorld) -> None:
    result = delayctl("rebalance", "--kube", "nobody")
    assert result.exit_code == 3
    assert "there is no DelayCluster 'nobody'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--approve", HASH, "--stop"), "one at a time"),
        (("--stop", "--slot", "1m"), "makes no plan"),
        (("--wait",), "--wait goes with"),
        (("--data", "x"), "name two clusters"),
        (("--threshold", "0.5"), "threshold"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], why: str) -> None:
    result = delayctl("rebalance", "--kube", NAME, *arguments)
    assert (result.exit_code, why in result.stderr) == (2, True), result.stderr


def test_the_load_by_node_is_shown_as_the_proposed_plan_would_leave_it(world: KubeWorld) -> None:
    proposed(world)
    at_ms = 4_000_000_000_000

    def describe(request: delay_pb2.DescribeNodeRequest) -> delay_pb2.NodeState:
        return delay_pb2.NodeState(node=request.node or "n0", nodes=["n0", "n1"])

    def wheel(request: delay_pb2.GetWheelRequest) -> delay_pb2.GetWheelResponse:
        column = [np.array([value], "<i8").tobytes() for value in (at_ms, 60_000, 70, 700)]
        answer = delay_pb2.GetWheelResponse(now_ms=1)
        answer.shards.add(
            topic="t", node="n0", slot_start=column[0], slot_width=column[1], messages=column[2], bytes=column[3]
        )
        return answer

    for node in world.nodes:
        node.unary.update(DescribeNode=describe, GetWheel=wheel)
    result = delayctl("wheel", "--nodes", "--proposed", "--from", str(at_ms), "--json")
    assert result.exit_code == 0, result.stderr
    picture = json.loads(result.stdout)
    due = {when: {it["node"]: it["messages"] for it in picture[when]["nodes"]} for when in ("before", "after")}
    assert due == {"before": {"n0": 70, "n1": 0}, "after": {"n0": 0, "n1": 70}}


def test_without_a_proposal_the_load_is_not_shown_as_one_would_leave_it(world: KubeWorld) -> None:
    result = delayctl("wheel", "--nodes", "--proposed")
    assert (result.exit_code, "nothing is proposed" in result.stderr) == (1, True)
