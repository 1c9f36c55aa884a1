"""Decides how many nodes the load to come needs, and whether now is the time: what an autoscaler is told.

More   before a herd, if it is further away than pods and moves take: shards must not move during it
Fewer  a step at a time, if the whole horizon stays quiet on what is left and nothing has moved for a while
Else   as many as there are; the reason says why

S slots of a minute, from now on: of most of the horizon nodes know no more of a message than its minute, and count all
that is due in it as due at its beginning. So a slot's herd is at the whole minute in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from delayapi.hot_slots import F64
from delayapi.units import HOUR_MS, MINUTE_MS

from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.shard_summary import counted_of

SLOT_MS = MINUTE_MS
QUIET_PART = 0.6  # of what the nodes can do: with a load below it there may be fewer, so that they don't come back soon
# Of a horizon: an overload that lasts for longer has no better time, and the move is what helps. 2 h of the default,
# as a DelayRebalance waits for hot slots.
LONG_PART = 1 / 3
BYTES_PER_S = 32 << 20  # that copies are fetched at, as a DelayRebalance reckons
DISK_PER_PENDING = 1.4  # bytes of a copy for each that is pending
HPA_TOLERANCE = 0.1  # a HorizontalPodAutoscaler takes a step that is not larger than this part for noise


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """spec.autoscaling. per_node: messages a second that a node takes and releases."""

    per_node: float
    horizon_ms: int = 6 * HOUR_MS
    settle_ms: int = HOUR_MS
    pod_start_ms: int = 2 * MINUTE_MS
    max_lateness_ms: int = MINUTE_MS


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """The load to come. per_second: f64[S] messages released and enqueued, from start_ms, which is now. pending_bytes:
    of all masters. watched_ms: for how long the rate of enqueues is known."""

    start_ms: int
    per_second: F64
    pending_bytes: int
    watched_ms: int


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """nodes: that are asked for. drained: of these, that people want empty. zones: in which the nodes are; 1 where that
    is not known. load: a text where it is not known: why. under_way: what the operator is changing; "": nothing.
    still_ms: since when nothing is changed and nothing is rebalanced; None: it is."""

    now_ms: int
    nodes: int
    replicas: int
    shards: int
    load: ClusterLoad | str
    drained: int = 0
    zones: int = 1
    under_way: str = ""
    still_ms: int | None = None


@dataclass(frozen=True, slots=True)
class NodeAdvice:
    """nodes: how many there should be. at_ms: when that was said."""

    nodes: int
    reason: Reason
    because: str
    at_ms: int = 0


def load_per_second(due: Mapping[str, F64], caps: Mapping[str, int], max_lateness_ms: int, enqueued: float) -> F64:
    """f64[S]: what nodes do in each slot, messages a second.

    due: f64[S] by topic, messages that fall due in the slot, at one instant for all that is known: so they are to be
    released within max_lateness_ms. caps: maxReleasePerSecond by topic; what is above it waits for the next slot.
    enqueued: messages a second, of the last hour.
    """
    total = np.zeros(len(next(iter(due.values()), ())))
    for topic, messages in due.items():
        total += (
            _capped(messages, caps[topic], max_lateness_ms) if topic in caps else messages * 1_000 / max_lateness_ms
        )
    return total + enqueued


def advise(settings: ScalingSettings, seen: ScalingFacts) -> NodeAdvice:
    if isinstance(seen.load, str):
        return NodeAdvice(seen.nodes, Reason.LOAD_UNKNOWN, f"the load to come is not known: {seen.load}")
    if seen.under_way:
        return NodeAdvice(
            seen.nodes, Reason.SCALING_WAITS, f"one step at a time, and one is under way: {seen.under_way}"
        )
    over = seen.load.per_second > settings.per_node * (seen.nodes - seen.drained)
    return _more(settings, seen, seen.load, over) if over.any() else _fewer(settings, seen, seen.load)


def lead_ms(settings: ScalingSettings, seen: ScalingFacts, load: ClusterLoad, target: int) -> int:
    """Until `target` nodes serve: pods start, and their part of all copies is moved to them."""
    moved = load.pending_bytes * DISK_PER_PENDING * seen.replicas * (target - seen.nodes) / target
    return settings.pod_start_ms + round(moved * 1_000 / BYTES_PER_S)


def _more(settings: ScalingSettings, seen: ScalingFacts, load: ClusterLoad, over: np.ndarray) -> NodeAdvice:
    herd = _herd(load)
    wanted = max(math.ceil(float(load.per_second.max()) / settings.per_node) + seen.drained, seen.nodes + _step(seen))
    target = min(math.ceil(wanted / seen.zones) * seen.zones, max(seen.nodes, seen.shards + seen.drained))
    if target == seen.nodes:
        said = f"{herd}; more nodes would lead none of the {counted_of(seen.shards, 'shard')}: topics need more queues"
        return NodeAdvice(seen.nodes, Reason.TOO_FEW_QUEUES, said)
    lead = lead_ms(settings, seen, load, target)
    first = int(np.argmax(over))
    begins_ms = load.start_ms + first * SLOT_MS
    if begins_ms >= seen.now_ms + lead:
        said = f"{herd}: {target} nodes, which take {_minutes(lead)} to start and to get their shards"
        return NodeAdvice(target, Reason.MORE_NODES, said)
    end = first
    for slot in np.flatnonzero(over):
        if (slot - end) * SLOT_MS >= lead:
            break  # there is room before this one
        end = int(slot) + 1
    if (end - first) * SLOT_MS > settings.horizon_ms * LONG_PART:
        said = f"{herd}, and too much for {_minutes((end - first) * SLOT_MS)}: {target} nodes, though shards move in it"
        return NodeAdvice(target, Reason.MORE_NODES, said)
    said = (
        f"{herd}, which {target} nodes could do, but they take {_minutes(lead)} to start and to get their shards: "
        f"looked at again after {_clock(load.start_ms + end * SLOT_MS)}"
    )
    return NodeAdvice(seen.nodes, Reason.HERD_TOO_NEAR, said)


def _fewer(settings: ScalingSettings, seen: ScalingFacts, load: ClusterLoad) -> NodeAdvice:
    herd = _herd(load)
    target = (seen.nodes - _step(seen)) // seen.zones * seen.zones
    suffice = NodeAdvice(seen.nodes, Reason.NODES_SUFFICE, herd)
    if target < max(1, seen.replicas + seen.drained):
        return suffice
    if float(load.per_second.max()) > QUIET_PART * settings.per_node * (target - seen.drained):
        return suffice
    still_ms = 0 if seen.still_ms is None else max(0, seen.now_ms - seen.still_ms)
    settle = _minutes(settings.settle_ms)
    if still_ms < settings.settle_ms:
        said = f"{herd}; {target} nodes would do once nothing has moved for {settle}"
        return NodeAdvice(seen.nodes, Reason.NODES_SUFFICE, said)
    if load.watched_ms < settings.settle_ms:
        said = f"{herd}; {target} nodes would do once enqueues were watched for {settle}"
        return NodeAdvice(seen.nodes, Reason.NODES_SUFFICE, said)
    said = f"{herd}, which is below {QUIET_PART:.0%} of what {target} nodes can do"
    return NodeAdvice(target, Reason.FEWER_NODES, said)


def _step(seen: ScalingFacts) -> int:
    """The smallest that an autoscaler makes."""
    return math.floor(seen.nodes * HPA_TOLERANCE) + 1


def _capped(messages: F64, cap: int, max_lateness_ms: int) -> F64:
    """f64[S]: messages a second of a topic that releases at most `cap` of them."""
    found, waiting = np.zeros(len(messages)), 0.0
    for slot, count in enumerate(messages):
        waiting += count
        found[slot] = min(waiting * 1_000 / max_lateness_ms, cap)
        waiting = max(0.0, waiting - cap * SLOT_MS / 1_000)
    return found


def _herd(load: ClusterLoad) -> str:
    peak = float(load.per_second.max())
    if peak < 1:
        return "less than 1 message a second is to come"
    at = _clock(load.start_ms + int(np.argmax(load.per_second)) * SLOT_MS)
    return f"{int(float(f'{peak:.2g}')):,} messages a second at {at} are the most to come"


def _clock(at_ms: int) -> str:
    """The whole minute in the slot that begins then."""
    at_ms = -(-at_ms // MINUTE_MS) * MINUTE_MS
    return f"{at_ms // HOUR_MS % 24:02}:{at_ms // MINUTE_MS % 60:02} UTC"


def _minutes(length_ms: int) -> str:
    return f"{max(1, math.ceil(length_ms / MINUTE_MS))} min"
