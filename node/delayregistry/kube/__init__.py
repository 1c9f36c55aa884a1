"""The Registry over Kubernetes objects: `--registry kube:NAMESPACE/CLUSTER`, and what the operator drives shards with.

    object                  field                               who writes it
    DelayShard CLUSTER.TOPIC-QUEUE
                            spec                                the operator (field manager delaycluster-operator)
                            status but conditions               the shard's master (delaynode)
                            status.conditions                   the operator
                            annotation allow-unclean-failover   people; the operator takes it away with a new term
    ConfigMap CLUSTER-cluster
                            data."cluster.json"                 the operator: the spec that was found good
    ConfigMap CLUSTER-security
                            data."security.json"                the operator: what it made of the DelayUsers
    Lease CLUSTER.NODE      spec, annotations delaycluster.io/* the node; the operator creates it

Every write but a creation is a JSON merge patch of the writer's own fields with metadata.resourceVersion. What is not
named stays: fields of a later release, a person's labels. Version = resourceVersion.

    client = KubeClient(Credentials.from_environment(), agent="delaycluster-operator")       # one per process
    shared = SharedWatches(client, (), log)                                                  # one per process
    registry = KubeRegistry(client, namespace, cluster, owner=OwnerReference(cluster, uid), shared=shared)
    ControlLoop(registry, ..., writers=32)                                                   # up to 32 writes at a time
    registry.close(); shared.close(); client.close()

Leases and ConfigMap are applied by the operator with a cluster's other objects (`delayoperator/resources`).

Client and watches are a process's, the registry is a cluster's. With an `owner` this is the operator's registry: what
it creates goes with the owner, a lease that does not move is read consistently (a stale list would look like deaths),
its writes are the operator's. Without one it is a node's: leases come from a watch, or from the API server's memory,
and a spec that a person deleted is kept until there is another.

Two watches in threads of their own (`watch.py`, `mirror.py`) follow the shards and the spec from the first call on;
`version()` counts what they told, and what this process wrote itself. A DelayShard that can't be read is said in the
log and left alone: it stays listed as it last could be read, or not at all, and every write to it is a conflict. A
third one follows the leases (`leases.py`), from the first renewal on, or the operator's first look, and a fourth the
security document, from the first `read_security()` on. An operator gives all its registries the same three
(`cluster_watches.py`).

Costs, in requests a second: a node renews its lease (0.74 with the default lease of 3 s) and begins two watches anew
(0.22); an operator whose nodes all live has the watches, whatever the number of its clusters. While a node is silent it
probes, and lists the leases, as often as the control loop asks (2 a second each).
"""

from __future__ import annotations

import os

from delayregistry.kube.adapter import KubeRegistry
from delayregistry.kube.client import Credentials, KubeClient
from delayregistry.kube.cluster_watches import SharedWatches
from delayregistry.kube.names import NODE_MANAGER, OwnerReference
from delayregistry.model import ClusterObject
from delayregistry.port import RegistryError, RegistryUnavailable

__all__ = ["Credentials", "KubeClient", "KubeRegistry", "OwnerReference", "SharedWatches", "open_for_node"]


class _NodesRegistry(KubeRegistry):
    """Does not answer before it knows the spec, which a node's leases depend on; closes its client too."""

    def read_cluster(self) -> ClusterObject:
        found = super().read_cluster()
        if found is None:
            raise RegistryUnavailable(f"{self.missing_spec}; the operator writes it")
        return found

    def close(self) -> None:
        super().close()
        self._client.close()


def open_for_node(place: str) -> KubeRegistry:
    """`NAMESPACE/CLUSTER`, with the environment's credentials; asks the API server nothing yet.

    Raises ValueError, RegistryError.
    """
    namespace, _, cluster = place.partition("/")
    if not namespace or not cluster or "/" in cluster:
        raise ValueError(f"registry kube:{place}: expected kube:NAMESPACE/CLUSTER")
    try:
        client = KubeClient(Credentials.from_environment(), agent=NODE_MANAGER)
    except OSError as error:
        raise RegistryError(str(error)) from error
    return _NodesRegistry(client, namespace, cluster, pod_uid=os.environ.get("POD_UID", ""))
