"""The calls that doors make inside, for calls that are made to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from delaynode.auth.identity import Identity
from delaynode.server.edge import Call

LATER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call that a door makes for one of its own, with the time that this has left."""

    call: Call
    until: float  # time.monotonic()

    def peer(self) -> str:
        return self.call.peer()

    def listener(self) -> str:
        return self.call.listener()

    def forwarded(self) -> bool:
        return False

    def identity(self) -> Identity:
        return self.call.identity()

    def metadata(self, name: str) -> str | None:
        return self.call.metadata(name)

    def on_done(self, done: Callable[[], None]) -> None:
        self.call.on_done(done)

    def time_remaining(self) -> float:
        return max(0.0, self.until - time.monotonic())


@dataclass(frozen=True, slots=True)
class LaterCall:
    """A call for a client whose own call is over."""

    caller: Identity
    by: str
    connection: str

    def peer(self) -> str:
        return self.connection

    def listener(self) -> str:
        return self.by

    def forwarded(self) -> bool:
        return False

    def identity(self) -> Identity:
        return self.caller

    def metadata(self, name: str) -> str | None:
        return None

    def on_done(self, done: Callable[[], None]) -> None:
        """It has no end: whoever makes it gives back what it took."""

    def time_remaining(self) -> float:
        return LATER_SECONDS
