"""Waiting: for time that passes, for another thread's bookkeeping, for futures and events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any


async def wait_until(holds: Callable[[], bool], every_seconds: float) -> None:
    """Return when it holds; looked at now and again and again."""
    while True:
        if holds():
            return
        await asyncio.sleep(every_seconds)


async def all_done(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Return when all have ended, whatever came of them.

    A caller that is cancelled cancels none of them, as gather() would: a thread that runs for one goes on, and nobody
    would wait for it any more.
    """
    if pending := [one for one in futures if not one.done()]:
        await asyncio.wait(pending)


class Wakeup:
    """Wakes the one task that waits, and costs less than wait_event(). What is set before somebody waits is lost."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return once somebody sets it, or after `seconds`."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self.set)
        try:
            await self._waiting
        finally:
            timer.cancel()


async def wait_event(event: asyncio.Event, seconds: float | None) -> None:
    """Return once somebody sets it, or after `seconds`; it is clear from then on."""
    with suppress(TimeoutError):
        try:
            async with asyncio.timeout(seconds):  # wait_for() may swallow the cancellation of stop()
                await event.wait()
        finally:
            event.clear()
