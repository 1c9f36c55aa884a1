"""The way to a cluster in Kubernetes, for a command's lifetime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delayctl.common import UNREACHABLE, USAGE, ConnectTarget, fail
from delayctl.targets.kube import GRPC_PORT, BadTarget, KubeAccess, KubeError
from delayctl.targets.kube_target import KubeTarget
from delayctl.targets.port_forward import Forwards


@contextmanager
def accessed(target: KubeTarget) -> Iterator[KubeAccess]:
    """The API server that the kubeconfig names; what goes wrong with it ends the process, with a line and a code."""
    try:
        access = KubeAccess(target)
        try:
            yield access
        finally:
            access.close()
    except BadTarget as error:
        fail(str(error), USAGE)
    except KubeError as error:
        fail(str(error), UNREACHABLE)


@contextmanager
def forwarded(target: KubeTarget) -> Iterator[ConnectTarget]:
    """All nodes of the cluster, through port-forward."""
    with accessed(target) as access:
        pods = access.first_pods()
        with Forwards(access, pods) as forwards:
            endpoints = [endpoint_of(pod.address) for pod in pods]
            yield ConnectTarget(endpoints, forwards.dial, lambda: forwards.trouble)


def endpoint_of(address: str) -> str:
    """Where a node pod with this IP takes calls, as the node itself advertises it."""
    return f"[{address}]:{GRPC_PORT}" if ":" in address else f"{address}:{GRPC_PORT}"
