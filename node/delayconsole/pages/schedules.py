"""Schedules of a topic: when they come next, what they did last, and pausing, triggering and backfilling them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from delayapi.durations import format_instant, format_ms
from delayclient.admin.schedules import ScheduleView

from delayconsole.page import ActionPlan, ActionResult, BadInput, ConsoleAction, ConsolePage, PageView
from delayconsole.pages.dead_letters import preview
from delayconsole.topic_choice import chosen_routes

MOST: Final = 200
BACKFILLED: Final = 1_000
"""The most times of one backfill; the node refuses more."""


async def show(view: PageView) -> Mapping[str, Any]:
    choice = await chosen_routes(view, 0)
    prefix = view.query.text("prefix", max_chars=200)
    found: list[ScheduleView] = []
    more = False
    if choice.topic:
        async for one in view.visitor.admin.schedules.each(choice.topic, prefix):
            if len(found) == MOST:
                more = True
                break
            found.append(one)
    return {
        "choice": choice,
        "prefix": prefix,
        "found": [{"view": it, "when": when(it), "state": state_of(it)} for it in found],
        "more": more,
        "command": view.visitor.command("schedules", "list", choice.topic or "TOPIC"),
    }


async def show_one(view: PageView) -> Mapping[str, Any]:
    topic, id_ = view.query.text("topic"), view.query.text("id")
    one = await view.visitor.admin.schedules.get(topic, id_)
    body = one.schedule.body
    return {
        "topic": topic,
        "one": one,
        "when": when(one),
        "state": state_of(one),
        "preview": preview(body if isinstance(body, bytes) else body.encode()),
        "actions": {action.name: action for action in ONE.actions},
        "command": view.visitor.command("schedules", "show", topic, id_),
    }


def when(view: ScheduleView) -> str:
    schedule = view.schedule
    if schedule.cron:
        return f"{', '.join(schedule.cron)} ({schedule.zone or 'UTC'})"
    if schedule.every is not None:
        return f"every {format_ms(int(schedule.every))}"  # type: ignore[arg-type]  # ms, as a node has it
    return f"{len(schedule.at):,} instants"


def state_of(view: ScheduleView) -> str:
    if view.paused:
        return "paused"
    return "over" if view.over or view.next_due_ms is None else "armed"


def _named(view: PageView) -> tuple[str, str]:
    topic, id_ = view.form.text("topic"), view.form.text("id")
    if not topic or not id_:
        raise BadInput("the form names no schedule: topic and id are missing")
    return topic, id_


async def plan_pause(view: PageView) -> ActionPlan:
    topic, id_ = _named(view)
    one = await view.visitor.admin.schedules.get(topic, id_)
    note = view.form.text("note", max_chars=500)
    following = format_instant(one.next_due_ms) if one.next_due_ms else "none"
    return ActionPlan(
        f"Pause the schedule {id_} of {topic}?",
        0 if one.paused else 1,
        view.visitor.command("schedules", "pause", topic, id_, *(("--note", note) if note else ())),
        (("Would fire next", following), ("While it is paused", "times that pass never fire")),
        given=(topic, id_, note),
    )


async def run_pause(view: PageView, plan: ActionPlan) -> ActionResult:
    topic, id_, note = plan.given
    await view.visitor.admin.schedules.pause(topic, id_, note)
    return ActionResult(f"The schedule {id_} of {topic} is paused.")


async def plan_resume(view: PageView) -> ActionPlan:
    topic, id_ = _named(view)
    one = await view.visitor.admin.schedules.get(topic, id_)
    return ActionPlan(
        f"Resume the schedule {id_} of {topic}?",
        1 if one.paused else 0,
        view.visitor.command("schedules", "resume", topic, id_),
        (("Paused", one.note or "without a note"),),
        given=(topic, id_),
    )


async def run_resume(view: PageView, plan: ActionPlan) -> ActionResult:
    one = await view.visitor.admin.schedules.resume(*plan.given)
    following = format_instant(one.next_due_ms) if one.next_due_ms else "never: it is over"
    return ActionResult(f"The schedule {one.schedule.id} fires again.", (("Next", following),))


async def plan_trigger(view: PageView) -> ActionPlan:
    topic, id_ = _named(view)
    await view.visitor.admin.schedules.get(topic, id_)
    return ActionPlan(
        f"Fire the schedule {id_} of {topic} once, now?",
        1,
        view.visitor.command("schedules", "trigger", topic, id_),
        (("What comes next", "stays as it is"),),
        given=(topic, id_),
    )


async def run_trigger(view: PageView, plan: ActionPlan) -> ActionResult:
    fired = await view.visitor.admin.schedules.trigger(*plan.given)
    return ActionResult(f"The schedule {plan.given[1]} has fired.", (("Firing", f"number {fired.number:,}"),))


async def plan_backfill(view: PageView) -> ActionPlan:
    topic, id_ = _named(view)
    from_ms, to_ms = view.form.instant("from"), view.form.instant("to")
    if from_ms is None or to_ms is None or from_ms >= to_ms:
        raise BadInput("a backfill needs from, and a later to: instants such as 2026-11-27T09:00:00Z")
    await view.visitor.admin.schedules.get(topic, id_)
    return ActionPlan(
        f"Fire the times of {id_} from {format_instant(from_ms)} until before {format_instant(to_ms)} again, now?",
        1,
        view.visitor.command(
            "schedules", "backfill", topic, id_, "--from", format_instant(from_ms), "--to", format_instant(to_ms)
        ),
        (("Each of them fires", "whether it has fired before or not"), ("At most", f"{BACKFILLED:,} times")),
        given=(topic, id_, from_ms, to_ms),
    )


async def run_backfill(view: PageView, plan: ActionPlan) -> ActionResult:
    fired = await view.visitor.admin.schedules.backfill(*plan.given)
    return ActionResult(f"{len(fired):,} times of {plan.given[1]} were fired.", failed=not fired)


async def plan_delete(view: PageView) -> ActionPlan:
    topic, id_ = _named(view)
    one = await view.visitor.admin.schedules.get(topic, id_)
    return ActionPlan(
        f"Delete the schedule {id_} of {topic}?",
        1,
        view.visitor.command("schedules", "delete", topic, id_, "--yes"),
        (("Has fired", f"{one.fired:,} times; these messages stay"),),
        dangerous=True,
        given=(topic, id_),
    )


async def run_delete(view: PageView, plan: ActionPlan) -> ActionResult:
    gone = await view.visitor.admin.schedules.delete(*plan.given)
    topic, id_ = plan.given
    return ActionResult(f"The schedule {id_} of {topic} is deleted." if gone else f"{topic} has no schedule {id_}.")


ONE: Final = ConsolePage(
    "schedule", "Schedule", "/schedules/one", "schedule.html", show_one,
    actions=(
        ConsoleAction("pause", "Pause", plan_pause, run_pause),
        ConsoleAction("resume", "Resume", plan_resume, run_resume),
        ConsoleAction("trigger", "Trigger", plan_trigger, run_trigger),
        ConsoleAction("backfill", "Backfill", plan_backfill, run_backfill),
        ConsoleAction("delete", "Delete", plan_delete, run_delete),
    ),
)  # fmt: skip
PAGE: Final = ConsolePage("schedules", "Schedules", "/schedules", "schedules.html", show, more=(ONE,))
