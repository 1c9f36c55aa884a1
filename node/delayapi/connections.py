"""The HTTP/2 connections to one endpoint: one, and more when many calls wait at once.

A node takes a thousand calls at once over a connection (`grpc.max_concurrent_streams` in `delaynode/main.py`). Further
ones would wait in the channel, unseen, behind long polls: a consumer of a thousand queues would not even learn whether
the node is alive.

A channel keeps the certificates that it was made with. Once those change, new calls go to new channels; the old ones
carry the calls in progress to their ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

CALLS_PER_CONNECTION: Final = 500
"""At once; after so many a further connection is made."""

Options = tuple[tuple[str, Any], ...]


class Connection:
    """One channel. `calls`: in progress, counted by who makes them."""

    def __init__(self, address: str, options: Options, credentials: grpc.ChannelCredentials | None) -> None:
        self.channel = (
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
        )
        self.calls = 0
        self._methods: dict[str, Any] = {}
        self._drained: Callable[[], None] | None = None

    def unary(self, path: str) -> Any:
        """The callable of a unary method, of raw bytes."""
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = self.channel.unary_unary(path)
        return method

    def ended(self, _: Any = None) -> None:
        """A call has ended: for its add_done_callback()."""
        self.calls -= 1
        if self._drained is not None and self.calls == 0:
            self._drained()

    def drain(self, drained: Callable[[], None]) -> None:
        """Calls `drained` once there are no calls in progress: from now on none begins."""
        self._drained = drained
        if self.calls == 0:
            drained()


class Connections:
    """Owned by the event loop. Connects at first use."""

    def __init__(
        self,
        address: str,
        options: Options,
        credentials: Callable[[], grpc.ChannelCredentials | None] = lambda: None,
    ) -> None:
        """credentials: of channels made now; the same object until they change. None: without TLS."""
        self._address = address
        # Channels with the same address and options would share one connection without it.
        self._options: Options = (*options, ("grpc.use_local_subchannel_pool", 1))
        self._credentials = credentials
        self._made_with = credentials()
        self._all = [self._connection()]
        self._draining: set[Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def draining(self) -> int:
        """Connections with former certificates that still carry calls."""
        return len(self._draining)

    def pick(self) -> Connection:
        """One with room for a call, which has to begin before anything else is awaited."""
        credentials = self._credentials()
        if credentials is not self._made_with:
            former, self._all, self._made_with = self._all, [], credentials
            for connection in former:
                self._draining.add(connection)
                connection.drain(lambda connection=connection: self._close(connection))  # type: ignore[misc]
        for connection in self._all:
            if connection.calls < CALLS_PER_CONNECTION:
                return connection
        connection = self._connection()
        self._all.append(connection)
        return connection

    async def close(self) -> None:
        """Calls in progress fail."""
        for connection in (*self._all, *self._draining):
            await connection.channel.close()
        await asyncio.gather(*self._closing)

    def _connection(self) -> Connection:
        return Connection(self._address, self._options, self._made_with)

    def _close(self, connection: Connection) -> None:
        self._draining.discard(connection)
        task = asyncio.get_running_loop().create_task(connection.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
