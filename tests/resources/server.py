"""An applied object as an API server (1.34's core types) returns it: defaults filled in, quantities in canonical form,
empty fields dropped, the server's own metadata added.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from delayoperator.resources.view import Json

CANONICAL = {"1024Mi": "1Gi", "0.5": "500m", "2000m": "2", "1000Gi": "1000Gi", "1e3": "1k"}


def served(applied: Json) -> Json:
    live: Json = _dropped(deepcopy(applied))
    live["metadata"].update(
        uid="9f0c", resourceVersion="812", creationTimestamp="2026-01-01T00:00:00Z", generation=1,
        managedFields=[{"manager": "delaycluster-operator", "operation": "Apply", "fieldsType": "FieldsV1"}],
    )  # fmt: skip
    fill = {"StatefulSet": _stateful_set, "Service": _service, "PodDisruptionBudget": _budget}.get(live["kind"])
    if fill is not None:
        fill(live)
    return live


def as_listed(live: Json) -> Json:
    """The object as an item of a list, which does not name its kind."""
    return {key: value for key, value in live.items() if key not in ("apiVersion", "kind")}


def _dropped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _dropped(item) for key, item in value.items() if item is not None and item != []}
    return [_dropped(item) for item in value] if isinstance(value, list) else value


def _stateful_set(live: Json) -> None:
    spec = live["spec"]
    if not spec.get("minReadySeconds"):
        spec.pop("minReadySeconds", None)
    live["status"] = {"replicas": spec["replicas"], "readyReplicas": 0, "updateRevision": "orders-6d9"}
    for claim in spec["volumeClaimTemplates"]:
        claim["metadata"]["creationTimestamp"] = None
        claim["spec"]["volumeMode"] = "Filesystem"
        claim["status"] = {"phase": "Pending"}
        _canonical(claim["spec"]["resources"])
    spec["template"]["metadata"]["creationTimestamp"] = None
    pod = spec["template"]["spec"]
    pod.update(
        restartPolicy="Always", dnsPolicy="ClusterFirst", schedulerName="default-scheduler",
        serviceAccount=pod["serviceAccountName"],
    )  # fmt: skip
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        _container(container)
    for volume in pod["volumes"]:
        if "configMap" in volume:
            volume["configMap"].setdefault("defaultMode", 420)


def _container(container: Json) -> None:
    container.update(
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
    )
    container.setdefault("imagePullPolicy", "IfNotPresent")
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name in container:
            probe = container[name]
            for field, default in (("successThreshold", 1), ("timeoutSeconds", 1), ("periodSeconds", 10)):
                probe[field] = probe.get(field) or default
            probe.setdefault("failureThreshold", 3)
            _omit_zeros(probe, "initialDelaySeconds")
            if "httpGet" in probe:
                probe["httpGet"]["scheme"] = "HTTP"
    _omit_zeros(container, "stdin", "stdinOnce", "tty")
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for mount in container.get("volumeMounts", ()):
        _omit_zeros(mount, "readOnly")
    for variable in container.get("env", ()):
        variable.get("valueFrom", {}).get("fieldRef", {}).setdefault("apiVersion", "v1")
        if variable.get("value") == "":
            del variable["value"]
    _canonical(container.setdefault("resources", {}))


def _omit_zeros(value: Json, *fields: str) -> None:
    """Go's omitempty."""
    for field in fields:
        if not value.get(field, True):
            del value[field]


def _canonical(resources: Json) -> None:
    for amounts in resources.values():
        for name, amount in amounts.items():
            amounts[name] = CANONICAL.get(str(amount), str(amount))


def _service(live: Json) -> None:
    spec = live["spec"]
    spec.setdefault("clusterIP", "10.96.0.17")
    spec.update(
        clusterIPs=[spec["clusterIP"]], sessionAffinity="None", internalTrafficPolicy="Cluster",
        ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack",
    )  # fmt: skip
    if spec.setdefault("type", "ClusterIP") != "ClusterIP":
        spec.setdefault("externalTrafficPolicy", "Cluster")
        for number, port in enumerate(spec["ports"]):
            port["nodePort"] = 30_000 + number
    live["status"] = {"loadBalancer": {}}


def _budget(live: Json) -> None:
    live["status"] = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
