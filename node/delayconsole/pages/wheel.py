"""The wheel: the load to come as a heat map, from months down to a minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from delayapi.durations import format_instant
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS

from delayconsole.cluster_wheels import cluster_wheels
from delayconsole.heat import NAMES, OTHERS, HeatMap, column_ms, heat_map
from delayconsole.page import BadInput, ConsolePage, PageView

SPANS: Final = {
    "1h": HOUR_MS,
    "6h": 6 * HOUR_MS,
    "1d": DAY_MS,
    "7d": 7 * DAY_MS,
    "30d": 30 * DAY_MS,
    "all": 0,
}
MAX_SPAN_MS: Final = 11 * 366 * DAY_MS
MIN_SPAN_MS: Final = MINUTE_MS


async def show(view: PageView) -> Mapping[str, Any]:
    query = view.query
    topic, by = query.text("topic"), query.choice("by", "node", tuple(NAMES))
    span = query.choice("span", "1d", tuple(SPANS))
    from_ms, to_ms = query.instant("from"), query.instant("to")
    fixed = from_ms is not None or to_ms is not None
    start = view.now_ms // MINUTE_MS * MINUTE_MS if from_ms is None else from_ms
    end = to_ms if to_ms is not None else (start + SPANS[span] if SPANS[span] else 0)
    if end and end <= start:
        raise BadInput(f"to ({format_instant(end)}) is not later than from ({format_instant(start)})")
    if end - start > MAX_SPAN_MS:
        raise BadInput(f"from {format_instant(start)} to {format_instant(end)} is more than 11 years")
    end = max(end, start + MIN_SPAN_MS) if end else 0
    found = await cluster_wheels(view.visitor.admin, topic, start, end, column_ms(start, end) if end else HOUR_MS)
    if topic and topic not in found.topics:
        raise BadInput(f"there is no topic {topic!r} that you may see")
    if not end:
        ends = [int(it.slot_start[-1] + it.slot_width[-1]) for it in found.wheels if len(it.slot_start)]
        end = max([start + HOUR_MS, *ends])
        if (width := column_ms(start, end)) < HOUR_MS:
            found = await cluster_wheels(view.visitor.admin, topic, start, end, width)
    heat = heat_map(found.wheels, by, start, end)
    live = query.choice("live", "on", ("on", "off")) == "on"
    chosen = {"from": start, "to": end} if fixed else {"span": span}

    def link(**changes: Any) -> str:
        """This page with something else: by, topic, live, or a time."""
        timed = {} if changes.keys() & {"span", "from", "to"} else chosen
        values = {"by": by, "topic": topic, "live": "" if live else "off", **timed, **changes}
        return f"{PAGE.path}?{urlencode({name: value for name, value in values.items() if value != ''})}"

    return {
        "found": found,
        "heat": heat,
        "by": by,
        "topic": topic,
        "span": "" if fixed else span,
        "spans": tuple(SPANS),
        "from_ms": start,
        "to_ms": end,
        "zooms": zooms(start, end, view.now_ms),
        "live": live,
        "link": link,
        "command": _command(view, topic, by, from_ms, to_ms, heat),
        "picture": _picture(heat, by, topic),
        "others": OTHERS,
    }


def zooms(start: int, end: int, now_ms: int) -> dict[str, tuple[int, int]]:
    """Where the links lead: from and to, on whole minutes, as columns are. Not earlier than now, and no less than a
    minute."""
    width, first = end - start, now_ms // MINUTE_MS * MINUTE_MS
    half = max(MIN_SPAN_MS, width // 2 // MINUTE_MS * MINUTE_MS)
    middle = start + (width - half) // 2

    def at(begin: int, length: int) -> tuple[int, int]:
        begin = max(min(first, start), begin) // MINUTE_MS * MINUTE_MS
        return begin, begin + length

    return {
        "Earlier": at(start - half, width),
        "Later": at(start + half, width),
        "Zoom in": at(middle, half),
        "Zoom out": at(start - width // 2, min(MAX_SPAN_MS, width * 2)),
    }


def _picture(heat: HeatMap, by: str, topic: str) -> Mapping[str, Any]:
    """What wheel.js draws. links: of each row, where a cell leads once its time is added; "": nowhere."""
    return {
        "edges": heat.edges_ms.tolist(),
        "rows": [row.name or f"{row.shards:,} other shards" for row in heat.rows],
        "links": [_cell_link(row.name, by, topic) for row in heat.rows],
        "cells": [[round(cell, 1) for cell in row.cells.tolist()] for row in heat.rows],
        "total": [round(cell, 1) for cell in heat.total.tolist()],
    }


def _cell_link(name: str, by: str, topic: str) -> str:
    """Messages are listed by topic and queue, so a node's cell leads to its time by shard."""
    if by == "node":
        return f"{PAGE.path}?{urlencode({'by': 'shard', 'topic': topic})}"
    if name == OTHERS:
        return ""
    of, _, queue = name.rpartition("-") if by == "shard" else (name, "", "")
    return f"/pending?{urlencode({'topic': of, 'queue': queue})}"


def _command(view: PageView, topic: str, by: str, from_ms: int | None, to_ms: int | None, heat: HeatMap) -> str:
    words = ["wheel", *([topic] if topic else [])]
    for name, ms in (("--from", from_ms), ("--to", to_ms)):
        if ms is not None:
            words += [name, format_instant(ms)]
    if by == "node":
        words += ["--nodes", "--slot", f"{heat.column_ms // MINUTE_MS}m"]
    return view.visitor.command(*words)


PAGE: Final = ConsolePage("wheel", "Wheel", "/wheel", "wheel.html", show)
