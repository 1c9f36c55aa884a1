"""The cluster's map from its registry: sqlite:PATH, or kube:NAMESPACE/CLUSTER with the zones of its pods.

A node says its zone in its lease where it was told one. Kubernetes may know more: that of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from delayoperator.plan.placement import desired_replicas
from delayoperator.rebalance_plan import made_for
from delayregistry import open_registry
from delayregistry.model import ClusterSpec, NodeLease, ShardObject
from delayregistry.port import RegistryError

from delayrebalance.model import ClusterMap, MapNode, MapShard, RebalanceError

if TYPE_CHECKING:
    from delayoperator.kube.api import Api

ZONE = "topology.kubernetes.io/zone"


FindZones = Callable[[Set[str]], Mapping[str, str]]
"""The zones that can be found, by node id; it gets the nodes whose leases say none."""


def read_map(place: str, find_zones: FindZones | None = None, generation: int | None = None) -> ClusterMap:
    """Raises RebalanceError."""
    try:
        registry = open_registry(place)
        try:
            cluster, shards, leases = registry.read_cluster(), registry.list_shards(), registry.list_leases()
        finally:
            registry.close()
    except (RegistryError, ValueError) as error:
        raise RebalanceError(f"--registry {place}: {error}") from error
    if cluster is None:
        raise RebalanceError(f"--registry {place}: there is no cluster in it")
    silent = {*cluster.spec.node_ids, *(lease.node for lease in leases)} - {it.node for it in leases if it.zone}
    zones = {} if find_zones is None else find_zones(silent)
    return as_map(cluster.spec, shards, leases, zones, generation)


def as_map(
    cluster: ClusterSpec,
    shards: Sequence[ShardObject],
    leases: Sequence[NodeLease],
    zones: Mapping[str, str],
    generation: int | None = None,
) -> ClusterMap:
    """Shards that have no master at work, or that move already, are fixed; so are those whose master is not where it
    belongs, the first of the wished nodes: the planner brings it back there, and a move would be one more.

    zones: by node id, of nodes whose leases say none: the planner knows what the leases say."""
    leased = {lease.node: lease for lease in leases}
    placed = {node for shard in shards for node in _nodes_of(shard)}
    names = [*cluster.node_ids, *sorted((placed | set(leased)) - set(cluster.node_ids))]  # those that leave come last
    nodes = tuple(
        MapNode(
            name,
            endpoint=leased[name].endpoint if name in leased else "",
            zone=(leased[name].zone if name in leased else "") or zones.get(name, ""),
            usable=name in leased
            and not leased[name].stopping
            and name in cluster.node_ids
            and name not in cluster.drained,
        )
        for name in names
    )
    return ClusterMap(cluster.name, nodes, tuple(_shard(shard) for shard in shards), generation, made_for(cluster))


def zones_of(api: Api, namespace: str, cluster: str, silent: Set[str], say: Callable[[str], None]) -> dict[str, str]:
    """The zone of each node id, where it can be known: the pod's own label, else that of the machine it runs on.

    silent: nodes whose leases say no zone. Where theirs may not be read they are not known, and `say` gets a sentence
    about it: copies of those nodes are then only on different nodes. Raises RebalanceError.
    """
    from delayoperator.kube.api import ApiError
    from delayoperator.kube.kinds import CLUSTER_LABEL, POD
    from delayoperator.kube.views import pod_view

    found: dict[str, str] = {}
    unread: list[str] = []
    machines = _Machines(api)
    try:
        pods = api.list(POD, namespace, f"{CLUSTER_LABEL}={cluster}")
        for pod in pods:
            view = pod_view(cluster, pod)
            if view is None:
                continue
            zone = (pod["metadata"].get("labels") or {}).get(ZONE) or machines.zone(view.machine)
            if zone:
                found[view.node] = zone
            elif zone is None and view.node in silent:
                unread.append(view.node)
    except ApiError as error:
        if not error.forbidden:
            raise RebalanceError(str(error)) from error
        if silent:
            say(f"the zones of {', '.join(sorted(silent))} are not known: pods may not be listed ({error})")
    if unread:
        say(
            f"the zones of {', '.join(unread)} are not known: their pods have no label {ZONE} (Kubernetes sets it from "
            "1.35 on), and the job's ServiceAccount may not get nodes. A plan may put all copies of a shard into one "
            "zone; docs/rebalance.md, Zones, has the ClusterRole that it needs"
        )
    return found


class _Machines:
    """The zones of Kubernetes' nodes, each asked for once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._zones: dict[str, str | None] = {"": ""}  # a pod that is on none yet

    def zone(self, name: str) -> str | None:
        """An empty text where it has none; None where it may not be read. Raises ApiError."""
        from delayoperator.kube.api import ApiError
        from delayoperator.kube.kinds import ObjectKind

        if name not in self._zones:
            try:
                machine = self._api.get(ObjectKind("Node", "", "v1", "nodes", namespaced=False), "", name) or {}
                self._zones[name] = ((machine.get("metadata") or {}).get("labels") or {}).get(ZONE, "")
            except ApiError as error:
                if not error.forbidden:
                    raise
                self._zones[name] = None
        return self._zones[name]


def _nodes_of(shard: ShardObject) -> set[str]:
    spec = shard.spec
    return {*spec.replicas, *desired_replicas(spec), *((spec.master,) if spec.master else ())}


def _shard(shard: ShardObject) -> MapShard:
    spec, nodes = shard.spec, desired_replicas(shard.spec)
    at_work = shard.status is not None and shard.status.serving_epoch == spec.epoch and shard.status.resigned is None
    moving = spec.target is not None or spec.switchover is not None or bool(spec.leaving)
    fixed = not at_work or moving or bool(shard.conditions) or spec.master != nodes[0]
    return MapShard(shard.name, spec.master or nodes[0], nodes, fixed)
