"""Waiting for what nobody tells: time that passes, another thread's bookkeeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(holds: Callable[[], bool], every_seconds: float) -> None:
    """Return when it holds; looked at now and again and again."""
    while True:
        if holds():
            return
        await asyncio.sleep(every_seconds)
