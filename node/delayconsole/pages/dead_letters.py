"""Dead letters: messages of a group whose attempts are used up. Looked at, put back to work, or given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from delayapi.codec import decode_message_batch
from delayapi.proto.delay.v1 import delay_pb2
from delayclient.admin.admin import Admin
from delayclient.consumer.received import NoAcks, ReceivedBatch, ReceivedMessage
from delayclient.errors import NotFound

from delayconsole.cluster_groups import cluster_groups
from delayconsole.page import ActionPlan, ActionResult, BadInput, ConsoleAction, ConsolePage, PageView
from delayconsole.topic_choice import chosen_routes

PAGE_ROWS: Final = 100
MOST_QUEUES: Final = 256
PREVIEW_CHARS: Final = 200
HEX_BYTES: Final = 32
_NO_ACKS: Final = NoAcks("a dead letter cannot be acknowledged: redrive or drop it")


async def show(view: PageView) -> Mapping[str, Any]:
    choice = await chosen_routes(view, MOST_QUEUES)
    found = await cluster_groups(view.visitor.admin, choice.routes)
    return {
        "choice": choice,
        "problems": found.problems,
        "groups": [it for it in found.groups if it.total("dead") or it.total("redriven")],
        "command": view.visitor.command("groups", "list", choice.topic or "TOPIC"),
    }


async def show_group(view: PageView) -> Mapping[str, Any]:
    topic, group = view.query.text("topic"), view.query.text("group")
    states = await view.visitor.admin.describe_group(topic, group)
    at = _place(view.query.text("after")) if view.query.text("after") else (0, -1)
    rows, following = await _page(view.visitor.admin, topic, group, [it.queue for it in states], at)
    return {
        "topic": topic,
        "group": group,
        "dead": sum(it.dead for it in states),
        "redriven": sum(it.redriven for it in states),
        "full": [it for it in states if it.dead_full],
        "rows": [
            {
                "message": it,
                "record": record,
                "place": f"{it.queue}:{it.offset}",
                "preview": preview(record.body),
                "size": len(record.body),
            }
            for it, record in ((it, it.shown()) for it in rows)
        ],
        "first": at == (0, -1),
        "following": following,
        "redrive": REDRIVE,
        "drop": DROP,
        "command": view.visitor.command("dlq", "list", topic, "--group", group),
    }


def preview(body: bytes) -> str:
    """Its beginning: as text, or in hexadecimal where it is none."""
    if is_text(body):
        text = body[: 4 * PREVIEW_CHARS].decode("utf-8", "ignore")
        return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"
    return body[:HEX_BYTES].hex(" ") + (" …" if len(body) > HEX_BYTES else "")


def is_text(body: bytes) -> bool:
    """As far as it is shown. A character that the end of what is looked at cuts through does not count."""
    start = body[: 4 * PREVIEW_CHARS]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if len(start) == len(body) or error.start < len(start) - 3:
            return False
        text = start[: error.start].decode()
    return all(it.isprintable() or it in "\r\n\t" for it in text)


async def _page(
    admin: Admin, topic: str, group: str, queues: Sequence[int], after: tuple[int, int]
) -> tuple[list[ReceivedMessage], str]:
    """As many as are shown, queue by queue, and what the next page begins after; "": there is no more."""
    found: list[ReceivedMessage] = []
    for queue in sorted(queues):
        if queue < after[0]:
            continue
        offset = after[1] if queue == after[0] else -1
        request = delay_pb2.ListDeadLettersRequest(
            topic=topic, queue=queue, group=group, after_offset=offset, limit=PAGE_ROWS + 1 - len(found)
        )
        try:
            view = await admin.cluster.call(
                "ListDeadLetters", topic, queue, request, decode_message_batch, timeout_s=5.0
            )
        except NotFound as error:
            if error.reason != "UNKNOWN_GROUP":
                raise
            continue
        found += list(ReceivedBatch(topic, queue, view, 0, _NO_ACKS))
        if len(found) > PAGE_ROWS:
            last = found[PAGE_ROWS - 1]
            return found[:PAGE_ROWS], f"{last.queue}:{last.offset}"
    return found, ""


def _place(text: str) -> tuple[int, int]:
    """QUEUE:OFFSET. Raises BadInput."""
    queue, _, offset = text.partition(":")
    if not (queue.isascii() and queue.isdecimal() and offset.isascii() and offset.isdecimal()) or len(text) > 30:
        raise BadInput(f"{text[:40]!r} is not the place of a dead letter, QUEUE:OFFSET")
    return int(queue), int(offset)


class _Resolve(Protocol):
    async def __call__(self, topic: str, group: str, *, queue: int | None, offsets: Sequence[int]) -> int: ...


async def _plan(view: PageView, verb: str, question: str, details: Sequence[tuple[str, str]]) -> ActionPlan:
    topic, group = view.form.text("topic"), view.form.text("group")
    chosen: dict[int, list[int]] = {}
    for queue, offset in map(_place, view.form.texts("place", PAGE_ROWS)):
        chosen.setdefault(queue, []).append(offset)
    states = await view.visitor.admin.describe_group(topic, group)
    words = ("dlq", verb, topic, "--group", group)
    if chosen:
        count = sum(map(len, chosen.values()))
        commands = [
            view.visitor.command(*words, "--queue", str(queue), *(f"--offset={it}" for it in offsets))
            for queue, offsets in sorted(chosen.items())
        ]
        what = f"{count:,} dead letters of the group {group}"
    elif view.form.text("all") == "yes":
        count, commands = sum(it.dead for it in states), [view.visitor.command(*words)]
        what = f"all {count:,} dead letters of the group {group}"
    else:
        raise BadInput("no dead letter was chosen: mark some, or take all")
    return ActionPlan(
        question.format(what=what, topic=topic),
        count,
        " && ".join(commands),
        details,
        dangerous=verb == "drop",
        given=(topic, group, chosen),
    )


async def _resolved(resolve: _Resolve, plan: ActionPlan, word: str) -> ActionResult:
    topic, group, chosen = plan.given
    done = 0
    for queue, offsets in sorted(chosen.items()) or [(None, [])]:
        done += await resolve(topic, group, queue=queue, offsets=offsets)
    left = plan.count - done
    return ActionResult(
        f"{done:,} dead letters of the group {group} in {topic} were {word}.",
        (("Not there any more", f"{left:,}"),) if left > 0 else (),
        failed=left > 0,
    )


async def plan_redrive(view: PageView) -> ActionPlan:
    details = (("What happens", "they are delivered again, and their attempts begin anew"),)
    return await _plan(view, "redrive", "Put {what} in {topic} back to work?", details)


async def run_redrive(view: PageView, plan: ActionPlan) -> ActionResult:
    return await _resolved(view.visitor.admin.redrive, plan, "redriven")


async def plan_drop(view: PageView) -> ActionPlan:
    details = (("What happens", "the group never gets them again; other groups have them as before"),)
    return await _plan(view, "drop", "Give up {what} in {topic} for ever?", details)


async def run_drop(view: PageView, plan: ActionPlan) -> ActionResult:
    return await _resolved(view.visitor.admin.drop, plan, "dropped")


REDRIVE: Final = ConsoleAction("redrive", "Redrive", plan_redrive, run_redrive)
DROP: Final = ConsoleAction("drop", "Drop", plan_drop, run_drop)
GROUP: Final = ConsolePage(
    "dead-letters-of", "Dead letters", "/dead-letters/group", "dead_letters_of.html", show_group, (REDRIVE, DROP)
)
PAGE: Final = ConsolePage("dead-letters", "Dead letters", "/dead-letters", "dead_letters.html", show, more=(GROUP,))
