"""The planner's input (Observed, beside the desired ClusterSpec) and its output (actions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from delayregistry.model import (
    FIRST_VERSION,
    Condition,
    ShardObject,
    ShardSpec,
    ShardStatus,
    VersionRange,
    shard_name,
)

from delayoperator.plan.topology import NodeLocation


class Liveness(Enum):
    """A node's liveness as far as the operator is certain of it. Cannot-see is not is-down: only ALIVE and DEAD may be
    acted upon.
    """

    ALIVE = "alive"
    DEAD = "dead"  # its lease stayed unchanged for the whole lease time while we were connected
    UNCERTAIN = "uncertain"  # no lease yet, or not watched for long enough


class ObservedRole(Enum):
    """The role of a copy in its process."""

    OPENING = "opening"  # of its log nothing is known yet
    SLAVE = "slave"
    CANDIDATE = "candidate"
    MASTER = "master"
    FETCHING = "fetching"  # no copy of its own yet
    DAMAGED = "damaged"
    LEAVING = "leaving"
    STORED = "stored"  # on the node's disk only: no object has given it to the process


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node as its lease shows it; without a lease the incarnation is None."""

    liveness: Liveness
    incarnation: str | None = None
    stopping: bool = False  # asked to end: hands its masters over, gets nothing new
    replaceable: bool = False  # dead for so long that its replicas must be replaced
    stable: bool = True  # the process is not new: what went with its start is over
    silent: bool = False  # has not answered ReplicaStatus for seconds, though asked
    zone: str = ""  # what may fail with its machine; "": not known
    formats: VersionRange = FIRST_VERSION  # storage formats that its process reads
    wire: VersionRange = FIRST_VERSION  # versions in which it talks to other nodes
    machine: str = ""  # that its process runs on; "": not known

    @property
    def location(self) -> NodeLocation:
        return NodeLocation(self.machine, self.zone)


UNSEEN = ObservedNode(Liveness.UNCERTAIN)


@dataclass(frozen=True, slots=True)
class CopyView:
    """One replica's answer to ReplicaStatus. A replica that did not answer, or has no directory, has no CopyView."""

    replica_id: str  # as status.in_sync names it; "" while it is being fetched
    incarnation: str  # of the process that answered
    epoch: int  # the highest that it has persisted
    log_epoch: int  # of the log's last frame
    log_end: int  # CommitLog offset, bytes
    committed_offset: int = 0  # known to be committed up to this log offset
    damaged: str | None = None  # why it is of no use
    role: ObservedRole = ObservedRole.SLAVE
    serving_epoch: int = 0  # of a master
    transfer_done: int = 0  # bytes, while fetching
    transfer_total: int = 0
    kept_epoch: int = 0  # of the newest status that the copy keeps; 0: none
    kept_in_sync: tuple[str, ...] = ()
    ended_epoch: int = 0  # of the process's last term that is over for good, or is being given up; 0: none
    not_serving: str = ""  # why that term is over, or why the one that the registry names is refused
    topic: str = ""
    queue: int = 0
    pending: int = 0  # messages not released yet; at most, of a copy that is STORED
    cluster: str = ""  # the name of the cluster that had it last; "": not known
    disk_bytes: int = 0  # of a copy that is STORED
    unsynced: int = 0  # bytes before log_end that are not stored yet, as the durability asks
    newer_format: bool = False  # `damaged` is that a newer release wrote it

    @property
    def shard(self) -> str:
        return shard_name(self.topic, self.queue)


@dataclass(frozen=True, slots=True)
class NotBegun:
    """A term that a chosen master has done nothing about for a while, though its node lives."""

    seconds: int  # chosen for more than so long; it grows by doubling, so that what is said of it seldom changes
    what: str  # what it waits for, as it says
    in_vain: tuple[str, ...]  # nodes chosen since the shard was last served, longest ago first, the present one last
    again: bool  # these have been left in peace for long enough: they may be tried again
    silent: bool = False  # it gives no answer, and may be at work on it


@dataclass(frozen=True, slots=True)
class Observed:
    shards: tuple[ShardObject, ...] = ()
    nodes: Mapping[str, ObservedNode] = field(default_factory=dict)  # by node id
    copies: Mapping[tuple[str, str], CopyView] = field(default_factory=dict)  # by (shard name, node id)
    # By node id, the incarnation that answered, where it named all it has: another shard has no directory there.
    answered: Mapping[str, str] = field(default_factory=dict)
    ineligible: Mapping[str, str] = field(default_factory=dict)  # by node id: why no master should be chosen there
    # Incarnations of processes that somebody who must know has seen end; of most nobody says so. A lease
    # is no such word: behind one that is not renewed, or that names another process, the former one may still run.
    ended: frozenset[str] = frozenset()
    # By (uid, epoch): why the process that this term names says that it serves it no more. It never resumes one.
    given_up: Mapping[tuple[int, int], str] = field(default_factory=dict)
    # (uid, epoch) of a shard's object that names a node for it, and another serves it.
    served_by_another: frozenset[tuple[int, int]] = frozenset()
    not_begun: Mapping[tuple[int, int], NotBegun] = field(default_factory=dict)  # by (uid, epoch), those overdue
    # By uid, then node id: copies of which no object of `shards` knows.
    unclaimed: Mapping[int, Mapping[str, CopyView]] = field(default_factory=dict)
    # By uid, then node id: copies on nodes that their object names no more, or not yet.
    strays: Mapping[int, Mapping[str, CopyView]] = field(default_factory=dict)
    # (uid, node): chosen in vain not long ago. It gets no switchover but one that a person asks for.
    excluded: frozenset[tuple[int, str]] = frozenset()

    def node(self, node: str | None) -> ObservedNode:
        """A node that was never seen is uncertain."""
        return self.nodes.get(node or "", UNSEEN)

    def between_processes(self, node: str) -> bool:
        """The process that its lease names has ended: no process can be asked or chosen there, perhaps for a moment
        only, so that nothing but the search for another master is to begin for that."""
        return self.node(node).incarnation in self.ended


@dataclass(frozen=True, slots=True)
class CreateShard:
    """A shard's object. uid None: of a new, empty shard, for which the registry's writer draws one. Else of the copies
    that `replicas` have, at the highest epoch that they know, with the status that they give.
    """

    topic: str
    queue: int
    replicas: tuple[str, ...]
    reason: str
    uid: int | None = None
    epoch: int = 0
    status: ShardStatus | None = None

    @property
    def name(self) -> str:
        return shard_name(self.topic, self.queue)


@dataclass(frozen=True, slots=True)
class StartTerm:
    """Names the process that is to serve, one epoch higher."""

    shard: ShardObject
    spec: ShardSpec  # the new one
    reason: str


@dataclass(frozen=True, slots=True)
class AdoptCopies:
    """The object has lost its status: it is made again from what the copies know. No master is named yet."""

    shard: ShardObject
    spec: ShardSpec
    status: ShardStatus
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveEmptyShard:
    """The object goes that was made for an empty shard, which nobody has led: copies of its name are there."""

    shard: ShardObject
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeSpec:
    """Anything else in the operator's part: where copies must be, which master must hand over to which copy."""

    shard: ShardObject
    spec: ShardSpec  # the new one, of the same term
    reason: str


@dataclass(frozen=True, slots=True)
class SetConditions:
    shard: ShardObject
    conditions: tuple[Condition, ...]  # all of them
    reason: str


Action = CreateShard | RemoveEmptyShard | AdoptCopies | StartTerm | ChangeSpec | SetConditions
