"""The audit log: who administered what, and who was refused what, as nodes and consoles have logged it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from delayconsole.cluster_objects import NO_OBJECTS, time_of
from delayconsole.page import ConsolePage, PageView

MOST: Final = 500
EVENTS: Final = {
    "": "all events",
    "audit-administered": "administered",
    "audit-refused": "refused",
    "audit-would-refuse": "would be refused",
    "audit-console": "done by the console",
}


async def show(view: PageView) -> Mapping[str, Any]:
    kind = view.query.choice("event", "", tuple(EVENTS))
    text = view.query.text("text", max_chars=200).lower()
    objects = view.visitor.objects
    if objects is None:
        return {
            "rows": (),
            "problems": [f"The nodes' logs can't be read: {NO_OBJECTS}."],
            "more": 0,
            **_form(kind, text),
        }
    found = await asyncio.to_thread(objects.audit)
    rows = [
        row for event in found.events if kind in ("", event.get("event")) and text in _text(row := audit_row(event))
    ]
    return {
        "rows": rows[:MOST],
        "problems": [f"A log can't be read: {it}." for it in found.problems],
        "more": max(0, len(rows) - MOST),
        **_form(kind, text),
    }


def audit_row(event: Mapping[str, Any]) -> Mapping[str, Any]:
    names = ("event", "node", "principal", "method", "operation", "resource", "why")
    row: dict[str, Any] = {name: str(event.get(name, "")) for name in names}
    return {**row, "at_ms": time_of(event), "again": event.get("again") or 0, "left_out": event.get("left_out") or 0}


def _text(row: Mapping[str, Any]) -> str:
    return " ".join(str(it) for it in row.values()).lower()


def _form(kind: str, text: str) -> Mapping[str, Any]:
    return {"kind": kind, "text": text, "events": EVENTS}


PAGE: Final = ConsolePage("audit", "Audit", "/audit", "audit.html", show)
