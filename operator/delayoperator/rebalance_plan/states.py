"""The states of a DelayRebalance and what its verbs do: Strimzi's KafkaRebalance, with a plan approved by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from delayapi.units import HOUR_MS

from delayoperator.cluster.shard_summary import counted_of
from delayoperator.crds.rebalance import DelayRebalanceStatus, Ending, PlanModel, RebalanceState
from delayoperator.crds.rebalancing import Approval
from delayoperator.crds.status import ConditionModel, ConditionStatus
from delayoperator.rebalance_plan.execute import execute, progress_of
from delayoperator.rebalance_plan.manual import manual_plan
from delayoperator.rebalance_plan.plans import digest, made_for, moves_of, same_moves
from delayoperator.rebalance_plan.step_values import (
    Edit,
    JobState,
    RebalanceEvent,
    RebalanceRequest,
    StepOutcome,
    Why,
    World,
)
from delayoperator.rebalance_plan.times import duration, instant, text_of
from delayoperator.rebalance_plan.validate import WaitForMove

COOL_DOWN_MS: Final = HOUR_MS
REFRESH, STOP = "refresh", "stop"
MAX_MESSAGE_CHARS = 1_000

# Where a verb means something. `approve` in Stopped goes on with the rest of the plan.
ACCEPTS: Final[Mapping[str, frozenset[RebalanceState]]] = {
    "approve": frozenset({RebalanceState.PROPOSAL_READY, RebalanceState.STOPPED}),
    STOP: frozenset({RebalanceState.PENDING_PROPOSAL, RebalanceState.REBALANCING}),
    REFRESH: frozenset(
        {
            RebalanceState.PENDING_PROPOSAL, RebalanceState.PROPOSAL_READY, RebalanceState.REBALANCING,
            RebalanceState.STOPPED, RebalanceState.NOT_READY, RebalanceState.READY,
        }
    ),
}  # fmt: skip


def step(asked: RebalanceRequest, status: DelayRebalanceStatus | None, world: World, now_ms: int) -> StepOutcome:
    """Decides the rebalance's next state and what to do in this round. now_ms: wall clock, ms since 1970 UTC."""
    machine = _Machine(asked, status or DelayRebalanceStatus.model_validate({}), world, now_ms)
    machine.run()
    return machine.outcome()


class _Machine:
    def __init__(self, asked: RebalanceRequest, status: DelayRebalanceStatus, world: World, now_ms: int) -> None:
        self._request, self._spec, self._world, self._now_ms = asked, asked.spec, world, now_ms
        self._status = status
        self._state = status.state or RebalanceState.NEW
        self._events: list[RebalanceEvent] = []
        self._edits: tuple[Edit, ...] = ()
        self._consumed: set[str] = set()
        self._recheck_at_ms: int | None = None
        self._initial_state = self._state  # before a plan arrived

    def outcome(self) -> StepOutcome:
        return StepOutcome(
            self._status,
            self._edits,
            frozenset(self._consumed),
            tuple(self._events),
            wants_job=self._state is RebalanceState.PENDING_PROPOSAL and self._world.job.state is JobState.NONE,
            recheck_at_ms=self._recheck_at_ms,
        )

    def run(self) -> None:
        if self._world.paused:
            self._pause()
            return
        if self._state is RebalanceState.RECONCILIATION_PAUSED:
            self._state = self._status.paused_from or RebalanceState.NEW
            self._keep(paused_from=None)
        self._spec_changed()
        self._initial_state = self._state
        self._plan_came()
        self._propose()
        self._verbs()
        if self._state is RebalanceState.NEW:
            self._propose()  # a refresh
        if self._state is RebalanceState.PENDING_PROPOSAL:
            self._job()
        if self._state is RebalanceState.PROPOSAL_READY:
            self._void()
        if self._state is RebalanceState.PROPOSAL_READY:
            self._start_automatically()
        if self._state is RebalanceState.REBALANCING:
            self._execute()
        self._keep(state=self._state, observed_generation=self._request.generation)

    # ------------------------------------------------------------ plans come and go
    def _pause(self) -> None:
        if self._state is not RebalanceState.RECONCILIATION_PAUSED:
            self._keep(paused_from=self._state)
        why = "the DelayCluster is paused: nothing begins, and verbs are kept for later"
        self._become(RebalanceState.RECONCILIATION_PAUSED, Why.PAUSED, why)
        self._keep(state=self._state)

    def _spec_changed(self) -> None:
        """A new spec may list other moves, or mend a fault. Moves under way go on: only people stop them."""
        before = self._status.observed_generation
        if before is None or before == self._request.generation or self._state is RebalanceState.REBALANCING:
            return
        plan = self._status.plan
        other = self._spec.moves is not None and (plan is None or not same_moves(self._spec, plan))
        if other or self._state is RebalanceState.NOT_READY:
            self._forget()

    def _plan_came(self) -> None:
        """The job has written another plan."""
        plan = self._status.plan
        if plan is None:
            return
        if plan.hash is None:
            plan = plan.model_copy(update={"hash": digest(plan)})
            self._keep(plan=plan)
        if plan.hash == self._status.plan_seen:
            return
        if self._state is RebalanceState.REBALANCING:
            self._add_event(
                Why.PLAN_REPLACED, f"plan {self._status.approved} was replaced by {plan.hash} while under way"
            )
        self._adopt_plan(plan)

    def _adopt_plan(self, plan: PlanModel) -> None:
        self._keep(
            plan=plan,
            plan_seen=plan.hash,
            approved=None,
            approved_at=None,
            ending=None,
            requested_at=None,
            progress=None,
        )
        if not moves_of(plan):
            self._become(RebalanceState.READY, Why.BALANCED, "no move is worth its cost")
            return
        self._become(RebalanceState.PROPOSAL_READY, Why.WAITS_FOR_APPROVAL, self._how_to_approve(plan))

    def _propose(self) -> None:
        """From New: the moves by hand, or the job's."""
        if self._state is not RebalanceState.NEW:
            return
        if self._spec.moves is None:
            self._keep(requested_at=text_of(self._now_ms))
            self._become(RebalanceState.PENDING_PROPOSAL, Why.PROPOSAL_REQUESTED, "the job looks at the load to come")
            return
        plan = manual_plan(self._spec, self._world, self._now_ms)
        if isinstance(plan, PlanModel):
            self._adopt_plan(plan)
        else:
            self._become(RebalanceState.NOT_READY, Why.MOVES_IMPOSSIBLE, "; ".join(plan))

    def _job(self) -> None:
        job = self._world.job
        if job.state is JobState.FAILED:
            self._become(RebalanceState.NOT_READY, Why.JOB_FAILED, job.message or "the job failed")
        elif job.state is JobState.FINISHED:
            self._become(RebalanceState.READY, Why.BALANCED, "the job found no move that is worth its cost")

    def _forget(self) -> None:
        """Back to New. plan_seen stays: the plan that was dropped does not come again."""
        self._keep(plan=None, approved=None, approved_at=None, ending=None, progress=None, requested_at=None)
        self._state = RebalanceState.NEW

    # ------------------------------------------------------------ verbs
    def _verbs(self) -> None:
        if self._request.approve is not None:
            self._consumed.add("approve")
            self._approve(self._request.approve.strip())
        if self._request.verb is not None:
            self._consumed.add("verb")
            self._verb(self._request.verb.strip())

    def _approve(self, named: str) -> None:
        plan = self._status.plan
        if self._state is RebalanceState.REBALANCING and named == self._status.approved:
            if self._status.ending is Ending.STOP:
                self._keep(ending=None)  # the stop was withdrawn before it took effect
                self._add_event(Why.APPROVED, f"plan {named} goes on")
            return
        why = self._unapprovable(plan, named)
        if plan is None or why is not None:
            self._add_event(Why.APPROVAL_REFUSED, f"{named or 'nothing'} is not approved: {why}")
            return
        self._add_event(Why.APPROVED, f"plan {named}: {counted_of(len(moves_of(plan)), 'move')}")
        self._start(plan)

    def _unapprovable(self, plan: PlanModel | None, named: str) -> str | None:
        if self._state not in ACCEPTS["approve"] or plan is None:
            return f"state {self._state} has no plan to approve"
        if named != plan.hash:
            return f"the plan is {plan.hash}"
        if self._world.busy is not None:
            return f"DelayRebalance {self._world.busy} is being carried out; one at a time"
        found = self._is_void(plan)
        if found is not None:
            return found[1]
        # It would stop again in this very step: in a state that it had before, so no event would tell of it.
        return f"spec.notAfter, {self._spec.not_after}, is over: set a later one first" if self._is_late() else None

    def _start(self, plan: PlanModel) -> None:
        self._keep(approved=plan.hash, approved_at=text_of(self._now_ms), ending=None)
        self._state = RebalanceState.REBALANCING

    def _verb(self, verb: str) -> None:
        if verb not in (STOP, REFRESH):
            self._add_event(Why.VERB_REFUSED, f"{verb!r} is not a verb; there are {STOP} and {REFRESH}")
        elif verb == STOP and self._plan_overtook_stop():
            self._stopped("its plan came first; delaycluster.io/approve carries it out")
        elif self._state not in ACCEPTS[verb]:
            self._add_event(Why.VERB_REFUSED, f"{verb} means nothing in state {self._state}")
        elif self._state is RebalanceState.REBALANCING:
            self._keep(ending=Ending.STOP if verb == STOP else Ending.REFRESH)
        elif verb == STOP:
            self._stopped("no proposal is waited for; refresh asks for one")
        else:
            self._forget()

    def _plan_overtook_stop(self) -> bool:
        """A plan arrived together with the verb that should have prevented it: none of its moves begins unapproved."""
        return self._initial_state is RebalanceState.PENDING_PROPOSAL and self._state is RebalanceState.PROPOSAL_READY

    def _stopped(self, message: str, why: Why = Why.STOPPED) -> None:
        self._keep(ending=None, cool_down_until=self._cool())
        self._become(RebalanceState.STOPPED, why, message)

    def _cool(self) -> str:
        return text_of(self._now_ms + duration(self._spec.cool_down, COOL_DOWN_MS))

    # ------------------------------------------------------------ ProposalReady
    def _is_void(self, plan: PlanModel) -> tuple[Why, str] | None:
        expires_ms, world = instant(plan.expires_at), self._world
        if expires_ms is not None and self._now_ms >= expires_ms:
            return Why.PLAN_EXPIRED, f"plan {plan.hash} expired at {plan.expires_at}; refresh asks for another"
        if plan.made_for is not None and plan.made_for != made_for(world.cluster):
            changed = f"the cluster's nodes, drained, replicas or topics have changed since plan {plan.hash} was made"
            return Why.CLUSTER_CHANGED, f"{changed}; refresh asks for another"
        if expires_ms is not None:
            self._recheck_at(expires_ms)
        return None

    def _void(self) -> None:
        plan = self._status.plan
        found = None if plan is None else self._is_void(plan)
        if found is not None:
            self._become(RebalanceState.NOT_READY, *found)

    def _start_automatically(self) -> None:
        """Approval Automatic, and AutomaticBelow where the plan is within its limits."""
        plan = self._status.plan
        if plan is None or not self._is_automatic(plan):
            return
        cool_ms = instant(self._status.cool_down_until)
        if cool_ms is not None and self._now_ms < cool_ms:
            self._recheck_at(cool_ms)
            waits = f"nothing is carried out unasked until {self._status.cool_down_until}; {self._how_to_approve(plan)}"
            self._become(RebalanceState.PROPOSAL_READY, Why.COOLING_DOWN, waits)
        elif self._world.busy is not None:
            waits = f"DelayRebalance {self._world.busy} is being carried out; one at a time"
            self._become(RebalanceState.PROPOSAL_READY, Why.ANOTHER_UNDER_WAY, waits)
        else:
            self._add_event(
                Why.APPROVED, f"plan {plan.hash}: {counted_of(len(moves_of(plan)), 'move')}; approval {self._approval}"
            )
            self._start(plan)

    def _is_automatic(self, plan: PlanModel) -> bool:
        limits = self._spec.automatic_below or self._world.automatic_below
        if self._approval is Approval.AUTOMATIC_BELOW and limits is not None:
            held = [
                (limits.moved_bytes, plan.moved_bytes),
                (limits.due_in_window, plan.due_in_window),
            ]
            return all(limit is None or (found is not None and found <= limit) for limit, found in held)
        return self._approval is Approval.AUTOMATIC

    @property
    def _approval(self) -> Approval:
        """People who list moves want to see what they cost: only their own word lets those begin unasked."""
        if self._spec.approval is not None:
            return self._spec.approval
        return self._world.approval if self._spec.moves is None else Approval.MANUAL

    def _how_to_approve(self, plan: PlanModel) -> str:
        return f"{counted_of(len(moves_of(plan)), 'move')}; delaycluster.io/approve={plan.hash} carries them out"

    # ------------------------------------------------------------ Rebalancing
    def _execute(self) -> None:
        plan = self._status.plan
        if plan is None:
            self._forget()  # somebody has removed the plan
            return
        executed = execute(plan, self._spec, self._world, self._now_ms, self._held())
        self._edits = executed.edits
        self._events += executed.events
        if executed.recheck_at_ms is not None:
            self._recheck_at(executed.recheck_at_ms)
        if executed.moves != tuple(plan.moves or ()):
            self._keep(plan=plan.model_copy(update={"moves": list(executed.moves)}))
        before, slots = self._status.progress, self._spec.max_in_flight
        progress = progress_of(executed.moves, self._world, executed.waits, slots, before)
        self._keep(progress=progress)
        refused = progress.moves_refused or 0
        if executed.in_flight == 0 and self._status.ending is Ending.REFRESH:
            self._forget()
            self._recheck_at(self._now_ms)
        elif executed.all_final:
            self._finish(progress.moves_done or 0, refused)
        elif executed.in_flight == 0 and self._status.ending is Ending.STOP:
            left = len(executed.moves) - (progress.moves_done or 0) - refused
            self._stopped(f"{counted_of(left, 'move')} left; delaycluster.io/approve={plan.hash} goes on with them")
        elif executed.in_flight == 0 and self._is_late():
            on = f"with a later one, delaycluster.io/approve={plan.hash} goes on with the rest"
            self._stopped(f"spec.notAfter, {self._spec.not_after}, is over; {on}", Why.WINDOW_CLOSED)
        elif self._status.ending is not None:
            self._become(RebalanceState.REBALANCING, Why.STOPPING, "what is under way is finished, and nothing begins")
        else:
            waits = executed.waits if executed.in_flight == 0 else ""
            self._become(RebalanceState.REBALANCING, Why.MOVES_UNDER_WAY, waits or "the plan is carried out")

    def _held(self) -> WaitForMove | None:
        if self._status.ending is not None:
            return WaitForMove("it is about to stop")
        if self._is_late():
            return WaitForMove("spec.notAfter is over")
        begin_ms = instant(self._spec.not_before)
        if begin_ms is not None and self._now_ms < begin_ms:
            return WaitForMove(f"nothing begins before {self._spec.not_before}", begin_ms)
        return None

    def _is_late(self) -> bool:
        end_ms = instant(self._spec.not_after)
        return end_ms is not None and self._now_ms >= end_ms

    def _finish(self, done: int, refused: int) -> None:
        self._keep(ending=None, cool_down_until=self._cool())
        told = f"{done} of {counted_of(done + refused, 'move')} done"
        if refused and not done:
            self._become(
                RebalanceState.NOT_READY,
                Why.MOVES_REFUSED,
                f"{counted_of(refused, 'move')} refused; status.plan.moves says why",
            )
        elif refused:
            why = f"{told}, {refused} refused; status.plan.moves says why"
            self._become(RebalanceState.READY, Why.MOVES_DONE_IN_PART, why)
        else:
            self._become(RebalanceState.READY, Why.MOVES_DONE, told)

    # ------------------------------------------------------------ words
    def _become(self, state: RebalanceState, why: Why, message: str) -> None:
        """The state with the one condition that tells of it; an event when either is new."""
        old = next(iter(self._status.conditions or ()), None)
        same = old is not None and old.type == state.value
        if not same or old is None or old.reason != why.value:
            self._add_event(why, message)
        since = old.last_transition_time if same and old is not None else None
        condition = ConditionModel(
            type=state.value,
            status=ConditionStatus.TRUE,
            reason=why.value,
            message=message[:MAX_MESSAGE_CHARS],
            last_transition_time=since or text_of(self._now_ms),
            observed_generation=self._request.generation,
        )
        self._state = state
        self._keep(conditions=[condition])

    def _add_event(self, why: Why, message: str) -> None:
        self._events.append(RebalanceEvent(why, message))

    def _keep(self, **fields: Any) -> None:
        self._status = self._status.model_copy(update=fields)

    def _recheck_at(self, at_ms: int) -> None:
        self._recheck_at_ms = at_ms if self._recheck_at_ms is None else min(self._recheck_at_ms, at_ms)
