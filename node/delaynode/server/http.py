"""/healthz, /readyz and /metrics."""

from __future__ import annotations

from aiohttp import web
from delayapi.address import listen, split
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from delaynode.metrics import NodeCollector, registry_of
from delaynode.node.conditions import conditions, state
from delaynode.node.loads import topic_loads
from delaynode.node.node import Node


async def serve_http(node: Node, address: str) -> web.AppRunner:
    """Listen on HOST:PORT; the caller cleans the runner up."""

    async def healthz(_: web.Request) -> web.Response:
        # For the kubelet, which ends processes that can't go on: the event loop answers, and what a node lives by runs
        # on it. It waits for nothing: a disk that hangs or a registry that is away are no reason to be killed.
        broken = node.fatal_error()
        return web.Response(status=200 if broken is None else 503, text=f"{broken or 'ok'}\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = node.not_ready()
        text = "".join(f"{line}\n" for line in (reason or "ok", *(condition.text for condition in conditions(node))))
        return web.Response(status=200 if reason is None else 503, text=text)

    collector = NodeCollector(node.metrics)
    registry = registry_of(collector)

    async def metrics(_: web.Request) -> web.Response:
        collector.loads = await topic_loads(node.hosts(), node.clock.now_ms())
        collector.state = state(node)
        collector.flow = await node.flow.figures()
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listen(*split(address))).start()
    return runner
