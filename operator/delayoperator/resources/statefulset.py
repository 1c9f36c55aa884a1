"""The StatefulSet of the nodes. Its pods are restarted by the operator alone (OnDelete), and all start at once."""

from __future__ import annotations

from delayregistry import codec

from delayoperator.resources import names, pod
from delayoperator.resources.normal import whole_bytes
from delayoperator.resources.view import ClusterView, Json

REVISIONS_KEPT = 5
FIXED = ("podManagementPolicy", "selector", "serviceName", "volumeClaimTemplates")
"""Fields of its spec that the API server takes no change of."""


def stateful_set(view: ClusterView, live: Json | None = None) -> Json:
    """live: the one that is there, if any: what can't change is taken over from it, a claim's size too (see
    `grown`)."""
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
        "template": pod.template(view, _restart(view, live)),
        "volumeClaimTemplates": [_claim(view)],
    }
    before = {} if live is None else live["spec"]
    spec.update({name: before[name] for name in FIXED if name in before})
    spec["volumeClaimTemplates"] = [_without_status(claim) for claim in spec["volumeClaimTemplates"]]
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _metadata(view), "spec": spec}


def grown(view: ClusterView, live: Json) -> Json | None:
    """The merge patch that asks for the claim `live` to be as large as the spec says; None: there is nothing to ask.

    Each claim is edited itself, since a StatefulSet's template can't change. Nothing is asked of a claim that is large
    enough (a claim never shrinks), that is not bound yet (only bound claims can grow), or that is being deleted. The
    patch is conditional on what was seen.
    """
    metadata, spec = live["metadata"], live["spec"]
    if metadata.get("deletionTimestamp") or live.get("status", {}).get("phase") != "Bound":
        return None
    has = spec.get("resources", {}).get("requests", {}).get("storage", "0")
    if whole_bytes(view.storage.size) <= whole_bytes(has):
        return None
    return {
        "metadata": {"resourceVersion": metadata["resourceVersion"]},
        "spec": {"resources": {"requests": {"storage": view.storage.size}}},
    }


def _metadata(view: ClusterView) -> Json:
    meta = names.metadata(view, view.name)
    return meta if view.tls is None else {**meta, "annotations": {names.TLS: codec.dumps(view.tls)}}


def _restart(view: ClusterView, live: Json | None) -> str:
    """The value that was asked for last. An annotation that is gone restarts nothing."""
    template = {} if live is None else live["spec"].get("template", {})
    before = (template.get("metadata", {}).get("annotations") or {}).get(pod.RESTARTED, "")
    return view.restart or str(before)


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
