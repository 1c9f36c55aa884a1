"""What a cascade's piece said, read again for mending: from the hour's chain, else from the CommitLog.

    hour's chain, the pieces before  -->  which pass the piece is of, where it begins  -->  that part of the pass again
    frames before the piece          -->  the hour's fold  -->  what lies between the units that are sound

Neither is believed: the caller compares the flush that comes of it with its crc32. The chain is gone when a cleaning
has freed its files, a frame when its segment was freed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from delaynode.store.timer.cascade import CHUNK_UNITS, Cascade, ChainReader, cascaded_units
from delaynode.store.timer.due_window import after
from delaynode.store.timer.jobs import SlotRef, first_of, within
from delaynode.store.timer.timer_log import UNIT_BYTES, TimerLog
from delaynode.store.timer.units import COUNT, UNIT, concatenated
from delaynode.store.timer.wheel import NOWHERE, TimerWheel
from delaynode.store.types import I64, Pair, Records

MAX_UNITS = 2 * CHUNK_UNITS  # that frames say of an hour, in memory at a time: 23 MB, five times that once folded

RUN = np.dtype([("position", "<i8"), ("end", "<i8"), ("due", "<i8"), ("seq", "<i8")])
"""A run of a chain: [position, end) in the TimerLog, and its highest message."""


class CascadeChunkReader:
    """Reads what the piece with `count` units at TimerLog `position` said, if it is of the hour at `time`.

    The wheels are as of before the piece. Raises Damaged.
    """

    def __init__(
        self, timer: TimerLog, position: int, count: int, time: int, minute: TimerWheel, hour: TimerWheel
    ) -> None:
        self.timer, self.time, self.end = timer, time, Pair(time + hour.width_ms, 0)
        self._position, self._count, self._hour = position, count, hour
        self._before = _runs(timer, minute, np.arange(time, self.end.due, minute.width_ms, dtype=np.int64))

    def from_chain(self) -> Records:
        """Its units in order of (due, arrival), fewer than `count` where the chain does not say. Raises Damaged."""
        chain = _runs(self.timer, self._hour, np.array([self.time]))
        cascade = _cascade_progress(chain, self._before, self._position, self.time)
        if cascade is None:
            return np.empty(0, UNIT)
        slot = SlotRef(self.time, self._hour.width_ms, cascade.last, self._count + 1)
        reader, low = ChainReader(self.timer, slot, max(cascade.start, self.timer.start)), cascade.cut
        parts: list[Records] = []
        while low < self.end and sum(map(len, parts)) < self._count:
            units, low = reader.read(self._count, low, self.end)
            parts.append(cascaded_units(units) if cascade.first else units)
        rows = concatenated(parts)[: self._count]
        return rows[np.argsort(rows["due"], kind="stable")]

    def from_frames(self, frames: Iterator[Records], body: Records, bad: I64) -> Records:
        """What the rows `bad` (k,) of its body said, if a first pass wrote it; fewer rows where the frames do not say.

        frames: the units that each frame before the piece adds to the index. Only those between the sound neighbours
        of bad rows are held.
        """
        least = after(_highest(self._before)) if len(self._before) else Pair(self.time, 0)
        edges = np.flatnonzero(np.diff(bad) > 1)
        gaps = list(zip(bad[np.append(0, edges + 1)].tolist(), bad[np.append(edges, -1)].tolist(), strict=True))
        low, high = _gap(body, gaps[0][0], gaps[-1][1], least, self.end)
        held: list[Records] = []
        total = 0
        for recorded in frames:
            if len(inside := within(recorded, low, high)):
                held.append(inside)
                total += len(inside)
            if total > MAX_UNITS:  # a piece that has lost its end may go on to that of the hour
                first, high = first_of(held, MAX_UNITS // 2)
                held = [concatenated(first)]
                total = len(held[0])
        latest = cascaded_units(concatenated(held))
        found: list[Records] = []
        for begin, last in gaps:
            rows, needed = within(latest, *_gap(body, begin, last, least, self.end)), last - begin + 1
            # before the first sound unit and behind the last one, only their number says how many are the piece's own
            rows = rows[:needed] if last + 1 == len(body) else rows[-needed:] if begin == 0 else rows
            found.append(rows)
        return concatenated(found)


def _gap(body: Records, first: int, last: int, least: Pair, end: Pair) -> tuple[Pair, Pair]:
    """Between which messages those of rows [first, last] of a body lie: from the first pair to below the second."""
    low = after(Pair(int(body["due"][first - 1]), int(body["seq"][first - 1]))) if first else least
    is_complete = last + 1 == len(body)
    return low, end if is_complete else Pair(int(body["due"][last + 1]), int(body["seq"][last + 1]))


def hours_of_chunk(sound: Records, minute: TimerWheel, hour: TimerWheel) -> list[int]:
    """Which hours, ms, a piece with these sound units may be of.

    Without any it is the last one that is at the minute level, or the next one that has a chain.
    """
    if len(sound):
        return [hour.slot_time(int(sound["due"][0]))]
    last = hour.slot_time(int(minute.slots["time"].max()))
    held = np.sort(hour.slots["time"][hour.slots["time"] != NOWHERE])
    return [time for time in (last, *held[held > last][:1].tolist()) if time >= 0]


def _runs(timer: TimerLog, wheel: TimerWheel, times: I64) -> Records:
    """The runs (k,) of dtype RUN of the slots that start at `times`, by position. Raises Damaged."""
    found = []
    for time, last in zip(times.tolist(), wheel.last_positions(times).tolist(), strict=True):
        for position, run in timer.runs(last, time, wheel.width_ms, timer.start):
            latest = run[(run["magic"] & COUNT) == 0]
            if len(latest):
                due = int(latest["due"][-1])
                seq = int(latest["seq"][latest["due"] == due].max())
                found.append((position, position + UNIT_BYTES * len(run), due, seq))
    made = np.array(found, RUN)
    return made[np.argsort(made["position"])]


def _highest(runs: Records) -> Pair:
    at = int(np.lexsort((runs["seq"], runs["due"]))[-1])
    return Pair(int(runs["due"][at]), int(runs["seq"][at]))


def _cascade_progress(chain: Records, chunks: Records, position: int, time: int) -> Cascade | None:
    """How far the cascade of the hour at `time` was when it had written `chunks` (k,), its next one at `position`.

    chain: the hour's runs. A pass is over with the piece that has its highest message. The next pass takes what the
    chain had gained by then. None: it had gained nothing.
    """
    first, begin, done = True, 0, 0
    before = int(chunks["position"][0]) if len(chunks) else position
    while (end := int(np.searchsorted(chain["position"], before))) > begin:
        top, left = _highest(chain[begin:end]), chunks[done:]
        over = np.flatnonzero((left["due"] == top.due) & (left["seq"] == top.seq))
        if not len(over):
            cut = after(_highest(left)) if len(left) else Pair(time, 0)
            start = int(chain["end"][begin - 1]) if begin else 0
            return Cascade(first, start, int(chain["end"][end - 1]) - UNIT_BYTES, cut)
        done += int(over[0]) + 1
        while done < len(chunks) and chunks["position"][done] == chunks["end"][done - 1]:
            done += 1  # of the same piece: a run may be read in several blocks
        before, first, begin = int(chunks["position"][done - 1]), False, end
    return None
