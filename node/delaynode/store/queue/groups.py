"""A share group's progress through one shard's ConsumeQueue.

    done below      a window of at most max_unacked offsets           not looked at yet
    ---------- floor ------------------------------------ fresh --------------------- queue end

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
from delaynode.store.queue.consume_queue import ConsumeQueue
from delaynode.store.queue.dead_letters import NEVER, Letters
from delaynode.store.types import I64, U32, Array, Bools

FREE, OUT, DONE = 0, 1, 2
FILTER_STEP = 4096  # offsets taken into the window at a time under a tag filter that may leave most of them out
COUNT_ROWS = 1 << 19  # units that counts() reads at most to learn which of them a tag filter takes
MAX_ATTEMPT = 2**16 - 1  # a message that can't be buried is tried again for ever: its attempts stay here


@dataclass(frozen=True, slots=True)
class HandOut:
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
class Rests:
    """The frames that a hand-out rests on: it is answered once they are committed. Memory of the master.

    They are those that made the group, ended attempts or redrove letters, not the APPENDs and TICKs under way beside
    them. An ACK or a TRIM only takes away; but an offset that is within the window only thanks to those under way would
    be refused when it is acknowledged, had the next master not got them.
    """

    changed: int = 0  # log offset: the end of the last one that does more than move the window on
    _moves: deque[tuple[int, int]] = field(default_factory=deque)
    """ACKs and TRIMs under way, in their order: the log offset of the end, the group's floor before it."""

    def move(self, floor: int, end: int, committed: int) -> None:
        """An ACK or a TRIM was proposed that ends at log offset `end`; `floor`: the group's before it."""
        while self._moves and self._moves[0][0] <= committed:
            self._moves.popleft()
        self._moves.append((end, floor))

    @property
    def last(self) -> int:
        """The end of the last of all these; it may be committed."""
        return max(self.changed, self._moves[-1][0] if self._moves else 0)

    def before(self, floor: int) -> int:
        """The log offset before which all frames are that a hand-out rests on which needs the group's floor at `floor`.

        That is its highest queue offset + 1, less the window's size.
        """
        if not self._moves or self._moves[0][1] >= floor:
            return self.changed
        return max(self.changed, next(end for end, before in reversed(self._moves) if before < floor))


class Group:
    """tags: the filter, empty for all. max_unacked: offsets that the window may hold."""

    def __init__(self, name: str, tags: tuple[str, ...], tag_hashes: U32, floor: int, max_unacked: int) -> None:
        self.name = name
        self.tags = tags
        self.tag_hashes = tag_hashes
        self.max_unacked = max_unacked
        self.floor = floor
        self.fresh = floor  # first offset outside the window
        self._origin = floor  # the offset of row 0
        self._state = np.zeros(1024, np.uint8)
        self._attempt = np.ones(1024, np.uint16)
        self._visible = np.zeros(1024, np.int64)  # ms: to be handed out from then on
        self._until = np.zeros(1024, np.int64)  # ms: OUT until then
        self._next_look = NEVER  # no FREE row below `fresh` is visible before this
        self._next_expiry = NEVER  # no OUT row expires before this
        self.letters = Letters()
        self.rests = Rests()
        self._counted = floor  # under a filter: [fresh, _counted) was read for counts() ...
        self._matches = 0  # ... and has so many messages that the filter takes

    # ------------------------------------------------------------ the window's rows
    def _reach(self, end: int, queue: ConsumeQueue) -> None:
        """Take offsets up to `end` into the window; under a filter in steps, so that what is left out takes no room."""
        while self.fresh < end:
            self._take_in(min(end, self.fresh + FILTER_STEP) if len(self.tag_hashes) else end, queue)
            self._next_look = 0

    def skip_filtered(self, queue: ConsumeQueue, most: int) -> bool:
        """Raise the floor over what the filter leaves out, as far as hand_out() may have done on another master.

        Looks at about `most` units; True when there are more to look at.
        """
        last = min(queue.visible, self.fresh + most)
        while len(self.tag_hashes) and self.floor == self.fresh < last:
            self._reach(min(queue.visible, self.fresh + min(FILTER_STEP, self.max_unacked)), queue)
        return bool(len(self.tag_hashes)) and self.floor == self.fresh < queue.visible

    def _take_in(self, end: int, queue: ConsumeQueue) -> None:
        """A step of _reach(): those that the filter leaves out are DONE from the start."""
        self._make_room(end)
        rows = slice(self.fresh - self._origin, end - self._origin)
        self._state[rows], self._attempt[rows], self._visible[rows] = FREE, 1, 0
        if len(self.tag_hashes):
            mine = np.isin(queue.read(self.fresh, end - self.fresh)["tag"], self.tag_hashes)
            self._state[rows] = np.where(mine, FREE, DONE)
            self._passed(end, int(np.count_nonzero(mine)))
        self.fresh = end
        if len(self.tag_hashes):
            self._raise_floor()

    def _make_room(self, end: int) -> None:
        if end - self._origin <= len(self._state):
            return
        keep = slice(self.floor - self._origin, self.fresh - self._origin)
        size = max(1024, 1 << (2 * (end - self.floor) - 1).bit_length())
        columns = []
        for column in (self._state, self._attempt, self._visible, self._until):
            grown = np.zeros(size, column.dtype)
            grown[: keep.stop - keep.start] = column[keep]
            columns.append(grown)
        self._state, self._attempt, self._visible, self._until = columns
        self._origin = self.floor

    def _taken_by_filter(self, begin: int, end: int, queue: ConsumeQueue) -> int:
        """How many messages of [begin, end) are this group's."""
        if not len(self.tag_hashes):
            return end - begin
        parts = (queue.read(at, min(FILTER_STEP, end - at))["tag"] for at in range(begin, end, FILTER_STEP))
        return sum(int(np.count_nonzero(np.isin(tags, self.tag_hashes))) for tags in parts)

    def _passed(self, end: int, matches: int) -> None:
        """`fresh` goes up to `end`, over so many messages that the filter takes."""
        if end < self._counted:
            self._matches -= matches
        else:
            self._counted, self._matches = end, 0

    def _raise_floor(self) -> None:
        low, high = self.floor - self._origin, self.fresh - self._origin
        open_rows = np.flatnonzero(self._state[low : min(low + 64, high)] != DONE)
        if not len(open_rows):
            open_rows = np.flatnonzero(self._state[low:high] != DONE)
        self.floor += int(open_rows[0]) if len(open_rows) else high - low

    def _rows(self, offsets: I64) -> npt.NDArray[np.int64]:
        return offsets - self._origin

    def _in_window(self, offsets: I64) -> I64:
        return offsets[(offsets >= self.floor) & (offsets < self.fresh)]

    # ------------------------------------------------------------ handing out (memory of the master)
    def hand_out(self, queue: ConsumeQueue, now_ms: int, until_ms: int, most: int) -> HandOut:
        """Up to `most` visible messages, now OUT until `until_ms`; redriven ones first, then retries."""
        again, attempts = self.letters.hand_out(now_ms, until_ms, most)
        chosen = self._choose(queue, now_ms, most - len(again))
        rows = self._rows(chosen)
        self._state[rows], self._until[rows] = OUT, until_ms
        if len(chosen):
            self._next_expiry = min(self._next_expiry, until_ms)
        return HandOut(
            np.concatenate((again, chosen)), np.concatenate((attempts, self._attempt[rows].astype(np.uint32)))
        )

    @property
    def next_expiry(self) -> int:
        """Nothing that is handed out expires before this, ms; NEVER when nothing is."""
        return min(self._next_expiry, self.letters.next_expiry)

    def _choose(self, queue: ConsumeQueue, now_ms: int, most: int) -> I64:
        found = np.empty(0, np.int64)
        if most > 0 and self._next_look <= now_ms:
            low, high = self.floor - self._origin, self.fresh - self._origin
            free = np.flatnonzero(self._state[low:high] == FREE) + low
            visible = self._visible[free] <= now_ms
            found = (free[visible][:most] + self._origin).astype(np.int64)
            left = free if not len(found) else np.setdiff1d(free, found - self._origin, assume_unique=True)
            self._next_look = int(self._visible[left].min()) if len(left) else NEVER
        next_look = self._next_look
        while len(found) < most:
            begin, wanted = self.fresh, most - len(found)
            step = max(wanted, FILTER_STEP) if len(self.tag_hashes) else wanted
            end = min(queue.visible, self.floor + self.max_unacked, begin + step)
            if end <= begin:
                break
            self._reach(end, queue)
            begin = max(begin, self._origin)
            rows = np.flatnonzero(self._state[begin - self._origin : end - self._origin] == FREE)
            if len(rows) > wanted:
                next_look = 0
            found = np.concatenate((found, rows[:wanted] + begin))
            self._raise_floor()
        self._next_look = next_look
        return found

    def give_back(self, offsets: I64, until_ms: int) -> None:
        """These were handed out until `until_ms`, but not sent: what is still so is free again, same attempt."""
        places, again = self.letters.working(offsets)
        self.letters.give_back(places[again], until_ms)
        rows = self._in_window(offsets[~again]) - self._origin
        rows = rows[(self._state[rows] == OUT) & (self._until[rows] == until_ms)]
        self._state[rows] = FREE
        if len(rows):
            self._next_look = 0

    def readable(self, queue: ConsumeQueue, now_ms: int) -> bool:
        """Whether hand_out() could find something now (a filter may still leave it empty)."""
        return (
            self.fresh < min(queue.visible, self.floor + self.max_unacked)
            or self._next_look <= now_ms
            or self.letters.next_look <= now_ms
        )

    def next_visible(self) -> int:
        """When a waiting retry becomes visible at the earliest, ms; NEVER when none waits."""
        return min(self._next_look, self.letters.next_look)

    def expired(self, now_ms: int) -> HandOut:
        """What was handed out and not answered by its deadline; it stays OUT until a frame says otherwise."""
        again, attempts = self.letters.expired(now_ms)
        late = np.empty(0, np.int64)
        if self._next_expiry <= now_ms:
            low, high = self.floor - self._origin, self.fresh - self._origin
            out = np.flatnonzero(self._state[low:high] == OUT) + low
            until = self._until[out]
            late = out[until <= now_ms].astype(np.int64)
            self._next_expiry = int(until[until > now_ms].min(initial=NEVER))
        offsets = np.concatenate((again, late + self._origin))
        attempts = np.concatenate((attempts, self._attempt[late].astype(np.uint32)))
        order = np.argsort(offsets)
        return HandOut(offsets[order], attempts[order])

    def holds(self, offsets: I64, attempts: U32, queue: ConsumeQueue) -> Bools:
        """Which of these released offsets are open at just this attempt, so that a Nack may end it. (n,) -> (n,).

        Whoever handed it out: a master that has just started knows no hand-outs.
        """
        self._reach(min(int(offsets.max(initial=-1)) + 1, queue.visible), queue)
        held = np.zeros(len(offsets), bool)
        inside = (offsets >= self.floor) & (offsets < self.fresh)
        rows = offsets[inside] - self._origin
        held[inside] = (self._state[rows] != DONE) & (self._attempt[rows] == attempts[inside])
        places, again = self.letters.working(offsets)
        held[again] = self.letters.attempts(places[again]) == attempts[again]
        return held

    # ------------------------------------------------------------ frames
    def acknowledge(self, start: I64, end: I64, queue: ConsumeQueue) -> int:
        """ACK of k ranges of released offsets; returns how many messages were not done before."""
        if not len(start):
            return 0
        done = 0
        whole = int(end[start <= self.floor].max(initial=0))
        if whole > self.fresh:  # a commit that goes past the window needs no rows
            open_rows = self._state[self.floor - self._origin : self.fresh - self._origin] != DONE
            done = int(np.count_nonzero(open_rows)) + self._jump(whole, queue)
        self._reach(min(int(end.max()), queue.end), queue)
        offsets = expand(
            np.maximum(start, self.floor), np.maximum(np.minimum(end, self.fresh), np.maximum(start, self.floor))
        )
        rows = self._rows(offsets)
        done += int(np.count_nonzero(self._state[rows] != DONE))
        self._state[rows] = DONE
        self._raise_floor()
        again = self.letters.within(start, end)
        self.letters.remove(again)
        return done + len(again)

    def _jump(self, end: int, queue: ConsumeQueue) -> int:
        """Floor and window go to `end`, above the window; how many messages that skips unseen."""
        skipped = self._taken_by_filter(self.fresh, end, queue)
        self._passed(end, skipped)
        self.floor = self.fresh = self._origin = end
        return skipped

    def forget_below(self, start: int, queue: ConsumeQueue) -> int:
        """TRIM: the queue starts at `start` now; returns how many messages that takes from the group."""
        if start <= self.floor:
            return 0
        low, high = self.floor - self._origin, min(start, self.fresh) - self._origin
        lost = int(np.count_nonzero(self._state[low:high] != DONE))
        if start > self.fresh:
            return lost + self._jump(start, queue)
        self.floor = start
        self._raise_floor()
        return lost

    def retry(self, start: I64, end: I64, attempt: U32, visible: I64, queue: ConsumeQueue) -> None:
        """RETRY: each offset whose current attempt is `attempt` gets the next one, visible at `visible` ms."""
        self._reach(min(int(end.max()), queue.end), queue)
        lengths = end - start
        offsets = expand(start, end)
        attempts, times = np.repeat(attempt, lengths), np.repeat(visible, lengths)
        places, again = self.letters.working(offsets)
        if again.any():
            again &= self.letters.attempts(places) == attempts
            self.letters.retry(places[again], times[again])
        inside = (offsets >= self.floor) & (offsets < self.fresh)
        rows = self._rows(offsets[inside])
        match = (self._state[rows] != DONE) & (self._attempt[rows] == attempts[inside])
        rows, when_ms = rows[match], times[inside][match]
        self._state[rows], self._visible[rows] = FREE, when_ms
        self._attempt[rows] = np.minimum(self._attempt[rows], MAX_ATTEMPT - 1) + 1
        if len(rows):
            self._next_look = min(self._next_look, int(when_ms.min()))

    def bury(self, start: I64, end: I64, attempt: U32, now_ms: int, queue: ConsumeQueue) -> None:
        """DEAD: offsets that used up their attempts become dead letters; done for the group."""
        self._reach(min(int(end.max()), queue.end), queue)
        offsets, attempts = expand(start, end), np.repeat(attempt, end - start)
        places, again = self.letters.working(offsets)
        self.letters.die(places[again], attempts[again], now_ms)
        inside = np.flatnonzero((offsets >= self.floor) & (offsets < self.fresh))
        inside = inside[self._state[self._rows(offsets[inside])] != DONE]
        dying = offsets[inside]
        self.letters.bury(dying, attempts[inside], rows_at(queue, dying), now_ms)
        self._state[self._rows(dying)] = DONE
        self._raise_floor()

    def redrive(self, offsets: I64, now_ms: int) -> None:
        """RETRY of dead letters: they are handed out again, attempts start anew."""
        self.letters.redrive(offsets, now_ms)

    def drop(self, offsets: I64) -> None:
        """DEAD of letters: forget them."""
        places, found = self.letters.places(offsets)
        self.letters.remove(places[found])

    # ------------------------------------------------------------ views and checkpoint
    def counts(self, queue: ConsumeQueue, now_ms: int) -> GroupCounts:
        """Exact, but for this: under a filter, units that no call has read yet count as available.

        A call reads COUNT_ROWS further, so those after it are exact.
        """
        low, high = self.floor - self._origin, self.fresh - self._origin
        state = self._state[low:high]
        free = state == FREE
        waiting = int(np.count_nonzero(free & (self._visible[low:high] > now_ms)))
        again, again_out, again_waiting = self.letters.counts(now_ms)
        return GroupCounts(
            available=int(np.count_nonzero(free)) - waiting + again + self._ahead(queue),
            in_flight=int(np.count_nonzero(state == OUT)) + again_out,
            waiting_retry=waiting + again_waiting,
            dead=self.letters.dead,
            redriven=len(self.letters) - self.letters.dead,
        )

    def _ahead(self, queue: ConsumeQueue) -> int:
        """How many released messages of this group the window has not reached."""
        if not len(self.tag_hashes):
            return max(0, queue.visible - self.fresh)
        end = max(self._counted, min(queue.visible, self._counted + COUNT_ROWS))
        self._matches += self._taken_by_filter(self._counted, end, queue)
        self._counted = end
        return self._matches + max(0, queue.visible - end)

    def oldest(self, queue: ConsumeQueue) -> int | None:
        """The offset of the oldest message that is not done; under a filter the search is as long as counts()'s."""
        self.skip_filtered(queue, COUNT_ROWS)
        return self.floor if self.floor < queue.visible else None

    def snapshot(self) -> tuple[dict[str, object], dict[str, Array]]:
        """What frames have said, as JSON-able fields and arrays; hand-outs are left out."""
        low, high = self.floor - self._origin, self.fresh - self._origin
        state = self._state[low:high]
        tried = np.flatnonzero((state != DONE) & (self._attempt[low:high] > 1))
        fields: dict[str, object] = {
            "name": self.name,
            "tags": list(self.tags),
            "floor": self.floor,
            "fresh": self.fresh,
        }
        arrays: dict[str, Array] = {
            "done": np.packbits(state == DONE),
            "tried": tried + self.floor,
            "attempt": self._attempt[low:high][tried].astype(np.uint32),
            "visible": self._visible[low:high][tried],
            **self.letters.snapshot(),
        }
        return fields, arrays

    def restore(self, fresh: int, arrays: dict[str, Array]) -> None:
        """Into a new group at its floor, from a snapshot."""
        count = fresh - self.floor
        self._make_room(fresh)
        self.fresh = self._counted = fresh
        done = np.unpackbits(arrays["done"].astype(np.uint8), count=count)
        self._state[:count] = np.where(done == 1, DONE, FREE)
        self._attempt[:count] = 1
        rows = arrays["tried"].astype(np.int64) - self.floor
        self._attempt[rows] = arrays["attempt"].astype(np.uint16)
        self._visible[rows] = arrays["visible"].astype(np.int64)
        self._next_look = 0
        self.letters.restore(arrays)
