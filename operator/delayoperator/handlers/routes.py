"""kopf's routing table: which watched object wakes which cluster.

Nothing but `on.event`: no finalizer, no annotation, no diff is ever stored on an object, and what a missed event would
have told is found by the next round, which reads everything anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf
from delayregistry.kube import Credentials

from delayoperator.handlers.table import Clusters
from delayoperator.kube.api import PAGE
from delayoperator.kube.kinds import (
    CLAIM,
    CLUSTER_LABEL,
    CONFIG_MAP,
    DELAY_CLUSTER,
    DELAY_REBALANCE,
    DISRUPTION_BUDGET,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    ObjectKind,
)

# Leases are not watched here: nodes renew them all the time, and the control loop follows them itself.
WATCHED = (STATEFUL_SET, SERVICE, CONFIG_MAP, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, DISRUPTION_BUDGET, CLAIM)


def settings() -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False  # the workers say what there is to say
    chosen.peering.standalone = True  # every process watches; which one acts is decided in delayoperator.election
    chosen.watching.server_timeout = 300
    # A handler's `labels` are compared here, after the API server has sent all that there is: with a big cluster's pods
    # and ConfigMaps more than this process may need.
    for kind in (POD, *WATCHED):
        chosen.watching.label_selectors[kind.plural] = CLUSTER_LABEL
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

    async def owned(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        clusters.touched(str(namespace), labels[CLUSTER_LABEL])

    async def pod(namespace: str | None, labels: Mapping[str, str], body: kopf.Body, **_: Any) -> None:
        clusters.pod(str(namespace), labels[CLUSTER_LABEL], dict(body))

    async def rebalance(namespace: str | None, spec: kopf.Spec, **_: Any) -> None:
        clusters.touched(str(namespace), str(spec.get("cluster", "")))

    _on(DELAY_CLUSTER, registry, labelled=False)(cluster)
    _on(DELAY_REBALANCE, registry, labelled=False)(rebalance)
    _on(POD, registry)(pod)
    for kind in WATCHED:
        _on(kind, registry)(owned)
    return registry


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


def _on(kind: ObjectKind, registry: kopf.OperatorRegistry, *, labelled: bool = True) -> Any:
    labels = {CLUSTER_LABEL: kopf.PRESENT} if labelled else None
    where = (kind.group, kind.version, kind.plural) if kind.group else (kind.version, kind.plural)
    return kopf.on.event(*where, id=kind.plural, registry=registry, labels=labels)
