"""More planted bugs, as in mutations.py: of schedules, which must fire once, at their times, and not while paused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from delayapi.schedule_times import Due
from delaynode.replica.hosts.schedules import Firing, ScheduleMaster
from delaynode.store.log.frames import FIRED, NEVER
from delaynode.store.queue.schedules import Schedules
from delaynode.store.shard import Shard

from tests.simulation.support.mutations.planting import Put, mutation


@mutation(None, r"invariant 9: .* fires \d+ again", (4, 10))
def fires_twice_after_a_failover(put: Put) -> None:
    apply, fire = Shard.apply, Schedules.fire

    def unarmed(self: Schedules, rows: Any, firings: Any, *rest: Any) -> None:
        nominal, due = self._columns["nominal"][rows], self._columns["due"][rows]
        fire(self, rows, replace(firings, nominal=nominal, due=due), *rest)

    def applied(self: Shard, frame: Any) -> None:
        with patch.object(Schedules, "fire", unarmed):
            apply(self, frame)

    put(Shard, "apply", applied)


@mutation(None, r"invariant 9: .* (arms|does not fire|which is no time)", (4, 7))
def arms_from_the_clock(put: Put) -> None:
    firing = ScheduleMaster._firing

    def from_now(self: ScheduleMaster, state: Any, definition: Any, now_ms: int) -> Firing:
        found = firing(self, state, definition, now_ms)
        after_ms = now_ms + definition.schedule.every.interval.ToMilliseconds()
        return replace(found, armed=Due(after_ms, after_ms)) if found.armed is not None else found

    put(ScheduleMaster, "_firing", from_now)


@mutation(None, "invariant 9: .* is paused", (10, 14))
def forgets_the_pause(put: Put) -> None:  # schedules x checkpoints x failovers
    snapshot = Schedules.snapshot

    def armed(self: Schedules) -> Any:
        arrays = snapshot(self)
        if arrays:
            columns = [arrays[f"schedules.{name}"] for name in ("nominal", "due")]
            for column in columns:
                column[:] = np.where(column == NEVER, arrays["schedules.changed_ms"], column)
        return arrays

    put(Schedules, "snapshot", armed)


@mutation(None, "invariant 9: .* does not fire", (4, 7))
def skips_what_came_due_during_a_failover(put: Put) -> None:
    firing = ScheduleMaster._firing

    def late(self: ScheduleMaster, state: Any, definition: Any, now_ms: int) -> Firing:
        found = firing(self, state, definition, now_ms)
        step = definition.schedule.every.interval.ToMilliseconds()
        if found.flags & FIRED and found.armed is not None and now_ms - found.due > 2 * step:
            found = replace(found, time=found.time + step, due=found.due + step)
            armed = Due(found.time + step, found.time + step)
            return replace(found, armed=armed)
        return found

    put(ScheduleMaster, "_firing", late)


@mutation(None, "invariant 9: .* it has schedules|invariant 9: .* that is not there", (14, 37))
def leaves_schedules_out_of_checkpoints(put: Put) -> None:
    put(Schedules, "snapshot", lambda self: {})
