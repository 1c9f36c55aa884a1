"""Arrivals: batches on their way into a shard's log. What comes while a write is under way goes with the next one, in
as few frames as may be (store/merging.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.shard import Appended

LATE_SECONDS = 0.005
"""So long a batch waits for the write under way: a delay counts from the time at which it is appended."""
CLOCK_RETRY_SECONDS = 0.02
CLOCK_WAIT_SECONDS = 1.0
"""So long a batch waits for a clock that is behind what was released."""


class Appender(Protocol):
    """The shard's host."""

    def check_may_append(self) -> None:
        """Raises Refused."""

    def append(self, batches: list[IncomingBatch]) -> list[Appended | Exception]:
        """The answer to each batch, or why it is not stored."""

    def answer_at_commit(self, answer: asyncio.Future[Appended], appended: Appended) -> None: ...


@dataclass(eq=False, slots=True)
class Arrival:
    batch: IncomingBatch
    answer: asyncio.Future[Appended]
    until: float  # loop.time(): so long it waits for the clock


class Arrivals:
    """Owned by the event loop. wake: something may be to be written."""

    def __init__(self, appender: Appender, wake: Callable[[], None]) -> None:
        self._appender, self._wake = appender, wake
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Arrival] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, batch: IncomingBatch) -> asyncio.Future[Appended]:
        """The answer comes once the batch is committed; Refused where it is not stored."""
        answer: asyncio.Future[Appended] = self._loop.create_future()
        self._waiting.append(Arrival(batch, answer, self._loop.time() + CLOCK_WAIT_SECONDS))
        self._append_within(LATE_SECONDS)
        self._wake()
        return answer

    def append(self) -> None:
        """Append what has come, in the order in which it came. To be called before each write."""
        arrived = [one for one in self._waiting if not one.answer.done()]  # who has gone has stored nothing
        self._waiting = []
        if not arrived:
            return
        for one in arrived:
            try:
                self._appender.check_may_append()
            except Refused as refused:  # each has an error of its own
                one.answer.set_exception(refused.fresh())
        arrived = [one for one in arrived if not one.answer.done()]
        try:
            answers = self._appender.append([one.batch for one in arrived])
        except Exception:
            self._waiting = arrived  # to be refused with the rest: the copy stops
            raise
        now = self._loop.time()
        for one, answer in zip(arrived, answers, strict=True):
            if isinstance(answer, Appended):
                self._appender.answer_at_commit(one.answer, answer)
            elif isinstance(answer, Refused) and answer.reason == "CLOCK_BEHIND" and now < one.until:
                self._waiting.append(one)
            else:
                one.answer.set_exception(answer)
        if self._waiting:
            self._append_within(CLOCK_RETRY_SECONDS)

    def refuse_all(self, refusal: Callable[[], Refused]) -> None:
        """Nothing is appended any more."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.answer.done():
                one.answer.set_exception(refusal())
                one.answer.exception()  # a caller that went away does not collect it
        if self._timer is not None:
            self._timer.cancel()

    def _append_within(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._append_late)

    def _append_late(self) -> None:
        self._timer = None
        if self._waiting:
            self.append()
            self._wake()
