"""The operator's /metrics on a port of its own, by TLS and for those who have a certificate of the CA that is given."""

from __future__ import annotations

import asyncio
import ssl

from delayapi.certificates import Certificates, CertificateStore
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


async def serve_metrics(handler: Handler, address: str, certificates: str, log: Log) -> MetricsPort:
    """address: HOST:PORT. certificates: a directory, as delayapi.certificates reads it; replaced ones are taken up."""
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

    port = await serve_one_request("/metrics", handler, address, context, tell)
    store.start()
    return MetricsPort(store, port)
