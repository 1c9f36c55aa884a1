"""How the nodes are found, and how many of them may be taken away at once."""

from __future__ import annotations

from delayoperator.resources import names, tls
from delayoperator.resources.view import ClusterView, Json


def client_service(view: ClusterView) -> Json:
    """For applications: any ready node will do, it forwards what is not its own."""
    service, chosen = _client_service(view, names.client_service(view.name)), view.service
    meta = service["metadata"]
    labels = {**chosen.labels, **meta["labels"]}
    return {
        **service,
        "metadata": {**meta, "labels": labels, "annotations": dict(chosen.annotations)},
        "spec": {**service["spec"], **chosen.spec},
    }


def bare_client_service(view: ClusterView) -> Json:
    """The same by the cluster's bare name, as earlier releases made it: clients go on using it."""
    return _client_service(view, view.name)


def _client_service(view: ClusterView, name: str) -> Json:
    return _service(view, name, {"type": "ClusterIP", "ports": [_port(*port) for port in tls.client_ports(view.tls)]})


def headless_service(view: ClusterView) -> Json:
    """The StatefulSet's. Names every node, ready or not; the nodes themselves use no names but addresses."""
    ports = [
        *(_port(*port) for port in tls.all_client_ports(view.tls)),
        _port("peer", names.PEER_PORT),
        _port("peer-udp", names.PEER_PORT, "UDP"),
    ]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": ports}
    return _service(view, names.headless_service(view.name), spec)


def disruption_budget(view: ClusterView) -> Json:
    """One node at a time, also of a cluster of one: whoever drains its machine means it.

    IfHealthyBudget: a node that is not ready may still lead shards or have the only good copy of one, so it may be
    evicted only while all others are well. AlwaysAllow would let a drain take nodes away that all are recovering.
    """
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        "selector": {"matchLabels": names.selector(view.name)},
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(view, view.name),
        "spec": spec,
    }


def _service(view: ClusterView, name: str, spec: Json) -> Json:
    chosen = {**spec, "selector": names.selector(view.name)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": names.metadata(view, name), "spec": chosen}


def _port(name: str, number: int, protocol: str = "TCP") -> Json:
    return {"name": name, "port": number, "targetPort": name, "protocol": protocol}
