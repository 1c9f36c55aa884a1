"""The plan's way into Kubernetes: status.plan of a DelayRebalance, which is made when there is something to propose."""

from __future__ import annotations

from typing import Any

from delayoperator.crds import VERB
from delayoperator.crds.rebalance import PlanModel, RebalanceState
from delayoperator.kube.api import Api, ApiError
from delayoperator.kube.kinds import CLUSTER_LABEL, DELAY_CLUSTER, DELAY_REBALANCE

from delayrebalance.model import RebalanceError

UNDER_WAY = frozenset({RebalanceState.REBALANCING.value, RebalanceState.RECONCILIATION_PAUSED.value})
STOP = "stop"
TRIES = 5  # against others who write the object meanwhile


def why_it_stays(found: dict[str, Any] | None) -> str | None:
    """Why this DelayRebalance gets no other plan now; None: it may have one."""
    if found is None:
        return None
    state = (found.get("status") or {}).get("state")
    if state == RebalanceState.STOPPED:  # `refresh` takes it out of this state before it asks for a job
        return "was stopped: its plan stays until it is approved again, or refresh asks for another"
    if state in UNDER_WAY:
        return "is under way: its plan stays"
    if (found["metadata"].get("annotations") or {}).get(VERB, "").strip() == STOP:
        return "is about to be stopped: it gets no plan"  # the operator has not seen the verb yet
    return None


def publish(api: Api, namespace: str, name: str, cluster: dict[str, Any], plan: PlanModel) -> str:
    """Writes the plan; what was done, in a sentence. A plan without moves tells one who waits, and makes no object.

    cluster: the DelayCluster object. Raises RebalanceError.
    """
    try:
        for _ in range(TRIES):
            found = api.get(DELAY_REBALANCE, namespace, name)
            if (why := why_it_stays(found)) is not None:
                return f"DelayRebalance {name} {why}"
            if found is None:
                if not plan.moves:
                    return f"nothing to propose: no DelayRebalance {name} is made"
                found = api.create(DELAY_REBALANCE, namespace, _new(name, namespace, cluster))
            if _written(api, namespace, name, found, plan):
                return f"DelayRebalance {name} has plan {plan.hash} with {len(plan.moves or ())} moves"
    except ApiError as error:
        raise RebalanceError(f"the plan could not be written: {error}") from error
    raise RebalanceError(f"the plan could not be written: DelayRebalance {name} changed {TRIES} times meanwhile")


def _written(api: Api, namespace: str, name: str, found: dict[str, Any], plan: PlanModel) -> bool:
    # A null takes away what a former plan had there.
    values = plan.model_dump(mode="json", by_alias=True)
    values["moves"] = [
        {key: value for key, value in move.items() if value is not None} for move in values["moves"] or ()
    ]
    body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "status": {"plan": values}}
    try:
        api.merge(DELAY_REBALANCE, namespace, name, body, "status")
    except ApiError as error:
        if error.conflict or error.not_found:
            return False
        raise
    return True


def _new(name: str, namespace: str, cluster: dict[str, Any]) -> dict[str, Any]:
    """Without a spec of its own: the DelayCluster's holds, as it is whenever it is asked for. It goes with
    the cluster."""
    meta = cluster["metadata"]
    return {
        "apiVersion": DELAY_REBALANCE.api_version,
        "kind": DELAY_REBALANCE.name,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {CLUSTER_LABEL: meta["name"]},
            "ownerReferences": [
                {
                    "apiVersion": DELAY_CLUSTER.api_version,
                    "kind": DELAY_CLUSTER.name,
                    "name": meta["name"],
                    "uid": meta["uid"],
                }
            ],
        },
        "spec": {"cluster": meta["name"]},
    }
