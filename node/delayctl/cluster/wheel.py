"""`delayctl wheel`: the load to come as a heat map, a row a shard, a column a stretch of time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from delayapi.durations import format_instant, format_ms
from delayapi.options import DURATION, INSTANT
from delayapi.slots import spread_slots
from delayapi.units import DAY_MS
from numpy.typing import NDArray

from delayctl.common import USAGE, CommandSettings, common_options, fail, put_json, run_admin
from delayctl.heat_map import cells
from delayctl.targets.options import data_option

if TYPE_CHECKING:
    from delayclient.admin.admin import Admin
    from delayclient.admin.views import Wheel

    from delayctl.cluster.wheel_nodes import CopyMove

MOST_BUCKETS = 1_440  # of a forecast
_WIDTHS_MS = tuple(
    seconds * 1000
    for seconds in (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 7 * 86_400)
)


@dataclass(frozen=True, slots=True)
class FiringSlots:
    """Messages of a topic's schedules to come, in slots: i64[k] each, as a Wheel has them."""

    slot_start: NDArray[np.int64]
    slot_width: NDArray[np.int64]
    messages: NDArray[np.int64]

    def as_json(self) -> list[dict[str, int]]:
        rows = zip(self.slot_start.tolist(), self.slot_width.tolist(), self.messages.tolist(), strict=True)
        return [{"start_ms": start, "width_ms": width, "messages": count} for start, width, count in rows if count]


@click.command()
@click.argument("topic", required=False)
@click.option("--from", "from_ms", type=INSTANT, help="Start here  [default: now]")
@click.option(
    "--to", "to_ms", type=INSTANT, help="End here  [default: the last message; with --nodes, a day from the start]"
)
@click.option("--nodes", is_flag=True, help="By node, in slots of one width: what the rebalance job looks at.")
@click.option("--slot", type=DURATION, default="5m", show_default=True, help="With --nodes: the width of a slot.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --nodes: as the moves of this plan (JSON; - is standard input) would leave it, too.",
)
@click.option("--proposed", is_flag=True, help="With --nodes: likewise, with the plan that `delayctl rebalance` shows.")
@data_option
@common_options
def wheel(
    settings: CommandSettings,
    topic: str | None,
    from_ms: int | None,
    to_ms: int | None,
    nodes: bool,
    slot: int,
    plan: Path | None,
    proposed: bool,
    data: Path,
) -> None:
    """Show when the pending messages of TOPIC, or of all topics, are due, and when their schedules fire."""
    if not nodes:
        if plan is not None or proposed:
            raise click.UsageError("--plan and --proposed are about nodes: give --nodes too")
        _show_shards(settings, topic, from_ms, to_ms)
        return
    if plan is not None and proposed:
        raise click.UsageError("--plan and --proposed name two plans: give one of them")
    if slot < 1_000:
        raise click.UsageError(f"--slot {format_ms(slot)}: at least 1 s")
    _show_nodes(settings, topic, from_ms, to_ms, slot, _planned(settings, data, plan, proposed))


def _show_shards(settings: CommandSettings, topic: str | None, from_ms: int | None, to_ms: int | None) -> None:
    async def shown(admin: Admin) -> None:
        wheels = await admin.wheel(topic or "", from_=from_ms or 0, to=to_ms or 0)
        firings = await _firings(admin, topic or "", to_ms or _last_ms(wheels))
        if settings.as_json:
            for one in wheels:
                _print_json(one, firings.get(one.topic) if one.queue == 0 else None)
        else:
            _print_map(wheels, firings, from_ms, to_ms)

    run_admin(settings, shown)


def _last_ms(wheels: Sequence[Wheel]) -> int | None:
    """The end of the last slot that has messages."""
    return max((int(one.slot_start[-1] + one.slot_width[-1]) for one in wheels if len(one.slot_start)), default=None)


async def _firings(admin: Admin, topic: str, to_ms: int | None) -> dict[str, FiringSlots]:
    """Of each topic with schedules that fire until then, a day where no end is known. Without an answer, a warning."""
    from delayclient.errors import DelayError

    now_ms = time.time_ns() // 1_000_000
    ahead_ms = DAY_MS if to_ms is None else to_ms - now_ms
    if ahead_ms <= 0:
        return {}
    bucket_ms = min(max(1_000, -(-ahead_ms // MOST_BUCKETS)), DAY_MS)
    buckets = min(-(-ahead_ms // bucket_ms), MOST_BUCKETS)
    try:
        found = await admin.forecast(topic, bucket=bucket_ms, buckets=buckets)
    except DelayError as error:
        click.echo(f"warning: when schedules fire is not known: {error}", err=True)
        return {}
    return {
        one.topic: FiringSlots(
            one.now_ms + np.arange(buckets, dtype=np.int64) * bucket_ms,
            np.full(buckets, bucket_ms, np.int64),
            np.diff(one.firings, prepend=0),
        )
        for one in found
        if one.firings.any()
    }


def _planned(settings: CommandSettings, data: Path, plan: Path | None, proposed: bool) -> tuple[CopyMove, ...] | None:
    from delayctl.cluster.wheel_nodes import BadPlan, plan_moves, read_plan

    try:
        if plan is not None:
            return read_plan(plan)
        if proposed:
            from delayctl.targets.rebalances import proposal

            return plan_moves(proposal(settings, data), "the proposal")
    except BadPlan as error:
        fail(str(error), USAGE)
    return None


def _show_nodes(
    settings: CommandSettings,
    topic: str | None,
    from_ms: int | None,
    to_ms: int | None,
    slot_ms: int,
    moves: Sequence[CopyMove] | None,
) -> None:
    from delayctl.cluster.wheel_nodes import BadPlan, loads_of, print_nodes

    start_ms = time.time_ns() // 1_000_000 if from_ms is None else from_ms
    start_ms = start_ms // slot_ms * slot_ms
    end_ms = start_ms + DAY_MS if to_ms is None else to_ms
    if end_ms <= start_ms:
        raise click.UsageError("--to is not later than --from")

    async def shown(admin: Admin) -> None:
        known = [node.node for node in await admin.nodes()]
        wheels = await admin.wheel(topic or "", from_=start_ms, to=end_ms)
        try:
            print_nodes(loads_of(wheels, known, start_ms, end_ms, slot_ms), moves, settings.as_json)
        except BadPlan as error:
            fail(str(error), USAGE)

    run_admin(settings, shown)


def _print_json(one: Wheel, firings: FiringSlots | None) -> None:
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
            **({} if firings is None else {"firings": firings.as_json()}),
        }
    )


def column_edges(from_ms: int, to_ms: int, columns: int, finest_ms: int = 1) -> NDArray[np.int64]:
    """The edges of about `columns` columns of one round width, no finer than the slots, that hold [from_ms, to_ms)."""
    wanted = max(finest_ms, -(-(to_ms - from_ms) // columns))
    width = next((width for width in _WIDTHS_MS if width >= wanted), -(-wanted // _WIDTHS_MS[-1]) * _WIDTHS_MS[-1])
    first = from_ms // width * width
    return np.arange(first, max(to_ms, first + 1) + width, width, dtype=np.int64)[: columns + 2]


def _print_map(wheels: list[Wheel], firings: Mapping[str, FiringSlots], from_ms: int | None, to_ms: int | None) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    holding: list[Wheel | FiringSlots] = [one for one in wheels if len(one.slot_start)]
    pending = sum(one.pending for one in wheels)
    holding += firings.values()
    if not holding:
        console.print(f"{pending:,} messages pending in {len(wheels)} shards; none in this time")
        return
    start = from_ms or min(int(one.slot_start[0]) for one in holding)
    end = to_ms or max(int(one.slot_start[-1] + one.slot_width[-1]) for one in holding)
    names = [f"{one.topic}-{one.queue}" for one in wheels] + [f"{topic} schedules" for topic in firings]
    label = max(map(len, names))
    finest_ms = min(int(one.slot_width.min()) for one in holding)
    edges = column_edges(start, end, max(10, console.width - label - 14), finest_ms)
    shown: list[Wheel | FiringSlots] = [*wheels, *firings.values()]
    rows = [spread_slots(one.slot_start, one.slot_width, one.messages, edges) for one in shown]
    hottest = max(float(row.max(initial=0)) for row in rows)
    width_ms = int(edges[1] - edges[0])
    console.print(
        f"{pending:,} messages pending in {len(wheels)} shards; a column is {format_ms(width_ms)}, "
        f"the hottest has {hottest:,.0f} of a shard"
    )
    for name, one, row in zip(names, shown, rows, strict=True):
        console.print(Text.assemble(f"{name:<{label}} ", cells(row, hottest)), end="")
        console.print(f" {int(one.messages.sum()) if isinstance(one, FiringSlots) else one.pending:>11,}")
    left, right = format_instant(int(edges[0]))[:19], format_instant(int(edges[-1]))[:19]
    console.print(f"{'':{label}} {left}{right:>{max(20, len(edges) - 1 - len(left))}}")
