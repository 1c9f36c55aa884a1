"""A master's schedules through crashes at every step: each nominal time has one message, and none comes early.

What has to come is reckoned another way: by the independent reckoning of cron, or by multiplying.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from delayapi import cron, schedule_times
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayapi.zones import Zone
from delaynode.replica.hosts.schedules import MAX_FIRED, ScheduleMaster
from delaynode.store import formats
from delaynode.store.errors import Refused, Unappliable
from delaynode.store.log.frames import NEVER, SINCE_FORMAT, FrameKind
from delaynode.store.maintenance import persist
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules.reckoning import Years
from tests.simulation.support.mutations.mutations_of_schedules import (
    fires_twice_after_a_failover,
    forgets_the_pause,
)
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.world import ROOT, SMALL, UID

CI = settings.get_profile("ci")
START = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp() * 1_000)
ZONES = ("Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Asia/Kolkata")
CRONS = {  # the same without seconds, and the seconds
    "30 2 * * *": ("30 2 * * *", 0),
    "30 0 9 * * 1-5": ("0 9 * * 1-5", 30),
    "0 0 L * *": ("0 0 L * *", 0),
    "0 15 1 * * 0#1": ("15 1 * * 0#1", 0),
}
CONFIG = replace(
    SMALL, format=formats.NEWEST, log_segment_bytes=1 << 20, queue_segment_bytes=1 << 20,
    keep=replace(SMALL.keep, retention_ms=50 * 365 * DAY_MS),
)  # fmt: skip


class Life:
    """One shard on a disk that crashes, and its master."""

    def __init__(self, seed: int = 1) -> None:
        self.disk, self.now, self.rearmed, self.epoch = MemoryFiles(random.Random(seed)), START, False, 0
        self.told: list[str] = []
        persist.create(self.disk, ROOT, UID, "t", 0, CONFIG, self.now)
        self.lead()

    def lead(self) -> None:
        """A process opens the copy, and begins a term."""
        self.shard, _ = persist.recover(self.disk, ROOT, CONFIG)
        self.epoch += 1
        persist.accept_epoch(self.disk, ROOT, self.shard, self.epoch)
        self.shard.begin_term(self.epoch, "n0", self.now)
        self.master = ScheduleMaster(self.shard, lambda id_, why: self.told.append(f"{id_}: {why}"))

    def commit(self) -> None:
        self.write()
        self.shard.commit(self.shard.log.synced)

    def write(self) -> None:
        """It is on the disk, and this term does not commit it."""
        batch = self.shard.next_batch(sync=True)
        if batch is not None:
            batch.run()
            self.shard.finish_writes(batch)

    def crash(self, *, power: bool) -> None:
        (self.disk.crash if power else self.disk.kill)()
        self.lead()

    def fail_over(self) -> None:
        """Another copy leads, which has what is committed, and no more."""
        old, end = self.shard, self.shard.committed_offset
        self.disk = MemoryFiles(self.disk.rng)
        persist.create(self.disk, ROOT, UID, "t", 0, CONFIG, self.now)
        self.shard, _ = persist.recover(self.disk, ROOT, CONFIG)
        persist.accept_epoch(self.disk, ROOT, self.shard, self.epoch)
        while (begin := self.shard.log.end) < end:
            self.shard.log.receive(memoryview(old.log.read_raw(begin, end - begin)))
            self.write()
        assert self.shard.log.end == end
        self.lead()

    def checkpoint(self) -> None:
        self.commit()
        job = persist.begin_checkpoint(self.disk, ROOT, self.shard)
        job.run()
        persist.remove_files(self.disk, persist.finish_checkpoint(job))

    def fire(self) -> None:
        self.rearmed |= self.master.fire_due(self.now).rearmed
        found = [self.master.find(id_)[0].recent for id_ in self.shard.schedules.ids()]
        assert all((recent[:1, 2:4] <= self.now).all() for recent in found), "early"

    def settle(self) -> None:
        """Fire all that is due."""
        while self.master.next_due() <= self.now:
            self.fire()
        self.commit()

    def harm(self, kind: int) -> None:
        crashes = (lambda: self.crash(power=True), lambda: self.crash(power=False), self.fail_over)
        (self.commit, self.write, self.checkpoint, *crashes)[kind]()

    def fired(self) -> list[tuple[str, int, int]]:
        """Of each message that was released: its schedule, nominal time and number."""
        rows = self.shard.queue.read(0, self.shard.queue.visible)
        joined, at, found = b"".join(self.shard.read_records(rows)), 0, []
        for due, size in zip(rows["due"].tolist(), rows["size"].tolist(), strict=True):
            message, at, stamp = delay_pb2.Message.FromString(joined[at : at + size]), at + size, Timestamp()
            assert due <= message.born_ms, "early"
            stamp.FromJsonString(message.properties["schedule-time"])
            number = int(message.properties["schedule-number"])
            found.append((message.properties["schedule-id"], stamp.ToMilliseconds(), number))
        return found


def every(id_: str, interval_ms: int, **fields: Any) -> pb.Schedule:
    made = pb.Schedule(id=id_, topic="t", catch_up=pb.CATCH_UP_ALL, body=b"now", **fields)
    made.every.interval.FromMilliseconds(interval_ms)
    made.catch_up_window.FromSeconds(366 * 86_400)
    return made


def live_years(end_year: int) -> None:
    life, rng, expected = Life(), random.Random(5), {}
    for zone in ZONES:
        years = Years(zone, 2027, end_year)
        for number, (expression, (minutes, seconds)) in enumerate(CRONS.items()):
            one = pb.Schedule(id=f"{zone}/{number}", topic="t", cron=[expression], zone=zone, catch_up=pb.CATCH_UP_ALL)
            one.catch_up_window.FromSeconds(366 * 86_400)
            life.master.put(one, life.now)
            expected[one.id] = years.fixed(minutes) * MINUTE_MS + 1_000 * seconds
    life.master.put(every("paused", HOUR_MS), life.now, paused=True)
    life.commit()
    instants = np.sort(np.concatenate(list(expected.values())))
    instants = instants[instants >= START]
    end = int(datetime(end_year - 1, 12, 31, tzinfo=UTC).timestamp() * 1_000)
    crashes = failovers = 0
    while life.now < end:
        life.now = min(
            end, max(life.now, life.master.next_due()) + rng.choice((0, 0, 0, 0, HOUR_MS, 3 * DAY_MS, 9 * DAY_MS))
        )
        while life.master.next_due() <= life.now:
            life.fire()
            kind = rng.choice((0, 0, 0, 1, 1, 2, 3, 4, 5) if rng.random() < 0.5 else (0, 1))
            crashes, failovers = crashes + (kind > 2), failovers + (kind == 5)
            life.harm(kind)
            assert life.shard.queue.end <= np.searchsorted(instants, life.now, "right"), "more than the times so far"
    life.settle()
    found = life.fired()
    assert crashes > 30
    assert failovers > 10
    assert not life.rearmed, "the rules are the same"
    assert not life.told
    assert {one for one, *_ in found} == expected.keys()
    for id_, times in expected.items():
        due = times[(times >= START) & (times <= end)].tolist()
        assert [(time, number) for one, time, number in found if one == id_] == [
            *zip(due, range(1, len(due) + 1), strict=True)
        ]


@pytest.mark.parametrize("end_year", [2028, pytest.param(2032, marks=pytest.mark.long)])
def test_years_of_five_zones_with_a_crash_or_another_copy_at_any_step(end_year: int) -> None:
    live_years(end_year)


def arms_from_the_clock(put: Callable[[Any, str, Any], None]) -> None:
    firing = ScheduleMaster._firing

    def from_now(self: ScheduleMaster, state: Any, definition: Any, now_ms: int) -> Any:
        found = firing(self, state, definition, now_ms)
        return replace(found, armed=schedule_times.following(definition.schedule, now_ms))

    put(ScheduleMaster, "_firing", from_now)


PLANTED = (arms_from_the_clock, fires_twice_after_a_failover, forgets_the_pause)


@pytest.mark.parametrize("plant", PLANTED)
def test_years_find_a_mistake(monkeypatch: pytest.MonkeyPatch, plant: Callable[..., None]) -> None:
    plant(monkeypatch.setattr)
    with pytest.raises((AssertionError, Unappliable)) as told:
        live_years(2028)
    print(f"{plant.__name__}: {str(told.value)[:100]}")


STEPS = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([1, 500, 59_000, 61_000, 10 * MINUTE_MS, HOUR_MS])),
    st.tuples(st.just("fire"), st.integers(1, 2)),
    st.tuples(st.just("harm"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["pause", "resume", "trigger", "edit"]), st.integers(0, 1)),
)


@CI
@given(st.lists(STEPS, min_size=20, max_size=40), st.integers(0, 9))
def test_each_time_that_is_not_paused_fires_once_whatever_is_restarted(steps: list[tuple[str, int]], seed: int) -> None:
    life = Life(seed)
    intervals = {"a": 7 * MINUTE_MS, "b": 60_000}
    running: dict[str, int | None] = dict.fromkeys(intervals, life.now)
    expected: dict[str, list[int]] = {id_: [] for id_ in intervals}
    triggered = dict.fromkeys(intervals, 0)
    for id_, interval in intervals.items():
        life.master.put(every(id_, interval), life.now)
    life.commit()

    def until_now(id_: str) -> list[int]:
        begin, interval = running[id_], intervals[id_]
        return [] if begin is None else [*range(-(-begin // interval) * interval, life.now + 1, interval)]

    for what, value in steps:
        id_ = "ab"[value % 2]
        if what == "advance":
            life.now += value
        elif what == "fire":
            life.fire()
        elif what == "harm":
            life.harm(value)
        else:  # by its owner, who is answered once it is committed
            life.settle()
            last = until_now(id_)[-1:]
            if what == "pause" and running[id_] is not None:
                expected[id_] += until_now(id_)
                running[id_] = None
            elif what == "resume" and running[id_] is None:
                running[id_] = max([life.now, *(one + 1 for one in (last or expected[id_][-1:]))])
            elif what == "trigger":
                triggered[id_] += 1
                life.master.fire_by_hand(id_, None, life.now)
            elif what == "edit":
                life.master.put(every(id_, intervals[id_], key=f"k{triggered[id_]}{life.now}"), life.now)
            if what in ("pause", "resume"):
                life.master.pause(id_, life.now, paused=what == "pause", note="", expected=None)
            life.commit()
    life.settle()
    found = life.fired()
    for id_ in intervals:
        own = [(time, number) for one, time, number in found if one == id_]
        assert [number for _, number in own] == [*range(1, len(own) + 1)]
        times = [time for time, _ in own]
        wanted = expected[id_] + until_now(id_)
        assert sorted({time for time in times if time % intervals[id_] == 0} - set(wanted)) == []
        for time in wanted:
            times.remove(time)
        assert len(times) == triggered[id_]


def test_a_schedule_whose_zone_is_gone_is_paused_and_the_others_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of zones change under what is stored: a node may have others than the one that took the schedule."""
    life = Life()
    life.master.put(pb.Schedule(id="gone", topic="t", cron=["* * * * *"], zone="Europe/Berlin"), life.now)
    life.master.put(every("good", 60_000), life.now)
    stored = life.shard.schedules.find("gone")
    assert stored is not None
    renamed = stored.definition.replace(b"Europe/Berlin", b"Europe/Gerlin")
    monkeypatch.setitem(life.shard.schedules.__dict__, "_definitions", [renamed, life.shard.schedules._definitions[1]])
    life.now += 60_000
    life.settle()
    assert [id_ for id_, *_ in life.fired()] == ["good"] * 2
    state, definition = life.master.find("gone")
    assert (state.due, definition.paused) == (NEVER, True)
    assert "Europe/Gerlin" in definition.note
    assert len(life.told) == 1


@pytest.mark.parametrize(
    ("begins", "ahead", "comes"),
    [
        ("2 04:00", 4, ["2 05:00", "3 05:00"]),
        ("2 05:30", 2, ["2 07:00", "3 07:00"]),
        ("2 05:30", 4, ["2 06:00", "3 05:00"]),  # 05:00 has passed: what is armed stands for it
        ("2 06:30", 4, ["2 06:00", "3 05:00"]),
        ("2 06:30", 2, ["2 06:00", "2 07:00", "3 07:00"]),  # nine o'clock has not been yet, by the new rules
    ],
)
def test_newer_rules_of_a_zone_move_what_is_armed_and_lose_none(
    monkeypatch: pytest.MonkeyPatch, begins: str, ahead: int, comes: list[str]
) -> None:
    """Nine o'clock is 06:00 UTC, until a term begins by whose rules the clock is ahead by so many hours."""

    def rules(ahead: int) -> None:
        cron.following.cache_clear()
        monkeypatch.setattr(cron, "zone", lambda name: Zone(timezone(timedelta(hours=ahead if name else 0))))

    def at(text: str) -> int:
        return int(datetime.strptime(f"2027-01-{text} +0000", "%Y-%m-%d %H:%M %z").timestamp() * 1_000)

    life = Life()
    rules(3)
    for zone in ("Europe/Istanbul", ""):
        life.master.put(pb.Schedule(id=zone or "utc", topic="t", cron=["0 9 * * *"], zone=zone), life.now)
    for life.now in range(START, at("3 12:00"), 30 * MINUTE_MS):
        if life.now == at(begins):
            life.harm(0)
            rules(ahead)
            life.crash(power=True)
            life.fire()
            assert life.rearmed == (comes[0] != "2 06:00" or begins == "2 06:30")
        life.settle()
    cron.following.cache_clear()
    found = life.fired()
    assert [time for id_, time, _ in found if id_ != "utc"] == [at("1 06:00"), *map(at, comes)]
    assert [time for id_, time, _ in found if id_ == "utc"] == [at(f"{day} 09:00") for day in (1, 2, 3)]


def overdue(format_: int, **fields: Any) -> tuple[Life, int]:
    """Schedules `a`, each 70 ms, and `b`, each 7 s, when a clock has stepped by an hour; how many frames fire that."""
    life, frames = Life(), 0
    life.shard.format = format_
    life.master.put(every("a", 70, **fields), life.now)
    life.master.put(every("b", 7_000), life.now)
    life.commit()
    life.now += HOUR_MS
    while life.master.next_due() <= life.now:
        before = life.shard.log_end
        life.fire()
        frames += life.shard.log_end > before
    life.commit()
    return life, frames


def test_an_hour_of_one_schedule_shares_frames_and_is_in_order_and_whole() -> None:
    life, frames = overdue(formats.NEWEST)
    total = HOUR_MS // 70 + 1 + HOUR_MS // 7_000 + 1
    assert frames == -(-total // MAX_FIRED)
    for again in (False, True):  # as its master has it, and as a replay does
        for id_, interval in (("a", 70), ("b", 7_000)):
            own = [(time, number) for one, time, number in life.fired() if one == id_]
            first = -(-START // interval) * interval
            assert own == [*zip(range(first, life.now + 1, interval), range(1, len(own) + 1), strict=False)]
            state = life.master.find(id_)[0]
            assert [*state.recent[:, 0]] == [*range(len(own), len(own) - 10, -1)]
            assert (state.fired, state.missed, state.last) == (len(own), 0, own[-1][0])
        queued = life.shard.queue.read(0, life.shard.queue.visible)["due"]
        assert len(queued) == total
        assert (np.diff(queued) >= 0).all(), "the first due first"
        if not again:
            life.crash(power=True)


def test_firings_of_one_schedule_share_no_frame_until_all_nodes_read_that() -> None:
    before = SINCE_FORMAT[FrameKind.FIRE_AGAIN] - 1
    life, frames = overdue(before, max_firings=1_000)
    assert frames == 1_000
    assert life.shard.format == before


def test_firings_that_share_a_frame_have_a_bound_of_bytes() -> None:
    life, frames = overdue(formats.NEWEST, key="k" * 200_000, max_firings=60)
    assert frames >= 10
    assert life.master.find("a")[0].fired == 60


def test_an_overlap_that_is_skipped_is_skipped_in_a_shared_frame_too() -> None:
    life, frames = overdue(formats.NEWEST, overlap=pb.OVERLAP_SKIP, overlap_group="billing")
    state = life.master.find("a")[0]
    assert (state.fired, state.skipped) == (1, HOUR_MS // 70)
    assert frames < 300


def test_a_clock_that_steps_over_a_firing_and_back_fires_it_once() -> None:
    life = Life()
    life.master.put(every("a", HOUR_MS), life.now)
    life.now += 90 * MINUTE_MS
    life.settle()
    life.now -= 80 * MINUTE_MS  # back over what has fired
    life.settle()
    life.master.put(every("a", HOUR_MS, key="edited"), life.now)
    life.master.put(every("a", HOUR_MS // 2, key="edited"), life.now)
    life.now = START + 2 * HOUR_MS
    life.settle()
    times = [time - START for _, time, _ in life.fired()]
    assert times == [0, HOUR_MS, HOUR_MS * 3 // 2, 2 * HOUR_MS]


def test_the_limits_of_a_topic_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    monkeypatch.setattr("delaynode.replica.hosts.schedules.MAX_SCHEDULES", 2)
    life.master.put(every("a", 60_000), life.now)
    life.master.put(every("b", 60_000), life.now)
    with pytest.raises(Refused, match="has 2 schedules, the limit") as told:
        life.master.put(every("c", 60_000), life.now)
    assert told.value.reason == "TOO_MANY_SCHEDULES"
    monkeypatch.setattr("delaynode.replica.hosts.schedules.MAX_DEFINITION_BYTES", 3 << 20)
    with pytest.raises(Refused, match="the limit is 3 MiB"):
        life.master.put(every("a", 60_000, key="k" * (4 << 20)), life.now)
    life.master.delete("b", life.now, None)
    assert life.master.put(every("c", 60_000), life.now)
