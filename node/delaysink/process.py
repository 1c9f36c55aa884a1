"""A sink as a process: its target, the cluster, /healthz, /metrics and /status, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from aiohttp import web
from delayapi.address import listen, split
from delayclient.routing.routing import Cluster
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from delaysink.http_target import HttpTarget
from delaysink.kafka_target import KafkaTarget
from delaysink.nats_target import NatsTarget
from delaysink.settings import BadSink, HttpSettings, KafkaSettings, NatsSettings, SinkSettings
from delaysink.sink import Log, Sink
from delaysink.target import SinkTarget


def new_target(settings: SinkSettings, secrets: Path) -> SinkTarget:
    """Raises BadSink: the client that it needs is not installed."""
    match settings.target:
        case HttpSettings() as http:
            return HttpTarget(http, secrets, settings.max_concurrency)
        case NatsSettings() as nats:
            return NatsTarget(nats, secrets)
        case KafkaSettings() as kafka:
            return KafkaTarget(kafka, secrets)


async def run_sink(settings: SinkSettings, secrets: Path, cluster: Cluster, address: str, log: Log) -> None:
    """Until SIGTERM or SIGINT. secrets: the directory with NAME/KEY. address: HOST:PORT to listen on; "": nowhere.

    Raises BadSink; OSError: it can't listen there.
    """
    sink = Sink(settings, new_target(settings, secrets), settings.target.timeout_ms, cluster, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sink.stop)
    async with contextlib.AsyncExitStack() as stack:
        if address:
            stack.push_async_callback((await _serve(sink, address)).cleanup)
        log({"event": "sink-started", "sink": settings.name, "topic": settings.topic, "group": settings.group})
        await sink.run()
        log({"event": "sink-stopped", "sink": settings.name, **sink.figures.counts()})


async def _serve(sink: Sink, address: str) -> web.AppRunner:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")  # the event loop turns; what the receiver does is no reason to be restarted

    async def status(_: web.Request) -> web.Response:
        return web.json_response(sink.report())

    async def metrics(_: web.Request) -> web.Response:
        body = generate_latest(sink.figures.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/status", status), web.get("/metrics", metrics)])
    try:
        listener = listen(*split(address))
    except (ValueError, OverflowError) as error:
        raise BadSink(f"--listen {address!r:.80}: {error}") from None
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner
