"""kopf really runs, over the fake API server: restarts, scaling, volumes, failover and pause of a living cluster."""

from __future__ import annotations

import json
import re
import time
from importlib import metadata
from typing import Any

import pytest
from delayoperator.cluster import shard_summary

from tests.kube import fakekinds
from tests.operator.stage import Stage

ORDERS = {"name": "orders", "queues": 6}


def _images(stage: Stage) -> set[str]:
    return {str(pod["spec"]["containers"][0]["image"]) for pod in stage.server.list("pods", "default")}


def test_a_new_image_reaches_all_pods_one_at_a_time(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(image="node:2")
    missing: list[int] = []

    def done() -> bool:
        ready = [it for it in stage.server.list("pods", "default") if it.get("status", {}).get("phase") == "Running"]
        missing.append(3 - len([it for it in ready if "deletionTimestamp" not in it["metadata"]]))
        return _images(stage) == {"node:2"} and stage.is_settled()

    stage.until(done)
    assert max(missing) <= 1, "never two pods at a time"
    assert sorted(stage.kubelet.restarts) == ["shop-0", "shop-1", "shop-2"], "each once"
    assert len(stage.events("PodRestarted")) == 3
    status = stage.there("delayclusters", "shop")["status"]
    assert (status["image"], status["version"]) == ("node:2", metadata.version("delaycluster"))


def test_the_restart_stops_at_an_image_that_does_not_start_and_goes_on_when_it_is_mended(stage: Stage) -> None:
    stage.kubelet.bad_images.add("node:bad")
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(image="node:bad")
    stage.until(lambda: stage.reason("Degraded") == "RolloutStuck")
    said = stage.condition("Degraded")["message"]
    assert 'ImagePullBackOff: Back-off pulling image "node:bad"' in said
    assert "docs/operations.md#rolloutstuck" in said
    time.sleep(2)
    assert len(stage.kubelet.restarts) == 1, "no other pod was touched"
    stage.until(lambda: stage.condition("Ready")["status"] == "True")
    stage.edit(image="node:3")
    stage.until(lambda: _images(stage) == {"node:3"})
    stage.settled()


def test_a_pod_that_runs_and_is_never_ready_is_reported_and_replaced_when_the_change_is_taken_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_summary, "SLOW_START_MS", 2_000)
    stage.kubelet.unready_images.add("node:unready")
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(image="node:unready")
    stage.until(lambda: stage.reason("Degraded") == "RolloutStuck")
    (stuck,) = stage.kubelet.restarts
    assert f"{stuck} runs and does not become ready (container node)" in stage.condition("Degraded")["message"]
    stage.edit(image="node:1")
    stage.until(lambda: _images(stage) == {"node:1"} and stage.is_settled())
    assert stage.kubelet.restarts == [stuck, stuck], "no other pod was touched"


def test_the_restart_waits_for_copies_that_are_not_in_sync(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS], failover={"replaceAfterSeconds": 3600})
    stage.settled()
    stage.kubelet.frozen.add("shop-1")
    stage.until(lambda: stage.reason("Degraded") in ("NodeSilent", "CopiesOutOfSync"))
    stage.edit(image="node:2")
    stage.until(lambda: stage.reason("Progressing") == "RollingRestart")
    time.sleep(2)
    assert stage.kubelet.restarts == []
    assert "waiting for shop-1 to be ready" in stage.condition("Progressing")["message"]
    stage.kubelet.frozen.clear()
    stage.until(lambda: _images(stage) == {"node:2"})
    stage.settled()


def _in_sync(stage: Stage, name: str, entries: list[str]) -> None:
    """Write the in-sync set by hand, in the master's place."""
    kind = fakekinds.find("delayshards")
    stage.server.store.patch(kind, "default", name, {"status": {"inSync": entries}}, "somebody", "status")


def test_a_blocked_shard_holds_up_only_the_nodes_that_have_copies_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_summary, "STUCK_MS", 1_000)
    stage.operator()
    stage.create(topics=[ORDERS], failover={"replaceAfterSeconds": 3600})
    stage.settled()
    name = "shop.orders-0"
    spec = stage.there("delayshards", name)["spec"]
    sound = stage.there("delayshards", name)["status"]["inSync"]
    (other,) = {"n0", "n1", "n2"} - {*spec["replicas"]}
    with stage.kubelet.lock:
        _in_sync(stage, name, ["copy-that-is-lost"])
        stage.kubelet.kill(spec["master"].replace("n", "shop-"))
    stage.until(lambda: stage.reason("Degraded") == "ShardsBlocked")
    stage.edit(image="node:2")
    rollout = "also RolloutStuck: .*orders-0 \\(copies on "  # before, perhaps, that a new pod is long in coming
    stage.until(lambda: re.search(rollout, stage.condition("Degraded")["message"]))
    assert stage.kubelet.restarts == [other.replace("n", "shop-")]
    time.sleep(2)
    assert len(stage.kubelet.restarts) == 1
    _in_sync(stage, name, sound)
    stage.until(lambda: _images(stage) == {"node:2"})
    stage.settled()
    assert len(stage.kubelet.restarts) == 3


def test_scaling_out_and_in_again_moves_the_copies_first(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(nodes=5)
    stage.until(lambda: len(stage.pods()) == 5)
    stage.until(lambda: stage.names("leases") == {f"shop.n{number}" for number in range(5)})
    stage.settled()
    # Calm for ten seconds, and the new nodes get their share.
    stage.until(lambda: _placed(stage) == {"n0", "n1", "n2", "n3", "n4"}, lambda: _placed(stage))
    stage.settled()
    early: list[object] = []

    def shrunk() -> bool:
        pods, placed = stage.pods(), _placed(stage)
        early.extend(node for node in placed if node[1:] not in {pod.rsplit("-", 1)[1] for pod in pods})
        return len(pods) == 3

    stage.edit(nodes=3)
    stage.until(lambda: stage.reason("Progressing") == "ScalingIn")
    stage.until(shrunk)
    assert early == [], "no pod went that had a copy"
    stage.settled()
    assert _placed(stage) == {"n0", "n1", "n2"}
    stage.until(lambda: stage.names("leases") == {"shop.n0", "shop.n1", "shop.n2"})
    desired = json.loads(stage.there("configmaps", "shop-cluster")["data"]["cluster.json"])
    assert (desired["nodes"], desired.get("drained", [])) == (3, [])
    assert stage.names("persistentvolumeclaims") == {"data-shop-0", "data-shop-1", "data-shop-2"}


def test_a_node_with_a_copy_that_no_shard_has_is_not_scaled_in(stage: Stage) -> None:
    """Its volume would go with it, and a person has not said yet what becomes of the copy."""
    stage.operator()
    stage.create(nodes=5, topics=[ORDERS])
    stage.settled()
    with stage.kubelet.lock:
        stage.kubelet.names["77"] = "removed", 0, "shop"
        stage.kubelet.disks["default/shop", "n4"]["77"] = 3
    stage.until(lambda: stage.reason("Degraded") == "OrphanedCopies")
    stage.edit(nodes=3)
    stage.until(lambda: "n4 has copies on which no DelayShard counts" in stage.condition("Progressing")["message"])
    assert not _placed(stage) & {"n3", "n4"}
    assert "data-shop-4" in stage.names("persistentvolumeclaims")
    with stage.kubelet.lock:
        del stage.kubelet.disks["default/shop", "n4"]["77"]
    stage.until(lambda: stage.names("persistentvolumeclaims") == {"data-shop-0", "data-shop-1", "data-shop-2"})


def test_volumes_of_more_nodes_than_are_asked_for_are_read_before_they_go(stage: Stage) -> None:
    """Scaled to 5 by hand, deleted, and applied again with the 3 of the file."""
    stage.operator()
    stage.create(nodes=5, topics=[ORDERS])
    stage.settled()
    before = {it["metadata"]["name"]: it["spec"]["uid"] for it in stage.server.list("delayshards", "default")}
    stage.delete("delayclusters", "shop")
    stage.until(lambda: not stage.pods())
    stage.create(nodes=3, topics=[ORDERS])
    stage.until(lambda: stage.names("persistentvolumeclaims") == {"data-shop-0", "data-shop-1", "data-shop-2"})
    stage.settled()
    assert {it["metadata"]["name"]: it["spec"]["uid"] for it in stage.server.list("delayshards", "default")} == before


def _placed(stage: Stage) -> set[str]:
    shards = stage.server.list("delayshards", "default")
    return {node for it in shards for node in [*it["spec"]["replicas"], *(it["spec"].get("target") or [])]}


def test_a_container_that_ended_fails_over_before_its_lease_is_over(stage: Stage) -> None:
    running = stage.operator()
    stage.create(topics=[ORDERS], failover={"leaseSeconds": 30})
    stage.settled()
    before = {it["metadata"]["name"]: it["spec"] for it in stage.server.list("delayshards", "default")}
    led = {name for name, spec in before.items() if spec["master"] == "n1"}
    assert led
    with stage.kubelet.lock:
        stage.kubelet.bad_images.add("node:1")  # nothing starts again for now
        stage.kubelet.kill("shop-1")
        stage.kubelet.bad_images.discard("node:1")

    def taken() -> bool:
        now = {it["metadata"]["name"]: it["spec"] for it in stage.server.list("delayshards", "default")}
        return all(now[name]["epoch"] > before[name]["epoch"] for name in led)

    stage.until(taken, timeout_s=20)
    assert [it for it in running.events if it["event"] == "container-ended"]
    stage.until(lambda: any("shop-1" in it["message"] for it in stage.events("ContainerEnded")))
    stage.settled()
    chosen = stage.events("MastersChosen")
    assert len(chosen) <= 4, "not one a shard"


def test_a_silent_node_with_the_shortest_lease_loses_its_masters_and_the_others_keep_theirs(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS], failover={"leaseSeconds": 2})
    stage.settled()
    before = {it["metadata"]["name"]: it["spec"] for it in stage.server.list("delayshards", "default")}
    lost = {name for name, spec in before.items() if spec["master"] == "n1"}
    assert lost
    stage.kubelet.frozen.add("shop-1")

    def now() -> dict[str, Any]:
        return {it["metadata"]["name"]: it["spec"] for it in stage.server.list("delayshards", "default")}

    stage.until(lambda: all(spec["master"] != "n1" for spec in now().values()), timeout_s=20)
    time.sleep(4)  # two leases more
    assert {name for name, spec in now().items() if spec["epoch"] > before[name]["epoch"]} == lost
    stage.kubelet.frozen.clear()
    stage.settled()


def test_a_silent_node_is_named_with_its_pod_and_machine(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.kubelet.frozen.add("shop-2")
    stage.until(lambda: stage.reason("Degraded") == "NodeSilent")
    assert "no sign of life from n2 (pod shop-2 on machine-2)" in stage.condition("Degraded")["message"]
    stage.until(lambda: stage.condition("Ready")["status"] == "True")
    stage.kubelet.frozen.clear()
    stage.settled()


def test_volumes_grow_where_the_class_allows_it(stage: Stage) -> None:
    stage.operator()
    stage.create(storage={"size": "1Gi"})
    stage.settled()
    stage.edit(storage={"size": "2Gi"})
    claims = fakekinds.find("persistentvolumeclaims")

    def grown() -> bool:
        found = stage.server.store.list(claims, "default")[0]
        return {it["spec"]["resources"]["requests"]["storage"] for it in found} == {"2Gi"}

    stage.until(grown)
    stage.settled()
    assert len(stage.events("VolumeGrown")) == 3


def test_volumes_that_cannot_grow_are_said(stage: Stage) -> None:
    stage.storage_class(expandable=False)
    stage.operator()
    stage.create(storage={"size": "1Gi"})
    stage.settled()
    stage.edit(storage={"size": "2Gi"})
    stage.until(lambda: stage.reason("Degraded") == "VolumesCannotGrow")
    assert "data-shop-0 has 1 GiB, 2Gi is wished for" in stage.condition("Degraded")["message"]
    assert stage.there("persistentvolumeclaims", "data-shop-0")["spec"]["resources"]["requests"]["storage"] == "1Gi"


def test_volumes_grow_when_the_class_comes_to_allow_it(stage: Stage) -> None:
    """docs/operations.md#volumescannotgrow promises this."""
    stage.storage_class(expandable=False)
    stage.operator(resync_s=1.0)
    stage.create(storage={"size": "1Gi"})
    stage.settled()
    stage.edit(storage={"size": "2Gi"})
    stage.until(lambda: stage.reason("Degraded") == "VolumesCannotGrow")
    assert "(its storage class has no allowVolumeExpansion)" in stage.condition("Degraded")["message"]
    stage.storage_class(expandable=True)
    stage.until(lambda: len(stage.events("VolumeGrown")) == 3)
    stage.settled()


def test_paused_nothing_is_changed_and_masters_still_fail_over(stage: Stage) -> None:
    stage.operator()
    stage.create(topics=[ORDERS])
    stage.settled()
    stage.edit(paused=True)
    stage.until(lambda: stage.reason("Progressing") == "Paused")
    stage.edit(nodes=5, image="node:2", topics=[ORDERS, {"name": "mails", "queues": 1}])
    stage.delete("services", "shop-client")
    stage.until(lambda: stage.condition("Progressing").get("observedGeneration", 0) == 3)
    stage.kubelet.frozen.add("shop-0")

    def failed_over() -> bool:
        return all(it["spec"]["master"] != "n0" for it in stage.server.list("delayshards", "default"))

    stage.until(failed_over)
    time.sleep(1)
    assert stage.get("services", "shop-client") is None
    assert stage.there("statefulsets", "shop")["spec"]["replicas"] == 3
    assert "shop.mails-0" not in stage.names("delayshards")
    assert stage.kubelet.restarts == []
    stage.kubelet.frozen.clear()
    stage.edit(paused=False)
    stage.until(lambda: len(stage.pods()) == 5)
    stage.until(lambda: _images(stage) == {"node:2"})
    stage.settled()
    assert "shop.mails-0" in stage.names("delayshards")
