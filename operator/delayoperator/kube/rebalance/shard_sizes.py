"""What waits in shards, and what falls due on the nodes: for a rebalance by hand, whose moves nobody has weighed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import numpy as np
from delayapi.hot_slots import F64
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.slots import spread_slots
from delayapi.units import HOUR_MS
from delayregistry.model import NodeLease, ShardObject, shard_name

from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.rebalance_plan import LoadForecast, Size

TIMEOUT_S = 2.0
AT_ONCE = 4  # answers in memory: a node's has 50 KB a shard, and stops at 32 MiB
SLOT_MS = 300_000
SLOTS = 288  # a day: for so long a plan by hand can be approved
WIDEST_SLOT_MS = HOUR_MS  # of a wheel: a slot that begins so much earlier can still reach into the day


@dataclass(frozen=True, slots=True)
class ShardSizes:
    """sizes: of shards, by name; those whose master did not answer are missing. coming: None: nobody has answered."""

    sizes: Mapping[str, Size] = field(default_factory=dict)
    coming: LoadForecast | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """One node's sizes. load: of all that it serves, f64[SLOTS]; None: it has not told."""

    sizes: dict[str, Size] = field(default_factory=dict)
    shards: dict[str, F64] = field(default_factory=dict)
    load: F64 | None = None


def weigh(
    names: Collection[str],
    shards: Mapping[str, ShardObject],
    leases: Sequence[NodeLease],
    access: OperatorAccess,
    now_ms: int,
    timeout_s: float = TIMEOUT_S,
) -> ShardSizes:
    """names: of the shards that are to move. Asks every node: what is hot is so beside the others."""
    if not any(name in shards for name in names):
        return ShardSizes()
    start_ms = now_ms // SLOT_MS * SLOT_MS
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda lease: _ask(access, lease, set(names), start_ms, timeout_s), leases))
    known = {lease.node: it.load for lease, it in zip(leases, answers, strict=True) if it.load is not None}
    masters = {shard.spec.master for shard in shards.values() if shard.spec.master is not None}
    sizes = {name: size for it in answers for name, size in it.sizes.items()}
    if not known:
        return ShardSizes(sizes)
    coming = LoadForecast(
        start_ms,
        SLOT_MS,
        tuple(known),
        np.array(list(known.values())),
        {name: vector for it in answers for name, vector in it.shards.items()},
        whole=masters | {lease.node for lease in leases} <= set(known),
    )
    return ShardSizes(sizes, coming)


def _ask(access: OperatorAccess, lease: NodeLease, names: Collection[str], start_ms: int, timeout_s: float) -> _Answer:
    """The sizes of all shards that a node leads; empty when it does not answer. Where a day is too much, without the
    load.
    """
    with access.client(lease) as node:
        day = pb.GetWheelRequest(from_ms=start_ms - WIDEST_SLOT_MS, to_ms=start_ms + SLOTS * SLOT_MS)
        try:
            return _read(node.get_wheel(day, timeout=timeout_s), names, start_ms)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                return _Answer()
        try:
            sums = node.get_wheel(pb.GetWheelRequest(from_ms=1, to_ms=2), timeout=timeout_s)  # no slots
        except grpc.RpcError:
            return _Answer()
        return _Answer(_read(sums, names, start_ms).sizes)


def _read(answer: pb.GetWheelResponse, names: Collection[str], start_ms: int) -> _Answer:
    found = _Answer(load=np.zeros(SLOTS))
    assert found.load is not None
    for it in answer.shards:
        name, vector = shard_name(it.topic, it.queue), _vector(it, start_ms)
        found.load[:] += vector
        if name in names:
            found.sizes[name] = Size(it.pending_bytes, it.pending)
            found.shards[name] = vector
    return found


def _vector(shard: pb.ShardWheel, start_ms: int) -> F64:
    """f64[SLOTS]: a wheel's slots, each spread evenly."""
    start, width, messages = (np.frombuffer(it, "<i8") for it in (shard.slot_start, shard.slot_width, shard.messages))
    return spread_slots(start, width, messages, start_ms + SLOT_MS * np.arange(SLOTS + 1))
