"""What maintenance is decided from: pods, the StatefulSet, claims, and what the shards' map comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

from delayregistry.model import ClusterSpec, ConditionType, ShardObject, shard_name

from delayoperator.cluster.shared_places import shared_places
from delayoperator.plan import Liveness, ObservedNode
from delayoperator.resources.names import CONTAINER
from delayoperator.resources.view import SecurityMode

SWITCHING_MS = 2_000  # a switchover's pause, seen from here
# A shard that is Blocked for longer is not waited for by a restart; a pod whose sidecar is not ready for longer needs
# people.
STUCK_MS = 120_000
SLOW_START_MS = 1_200_000  # a node that recovers is not ready either: for longer than this it hardly is at work on that
COMING_MS = 300_000  # a new shard that is not whole by then is a fault, not a beginning


@dataclass(frozen=True, slots=True)
class PodView:
    name: str
    node: str  # node id
    uid: str
    revision: str  # of the StatefulSet's template that it was made from
    ready: bool
    deleting: bool = False
    # Why its container does not run, as the kubelet or the scheduler says it ("ImagePullBackOff: ..."). None: it runs.
    stopped: str | None = None
    machine: str = ""  # the Kubernetes node; "" while not scheduled
    zoneless: bool = False  # its people have set the zone's variable to nothing: zones are to stay unknown
    restart: str = ""  # who asked for its restart; "": none did
    security: SecurityMode = SecurityMode.OFF  # that it was made for
    unready: tuple[str, ...] = ()  # its containers that are not ready, by name
    unready_since_ms: int | None = None  # wall clock, the kubelet's; None: it is ready, or that is not known


@dataclass(frozen=True, slots=True)
class SetView:
    """The StatefulSet. observed: its status speaks of its present spec."""

    replicas: int
    update_revision: str
    observed: bool


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A node's PersistentVolumeClaim."""

    name: str
    node: str
    requested_bytes: int
    capacity_bytes: int  # 0 while it is not bound
    expandable: bool | None  # what its storage class says; None: not known, so it may be tried


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """The shards in numbers, and the sentences about those that are not as they should be."""

    desired: int = 0
    existing: int = 0  # of those that are wanted
    served: int = 0
    in_sync: int = 0  # have all the copies that are wanted, in sync
    moving: int = 0
    surplus: int = 0  # exist, and no topic has them any more
    unserved: tuple[str, ...] = ()
    unserved_names: tuple[str, ...] = ()  # of the shards that `unserved` has a sentence about, in its order
    unsynced: tuple[str, ...] = ()
    unsynced_names: tuple[str, ...] = ()  # likewise
    unmade: frozenset[str] = frozenset()  # of shards that do not exist, or have never been served
    coming: tuple[str, ...] = ()  # of new ones that are on their way: neither in `unserved` nor in `unsynced`
    blocked: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    risked: tuple[str, ...] = ()
    masters: Mapping[str, int] = field(default_factory=dict)  # by node id
    named: Mapping[str, int] = field(default_factory=dict)  # by node id: shards that have, or are to have, a copy there
    together: tuple[str, ...] = ()  # copies of a shard that share a machine or a zone

    @property
    def sound(self) -> bool:
        """Every shard is served and has all its copies in sync, and none is on its way."""
        return self.served == self.in_sync == self.desired and not self.moving and not self.unsynced


def summarize_shards(
    desired: ClusterSpec,
    shards: Sequence[ShardObject],
    nodes: Mapping[str, ObservedNode],
    without: Collection[str] = (),
) -> ShardSummary:
    """nodes: by node id, as their leases show them; one that is missing has not been seen. without: names of shards
    that are left out, as if no topic had them and they did not exist."""
    shards = [shard for shard in shards if shard.name not in without]
    by_name = {shard.name: shard for shard in shards}
    named_ones = (shard_name(topic.name, queue) for topic in desired.topics for queue in range(topic.queues))
    wanted = [name for name in named_ones if name not in without]
    masters: Counter[str] = Counter(shard.spec.master for shard in shards if shard.spec.master is not None)
    named: Counter[str] = Counter()
    for shard in shards:
        named.update({*shard.spec.replicas, *(shard.spec.target or ())})
    in_order = sorted({*wanted, *by_name}, key=_by_topic_and_queue)
    unserved = {name: why for name in in_order if (why := _unserved(by_name.get(name), nodes)) is not None}
    unsynced = {name: why for name in in_order if (why := _unsynced(by_name.get(name), desired.replicas)) is not None}
    return ShardSummary(
        desired=len(wanted),
        existing=sum(name in by_name for name in wanted),
        served=sum(name not in unserved for name in wanted),
        in_sync=sum(name not in unsynced and name not in unserved for name in wanted),
        moving=sum(shard.spec.target is not None for shard in shards),
        surplus=len(by_name.keys() - set(wanted)),
        unserved=tuple(f"{name} {why}" for name, why in unserved.items()),
        unserved_names=tuple(unserved),
        unsynced=tuple(f"{name} {why}" for name, why in unsynced.items()),
        unsynced_names=tuple(unsynced),
        unmade=frozenset(name for name in wanted if _is_unmade(by_name.get(name))),
        blocked=_condition_messages(shards, ConditionType.BLOCKED),
        held=_condition_messages(shards, ConditionType.HELD),
        risked=_condition_messages(shards, ConditionType.RISKED),
        masters=masters,
        named=named,
        together=shared_places(shards, nodes),
    )


def stuck_shards(shards: Sequence[ShardObject], wall_ms: int) -> dict[str, frozenset[str]]:
    """The shards that have been Blocked for so long that only people can help, with the nodes that have copies."""
    return {
        shard.name: frozenset({*shard.spec.replicas, *(shard.spec.target or ())})
        for shard in shards
        if any(it.type is ConditionType.BLOCKED and wall_ms - it.since_ms >= STUCK_MS for it in shard.conditions)
    }


def is_unready_for_long(pod: PodView, wall_ms: int) -> bool:
    """It runs, and only people can make it ready. One that does not run says so by itself."""
    since_ms, patience_ms = pod.unready_since_ms, SLOW_START_MS if CONTAINER in pod.unready else STUCK_MS
    return pod.stopped is None and not pod.deleting and since_ms is not None and wall_ms - since_ms >= patience_ms


def without_switchovers(counted: ShardSummary, since_ms: Mapping[str, int], now_ms: int) -> ShardSummary:
    """`counted`, but shards that have not been served for less than SWITCHING_MS count as served: a master that
    hands over pauses for a moment, and that is not an outage. since_ms: by the shard's name, see `unserved_since`.
    """
    left = tuple(now_ms - since_ms.get(name, now_ms) >= SWITCHING_MS for name in counted.unserved_names)
    if all(left):
        return counted
    unserved, names = (tuple(compress(of, left)) for of in (counted.unserved, counted.unserved_names))
    return replace(counted, unserved=unserved, unserved_names=names, served=counted.desired - len(names))


def unserved_since(counted: ShardSummary, before_ms: Mapping[str, int], now_ms: int) -> dict[str, int]:
    """Since when each shard that is not served was seen so."""
    return {name: before_ms.get(name, now_ms) for name in counted.unserved_names}


def without_new(counted: ShardSummary, since_ms: Mapping[str, int], now_ms: int) -> ShardSummary:
    """`counted`, but shards that have been coming for less than COMING_MS are counted as such: a topic that is added
    takes nothing from anybody. since_ms: by the shard's name, see `coming_since`."""
    coming = {name for name, at_ms in since_ms.items() if now_ms - at_ms < COMING_MS}
    unserved = [name not in coming for name in counted.unserved_names]
    unsynced = [name not in coming for name in counted.unsynced_names]
    if all(unserved) and all(unsynced):
        return counted
    said = dict(zip(counted.unsynced_names, counted.unsynced, strict=True))
    said |= zip(counted.unserved_names, counted.unserved, strict=True)
    return replace(
        counted,
        unserved=tuple(compress(counted.unserved, unserved)),
        unserved_names=tuple(compress(counted.unserved_names, unserved)),
        unsynced=tuple(compress(counted.unsynced, unsynced)),
        unsynced_names=tuple(compress(counted.unsynced_names, unsynced)),
        coming=tuple(sentence for name, sentence in said.items() if name in coming),
    )


def coming_since(
    counted: ShardSummary, before_ms: Mapping[str, int], known: Collection[str], now_ms: int
) -> dict[str, int]:
    """Since when each new shard has been on its way: from when it was missed until it is served and has all its copies.
    known: names of shards that are not new, whatever is missing of them now."""
    behind = {*counted.unserved_names, *counted.unsynced_names}
    new = {name: before_ms.get(name, now_ms) for name in counted.unmade if name not in known}
    return new | {name: at_ms for name, at_ms in before_ms.items() if name in behind}


def _is_unmade(shard: ShardObject | None) -> bool:
    """One that waits for a person is none: its condition says so, and that nobody serves it."""
    if shard is None:
        return True
    blocked = any(it.type is ConditionType.BLOCKED for it in shard.conditions)
    return shard.status is None and shard.spec.epoch <= 1 and not blocked


def _unserved(shard: ShardObject | None, nodes: Mapping[str, ObservedNode]) -> str | None:
    if shard is None:
        return "does not exist yet"
    spec, status = shard.spec, shard.status
    if spec.master is None:
        return "has no master yet"
    view = nodes.get(spec.master)
    if view is not None and view.liveness is Liveness.DEAD:
        return f"waits for a new master: {spec.master} is not there"
    if view is not None and view.incarnation not in (None, spec.incarnation):
        return f"waits for a new term: {spec.master} was started again"
    if status is None or (status.serving_epoch, status.incarnation) != (spec.epoch, spec.incarnation):
        return f"is not yet served by {spec.master} in epoch {spec.epoch}"
    if status.resigned is not None:
        return f"waits for a new master: {spec.master} resigned ({status.resigned})"
    return None


def _unsynced(shard: ShardObject | None, replicas: int) -> str | None:
    in_sync = 0 if shard is None or shard.status is None else len(shard.status.in_sync)
    # A shard on the move has one more copy for a while, which need not be there yet.
    still = shard is not None and shard.spec.target is None
    wanted = max(replicas, len(shard.spec.replicas)) if shard is not None and still else replicas
    return None if in_sync >= wanted else f"has {in_sync} of {wanted} copies in sync"


def _condition_messages(shards: Sequence[ShardObject], kind: ConditionType) -> tuple[str, ...]:
    return tuple(
        f"{shard.name}: {condition.reason}, {condition.message}"
        for shard in shards
        for condition in shard.conditions
        if condition.type is kind
    )


def _by_topic_and_queue(name: str) -> tuple[str, int]:
    topic, _, queue = name.rpartition("-")
    return topic, int(queue)


def ordinal(node: str) -> int:
    """The pod's number: n3 is NAME-3."""
    return int(node[1:])


def counted_of(count: int, thing: str) -> str:
    """`1 shard`, `2 shards`; a plural other than with an s is not known here."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def some(sentences: Sequence[str], limit: int = 3) -> str:
    """The first few of them, and how many there are beyond."""
    more = len(sentences) - limit
    return "; ".join(sentences[:limit]) + (f"; and {more} more" if more > 0 else "")
