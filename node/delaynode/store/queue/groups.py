"""A share group's progress through one shard's ConsumeQueue.

    done below      a window of at most max_unacked offsets           not looked at yet
    ---------- first_unacked -------------------------- window_end -------------------- queue end

Inside the window each offset is FREE (to be handed out once visible), OUT (handed out, until its deadline) or DONE.
What frames say (DONE, attempts, retry times, dead letters) is the same on every replica; OUT is memory of the master.
Messages that died are DONE in the window and stand in the table of queue/dead_letters.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from delaynode.store.log.offsets import expand, rows_at
from delaynode.store.queue.consume_queue import NEVER, ConsumeQueue
from delaynode.store.queue.dead_letters import DeadLetters
from delaynode.store.types import I64, U32, Array, Bools

FREE, OUT, DONE = 0, 1, 2
FILTER_STEP = 4096  # offsets taken into the window at a time under a tag filter that may leave most of them out
COUNT_ROWS = 1 << 19  # units that counts() reads at most to learn which of them a tag filter takes
FIRST_CHOSEN = 4096  # messages in a group's first delivery at most
LEAST_CHOSEN = 1024  # and so many in another, if they are there and fit
NO_OFFSETS: I64 = np.empty(0, np.int64)
NO_ATTEMPTS: U32 = np.empty(0, np.uint32)
MAX_ATTEMPT = 2**16 - 1  # a message that can't become a dead letter is tried again for ever: its attempts stay here


@dataclass(slots=True)  # not frozen: one is made for each message, see docs/benchmarks.md
class DeliveryAttempts:
    """n messages given to one consumer: queue offsets i64[n], ascending, attempts u32[n] (1 is the first)."""

    offset: I64
    attempt: U32


@dataclass(frozen=True, slots=True)
class GroupCounts:
    available: int
    in_flight: int
    waiting_retry: int
    dead: int
    redriven: int  # dead letters at work again; the three above count them too


@dataclass(slots=True)
class CommitDependency:
    """The frames that a delivery rests on: it is answered once they are committed. Memory of the master.

    They are those that made the group, ended attempts or redrove dead letters, not the APPENDs and TICKs under way
    beside them. An ACK or a TRIM only takes away; but an offset that is within the window only thanks to those under
    way would be refused when it is acknowledged, had the next master not got them.
    """

    last_change: int = 0  # log offset: the end of the last one that does more than move the window on
    _moves: deque[tuple[int, int]] = field(default_factory=deque)
    """ACKs and TRIMs under way, in their order: the log offset of the end, the group's first_unacked before it."""

    def add_window_move(self, first_unacked: int, end: int, committed_offset: int) -> None:
        """An ACK or a TRIM was proposed that ends at log offset `end`; `first_unacked`: the group's before it."""
        while self._moves and self._moves[0][0] <= committed_offset:
            self._moves.popleft()
        self._moves.append((end, first_unacked))

    @property
    def last(self) -> int:
        """The end of the last of all these; it may be committed."""
        return max(self.last_change, self._moves[-1][0] if self._moves else 0)

    def depends_on(self, first_unacked: int) -> int:
        """The log offset by which all frames end that a delivery rests on.

        first_unacked: the lowest that the group may have if the delivery is to lie within its window, which is the
        delivery's highest queue offset + 1, less the window's size.
        """
        if not self._moves or self._moves[0][1] >= first_unacked:
            return self.last_change
        return max(self.last_change, next(end for end, before in reversed(self._moves) if before < first_unacked))


class Group:
    """tags: the filter, empty for all. max_unacked: offsets that the window may hold."""

    def __init__(self, name: str, tags: tuple[str, ...], tag_hashes: U32, first_unacked: int, max_unacked: int) -> None:
        self.name = name
        self.tags = tags
        self.tag_hashes = tag_hashes
        self.max_unacked = max_unacked
        self.first_unacked = first_unacked
        self.window_end = first_unacked  # first offset outside the window
        self._origin = first_unacked  # the offset of row 0
        self._state = np.zeros(1024, np.uint8)
        self._attempt = np.ones(1024, np.uint16)
        self._visible = np.zeros(1024, np.int64)  # ms: to be handed out from then on
        self._until = np.zeros(1024, np.int64)  # ms: OUT until then
        self._next_visible = NEVER  # no FREE row of the window is visible before this
        self._next_expiry = NEVER  # no OUT row expires before this
        self.last_delivered = (0, 0)  # the messages of the last delivery, and their records' bytes
        self.dead_letters = DeadLetters()
        self.commit_dependency = CommitDependency()
        self._counted = first_unacked  # under a filter: [window_end, _counted) was read for counts() ...
        self._matches = 0  # ... and has so many messages that the filter takes

    # ------------------------------------------------------------ the window's rows
    def _extend_window_to(self, end: int, queue: ConsumeQueue) -> None:
        """Take offsets up to `end` into the window; under a filter in steps, so that what is left out takes no room."""
        while self.window_end < end:
            self._extend_window(min(end, self.window_end + FILTER_STEP) if len(self.tag_hashes) else end, queue)
            self._next_visible = 0

    def skip_filtered(self, queue: ConsumeQueue, max_units: int) -> bool:
        """Raise first_unacked over what the filter leaves out, as far as deliver() may have done on another master.

        Looks at about `max_units` units; True when there are more to look at.
        """
        last = min(queue.visible, self.window_end + max_units)
        while len(self.tag_hashes) and self.first_unacked == self.window_end < last:
            self._extend_window_to(min(queue.visible, self.window_end + min(FILTER_STEP, self.max_unacked)), queue)
        return bool(len(self.tag_hashes)) and self.first_unacked == self.window_end < queue.visible

    def _extend_window(self, end: int, queue: ConsumeQueue) -> None:
        """A step of _extend_window_to(): those that the filter leaves out are DONE from the start."""
        self._make_room(end)
        rows = slice(self.window_end - self._origin, end - self._origin)
        self._state[rows], self._attempt[rows], self._visible[rows] = FREE, 1, 0
        if len(self.tag_hashes):
            mine = np.isin(queue.read(self.window_end, end - self.window_end)["tag"], self.tag_hashes)
            self._state[rows] = np.where(mine, FREE, DONE)
            self._on_window_extended(end, int(np.count_nonzero(mine)))
        self.window_end = end
        if len(self.tag_hashes):
            self._advance_first_unacked()

    def _make_room(self, end: int) -> None:
        if end - self._origin <= len(self._state):
            return
        keep = slice(self.first_unacked - self._origin, self.window_end - self._origin)
        size = max(1024, 1 << (2 * (end - self.first_unacked) - 1).bit_length())
        columns = []
        for column in (self._state, self._attempt, self._visible, self._until):
            grown = np.zeros(size, column.dtype)
            grown[: keep.stop - keep.start] = column[keep]
            columns.append(grown)
        self._state, self._attempt, self._visible, self._until = columns
        self._origin = self.first_unacked

    def _count_matching(self, begin: int, end: int, queue: ConsumeQueue) -> int:
        """How many messages of [begin, end) are this group's."""
        if not len(self.tag_hashes):
            return end - begin
        parts = (queue.read(at, min(FILTER_STEP, end - at))["tag"] for at in range(begin, end, FILTER_STEP))
        return sum(int(np.count_nonzero(np.isin(tags, self.tag_hashes))) for tags in parts)

    def _on_window_extended(self, end: int, matches: int) -> None:
        """The window goes up to `end`, over so many messages that the filter takes."""
        if end < self._counted:
            self._matches -= matches
        else:
            self._counted, self._matches = end, 0

    def _advance_first_unacked(self) -> None:
        low, high = self.first_unacked - self._origin, self.window_end - self._origin
        if low < high and self._state[low] != DONE:
            return
        if low + 1 == high or (low + 1 < high and self._state[low + 1] != DONE):
            self.first_unacked += 1
            return
        open_rows = np.flatnonzero(self._state[low : min(low + 64, high)] != DONE)
        if not len(open_rows):
            open_rows = np.flatnonzero(self._state[low:high] != DONE)
        self.first_unacked += int(open_rows[0]) if len(open_rows) else high - low

    def _rows(self, offsets: I64) -> npt.NDArray[np.int64]:
        return offsets - self._origin

    def _in_window(self, offsets: I64) -> I64:
        return offsets[(offsets >= self.first_unacked) & (offsets < self.window_end)]

    # ------------------------------------------------------------ handing out (memory of the master)
    def likely_to_fit(self, max_bytes: int) -> int:
        """How many messages to choose for `max_bytes`, by the size of those of the last delivery."""
        count, size = self.last_delivered
        return max(LEAST_CHOSEN, max_bytes * count // size) if size else FIRST_CHOSEN

    def deliver(self, queue: ConsumeQueue, now_ms: int, until_ms: int, max_messages: int) -> DeliveryAttempts:
        """Up to `max_messages` visible messages, now OUT until `until_ms`; redriven ones first, then retries."""
        again, attempts = NO_OFFSETS, NO_ATTEMPTS
        if self.dead_letters.next_visible <= now_ms:
            again, attempts = self.dead_letters.deliver(now_ms, until_ms, max_messages)
        chosen = self._choose(queue, now_ms, max_messages - len(again))
        rows = self._rows(chosen)
        self._state[rows], self._until[rows] = OUT, until_ms
        if len(chosen):
            self._next_expiry = min(self._next_expiry, until_ms)
        own = self._attempt[rows].astype(np.uint32)
        if not len(again):
            return DeliveryAttempts(chosen, own)
        return DeliveryAttempts(np.concatenate((again, chosen)), np.concatenate((attempts, own)))

    @property
    def next_expiry(self) -> int:
        """Nothing that is handed out expires before this, ms; NEVER when nothing is."""
        return min(self._next_expiry, self.dead_letters.next_expiry)

    def _choose(self, queue: ConsumeQueue, now_ms: int, max_messages: int) -> I64:
        found = NO_OFFSETS
        if max_messages > 0 and self._next_visible <= now_ms:
            low, high = self.first_unacked - self._origin, self.window_end - self._origin
            free = np.flatnonzero(self._state[low:high] == FREE) + low
            visible = self._visible[free] <= now_ms
            found = (free[visible][:max_messages] + self._origin).astype(np.int64)
            left = free if not len(found) else np.setdiff1d(free, found - self._origin, assume_unique=True)
            self._next_visible = int(self._visible[left].min()) if len(left) else NEVER
        next_look = self._next_visible
        while len(found) < max_messages:
            begin, remaining = self.window_end, max_messages - len(found)
            step = max(remaining, FILTER_STEP) if len(self.tag_hashes) else remaining
            end = min(queue.visible, self.first_unacked + self.max_unacked, begin + step)
            if end <= begin:
                break
            self._extend_window_to(end, queue)
            if not len(self.tag_hashes):  # all that is new is FREE
                new = np.arange(begin, end)
                found = np.concatenate((found, new)) if len(found) else new
                continue
            begin = max(begin, self._origin)
            rows = np.flatnonzero(self._state[begin - self._origin : end - self._origin] == FREE)
            if len(rows) > remaining:
                next_look = 0
            found = np.concatenate((found, rows[:remaining] + begin))
            self._advance_first_unacked()
        self._next_visible = next_look
        return found

    def undo_delivery(self, offsets: I64, until_ms: int) -> None:
        """These were handed out until `until_ms`, but not sent: what is still so is free again, same attempt."""
        positions, again = self.dead_letters.find_redriven(offsets)
        self.dead_letters.undo_delivery(positions[again], until_ms)
        rows = self._in_window(offsets[~again]) - self._origin
        rows = rows[(self._state[rows] == OUT) & (self._until[rows] == until_ms)]
        self._state[rows] = FREE
        if len(rows):
            self._next_visible = 0

    def extend(self, offsets: I64, until_ms: int) -> None:
        """These, whose attempts are not over, are OUT until `until_ms`; 0: they are free again, same attempt."""
        positions, again = self.dead_letters.find_redriven(offsets)
        self.dead_letters.extend(positions[again], until_ms)
        rows = self._in_window(offsets[~again]) - self._origin
        self._state[rows], self._until[rows] = OUT if until_ms else FREE, until_ms
        if len(rows) and until_ms:
            self._next_expiry = min(self._next_expiry, until_ms)
        elif len(rows):
            self._next_visible = 0

    def readable(self, queue: ConsumeQueue, now_ms: int) -> bool:
        """Whether deliver() could find something now (a filter may still leave it empty)."""
        return (
            self.window_end < min(queue.visible, self.first_unacked + self.max_unacked)
            or self._next_visible <= now_ms
            or self.dead_letters.next_visible <= now_ms
        )

    def next_visible(self) -> int:
        """When a waiting retry becomes visible at the earliest, ms; NEVER when none waits."""
        return min(self._next_visible, self.dead_letters.next_visible)

    def expired(self, now_ms: int) -> DeliveryAttempts:
        """What was handed out and not answered by its deadline; it stays OUT until a frame says otherwise."""
        again, attempts = self.dead_letters.expired(now_ms)
        late = np.empty(0, np.int64)
        if self._next_expiry <= now_ms:
            low, high = self.first_unacked - self._origin, self.window_end - self._origin
            out = np.flatnonzero(self._state[low:high] == OUT) + low
            until = self._until[out]
            late = out[until <= now_ms].astype(np.int64)
            self._next_expiry = int(until[until > now_ms].min(initial=NEVER))
        offsets = np.concatenate((again, late + self._origin))
        attempts = np.concatenate((attempts, self._attempt[late].astype(np.uint32)))
        order = np.argsort(offsets)
        return DeliveryAttempts(offsets[order], attempts[order])

    def is_current_attempt(self, offsets: I64, attempts: U32, queue: ConsumeQueue) -> Bools:
        """Which of these released offsets are open at just this attempt, which is not over. (n,) -> (n,).

        It does not matter which master handed it out: one that has just started knows no deliveries.
        """
        self._extend_window_to(min(int(offsets.max(initial=-1)) + 1, queue.visible), queue)
        held = np.zeros(len(offsets), bool)
        inside = (offsets >= self.first_unacked) & (offsets < self.window_end)
        rows = offsets[inside] - self._origin
        held[inside] = (self._state[rows] != DONE) & (self._attempt[rows] == attempts[inside])
        positions, again = self.dead_letters.find_redriven(offsets)
        held[again] = self.dead_letters.attempts(positions[again]) == attempts[again]
        return held

    # ------------------------------------------------------------ frames
    def acknowledge(self, start: I64, end: I64, queue: ConsumeQueue) -> int:
        """ACK of k ranges of released offsets; returns how many messages were not done before."""
        if not len(start):
            return 0
        if len(start) == 1:
            low, high = int(start[0]), int(end[0])
            if self.first_unacked <= low < high <= self.window_end:
                return self._acknowledge_within(low, high)
            if low <= self.first_unacked <= self.window_end < high and not len(self.dead_letters):
                return self._skip_window(high, queue)
        done = 0
        done_below = int(end[start <= self.first_unacked].max(initial=0))
        if done_below > self.window_end:
            done = self._skip_window(done_below, queue)
        self._extend_window_to(min(int(end.max()), queue.end), queue)
        offsets = expand(
            np.maximum(start, self.first_unacked),
            np.maximum(np.minimum(end, self.window_end), np.maximum(start, self.first_unacked)),
        )
        rows = self._rows(offsets)
        done += int(np.count_nonzero(self._state[rows] != DONE))
        self._state[rows] = DONE
        self._advance_first_unacked()
        again = self.dead_letters.redriven_in(start, end)
        self.dead_letters.remove(again)
        return done + len(again)

    def _acknowledge_within(self, start: int, end: int) -> int:
        """acknowledge() of one range of the window."""
        state = self._state[start - self._origin : end - self._origin]
        done = int(np.count_nonzero(state != DONE))
        state[:] = DONE
        self._advance_first_unacked()
        if len(self.dead_letters):
            again = self.dead_letters.redriven_in(np.array([start]), np.array([end]))
            self.dead_letters.remove(again)
            done += len(again)
        return done

    def _skip_window(self, end: int, queue: ConsumeQueue) -> int:
        """ACK of all below `end`, past the window, which needs no rows; returns how many were not done before."""
        open_rows = self._state[self.first_unacked - self._origin : self.window_end - self._origin] != DONE
        return int(np.count_nonzero(open_rows)) + self._skip_window_to(end, queue)

    def _skip_window_to(self, end: int, queue: ConsumeQueue) -> int:
        """The whole window goes to `end`, above where it ends; how many messages that skips unseen."""
        skipped = self._count_matching(self.window_end, end, queue)
        self._on_window_extended(end, skipped)
        self.first_unacked = self.window_end = self._origin = end
        return skipped

    def forget_below(self, start: int, queue: ConsumeQueue) -> int:
        """TRIM: the queue starts at `start` now; returns how many messages that takes from the group."""
        if start <= self.first_unacked:
            return 0
        low, high = self.first_unacked - self._origin, min(start, self.window_end) - self._origin
        lost = int(np.count_nonzero(self._state[low:high] != DONE))
        if start > self.window_end:
            return lost + self._skip_window_to(start, queue)
        self.first_unacked = start
        self._advance_first_unacked()
        return lost

    def retry(self, start: I64, end: I64, attempt: U32, visible: I64, queue: ConsumeQueue) -> None:
        """RETRY: each offset whose current attempt is `attempt` gets the next one, visible at `visible` ms."""
        self._extend_window_to(min(int(end.max()), queue.end), queue)
        lengths = end - start
        offsets = expand(start, end)
        attempts, times = np.repeat(attempt, lengths), np.repeat(visible, lengths)
        positions, again = self.dead_letters.find_redriven(offsets)
        if again.any():
            again &= self.dead_letters.attempts(positions) == attempts
            self.dead_letters.retry(positions[again], times[again])
        inside = (offsets >= self.first_unacked) & (offsets < self.window_end)
        rows = self._rows(offsets[inside])
        match = (self._state[rows] != DONE) & (self._attempt[rows] == attempts[inside])
        rows, when_ms = rows[match], times[inside][match]
        self._state[rows], self._visible[rows] = FREE, when_ms
        self._attempt[rows] = np.minimum(self._attempt[rows], MAX_ATTEMPT - 1) + 1
        if len(rows):
            self._next_visible = min(self._next_visible, int(when_ms.min()))

    def add_dead_letters(
        self, start: I64, end: I64, attempt: U32, now_ms: int, queue: ConsumeQueue, reason: str = ""
    ) -> None:
        """DEAD, DEAD_REASON: offsets that used up their attempts become dead letters; done for the group."""
        self._extend_window_to(min(int(end.max()), queue.end), queue)
        offsets, attempts = expand(start, end), np.repeat(attempt, end - start)
        positions, again = self.dead_letters.find_redriven(offsets)
        self.dead_letters.die_again(positions[again], attempts[again], now_ms, reason)
        inside = np.flatnonzero((offsets >= self.first_unacked) & (offsets < self.window_end))
        inside = inside[self._state[self._rows(offsets[inside])] != DONE]
        dying = offsets[inside]
        self.dead_letters.add(dying, attempts[inside], rows_at(queue, dying), now_ms, reason)
        self._state[self._rows(dying)] = DONE
        self._advance_first_unacked()

    def redrive(self, offsets: I64, now_ms: int) -> None:
        """RETRY of dead letters: they are handed out again, attempts start anew."""
        self.dead_letters.redrive(offsets, now_ms)

    def drop_dead_letters(self, offsets: I64) -> None:
        """DEAD of letters: forget them."""
        positions, found = self.dead_letters.find(offsets)
        self.dead_letters.remove(positions[found])

    # ------------------------------------------------------------ views and checkpoint
    def is_done(self, offset: int) -> bool:
        """Whether the group is done with a released message, as far as its window has come: also as a dead letter."""
        if self.first_unacked <= offset < self.window_end:
            return bool(self._state[offset - self._origin] == DONE)
        return offset < self.first_unacked

    def counts(self, queue: ConsumeQueue, now_ms: int) -> GroupCounts:
        """Exact, but for this: under a filter, units that no call has read yet count as available.

        A call reads COUNT_ROWS further, so those after it are exact.
        """
        low, high = self.first_unacked - self._origin, self.window_end - self._origin
        state = self._state[low:high]
        free = state == FREE
        waiting = int(np.count_nonzero(free & (self._visible[low:high] > now_ms)))
        again, again_out, again_waiting = self.dead_letters.counts(now_ms)
        return GroupCounts(
            available=int(np.count_nonzero(free)) - waiting + again + self._count_beyond_window(queue),
            in_flight=int(np.count_nonzero(state == OUT)) + again_out,
            waiting_retry=waiting + again_waiting,
            dead=self.dead_letters.dead,
            redriven=len(self.dead_letters) - self.dead_letters.dead,
        )

    def _count_beyond_window(self, queue: ConsumeQueue) -> int:
        """How many released messages of this group the window has not reached."""
        if not len(self.tag_hashes):
            return max(0, queue.visible - self.window_end)
        end = max(self._counted, min(queue.visible, self._counted + COUNT_ROWS))
        self._matches += self._count_matching(self._counted, end, queue)
        self._counted = end
        return self._matches + max(0, queue.visible - end)

    def oldest(self, queue: ConsumeQueue) -> int | None:
        """The offset of the oldest message that is not done; under a filter the search is as long as counts()'s."""
        self.skip_filtered(queue, COUNT_ROWS)
        return self.first_unacked if self.first_unacked < queue.visible else None

    def snapshot(self) -> tuple[dict[str, object], dict[str, Array]]:
        """The replicated state as JSON-able fields and arrays; deliveries are left out."""
        low, high = self.first_unacked - self._origin, self.window_end - self._origin
        state = self._state[low:high]
        tried = np.flatnonzero((state != DONE) & (self._attempt[low:high] > 1))
        fields: dict[str, object] = {
            "name": self.name,
            "tags": list(self.tags),
            "floor": self.first_unacked,
            "fresh": self.window_end,
        }
        arrays: dict[str, Array] = {
            "done": np.packbits(state == DONE),
            "tried": tried + self.first_unacked,
            "attempt": self._attempt[low:high][tried].astype(np.uint32),
            "visible": self._visible[low:high][tried],
            **self.dead_letters.snapshot(),
        }
        return fields, arrays

    def restore(self, window_end: int, arrays: dict[str, Array]) -> None:
        """Into a new group, from a snapshot."""
        count = window_end - self.first_unacked
        self._make_room(window_end)
        self.window_end = self._counted = window_end
        done = np.unpackbits(arrays["done"].astype(np.uint8), count=count)
        self._state[:count] = np.where(done == 1, DONE, FREE)
        self._attempt[:count] = 1
        rows = arrays["tried"].astype(np.int64) - self.first_unacked
        self._attempt[rows] = arrays["attempt"].astype(np.uint16)
        self._visible[rows] = arrays["visible"].astype(np.int64)
        self._next_visible = 0
        self.dead_letters.restore(arrays)
