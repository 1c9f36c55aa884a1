"""Which pods reach the nodes, and the sinks: NetworkPolicies, where the DelayCluster asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from delayoperator.resources import names, tls
from delayoperator.resources.view import ClusterView, Json, NetworkAccess


def network_policies(view: ClusterView, access: NetworkAccess) -> tuple[Json, Json]:
    """What no rule names comes from nobody. The kubelet's probes come from the pod's own machine, which Kubernetes
    always lets in."""
    nodes = {"podSelector": {"matchLabels": names.selector(view.name)}}
    operator = [_operator_in(view.operator_namespace)] if view.operator_namespace else []
    ours = [nodes, {"podSelector": names.client_pods(view.name)}, *operator]
    secured = bool(view.metrics_authentication)
    clients = None if access.clients is None else [*ours, *access.clients]
    ingress = [
        _from([nodes], _port(names.PEER_PORT), _port(names.PEER_PORT, "UDP")),
        *([] if view.tls is None else [_from([nodes], _port(names.INTERNAL_PORT))]),
        *_unless_nobody(clients, *(number for _, number in tls.client_ports(view.tls))),
        *_unless_nobody(access.monitoring, names.HTTP_PORT, *([names.METRICS_PORT] if secured else [])),
    ]
    readers = None if access.monitoring is None else [*operator, *access.monitoring]
    of_sinks = _unless_nobody(readers, names.SINK_PORT)
    return (
        _policy(view, names.network_policy(view.name), names.selector(view.name), ingress),
        _policy(view, names.sink_network_policy(view.name), names.sink_selector(view.name), of_sinks),
    )


def _policy(view: ClusterView, name: str, pods: Json, ingress: Sequence[Json]) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(view, name),
        "spec": {"podSelector": {"matchLabels": pods}, "policyTypes": ["Ingress"], "ingress": [*ingress]},
    }


def _operator_in(namespace: str) -> Json:
    """It asks nodes what they have: without its answers failovers wait."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}},
    }


def _unless_nobody(peers: Sequence[Json] | None, *ports: int) -> list[Json]:
    """peers: None: everybody. An empty `from` would mean everybody too, so there is no rule for nobody."""
    return [] if peers is not None and not peers else [_from(peers, *map(_port, ports))]


def _from(peers: Sequence[Json] | None, *ports: Json) -> Json:
    return {"ports": [*ports]} if peers is None else {"from": [*peers], "ports": [*ports]}


def _port(number: int, protocol: str = "TCP") -> Json:
    return {"port": number, "protocol": protocol}
