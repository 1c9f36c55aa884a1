"""A port for HTTP by TLS, of which strangers can't do harm: that of metrics, of nodes and of the operator.

Prometheus comes a few times a minute. So each connection is for one request, and lasts half a minute at most; where
there are too many the oldest goes; and they are taken a few a second, so that strangers who come here keep Prometheus
waiting for some seconds, and not the event loop busy with handshakes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from delayapi.address import listen, split
from delayapi.certificates import Certificates, load_chain

HANDSHAKE_SECONDS = 5.0
CONNECTION_SECONDS = 30.0
MAX_CONNECTIONS = 64
SECONDS_APART = 0.02  # 50 handshakes a second
LOOK_SECONDS = 0.5

Handler = Callable[[web.Request], Awaitable[web.Response]]


class SecuredPort:
    """Listens at HOST:PORT from the first moment; the caller closes it. context: for the next handshake, or OSError
    where there is none; None: the port is one without TLS."""

    def __init__(
        self,
        runner: web.AppRunner,
        address: str,
        context: Callable[[], ssl.SSLContext] | None,
        log: Callable[[str, str], None],
    ) -> None:
        """log: an event, and its reason."""
        self._runner, self._context, self._log = runner, context, log
        self._socket = listen(*split(address))
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
                self._log("metrics-port-refuses", str(error))
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
        tls = self._context is not None
        try:
            transport, _ = await loop.connect_accepted_socket(
                server,
                taken,
                ssl=None if self._context is None else self._context(),
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


def server_context(own: Certificates, client_roots_pem: bytes | None) -> ssl.SSLContext:
    """TLS 1.3 with that chain. client_roots_pem: who may have issued the certificate that each client must have; None:
    clients are not asked for one. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # every connection begins with a whole handshake, by the newest certificates
    if client_roots_pem is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_roots_pem.decode())
    load_chain(context, own)
    return context


async def serve_one_request(
    path: str,
    handler: Handler,
    address: str,
    context: Callable[[], ssl.SSLContext] | None,
    log: Callable[[str, str], None],
) -> SecuredPort:
    """A SecuredPort with `handler` at `path` and nothing else."""

    async def once(request: web.Request) -> web.Response:
        answer = await handler(request)
        answer.force_close()
        return answer

    app = web.Application()
    app.add_routes([web.get(path, once)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    return SecuredPort(runner, address, context, log)
