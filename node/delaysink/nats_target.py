"""Deliveries to a stream of NATS JetStream: each message as a CloudEvent, stored once while NATS remembers its id.

The bytes go where the sink's own spec says, never where a message does: the fence has nothing to say here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delaysink import events
from delaysink.events import OutgoingMessage, Undeliverable
from delaysink.outcome import Attempt, Verdict
from delaysink.settings import BadSink, NatsSettings
from delaysink.signing import SecretFile

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
        self._credentials = None if settings.credentials is None else SecretFile(secrets / settings.credentials.path)
        self._client: Client | None = None

    async def open(self) -> None:
        if self._client is not None:
            return
        more: dict[str, Any] = {}
        if self._credentials is not None:
            self._credentials.read()  # or it says which file is missing
            more["user_credentials"] = str(self._credentials.path)
        client = self._new_client()
        connecting = client.connect(
            list(self._settings.servers),
            max_reconnect_attempts=-1,  # for ever: meanwhile deliveries fail, and the circuit opens
            error_cb=_already_said,
            **more,
        )
        try:
            await asyncio.wait_for(connecting, self._timeout_s)
        except (self._errors.Error, ValueError, OSError, TimeoutError) as error:
            await client.close()
            servers = ", ".join(self._settings.servers)
            raise ConnectionError(f"NATS at {servers} within {self._timeout_s:g} s: {error or 'no answer'}") from None
        self._client = client

    def receiver(self, message: OutgoingMessage) -> str:
        return ""

    async def deliver(self, message: OutgoingMessage) -> Attempt:
        assert self._client is not None
        try:
            kind = events.content_type(message, "application/octet-stream")
            found = events.attributes(message, self._settings.source, self._settings.type)
        except Undeliverable as error:
            return Attempt(Verdict.IMPOSSIBLE, str(error))
        headers = {**events.binary_headers(found), **events.trace_context(message)}
        headers |= {"content-type": kind, MESSAGE_ID: message.id}
        if len(message.body) > self._client.max_payload:
            limit = self._client.max_payload
            return Attempt(Verdict.IMPOSSIBLE, f"NATS takes {limit:,} bytes at most; it has {len(message.body):,}")
        try:
            await self._client.jetstream(timeout=self._timeout_s).publish(
                self._settings.subject, message.body, headers=headers
            )
        except TimeoutError:
            return Attempt(Verdict.OVERLOADED, f"no answer within {self._timeout_s:g} s")
        except (self._errors.Error, OSError) as error:
            return Attempt(Verdict.FAILED, f"{type(error).__name__}: {error}"[:500])
        return Attempt(Verdict.DELIVERED, "stored")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


async def _already_said(_: Exception) -> None:
    """Each delivery has its own error, and a lost connection is that of those under way."""
