"""All objects that a cluster owns, but for its shards."""

from __future__ import annotations

import hashlib
import json

from delayoperator.resources import access, console, cronjob, names, network, services, settings, tls
from delayoperator.resources.normal import normal
from delayoperator.resources.statefulset import FIXED, stateful_set
from delayoperator.resources.view import ClusterView, Json

STAMP = names.PREFIX + "wanted"
"""Annotation: a digest of what was wanted when the object was applied last."""


def build(view: ClusterView, live_set: Json | None = None, *, bare_service: bool = False) -> tuple[Json, ...]:
    """In the order in which they are to be applied: what the pods may do and read before the pods.

    live_set: the StatefulSet that is there; None: there is none. bare_service: the cluster has a Service of its bare
    name, and keeps it. Each object is in normal form, to be applied as it is.
    """
    cron = cronjob.cron_job(view)
    found = (
        *access.node_access(view),
        settings.settings_map(view),
        *([settings.security_map(view)] if view.security else []),
        *tls.certificates(view),
        *(settings.node_lease(view, node) for node in view.cluster.node_ids),
        services.headless_service(view),
        services.client_service(view),
        *([services.bare_client_service(view)] if bare_service else []),
        services.disruption_budget(view),
        *(network.network_policies(view, view.network) if view.network is not None else ()),
        stateful_set(view, live_set),
        *([settings.pod_monitor(view)] if view.pod_monitor else []),
        *console.console_objects(view),
        *(access.job_access(view) if view.rebalance is not None else ()),
        *([] if cron is None else [cron]),  # without a schedule the job runs when a DelayRebalance asks for a plan
    )
    return tuple(_stamped(normal(one)) for one in found)


def _stamped(wanted: Json) -> Json:
    spec = {key: value for key, value in wanted.get("spec", {}).items() if key not in FIXED}  # that is as it is found
    text = json.dumps({**wanted, "spec": spec}, sort_keys=True)
    meta = wanted["metadata"]
    stamp = {STAMP: hashlib.sha256(text.encode()).hexdigest()[:16]}
    return {**wanted, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), **stamp}}}
