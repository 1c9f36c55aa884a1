"""Steps of a World: schedules. Their reckoning is the plainest there is: a schedule fires at all multiples of its
interval, which is its definition; what is left out or missed is up to who takes the step."""

from __future__ import annotations

import numpy as np
from delaynode.store.errors import Impossible
from delaynode.store.log.frames import (
    BACKFILLED,
    BY_HAND,
    FIRED,
    NEVER,
    SINCE_FORMAT,
    SKIPPED,
    TRIGGERED,
    Firings,
    FrameKind,
    ScheduleChange,
)
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.queue.schedules import ScheduleState

from tests.store.support import model as m
from tests.store.support.model import Msg
from tests.store.support.producing import Producing

FLAGS = {"fire": FIRED, "skip": SKIPPED, "miss": 0, "trigger": FIRED | TRIGGERED, "backfill": FIRED | BACKFILLED}


def following(interval: int, after_ms: int) -> int:
    return (after_ms // interval + 1) * interval


class Scheduling(Producing):
    """A shard with schedules."""

    @property
    def has_schedules(self) -> bool:
        """All nodes read their format."""
        return self.shard.format >= SINCE_FORMAT[FrameKind.SCHEDULE]

    def put_schedule(self, id_: str, interval: int, *, paused: bool = False) -> None:
        if not self.has_schedules:
            return
        known = self.shard.schedules.find(id_)
        nominal = NEVER if paused else following(interval, max(self.now, known.last if known else 0))
        due = NEVER if paused else nominal + interval // 7
        definition = interval.to_bytes(8, "little") * (1 + interval % 3)
        with self.recording() as events:
            self.shard.change_schedule(ScheduleChange(id_, True, definition, nominal, due), self.now)
            end = self.shard.log_end
            events.append(m.Scheduled(id_, definition, nominal, due, end, self.now))

    def delete_schedule(self, id_: str) -> None:
        before = self.shard.log_end
        if id_ not in self.model.schedules:
            try:
                self.shard.change_schedule(ScheduleChange(id_, False), self.now)
            except Impossible:
                assert self.shard.log_end == before
                return
            raise AssertionError("what is not there can't be deleted")
        with self.recording() as events:
            self.shard.change_schedule(ScheduleChange(id_, False), self.now)
            events.append(m.Scheduled(id_, None, 0, 0, 0, self.now))

    @property
    def fires_again(self) -> bool:
        """All nodes read several firings of one schedule in a frame."""
        return self.shard.format >= SINCE_FORMAT[FrameKind.FIRE_AGAIN]

    def fire_due(self, what: list[str], most: int, again: int = 0) -> int:
        """Fire up to `most` of the schedules that are due, as `what` says in turn, the first so many times again;
        returns how many firings."""
        found = self.shard.schedules.due_by(self.now, most)
        wanted = sorted(one.due for one in self.model.schedules.values() if one.due <= self.now)
        assert [one.due for one in found] == wanted[:most]
        rows = []
        for one in found:
            rows += [(one, what[len(rows) % len(what)], one.nominal, self.step_of(one))]
            while again > 0 and self.fires_again and rows[-1][3] < self.now:  # missed, in the same frame
                rows += [(one, what[len(rows) % len(what)], rows[-1][3], self.step_of(one, rows[-1][3]))]
                again -= 1
        self._fire(rows)
        return len(rows)

    def step_of(self, one: ScheduleState, nominal: int | None = None) -> int:
        """The nominal time after that one; None: the one that is armed."""
        return following(int.from_bytes(one.definition[:8], "little"), one.nominal if nominal is None else nominal)

    def fire_by_hand(self, id_: str, what: str, time: int) -> None:
        found = self.shard.schedules.find(id_)
        assert (found is None) == (id_ not in self.model.schedules)
        if found is not None:
            self._fire([(found, what, time, found.nominal)])

    def _fire(self, rows: list[tuple[ScheduleState, str, int, int]]) -> None:
        """rows: which, of FLAGS, the nominal time that is over, the next."""
        if not rows:
            return
        flags = [FLAGS[what] for _, what, _, _ in rows]
        dues = [
            one.due if flag & BY_HAND else nominal + 1 for (one, *_, nominal), flag in zip(rows, flags, strict=True)
        ]
        told = [(one, what, time) for (one, what, time, _), flag in zip(rows, flags, strict=True) if flag & FIRED]
        bodies = [f"{one.id}/{one.number}/{time}/{what}".encode() for one, what, time in told]
        sizes = np.array([len(body) for body in bodies], np.uint32)
        none = np.zeros(len(bodies), np.uint32)
        due = np.minimum(np.array([time for *_, time in told], np.int64), self.now)
        messages = IncomingBatch(due, np.empty(0, np.uint8), sizes, none, none, b"".join(bodies))
        columns = [
            np.array(column, kind)
            for column, kind in (
                ([one.number for one, *_ in rows], np.int64),
                ([time for _, _, time, _ in rows], np.int64),
                ([nominal for *_, nominal in rows], np.int64),
                (dues, np.int64),
                (flags, np.uint32),
                ([3 * (what == "miss") for _, what, _, _ in rows], np.uint32),
            )
        ]
        firings = Firings(*columns)
        with self.recording() as events:
            first_seq = self.shard.next_seq
            self.shard.fire(firings, messages, self.now)
            model_rows = zip(
                [one.id for one, *_ in rows], *(getattr(firings, name).tolist() for name in firings.__slots__[1:]),
                strict=True,
            )  # fmt: skip
            messages_ = tuple(Msg(body, 0) for body in bodies)
            events.append(m.Fire(tuple(model_rows), first_seq, tuple(due.tolist()), messages_, self.now))
