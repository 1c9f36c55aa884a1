"""How often the API server was asked to write, from its own metrics: `apiserver_request_total`."""

from __future__ import annotations

import re
from collections import Counter

from e2e.harness.kubectl import Kubectl

WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
LINE = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>[0-9.e+]+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
# written by kubelets, controllers and authentication in any idle cluster
NOT_OURS = re.compile(
    r"nodes(/status)?|pods/status|pods/binding|serviceaccounts/token|endpoints|.*endpointslices|.*reviews"
)
LEASES = "coordination.k8s.io/leases"


def counted(metrics: str) -> Counter[str]:
    """Writes by `GROUP/RESOURCE[/SUBRESOURCE]`; the core group has no `GROUP/`."""
    found: Counter[str] = Counter()
    for line in LINE.finditer(metrics):
        labels = dict(LABEL.findall(line["labels"]))
        if labels.get("verb") in WRITES:
            words = (labels.get("group"), labels.get("resource"), labels.get("subresource"))
            found["/".join(word for word in words if word)] += int(float(line["count"]))
    return found


def so_far(kube: Kubectl) -> Counter[str]:
    return counted(kube("get", "--raw", "/metrics"))


def ours(writes: Counter[str]) -> dict[str, int]:
    """Without lease renewals, and without what an idle Kubernetes writes by itself."""
    return {what: count for what, count in writes.items() if what != LEASES and not NOT_OURS.fullmatch(what)}
