"""One move against the live map: may it begin, does it wait, is it over, was it superseded?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from delayregistry.model import ShardObject, Switchover

from delayoperator.crds.rebalance import PlannedMove
from delayoperator.plan import balance
from delayoperator.plan.moves import names
from delayoperator.plan.observed import Observed
from delayoperator.plan.placement import desired_replicas
from delayoperator.rebalance_plan.plans import goal, impossible, takes_over
from delayoperator.rebalance_plan.step_values import Edit, World
from delayoperator.rebalance_plan.times import instant, text_of

BYTES_PER_SECOND = 32 << 20  # that a copy is fetched at, until a plan's own moves have shown it
MIN_MOVE_MS = 5_000  # of any move: somebody has to notice, connect, take over
UNKNOWN_MS = 60_000  # of one whose size is not known
MAX_WAIT_MS = 7_200_000  # for hot slots: what is hot for longer has no better time, and the move is what helps
KNOWN = 8  # of the nodes between which a shard was moved, the latest


@dataclass(frozen=True, slots=True)
class MovePace:
    """Estimate of a move's duration. bytes_per_second: the rate at which a copy is fetched."""

    bytes_per_second: int
    slot_ms: int
    lead_ms: int

    def move_ms(self, size_bytes: int | None) -> int:
        return UNKNOWN_MS if size_bytes is None else MIN_MOVE_MS + size_bytes * 1_000 // self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Begin:
    """nodes: the shard's as they are, the master's first."""

    edit: Edit
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitForMove:
    reason: str
    until_ms: int | None = None  # None: for something to happen


@dataclass(frozen=True, slots=True)
class Finished:
    pass


@dataclass(frozen=True, slots=True)
class Superseded:
    """The map has moved on: this move can't be made any more, or is not what it was planned for."""

    reason: str


@dataclass(frozen=True, slots=True)
class InProgress:
    """It is under way. edit: what has to be asked for (again): the write before may have been lost."""

    edit: Edit | None = None


def check_waiting(
    move: PlannedMove, world: World, pace: MovePace, now_ms: int, *, stable: bool
) -> Begin | WaitForMove | Finished | Superseded:
    """What is to be done with a move that has not begun."""
    shard = world.shards.get(move.shard)
    if shard is None:
        return Superseded("there is no such shard any more")
    spec, nodes = shard.spec, desired_replicas(shard.spec)
    planned = nodes if move.replicas is None else tuple(move.replicas)
    if move.replicas is not None and nodes == goal(move, planned):
        if spec.master == spec.replicas[0] and spec.target is None:
            return Finished()
        return WaitForMove(f"{move.shard} is on its way there already")
    if nodes != planned:
        return Superseded(f"its copies are on {names(nodes)} now, and the plan found them on {names(planned)}")
    why = impossible(move, planned, world)
    if why is not None:
        return Superseded(why)
    if spec.target is not None or spec.leaving or spec.switchover is not None:
        return WaitForMove(f"{move.shard} is on its way for another reason")
    if not is_served(shard):
        return WaitForMove(f"{move.shard} is not served")
    if not stable:
        return WaitForMove("a node is away, about to end or only just back")
    if takes_over(move, planned) and not _all_in_sync(shard):
        return WaitForMove(f"a copy of {move.shard} is not in sync, and {move.to} is to take over")
    return _too_near(move, pace, now_ms) or Begin(_edit(move, shard, planned), planned)


def check_moving(
    move: PlannedMove, world: World, pace: MovePace, now_ms: int, *, stable: bool
) -> InProgress | Finished | Superseded | WaitForMove:
    """What is to be done with a move that was begun; its `replicas` say what it was begun from. Wait: the write that
    was to begin it was lost, and now is no time for it."""
    shard = world.shards.get(move.shard)
    if shard is None:
        return Superseded("there is no such shard any more")
    nodes = tuple(move.replicas or ())
    found = _taking_over(move, shard, nodes, stable) if takes_over(move, nodes) else _copying(move, shard, nodes)
    if isinstance(found, InProgress) and found.edit is not None:
        why = impossible(move, nodes, world)  # what has changed since the write that was lost
        return Superseded(why) if why is not None else _too_near(move, pace, now_ms) or found
    return found


def is_stable(world: World) -> bool:
    return balance.is_stable(world.cluster, Observed(tuple(world.shards.values()), world.nodes))


def is_served(shard: ShardObject) -> bool:
    spec, status = shard.spec, shard.status
    return status is not None and spec.master is not None and status.serving_epoch == spec.epoch and not status.resigned


def _copying(move: PlannedMove, shard: ShardObject, nodes: tuple[str, ...]) -> InProgress | Finished | Superseded:
    spec, wished = shard.spec, goal(move, nodes)
    if spec.target is not None:
        if spec.target == wished:
            return InProgress()
        return Superseded(f"its copies are to be on {names(spec.target)} now")
    if set(spec.replicas) == set(wished):
        return Finished()  # should another lead than the first: the planner brings the master there once all is stable
    if spec.replicas == nodes:
        return InProgress(_edit(move, shard, nodes))
    return Superseded(f"its copies are on {names(spec.replicas)} now")


def _taking_over(
    move: PlannedMove, shard: ShardObject, nodes: tuple[str, ...], stable: bool
) -> InProgress | Finished | Superseded:
    spec = shard.spec
    if spec.target is not None or set(spec.replicas) != set(nodes):
        return Superseded(f"its copies are to be on {names(desired_replicas(spec))} now")
    if spec.replicas[0] == move.to:
        # The move is done as asked for. Should the switchover not come off, the planner brings the master here once all
        # is stable.
        return Finished() if spec.master == move.to and is_served(shard) else InProgress()
    if spec.replicas != nodes:
        return Superseded(f"{spec.replicas[0]} is to be its master now")
    return InProgress(_edit(move, shard, nodes) if stable and is_served(shard) and _all_in_sync(shard) else None)


def _edit(move: PlannedMove, shard: ShardObject, nodes: tuple[str, ...]) -> Edit:
    wished = goal(move, nodes)
    known = tuple(dict.fromkeys((*shard.spec.by_load, move.from_, move.to)))[-KNOWN:]
    spec = replace(shard.spec, by_load=known)
    if not takes_over(move, nodes):
        reason = f"rebalance: the copy on {move.from_} goes to {move.to}"
        return Edit(shard, replace(spec, target=wished), reason)
    # First in the list: so it stays the master, when others come and go.
    asked = None if spec.master == move.to else Switchover(move.to)
    return Edit(shard, replace(spec, replicas=wished, switchover=asked), f"rebalance: {move.to} takes over")


def _too_near(move: PlannedMove, pace: MovePace, now_ms: int) -> WaitForMove | None:
    """A slot in which much falls due on the shard is not to find it on its way.

    Slots between which there is no time for the move are waited for together, up to MAX_WAIT_MS; for a single one
    always.
    """
    needs_ms = pace.move_ms(move.bytes) + pace.lead_ms
    until_ms, first_ms = now_ms, None
    for begin_ms in sorted(it for text in move.hot_slots or () if (it := instant(text)) is not None):
        if until_ms < begin_ms + pace.slot_ms and begin_ms < until_ms + needs_ms:
            first_ms = begin_ms if first_ms is None else first_ms
            until_ms = begin_ms + pace.slot_ms
    if first_ms is None or until_ms - now_ms > max(MAX_WAIT_MS, needs_ms + pace.slot_ms):
        return None
    return WaitForMove(
        f"{move.shard} is hot from {text_of(first_ms)} to {text_of(until_ms)}: it moves after that", until_ms
    )


def _all_in_sync(shard: ShardObject) -> bool:
    return shard.status is not None and len(shard.status.in_sync) >= len(shard.spec.replicas)
