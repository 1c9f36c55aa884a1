"""Steps of a World: messages in, cancel, reschedule, lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from delayapi.units import DAY_MS
from delaynode.store.errors import Refused
from delaynode.store.log.frames import SINCE_FORMAT, FrameKind
from delaynode.store.log.incoming_batch import ID, IncomingBatch
from delaynode.store.lookup import ALREADY_CANCELLED, CANCELLED, MOVED_NOW, NOT_FOUND, RESCHEDULED, TOO_LATE, Lookup
from delaynode.store.shard import Appended
from delaynode.store.timer.index import GEOMETRY
from delaynode.store.timer.scan import ScanJob, SlotSnapshotCache
from delaynode.store.types import Pair

from tests.store.support import model as m
from tests.store.support.model import Key, Msg
from tests.store.support.tidying import Tidying


class Item(NamedTuple):
    """A message to send: `time` is a delay from now (ms, may be negative); `relative` says how it is handed in."""

    time: int
    relative: bool = False
    size: int = 10
    tag: int = 0


@dataclass(eq=False)
class LookingUp:
    lookup: Lookup
    keys: list[Key]
    ran: bool = False


@dataclass(eq=False)
class Scanning:
    job: ScanJob
    ran: bool = False


def halves(batch: IncomingBatch) -> list[IncomingBatch]:
    """The same messages in two batches."""
    half = len(batch.time) // 2
    end = int(batch.size[:half].sum())
    records = bytes(batch.records)
    return [
        IncomingBatch(batch.time[part], batch.relative[part], batch.size[part], batch.key[part], batch.tag[part], body)
        for part, body in ((slice(half), records[:end]), (slice(half, None), records[end:]))
    ]


FORGETS_MS = GEOMETRY.cancelled_retention_ms
"""How long after its due a message's fate is certainly known: then its units may be cleaned away."""


class Producing(Tidying):
    lookups: list[LookingUp]
    scans: list[Scanning]
    slot_cache: SlotSnapshotCache

    def crashed_lookups(self) -> None:
        self.lookups = []
        self.scans = []
        self.slot_cache = SlotSnapshotCache(60, min_units=2, chunk_units=7)

    # ------------------------------------------------------------ enqueue
    def enqueue(self, items: list[Item], producer: int = 0, number: int = 0) -> int | None:
        """Returns the first seq, None when it was refused (rightly)."""
        items = [i._replace(time=max(i.time, 0 if i.relative else -self.now)) for i in items]
        bodies = [self.rng.randbytes(item.size) for item in items]
        times = [item.time if item.relative else self.now + item.time for item in items]
        dues = [self.now + item.time for item in items]
        relative = any(item.relative for item in items)
        batch = IncomingBatch(
            np.array(times, np.int64),
            np.array([item.relative for item in items], np.uint8) if relative else np.empty(0, np.uint8),
            np.array([item.size for item in items], np.uint32),
            np.array([item.size % 3 for item in items], np.uint32),
            np.array([item.tag for item in items], np.uint32),
            b"".join(bodies),
            producer,
            number,
        )
        known = self.model.producers.get(producer)
        last = known.answers[-1].number if known is not None else -1
        expired = known is not None and known.seen + DAY_MS <= self.shard.wall_ms
        try:
            with self.recording() as events:
                answer = self._store(batch)
                if not answer.duplicate:
                    assert answer.due is not None
                    assert answer.due.tolist() == dues
                    assert (answer.first_seq, answer.count) == (self.model.next_seq, len(items))
                    messages = tuple(Msg(body, item.tag) for body, item in zip(bodies, items, strict=True))
                    events.append(m.Append(producer, number, answer.first_seq, tuple(dues), messages, self.now))
        except Refused as refused:
            self.expect_refusal(refused, dues, producer, number, expired)
            return None
        if answer.duplicate:
            assert known is not None
            (first,) = [a for a in known.answers if a.number == number]
            assert (answer.first_seq, answer.count) == (first.first_seq, len(first.dues))
            assert answer.log_end == self.shard.log_end, "it must not leave before what it was computed from"
            if len(items) == len(first.dues):  # a retry: its delays count from the first arrival
                assert answer.due is not None
                wanted = [first.wall + item.time if item.relative else t for item, t in zip(items, times, strict=True)]
                assert answer.due.tolist() == wanted
            else:
                assert answer.due is None
        elif producer:
            assert max(dues) <= self.now + self.shard.max_delay_ms
            assert number == last + 1 or (number == 0 and expired)
        return answer.first_seq

    def enqueue_ids(self, items: list[Item], ids: list[bytes]) -> None:
        """Send messages that their senders have given these ids."""
        items = [i._replace(time=max(i.time, 0 if i.relative else -self.now)) for i in items]
        bodies = [self.rng.randbytes(item.size) for item in items]
        batch = IncomingBatch(
            np.array([item.time if item.relative else self.now + item.time for item in items], np.int64),
            np.array([item.relative for item in items], np.uint8),
            np.array([item.size for item in items], np.uint32),
            np.array([item.size % 3 for item in items], np.uint32),
            np.array([item.tag for item in items], np.uint32),
            b"".join(bodies),
            ids=np.frombuffer(b"".join(ids), ID),
        )
        known = self.model.known_ids(self.shard.producers.time_ms)
        new = [row for row, one in enumerate(ids) if one not in known and one not in ids[:row]]
        dues = [self.now + items[row].time for row in new]
        try:
            with self.recording() as events:
                answer = self.shard.enqueue(batch, self.now)
                if new:
                    messages = tuple(Msg(bodies[row], items[row].tag) for row in new)
                    stored, time = tuple(ids[row] for row in new), self.shard.producers.time_ms
                    first_seq = self.model.next_seq
                    events.append(m.Append(0, 0, first_seq, tuple(dues), messages, self.now, stored, time))
        except Refused as refused:
            if refused.reason == "NOT_UPGRADED":
                assert self.shard.format < SINCE_FORMAT[FrameKind.APPEND_IDS]
            elif refused.reason == "TOO_MANY_MESSAGE_IDS":
                assert len(known) + len(new) > self.shard.message_ids.limit
            else:
                self.expect_refusal(refused, dues, 0, 0, expired=False)
            return
        assert answer.seq is not None
        assert answer.due is not None
        assert answer.repeated is not None
        assert np.flatnonzero(~answer.repeated).tolist() == new
        assert answer.log_end == self.shard.log_end
        assert answer.duplicate == (not new)
        assert not new or len(known) + len(new) <= self.shard.message_ids.limit
        for one, seq, due in zip(ids, answer.seq.tolist(), answer.due.tolist(), strict=True):
            assert (seq, due) == self.model.ids[one][:2]

    def _store(self, batch: IncomingBatch) -> Appended:
        """Where the format has such frames and nobody numbers the messages: as two requests that share a frame."""
        if self.shard.format < SINCE_FORMAT[FrameKind.APPEND_RUNS] or batch.producer or len(batch.time) < 2:
            return self.shard.enqueue(batch, self.now)
        first, second = self.shard.append_runs(halves(batch), self.now)
        assert first.due is not None
        assert second.due is not None
        assert second.first_seq == first.first_seq + first.count
        due = np.concatenate((first.due, second.due))
        return Appended(first.first_seq, first.count + second.count, due, first.log_end)

    def expect_refusal(self, refused: Refused, dues: list[int], producer: int, number: int, expired: bool) -> None:
        watermark = self.shard.index.watermark.due
        known = self.model.producers.get(producer)
        match refused.reason:
            case "DELAY_TOO_LONG":
                assert max(dues) > self.now + self.shard.max_delay_ms
            case "CLOCK_BEHIND":
                assert any(self.now < due <= watermark for due in dues)
            case "WHEEL_BEHIND":
                assert max(dues) > watermark + self.shard.config.horizon_ms + 6 * DAY_MS
            case "UNKNOWN_PRODUCER":
                assert number > 0
                assert known is None or expired
            case "OUT_OF_ORDER":
                assert known is not None
                assert int(refused.metadata["expected"]) == known.answers[-1].number + 1 != number
                assert number not in [answer.number for answer in known.answers]
            case other:
                raise AssertionError(other)

    # ------------------------------------------------------------ cancel, reschedule
    def begin_lookup(self, keys: list[Key]) -> None:
        due, seq = np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], np.int64)
        self.lookups.append(LookingUp(self.shard.begin_lookup(due, seq, self.slot_cache), keys))

    def finish_if_found(self) -> None:
        """A lookup that needs no job goes on at once."""
        if self.lookups and self.lookups[-1].lookup.job is None:
            self.lookups[-1].ran = True
            self.finish_cancel(-1)

    def run_lookup(self, which: int = 0) -> None:
        if self.lookups:
            looking = self.lookups[which % len(self.lookups)]
            if looking.lookup.job is not None and not looking.ran:
                looking.lookup.job.run()
            looking.ran = True

    def truth(self, key: Key) -> set[int]:
        """The outcomes that Cancel may give for a message; more than one if it is long past."""
        model = self.model
        if key in model.live:
            return {CANCELLED}
        fate = model.gone.get(key)
        if fate == "RELEASED":
            return {TOO_LATE}
        if fate == "MOVED, RELEASED":
            return {TOO_LATE, RESCHEDULED}
        if fate is None:
            existed = 0 <= key[1] < model.next_seq
            return {TOO_LATE, NOT_FOUND} if existed else {NOT_FOUND}  # no such handle was ever given
        known = {ALREADY_CANCELLED if fate == "CANCELLED" else RESCHEDULED}
        forgotten = key[0] + FORGETS_MS < max(model.watermark[0], self.now)
        return known | {TOO_LATE} if forgotten else known

    def finish_cancel(self, which: int = 0) -> list[int] | None:
        """Cancel what a lookup found; returns the outcomes."""
        looking = self._ready_lookup(which)
        if looking is None:
            return None
        allowed, first = self._expected(looking.keys, CANCELLED, ALREADY_CANCELLED)
        with self.recording() as events:
            got = self.shard.cancel(looking.lookup, self.now).outcome.tolist()
            if first:
                events.append(m.Cancel(tuple(first)))
        self.shard.end_lookup(looking.lookup)
        assert all(g in a for g, a in zip(got, allowed, strict=True)), (looking.keys, got, allowed)
        return [int(g) for g in got]

    def finish_reschedule(self, times: list[Item], which: int = 0) -> list[int] | None:
        """Reschedule what a lookup found (times are repeated as needed); returns the outcomes."""
        looking = self._ready_lookup(which)
        if looking is None:
            return None
        items = [times[i % len(times)] for i in range(len(looking.keys))]
        items = [i._replace(time=max(i.time, 0 if i.relative else -self.now)) for i in items]
        dues = [self.now + item.time for item in items]
        given = np.array([i.time if i.relative else self.now + i.time for i in items], np.int64)
        allowed, first = self._expected(looking.keys, MOVED_NOW, RESCHEDULED)
        try:
            with self.recording() as events:
                outcomes = self.shard.reschedule(
                    looking.lookup, given, np.array([i.relative for i in items], np.uint8), self.now
                )
                if first:
                    moves = tuple((key, dues[at]) for key, at in first.items())
                    events.append(m.Reschedule(moves, self.now))
        except Refused as refused:
            self.expect_refusal(refused, dues, 0, 0, False)
            return None
        finally:
            self.shard.end_lookup(looking.lookup)
        got = outcomes.outcome.tolist()
        assert all(g in a for g, a in zip(got, allowed, strict=True)), (looking.keys, got, allowed)
        assert outcomes.due.tolist() == [dues[i] if i in first.values() else 0 for i in range(len(dues))]
        return [int(g) for g in got]

    def _ready_lookup(self, which: int) -> LookingUp | None:
        ready = [looking for looking in self.lookups if looking.ran]
        if not ready:
            return None
        looking = ready[which % len(ready)]
        self.lookups.remove(looking)
        return looking

    def _expected(self, keys: list[Key], done: int, again: int) -> tuple[list[set[int]], dict[Key, int]]:
        """The outcomes allowed, and the rows that take effect: the first mention of each live message."""
        allowed: list[set[int]] = []
        first: dict[Key, int] = {}
        for at, key in enumerate(keys):
            truth = self.truth(key)
            if truth == {CANCELLED}:
                truth = {again if key in first else done}
                first.setdefault(key, at)
            allowed.append(truth)
        return allowed, first

    def cancel(self, *keys: Key) -> list[int]:
        self.begin_lookup(list(keys))
        self.run_lookup(len(self.lookups) - 1)
        got = self.finish_cancel(len([x for x in self.lookups if x.ran]) - 1)
        assert got is not None
        return got

    def reschedule(self, key: Key, item: Item) -> Literal[1, 2, 3, 4, 5, 6] | int | None:
        self.begin_lookup([key])
        self.run_lookup(len(self.lookups) - 1)
        got = self.finish_reschedule([item], len([x for x in self.lookups if x.ran]) - 1)
        return None if got is None else got[0]

    # ------------------------------------------------------------ lists
    def begin_scan(self, low: Key, high: Key, most: int | None = None) -> None:
        self.scans.append(Scanning(self.shard.index.begin_scan(Pair(*low), Pair(*high), None, most, self.slot_cache)))

    def run_scan(self, which: int = 0) -> None:
        if self.scans:
            scan = self.scans[which % len(self.scans)]
            if not scan.ran:
                scan.job.run()
                scan.ran = True

    def finish_scan(self, which: int = 0) -> None:
        """Above the watermark, the live rows of a list are the model's live messages, with their bodies."""
        ready = [scan for scan in self.scans if scan.ran]
        if not ready:
            return
        scan = ready[which % len(ready)]
        self.scans.remove(scan)
        rows, live = scan.job.result()
        self.shard.index.close_view(scan.job.view)
        low, high = max(scan.job.low, self.model.watermark), scan.job.high
        expected = sorted(key for key in self.model.live if low <= key < high)
        keys = [(int(row["due"]), int(row["seq"])) for row in rows]
        assert keys == sorted(keys)
        got = [at for at, key in enumerate(keys) if live[at] and key > self.model.watermark]
        assert [keys[at] for at in got] == expected
        written = rows[got][rows[got]["offset"] + rows[got]["size"] <= self.shard.log.written]
        self.check_bodies(written, [self.model.live[int(r["due"]), int(r["seq"])] for r in written])
