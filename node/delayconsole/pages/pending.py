"""Pending messages: by time, topic and key; one of them with its body; cancel, move, fire now."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from delayapi.durations import format_instant, format_ms, parse_duration_ms, parse_instant_ms
from delayapi.handle import Handle
from delayapi.proto.delay.v1 import delay_pb2
from delayclient.admin.admin import Admin
from delayclient.admin.views import Outcome, Pending
from delayclient.errors import NotFound

from delayconsole.body import BodyText, body_text
from delayconsole.page import ActionPlan, ActionResult, BadInput, ConsoleAction, ConsolePage, PageView
from delayconsole.pending_list import ListCursor, pending_list, queues_of_key
from delayconsole.render import instant

ROWS: Final = 50
MAX_ROWS: Final = 500
MAX_HANDLES: Final = MAX_ROWS
SHOWN_HANDLES: Final = 20
MAX_OF_KEY: Final = 10_000
"""So many messages of a key are counted and cancelled at once."""
SAID: Final = {
    Outcome.CANCELLED: "cancelled",
    Outcome.MOVED: "moved",
    Outcome.TOO_LATE: "too late, already delivered or on its way",
    Outcome.ALREADY_CANCELLED: "had been cancelled before",
    Outcome.RESCHEDULED: "had been given another time, and has another handle",
    Outcome.NOT_FOUND: "not found",
}


async def show(view: PageView) -> Mapping[str, Any]:
    query, admin = view.query, view.visitor.admin
    topic, key = query.text("topic"), query.text("key", max_chars=1_024)
    from_ms, to_ms = query.instant("from"), query.instant("to")
    limit = query.number("rows", ROWS, 1, MAX_ROWS)
    topics = sorted(await admin.topics(), key=lambda route: route.topic)
    context = {
        "topics": [route.topic for route in topics],
        "topic": topic,
        "key": key,
        "from_text": query.text("from"),
        "to_text": query.text("to"),
        "queue_text": query.text("queue"),
        "limit": limit,
        "actions": ACTIONS,
        "cancel_key": CANCEL_KEY,
        "found": None,
    }
    if not topic:
        return context
    route = next((route for route in topics if route.topic == topic), None)
    if route is None:
        raise BadInput(f"there is no topic {topic!r} that you may see")
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise BadInput(f"to ({format_instant(to_ms)}) is not later than from ({format_instant(from_ms)})")
    queues = [queue.queue for queue in route.queues]
    if query.text("queue"):
        queues = [query.number("queue", 0, 0, len(queues) - 1)]
    found = await pending_list(admin, topic, queues, from_ms or 0, to_ms or 0, key, _cursor(view), limit)
    return {**context, "found": found, "next": _next(view, found.next), "command": _command(view, topic)}


def _cursor(view: PageView) -> ListCursor:
    text = view.query.text("after")
    if not text:
        return ListCursor()
    parts = re.fullmatch(r"(\d{1,18})\.(\d{1,6})\.(\d{1,18})", text, re.ASCII)
    if parts is None:
        raise BadInput(f"after is {text[:40]!r}; expected due.queue.seq, as in the link to the next page")
    return ListCursor(*map(int, parts.groups()))


def _next(view: PageView, cursor: ListCursor | None) -> str:
    if cursor is None:
        return ""
    kept = [(name, text) for name, text in view.query.items() if name != "after" and text]
    return f"{PAGE.path}?{urlencode([*kept, ('after', f'{cursor.due_ms}.{cursor.queue}.{cursor.seq}')])}"


def _command(view: PageView, topic: str) -> str:
    words = ["pending", topic]
    for name in ("queue", "from", "to", "key"):
        if text := view.query.text(name):
            words += [f"--{name}", text]
    return view.visitor.command(*words)


# ---------------------------------------------------------------------------------------------- one message


async def find(admin: Admin, text: str) -> Pending:
    """The message with this handle, with its record. Raises BadHandle; NotFound where it is not pending."""
    handle = Handle.decode(text)
    page = await admin.pending_page(
        handle.topic, handle.queue, handle.due_ms, handle.due_ms + 1, after=(handle.due_ms, handle.seq - 1),
        with_records=True, limit=1,
    )  # fmt: skip
    for row in page.rows:
        if (row.uid, row.due_ms, row.seq) == (handle.uid, handle.due_ms, handle.seq):
            return row
    raise NotFound(
        f"no such message is pending: it has been delivered, cancelled or given another time since ({text[:80]})",
        code="NOT_FOUND",
        reason="NOT_PENDING",
    )


async def show_message(view: PageView) -> Mapping[str, Any]:
    row = await find(view.visitor.admin, view.query.text("handle"))
    message: delay_pb2.Message = row.shown()
    body: BodyText = body_text(message.body)
    return {
        "row": row,
        "message": message,
        "properties": sorted(message.properties.items()),
        "body": body,
        "actions": ACTIONS,
        "command": view.visitor.command(
            "pending", row.topic, "--queue", str(row.queue), "--from", format_instant(row.due_ms),
            "--to", format_instant(row.due_ms + 1), "--bodies",
        ),
    }  # fmt: skip


async def send_body(view: PageView) -> web.Response:
    """The bytes as a file: a browser must not take them for a page."""
    row = await find(view.visitor.admin, view.query.text("handle"))
    name = f"{row.topic}-{row.queue}-{row.seq}.bin".replace('"', "_")
    return web.Response(
        body=row.shown().body,
        content_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


# ------------------------------------------------------------------------------------------------- actions


def chosen(view: PageView) -> list[Handle]:
    """The handles of the form. Raises BadInput, BadHandle."""
    texts = view.form.texts("handle", MAX_HANDLES)
    if not texts:
        raise BadInput("no message was chosen: tick some first")
    return [Handle.decode(text) for text in dict.fromkeys(texts)]


def counted(handles: Sequence[Handle]) -> str:
    topics = sorted({handle.topic for handle in handles})
    return f"{len(handles):,} {'message' if len(handles) == 1 else 'messages'} of {', '.join(topics)}"


def _times(handles: Sequence[Handle]) -> list[tuple[str, str]]:
    dues = [handle.due_ms for handle in handles]
    if len(dues) == 1:
        return [("Due", instant(dues[0]))]
    return [("First due", instant(min(dues))), ("Last due", instant(max(dues)))]


def _result(outcomes: Sequence[Outcome], wanted: Outcome, new_handles: Sequence[str] = ()) -> ActionResult:
    done = sum(outcome is wanted for outcome in outcomes)
    summary = f"{done:,} of {len(outcomes):,} {SAID[wanted]}."
    rows = [(SAID[outcome], f"{number:,}") for outcome, number in Counter(outcomes).items() if outcome is not wanted]
    rows += [("New handle", handle) for handle in new_handles[:SHOWN_HANDLES]]
    return ActionResult(summary, rows, failed=done < len(outcomes))


async def plan_cancel(view: PageView) -> ActionPlan:
    handles = chosen(view)
    return ActionPlan(
        f"Cancel {counted(handles)}? They are never delivered then.",
        len(handles),
        view.visitor.command("cancel", *(handle.encode() for handle in handles)),
        _times(handles),
        dangerous=True,
        given=handles,
    )


async def run_cancel(view: PageView, plan: ActionPlan) -> ActionResult:
    return _result(await view.visitor.admin.cancel(plan.given), Outcome.CANCELLED)


async def plan_fire(view: PageView) -> ActionPlan:
    handles = chosen(view)
    return ActionPlan(
        f"Deliver {counted(handles)} now?",
        len(handles),
        view.visitor.command("reschedule", "--delay", "0s", *(handle.encode() for handle in handles)),
        _times(handles),
        dangerous=True,
        given=handles,
    )


async def run_fire(view: PageView, plan: ActionPlan) -> ActionResult:
    return await _moved(view, plan.given, {"delay": 0})


async def plan_move(view: PageView) -> ActionPlan:
    handles, text = chosen(view), view.form.text("when", max_chars=100)
    option, value, said = new_time(text, view.now_ms)
    return ActionPlan(
        f"Move {counted(handles)} to {said}?",
        len(handles),
        view.visitor.command("reschedule", f"--{option}", text, *(handle.encode() for handle in handles)),
        [*_times(handles), ("New time", said)],
        given=(handles, {option: value}),
    )


async def run_move(view: PageView, plan: ActionPlan) -> ActionResult:
    handles, when = plan.given
    return await _moved(view, handles, when)


async def _moved(view: PageView, handles: Sequence[Handle], when: Mapping[str, int]) -> ActionResult:
    found = await view.visitor.admin.reschedule(handles, **when)
    return _result([it.outcome for it in found], Outcome.MOVED, [it.handle for it in found if it.handle])


def new_time(text: str, now_ms: int) -> tuple[str, int, str]:
    """Of reschedule: `at` or `delay`, its value, and the same for people. Raises BadInput."""
    if not text:
        raise BadInput("when is empty: expected a time such as 2026-12-24T18:00:00Z, or a duration from now, as 2h30m")
    try:
        delay_ms = parse_duration_ms(text)
        return "delay", delay_ms, f"{format_ms(delay_ms)} from now, {format_instant(now_ms + delay_ms)}"
    except ValueError:
        pass
    try:
        at_ms = parse_instant_ms(text)
    except ValueError:
        raise BadInput(
            f"when is {text[:60]!r}: expected a time such as 2026-12-24T18:00:00Z, or a duration from now, as 2h30m"
        ) from None
    if at_ms < 0:
        raise BadInput(f"when: {text!r} is before 1970")
    return "at", at_ms, format_instant(at_ms)


async def plan_cancel_key(view: PageView) -> ActionPlan:
    topic, key = view.form.text("topic"), view.form.text("key", max_chars=1_024)
    if not topic or not key:
        raise BadInput("give a topic and a key")
    from_ms, to_ms = view.form.instant("from"), view.form.instant("to")
    route = await view.visitor.admin.route(topic)
    number = 0
    for queue in queues_of_key(key, [it.queue for it in route.queues]):
        after, more = (0, 0), True
        while more and number <= MAX_OF_KEY:
            page = await view.visitor.admin.pending_page(topic, queue, from_ms or 0, to_ms or 0, after=after, key=key)
            number, after, more = number + len(page.rows), page.last, page.more
    if number > MAX_OF_KEY:
        raise BadInput(f"more than {MAX_OF_KEY:,} messages have the key {key!r}: give a shorter time, or use delayctl")
    words = ["cancel", "--topic", topic, "--key", key]
    for name, ms in (("--from", from_ms), ("--to", to_ms)):
        words += [] if ms is None else [name, format_instant(ms)]
    return ActionPlan(
        f"Cancel all {number:,} messages of {topic} with the key {key}? They are never delivered then.",
        number,
        view.visitor.command(*words),
        dangerous=True,
        given=(topic, key, from_ms or 0, (1 << 63) - 1 if to_ms is None else to_ms),
    )


async def run_cancel_key(view: PageView, plan: ActionPlan) -> ActionResult:
    found = await view.visitor.admin.cancel_by_key(*plan.given)
    return _result([it.outcome for it in found], Outcome.CANCELLED)


ACTIONS: Final = (
    ConsoleAction("fire", "Fire now", plan_fire, run_fire),
    ConsoleAction("move", "Move", plan_move, run_move),
    ConsoleAction("cancel", "Cancel", plan_cancel, run_cancel),
)
CANCEL_KEY: Final = ConsoleAction("cancel-key", "Cancel all with this key", plan_cancel_key, run_cancel_key)
MESSAGE: Final = ConsolePage("message", "Message", "/pending/message", "message.html", show_message)
BODY: Final = ConsolePage("body", "Body", "/pending/body", "message.html", send_body)
PAGE: Final = ConsolePage(
    "pending", "Pending", "/pending", "pending.html", show, (*ACTIONS, CANCEL_KEY), (MESSAGE, BODY)
)
