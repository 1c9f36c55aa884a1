"""The node's event loop: asyncio's, with timers that are exact.

asyncio waits with epoll, which takes whole milliseconds: a timer is late by 0.5 ms on average, and by 1 ms when it is
due within one. Here a timerfd ends the wait.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import selectors
import time
from typing import Final

CLOCK_MONOTONIC: Final = 1
SECOND_NS: Final = 1_000_000_000
SAME_NS: Final = 20_000
"""A timer that is set to within so much of the time is not set again. A wait that ends so early is followed by another
one, for what is left."""

FRESH_NS: Final = 100_000
"""For so long after a look for events there is none before what is to be done anyway."""
MAX_EVENTS: Final = 1024
"""Taken at a look; others are there at the next one."""


class TimerSpec(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = [
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("in_s", ctypes.c_long),
        ("in_ns", ctypes.c_long),
    ]


class ExactSelector(selectors.EpollSelector):
    """Its timeouts are exact to some 0.05 ms. Raises OSError where there can be no timerfd."""

    def __init__(self) -> None:
        super().__init__()
        libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock: these calls never wait
        self._set_time = libc.timerfd_settime
        self._spec = TimerSpec()
        self._spec_at = ctypes.byref(self._spec)
        self._timer: int = libc.timerfd_create(CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._timer < 0:
            super().close()
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._fresh_until_ns = 0
        self._ends_ns = 0  # of the clock: what the timer is set to
        # Edge-triggered and unknown to the mapping: it ends a wait, and nobody has to read it or is told of it.
        self._selector.register(self._timer, select.EPOLLIN | select.EPOLLET)  # type: ignore[attr-defined]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            wait_ns, now_ns = max(1, int(timeout * SECOND_NS)), time.monotonic_ns()
            # Most waits end by something else, and the next one is for the same time.
            if self._ends_ns <= now_ns or abs(now_ns + wait_ns - self._ends_ns) > SAME_NS:
                self._spec.in_s, self._spec.in_ns = divmod(wait_ns, SECOND_NS)
                self._set_time(self._timer, 0, self._spec_at, None)
                self._ends_ns = now_ns + wait_ns
            timeout = None
        elif timeout is not None and time.monotonic_ns() < self._fresh_until_ns:
            return []  # there is something to do, and it was looked just now
        # As EpollSelector.select() does it, in fewer steps: there are thousands of turns a second.
        keys: dict[int, selectors.SelectorKey] = self._fd_to_key  # type: ignore[attr-defined]
        try:
            polled = self._selector.poll(-1 if timeout is None else 0, MAX_EVENTS)  # type: ignore[attr-defined]
        except InterruptedError:
            return []
        self._fresh_until_ns = time.monotonic_ns() + FRESH_NS
        ready = []
        for descriptor, event in polled:
            if (key := keys.get(descriptor)) is not None:
                read, write = event & ~select.EPOLLOUT, event & ~select.EPOLLIN
                events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
                ready.append((key, events & key.events))
        return ready

    def close(self) -> None:
        os.close(self._timer)
        super().close()


def new_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(ExactSelector())
