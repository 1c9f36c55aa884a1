"""The output of `kubectl get` and `kubectl explain` for a cluster."""

from __future__ import annotations

import json
import re

from e2e.harness.delaycluster import LABEL, ClusterUnderTest
from e2e.harness.kubectl import Kubectl


def table(told: str) -> list[dict[str, str]]:
    """The rows of what `kubectl get` prints, by the headings; a cell may be empty."""
    head, *lines = told.splitlines()
    columns = [(found.group(), found.start()) for found in re.finditer(r"\S+( \S+)*", head)]
    ends = [*(start for _, start in columns[1:]), None]
    return [{name: line[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)} for line in lines]


def test_get_dlc_shows_how_each_cluster_is(cluster: ClusterUnderTest, topic: str) -> None:
    (row,) = table(cluster.kube("get", "dlc", cluster.name, "--namespace", cluster.namespace))
    assert re.fullmatch(r"(\d+[dhms])+", row.pop("AGE"))
    shards = str(len(cluster.shards()))
    counts = {"SHARDS": shards, "SERVED": shards, "IN SYNC": shards}
    assert row == {"NAME": cluster.name, "NODES": "3", "READY": "3", **counts, "STATUS": "Serving", "SECURITY": "Off"}


def test_get_delayshards_is_the_map_of_the_cluster(cluster: ClusterUnderTest, topic: str) -> None:
    told = cluster.kube(
        "get", "dsh", "-o", "wide", "--namespace", cluster.namespace, f"--selector={LABEL}={cluster.name}"
    )
    rows = {row["NAME"]: row for row in table(told)}
    shards = cluster.shards()
    assert set(rows) == {shard.name for shard in shards}
    for shard in shards:
        row = rows[shard.name]
        assert row["MASTER"] == shard.master
        assert json.loads(row["REPLICAS"]) == list(shard.replicas)
        assert (row["EPOCH"], row["SERVING"]) == (str(shard.epoch), str(shard.serving_epoch))
        assert len(json.loads(row["IN SYNC"])) == 2
        assert [row[what] for what in ("CONDITION", "REASON", "MESSAGE")] == ["", "", ""], "nothing is wrong"


def test_explain_teaches_the_fields(kube: Kubectl, cluster: ClusterUnderTest) -> None:
    told = " ".join(kube("explain", "dlc.spec.failover").split())
    assert "When a node counts as lost." in told
    assert "leaseSeconds <integer> A failover after a node was lost takes about this long." in told
    assert "replaceAfterSeconds <integer> A node that was away for so long gets its copies replaced on other" in told
    assert "master" in kube("explain", "delayshard.spec")
