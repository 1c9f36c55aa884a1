"""A port for HTTP, by TLS or without: connections that last, bounded in number and time, so that strangers do no harm.

Where there are too many, the one goes that has asked for nothing the longest: who holds connections keeps nobody out,
the kubelet's probes least of all. A handshake has less time while many are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from delayapi.address import listen, split

HANDSHAKE_SECONDS = 5.0
CROWDED_SECONDS = 1.0  # for a handshake, while half of MAX_HANDSHAKES are under way
MAX_HANDSHAKES = 256  # at once: the others wait to be accepted
IDLE_SECONDS = 75.0  # without a request, after which a connection ends
FIRST_SECONDS = 10.0  # for the first one
LOOK_SECONDS = 1.0
PROBE_SECONDS = 10  # of silence, after which TCP asks whether the client's machine is still there, and again
PROBES = 2  # without an answer, then the connection ends
UNREAD_SECONDS = 60  # in which a client takes nothing of what it was sent, or its machine acknowledges nothing


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class _HttpConnection:
    """since: of the last answer, time.monotonic(); left: seconds from then on. aged: when it has lasted long enough."""

    peername: Any
    since: float
    aged: float
    left: float
    under_way: int = 0


class _NotClients(logging.Filter):
    """What clients send that is no HTTP is none of this program's faults: it is answered, and written down nowhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (HttpProcessingError, web.RequestPayloadError, ConnectionError))


def _new_runner(app: web.Application, *, cancels: bool) -> web.AppRunner:
    logger = logging.getLogger("delayapi.http")
    if not logger.filters:
        logger.addFilter(_NotClients())
    return web.AppRunner(
        app, access_log=None, logger=logger, handler_cancellation=cancels, keepalive_timeout=IDLE_SECONDS
    )


def _expecting(handle: Handler) -> Handler:
    """Expect is refused here where it is no text: aiohttp repeats it in its own refusal, and fails at that."""

    async def checked(request: web.BaseRequest) -> web.StreamResponse:
        if not request.headers.get("Expect", "").isascii():
            raise web.HTTPExpectationFailed(text="the header Expect isn't ASCII; allowed: 100-continue")
        return await handle(request)

    return checked


class HttpPort:
    """Listens from start() on; the caller closes it. app: what answers. most: connections. context: for the next
    handshake, or OSError where there is none; None: without TLS. age_s: after which a connection ends. left: told of
    each that has ended, by its peer's name. cancels: handlers end when their client goes.
    """

    def __init__(
        self, app: web.Application, address: str, most: int, log: Callable[..., None], *,
        context: Callable[[], ssl.SSLContext] | None = None, age_s: float = float("inf"),
        left: Callable[[Any], None] = lambda peername: None, cancels: bool = True,
    ) -> None:  # fmt: skip
        self._address, self._most, self._log = address, most, log
        self._context, self._age_s, self._left = context, age_s, left
        app.middlewares.insert(0, self._note)  # also of requests that another one answers
        self._runner = _new_runner(app, cancels=cancels)
        self._places = asyncio.Semaphore(MAX_HANDSHAKES)
        self._beginning: set[asyncio.Task[None]] = set()
        self._open: dict[Any, _HttpConnection] = {}  # by transport
        self._idle: dict[Any, None] = {}  # those without a request, first the one that has been so the longest

    async def start(self) -> None:
        """Raises OSError."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        server.request_handler = _expecting(server.request_handler)
        self._socket = listen(*split(self._address))
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._running = [asyncio.create_task(one()) for one in (self._accept, self._look)]

    async def close(self) -> None:
        tasks = [*self._running, *self._beginning]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in [*self._open]:
            self._end(transport)
        self._socket.close()
        await self._runner.cleanup()

    @web.middleware
    async def _note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that the connection is in use."""
        transport = request.transport
        one = self._open.get(transport)
        if one is None:
            return await handler(request)
        one.under_way += 1
        self._idle.pop(transport, None)
        try:
            return await handler(request)
        finally:
            one.under_way -= 1
            one.since, one.left = time.monotonic(), IDLE_SECONDS
            if not one.under_way and transport in self._open:
                self._idle[transport] = None

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                taken, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # no file is left
                self._places.release()
                self._log("http-port-refuses", reason=str(error))
                await asyncio.sleep(1.0)
                continue
            if not self._make_room():
                self._places.release()
                taken.close()
                continue
            task = asyncio.create_task(self._begin(taken))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _make_room(self) -> bool:
        """For one connection more. False: all are in use."""
        if len(self._open) + len(self._beginning) < self._most:
            return True
        longest = next(iter(self._idle), None)
        if longest is None:
            return False
        self._end(longest)
        return True

    async def _begin(self, taken: socket.socket) -> None:
        """A connection's handshake. aiohttp answers on it from then on."""
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None
        with contextlib.suppress(OSError):
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _end_when_silent(taken)
        seconds = HANDSHAKE_SECONDS if 2 * len(self._beginning) <= MAX_HANDSHAKES else CROWDED_SECONDS
        try:
            peername = taken.getpeername()  # a transport of TLS that its client has ended knows it no more
            context = None if self._context is None else self._context()
            transport, _ = await loop.connect_accepted_socket(
                server, taken, ssl=context, ssl_handshake_timeout=None if context is None else seconds
            )
        except OSError:  # it is no TLS, or too slow, or has no certificate that counts
            taken.close()
            return
        except asyncio.CancelledError:
            taken.close()
            raise
        finally:
            self._places.release()
        now = time.monotonic()
        self._open[transport] = _HttpConnection(peername, now, now + self._age_s, FIRST_SECONDS)
        self._idle[transport] = None

    async def _look(self) -> None:
        """For those that have ended, and that are to end: also one whose client does not end a request's head."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            for transport, one in [*self._open.items()]:
                over = not one.under_way and (now - one.since > one.left or now > one.aged)
                if over or transport.is_closing():
                    self._end(transport)

    def _end(self, transport: Any) -> None:
        one = self._open.pop(transport)
        self._idle.pop(transport, None)
        self._left(one.peername)
        transport.abort()


def _end_when_silent(taken: socket.socket) -> None:
    """Also a connection whose client was unplugged ends, and with it what was handed out to nobody."""
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1_000)
