"""Kubernetes' JSON as the values that maintenance decides from. Whatever is missing is read as not known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from delayoperator.cluster.annotations import asked_restart
from delayoperator.cluster.ended_processes import incarnation_of
from delayoperator.cluster.shard_summary import ClaimView, PodView, SetView
from delayoperator.plan.topology import NodeLocation
from delayoperator.rebalance_plan.times import instant
from delayoperator.resources.names import CONTAINER, SECURITY_MODE
from delayoperator.resources.normal import whole_bytes
from delayoperator.resources.pod import ZONE_VARIABLE
from delayoperator.resources.view import SecurityMode

Json = Mapping[str, Any]

REVISION = "controller-revision-hash"


def pod_view(cluster: str, pod: Json) -> PodView | None:
    """None for a pod that is no node of this cluster's."""
    meta, status = pod["metadata"], pod.get("status") or {}
    number = _number(cluster, str(meta["name"]))
    if number is None:
        return None
    conditions = {it["type"]: it for it in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return PodView(
        name=str(meta["name"]),
        node=f"n{number}",
        uid=str(meta.get("uid", "")),
        revision=str((meta.get("labels") or {}).get(REVISION, "")),
        ready=ready.get("status") == "True" and "deletionTimestamp" not in meta,
        deleting="deletionTimestamp" in meta,
        stopped=_stopped(status, conditions),
        machine=str((pod.get("spec") or {}).get("nodeName") or ""),
        zoneless=_zoneless(pod.get("spec") or {}),
        restart=asked_restart(meta),
        security=security_mode(meta),
        unready=tuple(str(it["name"]) for it in containers if it.get("ready") is False),
        unready_since_ms=None if ready.get("status") == "True" else instant(ready.get("lastTransitionTime")),
    )


def security_mode(meta: Json) -> SecurityMode:
    """Of a pod, or of a template, by its metadata. A mode of a later release counts as the strongest."""
    said = str((meta.get("annotations") or {}).get(SECURITY_MODE) or SecurityMode.OFF)
    return SecurityMode(said) if said in set(SecurityMode) else SecurityMode.REQUIRED


def ended_processes(pod: Json) -> list[str]:
    """The incarnations of the node's containers that the kubelet reports as terminated."""
    found = []
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            for state in (container.get("lastState") or {}, container.get("state") or {}):
                incarnation = incarnation_of((state.get("terminated") or {}).get("message"))
                if incarnation is not None:
                    found.append(incarnation)
    return found


def locations_of(cluster: Json) -> dict[str, NodeLocation]:
    """By node id, as the status of the DelayCluster has them."""
    said = (cluster.get("status") or {}).get("locations") or ()
    return {str(it["node"]): NodeLocation(it.get("machine", ""), it.get("zone", "")) for it in said}


def set_view(body: Json) -> SetView:
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    return SetView(
        replicas=int(spec.get("replicas", 1)),
        update_revision=str(status.get("updateRevision") or ""),
        observed=bool(status.get("updateRevision"))
        and status.get("observedGeneration", 0) >= meta.get("generation", 0),
    )


def claim_view(cluster: str, claim: Json, expandable: Mapping[str, bool]) -> ClaimView | None:
    """expandable: by storage class, where known. None for a claim that is none of this cluster's nodes'."""
    name = str(claim["metadata"]["name"])
    number = _number(f"data-{cluster}", name)
    if number is None:
        return None
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    return ClaimView(
        name=name,
        node=f"n{number}",
        requested_bytes=whole_bytes((spec.get("resources") or {}).get("requests", {}).get("storage", "0")),
        capacity_bytes=whole_bytes((status.get("capacity") or {}).get("storage", "0")),
        expandable=expandable.get(str(spec.get("storageClassName") or "")),
    )


def _zoneless(spec: Json) -> bool:
    return any(
        variable.get("name") == ZONE_VARIABLE and not variable.get("value") and not variable.get("valueFrom")
        for container in spec.get("containers") or ()
        if container.get("name") == CONTAINER
        for variable in container.get("env") or ()
    )


def _number(prefix: str, name: str) -> int | None:
    found = re.fullmatch(rf"{re.escape(prefix)}-(0|[1-9][0-9]*)", name)
    return None if found is None else int(found[1])


def _stopped(status: Json, conditions: Mapping[str, Json]) -> str | None:
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        if "waiting" in state:
            return _why_stopped(state["waiting"], "ContainerCreating", container)
        if "terminated" in state and container.get("name") == CONTAINER:
            return _why_stopped(state["terminated"], "Terminated", container)
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason') or 'Unschedulable'}: {scheduled.get('message') or 'no machine fits'}"
    if status.get("phase") in ("Failed", "Succeeded", "Unknown"):
        return f"{status.get('reason') or status['phase']}: {status.get('message') or 'the pod has ended'}"
    return "Pending" if status.get("phase", "Pending") == "Pending" else None


def _why_stopped(state: Json, default: str, container: Json) -> str:
    reason, message = str(state.get("reason") or default), str(state.get("message") or "").strip()
    last = (container.get("lastState") or {}).get("terminated") or {}
    if reason == "CrashLoopBackOff" and last:
        said = str(last.get("message") or "").strip()
        why = said if said and incarnation_of(last.get("message")) is None else "see kubectl logs --previous"
        message = f"the last one ended with exit code {last.get('exitCode')}; {why}"
    elif reason == "Terminated" or "exitCode" in state:
        message = f"exit code {state.get('exitCode')}" + (f", {message}" if message else "")
    return f"{reason}: {message[:300]}" if message else reason
