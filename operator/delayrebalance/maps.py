"""The cluster's map from its registry: sqlite:PATH, or kube:NAMESPACE/CLUSTER.

A node says its zone in its lease where it was told one. In Kubernetes the operator knows more: machines and zones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delayapi.node_client import TOKENS
from delayoperator.plan.placement import desired_replicas
from delayoperator.plan.topology import NodeLocation
from delayoperator.rebalance_plan import made_for
from delayregistry import open_registry
from delayregistry.model import ClusterSpec, ListenerTrust, NodeLease, ShardObject
from delayregistry.port import RegistryError

from delayrebalance.model import ClusterMap, MapNode, MapShard, RebalanceError


def read_map(
    place: str,
    locations: Mapping[str, NodeLocation] | None = None,
    generation: int | None = None,
    *,
    by_token: bool = False,
) -> ClusterMap:
    """locations: by node id, as the operator knows them. by_token: nodes are asked by TLS, at the listener that takes
    tokens, once all of them have it. Raises RebalanceError."""
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
    return as_map(cluster.spec, shards, leases, locations or {}, generation, by_token=by_token)


def as_map(
    cluster: ClusterSpec,
    shards: Sequence[ShardObject],
    leases: Sequence[NodeLease],
    locations: Mapping[str, NodeLocation],
    generation: int | None = None,
    *,
    by_token: bool = False,
) -> ClusterMap:
    """Shards that have no master at work, or that move already, are fixed; so are those whose master is not where it
    belongs, the first of the wished nodes: the planner brings it back there, and a move would be one more.

    locations: by node id; a zone that the lease says stands, as for the planner."""
    leased = {lease.node: lease for lease in leases}
    by_token = by_token and all(listener_of(lease, by_token=True)[1] for lease in leases)
    placed = {node for shard in shards for node in _nodes_of(shard)}
    names = [*cluster.node_ids, *sorted((placed | set(leased)) - set(cluster.node_ids))]  # those that leave come last
    nodes = tuple(
        MapNode(
            name,
            *(listener_of(leased[name], by_token=by_token) if name in leased else ("", None)),
            zone=(leased[name].zone if name in leased else "") or locations.get(name, NodeLocation()).zone,
            machine=locations.get(name, NodeLocation()).machine,
            usable=name in leased
            and not leased[name].stopping
            and name in cluster.node_ids
            and name not in cluster.drained,
        )
        for name in names
    )
    return ClusterMap(cluster.name, nodes, tuple(_shard(shard) for shard in shards), generation, made_for(cluster))


def listener_of(lease: NodeLease, *, by_token: bool) -> tuple[str, ListenerTrust | None]:
    """Where a node is asked, and whom to trust there; None: it is without TLS."""
    endpoint = lease.endpoint_of(TOKENS)
    return (endpoint, lease.trust) if by_token and endpoint and lease.trust is not None else (lease.endpoint, None)


def _nodes_of(shard: ShardObject) -> set[str]:
    spec = shard.spec
    return {*spec.replicas, *desired_replicas(spec), *((spec.master,) if spec.master else ())}


def _shard(shard: ShardObject) -> MapShard:
    spec, nodes = shard.spec, desired_replicas(shard.spec)
    at_work = shard.status is not None and shard.status.serving_epoch == spec.epoch and shard.status.resigned is None
    moving = spec.target is not None or spec.switchover is not None or bool(spec.leaving)
    fixed = not at_work or moving or bool(shard.conditions) or spec.master != nodes[0]
    return MapShard(shard.name, spec.master or nodes[0], nodes, fixed)
