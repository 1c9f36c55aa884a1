"""A port for MessageService over HTTP, by TLS or without: connections that last, each by the newest certificates."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from delayapi.address import listen, split

from delaynode.config import NodeConfig
from delaynode.server.doors.http_json import HttpDoor
from delaynode.server.http import new_runner
from delaynode.server.listeners import Listener, NewestContext

HANDSHAKE_SECONDS = 5.0
MAX_HANDSHAKES = 64  # at once: the others wait to be accepted
IDLE_SECONDS = 75.0  # without a request, after which a connection ends
FIRST_SECONDS = 10.0  # for the first one
LOOK_SECONDS = 1.0


@dataclass(slots=True)
class _Asked:
    """What a connection's client asks for. since: of the last answer, time.monotonic(); left: seconds from then on."""

    since: float
    left: float = FIRST_SECONDS
    under_way: int = 0


class HttpPort:
    """Listens from start() on; the caller closes it. door: what answers."""

    def __init__(self, door: HttpDoor, listener: Listener, config: NodeConfig, log: Callable[..., None]) -> None:
        self._door, self._listener, self._log, self._most = door, listener, log, config.max_connections
        self._age_seconds = config.security.connection_age_s
        self._context = NewestContext(listener) if listener.config.tls else None
        app = web.Application(middlewares=[self._note])
        app.add_routes(door.routes())
        self._runner = new_runner(app)
        self._handshakes = asyncio.Semaphore(MAX_HANDSHAKES)
        self._open: set[asyncio.Task[None]] = set()
        self._asked: dict[object, _Asked] = {}  # by transport

    async def start(self) -> None:
        """Raises OSError."""
        await self._runner.setup()
        self._socket = listen(*split(self._listener.config.listen))
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    @web.middleware
    async def _note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that the connection is in use."""
        asked = self._asked.get(request.transport)
        if asked is None:
            return await handler(request)
        asked.under_way += 1
        try:
            return await handler(request)
        finally:
            asked.under_way -= 1
            asked.since, asked.left = time.monotonic(), IDLE_SECONDS

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
            await self._handshakes.acquire()
            try:
                taken, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # no file is left
                self._handshakes.release()
                self._log("http-port-refuses", reason=str(error))
                await asyncio.sleep(1.0)
                continue
            if len(self._open) >= self._most:
                self._handshakes.release()
                taken.close()
                continue
            task = asyncio.create_task(self._serve(taken))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _serve(self, taken: socket.socket) -> None:
        """One connection, from its handshake to its end. aiohttp answers on it."""
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None
        with contextlib.suppress(OSError):
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            peername = taken.getpeername()  # a transport of TLS that its client has ended knows it no more
            context = None if self._context is None else self._context()
            transport, _ = await loop.connect_accepted_socket(
                server, taken, ssl=context, ssl_handshake_timeout=None if context is None else HANDSHAKE_SECONDS
            )
        except OSError:  # it is no TLS, or too slow, or has no certificate that counts
            taken.close()
            return
        except asyncio.CancelledError:
            taken.close()
            raise
        finally:
            self._handshakes.release()
        asked = self._asked[transport] = _Asked(time.monotonic())
        aged = asked.since + self._age_seconds
        try:
            while not transport.is_closing():
                await asyncio.sleep(LOOK_SECONDS)
                now = time.monotonic()
                if not asked.under_way and (now - asked.since > asked.left or now > aged):
                    return  # also a client that does not end a request's head
        finally:
            del self._asked[transport]
            self._door.left(peername)
            transport.abort()
