"""The job's findings, for people (a table) and for programs (JSON)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from delayapi.units import HOUR_MS

from delayrebalance.model import LoadFigures, Study

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 40  # moves in the table; --json has all


def print_study(study: Study, console: Console, horizon_ms: int) -> None:
    from rich.table import Table

    loads = Table(title=f"load to come, {_when(study.start_ms)} and {horizon_ms / HOUR_MS:g} h on, by nodes and slots")
    for heading in ("", "before", "after", "lower bound"):
        loads.add_column(heading, justify="left" if not heading else "right")
    before, after, bound = study.before, study.after, study.bound_messages
    loads.add_row("highest: messages", _n(before.peak_messages), _n(after.peak_messages), _n(bound))
    loads.add_row("  over the lower bound", _ratio(before, bound), _ratio(after, bound), "")
    loads.add_row("  on node", before.peak_node, after.peak_node, "")
    loads.add_row("  in the slot", _when(before.peak_slot_ms), _when(after.peak_slot_ms), "")
    loads.add_row("  mean of the nodes in it", _n(before.mean_messages), _n(after.mean_messages), "")
    loads.add_row("slots with a hot node", str(before.hot_slots), str(after.hot_slots), "")
    console.print(loads)
    if study.silent:
        console.print(f"left out, for they do not answer: {', '.join(study.silent)}")
    if study.moves:
        moves = Table(title=f"{len(study.moves)} moves, in their order")
        for heading in ("shard", "from", "to", "how", "bytes", "messages", "due during it"):
            moves.add_column(heading, justify="right" if heading in ("bytes", "messages", "due during it") else "left")
        for it in study.moves[:SHOWN]:
            how = "copy" if it.copies else "switchover"
            moves.add_row(it.shard, it.from_, it.to, how, _n(it.bytes), _n(it.messages), _n(it.due_during_move))
        if len(study.moves) > SHOWN:
            moves.add_row(f"... {len(study.moves) - SHOWN} more", *[""] * 6)
        total = sum(it.bytes for it in study.moves)
        moves.add_section()
        moves.add_row("all", "", "", "", _n(total), "", _n(sum(it.due_during_move for it in study.moves)))
        console.print(moves)
    console.print(study.why)


def as_json(study: Study) -> dict[str, Any]:
    """Without the loads of each node and slot."""
    return {
        "why": study.why,
        "startMs": study.start_ms,
        "slotMs": study.slot_ms,
        "lowerBoundMessages": study.bound_messages,
        "ratio": study.ratio,
        "before": _figures(study.before),
        "after": _figures(study.after),
        "silent": list(study.silent),
        "moves": [
            {
                "shard": it.shard,
                "from": it.from_,
                "to": it.to,
                "copies": it.copies,
                "bytes": it.bytes,
                "messages": it.messages,
                "dueDuringMove": it.due_during_move,
            }
            for it in study.moves
        ],
    }


def _figures(it: LoadFigures) -> dict[str, Any]:
    return {
        "peakMessages": it.peak_messages,
        "peakNode": it.peak_node,
        "peakSlotMs": it.peak_slot_ms,
        "meanMessages": it.mean_messages,
        "peakBytes": it.peak_bytes,
        "hotSlots": it.hot_slots,
    }


def _ratio(it: LoadFigures, bound: float) -> str:
    return f"{it.peak_messages / bound:.3f}" if bound else "-"


def _n(value: float) -> str:
    return f"{value:,.0f}"


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
