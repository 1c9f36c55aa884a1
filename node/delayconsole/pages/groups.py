"""Consumer groups: how far each is, its lag and its oldest message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from delayclient.errors import NotFound

from delayconsole.cluster_groups import cluster_groups
from delayconsole.page import ActionPlan, ActionResult, ConsoleAction, ConsolePage, PageView
from delayconsole.topic_choice import chosen_routes

MOST_QUEUES: Final = 256
"""Of all topics together: with more, one topic is looked at at a time."""


async def show(view: PageView) -> Mapping[str, Any]:
    choice = await chosen_routes(view, MOST_QUEUES)
    found = await cluster_groups(view.visitor.admin, choice.routes)
    return {
        "found": found,
        "choice": choice,
        "delete": DELETE,
        "command": view.visitor.command("groups", "list", choice.topic or "TOPIC"),
    }


async def show_one(view: PageView) -> Mapping[str, Any]:
    topic, group = view.query.text("topic"), view.query.text("group")
    routes = [await view.visitor.admin.route(topic)]
    found = await cluster_groups(view.visitor.admin, routes)
    one = next((it for it in found.groups if it.group == group), None)
    if one is None and not found.problems:
        raise NotFound(f"topic {topic!r} has no group {group!r}", code="NOT_FOUND", reason="UNKNOWN_GROUP")
    return {
        "topic": topic,
        "group": group,
        "one": one,
        "problems": found.problems,
        "delete": DELETE,
        "command": view.visitor.command("groups", "describe", topic, "--group", group),
    }


async def plan_delete(view: PageView) -> ActionPlan:
    topic, group = view.form.text("topic"), view.form.text("group")
    states = await view.visitor.admin.describe_group(topic, group)
    lag, dead = sum(it.lag for it in states), sum(it.dead for it in states)
    return ActionPlan(
        f"Delete the group {group} of {topic} on {len(states):,} queues, with its progress and its dead letters?",
        len(states),
        view.visitor.command("groups", "delete", topic, "--group", group),
        (("Released and not done", f"{lag:,}"), ("Dead letters", f"{dead:,}"),
         ("Its consumers", "stop them first: one that goes on receiving makes the group anew")),
        dangerous=True,
        given=(topic, group),
    )  # fmt: skip


async def run_delete(view: PageView, plan: ActionPlan) -> ActionResult:
    topic, group = plan.given
    gone = await view.visitor.admin.delete_group(topic, group)
    return ActionResult(
        f"The group {group} of {topic} is deleted on {gone.queues:,} queues.",
        (("It was not done with", f"{gone.unfinished:,} messages"), ("Dead letters", f"{gone.dead:,}")),
    )


DELETE: Final = ConsoleAction("delete", "Delete the group", plan_delete, run_delete)
ONE: Final = ConsolePage("group", "Group", "/groups/one", "group.html", show_one, actions=(DELETE,))
PAGE: Final = ConsolePage("groups", "Groups", "/groups", "groups.html", show, more=(ONE,))
