"""What a plan is made from (Observed, beside the wished ClusterSpec) and of (actions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from delaynode.registry.model import Condition, ShardObject, ShardSpec


class Liveness(Enum):
    """What the edge is certain of. Cannot-see is not is-down: only ALIVE and DEAD may be acted upon."""

    ALIVE = "alive"
    DEAD = "dead"  # its lease stayed unchanged for the whole lease time while we were connected
    UNCERTAIN = "uncertain"  # no lease yet, or not watched for long enough


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its lease shows it; without a lease the incarnation is None."""

    liveness: Liveness
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class CopyView:
    """One replica's answer to ReplicaStatus. A replica that did not answer has no CopyView."""

    copy_id: str
    epoch: int  # the highest that it has persisted
    log_end: int  # CommitLog offset, bytes
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    shards: tuple[ShardObject, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)  # by node id
    copies: Mapping[tuple[str, str], CopyView] = field(default_factory=dict)  # by (shard name, node id)

    def node(self, node: str | None) -> NodeView:
        """A node nobody has seen is uncertain."""
        return self.nodes.get(node or "", NodeView(Liveness.UNCERTAIN))


@dataclass(frozen=True, slots=True)
class CreateShard:
    """A new shard, at epoch 0. Whoever applies it draws the uid."""

    topic: str
    queue: int
    replicas: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StartReign:
    """Names the process that is to serve, one epoch higher."""

    shard: ShardObject
    spec: ShardSpec  # the new one
    reason: str


@dataclass(frozen=True, slots=True)
class SetConditions:
    shard: ShardObject
    conditions: tuple[Condition, ...]  # all of them
    reason: str


Action = CreateShard | StartReign | SetConditions
