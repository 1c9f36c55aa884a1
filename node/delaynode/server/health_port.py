"""The port that everybody may reach: /healthz and /readyz, and what else is served to everybody."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from delayapi.http_port import HttpPort

from delaynode.node.node import Node
from delaynode.server.http import common_routes

MAX_PROBES = 256
"""Connections where there is nothing but health and metrics: the kubelet's and Prometheus's."""


async def serve_http(node: Node, address: str, more: Sequence[web.RouteDef] = ()) -> HttpPort:
    """Listen on HOST:PORT; the caller closes it. more: what is served there besides."""
    app = web.Application()
    app.add_routes([*common_routes(node), *more])
    port = HttpPort(app, address, node.config.max_connections if more else MAX_PROBES, node.log)
    await port.start()
    return port
