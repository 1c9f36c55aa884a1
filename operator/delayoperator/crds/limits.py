"""What can't be, and what can't be taken back: the CEL rules of DelayCluster, with the words that refuse it.

The operator's own check (convert.py) says the same, for a CRD that was installed without its rules. A rule that a later
release adds has to hold for every object that an earlier one took, or to speak of changes only: the API server holds
it against each write, the status included.

What the API server allows a rule to cost at worst is the reason for the lengths in the models, and why messages name
texts but no numbers: CEL takes a number's text to be as long as a text can be.
"""

from __future__ import annotations

import re
from typing import Final

from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayregistry.model import MAX_HORIZON_DAYS

from delayoperator.crds.base import Json, rule
from delayoperator.resources.memory import SMALLEST_LIMIT_MIB

MAX_TOPICS: Final = 1_000
MAX_NAME: Final = 40
MIN_STORAGE: Final = "1Gi"
MIN_MEMORY: Final = f"{SMALLEST_LIMIT_MIB}Mi"
NODES_SUFFIX: Final = "-nodes"
SLOT_MS: Final = 60_000, DAY_MS  # the rebalance job's own limits: SearchSettings in delayrebalance.model
LOOK_AHEAD_DAYS: Final = 366
OURS: Final = ("delaycluster.io/", "app.kubernetes.io/")
CLUSTER_NAME: Final = re.compile(rf"(?=.{{1,{MAX_NAME}}}\Z)[a-z]([-a-z0-9]*[a-z0-9])?")

# A part of a duration: its pattern, and what one of it is in ms.
_PARTS = {
    "[0-9.]+w": 604_800_000,
    "[0-9.]+d": DAY_MS,
    "[0-9.]+h": HOUR_MS,
    "[0-9.]+m($|[^s])": 60_000,
    "[0-9.]+s": 1_000,
    "[0-9.]+ms": 1,
}


def _ms(text: str) -> str:
    """CEL for the milliseconds of a duration, as a double.

    Part by part: to an API server of 1.29 the sum of a mapped list costs more than any rule may.
    """
    number = "double({0}.find('{1}').find('[0-9.]+')) * {2}.0"
    parts = (f"({text}.matches('{part}') ? {number.format(text, part, ms)} : 0.0)" for part, ms in _PARTS.items())
    return f"({' + '.join(parts)})"


def _duration(field: str, named: str) -> Json:
    longest = MAX_HORIZON_DAYS * DAY_MS
    return rule(  # a list of one gives the number a name: twice as long would be half of what the API server allows
        f"!has(self.{field}) || [{_ms(f'self.{field}')}].all(n, n >= 1.0 && n <= {longest}.0)",
        f"{field} must be 1ms to {MAX_HORIZON_DAYS}d",
        says=f"{named}{field} is ' + self.{field} + '; allowed: 1ms to {MAX_HORIZON_DAYS}d'",
        field=f".{field}",
    )


NAME: Final = (
    rule(
        f"self.metadata.name.size() <= {MAX_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"a DelayCluster's name is at most {MAX_NAME} of a-z, 0-9 and '-', starts with a letter and ends with a letter "
        "or digit: pods, services and shards are named after it",
    ),
    rule(
        "!self.metadata.name.endsWith('-nodes')",
        "a DelayCluster's name may not end with '-nodes': the Service NAME-nodes belongs to the DelayCluster NAME",
    ),
)


def topic(named: str = "'") -> tuple[Json, ...]:
    """named: CEL of a text, still open, with which messages begin."""
    return (
        rule(
            "self.queues >= oldSelf.queues",
            "queues may grow but not shrink",
            says=f"{named}queues may grow but not shrink'",
            field=".queues",
        ),
        rule(
            "self.type == oldSelf.type",
            "a topic's type can't be changed",
            says=f"{named}type can\\'t be changed, it is ' + oldSelf.type",
            field=".type",
        ),
        *(_duration(field, named) for field in ("retention", "dlqRetention", "maxDelay")),
    )


TOPIC: Final = topic("'topic ' + self.name + ': ")

REPLICAS: Final = rule(
    "self.replicas <= self.nodes",
    "replicas must be at most nodes: a shard's copies are on different nodes",
    field=".replicas",
)
MIN_IN_SYNC: Final = rule(
    "self.minInSync <= self.replicas",
    "minInSync must be at most replicas: no message could ever be accepted",
    field=".minInSync",
)
HORIZON: Final = rule(
    "self.horizonDays >= oldSelf.horizonDays",
    "horizonDays may grow but not shrink: messages may wait that long already",
    field=".horizonDays",
)
DRAINED: Final = rule(
    "!has(self.drained) || self.nodes - self.drained.filter(d, int(d.substring(1)) < self.nodes).size() >= "
    "self.replicas",
    "drained must leave at least as many nodes as there are replicas: each copy needs a node",
    field=".drained",
)
_TOO_LONG = f"has(t.maxDelay) && {_ms('t.maxDelay')} > double(self.horizonDays) * 86400000.0"
MAX_DELAY: Final = rule(
    f"!has(self.topics) || !self.topics.exists(t, {_TOO_LONG})",
    "a topic's maxDelay must be at most the cluster's horizonDays",
    field=".topics",
)
SPEC: Final = (REPLICAS, MIN_IN_SYNC, HORIZON, DRAINED, MAX_DELAY)

NETWORK_PEER: Final = rule(
    "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
    "a peer is an ipBlock, or has a podSelector, a namespaceSelector or both",
)

FAILOVER: Final = (
    rule(
        "self.replaceAfterSeconds > self.leaseSeconds",
        "replaceAfterSeconds must be more than leaseSeconds",
        field=".replaceAfterSeconds",
    ),
)

STORAGE: Final = (
    rule(
        f"quantity(self.size).compareTo(quantity('{MIN_STORAGE}')) >= 0",
        f"size must be at least {MIN_STORAGE}",
        says=f"'storage.size is ' + self.size + '; allowed: at least {MIN_STORAGE}'",
        field=".size",
    ),
    rule(
        "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
        "size may grow but not shrink",
        says="'storage.size may grow but not shrink, ' + oldSelf.size + ' to ' + self.size + ' was asked for'",
        field=".size",
    ),
    rule(
        "has(self.storageClassName) == has(oldSelf.storageClassName) && "
        "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
        "storageClassName can't be changed: volumes stay in the class that they were made in",
        field=".storageClassName",
    ),
)

MEMORY: Final = rule(
    "!has(self.limits) || !('memory' in self.limits) || "
    f"quantity(string(self.limits['memory'])).compareTo(quantity('{MIN_MEMORY}')) >= 0",
    f"a node's memory limit must be at least {MIN_MEMORY}",
    field=".limits",
)

TAKEN_ENV: Final = ("POD_INDEX", "POD_IP", "POD_UID")
ENV: Final = (
    rule(
        f"self.all(e, !(e.name in {list(TAKEN_ENV)}))",
        f"{', '.join(TAKEN_ENV)} are the operator's own",
    ),
)

TAKEN_VOLUMES: Final = ("data", "tmp", "certificates", "peer-certificates", "client-ca")
VOLUMES: Final = rule(
    f"self.all(v, !(v.name in {list(TAKEN_VOLUMES)}))",
    f"the volumes {', '.join(TAKEN_VOLUMES)} are the operator's own: choose another name",
)
TAKEN_PATHS: Final = ("/data", "/tmp", "/etc/delaycluster")
MOUNTS: Final = rule(
    "self.all(m, m.mountPath.startsWith('/') && m.mountPath != '/' && "
    + " && ".join(f"m.mountPath != '{path}' && !m.mountPath.startsWith('{path}/')" for path in TAKEN_PATHS)
    + ")",
    f"a mountPath starts with / and is not / itself; {', '.join(TAKEN_PATHS)} and what is below them are the "
    "operator's own",
)
TAKEN_CONTAINER: Final = "node"
CONTAINERS: Final = rule(
    f"self.all(c, c.name != '{TAKEN_CONTAINER}')",
    f"the container {TAKEN_CONTAINER} is the operator's own: choose another name",
)

SERVICE: Final = (
    rule(
        "!has(self.externalTrafficPolicy) || self.type != 'ClusterIP'",
        "externalTrafficPolicy needs type NodePort or LoadBalancer",
        field=".externalTrafficPolicy",
    ),
    rule(
        "!has(self.loadBalancerClass) || self.type == 'LoadBalancer'",
        "loadBalancerClass needs type LoadBalancer",
        field=".loadBalancerClass",
    ),
    rule(
        "!has(self.loadBalancerSourceRanges) || self.type == 'LoadBalancer'",
        "loadBalancerSourceRanges needs type LoadBalancer",
        field=".loadBalancerSourceRanges",
    ),
)

SETTINGS_SIZES: Final = {"minFree": ("64Mi", "1Pi"), "logSegment": ("16Mi", "1Gi"), "unread": ("16Mi", "64Gi")}
CONNECTION_AGE_MS: Final = 60_000, 30 * DAY_MS
CONNECTION_AGE_WORDS: Final = "allowed: 1m to 30d"


def _size(field: str, least: str, most: str) -> Json:
    return rule(
        f"!has(self.{field}) || (quantity(self.{field}).compareTo(quantity('{least}')) >= 0 && "
        f"quantity(self.{field}).compareTo(quantity('{most}')) <= 0)",
        f"settings.{field} must be {least} to {most}",
        says=f"'settings.{field} is ' + self.{field} + '; allowed: {least} to {most}'",
        field=f".{field}",
    )


NODE_SETTINGS: Final = (
    *(_size(field, least, most) for field, (least, most) in SETTINGS_SIZES.items()),
    rule(
        f"!has(self.connectionAge) || [{_ms('self.connectionAge')}].all(n, n >= {CONNECTION_AGE_MS[0]}.0 && "
        f"n <= {CONNECTION_AGE_MS[1]}.0)",
        f"settings.connectionAge: {CONNECTION_AGE_WORDS}",
        says=f"'settings.connectionAge is ' + self.connectionAge + '; {CONNECTION_AGE_WORDS}'",
        field=".connectionAge",
    ),
)

REBALANCING: Final = (
    rule(
        "!has(self.approval) || self.approval != 'AutomaticBelow' || has(self.automaticBelow)",
        "approval AutomaticBelow needs automaticBelow: the largest plan that is carried out unasked",
        field=".automaticBelow",
    ),
)

AUTOSCALING_MS: Final = {
    "horizon": (10 * MINUTE_MS, 12 * HOUR_MS),  # 12 h in minutes, of 1,000 shards, are most of what a node answers
    "settle": (MINUTE_MS, DAY_MS),
    "podStart": (1_000, HOUR_MS),
    "maxLateness": (1_000, MINUTE_MS),
}
AUTOSCALING_WORDS: Final = {
    "horizon": "10m to 12h", "settle": "1m to 24h", "podStart": "1s to 1h", "maxLateness": "1s to 1m",
}  # fmt: skip
AUTOSCALING: Final = tuple(
    rule(
        f"[{_ms(f'self.{field}')}].all(n, n >= {least}.0 && n <= {most}.0)",
        f"autoscaling.{field} must be {AUTOSCALING_WORDS[field]}",
        says=f"'autoscaling.{field} is ' + self.{field} + '; allowed: {AUTOSCALING_WORDS[field]}'",
        field=f".{field}",
    )
    for field, (least, most) in AUTOSCALING_MS.items()
)

SLOT_WORDS: Final = "allowed: 1m to 24h"
HORIZON_WORDS: Final = f"allowed: one slot to {LOOK_AHEAD_DAYS}d"
REBALANCE_JOB: Final = (
    rule(
        f"[{_ms('self.slot')}].all(n, n >= {SLOT_MS[0]}.0 && n <= {SLOT_MS[1]}.0)",
        "rebalance.slot must be 1m to 24h",
        says=f"'rebalance.slot is ' + self.slot + '; {SLOT_WORDS}'",
        field=".slot",
    ),
    rule(
        f"[{_ms('self.horizon')}].all(n, n >= {_ms('self.slot')} && n <= {LOOK_AHEAD_DAYS * DAY_MS}.0)",
        f"rebalance.horizon must be one slot to {LOOK_AHEAD_DAYS}d",
        says=f"'rebalance.horizon is ' + self.horizon + ', slot is ' + self.slot + '; {HORIZON_WORDS}'",
        field=".horizon",
    ),
)


def ours(what: str) -> Json:
    """The rule for labels or annotations of the pods."""
    return rule(
        "self.all(k, !k.startsWith('delaycluster.io/') && !k.startsWith('app.kubernetes.io/'))",
        f"{what} that start with delaycluster.io/ or app.kubernetes.io/ are the operator's own",
    )
