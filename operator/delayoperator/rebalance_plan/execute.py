"""A plan that was approved, move by move: which begin, which are over, what the others wait for, how far it all is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delayoperator.crds.rebalance import DelayRebalanceSpec, MoveState, PlanModel, PlannedMove, ProgressModel
from delayoperator.rebalance_plan import validate
from delayoperator.rebalance_plan.plans import FINAL, moves_of, state_of
from delayoperator.rebalance_plan.step_values import Edit, RebalanceEvent, Why, World
from delayoperator.rebalance_plan.times import duration, instant, text_of
from delayoperator.rebalance_plan.validate import (
    BYTES_PER_SECOND,
    Begin,
    Finished,
    InProgress,
    MovePace,
    Superseded,
    WaitForMove,
)

TELLING_BYTES = 16 << 20  # smaller moves say more of their beginning and end than of the rate
SLOT_MS = 300_000
LEAD_MS = 60_000
MAX_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class ExecutedMoves:
    moves: tuple[PlannedMove, ...]
    edits: tuple[Edit, ...]
    events: tuple[RebalanceEvent, ...]
    waits: str = ""  # what the first move that waits waits for
    recheck_at_ms: int | None = None

    @property
    def in_flight(self) -> int:
        return sum(move.state is MoveState.MOVING for move in self.moves)

    @property
    def all_final(self) -> bool:
        return all(move.state in FINAL for move in self.moves)


def execute(
    plan: PlanModel, spec: DelayRebalanceSpec, world: World, now_ms: int, held: WaitForMove | None
) -> ExecutedMoves:
    """held: why nothing may begin now, whatever the map; None: what may, does."""
    executor = _PlanExecutor(plan, spec, world, now_ms)
    executor.check_moving()
    if held is None:
        executor.begin()
    else:
        executor.waits(held)
    return executor.result()


class _PlanExecutor:
    def __init__(self, plan: PlanModel, spec: DelayRebalanceSpec, world: World, now_ms: int) -> None:
        self._spec, self._world, self._now_ms = spec, world, now_ms
        self._moves = moves_of(plan)
        self._stable = validate.is_stable(world)
        slot_ms = SLOT_MS if plan.slot_seconds is None else plan.slot_seconds * 1_000
        lead_ms = duration(spec.lead_time, LEAD_MS)
        self._pace = MovePace(rate_of(self._moves) or BYTES_PER_SECOND, slot_ms, lead_ms)
        self._edits: list[Edit] = []
        self._events: list[RebalanceEvent] = []
        self._waits = ""
        self._recheck_at_ms: int | None = None

    def result(self) -> ExecutedMoves:
        return ExecutedMoves(
            tuple(self._moves), tuple(self._edits), tuple(self._events), self._waits, self._recheck_at_ms
        )

    def check_moving(self) -> None:
        """Find among the moves under way those that are over, and those that have to be asked for again."""
        for index, move in enumerate(self._moves):
            if move.state is not MoveState.MOVING:
                continue
            match validate.check_moving(move, self._world, self._pace, self._now_ms, stable=self._stable):
                case Finished():
                    self._end(index, MoveState.DONE)
                case Superseded(reason):
                    self._end(index, MoveState.REFUSED, f"while it was under way: {reason}")
                case WaitForMove() as wait:
                    self._moves[index] = move.model_copy(update={"state": MoveState.WAITING, "started_at": None})
                    self.waits(wait)
                case InProgress(edit):
                    self._edits += [] if edit is None else [edit]

    def begin(self) -> None:
        in_flight = sum(move.state is MoveState.MOVING for move in self._moves)
        taken = {move.shard for move in self._moves if move.state is MoveState.MOVING}
        for index, move in enumerate(self._moves):
            if state_of(move) is not MoveState.WAITING or move.shard in taken:
                continue
            taken.add(move.shard)  # a shard's moves go in their order
            match validate.check_waiting(move, self._world, self._pace, self._now_ms, stable=self._stable):
                case Finished():
                    self._end(index, MoveState.DONE)
                case Superseded(reason):
                    self._end(index, MoveState.REFUSED, reason)
                case WaitForMove() as wait:
                    self.waits(wait)
                case Begin() as begun if in_flight < self._spec.max_in_flight:
                    throttled = self._throttled(move)
                    if throttled is not None:
                        self.waits(throttled)
                        continue
                    in_flight += 1
                    self._begin(index, begun)
                case _:
                    pass  # its turn comes when another move is over

    def waits(self, wait: WaitForMove) -> None:
        self._waits = self._waits or wait.reason
        if wait.until_ms is not None:
            self._recheck_at_ms = min(self._recheck_at_ms or wait.until_ms, wait.until_ms)

    def _throttled(self, move: PlannedMove) -> WaitForMove | None:
        """Until the bytes of the moves before would have passed at the rate that is allowed."""
        rate = self._spec.throttle_bytes_per_second
        if rate is None or not move.bytes:
            return None
        free_ms = 0
        begun = [(at_ms, it.bytes or 0) for it in self._moves if (at_ms := instant(it.started_at)) is not None]
        for at_ms, size_bytes in sorted(begun):
            free_ms = max(free_ms, at_ms) + size_bytes * 1_000 // rate
        return None if free_ms <= self._now_ms else WaitForMove(f"at most {rate} bytes/s are to be copied", free_ms)

    def _begin(self, index: int, begun: Begin) -> None:
        move = self._moves[index]
        now = {"state": MoveState.MOVING, "replicas": list(begun.nodes), "started_at": text_of(self._now_ms)}
        self._moves[index] = move.model_copy(update=now)
        self._edits.append(begun.edit)
        self._events.append(RebalanceEvent(Why.MOVE_STARTED, f"{move.shard}: {move.from_} to {move.to}"))

    def _end(self, index: int, state: MoveState, reason: str | None = None) -> None:
        move = self._moves[index]
        short = None if reason is None else reason[:MAX_REASON_CHARS]  # a thousand of them are in one object
        now = {"state": state, "reason": short, "ended_at": text_of(self._now_ms)}
        self._moves[index] = move.model_copy(update=now)
        message = f"{move.shard}: {move.from_} to {move.to}"
        if state is MoveState.DONE:
            self._events.append(RebalanceEvent(Why.MOVE_DONE, message))
        else:
            self._events.append(RebalanceEvent(Why.MOVE_REFUSED, f"{message}: {reason}"))


def rate_of(moves: Sequence[PlannedMove]) -> int | None:
    """Bytes a second of this plan's moves so far; None while they say nothing."""
    size_bytes = spent_ms = 0
    for move in moves:
        began_ms, ended_ms = instant(move.started_at), instant(move.ended_at)
        if move.state is MoveState.DONE and began_ms is not None and ended_ms is not None and move.bytes:
            size_bytes += move.bytes
            spent_ms += max(1, ended_ms - began_ms)
    return size_bytes * 1_000 // spent_ms if size_bytes >= TELLING_BYTES else None


def progress_of(
    moves: Sequence[PlannedMove], world: World, waits: str, slots: int, before: ProgressModel | None
) -> ProgressModel:
    """slots: moves at a time. before: what was said last, whose estimate stands until something else has changed."""
    done = [move for move in moves if move.state is MoveState.DONE]
    moving = [move for move in moves if move.state is MoveState.MOVING]
    refused = sum(move.state is MoveState.REFUSED for move in moves)
    ended_bytes = sum(move.bytes or 0 for move in done)
    fetched = {move.shard: world.copied.get(move.shard, 0) for move in moving}
    current_bytes = sum(min(fetched[move.shard], move.bytes or fetched[move.shard]) for move in moving)
    all_bytes = sum(move.bytes or 0 for move in moves if move.state is not MoveState.REFUSED)
    left = [move for move in moves if move.state not in FINAL]
    if not left:
        percent = 100
    elif all_bytes:
        percent = min(99, 100 * (ended_bytes + current_bytes) // all_bytes)
    else:
        percent = 100 * (len(done) + refused) // len(moves)
    said = ", ".join(move.shard for move in moving) or (f"none: {waits}" if waits and left else "")
    found = ProgressModel(
        moves_done=len(done),
        moves_total=len(moves),
        moves_refused=refused,
        bytes_done=ended_bytes,
        percent=percent,
        current=said[:MAX_REASON_CHARS] or None,
        seconds_left=0,
    )
    if before is not None and before.model_copy(update={"seconds_left": 0}) == found:
        return before
    pace = MovePace(rate_of(moves) or BYTES_PER_SECOND, 0, 0)
    need_ms = sum(pace.move_ms(move.bytes) for move in left) - current_bytes * 1_000 // pace.bytes_per_second
    return found.model_copy(update={"seconds_left": max(0, need_ms) // 1_000 // max(1, min(slots, len(left)))})
