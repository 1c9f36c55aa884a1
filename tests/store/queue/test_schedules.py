"""Schedules in the store: each nominal time fires once and none early, whatever is restarted meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from delayapi.units import MINUTE_MS
from delaynode.store import formats, shard
from delaynode.store.errors import Damaged, Impossible
from delaynode.store.log import frames
from delaynode.store.log.frames import FIRED, NEVER, Firings, FrameKind, ScheduleChange
from delaynode.store.queue.schedules import Schedules

from tests.store.support.consuming import World
from tests.store.support.copywalks import ClusterSteps, all_steps, config_of, of_master
from tests.store.support.copywalks import walk as walk_copies
from tests.store.support.producing import Item
from tests.store.support.steps import CONSUMERS, JOBS, MESSAGES, SCHEDULES, TIDYING, TROUBLE
from tests.store.support.walks import Steps, times, walk
from tests.store.support.world import SMALL

STEPS: Steps = {
    **{name: (4 * weight, step) for name, (weight, step) in SCHEDULES.items()},
    **{name: (1, step) for name, (_, step) in (JOBS | TROUBLE | CONSUMERS | TIDYING).items()},
    "live a while": (6, MESSAGES["live a while"][1]),
    "enqueue": (3, lambda world, draw: world.enqueue([Item(draw(-5, 5 * MINUTE_MS))] * draw(1, 3))),
    "cancel": (1, MESSAGES["cancel"][1]),
}


def scheduling_world(seed: int) -> World:
    return World(seed, replace(SMALL, format=formats.NEWEST, log_segment_bytes=(300, 2000)[seed % 2]), page=64)


def check_once(world: World) -> None:
    """By what has been released alone: no nominal time of a schedule by the clock comes twice."""
    bodies = Counter(queued.msg.body for queued in world.model.queue if queued.msg.body.endswith(b"/fire"))
    assert all(count == 1 for count in bodies.values())
    assert all(due <= at for one in world.model.schedules.values() for _, _, due, at, _ in one.recent), "early"


def walks(count: int) -> None:
    for seed in range(7 * 10**6, 7 * 10**6 + count):
        check_once(walk(seed, STEPS, length=80, make=scheduling_world))


def test_schedules_are_as_their_frames_say_through_crashes() -> None:
    walks(times(40))


def of_copies() -> ClusterSteps:
    own = {name: (4 * weight, of_master(step)) for name, (weight, step) in SCHEDULES.items()}
    return all_steps() | own | {"live a while": (8, of_master(MESSAGES["live a while"][1]))}


def test_copies_have_the_same_schedules_through_crashes_cuts_and_promotions() -> None:
    fired = 0
    for seed in range(times(24)):
        config = replace(config_of(random.Random(seed)), format=formats.NEWEST)
        cluster = walk_copies(seed, (30, 60, 120)[seed % 3], of_copies(), config)
        check_once(cluster.master)
        fired += sum(one.fired for one in cluster.master.model.schedules.values())
    assert fired > times(24)


@pytest.mark.parametrize("times", [[50, 50], [60, 50], [50, 40]])
def test_a_frame_that_fires_a_time_again_can_not_be_applied(times: list[int]) -> None:
    schedules, two = Schedules(), np.ones(2, np.uint32)
    schedules.apply(ScheduleChange("a", True, b"", 50, 50), 0, 7)
    time, number = np.array(times), np.full(2, 7)
    firings = Firings(number, time, time + 1, time + 1, two * FIRED, two * 0)
    with pytest.raises(Impossible, match=r"fires schedule 'a' of \d+ and arms"):
        schedules.rows_of(firings, FrameKind.FIRE_AGAIN)
    good = replace(firings, time=np.array([50, 51]), nominal=np.array([51, 52]))
    assert schedules.rows_of(good, FrameKind.FIRE_AGAIN).tolist() == [0, 0]
    with pytest.raises(Impossible, match="fires a schedule twice"):
        schedules.rows_of(good, FrameKind.FIRE)


def forgets_at_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedules, "restore", lambda self, arrays: None)


def forgets_what_it_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = shard.Shard._apply

    def forgetful(self: shard.Shard, frame: Any) -> None:
        if frame.kind is not FrameKind.SCHEDULE:
            apply(self, frame)
        else:
            self._begin(frame)

    monkeypatch.setattr(shard.Shard, "_apply", forgetful)


def arms_nothing_when_it_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    def unarmed(payload: Any) -> Firings:
        firings: Firings = parse(payload)
        return replace(firings, due=np.full(len(firings.due), NEVER))

    parse = frames.parse_firings
    monkeypatch.setattr(shard, "parse_firings", unarmed)


def keeps_deleted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedules, "_compact", lambda self: None)


def looks_at_the_earliest_due_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fire = Schedules.fire

    def stale(self: Schedules, *args: Any) -> None:
        before = self.next_due
        fire(self, *args)
        self._next_due = before

    monkeypatch.setattr(Schedules, "fire", stale)


PLANTED = (
    forgets_at_a_restart, forgets_what_it_replays, arms_nothing_when_it_replays, keeps_deleted_rows,
    looks_at_the_earliest_due_once,
)  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED)
def test_walks_find_a_mistake(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, Damaged, Impossible, ValueError)):
        walks(40)
