"""A share group's progress through one shard's ConsumeQueue.

    done below      a window of at most max_unacked offsets           not looked at yet
    ---------- floor ------------------------------------ fresh --------------------- queue end

Inside the window each offset is FREE (to be handed out once visible), OUT (handed out, until its deadline) or DONE.
What frames say (DONE, attempts, retry times, dead letters) is the same on every replica; OUT is memory of the master.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from delaynode.store.consumequeue import ConsumeQueue
from delaynode.store.types import I64, U32, Bools

FREE, OUT, DONE = 0, 1, 2
NEVER = 2**63 - 1
FILTER_STEP = 4096  # offsets taken into the window at a time under a tag filter that may leave most of them out


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


def as_ranges(offsets: I64) -> tuple[I64, I64]:
    """Ascending offsets (n,) as k ranges: start i64[k], end i64[k] (exclusive)."""
    if not len(offsets):
        return offsets, offsets
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    start = offsets[np.concatenate(([0], breaks + 1))]
    end = offsets[np.append(breaks, len(offsets) - 1)] + 1
    return start, end


def expand(start: I64, end: I64) -> I64:
    """The offsets in k ranges, in range order."""
    length = end - start
    total = int(length.sum())
    at = np.repeat(start - np.concatenate(([0], np.cumsum(length)[:-1])), length)
    offsets: I64 = at + np.arange(total)
    return offsets


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
        self._visible = np.zeros(1024, np.int64)  # ms: FREE: to be handed out from then on; OUT: until then
        self._next_look = NEVER  # no FREE row below `fresh` is visible before this
        self.next_expiry = NEVER  # no OUT row expires before this
        self.dead: dict[int, int] = {}  # queue offset of a dead letter -> attempts it had
        self.redriven: dict[int, tuple[int, int, int]] = {}  # a dead letter at work again: attempt, state, visible ms

    # ------------------------------------------------------------ the window's rows
    def _reach(self, end: int, queue: ConsumeQueue) -> None:
        """Take offsets up to `end` into the window; under a filter in steps, so that what is left out takes no room."""
        while self.fresh < end:
            self._take_in(min(end, self.fresh + FILTER_STEP) if len(self.tag_hashes) else end, queue)
            self._next_look = 0

    def skip_filtered(self, queue: ConsumeQueue) -> None:
        """Raise the floor over what the filter leaves out, as far as hand_out() may have done on another master."""
        while len(self.tag_hashes) and self.floor == self.fresh < queue.visible:
            self._reach(min(queue.visible, self.fresh + min(FILTER_STEP, self.max_unacked)), queue)

    def _take_in(self, end: int, queue: ConsumeQueue) -> None:
        """A step of _reach(): those that the filter leaves out are DONE from the start."""
        self._make_room(end)
        rows = slice(self.fresh - self._origin, end - self._origin)
        self._state[rows], self._attempt[rows], self._visible[rows] = FREE, 1, 0
        if len(self.tag_hashes):
            tags = queue.read(self.fresh, end - self.fresh)["tag"]
            self._state[rows] = np.where(np.isin(tags, self.tag_hashes), FREE, DONE)
        self.fresh = end
        if len(self.tag_hashes):
            self._raise_floor()

    def _make_room(self, end: int) -> None:
        if end - self._origin <= len(self._state):
            return
        keep = slice(self.floor - self._origin, self.fresh - self._origin)
        size = max(1024, 1 << (2 * (end - self.floor) - 1).bit_length())
        columns = []
        for column in (self._state, self._attempt, self._visible):
            grown = np.zeros(size, column.dtype)
            grown[: keep.stop - keep.start] = column[keep]
            columns.append(grown)
        self._state, self._attempt, self._visible = columns
        self._origin = self.floor

    def _taken_by_filter(self, begin: int, end: int, queue: ConsumeQueue) -> int:
        """How many messages of [begin, end) are this group's."""
        if not len(self.tag_hashes):
            return end - begin
        parts = (queue.read(at, min(FILTER_STEP, end - at))["tag"] for at in range(begin, end, FILTER_STEP))
        return sum(int(np.count_nonzero(np.isin(tags, self.tag_hashes))) for tags in parts)

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
        """Up to `most` visible messages, now OUT until `until_ms`; redriven ones and retries first."""
        offsets: list[I64] = []
        if self.redriven:
            ready = [at for at, (_, state, visible) in self.redriven.items() if state == FREE and visible <= now_ms][
                :most
            ]
            for at in ready:
                self.redriven[at] = (self.redriven[at][0], OUT, until_ms)
            if ready:
                offsets.append(np.array(sorted(ready), np.int64))
                most -= len(ready)
        redriven = offsets[0] if offsets else np.empty(0, np.int64)
        chosen = self._choose(queue, now_ms, most)
        rows = self._rows(chosen)
        self._state[rows], self._visible[rows] = OUT, until_ms
        if len(chosen) or len(redriven):
            self.next_expiry = min(self.next_expiry, until_ms)
        attempts = np.array([self.redriven[int(at)][0] for at in redriven], np.uint32)
        return HandOut(
            np.concatenate((redriven, chosen)), np.concatenate((attempts, self._attempt[rows].astype(np.uint32)))
        )

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

    def give_back(self, offsets: I64) -> None:
        """These were handed out but not sent: free again, same attempt."""
        again = [at for at in offsets.tolist() if at in self.redriven] if self.redriven else []
        for at in again:
            self.redriven[at] = (self.redriven[at][0], FREE, 0)
        inside = self._in_window(offsets[~np.isin(offsets, again)] if again else offsets)
        rows = inside - self._origin
        self._state[rows], self._visible[rows] = FREE, 0
        if len(rows):
            self._next_look = 0

    def readable(self, queue: ConsumeQueue, now_ms: int) -> bool:
        """Whether hand_out() could find something now (a filter may still leave it empty)."""
        if self.fresh < min(queue.visible, self.floor + self.max_unacked) or self._next_look <= now_ms:
            return True
        return any(state == FREE and visible <= now_ms for _, state, visible in self.redriven.values())

    def next_visible(self) -> int:
        """When a waiting retry becomes visible at the earliest, ms; NEVER when none waits."""
        waiting = [visible for _, state, visible in self.redriven.values() if state == FREE]
        return min([self._next_look, *waiting])

    def expired(self, now_ms: int) -> HandOut:
        """What was handed out and not answered by its deadline; it stays OUT until a frame says otherwise."""
        if self.next_expiry > now_ms:
            return HandOut(np.empty(0, np.int64), np.empty(0, np.uint32))
        low, high = self.floor - self._origin, self.fresh - self._origin
        out = np.flatnonzero(self._state[low:high] == OUT) + low
        late = out[self._visible[out] <= now_ms]
        later = self._visible[out]
        later = later[later > now_ms]
        redriven = [
            (at, attempt)
            for at, (attempt, state, visible) in self.redriven.items()
            if state == OUT and visible <= now_ms
        ]
        waiting = [visible for _, state, visible in self.redriven.values() if state == OUT and visible > now_ms]
        self.next_expiry = min([int(later.min(initial=NEVER)), *waiting])
        offsets = np.concatenate((np.array([at for at, _ in redriven], np.int64), late + self._origin))
        attempts = np.concatenate(
            (np.array([a for _, a in redriven], np.uint32), self._attempt[late].astype(np.uint32))
        )
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
        for row, at in enumerate(offsets.tolist() if self.redriven else ()):
            if at in self.redriven:
                held[row] = self.redriven[at][0] == int(attempts[row])
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
            done = int(np.count_nonzero(open_rows)) + self._taken_by_filter(self.fresh, whole, queue)
            self.floor = self.fresh = self._origin = whole
        self._reach(min(int(end.max()), queue.end), queue)
        offsets = expand(
            np.maximum(start, self.floor), np.maximum(np.minimum(end, self.fresh), np.maximum(start, self.floor))
        )
        rows = self._rows(offsets)
        done += int(np.count_nonzero(self._state[rows] != DONE))
        self._state[rows] = DONE
        self._raise_floor()
        if self.redriven:
            for at in [at for at in self.redriven if bool(((start <= at) & (at < end)).any())]:
                del self.redriven[at]
                done += 1
        return done

    def retry(self, start: I64, end: I64, attempt: U32, visible: I64, queue: ConsumeQueue) -> None:
        """RETRY: each offset whose current attempt is `attempt` gets the next one, visible at `visible` ms."""
        self._reach(min(int(end.max()), queue.end), queue)
        lengths = end - start
        offsets = expand(start, end)
        attempts, times = np.repeat(attempt, lengths), np.repeat(visible, lengths)
        if self.redriven:
            for at, ended, when in zip(offsets.tolist(), attempts.tolist(), times.tolist(), strict=True):
                if at in self.redriven and self.redriven[at][0] == ended:
                    self.redriven[at] = (ended + 1, FREE, when)
        inside = (offsets >= self.floor) & (offsets < self.fresh)
        rows = self._rows(offsets[inside])
        match = (self._state[rows] != DONE) & (self._attempt[rows] == attempts[inside])
        rows, when_ms = rows[match], times[inside][match]
        self._state[rows], self._visible[rows] = FREE, when_ms
        self._attempt[rows] += 1
        if len(rows):
            self._next_look = min(self._next_look, int(when_ms.min()))

    def bury(self, start: I64, end: I64, attempt: U32, queue: ConsumeQueue) -> None:
        """DEAD: offsets that used up their attempts become dead letters; done for the group."""
        self._reach(min(int(end.max()), queue.end), queue)
        offsets, attempts = expand(start, end), np.repeat(attempt, end - start)
        for at, had in [
            (at, had) for at, had in zip(offsets.tolist(), attempts.tolist(), strict=True) if at in self.redriven
        ]:
            del self.redriven[at]
            self.dead[at] = had
        inside = (offsets >= self.floor) & (offsets < self.fresh)
        rows = self._rows(offsets[inside])
        open_rows = self._state[rows] != DONE
        self._state[rows] = DONE
        self.dead.update(zip(offsets[inside][open_rows].tolist(), attempts[inside][open_rows].tolist(), strict=True))
        self._raise_floor()

    def redrive(self, offsets: I64) -> None:
        """RETRY of dead letters: they are handed out again, attempts start anew."""
        for at in offsets.tolist():
            if self.dead.pop(at, None) is not None:
                self.redriven[at] = (1, FREE, 0)

    def drop(self, offsets: I64) -> None:
        """DEAD of dead letters: forget them."""
        for at in offsets.tolist():
            self.dead.pop(at, None)

    # ------------------------------------------------------------ views and checkpoint
    def counts(self, queue_end: int, now_ms: int) -> GroupCounts:
        low, high = self.floor - self._origin, self.fresh - self._origin
        state, visible = self._state[low:high], self._visible[low:high]
        free = state == FREE
        again = self.redriven.values()
        redriven_out = sum(state == OUT for _, state, _ in again)
        waiting = int(np.count_nonzero(free & (visible > now_ms)))
        waiting += sum(state == FREE and visible > now_ms for _, state, visible in again)
        available = int(np.count_nonzero(free)) + len(again) - redriven_out - waiting
        available += max(0, queue_end - self.fresh)
        return GroupCounts(available, int(np.count_nonzero(state == OUT)) + redriven_out, waiting, len(self.dead))

    def snapshot(self) -> tuple[dict[str, object], dict[str, npt.NDArray[np.generic]]]:
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
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "done": np.packbits(state == DONE),
            "tried": tried + self.floor,
            "attempt": self._attempt[low:high][tried].astype(np.uint32),
            "visible": np.where(state[tried] == FREE, self._visible[low:high][tried], 0),
            "dead": np.array([[k, v] for k, v in self.dead.items()], np.int64).reshape(-1, 2),
            "redriven": np.array(
                [[k, a, v if s == FREE else 0] for k, (a, s, v) in self.redriven.items()], np.int64
            ).reshape(-1, 3),
        }
        return fields, arrays

    def restore(self, fresh: int, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Into a new group at its floor, from a snapshot."""
        count = fresh - self.floor
        self._make_room(fresh)
        self.fresh = fresh
        done = np.unpackbits(arrays["done"].astype(np.uint8), count=count)
        self._state[:count] = np.where(done == 1, DONE, FREE)
        self._attempt[:count] = 1
        rows = arrays["tried"].astype(np.int64) - self.floor
        self._attempt[rows] = arrays["attempt"].astype(np.uint16)
        self._visible[rows] = arrays["visible"].astype(np.int64)
        self._next_look = 0
        self.dead = {int(at): int(attempts) for at, attempts in arrays["dead"]}
        self.redriven = {int(at): (int(attempt), FREE, int(visible)) for at, attempt, visible in arrays["redriven"]}
