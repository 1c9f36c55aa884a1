"""The interface that a sink delivers through: by HTTP, to NATS or to Kafka."""

from __future__ import annotations

from typing import Protocol

from delaysink.events import OutgoingMessage
from delaysink.outcome import Attempt


class SinkTarget(Protocol):
    """What messages are delivered to. Belongs to one event loop; many deliveries may be under way."""

    @property
    def problem(self) -> str:
        """Of a secret that was changed, and can't be used: the one before is. "": all are as they should be."""

    def check_secrets(self) -> None:
        """Raises BadSecret: one is missing or malformed."""

    async def open(self) -> None:
        """Before the first delivery. Raises BadSecret, OSError: not now; it is tried again."""

    def receiver(self, message: OutgoingMessage) -> str:
        """Whom this message is for: each receiver has a pace of its own. "": the sink's one receiver."""

    async def deliver(self, message: OutgoingMessage) -> Attempt:
        """One attempt, which ends within the sink's time-out."""

    async def close(self) -> None:
        """Ends what is open."""
