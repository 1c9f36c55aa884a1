"""The StatefulSet of the nodes. Its pods are restarted by the operator alone (OnDelete), and all start at once."""

from __future__ import annotations

from delayoperator.resources import names, pod
from delayoperator.resources.view import ClusterView, Json

REVISIONS_KEPT = 5
FIXED = ("podManagementPolicy", "selector", "serviceName", "volumeClaimTemplates")
"""Fields of its spec that the API server takes no change of."""


def stateful_set(view: ClusterView, live: Json | None = None) -> Json:
    """live: the one that is there, if any: what can't change is taken over from it, a claim's size too (claims are
    grown themselves, see volumes.py).
    """
    pods = view.cluster.nodes
    spec: Json = {
        "replicas": pods,
        "selector": {"matchLabels": names.selector(view.name)},
        "serviceName": names.headless_service(view.name),
        "podManagementPolicy": "Parallel",  # no node waits for another: after a power cut all are needed
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": REVISIONS_KEPT,
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": "Delete" if view.storage.delete_with_cluster else "Retain",
            "whenScaled": "Delete" if _shrinks(pods, live) else "Retain",
        },
        "template": pod.template(view),
        "volumeClaimTemplates": [_claim(view)],
    }
    before = {} if live is None else live["spec"]
    spec.update({name: before[name] for name in FIXED if name in before})
    spec["volumeClaimTemplates"] = [_without_status(claim) for claim in spec["volumeClaimTemplates"]]
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": names.metadata(view, view.name), "spec": spec}


def _shrinks(pods: int, live: Json | None) -> bool:
    """Whether pods go because the operator wants fewer: their nodes are empty, and their claims go too.

    Only then. With Delete at all times, `kubectl scale statefulset --replicas=0` by a tired hand would delete every
    copy of every message.
    """
    if live is None:
        return False
    counts: tuple[int, int] = (live["spec"].get("replicas", 1), live.get("status", {}).get("replicas", 0))
    return pods < max(counts)


def _claim(view: ClusterView) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": names.VOLUME, "labels": names.selector(view.name)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": view.storage.class_name,
            "resources": {"requests": {"storage": view.storage.size}},
        },
    }


def _without_status(claim: Json) -> Json:
    return {key: value for key, value in claim.items() if key != "status"}
