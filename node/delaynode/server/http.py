"""/healthz, /readyz and /metrics.

Everybody may ask the first two: they answer in a few words that are always the same, without names of topics, shards
or nodes. What is behind a word is in the log and in `delayctl nodes list`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from delaynode.metrics import NodeCollector, registry_of
from delaynode.node.conditions import conditions, state
from delaynode.node.loads import topic_loads
from delaynode.node.node import Node

BROKEN = "vital-part-ended"  # as in the log


def metrics_handler(node: Node) -> Callable[[web.Request], Awaitable[web.Response]]:
    collector = NodeCollector(node.metrics)
    registry = registry_of(collector)

    async def metrics(_: web.Request) -> web.Response:
        collector.loads = await topic_loads(node.hosts(), node.clock.now_ms())
        collector.state = state(node)
        collector.flow = await node.flow.figures()
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return metrics


def common_routes(node: Node) -> list[web.RouteDef]:
    """Of the port that everybody may reach."""

    async def healthz(_: web.Request) -> web.Response:
        # For the kubelet, which ends processes that can't go on: the event loop answers, and what a node lives by runs
        # on it. It waits for nothing: a disk that hangs or a registry that is away are no reason to be killed.
        broken = node.fatal_error()
        return web.Response(status=200 if broken is None else 503, text="ok\n" if broken is None else f"{BROKEN}\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = node.readiness()
        found = dict.fromkeys(condition.kind for condition in conditions(node))
        text = "".join(f"{word}\n" for word in ("ok" if reason is None else reason.word, *found))
        return web.Response(status=200 if reason is None else 503, text=text)

    routes = [web.get("/healthz", healthz), web.get("/readyz", readyz)]
    if node.config.metrics_listener is None:
        routes.append(web.get("/metrics", metrics_handler(node)))
    return routes
