"""Which nodes can be reached from here, and who is told when one falls silent.

A node that cannot be reached may be asked through another one: any node forwards. But most nodes that cannot be
reached are dead, and then a fallback does not help: until one has worked, only a few calls a second try it.

An idle long poll is silent for seconds, so its node is asked for a sign of life, once for all polls there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from delayclient.errors import DelayError, Unavailable

PING_INTERVAL_S: Final = 1.0
"""Between two signs of life that are asked for."""
PATIENCE_S: Final = 0.6
"""An answer that takes longer is a reason to look whether the shard has another master by now."""
RECHECK_S: Final = 0.25
"""Between two such looks."""
SILENT_S: Final = 3.0
"""After so long without a sign of life a node is tried to be reached another way."""
_TRIAL_S: Final = 0.1
"""Between two calls that try a node that could not be reached."""
_PROBE_FIRST_S: Final = 0.1
_PROBE_LAST_S: Final = 1.0
_PROBE_ANSWER_S: Final = 2.0

Leave = Callable[[DelayError], None]
"""Ends a long poll: its node does not answer."""


@dataclass(slots=True)
class _UnreachableEndpoint:
    """A node that could not be reached. forwarder: another one that has passed a call on to it since."""

    probe: asyncio.Task[None]
    trial_at_s: float = 0.0
    forwarder: str = ""


@dataclass(slots=True)
class _Polls:
    leave: dict[Leave, None] = field(default_factory=dict)
    heard_s: float = 0.0
    watcher: asyncio.Task[None] | None = None


class Reachability:
    """Owned by the event loop. `ping(endpoint, seconds)`: it answered. `silent(endpoint)`: its routes are in doubt."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        ping: Callable[[str, float], Awaitable[bool]],
        on_silent: Callable[[str], None],
    ) -> None:
        self._endpoints = endpoints
        self._ping = ping
        self._on_silent = on_silent
        self._unreachable: dict[str, _UnreachableEndpoint] = {}
        self._polls: dict[str, _Polls] = {}
        self._suspect: set[str] = set()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for away in self._unreachable.values():
            away.probe.cancel()
        for polls in self._polls.values():
            if polls.watcher is not None:
                polls.watcher.cancel()

    # -------------------------------------------------------------------------------------------- ways

    def is_suspect(self, endpoint: str) -> bool:
        """It did not answer when it was asked last."""
        return endpoint in self._unreachable or endpoint in self._suspect

    def is_unreachable(self, endpoint: str) -> bool:
        """It could not be reached, and has not answered since."""
        return endpoint in self._unreachable

    def resolve(self, endpoint: str) -> str:
        """The endpoint itself, or one of the user's that passes calls on. Raises Unavailable: not now."""
        away = self._unreachable.get(endpoint)
        if away is None:
            return endpoint
        if away.forwarder and away.forwarder not in self._unreachable:
            return away.forwarder
        now_s = asyncio.get_running_loop().time()
        if now_s < away.trial_at_s:
            raise Unavailable(f"{endpoint} cannot be reached", code="UNAVAILABLE")
        away.trial_at_s = now_s + _TRIAL_S
        return next((other for other in self._endpoints if other not in self._unreachable), endpoint)

    def record_success(self, endpoint: str, master: str = "") -> None:
        """A call to an endpoint was answered; it was meant for `master`."""
        polls = self._polls.get(endpoint)
        if polls is not None:
            polls.heard_s = asyncio.get_running_loop().time()
        if self._unreachable and master != endpoint:
            away = self._unreachable.get(master)
            if away is not None:
                away.forwarder = endpoint

    def record_failure(self, endpoint: str, error: DelayError, master: str = "") -> None:
        """A call to an endpoint failed; one that cannot be reached is avoided until it can."""
        if self._unreachable and master and master != endpoint:
            away = self._unreachable.get(master)
            if away is not None:
                away.forwarder = ""
        if (
            isinstance(error, Unavailable)
            and not error.reason
            and endpoint not in self._unreachable
            and not self._closed
        ):
            self._unreachable[endpoint] = _UnreachableEndpoint(asyncio.create_task(self._probe(endpoint)))

    def on_elected(self, endpoint: str) -> None:
        """A shard has its master there now: the cluster, at least, can reach it."""
        away = self._unreachable.pop(endpoint, None)
        if away is not None:
            away.probe.cancel()

    async def _probe(self, endpoint: str) -> None:
        for failures in itertools.count():
            await asyncio.sleep(min(_PROBE_LAST_S, _PROBE_FIRST_S * 2 ** min(failures, 10)))
            if await self._ping(endpoint, _PROBE_ANSWER_S):
                break
        self._unreachable.pop(endpoint, None)

    # ------------------------------------------------------------------------------------------- polls

    def poll_opened(self, endpoint: str, leave: Leave) -> None:
        """A long poll begins there; `leave` is called when it should be given up."""
        polls = self._polls.setdefault(endpoint, _Polls())
        polls.leave[leave] = None
        if polls.watcher is None and not self._closed:
            polls.heard_s = asyncio.get_running_loop().time()
            polls.watcher = asyncio.create_task(self._watch(endpoint, polls))

    def poll_closed(self, endpoint: str, leave: Leave) -> None:
        """The poll has ended."""
        polls = self._polls.get(endpoint)
        if polls is not None:
            polls.leave.pop(leave, None)

    async def _watch(self, endpoint: str, polls: _Polls) -> None:
        loop = asyncio.get_running_loop()
        try:
            while polls.leave:
                wait_s = polls.heard_s + PING_INTERVAL_S - loop.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                elif await self._alive(endpoint):
                    polls.heard_s = loop.time()
                else:
                    error = Unavailable(f"{endpoint} does not answer", code="DEADLINE_EXCEEDED")
                    self.record_failure(endpoint, error)
                    for leave in list(polls.leave):
                        leave(error)
                    await asyncio.sleep(PING_INTERVAL_S)
        finally:
            polls.watcher = None
            if not polls.leave:
                self._polls.pop(endpoint, None)

    async def _alive(self, endpoint: str) -> bool:
        """Asks for a sign of life; while there is none, the routes that lead there are in doubt."""
        ping = asyncio.ensure_future(self._ping(endpoint, SILENT_S))
        try:
            wait_s = PATIENCE_S
            while not (await asyncio.wait({ping}, timeout=wait_s))[0]:
                wait_s = RECHECK_S
                self._suspect.add(endpoint)
                self._on_silent(endpoint)
            return ping.result()
        finally:
            self._suspect.discard(endpoint)
            ping.cancel()
