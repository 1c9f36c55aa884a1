"""The operator's /metrics on a port of its own, by TLS, for who has a certificate of the CA that is given: all of
them, or those that are named."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection

from aiohttp import web
from cryptography import x509
from delayapi.certificates import Certificates, CertificateStore, names_of
from delayapi.secured_http import Handler, SecuredPort, serve_one_request, server_context

from delayoperator.control_loop.loop import Log


class MetricsPort:
    """The caller closes it."""

    def __init__(self, store: CertificateStore, port: SecuredPort) -> None:
        self._store, self._port = store, port
        self.address = port.address

    async def close(self) -> None:
        await self._port.close()
        await asyncio.to_thread(self._store.close)


async def serve_metrics(
    handler: Handler, address: str, certificates: str, log: Log, clients: Collection[str] = ()
) -> MetricsPort:
    """address: HOST:PORT. certificates: a directory, as delayapi.certificates reads it; replaced ones are taken up.
    clients: one of these names the client's certificate must have, as names_of() writes them; empty: any."""
    store = CertificateStore(certificates)
    newest: tuple[Certificates, ssl.SSLContext] | None = None
    told: str | None = None

    def context() -> ssl.SSLContext:
        nonlocal newest, told
        if store.problem != told:
            told = store.problem
            log({"event": "certificate-unusable" if told else "certificate-usable", "use": "metrics", "reason": told})
        held = store.current
        if held is None or not held.roots_pem:
            raise OSError("there is no certificate with a ca.crt that could be used")
        if newest is None or newest[0] is not held:
            newest = held, server_context(held, held.roots_pem)
        return newest[1]

    def tell(event: str, reason: str) -> None:
        log({"event": event, "reason": reason})

    async def guarded(request: web.Request) -> web.Response:
        names = _client_names(request)
        if not clients or not names.isdisjoint(clients):
            return await handler(request)
        found = ", ".join(sorted(names)) or "nobody"
        said = f"the client's certificate is of {found}; expected one of: {', '.join(clients)}"
        log({"event": "metrics-refused", "reason": said})
        return web.Response(status=403, text=said)

    port = await serve_one_request("/metrics", guarded, address, context, tell)
    store.start()
    return MetricsPort(store, port)


def _client_names(request: web.Request) -> frozenset[str]:
    connection: ssl.SSLObject | None = request.get_extra_info("ssl_object")
    shown = None if connection is None else connection.getpeercert(binary_form=True)
    return frozenset(names_of(x509.load_der_x509_certificate(shown)) if shown else ())
