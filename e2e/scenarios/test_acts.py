"""What people do to objects while the volumes are whole: 10,000 messages are pending before and after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.harness.delaycluster import LABEL, ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, Object, wait_until

LATER, SOON = 9_500, 500
SOON_SECONDS = 120
GONE_SECONDS = 120.0
SPEC: dict[str, Any] = {
    "nodes": 3, "replicas": 2, "storage": {"size": "1Gi"}, "topics": [{"name": "orders", "queues": 4}],
}  # fmt: skip
LIST_SHARDS = "import os; print([it for it in os.listdir('/data/shards') if not it.startswith('.')])"
CRDS = tuple(f"{kind}.delaycluster.io" for kind in ("delayclusters", "delayshards", "delayrebalances"))


def in_pod(cluster: ClusterUnderTest, *argv: str) -> str:
    to = ("--endpoint", cluster.endpoint, "--json")
    pod = f"{cluster.name}-0"
    return cluster.kube(
        "exec", pod, "--namespace", cluster.namespace, "--", "delayctl", *argv, *to, seconds=SOON_SECONDS + 60
    )


def pending(cluster: ClusterUnderTest) -> int:
    return len(in_pod(cluster, "pending", "orders", "--limit", "0").splitlines())


@pytest.fixture
def acted(operator: Release, kube: Kubectl, namespace: str) -> ClusterUnderTest:
    """A cluster of the scenario's own, with LATER messages due in an hour and SOON ones due in SOON_SECONDS."""
    cluster = ClusterUnderTest(kube, "acts", namespace)
    cluster.apply(**SPEC)
    cluster.wait_whole()
    soon = datetime.now(UTC) + timedelta(seconds=SOON_SECONDS)
    in_pod(cluster, "produce", "orders", "--count", str(LATER), "--delay", "1h")
    in_pod(cluster, "produce", "orders", "--count", str(SOON), "--at", soon.isoformat(timespec="milliseconds"))
    assert pending(cluster) == LATER + SOON
    return cluster


def uids(cluster: ClusterUnderTest) -> dict[str, str]:
    found = cluster.kube.list("delayshards", cluster.namespace, f"delaycluster.io/cluster={cluster.name}")
    return {shard["metadata"]["name"]: shard["spec"]["uid"] for shard in found}


def bare(found: Object) -> Object:
    """As a backup has it: without owners, status and what the API server gave it."""
    kept = {key: found["metadata"][key] for key in ("name", "namespace", "labels") if key in found["metadata"]}
    return {**{key: found[key] for key in ("apiVersion", "kind", "spec")}, "metadata": kept}


def shard_objects(cluster: ClusterUnderTest) -> list[Object]:
    return cluster.kube.list("delayshards", cluster.namespace, f"{LABEL}={cluster.name}")


def keep_volumes(cluster: ClusterUnderTest) -> list[Object]:
    """The nodes' claims. Their volumes outlive them from now on."""
    claims = list(cluster.claims().values())
    for claim in claims:
        kept = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
        cluster.kube.patch("persistentvolume", claim["spec"]["volumeName"], kept)
    return claims


def bind(cluster: ClusterUnderTest, claims: list[Object]) -> None:
    """Give the volumes of these claims, which are gone, to nodes of this cluster."""
    for claim in claims:
        ordinal, volume = claim["metadata"]["name"].rpartition("-")[2], claim["spec"]["volumeName"]
        mine = bare(claim)
        mine["metadata"]["name"] = f"data-{cluster.name}-{ordinal}"
        mine["metadata"]["namespace"] = cluster.namespace
        mine["metadata"]["labels"] = {**mine["metadata"]["labels"], LABEL: cluster.name}
        free = {"claimRef": {"namespace": cluster.namespace, "name": mine["metadata"]["name"]}}
        cluster.kube.patch("persistentvolume", volume, {"spec": {"claimRef": None}})
        cluster.kube.patch("persistentvolume", volume, {"spec": free})
        cluster.kube.apply(mine, namespace=cluster.namespace)


def check_all_is_there(cluster: ClusterUnderTest, before: dict[str, str]) -> dict[str, float]:
    """Wait until the cluster is whole again, with the same shards and every message. Returns figures."""
    whole = cluster.wait_whole()
    assert uids(cluster) == before, "the shards are the ones that the volumes have, and no new ones"
    found = pending(cluster)
    assert found >= LATER
    consume = ("consume", "orders", "--group", "g", "--count", str(SOON), "--timeout", str(SOON_SECONDS + 30))
    got = [json.loads(line) for line in in_pod(cluster, *consume).splitlines()]
    assert len(got) == SOON
    assert pending(cluster) == LATER
    return {"whole_s": round(whole, 1), "pending_before": LATER + SOON, "pending_after": found, "delivered": len(got)}


@pytest.mark.quick
def test_a_cluster_that_is_deleted_and_applied_again_has_its_messages(
    acted: ClusterUnderTest, kube: Kubectl, figure: Callable[..., None]
) -> None:
    """First the objects of its shards are deleted, then everything but the volumes."""
    before = uids(acted)
    began = time.monotonic()
    kube("delete", "delayshards", "--all", "--namespace", acted.namespace)
    wait_until("the shards are made again", lambda: [] if uids(acted) == before else ["not yet"], GONE_SECONDS)
    acted.wait_whole()
    figure(act="delete delayshards", whole_s=round(time.monotonic() - began, 1), pending_after=pending(acted))
    acted.delete()
    wait_until("its pods are gone", lambda: sorted(acted.pods()), GONE_SECONDS)
    acted.apply(**SPEC)
    figure(act="delete and apply", **check_all_is_there(acted, before))


def test_an_uninstalled_operator_and_deleted_definitions_cost_no_message(
    acted: ClusterUnderTest, operator: Release, kube: Kubectl, figure: Callable[..., None]
) -> None:
    before = uids(acted)
    operator.uninstall()
    kube("delete", "crd", *CRDS, seconds=120)
    wait_until("its pods are gone", lambda: sorted(acted.pods()), GONE_SECONDS)
    operator.install()
    acted.apply(**SPEC)
    figure(act="uninstall and reinstall", **check_all_is_there(acted, before))


def test_volumes_that_may_not_be_adopted_wait_for_a_persons_word(
    acted: ClusterUnderTest, figure: Callable[..., None]
) -> None:
    """As docs/operations.md has it under OrphanedCopies."""
    before = uids(acted)
    acted.delete()
    wait_until("its pods are gone", lambda: sorted(acted.pods()), GONE_SECONDS)
    acted.apply(**SPEC, bootstrap={"volumes": "Refuse"})

    def unsaid() -> list[str]:
        degraded = acted.condition("Degraded")
        return [] if degraded.get("reason") == "OrphanedCopies" else [f"Degraded: {degraded}"]

    wait_until("the condition says what waits", unsaid, GONE_SECONDS)
    assert uids(acted) == {}
    assert "bootstrap.volumes is Refuse" in acted.condition("Degraded")["message"]
    orphans = [json.loads(line) for line in acted.delayctl("nodes", "orphans", "--json").splitlines()]
    assert {it["uid"] for it in orphans} == {f"{int(uid):016x}" for uid in before.values()}
    acted.delayctl("adopt", "--yes")
    figure(act="refuse, then adopt", **check_all_is_there(acted, before))


def test_a_namespace_that_is_restored_has_its_messages(
    acted: ClusterUnderTest, kube: Kubectl, figure: Callable[..., None]
) -> None:
    """The volumes, then the DelayCluster, then its DelayShards without owner and status, as backup tools restore them
    while the operator runs."""
    before, shards, claims = uids(acted), shard_objects(acted), keep_volumes(acted)
    kube.delete("namespace", acted.namespace)
    kube.namespace(acted.namespace)
    bind(acted, claims)
    acted.apply(**SPEC)
    for shard in shards:
        kube("create", "--namespace", acted.namespace, "-f", "-", stdin=json.dumps(bare(shard)), check=False)
    figure(act="namespace restored", **check_all_is_there(acted, before))


def test_a_removed_topic_gives_its_disk_back_once_its_pending_count_is_typed(
    acted: ClusterUnderTest, figure: Callable[..., None]
) -> None:
    """As docs/operations.md has it under TopicRemoved."""
    acted.apply(**{**SPEC, "topics": []})
    wait_until("the shards are surplus", lambda: [it.name for it in acted.shards() if not it.conditions], GONE_SECONDS)
    acted.delayctl("shards", "retire", "--topic", "orders", "--pending", str(LATER + SOON))
    assert shard_objects(acted) == []
    orphans = acted.delayctl("nodes", "orphans", "--json")
    assert orphans == ""
    left = {}
    for node, pod in acted.pods().items():
        name = pod["metadata"]["name"]
        listed = ("exec", name, "--namespace", acted.namespace, "--", "python", "-c", LIST_SHARDS)
        left[node] = acted.kube(*listed).strip()
    assert set(left.values()) == {"[]"}
    figure(act="topic removed, then retired", pending_before=LATER + SOON, directories_left=0)
