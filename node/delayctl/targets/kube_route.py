"""The way to a cluster in Kubernetes, for a command's lifetime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from delayapi.credentials import Tls
from delayapi.node_client import TOKENS
from delayregistry.model import ListenerTrust, NodeLease

from delayctl.common import UNREACHABLE, USAGE, ConnectTarget, fail
from delayctl.targets.kube import GRPC_PORT, BadTarget, KubeAccess, KubeError
from delayctl.targets.kube_target import KubeTarget
from delayctl.targets.port_forward import Forwards

if TYPE_CHECKING:
    from delayclient.routing.access import Access

TOKENS_PORT: Final = 7071
MTLS_PORT: Final = 7072


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


def whole_name(cluster: str | None, namespace: str | None, context: str | None) -> str:
    """CONTEXT/NAMESPACE/NAME, where what is not given is the kubeconfig's, and the namespace's only DelayCluster."""
    with accessed(KubeTarget(cluster or "", namespace, context)) as access:
        place = f"{access.context}/{access.namespace}"
        if cluster:
            return f"{place}/{cluster}"
        where = f"namespace {access.namespace!r} (context {access.context!r})"
        found = access.delayclusters()
        if not found:
            raise BadTarget(f"there is no DelayCluster in {where}: give --namespace")
        if len(found) > 1:
            raise BadTarget(f"there are {len(found)} DelayClusters in {where}, {', '.join(found)}: give --cluster")
        return f"{place}/{found[0]}"


@contextmanager
def forwarded(target: KubeTarget, given: Mapping[str, str | bool]) -> Iterator[ConnectTarget]:
    """All nodes of the cluster, through port-forward. given: of TLS and tokens, by the names of a Context's fields."""
    with accessed(target) as access, forwarding(access, given) as found:
        yield found


@contextmanager
def forwarding(access: KubeAccess, given: Mapping[str, str | bool]) -> Iterator[ConnectTarget]:
    """The same, where the API server is known already. Raises KubeError."""
    with TemporaryDirectory(prefix="delayctl-") as directory:
        pods = access.first_pods()
        port, shown = GRPC_PORT, _shown(access, given, Path(directory))
        if "token" in shown or "token_file" in given:
            port = TOKENS_PORT
        elif "client_cert" in given:
            port = MTLS_PORT
        elif access.delaycluster().get("status", {}).get("security") == "Required":
            raise KubeError(
                f"{access} takes calls by TLS alone (security.mode: Required): give --service-account NAME, whose "
                "token the API server gives to whoever may create it, or --token-file"
            )
        with Forwards(access, pods) as forwards:
            endpoints = [endpoint_of(pod.address, port) for pod in pods]
            yield ConnectTarget(endpoints, shown, forwards.dial, lambda: forwards.trouble)


def _shown(access: KubeAccess, given: Mapping[str, str | bool], directory: Path) -> Access:
    """What goes with the ServiceAccount that was named: its token, and whom the nodes' leases say to trust. Raises
    KubeError."""
    account = str(given.get("service_account", ""))
    if not account:
        return {}
    trust = trust_of(access)
    ca = directory / "ca.crt"
    ca.write_text(trust.roots, encoding="ascii")
    tls = Tls(ca=ca if trust.roots else "", server_name=trust.server_name)
    return {"tls": tls, "token": access.account_token(account)}


def trust_of(access: KubeAccess) -> ListenerTrust:
    """Of all nodes together: while one CA takes over from another, both count. Raises KubeError."""
    found = [lease.trust for lease in access.leases() if lease.trust is not None and _takes_tokens(lease)]
    if not found:
        raise KubeError(
            f"no node of {access} has a listener for tokens: security.mode is Off, or its certificates lack"
        )
    return ListenerTrust(found[0].server_name, "\n".join(dict.fromkeys(trust.roots for trust in found)))


def _takes_tokens(lease: NodeLease) -> bool:
    return bool(lease.endpoint_of(TOKENS))


def endpoint_of(address: str, port: int = GRPC_PORT) -> str:
    """Where a node pod with this IP takes calls, as the node itself advertises it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
