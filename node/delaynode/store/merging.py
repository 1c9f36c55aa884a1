"""Batches of many requests into few frames: which of them share one, and what becomes of those that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TypeAlias

from delaynode.store.errors import Refused
from delaynode.store.log.frames import SINCE_FORMAT, FrameKind
from delaynode.store.log.incoming_batch import IncomingBatch, split
from delaynode.store.shard import Appended, Shard

MAX_BATCH_BYTES = 64 << 10  # a larger batch has a frame of its own: to join it, its records would be copied
MAX_FRAME_BYTES = 1 << 20  # of records
MAX_FRAME_MESSAGES = 65_536
MAX_FRAME_REQUESTS = 1_024  # each takes a slave's event loop some microseconds, whatever it has


Answer: TypeAlias = "Appended | Exception | list[tuple[IncomingBatch, Appended | Exception]]"
"""Of a batch of many requests that is stored whole, its first sequence and dues; else the answer to each request."""


class Merger:
    """Stores batches, in order, at one moment. A batch joins the frame when its requests are the next of their
    producers as the frame would leave them; any other one ends the frame first: a retry of a batch in it, or a producer
    that is not known yet, for which the table may have to forget others. One of many requests is then split. Batches
    with message ids share frames with each other alone, which have those of their messages that are not stored yet.

    check: raises Refused for a batch that may not be stored now; then each request has a frame of its own.
    """

    def __init__(self, shard: Shard, now_ms: int, check: Callable[[IncomingBatch], None] | None = None) -> None:
        self._shard, self._now_ms, self._check = shard, now_ms, check
        self._waiting: set[int] = set()  # producers with a batch that waits for the clock

    def enqueue(self, batches: Sequence[IncomingBatch]) -> list[Answer]:
        """The answer to each, or its refusal. After a request that waits for the clock (CLOCK_BEHIND) its producer's
        later ones do so too, where they would be OUT_OF_ORDER."""
        if len(batches) == 1 and not batches[0].runs:
            return [self._store_one(batches[0])]
        answers: list[Answer] = []
        for has_ids, some in groupby(batches, lambda batch: bool(len(batch.ids))):
            answers += (self._enqueue_ids if has_ids else self._enqueue)([*some])
        return answers

    def _enqueue(self, batches: Sequence[IncomingBatch]) -> list[Answer]:
        answers: list[Answer] = []
        frame: list[IncomingBatch] = []
        last: dict[int, int] = {}  # the number of each producer's last batch in `frame`
        size = messages = requests = 0
        for batch in batches:
            size, messages = size + len(batch.records), messages + len(batch.time)
            requests += len(batch.requests)
            full = size > MAX_FRAME_BYTES or messages > MAX_FRAME_MESSAGES or requests > MAX_FRAME_REQUESTS
            if full or (joined := self._joined(batch, last)) is None:
                answers += self._store(frame)
                frame, last = [], {}
                size, messages, requests = len(batch.records), len(batch.time), len(batch.requests)
                if (joined := self._joined(batch, last)) is None:
                    answers.append(self._store_alone(batch))
                    size = messages = requests = 0
                    continue
            frame.append(batch)
            last |= joined
        return answers + self._store(frame)

    def _enqueue_ids(self, batches: Sequence[IncomingBatch]) -> list[Answer]:
        answers: list[Answer] = []
        frame: list[IncomingBatch] = []
        size = messages = 0
        for batch in batches:
            size, messages = size + len(batch.records), messages + len(batch.time)
            if size > MAX_FRAME_BYTES or messages > MAX_FRAME_MESSAGES or len(frame) >= MAX_FRAME_REQUESTS:
                answers += self._store_ids(frame)
                frame, size, messages = [], len(batch.records), len(batch.time)
            frame.append(batch)
        return answers + self._store_ids(frame)

    def _store_ids(self, frame: Sequence[IncomingBatch]) -> list[Answer]:
        if len(frame) > 1 and self._check is None and self._shard.damaged is None:
            with suppress(Exception):  # of one of them: the others are stored without it
                return [*self._shard.append_ids(frame, self._now_ms)]
        return [self._store_one(batch) for batch in frame]

    def _joined(self, batch: IncomingBatch, last: dict[int, int]) -> dict[int, int] | None:
        """The numbers of its producers' last batches once it has joined the frame; None: it may not."""
        if self._check is not None or SINCE_FORMAT[FrameKind.APPEND_RUNS] > self._shard.format:
            return None
        if len(batch.records) > MAX_BATCH_BYTES and len(batch.requests) == 1:
            return None
        joined: dict[int, int] = {}
        for producer, number, _ in batch.requests:
            if producer in self._waiting:
                return None
            if producer:
                before = joined.get(producer, last.get(producer))
                if before is None:
                    before = self._shard.producers.last_number(producer)
                if before is None or number != before + 1:
                    return None
                joined[producer] = number
        return joined

    def _store_alone(self, batch: IncomingBatch) -> Answer:
        if not batch.runs:
            return self._store_one(batch)
        stored: list[tuple[IncomingBatch, Appended | Exception]] = []
        parts = list(split(batch))
        for part, answer in zip(parts, self.enqueue(parts), strict=True):
            assert not isinstance(answer, list), "a request by itself has one answer"
            stored.append((part, answer))
        return stored

    def _store(self, frame: list[IncomingBatch]) -> list[Answer]:
        if self._shard.damaged is not None or (len(frame) == 1 and not frame[0].runs):
            return [self._store_alone(batch) for batch in frame]
        if not frame:
            return []
        try:
            return [*self._shard.append_runs(frame, self._now_ms)]
        except Exception:  # of one of them: the others are stored without it
            pass  # outside, where no error's context is this one
        if any(batch.runs for batch in frame):
            return [self._store_alone(batch) for batch in frame]
        return self._store_others(frame)

    def _store_others(self, frame: list[IncomingBatch]) -> list[Answer]:
        """Some of these are not stored, mostly for their dues: store the others."""
        answers: list[Answer | None] = []
        refused: set[int] = set()  # their producers: whose later batches are looked at anew
        for batch in frame:
            error = None if batch.producer in refused else self._error_of(batch)
            answers.append(error)
            if error is not None and batch.producer:
                refused.add(batch.producer)
        good = [batch for batch, answer in zip(frame, answers, strict=True) if answer is None]
        if len(good) == len(frame):
            stored: Iterator[Answer] = iter([self._store_one(batch) for batch in good])
        else:
            stored = iter(self.enqueue(good))
        return [next(stored) if answer is None else answer for answer in answers]

    def _error_of(self, batch: IncomingBatch) -> Exception | None:
        """Why the batch can't be stored, whatever its number."""
        try:
            self._check_may_store(batch)
            self._shard.resolve_due(batch, self._now_ms)
        except Refused as refused:
            return self._refused(batch, refused)
        except Exception as error:  # nobody else's
            return error
        return None

    def _store_one(self, batch: IncomingBatch) -> Appended | Exception:
        try:
            self._check_may_store(batch)
            if self._check is not None:
                self._check(batch)
            return self._shard.enqueue(batch, self._now_ms)
        except Refused as refused:
            return self._refused(batch, refused)
        except Exception as error:  # nobody else's
            return error

    def _check_may_store(self, batch: IncomingBatch) -> None:
        if self._shard.damaged is not None:
            raise Refused("SHARD_DAMAGED", self._shard.damaged)
        if batch.producer in self._waiting and not self._shard.producers.has(batch.producer, batch.number):
            raise Refused("CLOCK_BEHIND", "an earlier batch of its producer waits for this node's clock; retry")

    def _refused(self, batch: IncomingBatch, refused: Refused) -> Refused:
        if batch.producer and refused.reason == "CLOCK_BEHIND":
            self._waiting.add(batch.producer)
        return refused.fresh()
