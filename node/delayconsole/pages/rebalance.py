"""The rebalance: the load of each node as it is and as the plan would leave it, its moves, and its approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from delayapi.durations import instant_ms
from delayapi.units import DAY_MS, MINUTE_MS
from delayctl.cluster.wheel_nodes import BadPlan, SlotLoads, loads_of, peak_of, plan_moves
from delayctl.targets.errors import TargetRefused, TargetUnreachable
from delayctl.targets.rebalances import MOVING, READY, STOPPED, RebalanceOptions, RebalanceView
from numpy.typing import NDArray

from delayconsole.cluster_objects import in_rebalance
from delayconsole.cluster_wheels import cluster_wheels
from delayconsole.page import ActionPlan, ActionResult, ConsoleAction, ConsolePage, PageView

if TYPE_CHECKING:
    from delayctl.targets.rebalances import RebalanceTarget

SLOT_MS: Final = 5 * MINUTE_MS
SPAN_MS: Final = DAY_MS
PROPOSE_S: Final = 300.0
"""On one's own machine Spark starts in the console's process."""
CELLS: Final = 96
"""Of a strip: each shows the highest of its slots."""


async def show(view: PageView) -> Mapping[str, Any]:
    seen, problems = await _seen(view)
    plan = seen.plan if seen is not None else None
    pictures, found_problems = await _pictures(view, plan)
    return {
        "known": view.visitor.objects is not None,
        "seen": seen,
        "said": seen.said if seen is not None else ("", ""),
        "plan": plan,
        "moves": list((plan or {}).get("moves") or ()),
        "progress": seen.status.get("progress") if seen is not None else None,
        "moving": seen is not None and seen.state == MOVING,
        "expires_ms": _instant((plan or {}).get("expiresAt")),
        "expired": seen is not None and seen.expired() is not None,
        "problems": [*problems, *found_problems],
        "pictures": pictures,
        "cells": CELLS,
        "approve": APPROVE_PLAN,
        "stop": STOP,
        "propose": PROPOSE,
        "may_approve": seen is not None and seen.state in (READY, STOPPED) and bool(seen.hash),
        "may_stop": seen is not None and seen.state in (MOVING, "PendingProposal"),
        "may_propose": seen is None or seen.state != MOVING,
        "command": view.visitor.objects_command("rebalance", "--status"),
    }


async def _seen(view: PageView) -> tuple[RebalanceView | None, list[str]]:
    """What is proposed or under way, and why that is not known."""
    if view.visitor.objects is None:
        return None, []
    try:
        return await in_rebalance(view.visitor.objects, lambda at: at.read()), []
    except (TargetRefused, TargetUnreachable) as error:
        return None, [f"What is proposed is not known: {error}."]


async def _pictures(view: PageView, plan: Mapping[str, Any] | None) -> tuple[list[Mapping[str, Any]], list[str]]:
    """For each node its load of the coming day, now and then."""
    start = view.now_ms // SLOT_MS * SLOT_MS
    found = await cluster_wheels(view.visitor.admin, "", start, start + SPAN_MS, SLOT_MS)
    now = loads_of(found.wheels, (), start, start + SPAN_MS, SLOT_MS)
    problems, then = list(found.problems), None
    if plan is not None:
        try:
            then = now.moved(plan_moves(plan, "the plan"))
        except BadPlan as error:
            problems.append(f"What the plan would do can't be shown: {error}.")
    rows = [("now", now)] if then is None else [("now", now), ("then", then)]
    highest = max((peak_of(loads).messages for _, loads in rows), default=0.0)
    return [_picture(name, loads, highest) for name, loads in rows], problems


def _picture(name: str, loads: SlotLoads, highest: float) -> Mapping[str, Any]:
    by_node, peak = loads.by_node(loads.messages), peak_of(loads)
    return {
        "name": name,
        "peak": peak,
        "bound": loads.lower_bound(),
        "rows": [
            {
                "node": node,
                "due": float(by_node[row].sum()),
                "highest": float(by_node[row].max(initial=0.0)),
                "at_ms": int(loads.edges_ms[int(by_node[row].argmax())]) if by_node[row].any() else 0,
                "strip": strip(by_node[row], highest),
            }
            for row, node in enumerate(loads.nodes)
        ],
    }


def strip(slots: NDArray[np.float64], highest: float) -> Sequence[float]:
    """CELLS numbers of 0 to 1: the share of the highest load, each of so many slots its highest."""
    together = -(-max(1, len(slots)) // CELLS)
    padded = np.concatenate((slots, np.zeros(CELLS * together - len(slots))))
    shares = padded.reshape(CELLS, together).max(axis=1) / (highest or 1.0)
    return [round(float(it), 3) for it in shares]


def _instant(text: Any) -> int | None:
    try:
        return None if text is None else instant_ms(str(text))
    except ValueError:
        return None


async def _required(view: PageView) -> RebalanceView:
    found = await in_rebalance(view.visitor.objects, lambda at: at.read())
    if found is None:
        raise TargetRefused("nothing was proposed yet")
    return found


async def plan_approve(view: PageView) -> ActionPlan:
    wanted, seen = view.form.text("hash", max_chars=100), await _required(view)
    if seen.state not in (READY, STOPPED) or not seen.hash:
        raise TargetRefused(f"there is nothing to approve: the rebalance is {seen.state}")
    if wanted != seen.hash:
        raise TargetRefused(f"the plan is {seen.hash} by now, not {wanted!r}: look at it again")
    if over := seen.expired():
        raise TargetRefused(f"plan {seen.hash} expired at {over}: make another")
    moves = (seen.plan or {}).get("moves") or ()
    return ActionPlan(
        f"Carry out plan {seen.hash}: {len(moves):,} {'move' if len(moves) == 1 else 'moves'}?",
        len(moves),
        view.visitor.objects_command("rebalance", "--approve", seen.hash),
        (("To copy", f"{((seen.plan or {}).get('movedBytes') or 0) / (1 << 20):,.1f} MiB"),
         ("Meanwhile", "the shards are used; a master that moves hands over, a pause well under a second")),
        given=seen.hash,
    )  # fmt: skip


async def run_approve(view: PageView, plan: ActionPlan) -> ActionResult:
    from delayoperator.crds import APPROVE

    def asked(at: RebalanceTarget) -> str:
        at.annotate({APPROVE: plan.given})
        return at.carried_out_by

    who = await in_rebalance(view.visitor.objects, asked)
    return ActionResult(f"Plan {plan.given} is approved; {who} carries it out, and this page shows how far it is.")


async def plan_stop(view: PageView) -> ActionPlan:
    seen = await _required(view)
    if seen.state not in (MOVING, "PendingProposal"):
        raise TargetRefused(f"there is nothing to stop: the rebalance is {seen.state}")
    return ActionPlan(
        "Start no more moves of the plan?",
        1,
        view.visitor.objects_command("rebalance", "--stop"),
        (("Moves under way", "are finished"), ("The rest", "can be approved again later")),
    )


async def run_stop(view: PageView, plan: ActionPlan) -> ActionResult:
    from delayoperator.crds import VERB

    await in_rebalance(view.visitor.objects, lambda at: at.annotate({VERB: "stop"}))
    return ActionResult("No more moves begin once the request is taken up: within seconds.")


async def plan_propose(view: PageView) -> ActionPlan:
    seen = await in_rebalance(view.visitor.objects, lambda at: at.read())
    if seen is not None and seen.state == MOVING:
        raise TargetRefused("a plan is being carried out: stop it first, or wait for its end")
    return ActionPlan(
        "Look at the load to come, and propose the moves that spread it?",
        1,
        view.visitor.objects_command("rebalance"),
        (("How", "a Spark job reads the wheels; it takes up to a minute"),
         ("Nothing moves", "before the plan is approved")),
    )  # fmt: skip


async def run_propose(view: PageView, plan: ActionPlan) -> ActionResult:
    made, why = await in_rebalance(view.visitor.objects, lambda at: at.propose(RebalanceOptions()))
    if not made:
        return ActionResult(f"There is nothing to propose: {why or 'no move is worth its cost'}")
    return ActionResult("A plan is made, or on its way; the Rebalance page shows it.")


APPROVE_PLAN: Final = ConsoleAction("approve", "Approve", plan_approve, run_approve)
STOP: Final = ConsoleAction("stop", "Stop", plan_stop, run_stop)
PROPOSE: Final = ConsoleAction("propose", "Propose a plan", plan_propose, run_propose, PROPOSE_S)
PAGE: Final = ConsolePage(
    "rebalance", "Rebalance", "/rebalance", "rebalance.html", show, actions=(APPROVE_PLAN, STOP, PROPOSE)
)
