"""/metrics on a port of its own (`--metrics-listener`), by TLS and for those who may Describe all topics, whose names
are labels there."""

from __future__ import annotations

import ssl

from aiohttp import web
from cryptography import x509
from delayapi.certificates import names_of
from delayapi.secured_http import SecuredPort, serve_one_request
from delayregistry.security import Operation

from delaynode.node.node import Node
from delaynode.server.callers import Callers, Said
from delaynode.server.http import metrics_handler
from delaynode.server.listeners import NewestContext, metrics_listener
from delaynode.store.errors import Refused

STATUS = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}


async def serve_metrics(node: Node) -> SecuredPort | None:
    """None: metrics are at --http."""
    listener = metrics_listener(node.config, node.certificates)
    if listener is None:
        return None
    callers = Callers(node.security.identities(), [listener], now_ms=node.clock.now_ms)
    all_metrics = metrics_handler(node)

    async def metrics(request: web.Request) -> web.Response:
        try:
            if listener.identifies:
                said = Said(_names(request), request.headers.get("authorization"), None)
                caller = await callers.find(listener.name, said)
                node.security.rights.check(caller.identity, Operation.DESCRIBE)
        except Refused as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.reason == "UNAUTHENTICATED" else {}
            return web.Response(status=STATUS.get(error.reason, 503), text=f"{error}\n", headers=headers)
        return await all_metrics(request)

    def log(event: str, reason: str) -> None:
        node.log(event, reason=reason)

    contexts = NewestContext(listener) if listener.config.tls else None
    return await serve_one_request("/metrics", metrics, listener.config.listen, contexts, log)


def _names(request: web.Request) -> tuple[str, ...]:
    """Of the client's verified certificate."""
    secured: ssl.SSLObject | None = request.get_extra_info("ssl_object")
    data = None if secured is None else secured.getpeercert(binary_form=True)
    return () if data is None else names_of(x509.load_der_x509_certificate(data))
