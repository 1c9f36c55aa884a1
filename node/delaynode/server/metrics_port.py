"""/metrics on a port of its own (`--metrics-listener`), by TLS and for those who may Describe all topics, whose names
are labels there.

Prometheus comes a few times a minute. So each connection is for one request, and lasts half a minute at most; where
there are too many the oldest goes; and they are taken a few a second, so that strangers who come here keep Prometheus
waiting for some seconds, and not the event loop busy with handshakes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from aiohttp import web
from cryptography import x509
from delayapi.address import listen, split
from delayapi.certificates import load_chain, names_of
from delayregistry.security import Operation

from delaynode.node.node import Node
from delaynode.server.callers import Callers, Said
from delaynode.server.http import metrics_handler
from delaynode.server.listeners import Listener, Material, metrics_listener
from delaynode.store.errors import Refused

HANDSHAKE_SECONDS = 5.0
CONNECTION_SECONDS = 30.0
MAX_CONNECTIONS = 64
SECONDS_APART = 0.02  # 50 handshakes a second
LOOK_SECONDS = 0.5
STATUS = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}


class MetricsPort:
    """Listens from the first moment; the caller closes it."""

    def __init__(self, listener: Listener, runner: web.AppRunner, log: Callable[..., None]) -> None:
        self._listener, self._runner, self._log = listener, runner, log
        self._contexts: tuple[Material, ssl.SSLContext] | None = None
        self._socket = listen(*split(listener.config.listen))
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._open: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        self._accepting.cancel()
        for task in (*self._open,):
            task.cancel()
        await asyncio.gather(self._accepting, *self._open, return_exceptions=True)
        self._socket.close()
        await self._runner.cleanup()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # no file is left
                self._log("metrics-port-refuses", reason=str(error))
                await asyncio.sleep(1.0)
                continue
            if len(self._open) >= MAX_CONNECTIONS:
                next(iter(self._open)).cancel()
            task = asyncio.create_task(self._serve(taken))
            self._open[task] = None
            task.add_done_callback(self._open.pop)
            await asyncio.sleep(SECONDS_APART)

    async def _serve(self, taken: socket.socket) -> None:
        """One connection, from its handshake to its end. aiohttp answers on it."""
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None
        tls = self._listener.config.tls
        try:
            transport, _ = await loop.connect_accepted_socket(
                server,
                taken,
                ssl=self._context() if tls else None,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
            )
        except (OSError, asyncio.CancelledError):  # it is no TLS, or too slow, or has no certificate that counts
            taken.close()
            return
        try:
            for _ in range(int(CONNECTION_SECONDS / LOOK_SECONDS)):
                if transport.is_closing():  # aiohttp has answered; what is left is sent
                    loop.call_later(CONNECTION_SECONDS, transport.abort)
                    return
                await asyncio.sleep(LOOK_SECONDS)
            transport.abort()
        except asyncio.CancelledError:
            transport.abort()

    def _context(self) -> ssl.SSLContext:
        """Of the newest certificates. Raises OSError."""
        material = self._listener.material()
        if material is None:
            raise OSError("there is no certificate that could be used")
        if self._contexts is None or self._contexts[0] != material:
            self._contexts = material, _context(material)
        return self._contexts[1]


async def serve_metrics(node: Node) -> MetricsPort | None:
    """None: metrics are at --http."""
    listener = metrics_listener(node.config, node.certificates)
    if listener is None:
        return None
    callers, all_metrics = Callers(node.security.identities(), [listener]), metrics_handler(node)

    async def metrics(request: web.Request) -> web.Response:
        answer = await checked(request)
        answer.force_close()
        return answer

    async def checked(request: web.Request) -> web.Response:
        try:
            if listener.identifies:
                said = Said(_names(request), request.headers.get("authorization"), None)
                caller = await callers.find(listener.name, said)
                node.security.rights.check(caller.identity, Operation.DESCRIBE)
        except Refused as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.reason == "UNAUTHENTICATED" else {}
            return web.Response(status=STATUS.get(error.reason, 503), text=f"{error}\n", headers=headers)
        return await all_metrics(request)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    return MetricsPort(listener, runner, node.log)


def _names(request: web.Request) -> tuple[str, ...]:
    """Of the client's verified certificate."""
    secured: ssl.SSLObject | None = request.get_extra_info("ssl_object")
    data = None if secured is None else secured.getpeercert(binary_form=True)
    return () if data is None else names_of(x509.load_der_x509_certificate(data))


def _context(material: Material) -> ssl.SSLContext:
    """Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # every connection begins with a whole handshake, by the newest certificates
    if material.client_roots_pem is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=material.client_roots_pem.decode())
    load_chain(context, material.own)
    return context
