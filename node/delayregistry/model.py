"""The objects that the registry holds: the cluster's spec, one object per shard, one lease per node.

Every field has one writer (docs/protocol.md):

    ClusterSpec                 people (through `delayctl local` or the DelayCluster object)
    ShardObject.spec            the operator
    ShardObject.status          the shard's master
    ShardObject.conditions      the operator
    ShardObject.unclean_allowed_by    people; the operator takes it away
    NodeLease                   the node
    SecuritySpec (security.py)  the operator

Plain values without behaviour that talks to anything; `codec.py` turns them into JSON and back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from delayapi.log_levels import LogLevel
from delayapi.units import DAY_MS

Version = NewType("Version", str)
"""An object's version as its registry gave it. Opaque: compare for equality only (a Kubernetes resourceVersion)."""

MAX_QUEUES = 10_000
MAX_HORIZON_DAYS = 3_660
# A node of an earlier release renews its lease each second, and it is looked at each half second, so a shorter one is
# over before a living node's next renewal is seen. What an earlier release has kept with less is still read.
MIN_LEASE_SECONDS = 2
RENEWED_PART = 0.45  # of a lease: one renewal may be lost, and a node with the default of 3 s asks 0.74 times a second
MAX_RENEWAL_S = 5.0  # an operator that has just started knows by then who lives, however long the lease


def renewal_s(lease_seconds: int) -> float:
    """Between two renewals of a node's lease."""
    return min(RENEWED_PART * lease_seconds, MAX_RENEWAL_S)


MAX_QUOTA = 10**15
MAX_TOPIC_CHARS = 50
# A topic's name is part of a Kubernetes object's name and of a directory's.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")


class BadSpec(ValueError):
    """A spec that can't be followed; says which field, what it was and what is allowed."""


class TopicType(StrEnum):
    DELAY = "Delay"
    NORMAL = "Normal"
    MIXED = "Mixed"


class Delivery(StrEnum):
    """RIP-19's phases: who hands messages out."""

    MASTER = "Master"
    MASTER_AND_SLAVE = "MasterAndSlave"


class BootstrapVolumes(StrEnum):
    """What becomes of copies on the nodes' disks when a topic's shard has no object."""

    ADOPT = "Adopt"  # one history, of a cluster of our name, and whole: its object is made again
    REFUSE = "Refuse"  # no shard is made: a person decides
    IGNORE = "Ignore"  # an empty shard is made, the copies stay beside it


class Durability(StrEnum):
    """When a frame counts as stored: on the disk, or in the page cache."""

    FSYNC = "Fsync"
    ASYNC = "Async"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The numbers, of one thing that has versions, that a program knows: `least` to `greatest`."""

    least: int
    greatest: int

    def common(self, other: VersionRange) -> int | None:
        """The greatest that both know; None: there is none."""
        found = min(self.greatest, other.greatest)
        return found if found >= max(self.least, other.least) else None

    def __str__(self) -> str:
        return str(self.least) if self.least == self.greatest else f"{self.least} to {self.greatest}"


FIRST_VERSION = VersionRange(1, 1)  # what a release before 0.2 knows, which says nothing


@dataclass(frozen=True, slots=True)
class TopicQuotas:
    """What a topic takes; None: no limit. Of all its queues together, each of which has a part."""

    pending_messages: int | None = None
    pending_bytes: int | None = None
    enqueue_per_second: int | None = None  # messages

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (value := getattr(self, name)) is not None:
                _within(name, value, 1, MAX_QUOTA)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    name: str
    queues: int
    type: TopicType = TopicType.MIXED
    retention_ms: int = 3 * DAY_MS
    dlq_retention_ms: int = 7 * DAY_MS  # of a dead letter, since it died or was redriven
    max_attempts: int = 16
    max_delay_ms: int | None = None  # None: the cluster's horizon
    max_release_per_second: int | None = None  # for the whole topic; None: no limit
    quotas: TopicQuotas | None = None
    deduplicate: bool = False  # a message whose id was stored within a day is not stored again

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadSpec(f"topic name {self.name!r}: 1 to 50 of a-z, 0-9 and '-', starting and ending with a-z or 0-9")
        _within(f"topic {self.name}: queues", self.queues, 1, MAX_QUEUES)
        _within(f"topic {self.name}: max_attempts", self.max_attempts, 1, 1_000)
        _within(f"topic {self.name}: retention_ms", self.retention_ms, 1, MAX_HORIZON_DAYS * DAY_MS)
        _within(f"topic {self.name}: dlq_retention_ms", self.dlq_retention_ms, 1, MAX_HORIZON_DAYS * DAY_MS)
        if self.max_delay_ms is not None:
            _within(f"topic {self.name}: max_delay_ms", self.max_delay_ms, 1, MAX_HORIZON_DAYS * DAY_MS)
        if self.max_release_per_second is not None:
            _within(f"topic {self.name}: max_release_per_second", self.max_release_per_second, 1, 10**9)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    name: str
    nodes: int
    topics: tuple[TopicSpec, ...] = ()
    replicas: int = 1
    min_in_sync: int = 1
    delivery: Delivery = Delivery.MASTER
    durability: Durability = Durability.FSYNC
    horizon_days: int = 40
    lease_seconds: int = 3  # at least MIN_LEASE_SECONDS, wherever it is asked for
    lag_seconds: int = 10
    drained: tuple[str, ...] = ()  # node ids that must be emptied and get nothing new
    # What it costs: acknowledged messages may be lost, delivered again or delivered after they were cancelled, and a
    # former master that is only cut off, alone in its in-sync set, needs no lease and serves on beside the new one.
    allow_unclean_failover: bool = False
    replace_after_seconds: int = 600  # a node away for so long loses its replicas to others
    bootstrap_volumes: BootstrapVolumes = BootstrapVolumes.ADOPT
    log_level: LogLevel | None = None  # of the nodes; None: what each was started with
    nodes_version: int = 1  # the storage format that every node reads: they write in it. The operator raises it

    def __post_init__(self) -> None:
        _within("nodes", self.nodes, 1, 1_000)
        _within("replicas", self.replicas, 1, min(self.nodes, 7))
        _within("min_in_sync", self.min_in_sync, 1, self.replicas)
        _within("horizon_days", self.horizon_days, 1, MAX_HORIZON_DAYS)
        _within("lease_seconds", self.lease_seconds, 1, 3_600)
        _within("lag_seconds", self.lag_seconds, 1, 3_600)
        _within("replace_after_seconds", self.replace_after_seconds, 1, 30 * 86_400)
        _within("nodes_version", self.nodes_version, 1, 1_000_000)
        names = [topic.name for topic in self.topics]
        if len(set(names)) != len(names):
            raise BadSpec(f"a topic is named twice: {', '.join(sorted(names))}")

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(self.nodes))

    def topic(self, name: str) -> TopicSpec | None:
        return next((topic for topic in self.topics if topic.name == name), None)


@dataclass(frozen=True, slots=True)
class ClusterObject:
    version: Version
    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class AdvisedNodes:
    """How many nodes the operator says that the load to come needs. at_ms: when it said so, ms since 1970 UTC."""

    nodes: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Switchover:
    """The operator asks the master to hand over to another replica."""

    to: str  # node id


@dataclass(frozen=True, slots=True)
class Handover:
    """The master's answer to a Switchover: it has stopped, and `to` has all of its log."""

    epoch: int
    log_end: int  # CommitLog offset, bytes


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The operator's part.

    (master, incarnation, epoch) names one process: the term is its alone. A later process of the same node waits
    for the next epoch, whether or not the named one ever took this one up.
    """

    uid: int = field(metadata={"json": "string"})  # u64, not 0; a string in JSON, whose numbers end at 2^53
    topic: str
    queue: int
    replicas: tuple[str, ...]  # node ids
    master: str | None = None  # node id; None until the first term
    epoch: int = 0
    incarnation: str | None = None  # the process, as its lease names it
    switchover: Switchover | None = None
    target: tuple[str, ...] | None = None  # node ids that are to have the copies; None: as `replicas`
    leaving: tuple[str, ...] = ()  # of `replicas`: the master takes them out of the in-sync set
    # The term before this epoch's was taken up, and its process has ended: no lease need be waited out. Set or unset
    # with each epoch.
    vacant: bool = False
    # The epoch that may begin from a copy out of sync: a person allowed that for this shard, once. 0: none may.
    unclean_epoch: int = 0
    by_load: tuple[str, ...] = ()  # node ids: a rebalance moved it between them, so that counts don't move it back

    def __post_init__(self) -> None:
        for what, nodes in (("replicas", self.replicas), ("target", self.target)):
            if nodes is None:
                continue
            if not nodes:
                raise BadSpec(f"shard {self.name}: {what} names no node; a shard has at least one copy")
            if len(set(nodes)) != len(nodes):
                raise BadSpec(f"shard {self.name}: {what} names a node twice: {', '.join(nodes)}")

    @property
    def name(self) -> str:
        return shard_name(self.topic, self.queue)


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The master's part. Written only when it changes state, never for statistics."""

    serving_epoch: int
    incarnation: str  # of the process that serves, as in its lease
    in_sync: tuple[str, ...]  # copy ids; with `Async` each with its boot id
    handover: Handover | None = None
    resigned: str | None = None  # the master of serving_epoch serves no more in that epoch, and why
    revision: int = 0  # counts the statuses of serving_epoch; an older release leaves it as it is

    @property
    def sequence(self) -> tuple[int, int]:
        """It grows with each status of the shard: one that was put back has a lower one than was seen before."""
        return self.serving_epoch, self.revision


def in_sync_replica_id(copy_id: str, boot_id: str | None = None) -> str:
    """The name of a copy in `ShardStatus.in_sync`.

    boot_id: the kernel's, with Async durability only: a machine that was started again may have lost what its page
    cache held, a process that was only killed has not.
    """
    return copy_id if boot_id is None else f"{copy_id}@{boot_id}"


def copy_id_of(replica_id: str) -> str:
    return replica_id.partition("@")[0]


class ConditionType(StrEnum):
    """One fault of a shard. A condition that is over is removed: a shard without conditions has no fault."""

    BLOCKED = "Blocked"  # no term can be started; the reason says why
    SURPLUS = "Surplus"  # serves, but no topic has this shard any more
    HELD = "Held"  # a switchover, a move or a copy that is wanted waits for something; the reason says for what
    RISKED = "Risked"  # the term of the condition's epoch began though acknowledged messages may be missing


@dataclass(frozen=True, slots=True)
class Condition:
    type: ConditionType
    reason: str  # CamelCase, stable: scripts match it
    message: str
    since_ms: int = 0  # when it was set, by the operator's wall clock; 0 in a plan, which has no clock
    epoch: int = 0  # the term that it speaks of; 0: of none in particular


@dataclass(frozen=True, slots=True)
class ShardObject:
    name: str
    version: Version  # of the whole object: moves with spec, status and conditions
    spec: ShardSpec
    status: ShardStatus | None = None  # None: no master has ever served
    conditions: tuple[Condition, ...] = ()
    # Who allows the next term to begin from a copy out of sync; "": none does. A term that begins takes it away.
    unclean_allowed_by: str = ""


@dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    name: str
    endpoint: str  # host:port


@dataclass(frozen=True, slots=True)
class ListenerTrust:
    """How clients know a node's listeners with TLS. Public: the registry's readers are told, so that the operator needs
    no Secret."""

    server_name: str  # a DNS name that their certificate is for
    roots: str  # PEM, who has issued it; empty: the public ones


@dataclass(frozen=True, slots=True)
class NodeLease:
    """A node's sign of life. A watcher compares `renewals` with what it saw before, on its own clock."""

    node: str
    incarnation: str  # random, new with each start of the process
    endpoint: str  # host:port of gRPC
    http: str  # host:port of health and metrics
    renewals: int = 0
    peer: str = ""  # host:port for the other nodes: shipping (TCP) and heartbeats (UDP)
    stopping: bool = False  # it is about to end: its masters must be handed over, no copy may be placed there
    zone: str = ""  # what may fail with its machine: a room, a cloud's availability zone; empty: not known
    formats: VersionRange | None = None  # storage formats that it reads; None, of both: a release that says nothing
    wire: VersionRange | None = None  # versions in which it talks to other nodes
    listeners: tuple[ListenerEndpoint, ...] = ()  # for gRPC; none: the one at `endpoint` alone
    peer_tls: bool = False  # other nodes may come by TLS at `peer`
    trust: ListenerTrust | None = None  # None: it has no listener with TLS, or no certificate for one yet
    certificate_problem: str = ""  # what is wrong with the certificates on its disk; empty: nothing

    def endpoint_of(self, listener: str) -> str:
        """Where the node's listener of that name is; empty: it has none of that name."""
        return next((one.endpoint for one in self.listeners if one.name == listener), "")


def shard_name(topic: str, queue: int) -> str:
    return f"{topic}-{queue}"


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadSpec(f"{what} is {value}; allowed: {low} to {high}")
