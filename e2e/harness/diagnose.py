"""Diagnostics of a failed scenario, shown below its traceback."""

from __future__ import annotations

from e2e.harness.kubectl import Kubectl

LINES = "60"
KINDS = "delayclusters,delayshards,statefulsets,pods,pvc,nodes"


def describe(kube: Kubectl, namespace: str, operator_namespace: str) -> str:
    """Objects, events, the last lines of the operator, of the nodes and of the load. Never raises."""
    ours = ("--namespace", namespace)
    logs = ("logs", f"--tail={LINES}", "--prefix", "--ignore-errors", "--max-log-requests=20")
    looks = {
        "objects": ("get", KINDS, *ours, "-o", "wide"),
        "status": ("get", "delayclusters", *ours, "-o", "jsonpath={range .items[*]}{.metadata.name}: {.status}\n{end}"),
        "events": ("get", "events", *ours, "--sort-by=.lastTimestamp"),
        "operator": (*logs, "--namespace", operator_namespace, "--selector=app.kubernetes.io/component=operator"),
        "nodes": (*logs, *ours, "--selector=app.kubernetes.io/component=node"),
        "load": ("logs", f"--tail={LINES}", *ours, "load"),
    }
    found = []
    for title, argv in looks.items():
        try:
            told = kube(*argv, seconds=20, check=False)
        except Exception as error:  # the cluster may be what is broken
            told = str(error)
        found.append(f"---- {title}\n{told}")
    return "\n".join(found)
