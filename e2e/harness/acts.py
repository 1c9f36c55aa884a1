"""A cluster with 10,000 pending messages, to which people do something; and whether all of them are delivered after."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from e2e.harness.delaycluster import LABEL, ClusterUnderTest
from e2e.harness.kubectl import Object, wait_until

MESSAGES = 10_000
DUE_SECONDS = 90  # from when they are sent
GONE_SECONDS = 120.0
CALL_SECONDS = DUE_SECONDS + 120.0
SPEC: dict[str, Any] = {
    "nodes": 3, "replicas": 2, "storage": {"size": "1Gi"}, "topics": [{"name": "orders", "queues": 4}],
}  # fmt: skip


def in_pod(cluster: ClusterUnderTest, *argv: str, stdin: str | None = None) -> str:
    """`delayctl` in a node's pod, with --json."""
    pod = ("exec", "-i", f"{cluster.name}-0", "--namespace", cluster.namespace, "--")
    to = ("--endpoint", cluster.endpoint, "--json")
    return cluster.kube(*pod, "delayctl", *argv, *to, stdin=stdin, seconds=CALL_SECONDS)


def send(cluster: ClusterUnderTest, count: int = MESSAGES) -> None:
    """In all queues. All are due DUE_SECONDS from now, in the same millisecond."""
    due = (datetime.now(UTC) + timedelta(seconds=DUE_SECONDS)).isoformat(timespec="milliseconds")
    lines = (json.dumps({"body": body, "key": body}) + "\n" for body in bodies(count))
    in_pod(cluster, "produce", "orders", "--input", "-", "--at", due, stdin="".join(lines))
    assert pending(cluster) == count


def bodies(count: int = MESSAGES) -> set[str]:
    return {f"message {number}" for number in range(count)}


def pending(cluster: ClusterUnderTest) -> int:
    return len(in_pod(cluster, "pending", "orders", "--limit", "0").splitlines())


def check_all_is_there(cluster: ClusterUnderTest, before: dict[str, str]) -> dict[str, float]:
    """Wait until the cluster is whole again, with the same shards, and every message is delivered. Returns figures;
    pending_after has no meaning where all were due by then."""
    whole = cluster.wait_whole()
    assert uids(cluster) == before, "the shards are the ones that the volumes have, and no new ones"
    found = pending(cluster)
    consume = ("consume", "orders", "--group", "g", "--count", str(MESSAGES), "--timeout", str(DUE_SECONDS + 60))
    got = [json.loads(line) for line in in_pod(cluster, *consume).splitlines()]
    assert {it["body"] for it in got} == bodies()
    assert {it["queue"] for it in got} == set(range(4))
    assert min(it["received_ms"] - it["due_ms"] for it in got) >= 0, "some came early"
    assert pending(cluster) == 0
    return {"whole_s": round(whole, 1), "pending_before": MESSAGES, "pending_after": found, "delivered": len(got)}


def says(cluster: ClusterUnderTest, words: str) -> float:
    """Wait until the condition says what waits for a person. Seconds."""

    def unsaid() -> list[str]:
        degraded = cluster.condition("Degraded")
        return [] if words in degraded.get("message", "") else [f"Degraded: {degraded}"]

    return round(wait_until(f"the condition says {words}", unsaid, GONE_SECONDS), 1)


def adopt(cluster: ClusterUnderTest, *words: str) -> None:
    """Give a person's word: again, where a node did not answer in time."""

    def refused() -> list[str]:
        cluster.delayctl("adopt", *words, "--yes")
        return []

    wait_until(f"adopted: {words}", refused, GONE_SECONDS)


def delete(cluster: ClusterUnderTest) -> None:
    cluster.delete()
    wait_until("its pods are gone", lambda: sorted(cluster.pods()), GONE_SECONDS)


# ---------------------------------------------------------------- shards
def shard_objects(cluster: ClusterUnderTest) -> list[Object]:
    return cluster.kube.list("delayshards", cluster.namespace, f"{LABEL}={cluster.name}")


def uids(cluster: ClusterUnderTest) -> dict[str, str]:
    """Of the shards, by the names of their objects."""
    return {shard["metadata"]["name"]: shard["spec"]["uid"] for shard in shard_objects(cluster)}


def bare(found: Object) -> Object:
    """As a backup has it: without owners, status and what the API server gave it."""
    kept = {key: found["metadata"][key] for key in ("name", "namespace", "labels") if key in found["metadata"]}
    return {**{key: found[key] for key in ("apiVersion", "kind", "spec")}, "metadata": kept}


# ---------------------------------------------------------------- volumes
def keep_volumes(cluster: ClusterUnderTest) -> list[Object]:
    """The nodes' claims, by ordinal. Their volumes outlive them from now on."""
    claims = [claim for _, claim in sorted(cluster.claims().items())]
    for claim in claims:
        kept = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
        cluster.kube.patch("persistentvolume", claim["spec"]["volumeName"], kept)
    return claims


def unbind(cluster: ClusterUnderTest) -> list[Object]:
    """Delete the cluster and its claims; the volumes stay. Returns the claims."""
    claims = keep_volumes(cluster)
    delete(cluster)
    for claim in claims:
        cluster.kube.delete("pvc", claim["metadata"]["name"], cluster.namespace)
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
