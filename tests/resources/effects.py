"""What a change of a DelayCluster's field asks of the nodes that run: which changes restart them and which don't.

A restart is a change of the pods' template: the StatefulSet then has another revision, and the operator replaces the
pods of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from delayoperator.resources.compare import Difference

TEMPLATE = "spec.template"


class Effect(StrEnum):
    RESTART = "every node is restarted, one at a time"
    LIVE = "the nodes take it up within a second"
    NEXT_TERM = "a shard's next master has it: after a failover, a switchover or a restart"
    NEW_SHARDS = "shards that are made later have it"
    OPERATOR = "only the operator acts on it"
    OBJECTS = "objects beside the pods change; no node that stays is touched"
    FIXED = "can't change"


EFFECTS: Mapping[str, Effect] = {
    "nodes": Effect.OBJECTS,
    "image": Effect.RESTART,
    "replicas": Effect.OPERATOR,
    "minInSync": Effect.LIVE,
    "delivery": Effect.LIVE,
    "durability": Effect.RESTART,
    "horizonDays": Effect.NEW_SHARDS,
    "paused": Effect.OPERATOR,
    "drained": Effect.OPERATOR,
    "topics": Effect.LIVE,
    "topics.queues": Effect.LIVE,
    "topics.type": Effect.FIXED,
    "topics.retention": Effect.LIVE,
    "topics.dlqRetention": Effect.LIVE,
    "topics.maxAttempts": Effect.LIVE,
    "topics.maxDelay": Effect.LIVE,
    "topics.maxReleasePerSecond": Effect.LIVE,
    "topics.quotas": Effect.LIVE,
    "topics.deduplicate": Effect.LIVE,
    "allowedNamespaces": Effect.OPERATOR,
    "failover.leaseSeconds": Effect.RESTART,
    "failover.lagSeconds": Effect.NEXT_TERM,
    "failover.replaceAfterSeconds": Effect.OPERATOR,
    "failover.allowUnclean": Effect.LIVE,
    "bootstrap.volumes": Effect.OPERATOR,
    "upgrade.finalize": Effect.OPERATOR,
    "storage.size": Effect.OBJECTS,
    "storage.storageClassName": Effect.FIXED,
    "storage.deleteWithCluster": Effect.OBJECTS,
    "resources": Effect.RESTART,
    "podTemplate": Effect.RESTART,
    "settings": Effect.RESTART,
    "service": Effect.OBJECTS,
    "monitoring.podMonitor": Effect.OBJECTS,
    "monitoring.labels": Effect.OBJECTS,
    "monitoring.endpoint": Effect.OBJECTS,
    "monitoring.metricsAuthentication": Effect.RESTART,
    "networkPolicy": Effect.OBJECTS,
    "logLevel": Effect.LIVE,
    "security.mode": Effect.RESTART,
    "security.certificates": Effect.RESTART,
    "security.tokens": Effect.LIVE,
    "security.superUsers": Effect.LIVE,
    "console": Effect.OBJECTS,
    "rebalance": Effect.OPERATOR,
    "autoscaling": Effect.OPERATOR,
}
"""By field of spec; a field that is not named is as its parent."""


def effect(field: str) -> Effect:
    """What a change of `field` does, for example of `topics.retention`. Raises KeyError for an unknown field."""
    at = field
    while at not in EFFECTS:
        at, dot, _ = at.rpartition(".")
        if not dot:
            raise KeyError(field)
    return EFFECTS[at]


def restarting(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Which of a StatefulSet's differences restart its pods once they are applied: the reason to be told.

    It does not decide (a field that is only taken away is not among them): the StatefulSet's revision says what is old.
    """
    return tuple(one for one in found if one.path == TEMPLATE or one.path.startswith(TEMPLATE + "."))
