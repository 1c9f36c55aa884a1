"""Which pods reach the nodes: a NetworkPolicy, where the DelayCluster asks for one."""

from __future__ import annotations

from collections.abc import Sequence

from delayoperator.resources import names, tls
from delayoperator.resources.view import ClusterView, Json, NetworkAccess


def network_policy(view: ClusterView, access: NetworkAccess) -> Json:
    """What no rule names comes from nobody. The kubelet's probes come from the pod's own machine, which Kubernetes
    always lets in."""
    nodes = {"podSelector": {"matchLabels": names.selector(view.name)}}
    ours = [nodes, {"podSelector": names.client_pods(view.name)}]
    if view.operator_namespace:
        ours.append(_operator_in(view.operator_namespace))
    secured = bool(view.metrics_authentication)
    clients = None if access.clients is None else [*ours, *access.clients]
    ingress = [
        _from([nodes], _port(names.PEER_PORT), _port(names.PEER_PORT, "UDP")),
        *([] if view.tls is None else [_from([nodes], _port(names.INTERNAL_PORT))]),
        *_unless_nobody(clients, *(number for _, number in tls.client_ports(view.tls))),
        *_unless_nobody(access.monitoring, names.HTTP_PORT, *([names.METRICS_PORT] if secured else [])),
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(view, names.network_policy(view.name)),
        "spec": {
            "podSelector": {"matchLabels": names.selector(view.name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
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
