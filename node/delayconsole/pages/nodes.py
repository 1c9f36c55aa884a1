"""Nodes: clocks, disks, copies; emptied and used again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from delayctl.cluster.copies import all_copies
from delayctl.targets.errors import TargetRefused, TargetUnreachable

from delayconsole.cluster_objects import in_registry
from delayconsole.page import ActionPlan, ActionResult, BadInput, ConsoleAction, ConsolePage, PageView

if TYPE_CHECKING:
    from delayctl.targets.registry import RegistryEditor

COPIES_S: Final = 3.0


async def show(view: PageView) -> Mapping[str, Any]:
    admin = view.visitor.admin
    nodes, copies, routes = await asyncio.gather(admin.nodes(), all_copies(admin, COPIES_S), admin.topics())
    masters = Counter(queue.node for route in routes for queue in route.queues if queue.node)
    held = Counter(copy.node for shard in copies.values() for copy in shard.copies)
    drained, problems = await _drained(view)
    return {
        "rows": [
            {"node": it, "masters": masters[it.node], "copies": held[it.node], "drained": it.node in drained}
            for it in sorted(nodes, key=lambda it: (len(it.node), it.node))
        ],
        "problems": problems,
        "drain": DRAIN,
        "use": USE,
        "command": view.visitor.command("nodes", "list"),
    }


async def _drained(view: PageView) -> tuple[frozenset[str], list[str]]:
    """The nodes that are to be emptied, and why that is not known."""
    if view.visitor.objects is None:
        return frozenset(), []
    try:
        return frozenset(await in_registry(view.visitor.objects, lambda at: at.cluster().drained)), []
    except (TargetRefused, TargetUnreachable) as error:
        return frozenset(), [f"Which nodes are to be emptied is not known: {error}."]


async def plan_drain(view: PageView) -> ActionPlan:
    node = _named(view)

    def looked(at: RegistryEditor) -> tuple[int, int, bool]:
        from delayctl.targets.registry import drained_with

        spec, shards = at.cluster(), at.shards()
        drained_with(spec, node, undo=False)  # says so where the others could not hold all
        held = [shard for shard in shards if node in shard.spec.replicas]
        return len(held), sum(shard.spec.master == node for shard in held), node in spec.drained

    copies, masters, already = await in_registry(view.visitor.objects, looked)
    whose = f"Its {copies:,} copies move" if copies != 1 else "Its copy moves"
    return ActionPlan(
        f"Empty {node}? {whose} to the other nodes, and nothing new is placed there.",
        0 if already and not copies else 1,
        view.visitor.objects_command("nodes", "drain", node),
        (("Copies to move", f"{copies:,}"), ("Masters that hand over", f"{masters:,}")),
        given=node,
    )


async def run_drain(view: PageView, plan: ActionPlan) -> ActionResult:
    await in_registry(view.visitor.objects, lambda at: at.drain(plan.given, undo=False))
    return ActionResult(f"{plan.given} is being emptied; this page and Shards show how far it is.")


async def plan_use(view: PageView) -> ActionPlan:
    node = _named(view)
    drained = await in_registry(view.visitor.objects, lambda at: at.cluster().drained)
    return ActionPlan(
        f"Use {node} again? It may get copies from now on.",
        1 if node in drained else 0,
        view.visitor.objects_command("nodes", "drain", node, "--undo"),
        given=node,
    )


async def run_use(view: PageView, plan: ActionPlan) -> ActionResult:
    await in_registry(view.visitor.objects, lambda at: at.drain(plan.given, undo=True))
    return ActionResult(f"{plan.given} may be used again.")


def _named(view: PageView) -> str:
    node = view.form.text("node", max_chars=100)
    if not node:
        raise BadInput("the form names no node")
    return node


DRAIN: Final = ConsoleAction("drain", "Drain", plan_drain, run_drain)
USE: Final = ConsoleAction("use", "Use again", plan_use, run_use)
PAGE: Final = ConsolePage("nodes", "Nodes", "/nodes", "nodes.html", show, actions=(DRAIN, USE))
