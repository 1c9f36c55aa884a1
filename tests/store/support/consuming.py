"""Steps of a World: groups, deliveries, acks, nacks, dead letters."""

from __future__ import annotations

import zlib

import numpy as np
from delaynode.store.errors import Refused
from delaynode.store.log.frames import SINCE_FORMAT, FrameKind
from delaynode.store.queue.consumers import FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS, ConsumerDelivery
from delaynode.store.types import I64, MAX_SEQ, U32

from tests.store.support import model as m
from tests.store.support.model import Event, ModelGroup, Open
from tests.store.support.scheduling import Scheduling


def tag_of(name: str) -> int:
    return zlib.crc32(name.encode())


def _records_end(delivery: ConsumerDelivery) -> int:
    return int((delivery.rows["offset"] + delivery.rows["size"]).max(initial=0))


def _columns(rows: list[tuple[int, int]]) -> tuple[I64, U32]:
    return np.array([offset for offset, _ in rows], np.int64), np.array([attempt for _, attempt in rows], np.uint32)


class World(Scheduling):
    """A shard with all that can be done to it."""

    @property
    def visible(self) -> int:
        return self.shard.queue.visible

    # ------------------------------------------------------------ groups
    def join(self, name: str, tags: tuple[str, ...] = (), *, from_end: bool = False) -> None:
        wanted = frozenset(map(tag_of, tags))
        known = self.model.groups.get(name)
        try:
            with self.recording() as events:
                before = self.shard.log_end
                rests_on = self.shard.consumers.join(name, tags, from_end=from_end, now_ms=self.now)
                made = self.shard.log_end > before
                assert made == (known is None)
                assert (before < rests_on) == made, "a new group is not handed anything before its frame is committed"
                if made:
                    events.append(m.GroupMade(name, self.visible if from_end else self.model.start, wanted))
        except Refused as refused:
            self.expect_reason(refused, "GROUP_MISMATCH")
            assert known is not None
            assert known.tags != wanted
        else:
            assert known is None or known.tags == wanted

    @staticmethod
    def expect_reason(refused: Refused, *reasons: str) -> None:
        assert refused.reason in reasons, refused.message

    def delete_group(self, name: str) -> None:
        if name in self.model.groups:
            with self.recording() as events:
                self.shard.consumers.delete(name, self.now)
                events.append(m.GroupGone(name))

    # ------------------------------------------------------------ deliveries
    def deliver(self, name: str, most: int, most_bytes: int = 1 << 30, invisible_ms: int = 1000) -> list[int]:
        """Receive; returns the offsets."""
        if name not in self.model.groups:
            return []
        group = self.model.groups[name]
        ready = self.model.ready(name, self.now, self.visible, self.config.max_unacked)
        delivery = self.shard.consumers.deliver(name, self.now, invisible_ms, most, most_bytes)
        offsets = [int(o) for o in delivery.offset]
        assert len(set(offsets)) == len(offsets)
        assert set(offsets) <= set(ready), "handed out what is done, hidden, foreign or not there"
        sizes = [len(self.model.queue[o].msg.body) for o in offsets]
        if most_bytes >= 1 << 30:
            assert len(offsets) == min(most, len(ready)), "a message that is ready was kept back"
        else:
            assert bool(offsets) == bool(ready)
            assert len(offsets) == 1 or sum(sizes) <= most_bytes
        for offset, attempt, row in zip(offsets, delivery.attempt.tolist(), delivery.rows, strict=True):
            queued = self.model.queue[offset]
            assert (int(row["due"]), int(row["seq"])) == (queued.due, queued.seq)
            state = group.redriven[offset] if offset in group.redriven else group.open.setdefault(offset, Open())
            assert state.attempt == attempt
            state.until = self.now + invisible_ms
        self._check_rests(name, delivery)
        life = self.recoveries
        if _records_end(delivery) > self.shard.committed_offset:
            self.pump()  # the caller waits until the frames that it rests on are committed
        if self.recoveries == life:
            self.check_bodies(delivery.rows, [self.model.queue[o].msg for o in offsets])
        return offsets

    def _check_rests(self, name: str, delivery: ConsumerDelivery) -> None:
        """Check that the frames which the delivery rests on are enough for a master to hand out the same."""
        sure = max(delivery.depends_on, self.shard.committed_offset)
        assert delivery.depends_on <= self.shard.log_end
        if not len(delivery.offset) or sure >= self.entries[-1].end:
            return
        assert _records_end(delivery) <= sure, "its records rest on frames that are under way"
        model = m.Model((self.born, MAX_SEQ))
        for entry in self.entries:
            if entry.end <= sure:
                model.apply(entry.event)
        assert name in model.groups, "rests on no group"
        ready = model.ready(name, self.now, self.visible, self.config.max_unacked)
        attempts = {offset: state.attempt for offset, state in ready.items()}
        for offset, attempt in zip(delivery.offset.tolist(), delivery.attempt.tolist(), strict=True):
            assert attempts.get(offset) == attempt, f"offset {offset} rests on frames after {sure}"

    @staticmethod
    def _state(group: ModelGroup, offset: int) -> Open:
        return group.redriven.get(offset) or group.open.get(offset) or Open()

    def ack(self, name: str, ranges: list[tuple[int, int]]) -> None:
        """Ack [start, end) ranges, whether or not they were delivered before."""
        if name not in self.model.groups:
            return
        group = self.model.groups[name]
        start, end = (np.array([r[i] for r in ranges], np.int64) for i in (0, 1))
        offsets = {o for low, high in ranges for o in range(low, high)}
        released = offsets & set(range(group.start, self.visible))
        mine = {o for o in released - group.done if group.takes(self.model.queue[o])}
        expected = len(mine) + len(offsets & set(group.redriven))
        floor = self.model.floor(name, self.visible)
        valid = bool(ranges) and all(0 <= low < high <= self.visible for low, high in ranges)
        try:
            with self.recording() as events:
                count = self.shard.consumers.acknowledge(name, start, end, self.now)
                if ranges:
                    events.append(m.Ack(name, frozenset(offsets)))
        except Refused as refused:
            overlap = len(offsets) < sum(high - low for low, high in ranges)
            far = any(high > floor + self.config.max_unacked for _, high in ranges)
            self.expect_reason(refused, "BAD_REQUEST", "BAD_COLUMNS")
            assert not valid or overlap or far
        else:
            assert valid or not ranges
            assert count == expected

    def _open_rows(self, name: str, rows: list[tuple[int, int]]) -> list[bool]:
        """Which (offset, attempt) rows name an attempt that is not over."""
        group = self.model.groups[name]
        return [self._is_open(group, name, o) and self._state(group, o).attempt == a for o, a in rows]

    def ack_attempts(self, name: str, rows: list[tuple[int, int]]) -> None:
        """Ack (offset, attempt) rows."""
        if name not in self.model.groups:
            return
        open_rows = self._open_rows(name, rows)
        acked = frozenset(offset for (offset, _), is_open in zip(rows, open_rows, strict=True) if is_open)
        with self.recording() as events:
            count, settled = self.shard.consumers.acknowledge_attempts(name, *_columns(rows), self.now)
            if acked:
                events.append(m.Ack(name, acked))
        assert settled.tolist() == open_rows
        assert count == len(acked)

    def extend(self, name: str, rows: list[tuple[int, int]], invisible_ms: int) -> None:
        """Extend (offset, attempt) rows, or give them back."""
        if name not in self.model.groups:
            return
        open_rows, group = self._open_rows(name, rows), self.model.groups[name]
        until = self.now + invisible_ms if invisible_ms else None
        settled = self.shard.consumers.extend(name, *_columns(rows), until or 0)
        assert settled.tolist() == open_rows
        for (offset, _), is_open in zip(rows, open_rows, strict=True):
            if is_open:
                state = group.redriven[offset] if offset in group.redriven else group.open.setdefault(offset, Open())
                state.until = until

    def nack(
        self, name: str, rows: list[tuple[int, int]], backoff_ms: int, *, dead: bool = False, reason: str = ""
    ) -> None:
        """Nack (offset, attempt) rows."""
        if name not in self.model.groups:
            return
        open_rows = self._open_rows(name, rows)
        kept = reason if self.shard.format >= SINCE_FORMAT[FrameKind.DEAD_REASON] else ""
        open_ = {o: a for (o, a), is_open in zip(rows, open_rows, strict=True) if is_open}
        with self.recording() as events:
            counts = self.shard.consumers.nack(name, *_columns(rows), backoff_ms, self.now, dead=dead, reason=reason)
            ended = self._ended(name, open_, backoff_ms, dead=dead, reason=kept)
            events += ended
        died = self._died(ended)
        assert counts.settled.tolist() == open_rows
        assert (counts.retried, counts.dead, counts.ignored) == (len(open_) - died, died, len(rows) - len(open_))

    def _is_open(self, group: ModelGroup, name: str, offset: int) -> bool:
        if offset in group.redriven:
            return True
        reach = min(self.visible, self.model.floor(name, self.visible) + self.config.max_unacked)
        return group.start <= offset < reach and offset not in group.done and group.takes(self.model.queue[offset])

    def _ended(
        self, name: str, ended: dict[int, int], backoff_ms: int, *, dead: bool = False, reason: str = ""
    ) -> list[Event]:
        """The frames that end these attempts: dead letters, as far as there is room for them, then retries."""
        group = self.model.groups[name]
        last = sorted(o for o, a in ended.items() if dead or a >= self.config.max_attempts)
        room = max(0, self.config.max_dead_letters - len(group.dead) - len(group.redriven))
        kept = [o for o in last if o not in group.redriven][room:]
        died = {o: ended[o] for o in last if o not in kept}
        again = {o: a for o, a in ended.items() if o not in died}

        def wait(offset: int, attempt: int) -> int:
            if offset in kept:
                return LONGEST_BACKOFF_MS
            return backoff_ms if backoff_ms >= 0 else min(FIRST_BACKOFF_MS * 2 ** (attempt - 1), LONGEST_BACKOFF_MS)

        events: list[Event] = []
        if died:
            events.append(m.Dead(name, tuple(died.items()), self.now, reason))
        if again:
            events.append(m.Retry(name, tuple((o, a, self.now + wait(o, a)) for o, a in again.items())))
        return events

    @staticmethod
    def _died(events: list[Event]) -> int:
        return sum(len(event.rows) for event in events if isinstance(event, m.Dead))

    def expire(self) -> None:
        """End the attempts whose invisible time is over."""
        late = {
            name: {
                offset: state.attempt
                for states in (group.open, group.redriven)
                for offset, state in states.items()
                if state.until is not None and state.until <= self.now
            }
            for name, group in self.model.groups.items()
        }
        if any(late.values()):
            assert self.shard.consumers.next_expiry() <= self.now
        with self.recording() as events:
            ended = self.shard.consumers.expire(self.now)
            for name in self.shard.consumers.groups:
                events += self._ended(name, late[name], 0)
        dead = self._died(events)
        assert (ended.retried, ended.dead) == (sum(map(len, late.values())) - dead, dead)

    # ------------------------------------------------------------ dead letters
    def resolve(self, name: str, offsets: list[int] | None, *, redrive: bool) -> None:
        if name not in self.model.groups:
            return
        group = self.model.groups[name]
        named = set(group.dead) if offsets is None else set(group.dead) & set(offsets)
        with self.recording() as events:
            given = None if offsets is None else np.array(offsets, np.int64)
            resolved = self.shard.consumers.resolve(name, given, redrive=redrive, now_ms=self.now)
            if named:
                events.append(
                    m.Redrive(name, frozenset(named), self.now) if redrive else m.Drop(name, frozenset(named))
                )
        assert resolved == len(named)

    def expire_dead(self) -> int:
        """Drop the dead letters that were kept for long enough; returns how many."""
        limit = self.now - self.config.dlq_retention_ms
        dropped = 0
        with self.recording() as events:
            ended = self.shard.consumers.expire_dead(self.now)
            for name in self.shard.consumers.groups:
                group = self.model.groups[name]
                old = frozenset(o for o in {*group.dead, *group.redriven} if group.since[o] < limit)
                dropped += len(old)
                if old:
                    events.append(m.Drop(name, old))
        assert ended == dropped
        return dropped

    def check_groups(self) -> None:
        """Compare every group's dead letters and counts with the model's."""
        for name, group in self.model.groups.items():
            listed = self.shard.consumers.dead_letters(name, -1, 10_000)
            assert dict(zip(listed.offset.tolist(), listed.attempt.tolist(), strict=True)) == group.dead
            assert listed.offset.tolist() == sorted(group.dead)
            assert list(listed.reasons) == [group.reasons[offset] for offset in sorted(group.dead)]
            self.check_bodies(listed.rows, [self.model.queue[o].msg for o in listed.offset.tolist()])
            counts = self.shard.consumers.group(name).counts(self.shard.queue, self.now)
            states = [s for where in (group.open, group.redriven) for s in where.values()]
            assert counts.dead == len(group.dead)
            assert counts.redriven == len(group.redriven)
            mine = {o for o in range(group.start, self.visible) if group.takes(self.model.queue[o])} - group.done
            assert counts.available + counts.in_flight + counts.waiting_retry == len(mine) + len(group.redriven)
            assert counts.in_flight == sum(s.until is not None for s in states)
            assert counts.waiting_retry == sum(s.until is None and s.visible > self.now for s in states)

    def drain(self, name: str) -> None:
        """Receive and ack until nothing is left: all that was released and not done comes, and nothing else."""
        group = self.model.groups[name]
        for _ in range(10_000):
            got = self.deliver(name, 4)
            if got:
                self.ack(name, [(o, o + 1) for o in sorted(got)])
                continue
            states = (*group.open.values(), *group.redriven.values())
            waits = [s.visible if s.until is None else s.until for s in states]
            waits = [at for at in waits if at > self.now]
            if not waits:
                break
            self.now = max(self.now, min(waits))
            self.expire()
        assert self.model.floor(name, self.visible) == self.visible
