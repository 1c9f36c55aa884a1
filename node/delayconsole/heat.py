"""The heat map's numbers: wheels in, rows of cells out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from delayapi.slots import spread_slots
from delayapi.units import MINUTE_MS
from delayclient.admin.views import Wheel
from delayctl.cluster.wheel import column_edges
from numpy.typing import NDArray

COLUMNS: Final = 144
MAX_ROWS: Final = 48
"""So many rows can be told apart. The hottest are shown, the others are one row together."""
OTHERS: Final = ""
"""The name of that row."""
TOP_TIMES: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class HeatRow:
    """A node, a topic or a shard. cells: messages due in each column. node: where a shard's master is."""

    name: str
    node: str
    shards: int
    pending: int
    pending_bytes: int
    cells: NDArray[np.float64]

    @property
    def due(self) -> float:
        return float(self.cells.sum())

    @property
    def highest(self) -> float:
        return float(self.cells.max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """edges_ms: of the columns, one more than there are. rows: of the map, by name; others last."""

    edges_ms: NDArray[np.int64]
    rows: tuple[HeatRow, ...]
    pending: int
    pending_bytes: int
    late_ms: int

    @property
    def column_ms(self) -> int:
        return int(self.edges_ms[1] - self.edges_ms[0])

    @property
    def total(self) -> NDArray[np.float64]:
        summed = np.zeros(len(self.edges_ms) - 1)
        for row in self.rows:
            summed += row.cells
        return summed

    def start_of_highest(self, row: HeatRow) -> int:
        return int(self.edges_ms[int(row.cells.argmax())])

    def busiest(self) -> list[tuple[int, int, float, HeatRow]]:
        """The columns with most messages: start, end, messages, and the row that has most of them."""
        total = self.total
        order = np.argsort(-total, kind="stable")[:TOP_TIMES]
        return [
            (int(self.edges_ms[at]), int(self.edges_ms[at + 1]), float(total[at]), self._hottest(at))
            for at in order.tolist()
            if total[at] > 0
        ]

    def _hottest(self, column: int) -> HeatRow:
        return max(self.rows, key=lambda row: float(row.cells[column]))


def column_ms(from_ms: int, to_ms: int) -> int:
    """How wide a column of that time is, where the slots are not wider."""
    edges = column_edges(from_ms, to_ms, COLUMNS, MINUTE_MS)
    return int(edges[1] - edges[0])


def shard_name(wheel: Wheel) -> str:
    return f"{wheel.topic}-{wheel.queue}"


NAMES: Final[dict[str, Callable[[Wheel], str]]] = {
    "node": lambda wheel: wheel.node,
    "topic": lambda wheel: wheel.topic,
    "shard": shard_name,
}


def heat_map(wheels: Sequence[Wheel], by: str, from_ms: int, to_ms: int) -> HeatMap:
    """by: what a row is, a key of NAMES."""
    inside = [
        width
        for it in wheels
        if len(width := it.slot_width[(it.slot_start < to_ms) & (it.slot_start + it.slot_width > from_ms)])
    ]
    finest_ms = min((int(width.min()) for width in inside), default=MINUTE_MS)
    edges = column_edges(from_ms, to_ms, COLUMNS, finest_ms)
    groups: dict[str, list[Wheel]] = {}
    for it in wheels:
        groups.setdefault(NAMES[by](it), []).append(it)
    rows = [_row(name, mine, edges, by) for name, mine in groups.items()]
    if len(rows) > MAX_ROWS:
        rows.sort(key=lambda row: (-row.highest, -row.pending, natural(row.name)))
        rows, rest = rows[: MAX_ROWS - 1], rows[MAX_ROWS - 1 :]
    else:
        rest = []
    rows.sort(key=lambda row: natural(row.name))
    if rest:
        rows.append(_together(rest))
    return HeatMap(
        edges,
        tuple(rows),
        sum(it.pending for it in wheels),
        sum(it.pending_bytes for it in wheels),
        max((it.late_ms for it in wheels), default=0),
    )


def _row(name: str, wheels: Sequence[Wheel], edges: NDArray[np.int64], by: str) -> HeatRow:
    cells = np.zeros(len(edges) - 1)
    for it in wheels:
        cells += spread_slots(it.slot_start, it.slot_width, it.messages, edges)
    return HeatRow(
        name,
        wheels[0].node if by == "shard" else "",
        len(wheels),
        sum(it.pending for it in wheels),
        sum(it.pending_bytes for it in wheels),
        cells,
    )


def _together(rows: Sequence[HeatRow]) -> HeatRow:
    return HeatRow(
        OTHERS,
        "",
        sum(row.shards for row in rows),
        sum(row.pending for row in rows),
        sum(row.pending_bytes for row in rows),
        np.sum([row.cells for row in rows], axis=0),
    )


def natural(name: str) -> tuple[str, int]:
    """n10 after n9, and orders-10 after orders-9."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits else -1
