"""Who is signed in at a console in a cluster: kept in memory alone, bounded in number and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from delayconsole.visitor import Visitor

MAX_SESSIONS: Final = 1_000
"""The one that was used longest ago goes for a new one."""
LIFETIME_S: Final = 8 * 3_600.0
IDLE_S: Final = 3_600.0

Close = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Session:
    """close: ends the visitor's connections. until_s: when it is over, however much it is used."""

    visitor: Visitor
    close: Close
    until_s: float
    used_s: float


class Sessions:
    """By the secret in the browser's cookie. now_s: a monotonic clock. Belongs to an event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._by_cookie: dict[str, Session] = {}  # the one that was used longest ago first
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_cookie)

    def begin(self, visitor: Visitor, close: Close, lifetime_s: float) -> str:
        """Returns the cookie. lifetime_s: of what the visitor has shown; no session is longer than LIFETIME_S."""
        now_s = self._now_s()
        for cookie in [it for it, session in self._by_cookie.items() if self._is_over(session, now_s)]:
            self.end(cookie)
        while len(self._by_cookie) >= MAX_SESSIONS:
            self.end(next(iter(self._by_cookie)))
        cookie = visitor.session.cookie
        self._by_cookie[cookie] = Session(visitor, close, now_s + min(lifetime_s, LIFETIME_S), now_s)
        return cookie

    def find(self, cookie: str | None) -> Visitor | None:
        """None: there is none, or it is over."""
        found = None if cookie is None else self._by_cookie.pop(cookie, None)
        if cookie is None or found is None:
            return None
        self._by_cookie[cookie] = found
        now_s = self._now_s()
        if self._is_over(found, now_s):
            self.end(cookie)
            return None
        found.used_s = now_s
        return found.visitor

    def end(self, cookie: str | None) -> None:
        found = None if cookie is None else self._by_cookie.pop(cookie, None)
        if found is not None:
            task = asyncio.create_task(found.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for cookie in [*self._by_cookie]:
            self.end(cookie)
        await asyncio.gather(*self._closing, return_exceptions=True)

    @staticmethod
    def _is_over(session: Session, now_s: float) -> bool:
        return now_s >= session.until_s or now_s - session.used_s >= IDLE_S
