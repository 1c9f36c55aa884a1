"""Which batch has which number: an idempotent producer's bookkeeping for one shard. Pure: no I/O, no clock.

The shard stores number n + 1 only after n, answers the last 16 numbers again and refuses all others (OUT_OF_ORDER).
From that follow the rules kept here:

- Numbers unanswered span at most 16, so that whatever is sent again gets its first answer.
- After a broken stream all unanswered batches are sent again in order, the same content under the same number.
- A refused batch (INVALID_ARGUMENT) has not used its number: what follows it takes the numbers from there on, once
  every later answer of the stream is in. When one of those numbers was also sent on an earlier stream that broke, a
  late copy of it may still reach the shard; then what follows goes on under a new producer id instead, for under the
  old one the refused number is never stored, hence nothing after it.
- A batch given up (its time is over) may have been stored. It keeps its place until all that were sent after it are
  answered or given up too; then the old id is left behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, Protocol, Self, TypeVar

from delayapi.codec import EnqueueResponseView

from delayclient.errors import DelayError, OutOfOrder, SendTimeout, UnknownProducer

WINDOW: Final = 16
"""Answers that a shard keeps for a producer."""


class Sendable(Protocol):
    """A batch as the window sees it: succeed() or fail() is called once, neither when split() gave parts."""

    @property
    def count(self) -> int: ...
    @property
    def deadline_s(self) -> float: ...

    def succeed(self, answer: EnqueueResponseView) -> None: ...
    def fail(self, error: DelayError) -> None: ...
    def split(self, error: DelayError) -> Sequence[Self]:
        """The parts to send instead of a refused batch; empty when the batch itself is what is wrong."""


B = TypeVar("B", bound=Sendable)


class SendAction(Enum):
    """The sender's next step after an answer."""

    CONTINUE = auto()
    DRAIN = auto()  # send nothing until every answer of this stream is in
    PAUSE = auto()  # drain, then wait before sending again
    REROUTE = auto()  # this node cannot store now: find the master, open a new stream


@dataclass(slots=True, eq=False)
class PendingSend(Generic[B]):
    """A numbered batch that has no final answer."""

    batch: B
    producer_id: int
    number: int
    replacements: Sequence[B] | None = None
    """Refused: what to send in its place, under its number."""
    given_up: bool = False


class SendWindow(Generic[B]):
    """The batches of one shard, from add() to their answers."""

    def __init__(self, new_producer_id: Callable[[], int]) -> None:
        self._new_producer_id = new_producer_id
        self.producer_id = new_producer_id()
        self._next = 0
        self._queue: deque[B] = deque()
        # In number order; at most WINDOW of them.
        self._unanswered: list[PendingSend[B]] = []
        # Sent on this stream, their answers awaited in this order.
        self._outstanding: deque[PendingSend[B]] = deque()
        # The first of _unanswered that was not sent on this stream.
        self._cursor = 0
        self._draining = False
        # The lowest refused number: what follows must be numbered anew from here.
        self._refused_from: int | None = None
        # The shard does not know the producer any more.
        self._forgotten = False
        # The highest number under this id that was ever left without an answer.
        self._in_doubt_to = -1

    @property
    def empty(self) -> bool:
        """Nothing is queued or unanswered."""
        return not self._queue and not self._unanswered

    @property
    def backed_up(self) -> bool:
        """Batches wait for a number."""
        return bool(self._queue)

    @property
    def outstanding(self) -> int:
        """Answers awaited on this stream."""
        return len(self._outstanding)

    def add(self, batch: B) -> None:
        """Takes a batch; it is sent after all that were added before."""
        self._queue.append(batch)

    def next_to_send(self) -> PendingSend[B] | None:
        """The next batch to send on this stream; None when there is none or none may be sent now."""
        if self._draining:
            if self._outstanding:
                return None
            self._resume()
        entry = self._next_entry()
        if entry is not None:
            self._outstanding.append(entry)
            self._cursor += 1
        return entry

    def _next_entry(self) -> PendingSend[B] | None:
        first = self._unanswered[0].number if self._unanswered else self._next
        if self._cursor < len(self._unanswered):
            entry = self._unanswered[self._cursor]
            # Behind a refused number nothing is sent until what is before it is settled.
            return None if self._refused_from is not None and entry.number >= self._refused_from else entry
        if not self._queue or self._next - first >= WINDOW or self._refused_from is not None:
            return None
        entry = PendingSend(self._queue.popleft(), self.producer_id, self._next)
        self._next += 1
        self._unanswered.append(entry)
        return entry

    def answered(self, answer: EnqueueResponseView, error: DelayError | None) -> SendAction:
        """Takes the stream's next answer: it belongs to the batch sent longest ago."""
        if not self._outstanding:
            raise DelayError("the node sent an answer to no request")
        entry = self._outstanding.popleft()
        if entry.producer_id != self.producer_id:
            return SendAction.CONTINUE  # given up with its id
        if error is None:
            self._stored(entry, answer)
            return SendAction.DRAIN if self._draining else SendAction.CONTINUE
        if isinstance(error, OutOfOrder | UnknownProducer):
            return self._out_of_order(entry, error)
        if error.retryable:
            if error.in_doubt:
                self._in_doubt_to = max(self._in_doubt_to, entry.number)
            self._draining = True
            return SendAction.PAUSE if error.reason in _SAME_NODE else SendAction.REROUTE
        self._refused(entry, error)
        return SendAction.DRAIN

    def _stored(self, entry: PendingSend[B], answer: EnqueueResponseView) -> None:
        self._remove(entry)
        if entry.given_up:
            return
        if answer.count != entry.batch.count:
            # Never believe an answer that is not this batch's: better a failure reported than a loss hidden.
            message = f"the answer is for {answer.count} messages, the batch has {entry.batch.count}"
            entry.batch.fail(DelayError(message, code="INTERNAL", reason="WRONG_ANSWER"))
            return
        entry.batch.succeed(answer)

    def _out_of_order(self, entry: PendingSend[B], error: DelayError) -> SendAction:
        self._draining = True
        is_first = bool(self._unanswered) and self._unanswered[0] is entry
        if not is_first or self._refused_from is not None:
            return SendAction.DRAIN  # follows from what happened to one before it
        expected = error.expected if isinstance(error, OutOfOrder) else None
        if expected is not None and expected > entry.number:
            # Stored, and its answer is no longer kept. Sending it again could only store it twice.
            self._remove(entry)
            if not entry.given_up:
                entry.batch.fail(SendTimeout(f"stored, but its answer was lost: {error.message}", maybe_stored=True))
        elif expected is None or expected < entry.number:
            # All before it were answered, so the shard has forgotten the producer (a day unseen).
            self._forgotten = True
        return SendAction.PAUSE

    def _refused(self, entry: PendingSend[B], error: DelayError) -> None:
        self._draining = True
        self._refused_from = entry.number if self._refused_from is None else min(self._refused_from, entry.number)
        entry.replacements = () if entry.given_up else entry.batch.split(error)
        if not entry.replacements and not entry.given_up:
            entry.given_up = True
            entry.batch.fail(error)

    def stream_ended(self) -> None:
        """The stream broke or was closed: what it left unanswered is in doubt and is sent again on the next one."""
        for entry in self._outstanding:
            if entry.producer_id == self.producer_id:
                self._in_doubt_to = max(self._in_doubt_to, entry.number)
        self._outstanding.clear()
        self._resume()

    def _resume(self) -> None:
        """Every answer of the stream is in or lost: number anew what has to be, and start over from the first."""
        self._draining = False
        self._cursor = 0
        if self._forgotten:
            self._renumber(0, fresh=True)
        elif self._refused_from is not None:
            before = any(entry.number < self._refused_from for entry in self._unanswered)
            tainted = self._in_doubt_to >= self._refused_from
            if before and tainted:
                return  # first those before it, still under the old id
            self._renumber(self._refused_from, fresh=tainted)

    def _renumber(self, number: int, *, fresh: bool) -> None:
        kept = [entry for entry in self._unanswered if entry.number < number]
        again: list[B] = []
        for entry in self._unanswered[len(kept) :]:
            if entry.replacements is not None:
                again.extend(entry.replacements)
            elif not entry.given_up:
                again.append(entry.batch)
        self._queue.extendleft(reversed(again))
        self._unanswered = kept
        self._next = number
        self._refused_from = None
        self._forgotten = False
        if fresh:
            self._start_over()

    def _start_over(self) -> None:
        self.producer_id = self._new_producer_id()
        self._next = 0
        self._in_doubt_to = -1

    def _remove(self, entry: PendingSend[B]) -> None:
        if entry in self._unanswered:
            index = self._unanswered.index(entry)
            del self._unanswered[index]
            if index < self._cursor:
                self._cursor -= 1
        # The last one before a refused number is settled: the stream may go on once it is drained.
        if self._refused_from is not None:
            self._draining = True

    def expire(self, now_s: float, why: str) -> None:
        """Fails every batch whose deadline is over."""
        while self._queue and self._queue[0].deadline_s <= now_s:
            self._queue.popleft().fail(SendTimeout(f"not sent in time: {why}", maybe_stored=False))
        for entry in self._unanswered:
            if not entry.given_up and entry.batch.deadline_s <= now_s:
                self._give_up(entry, f"no answer in time, it may be stored: {why}")
        if self._unanswered and all(entry.given_up for entry in self._unanswered):
            self._abandon()

    def _give_up(self, entry: PendingSend[B], message: str) -> None:
        entry.given_up = True
        refused = entry.replacements is not None
        for batch in entry.replacements or () if refused else (entry.batch,):
            batch.fail(SendTimeout(message, maybe_stored=not refused))
        if refused:
            entry.replacements = ()

    def fail_all(self, error: DelayError) -> None:
        """Fails everything: the topic is gone, or the producer is closed."""
        for entry in self._unanswered:
            if not entry.given_up:
                for batch in entry.replacements if entry.replacements is not None else (entry.batch,):
                    batch.fail(error)
        self._abandon()
        while self._queue:
            self._queue.popleft().fail(error)

    def _abandon(self) -> None:
        self._unanswered.clear()
        self._cursor = 0
        self._refused_from = None
        self._forgotten = False
        self._draining = False
        self._start_over()


_SAME_NODE: Final = frozenset({"BUSY", "DISK_FULL", "TOO_MANY_PRODUCERS", "TOO_MANY_MESSAGE_IDS", "QUOTA"})
"""Reasons after which the same node is asked again: it is the master, only full."""
