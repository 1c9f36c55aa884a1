"""A DelayCluster's status as it should be, and what of it has to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata

from delayoperator.cluster.conditions import ClusterObservation, ClusterProblem, ConditionUpdate, finished
from delayoperator.cluster.node_scaling import NodeAdvice
from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.shard_summary import ordinal
from delayoperator.kube.api import Api, Json
from delayoperator.kube.events import EventRecorder
from delayoperator.kube.kinds import DELAY_CLUSTER
from delayoperator.plan import ObservedNode
from delayoperator.plan.topology import NodeLocation

NOT_READY = (Reason.SHARDS_NOT_SERVED, Reason.NO_NODES_READY)  # of a cluster that was ready before
RELEASE = metadata.version("delaycluster")  # of this operator
QUIET = (
    Reason.HEALTHY,
    Reason.NOT_REBALANCING,
    Reason.SETTLED,
    Reason.UP_TO_DATE,
    Reason.NODES_SUFFICE,
)  # of a new cluster: no event


def was_ready(status: Json) -> bool:
    """Whether the cluster has ever been complete: then what is missing now is a fault, not a beginning."""
    known = _by_type(status)
    ready, progressing = known.get("Ready", {}), known.get("Progressing", {})
    if progressing.get("reason") == Reason.COPIES_COMING:
        return False
    return bool(ready) and (ready.get("status") == "True" or ready.get("reason") in NOT_READY)


def written_version(status: Json) -> int:
    """The storage format that the nodes were last told to write."""
    return int(status.get("nodesVersion") or 1)


def status_of(
    said: Sequence[ConditionUpdate],
    seen: ClusterObservation,
    before: Json,
    generation: int,
    selector: str,
    image: str,
    wall_ms: int,
) -> Json:
    """before: the status that is there; a condition keeps its time while its status stays the same."""
    known = _by_type(before)
    return {
        "observedGeneration": generation,
        "conditions": [_condition(it, known.get(it.type, {}), generation, wall_ms) for it in said],
        "nodes": len(seen.pods),
        "readyNodes": sum(pod.ready for pod in seen.pods),
        "shards": seen.shard_summary.desired,
        "servedShards": seen.shard_summary.served,
        "inSyncShards": seen.shard_summary.in_sync,
        # A loop that has only just begun has seen none.
        "locations": _locations(seen.nodes) or before.get("locations") or [],
        "selector": selector,
        "nodesVersion": max(seen.versions.version, written_version(before)),
        "version": RELEASE,
        "security": seen.security.value,
        "image": image,
        "autoscaling": None if seen.scaling is None else _autoscaling(seen.scaling),
    }


def _autoscaling(said: NodeAdvice) -> Json:
    return {"desired": said.nodes, "because": said.because, "at": _time(said.at_ms)}


def _locations(nodes: Mapping[str, ObservedNode]) -> list[Json]:
    """Of nodes of which something is known."""
    return [
        {"node": node, **{key: value for key, value in (("machine", it.machine), ("zone", it.zone)) if value}}
        for node in sorted(nodes, key=ordinal)
        if (it := nodes[node].location) != NodeLocation()
    ]


def degraded_only(before: Json, fault: ClusterProblem, generation: int, wall_ms: int) -> Json:
    """The conditions with Degraded set to this; the others as they are."""
    said = finished(ConditionUpdate("Degraded", True, fault.reason, fault.message))
    conditions = list(before.get("conditions") or ())
    new = _condition(said, _by_type(before).get("Degraded", {}), generation, wall_ms)
    places = [place for place, it in enumerate(conditions) if it.get("type") == "Degraded"]
    if places:
        conditions[places[0]] = new
    else:
        conditions.append(new)
    return {"conditions": conditions}


def _condition(said: ConditionUpdate, old: Json, generation: int, wall_ms: int) -> Json:
    status = "True" if said.status else "False"
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": said.type,
        "status": status,
        "reason": str(said.reason),
        "message": said.message,
        "observedGeneration": generation,
        "lastTransitionTime": since or _time(wall_ms),
    }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def changed(before: Json, after: Json) -> Json:
    """The fields of `after` that are not so yet; empty: nothing is written."""
    return {key: value for key, value in after.items() if before.get(key) != value}


def transitions(before: Json, after: Json) -> list[tuple[str, str, bool]]:
    """(reason, message, is a warning) of conditions that have another status or reason than before: an event each."""
    known = _by_type(before)
    found = []
    for condition in after["conditions"]:
        old = known.get(condition["type"], {})
        if (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"]):
            continue
        if not old and condition["reason"] in QUIET:
            continue  # of a cluster that is new: nothing has happened
        bad = condition["type"] == "Degraded" and condition["status"] == "True"
        bad = bad or (condition["type"] == "Ready" and condition["reason"] in NOT_READY)
        bad = bad or condition["reason"] == Reason.INVALID_SPEC
        found.append((str(condition["reason"]), str(condition["message"]), bad))
    return list(dict.fromkeys(found))


def write_status(api: Api, events: EventRecorder, meta: Json, before: Json, after: Json) -> str:
    """Writes what differs, and an event for each new transition. Returns the DelayCluster's version then.

    meta: the DelayCluster's; the write is conditional on its version. Raises ApiError.
    """
    patch, version = changed(before, after), str(meta["resourceVersion"])
    if patch:
        body = {"metadata": {"resourceVersion": version}, "status": patch}
        written = api.merge(DELAY_CLUSTER, meta["namespace"], meta["name"], body, "status")
        version = str(written["metadata"]["resourceVersion"])
        for reason, message, warning in transitions(before, after):
            events.record(meta, reason, message, warning=warning)
    return version


def _by_type(status: Json) -> dict[str, Json]:
    return {str(it.get("type")): it for it in status.get("conditions") or ()}
