"""`delayctl wheel`: the load to come as a heat map, a row a shard, a column a stretch of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import numpy as np
from numpy.typing import NDArray

from delayclient.cli.common import INSTANT, Settings, common_options, put_json, run
from delayclient.duration import format_instant, format_ms

if TYPE_CHECKING:
    from rich.text import Text

    from delayclient.routing import Cluster
    from delayclient.views import Wheel

_WIDTHS_MS = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 7 * 86_400)
)
_COLOURS = (17, 18, 19, 26, 37, 42, 82, 154, 220, 208, 196)
"""Cold to hot, of the 256 terminal colours."""


@click.command()
@click.argument("topic", required=False)
@click.option("--from", "from_ms", type=INSTANT, help="Start here  [default: now]")
@click.option("--to", "to_ms", type=INSTANT, help="End here  [default: the last message]")
@common_options
def wheel(settings: Settings, topic: str | None, from_ms: int | None, to_ms: int | None) -> None:
    """Show when the pending messages of TOPIC, or of all topics, are due."""

    async def shown(cluster: Cluster) -> None:
        from delayclient.admin import Admin

        async with Admin(cluster) as admin:
            wheels = await admin.wheel(topic or "", from_=from_ms or 0, to=to_ms or 0)
        if settings.as_json:
            for one in wheels:
                _print_json(one)
        else:
            _print_map(wheels, from_ms, to_ms)

    run(settings, shown)


def _print_json(one: Wheel) -> None:
    slots = zip(
        one.slot_start.tolist(), one.slot_width.tolist(), one.messages.tolist(), one.bytes.tolist(), strict=True
    )
    put_json(
        {
            "topic": one.topic,
            "queue": one.queue,
            "node": one.node,
            "epoch": one.epoch,
            "now_ms": one.now_ms,
            "watermark_ms": one.watermark_ms,
            "pending": one.pending,
            "pending_bytes": one.pending_bytes,
            "released": one.released,
            "slots": [
                {"start_ms": start, "width_ms": width, "messages": messages, "bytes": size}
                for start, width, messages, size in slots
            ],
        }
    )


def spread_slots(
    start_ms: NDArray[np.int64], width_ms: NDArray[np.int64], messages: NDArray[np.int64], edges_ms: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Messages in each column [edge, next edge), f64[columns]; a slot over several counts evenly in each."""
    # The cumulative count is a line through the slots' ends; a column is the difference at its edges.
    at = np.concatenate(([0], np.ravel(np.column_stack((start_ms, start_ms + width_ms)))))
    total = np.cumsum(messages, dtype=np.float64)
    before = total - messages
    count = np.concatenate(([0.0], np.ravel(np.column_stack((before, total)))))
    at_edges: NDArray[np.float64] = np.interp(edges_ms, at, count)
    return np.diff(at_edges)


def column_edges(from_ms: int, to_ms: int, columns: int, finest_ms: int = 1) -> NDArray[np.int64]:
    """The edges of about `columns` columns of one round width, no finer than the slots, that hold [from_ms, to_ms)."""
    wanted = max(finest_ms, -(-(to_ms - from_ms) // columns))
    width = next((width for width in _WIDTHS_MS if width >= wanted), -(-wanted // _WIDTHS_MS[-1]) * _WIDTHS_MS[-1])
    first = from_ms // width * width
    return np.arange(first, max(to_ms, first + 1) + width, width, dtype=np.int64)[: columns + 2]


def _print_map(wheels: list[Wheel], from_ms: int | None, to_ms: int | None) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    holding = [one for one in wheels if len(one.slot_start)]
    pending = sum(one.pending for one in wheels)
    if not holding:
        console.print(f"{pending:,} messages pending in {len(wheels)} shards; none in this time")
        return
    start = from_ms or min(int(one.slot_start[0]) for one in holding)
    end = to_ms or max(int(one.slot_start[-1] + one.slot_width[-1]) for one in holding)
    label = max(len(f"{one.topic}-{one.queue}") for one in wheels)
    finest_ms = min(int(one.slot_width.min()) for one in holding)
    edges = column_edges(start, end, max(10, console.width - label - 14), finest_ms)
    rows = [spread_slots(one.slot_start, one.slot_width, one.messages, edges) for one in wheels]
    hottest = max(float(row.max(initial=0)) for row in rows)
    width_ms = int(edges[1] - edges[0])
    console.print(
        f"{pending:,} messages pending in {len(wheels)} shards; a column is {format_ms(width_ms)}, "
        f"the hottest has {hottest:,.0f} of a shard"
    )
    for one, row in zip(wheels, rows, strict=True):
        console.print(
            Text.assemble(f"{one.topic}-{one.queue:<{label - len(one.topic) - 1}} ", _cells(row, hottest)), end=""
        )
        console.print(f" {one.pending:>11,}")
    left, right = format_instant(int(edges[0]))[:19], format_instant(int(edges[-1]))[:19]
    console.print(f"{'':{label}} {left}{right:>{max(20, len(edges) - 1 - len(left))}}")


def _cells(row: NDArray[np.float64], hottest: float) -> Text:
    from rich.text import Text

    text = Text()
    for count in row.tolist():
        # A root, so that what is there at all can be seen beside a herd.
        heat = (count / hottest) ** 0.5 if hottest and count > 0 else 0.0
        colour = f"on color({_COLOURS[round(heat * (len(_COLOURS) - 1))]})" if count > 0 else ""
        shade = " .:-=+*#%@"[min(9, 1 + int(heat * 8))] if count > 0 else " "
        text.append(shade, style=colour)
    return text
