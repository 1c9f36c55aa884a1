"""Arrivals: batches on their way into a shard's log. What comes while a write is under way goes with the next one, in
as few frames as may be (store/merging.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import IncomingBatch, split
from delaynode.store.merging import Answer
from delaynode.store.shard import Appended

LATE_SECONDS = 0.005
"""So long a batch waits for the write under way: a delay counts from the time at which it is appended."""
CLOCK_RETRY_SECONDS = 0.02
CLOCK_RETRY_SHARE = 0.1  # of the event loop's time, where many batches are held
CLOCK_WAIT_SECONDS = 1.0
"""So long a batch waits for a clock that is behind what was released."""


Stored: TypeAlias = "asyncio.Future[Appended | list[asyncio.Future[Appended]]]"
"""To come: the answer to a batch. To one of many requests: the answer to all of them, at their commit; or at once an
answer to come for each, where they are not all stored together."""


class Appender(Protocol):
    """The shard's host."""

    def check_may_append(self) -> None:
        """Raises Refused."""

    def is_stored(self, batch: IncomingBatch) -> bool:
        """Whether it is a retry."""

    def append(self, batches: list[IncomingBatch]) -> list[Answer]:
        """The answer to each batch, or why it is not stored."""

    def fail(self, why: str, error: Exception) -> None:
        """The copy is of no use any more: refuse_all() is called."""

    def answer_at_commit(self, answer: Stored, appended: Appended) -> None: ...


@dataclass(eq=False, slots=True)
class Arrival:
    batch: IncomingBatch
    answer: Stored
    until: float  # loop.time(): so long it waits for the clock


class Arrivals:
    """Owned by the event loop. wake: something may be to be written; returns whether append() is called now for
    certain."""

    def __init__(self, appender: Appender, wake: Callable[[], bool]) -> None:
        self._appender, self._wake = appender, wake
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Arrival] = []  # for the next write
        self._held: list[Arrival] = []  # until the clock has caught up
        self._held_producers: set[int] = set()
        self._late: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._retry_seconds = CLOCK_RETRY_SECONDS
        self.messages = self.record_bytes = 0  # in batches that are not appended yet

    def add(self, batch: IncomingBatch) -> Stored:
        """The answer comes once the batch is committed; Refused where it is not stored."""
        answer: Stored = self._loop.create_future()
        if batch.runs and self._held_producers:  # some of its requests may have to wait behind those
            answer.set_result([self.add(part) for part in split(batch)])  # type: ignore[misc]
            return answer
        one = Arrival(batch, answer, self._loop.time() + CLOCK_WAIT_SECONDS)
        self._count(batch, 1)
        if batch.producer in self._held_producers and not self._appender.is_stored(batch):
            self._held.append(one)  # not before the one that is held
            return answer
        self._waiting.append(one)
        if not self._wake() and self._late is None:
            self._late = self._loop.call_later(LATE_SECONDS, self._append_late)
        return answer

    def append(self) -> None:
        """Append what has come, in the order in which it came. To be called before each write."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._waiting:
            arrived, self._waiting = self._waiting, []
            self._append(arrived)

    def refuse_all(self, refusal: Callable[[], Refused]) -> None:
        """Nothing is appended any more."""
        refused = self._waiting + self._held
        self._waiting, self.messages, self.record_bytes = [], 0, 0
        self._hold([])
        for one in refused:
            if not one.answer.done():
                one.answer.set_exception(refusal())
                one.answer.exception()  # a caller that went away does not collect it
        for timer in (self._late, self._retry):
            if timer is not None:
                timer.cancel()

    def _count(self, batch: IncomingBatch, sign: int) -> None:
        self.messages += sign * len(batch.time)
        self.record_bytes += sign * len(batch.records)

    def _append(self, arrived: list[Arrival]) -> None:
        for one in arrived:
            self._count(one.batch, -1)
        try:
            self._append_those(arrived)
        except Exception as error:
            why = f"appending: {type(error).__name__}: {error}"
            for one in arrived:
                if not one.answer.done():
                    one.answer.set_exception(Refused("SHARD_DAMAGED", why))
            self._appender.fail(why, error)

    def _append_those(self, arrived: list[Arrival]) -> None:
        for one in arrived:
            if not one.answer.done():  # who has gone has stored nothing
                try:
                    self._appender.check_may_append()
                except Refused as refused:  # each has an error of its own
                    one.answer.set_exception(refused.fresh())
        arrived = [one for one in arrived if not one.answer.done()]
        if not arrived:
            return
        answers = self._appender.append([one.batch for one in arrived])
        now = self._loop.time()
        held: list[Arrival] = []
        for one, answer in zip(arrived, answers, strict=True):
            if isinstance(answer, list):
                parts = [Arrival(part, self._loop.create_future(), one.until) for part, _ in answer]
                one.answer.set_result([part.answer for part in parts])  # type: ignore[misc]
                for part, (_, its_answer) in zip(parts, answer, strict=True):
                    self._settle(part, its_answer, held, now)
            else:
                self._settle(one, answer, held, now)
        if held:
            for one in held:
                self._count(one.batch, 1)
            self._hold(self._held + held)

    def _settle(self, one: Arrival, answer: Appended | Exception, held: list[Arrival], now: float) -> None:
        if isinstance(answer, Appended):
            if not len(one.batch.relative) and answer.seq is None:
                answer.due = None  # the caller knows it; if that one goes, the request's bytes go too
            self._appender.answer_at_commit(one.answer, answer)
        elif isinstance(answer, Refused) and answer.reason == "CLOCK_BEHIND" and now < one.until:
            held.append(one)
        else:
            one.answer.set_exception(answer)

    def _hold(self, held: list[Arrival]) -> None:
        self._held = held
        self._held_producers = {one.batch.producer for one in held} - {0}
        if held and self._retry is None:
            self._retry = self._loop.call_later(self._retry_seconds, self._append_held)

    def _append_late(self) -> None:
        self._late = None
        if self._waiting:
            self.append()
            self._wake()

    def _append_held(self) -> None:
        began = self._loop.time()
        held, self._held, self._held_producers = self._held, [], set()
        self._append(held)
        self._retry = None
        self._retry_seconds = max(CLOCK_RETRY_SECONDS, (self._loop.time() - began) / CLOCK_RETRY_SHARE)
        self._hold(self._held)
        self._wake()
