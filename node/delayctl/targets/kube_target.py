"""What `--kube` names, as people write it. Apart from kube.py, which needs the packages kubernetes and urllib3."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class KubeTarget:
    """context, namespace: None for what the kubeconfig says."""

    cluster: str
    namespace: str | None = None
    context: str | None = None


def parse_target(text: str) -> KubeTarget:
    """CLUSTER, NAMESPACE/CLUSTER or CONTEXT/NAMESPACE/CLUSTER; a context may have slashes in it.

    Raises ValueError, also where the packages that --kube needs are not installed.
    """
    if find_spec("kubernetes") is None:
        raise ValueError("--kube needs the package kubernetes: pip install 'delaycluster[kubernetes]'")
    context, _, rest = text.rpartition("/")
    context, _, namespace = context.rpartition("/")
    if not rest or (text.count("/") and not namespace) or (text.count("/") > 1 and not context):
        raise ValueError(f"{text!r}: expected CLUSTER, NAMESPACE/CLUSTER or CONTEXT/NAMESPACE/CLUSTER")
    return KubeTarget(rest, namespace or None, context or None)
