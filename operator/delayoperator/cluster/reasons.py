"""The reasons of conditions and events: stable words that scripts match, and where their pages are.

A reason of a condition that needs a person has a heading of the same name in docs/operations.md.
"""

from __future__ import annotations

from enum import StrEnum

PAGE = "docs/operations.md"


class Reason(StrEnum):
    # Ready
    SERVING = "Serving"  # every shard has a master that serves
    STARTING = "Starting"  # the cluster has never been ready yet
    SHARDS_NOT_SERVED = "ShardsNotServed"  # clients of some shards wait
    NO_NODES_READY = "NoNodesReady"  # without topics nobody waits, but a topic would
    # Progressing
    SETTLED = "Settled"  # what was asked for is in place
    PAUSED = "Paused"  # by the spec or an annotation: nothing is changed; only a shard without a master still gets one
    SCALING_OUT = "ScalingOut"
    SCALING_IN = "ScalingIn"
    ROLLING_RESTART = "RollingRestart"
    VOLUMES_GROWING = "VolumesGrowing"
    DRAINING = "Draining"  # copies leave a node that people want empty
    MOVING_SHARDS = "MovingShards"
    COPIES_COMING = "CopiesComing"  # of a new cluster: its shards are served and get their other copies
    TOPICS_COMING = "TopicsComing"  # shards of a topic that was added are on their way
    PODS_STARTING = "PodsStarting"
    VOLUMES_UNREAD = "VolumesUnread"  # no shard is made before every node has said what its volume has
    # Degraded
    OPERATOR_ERROR = "OperatorError"  # a fault of the operator's own
    SHARDS_BLOCKED = "ShardsBlocked"  # a shard may have no master: what its condition says is missing
    ORPHANED_COPIES = "OrphanedCopies"  # copies on volumes that no DelayShard knows wait for a person's word
    ACKNOWLEDGED_AT_RISK = "AcknowledgedAtRisk"  # a term began though acknowledged messages may be missing
    INVALID_SPEC = "InvalidSpec"  # the spec can't be accepted; the last good one stands
    ANNOTATION_REFUSED = "AnnotationRefused"  # what an annotation asks for is not followed
    NAME_TAKEN = "NameTaken"  # an object of a name that the cluster needs belongs to another owner
    FORBIDDEN = "Forbidden"  # the operator's role lacks something
    OBJECT_REFUSED = "ObjectRefused"  # the API server finds an object of ours wrong (quota, admission, pod security)
    APPLY_FAILED = "ApplyFailed"  # the API server answered with an error; tried again
    CERTIFICATE_UNUSABLE = "CertificateUnusable"  # what is on a node's disk; what was good before is used
    SECURITY_WAITS = "SecurityWaits"  # the mode that is asked for would cut nodes, or the operator, off
    CONSOLE_WAITS = "ConsoleWaits"  # spec.console is not made: it lacks TLS, or a certificate
    SECURITY_TOO_LARGE = "SecurityTooLarge"  # the DelayUsers don't fit into a ConfigMap; the last that did stand
    POD_NOT_STARTING = "PodNotStarting"
    ROLLOUT_STUCK = "RolloutStuck"
    NODE_SILENT = "NodeSilent"  # a lease is not renewed
    COPIES_OUT_OF_SYNC = "CopiesOutOfSync"
    VERSIONS_INCOMPATIBLE = "VersionsIncompatible"  # nodes of releases that are too far apart to talk
    MOVES_HELD = "MovesHeld"
    VOLUMES_CANNOT_GROW = "VolumesCannotGrow"
    REBALANCE_FAILED = "RebalanceFailed"  # the last run of spec.rebalance.schedule ended without having looked
    HEALTHY = "Healthy"
    # Rebalancing; what a DelayRebalance says of itself is plan.rebalancing's Why
    REBALANCING = "Rebalancing"
    NOT_REBALANCING = "NotRebalancing"
    # Upgrading
    VERSIONS_MIXED = "VersionsMixed"  # nodes of different releases
    UPGRADE_NOT_FINALIZED = "UpgradeNotFinalized"  # all read a newer format, and a person has to say that it is written
    UP_TO_DATE = "UpToDate"
    # Scaling, with spec.autoscaling: how many nodes the load to come needs
    NODES_SUFFICE = "NodesSuffice"
    MORE_NODES = "MoreNodes"
    FEWER_NODES = "FewerNodes"
    HERD_TOO_NEAR = "HerdTooNear"  # shards would move while the herd is delivered
    TOO_FEW_QUEUES = "TooFewQueues"  # nodes without a shard of their own do not help
    SCALING_WAITS = "ScalingWaits"  # for what the operator is changing
    LOAD_UNKNOWN = "LoadUnknown"
    # Events only
    MANAGED_BY_ANOTHER = "ManagedByAnother"  # of an operator that leaves the cluster to the one that has claimed it
    OBJECT_APPLIED = "ObjectApplied"
    OBJECT_PRUNED = "ObjectPruned"
    POD_RESTARTED = "PodRestarted"
    VOLUME_GROWN = "VolumeGrown"
    MASTERS_CHOSEN = "MastersChosen"
    SHARDS_CREATED = "ShardsCreated"
    CONTAINER_ENDED = "ContainerEnded"
    MESSAGES_KEPT = "MessagesKept"  # of a DelayTopic that was to go with them: its cluster is gone


DEGRADED = (  # the worst first: a condition names the first that holds
    Reason.OPERATOR_ERROR, Reason.SHARDS_BLOCKED, Reason.ORPHANED_COPIES, Reason.ACKNOWLEDGED_AT_RISK,
    Reason.INVALID_SPEC, Reason.ANNOTATION_REFUSED, Reason.NAME_TAKEN, Reason.FORBIDDEN, Reason.OBJECT_REFUSED,
    Reason.APPLY_FAILED, Reason.SECURITY_TOO_LARGE, Reason.CERTIFICATE_UNUSABLE, Reason.POD_NOT_STARTING,
    Reason.ROLLOUT_STUCK, Reason.VERSIONS_INCOMPATIBLE, Reason.NODE_SILENT, Reason.COPIES_OUT_OF_SYNC,
    Reason.SECURITY_WAITS, Reason.CONSOLE_WAITS, Reason.MOVES_HELD, Reason.VOLUMES_CANNOT_GROW, Reason.REBALANCE_FAILED,
)  # fmt: skip
NEEDS_PAGE = frozenset({
    *DEGRADED, Reason.SHARDS_NOT_SERVED, Reason.NO_NODES_READY, Reason.PAUSED, Reason.STARTING,
    Reason.VERSIONS_MIXED, Reason.UPGRADE_NOT_FINALIZED, Reason.MANAGED_BY_ANOTHER,
})  # fmt: skip


def with_page(reason: Reason, message: str) -> str:
    """The message with the page that says what to do, where there is one."""
    return f"{message}. See {PAGE}#{reason.lower()}" if reason in NEEDS_PAGE else message
