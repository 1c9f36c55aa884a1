"""`delayctl wheel --nodes`: the load to come by node and slot of time, as it is and as a plan of moves would leave it.

A shard's load is its master's: what falls due is released there. So a move changes the load when it takes the copy of
the node that the load is on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
from delayapi.durations import format_instant, format_ms
from delayapi.slots import spread_slots
from delayoperator.cluster.shard_summary import counted_of
from numpy.typing import NDArray

from delayctl.common import print_table, put_json
from delayctl.heat_map import cells

if TYPE_CHECKING:
    from delayclient.admin.views import Wheel

MAX_SLOTS: Final = 20_000
MAX_PLAN_BYTES: Final = 16 << 20


class BadPlan(ValueError):
    """The given file is not a plan of moves, or is one for other shards; says why."""


@dataclass(frozen=True, slots=True)
class CopyMove:
    """One copy of a shard goes from a node to another."""

    shard: str
    origin: str
    to: str


@dataclass(frozen=True, slots=True, eq=False)
class SlotLoads:
    """The messages due in each of s slots. messages, bytes: f64[n shards, s]; homes: the node that the load of each is
    on.
    """

    edges_ms: NDArray[np.int64]
    shards: tuple[str, ...]
    homes: tuple[str, ...]
    nodes: tuple[str, ...]
    messages: NDArray[np.float64]
    bytes: NDArray[np.float64]

    @property
    def slot_ms(self) -> int:
        return int(self.edges_ms[1] - self.edges_ms[0])

    def by_node(self, column: NDArray[np.float64]) -> NDArray[np.float64]:
        """f64[nodes, s]"""
        row_of = {node: row for row, node in enumerate(self.nodes)}
        summed = np.zeros((len(self.nodes), column.shape[1]))
        np.add.at(summed, [row_of[home] for home in self.homes], column)
        return summed

    def lower_bound(self) -> float:
        """The lowest load of the highest slot that any placement of whole shards on these nodes can reach."""
        if not self.messages.size or not self.nodes:
            return 0.0
        spread = self.messages.sum(axis=0) / len(self.nodes)
        return float(np.maximum(spread, self.messages.max(axis=0)).max())

    def moved(self, moves: Sequence[CopyMove]) -> SlotLoads:
        """Returns the load after the moves. Raises BadPlan for a shard that is not here."""
        homes = dict(zip(self.shards, self.homes, strict=True))
        for move in moves:
            if move.shard not in homes:
                raise BadPlan(f"the plan moves {move.shard}, and there is no such shard here")
            if homes[move.shard] == move.origin:
                homes[move.shard] = move.to
        nodes = tuple(sorted({*self.nodes, *homes.values()}, key=_by_number))
        return replace(self, homes=tuple(homes.values()), nodes=nodes)


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest load of a node in a slot, and the mean of all nodes in that slot."""

    messages: float
    node: str
    start_ms: int
    mean: float


def loads_of(wheels: Sequence[Wheel], nodes: Sequence[str], from_ms: int, to_ms: int, slot_ms: int) -> SlotLoads:
    """The wheels cut into slots of one width, whose edges are multiples of it."""
    first, last = from_ms // slot_ms * slot_ms, -(-to_ms // slot_ms) * slot_ms
    if last - first > MAX_SLOTS * slot_ms:
        raise click.UsageError(
            f"{(last - first) // slot_ms:,} slots of {format_ms(slot_ms)}; at most {MAX_SLOTS:,}: give a wider --slot, "
            "or an earlier --to"
        )
    edges = np.arange(first, max(last, first + slot_ms) + 1, slot_ms, dtype=np.int64)
    messages, size = np.zeros((2, len(wheels), len(edges) - 1))
    for row, it in enumerate(wheels):
        messages[row] = spread_slots(it.slot_start, it.slot_width, it.messages, edges)
        size[row] = spread_slots(it.slot_start, it.slot_width, it.bytes, edges)
    homes = tuple(it.node for it in wheels)
    known = tuple(sorted({*nodes, *homes}, key=_by_number))
    return SlotLoads(edges, tuple(f"{it.topic}-{it.queue}" for it in wheels), homes, known, messages, size)


def peak_of(loads: SlotLoads) -> Peak:
    """Zeros when there is nothing."""
    by_node = loads.by_node(loads.messages)
    if not by_node.size:
        return Peak(0.0, "", int(loads.edges_ms[0]), 0.0)
    row, slot = np.unravel_index(int(by_node.argmax()), by_node.shape)
    start = int(loads.edges_ms[slot])
    return Peak(float(by_node[row, slot]), loads.nodes[int(row)], start, float(by_node[:, slot].mean()))


def read_plan(path: Path) -> tuple[CopyMove, ...]:
    """The moves of a plan's JSON, or of a DelayRebalance's that has one. `-`: standard input. Raises BadPlan."""
    where = "standard input" if str(path) == "-" else str(path)
    try:
        with click.open_file(str(path), encoding="utf-8") as file:
            text = file.read(MAX_PLAN_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise BadPlan(f"{where}: {error}") from None
    if len(text) > MAX_PLAN_BYTES:
        raise BadPlan(f"{where}: more than {MAX_PLAN_BYTES >> 20} MiB is no plan")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadPlan(f"{where}: no JSON: {error}") from None
    return plan_moves(value, where)


def plan_moves(value: Any, where: str) -> tuple[CopyMove, ...]:
    """The moves of a plan, or of an object with a plan in `plan` or `status.plan`. Raises BadPlan."""
    for name in ("status", "plan"):
        if isinstance(value, dict) and isinstance(value.get(name), dict):
            value = value[name]
    moves = value.get("moves") if isinstance(value, dict) else None
    if not isinstance(moves, list):
        raise BadPlan(f"{where}: a plan has its moves in a list, `moves`; there is none")
    return tuple(_move(move, number, where) for number, move in enumerate(moves))


def _move(move: Any, number: int, where: str) -> CopyMove:
    fields = [move.get(name) if isinstance(move, dict) else None for name in ("shard", "from", "to")]
    if not all(isinstance(field, str) and field for field in fields):
        raise BadPlan(f"{where}: move {number}: expected shard, from and to, each a name")
    return CopyMove(*(str(field) for field in fields))


def print_nodes(before: SlotLoads, moves: Sequence[CopyMove] | None, as_json: bool) -> None:
    """The load before and after, where there is a plan. Raises BadPlan."""
    after = None if moves is None else before.moved(moves)
    if after is not None:
        # A node that comes or goes with the plan has a line in both.
        before = replace(before, nodes=after.nodes)
    bound = before.lower_bound()
    if as_json:
        put_json(
            {
                "from_ms": int(before.edges_ms[0]),
                "to_ms": int(before.edges_ms[-1]),
                "slot_ms": before.slot_ms,
                "shards": len(before.shards),
                "lower_bound_messages": round(bound, 1),
                "before": _picture(before),
                "moves": None if moves is None else len(moves),
                "after": None if after is None else _picture(after),
            }
        )
    else:
        _print_table(before, after, 0 if moves is None else len(moves), bound)


def _picture(loads: SlotLoads) -> Mapping[str, Any]:
    messages, size, peak = loads.by_node(loads.messages), loads.by_node(loads.bytes), peak_of(loads)
    return {
        "peak_messages": round(peak.messages, 1),
        "peak_node": peak.node or None,
        "peak_start_ms": peak.start_ms,
        "mean_messages": round(peak.mean, 1),
        "nodes": [
            {
                "node": node,
                "messages": round(float(messages[row].sum()), 1),
                "bytes": round(float(size[row].sum())),
                "peak_messages": round(float(messages[row].max()), 1),
                "peak_start_ms": int(loads.edges_ms[int(messages[row].argmax())]),
                "slots": [
                    {
                        "start_ms": int(loads.edges_ms[slot]),
                        "messages": round(float(messages[row, slot]), 1),
                        "bytes": round(float(size[row, slot])),
                    }
                    for slot in np.flatnonzero(messages[row]).tolist()
                ],
            }
            for row, node in enumerate(loads.nodes)
        ],
    }


def _print_table(before: SlotLoads, after: SlotLoads | None, moves: int, bound: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    pictures = [("", before)] if after is None else [("now", before), ("then", after)]
    slots = before.messages.shape[1]
    label = max((len(node) for node in before.nodes), default=4) + (6 if after is not None else 0)
    # A column of the map is so many slots, and shows the highest of them: the peaks are what it is about.
    together = max(1, -(-slots // max(10, console.width - label - 34)))
    total = float(before.messages.sum())
    console.print(
        f"{total:,.0f} messages of {len(before.shards)} shards fall due on {len(before.nodes)} nodes until "
        f"{format_instant(int(before.edges_ms[-1]))[:16]}; slots of {format_ms(before.slot_ms)}"
        + (f", the highest of {together} in a column" if together > 1 else ""),
        highlight=False,
        soft_wrap=True,
    )
    if not total:
        return
    console.print(_summary(before, after, moves, bound), highlight=False, soft_wrap=True)
    hottest = max(peak_of(loads).messages for _, loads in pictures)
    table = Table(box=None, pad_edge=False)
    table.add_column("NODE", no_wrap=True)
    for name in ("DUE", "HIGHEST", "AT"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"{format_instant(int(before.edges_ms[0]))[:16]} ...", no_wrap=True)
    rows = [loads.by_node(loads.messages) for _, loads in pictures]
    for number, node in enumerate(before.nodes):
        for (when, _), by_node in zip(pictures, rows, strict=True):
            row = by_node[number]
            at = format_instant(int(before.edges_ms[int(row.argmax())]))[11:16] if row.any() else "-"
            strip = cells(_highest(row, together), hottest)
            table.add_row(f"{node} {when}".rstrip(), f"{row.sum():,.0f}", f"{row.max():,.0f}", at, strip)
    print_table(table)


def _summary(before: SlotLoads, after: SlotLoads | None, moves: int, bound: float) -> str:
    def told(peak: Peak) -> str:
        at = format_instant(peak.start_ms)[:16]
        return f"{peak.messages:,.0f} on {peak.node} at {at}, where the mean of the nodes is {peak.mean:,.0f}"

    text = f"highest: {told(peak_of(before))}"
    reached = peak_of(before)
    if after is not None:
        reached = peak_of(after)
        text += f"\nwith {counted_of(moves, 'move')}: {told(reached)}"
    ratio = reached.messages / bound if bound else 1.0
    return f"{text}\nno placement of whole shards gets below {bound:,.0f}: {ratio:.2f} times that"


def _highest(row: NDArray[np.float64], together: int) -> NDArray[np.float64]:
    padded = np.concatenate((row, np.zeros(-len(row) % together)))
    highest: NDArray[np.float64] = padded.reshape(-1, together).max(axis=1)
    return highest


def _by_number(node: str) -> tuple[int, str]:
    """n10 after n9."""
    digits = node.lstrip("n")
    return int(digits) if digits.isdecimal() else -1, node
