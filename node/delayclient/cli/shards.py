"""`delayctl shards`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from delayclient.cli.common import Settings, common_options, put_json, run

if TYPE_CHECKING:
    from delayclient.admin import Admin
    from delayclient.routing import Cluster, QueueRoute
    from delayclient.views import Wheel


@dataclass(frozen=True, slots=True)
class _Shard:
    topic: str
    route: QueueRoute
    wheel: Wheel | None
    problem: str


@click.command()
@click.argument("topic", required=False)
@common_options
def shards(settings: Settings, topic: str | None) -> None:
    """List the shards of TOPIC, or of all topics: master, epoch, pending and released messages."""

    async def listed(cluster: Cluster) -> None:
        from delayclient.admin import Admin

        async with Admin(cluster, timeout="1s") as admin:
            routes = [await admin.route(topic)] if topic else await admin.topics()
            found = await asyncio.gather(
                *(_look(admin, route.topic, queue) for route in routes for queue in route.queues)
            )
        if settings.as_json:
            for shard in found:
                _print_json(shard)
        else:
            _print_table(found)

    run(settings, listed)


async def _look(admin: Admin, topic: str, queue: QueueRoute) -> _Shard:
    from delayclient.errors import DelayError

    try:
        # A millisecond of wheel: only the totals are wanted.
        wheels = await admin.wheel(topic, queue=queue.queue, from_=1, to=2)
    except DelayError as error:
        return _Shard(topic, queue, None, error.reason or error.code)
    return _Shard(topic, queue, wheels[0] if wheels else None, "" if wheels else "no answer")


def _print_json(shard: _Shard) -> None:
    route, wheel = shard.route, shard.wheel
    put_json(
        {
            "shard": f"{shard.topic}-{route.queue}",
            "topic": shard.topic,
            "queue": route.queue,
            "uid": f"{route.uid:016x}",
            "epoch": route.epoch,
            "node": route.node,
            "endpoint": route.endpoint,
            "pending": wheel.pending if wheel is not None else None,
            "pending_bytes": wheel.pending_bytes if wheel is not None else None,
            "released": wheel.released if wheel is not None else None,
            "watermark_ms": wheel.watermark_ms if wheel is not None else None,
            "problem": shard.problem or None,
        }
    )


def _print_table(found: list[_Shard]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("SHARD", "MASTER", "ENDPOINT"):
        table.add_column(name)
    for name in ("EPOCH", "PENDING", "RELEASED"):
        table.add_column(name, justify="right")
    table.add_column("PROBLEM")
    for shard in found:
        route, wheel = shard.route, shard.wheel
        counts = (f"{wheel.pending:,}", f"{wheel.released:,}") if wheel is not None else ("?", "?")
        name = f"{shard.topic}-{route.queue}"
        table.add_row(name, route.node or "-", route.endpoint or "-", str(route.epoch), *counts, shard.problem)
    Console().print(table)
