"""Shards and their copies: who leads, who is in sync, how far each is; switchovers and moves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from delayclient.admin.views import Wheel
from delayclient.errors import NotFound
from delayclient.routing.route_table import QueueRoute
from delayctl.cluster.copies import ReplicaRow, ShardCopies, all_copies, remark

from delayconsole.cluster_objects import in_registry
from delayconsole.cluster_wheels import cluster_wheels
from delayconsole.page import ActionPlan, ActionResult, BadInput, ConsoleAction, ConsolePage, PageView
from delayconsole.topic_choice import chosen_routes

if TYPE_CHECKING:
    from delayctl.targets.registry import RegistryEditor

COPIES_S: Final = 3.0
PAGE_ROWS: Final = 200
TAKEN_OVER_S: Final = 15.0
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ShardRow:
    """copies: as the nodes that answer say. wheel: None: its master has not answered."""

    topic: str
    route: QueueRoute
    copies: ShardCopies
    wheel: Wheel | None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.route.queue}"

    @property
    def slaves(self) -> list[ReplicaRow]:
        return [it for it in self.copies.copies if it.node != self.route.node]

    @property
    def lag_bytes(self) -> int | None:
        """Of the slave that is furthest behind."""
        lags = [self.copies.lag_bytes(it) for it in self.slaves if it.role == "slave"]
        return max((lag for lag in lags if lag is not None), default=None)

    @property
    def remarks(self) -> list[str]:
        return [text for copy in self.copies.copies if (text := remark(copy))]


async def _rows(view: PageView, topic: str) -> tuple[list[ShardRow], tuple[str, ...]]:
    """Of one topic, or of all."""
    admin = view.visitor.admin
    routes, copies, wheels = await asyncio.gather(
        admin.topics(), all_copies(admin, COPIES_S), cluster_wheels(admin, topic, 1, 2)
    )
    by_shard = {(it.topic, it.queue): it for it in wheels.wheels}
    found = [
        ShardRow(route.topic, queue, copies.get(queue.uid, ShardCopies()), by_shard.get((route.topic, queue.queue)))
        for route in sorted(routes, key=lambda route: route.topic)
        for queue in route.queues
        if topic in ("", route.topic)
    ]
    return found, wheels.problems


async def show(view: PageView) -> Mapping[str, Any]:
    choice = await chosen_routes(view, 1 << 30)
    rows, problems = await _rows(view, choice.topic)
    node = view.query.text("node", max_chars=100)
    if node:
        rows = [it for it in rows if node == it.route.node or any(copy.node == node for copy in it.copies.copies)]
    first = view.query.number("first", 0, 0, 1_000_000)
    return {
        "choice": choice,
        "node": node,
        "rows": rows[first : first + PAGE_ROWS],
        "first": first,
        "total": len(rows),
        "page_rows": PAGE_ROWS,
        "problems": problems,
        "leaderless": sum(not it.route.endpoint for it in rows),
        "command": view.visitor.command("shards", "list", *([choice.topic] if choice.topic else [])),
    }


async def show_one(view: PageView) -> Mapping[str, Any]:
    name = view.query.text("shard", max_chars=100)
    row, problems = await _found(view, name)
    admin = view.visitor.admin
    nodes = [it.node for it in await admin.nodes() if not it.problem]
    holders = [it.node for it in row.copies.copies]
    in_sync = row.copies.in_sync or ()
    return {
        "row": row,
        "remark": remark,
        "problems": problems,
        "in_sync": in_sync,
        "may_lead": [it for it in in_sync if it != row.route.node],
        "may_get": sorted((it for it in nodes if it not in holders), key=lambda it: (len(it), it)),
        "holders": holders,
        "switchover": SWITCHOVER,
        "move": MOVE,
        "command": view.visitor.command("shards", "list", row.topic),
    }


async def _found(view: PageView, name: str) -> tuple[ShardRow, tuple[str, ...]]:
    rows, problems = await _rows(view, name.rpartition("-")[0])
    row = next((it for it in rows if it.name == name), None)
    if row is None:
        raise NotFound(f"there is no shard {name!r} that you may see", code="NOT_FOUND", reason="UNKNOWN_SHARD")
    return row, problems


def _named(view: PageView) -> str:
    shard = view.form.text("shard", max_chars=100)
    if not shard:
        raise BadInput("the form names no shard")
    return shard


async def plan_switchover(view: PageView) -> ActionPlan:
    shard, to = _named(view), view.form.text("to", max_chars=100)
    if not to:
        raise BadInput("the form says not who is to lead: to is missing")
    master = await in_registry(view.visitor.objects, lambda at: at.shard(shard).spec.master)
    return ActionPlan(
        f"Let {to} lead {shard} in place of {master or 'nobody'}?",
        0 if master == to else 1,
        view.visitor.objects_command("shards", "switchover", shard, "--to", to),
        (("Clients", "wait for a moment; nothing is lost"),),
        given=(shard, to),
    )


async def run_switchover(view: PageView, plan: ActionPlan) -> ActionResult:
    shard, to = plan.given
    objects = view.visitor.objects
    former, chosen = await in_registry(objects, lambda at: at.switchover(shard, to))
    until_s = asyncio.get_running_loop().time() + TAKEN_OVER_S
    while asyncio.get_running_loop().time() < until_s:
        if await in_registry(objects, lambda at: _leads(at, shard, chosen)):
            return ActionResult(f"{chosen} has taken {shard} over from {former}.")
        await asyncio.sleep(LOOK_S)
    await in_registry(objects, lambda at: at.cancel_switchover(shard, chosen))
    return ActionResult(f"{chosen} has not taken {shard} over within {TAKEN_OVER_S:g} s; it is withdrawn.", failed=True)


def _leads(at: RegistryEditor, name: str, node: str) -> bool:
    shard = at.shard(name)
    return shard.spec.master == node and shard.status is not None and shard.status.serving_epoch == shard.spec.epoch


async def plan_move(view: PageView) -> ActionPlan:
    shard, to, origin = _named(view), view.form.text("to", max_chars=100), view.form.text("from", max_chars=100)
    if not to or not origin:
        raise BadInput("a move needs the copy that goes and the node that gets it: from and to")
    row, _ = await _found(view, shard)
    spec = await in_registry(view.visitor.objects, lambda at: at.shard(shard).spec)
    takes_over = origin == spec.master
    details = [("Copies now", ", ".join(spec.replicas)), ("Leads now", spec.master or "nobody")]
    if takes_over:
        details.append(("The master moves", f"{to} takes over once it is in sync: a pause well under a second"))
    if row.wheel is not None:
        details.append(("Pending in it", f"{row.wheel.pending:,} messages, {row.wheel.pending_bytes:,} bytes"))
    return ActionPlan(
        f"Move the copy of {shard} on {origin} to {to}?",
        1,
        view.visitor.objects_command("shards", "move", shard, "--from", origin, "--to", to),
        details,
        given=(shard, to, origin),
    )


async def run_move(view: PageView, plan: ActionPlan) -> ActionResult:
    shard, to, origin = plan.given
    target = await in_registry(view.visitor.objects, lambda at: at.move(shard, to, origin))
    return ActionResult(
        f"{shard} is to have its copies on {', '.join(target)}; its page shows how far it is.",
        (("Meanwhile", "the shard goes on; the old copy goes once the new one is in sync"),),
    )


SWITCHOVER: Final = ConsoleAction("switchover", "Switch over", plan_switchover, run_switchover)
MOVE: Final = ConsoleAction("move", "Move", plan_move, run_move)
ONE: Final = ConsolePage("shard", "Shard", "/shards/one", "shard.html", show_one, actions=(SWITCHOVER, MOVE))
PAGE: Final = ConsolePage("shards", "Shards", "/shards", "shards.html", show, more=(ONE,))
