"""Whose an object is: what is somebody else's is never written over, whatever its name."""

from __future__ import annotations

from delayoperator.resources.names import CLUSTER_LABEL, MANAGER
from delayoperator.resources.view import ClusterView, Json


def foreign(view: ClusterView, live: Json) -> str | None:
    """Why the live object must be left alone; None when it is this cluster's.

    One without a controller is taken over when its labels say that it was this cluster's: it was restored, or left
    behind by `kubectl delete --cascade=orphan`.
    """
    meta = live.get("metadata", {})
    owner = next((one for one in meta.get("ownerReferences") or () if one.get("controller")), None)
    if owner is not None:
        if owner.get("uid") == view.uid:
            return None
        return f"it belongs to {owner.get('kind')} {owner.get('name')} (uid {owner.get('uid')})"
    labels = meta.get("labels") or {}
    if labels.get(CLUSTER_LABEL) == view.name and labels.get("app.kubernetes.io/managed-by") == MANAGER:
        return None
    return "it was there before and is not the operator's"
