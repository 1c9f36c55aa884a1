"""The routing table: which watched object wakes which cluster.

kopf follows the DelayClusters. Nothing but `on.event`: no finalizer, no annotation, no diff is ever stored on an
object, and what a missed event would have told is found by the next round, which reads the object. What belongs to a
cluster is followed by the caches that rounds read from (`kube/caches.py`). kopf's watches could not be these: they tell
neither that they are silent nor what was deleted while they were out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import kopf
from delayregistry.kube import Credentials
from delayregistry.kube.cluster_watches import Listener

from delayoperator.handlers.table import Clusters
from delayoperator.kube.api import PAGE, Json
from delayoperator.kube.kinds import DELAY_CLUSTER, DELAY_TOPIC, POD, ObjectKind
from delayoperator.kube.topic_deletion import is_leaving


def settings() -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False  # the workers say what there is to say
    chosen.peering.standalone = True  # every process watches; which one acts is decided in delayoperator.election
    chosen.watching.server_timeout = 300
    chosen.watching.chunk_size = PAGE
    chosen.watching.connect_timeout = 5
    chosen.networking.connect_timeout = 5
    chosen.networking.request_timeout = 30
    chosen.networking.error_backoffs = (0.2, 0.5, 1, 2, 5)
    chosen.persistence.finalizer = "delaycluster.io/not-used"
    chosen.queueing.exit_timeout = 1.0
    chosen.process.ultimate_exiting_timeout = None  # our own end is bounded, and may take a little longer
    return chosen


def routes(clusters: Clusters, credentials: Credentials) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return _connection(credentials)

    async def cluster(type: str | None, namespace: str | None, name: str | None, meta: kopf.Meta, **_: Any) -> None:
        if type == "DELETED":
            clusters.gone(str(namespace), str(name))
        else:
            clusters.seen(str(namespace), str(name), str(meta["resourceVersion"]))

    kind = DELAY_CLUSTER
    kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(cluster)
    return registry


def listener_of(clusters: Clusters, namespaces: Sequence[str] = ()) -> Callable[[ObjectKind], Listener]:
    """What the caches tell of changes. namespaces: where the operator looks after clusters; empty: everywhere."""

    def pods(namespace: str, name: str, bodies: Sequence[Json]) -> None:
        for body in bodies:
            clusters.pod(namespace, name, body)
        clusters.touched(namespace, name)

    def owned(namespace: str, name: str, bodies: Sequence[Json]) -> None:
        clusters.touched(namespace, name)

    def topics(namespace: str, name: str, bodies: Sequence[Json]) -> None:
        if any(map(is_leaving, bodies)) and (not namespaces or namespace in namespaces):
            clusters.awaited(namespace, name)
        else:
            clusters.touched(namespace, name)

    special = {POD: pods, DELAY_TOPIC: topics}
    return lambda kind: special.get(kind, owned)


def _connection(credentials: Credentials) -> kopf.ConnectionInfo:
    """The very credentials of the rest of the process. Asked for at the start, and when the API server refused them."""
    credentials.reload()
    found = credentials.configuration
    scheme, _, token = credentials.header().get("Authorization", "").partition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        scheme=scheme or None,
        token=token or None,
    )
