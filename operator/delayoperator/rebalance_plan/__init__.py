"""Carrying out a DelayRebalance: a pure state machine, without I/O or clock. What a driver does with it, each round:

    from delayoperator.rebalance_plan import Asked, Job, World, step

    asked = Asked(spec, generation, approve, verb)   # DelayRebalanceSpec; the two annotations, None where there is none
    world = World(cluster_spec, {it.name: it for it in registry.list_shards()}, control_loop.nodes, ...)
    outcome = step(asked, status, world, now_ms)     # status: DelayRebalanceStatus as kept; None: a new one
    if outcome.status != status:
        keep(outcome.status)                         # 1. first, and on condition that nobody changed it meanwhile
    for edit in outcome.edits:                       # 2. as `delayctl shards move` does; a Conflict is left to the next
        registry.write_spec(edit.shard.name, edit.spec, edit.shard.version)   # round, which asks for it again
    remove(outcome.consumed)                         # 3. the verbs that were answered: "approve", "verb"
    for said in outcome.said: ...                    # 4. events: said.reason (a stable word), .message, .warning
    if outcome.wants_job: ...                        # 5. let the job propose (once for each status.requested_at), and
                                                     #    tell in World.job how it is; its plan comes in status.plan
    # again when a shard, the spec or a verb has changed, at outcome.look_again_ms at the latest

The status alone says how far everything is: a driver may die between any two of these and begin anew. A plan that is
there already, from the job: DelayRebalanceStatus(plan=plan), with `plan.hash` = digest(plan).

The rest is the planner's: an edit sets a shard's `target` (or `switchover`), and the moves go on by themselves.
"""

from delayoperator.rebalance_plan.plans import digest, made_for
from delayoperator.rebalance_plan.states import step
from delayoperator.rebalance_plan.step_values import (
    Edit,
    Job,
    JobState,
    LoadForecast,
    RebalanceEvent,
    RebalanceRequest,
    Size,
    StepOutcome,
    Why,
    World,
)
from delayoperator.rebalance_plan.times import instant, text_of

__all__ = [
    "Edit",
    "Job",
    "JobState",
    "LoadForecast",
    "RebalanceEvent",
    "RebalanceRequest",
    "Size",
    "StepOutcome",
    "Why",
    "World",
    "digest",
    "instant",
    "made_for",
    "step",
    "text_of",
]
