"""The HTTP/2 connections to one endpoint: one, and more when many calls wait at once.

A node takes a thousand calls at once over a connection (`grpc.max_concurrent_streams` in `delaynode/main.py`). Further
ones would wait in the channel, unseen, behind long polls: a consumer of a thousand queues would not even learn whether
the node is alive.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

CALLS_PER_CONNECTION: Final = 500
"""At once; after so many a further connection is made."""

Options = tuple[tuple[str, Any], ...]


class Connection:
    """One channel. `calls`: in progress, counted by who makes them."""

    def __init__(self, address: str, options: Options, credentials: grpc.ChannelCredentials | None) -> None:
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=options)
        self.calls = 0
        self._methods: dict[str, Any] = {}

    def unary(self, path: str) -> Any:
        """The callable of a unary method, of raw bytes."""
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = self.channel.unary_unary(path)
        return method

    def ended(self, _: Any = None) -> None:
        """A call has ended: for its add_done_callback()."""
        self.calls -= 1


class Connections:
    """Owned by the event loop. Connects at first use. credentials: of TLS; None: plain text."""

    def __init__(self, address: str, options: Options, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._address, self._credentials = address, credentials
        # Channels with the same address and options would share one connection without it.
        self._options: Options = (*options, ("grpc.use_local_subchannel_pool", 1))
        self._all = [Connection(address, self._options, credentials)]

    def __len__(self) -> int:
        return len(self._all)

    def pick(self) -> Connection:
        """One with room for a call."""
        for connection in self._all:
            if connection.calls < CALLS_PER_CONNECTION:
                return connection
        connection = Connection(self._address, self._options, self._credentials)
        self._all.append(connection)
        return connection

    async def close(self) -> None:
        """Calls in progress fail."""
        for connection in self._all:
            await connection.channel.close()
