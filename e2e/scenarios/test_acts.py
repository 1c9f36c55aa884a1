"""What people do to objects while the volumes are whole: 10,000 messages are pending before, and all are delivered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from e2e.harness.acts import (
    GONE_SECONDS,
    MESSAGES,
    SPEC,
    adopt,
    bare,
    bind,
    check_all_is_there,
    delete,
    keep_volumes,
    pending,
    says,
    send,
    shard_objects,
    uids,
    unbind,
)
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, wait_until

LIST_SHARDS = "import os; print([it for it in os.listdir('/data/shards') if not it.startswith('.')])"
CRDS = tuple(f"{kind}.delaycluster.io" for kind in ("delayclusters", "delayshards", "delayrebalances"))

Figure = Callable[..., None]


@pytest.mark.quick
def test_a_cluster_that_is_deleted_and_applied_again_has_its_messages(
    acted: ClusterUnderTest, kube: Kubectl, figure: Figure
) -> None:
    """First the objects of its shards are deleted, then everything but the volumes."""
    before = uids(acted)
    began = time.monotonic()
    kube("delete", "delayshards", "--all", "--namespace", acted.namespace)
    wait_until("the shards are made again", lambda: [] if uids(acted) == before else ["not yet"], GONE_SECONDS)
    acted.wait_whole()
    figure(act="delete delayshards", whole_s=round(time.monotonic() - began, 1), pending_after=pending(acted))
    delete(acted)
    acted.apply(**SPEC)
    figure(act="delete and apply", **check_all_is_there(acted, before))


def test_an_uninstalled_operator_and_deleted_definitions_cost_no_message(
    acted: ClusterUnderTest, operator: Release, kube: Kubectl, figure: Figure
) -> None:
    before = uids(acted)
    operator.uninstall()
    kube("delete", "crd", *CRDS, seconds=120)
    wait_until("its pods are gone", lambda: sorted(acted.pods()), GONE_SECONDS)
    operator.install()
    acted.apply(**SPEC)
    figure(act="uninstall and reinstall", **check_all_is_there(acted, before))


def test_volumes_that_may_not_be_adopted_wait_for_a_persons_word(acted: ClusterUnderTest, figure: Figure) -> None:
    """As docs/operations.md has it under OrphanedCopies."""
    before = uids(acted)
    delete(acted)
    acted.apply(**SPEC, bootstrap={"volumes": "Refuse"})
    said = says(acted, "bootstrap.volumes is Refuse")
    assert acted.condition("Degraded")["reason"] == "OrphanedCopies"
    assert uids(acted) == {}
    orphans = [json.loads(line) for line in acted.delayctl("nodes", "orphans", "--json").splitlines()]
    assert {it["uid"] for it in orphans} == {f"{int(uid):016x}" for uid in before.values()}
    adopt(acted)
    figure(act="refuse, then adopt", said_s=said, **check_all_is_there(acted, before))


def test_a_namespace_that_is_restored_has_its_messages(acted: ClusterUnderTest, kube: Kubectl, figure: Figure) -> None:
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


def test_volumes_under_another_clusters_name_wait_for_a_persons_word(
    acted: ClusterUnderTest, kube: Kubectl, figure: Figure
) -> None:
    """As docs/operations.md has it under OrphanedCopies."""
    before = uids(acted)
    other = ClusterUnderTest(kube, "moved", acted.namespace)
    bind(other, unbind(acted))
    other.apply(**SPEC)
    said = says(other, f"of {acted.name}, and this is cluster {other.name}")
    assert shard_objects(other) == []
    adopt(other, *(name.removeprefix(f"{acted.name}.") for name in sorted(before)))
    renamed = {name.replace(acted.name, other.name): uid for name, uid in before.items()}
    figure(act="another cluster's name, then adopt", said_s=said, **check_all_is_there(other, renamed))


def test_of_two_histories_on_different_volumes_a_person_chooses_one(acted: ClusterUnderTest, figure: Figure) -> None:
    """As docs/operations.md has it under OrphanedCopies. A full volume comes back beside those of a cluster that was
    made anew meanwhile, under the same name."""
    spec = {**SPEC, "replicas": 3}  # every volume has all shards
    acted.apply(**spec)
    acted.wait_whole()
    before, full = uids(acted), unbind(acted)
    acted.apply(**spec)
    acted.wait_whole()
    send(acted, 3)
    other = uids(acted)
    bind(acted, [full[0], *unbind(acted)[1:]])
    acted.apply(**spec)
    said = says(acted, "histories, and only one can go on")
    assert uids(acted) == {}
    for name, uid in sorted(before.items()):
        adopt(acted, name.removeprefix(f"{acted.name}."), "--uid", f"{int(uid):016x}")
    figure(act="two histories, one adopted", said_s=said, **check_all_is_there(acted, before))
    purged = 0
    for uid in other.values():
        orphans = [json.loads(line) for line in acted.delayctl("nodes", "orphans", "--json").splitlines()]
        ours = [it["pending"] for it in orphans if it["uid"] == f"{int(uid):016x}"]
        purged += max(ours)
        acted.delayctl("nodes", "orphans", "--purge", f"{int(uid):016x}", "--pending", str(max(ours)))
    assert purged == 3
    assert acted.delayctl("nodes", "orphans", "--json") == ""


def test_a_prune_by_a_gitops_tool_costs_no_message(acted: ClusterUnderTest, kube: Kubectl, figure: Figure) -> None:
    """Argo CD takes what has its application's label for the application's, and deletes it in the foreground. Here the
    application is called as the cluster is, so the label is on the cluster's own objects as well."""
    label = f"app.kubernetes.io/instance={acted.name}"
    before, claims = uids(acted), {claim["metadata"]["uid"] for claim in acted.claims().values()}
    kube("label", "delaycluster", acted.name, label, "--namespace", acted.namespace)
    kinds = kube("api-resources", "--namespaced", "--verbs=list,delete", "-o", "name").split()
    foreground = ("--selector", label, "--cascade=foreground", f"--timeout={GONE_SECONDS:g}s")
    kube("delete", ",".join(kinds), "--namespace", acted.namespace, *foreground, seconds=GONE_SECONDS + 10)
    wait_until("its pods are gone", lambda: sorted(acted.pods()), GONE_SECONDS)
    assert not kube.exists("delaycluster", acted.name, acted.namespace)
    assert shard_objects(acted) == []
    assert {claim["metadata"]["uid"] for claim in acted.claims().values()} == claims
    acted.apply(**SPEC)
    figure(act="pruned, then applied again", **check_all_is_there(acted, before))


def test_a_removed_topic_gives_its_disk_back_once_its_pending_count_is_typed(
    acted: ClusterUnderTest, figure: Figure
) -> None:
    """As docs/operations.md has it under TopicRemoved."""
    acted.apply(**{**SPEC, "topics": []})
    wait_until("the shards are surplus", lambda: [it.name for it in acted.shards() if not it.conditions], GONE_SECONDS)
    acted.delayctl("shards", "retire", "--topic", "orders", "--pending", str(MESSAGES))
    assert shard_objects(acted) == []
    orphans = acted.delayctl("nodes", "orphans", "--json")
    assert orphans == ""
    left = {}
    for node, pod in acted.pods().items():
        name = pod["metadata"]["name"]
        listed = ("exec", name, "--namespace", acted.namespace, "--", "python", "-c", LIST_SHARDS)
        left[node] = acted.kube(*listed).strip()
    assert set(left.values()) == {"[]"}
    figure(act="topic removed, then retired", pending_before=MESSAGES, directories_left=0)
