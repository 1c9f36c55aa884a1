"""Growing the claims: a StatefulSet's template can't change, so each claim is edited itself."""

from __future__ import annotations

from delayoperator.resources import names
from delayoperator.resources.normal import whole_bytes
from delayoperator.resources.view import ClusterView, Json


def grown(view: ClusterView, live: Json) -> Json | None:
    """The merge patch that asks for the claim `live` to be as large as is wished; None where there is nothing to ask.

    That is so for one that is that large already (a claim never shrinks), that is not bound yet (only bound claims can
    grow), or that is being deleted. The patch is conditional on what was seen.
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


def claim_names(view: ClusterView) -> tuple[str, ...]:
    """Of the nodes that there are to be."""
    return tuple(names.claim(view.name, number) for number in range(view.cluster.nodes))
