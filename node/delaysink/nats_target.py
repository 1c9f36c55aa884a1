"""Deliveries to a stream of NATS JetStream: each message as a CloudEvent, stored once while NATS remembers its id.

The bytes go where the sink's own spec says, never where a message does: the fence has nothing to say here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delaysink import events
from delaysink.events import OutgoingMessage, Undeliverable
from delaysink.nats_credentials import parse_credentials
from delaysink.outcome import Attempt, Verdict
from delaysink.secret_file import BadSecret, ParsedSecret
from delaysink.settings import BadSink, NatsSettings

if TYPE_CHECKING:
    from nats.aio.client import Client

MESSAGE_ID: Final = "Nats-Msg-Id"
"""JetStream stores a message of the same id once within its stream's duplicate window, 2 minutes by default."""


class NatsTarget:
    """A SinkTarget. Raises BadSink: nats-py is not installed."""

    def __init__(self, settings: NatsSettings, secrets: Path) -> None:
        try:
            import nats.errors
            from nats.aio.client import Client
        except ModuleNotFoundError:
            raise BadSink("spec.nats needs the package nats-py: delaycluster[sinks]") from None
        self._errors = nats.errors
        self._new_client = Client
        self._settings = settings
        self._timeout_s = settings.timeout_ms / 1_000
        key = settings.credentials
        self._credentials = None if key is None else ParsedSecret(secrets / key.path, parse_credentials)
        self._client: Client | None = None
        self._opening: asyncio.Task[Client] | None = None

    @property
    def problem(self) -> str:
        if self._credentials is None or self._client is None:
            return ""
        self.check_secrets()
        return self._credentials.problem

    def check_secrets(self) -> None:
        if self._credentials is not None:
            self._credentials.value()

    async def open(self) -> None:
        await self._connected()

    async def _connected(self) -> Client:
        """The client; a new one when NATS refused the one before while it was connected: nats-py then closes it for
        good. All that ask meanwhile share an attempt. Raises ConnectionError, BadSecret."""
        if self._client is None or self._client.is_closed:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._connect())
            self._client = await asyncio.shield(self._opening)
        return self._client

    async def _connect(self) -> Client:
        more: dict[str, Any] = {}
        self.check_secrets()
        if (credentials := self._credentials) is not None:
            more["user_jwt_cb"] = lambda: credentials.value().jwt  # asked for each connection
            more["signature_cb"] = lambda nonce: credentials.value().signature(nonce)
        said: dict[str, None] = {}  # of all attempts, each once: a refusal may also end as a reset connection

        async def tell(error: Exception) -> None:
            if client is not self._client:  # later each delivery has its own error
                said[str(error) or type(error).__name__] = None

        client = self._new_client()
        connecting = client.connect(
            list(self._settings.servers),
            max_reconnect_attempts=-1,  # for ever: meanwhile deliveries fail, and the circuit opens
            error_cb=tell,
            **more,
        )
        why = ""
        try:
            await asyncio.wait_for(connecting, self._timeout_s)
        except (self._errors.Error, ValueError, OSError, TimeoutError) as error:
            why = str(error) or "no answer"
        if client.is_connected:  # connect() also returns when NATS has closed the connection without a word
            return client
        await _end(client)
        servers, why = ", ".join(self._settings.servers), "; ".join(said) or why or "it closed the connection"
        raise ConnectionError(f"NATS at {servers} within {self._timeout_s:g} s: {why}"[:500])

    def receiver(self, message: OutgoingMessage) -> str:
        return ""

    async def deliver(self, message: OutgoingMessage) -> Attempt:
        try:
            kind = events.content_type(message, "application/octet-stream")
            found = events.attributes(message, self._settings.source, self._settings.type)
        except Undeliverable as error:
            return Attempt(Verdict.IMPOSSIBLE, str(error))
        headers = {**events.binary_headers(found), **events.trace_context(message)}
        headers |= {"content-type": kind, MESSAGE_ID: message.id}
        try:
            client = await self._connected()
        except (ConnectionError, BadSecret) as error:
            return Attempt(Verdict.FAILED, str(error))
        if len(message.body) > client.max_payload:
            limit = client.max_payload
            return Attempt(Verdict.IMPOSSIBLE, f"NATS takes {limit:,} bytes at most; it has {len(message.body):,}")
        try:
            await client.jetstream(timeout=self._timeout_s).publish(
                self._settings.subject, message.body, headers=headers
            )
        except TimeoutError:
            return Attempt(Verdict.OVERLOADED, f"no answer within {self._timeout_s:g} s")
        except (self._errors.Error, OSError) as error:
            return Attempt(Verdict.FAILED, f"{type(error).__name__}: {error}"[:500])
        return Attempt(Verdict.DELIVERED, "stored")

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._client is not None:
            await _end(self._client)
            self._client = None


async def _end(client: Client) -> None:
    # Where nats-py reconnects at this moment, its close() is cancelled by the reconnecting that it cancels.
    await asyncio.wait([asyncio.create_task(client.close())])
