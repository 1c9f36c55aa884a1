"""Letters: messages whose attempts are used up. A table beside the queue, bounded, with a retention of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from delayapi.units import DAY_MS
from delaynode.store import formats
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.frames import SINCE_FORMAT, Frame, FrameKind, GroupProgress
from delaynode.store.maintenance import persist
from delaynode.store.queue import consumers, dead_letters, groups
from delaynode.store.queue.consume_queue import NEVER, QUEUED
from delaynode.store.queue.consumers import LONGEST_BACKOFF_MS
from delaynode.store.queue.dead_letters import DeadLetters, room_of
from delaynode.store.queue.groups import MAX_ATTEMPT
from delaynode.store.shard import Shard
from delaynode.store.types import I64, U32, Records
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.support.consuming import World, tag_of
from tests.store.support.memory_files import MemoryFiles
from tests.store.support.producing import Item
from tests.store.support.steps import CONSUMERS, Step
from tests.store.support.walks import Steps, small_blocks, times, world_of
from tests.store.support.world import ROOT, SMALL, UID

CI = settings.get_profile("ci")
RED, BLUE = tag_of("red"), tag_of("blue")


def dying(count: int, dead: int | None = None, **limits: int) -> World:
    """A world whose group g has been handed `count` messages; the first `dead` of them are letters."""
    world = World(1, replace(SMALL, **{"max_attempts": 1, "max_unacked": 100, **limits}))
    world.enqueue([Item(0)] * count)
    world.pump()
    world.join("g")
    world.deliver("g", count)
    world.nack("g", [(offset, 1) for offset in range(count if dead is None else dead)], 0)
    return world


def letters_of(world: World) -> DeadLetters:
    return world.shard.consumers.group("g").dead_letters


# ---------------------------------------------------------------- bounded
def test_when_letters_are_at_their_limit_a_message_stays_in_its_group_and_is_tried_again() -> None:
    world = dying(5, max_dead_letters=3)
    assert sorted(world.model.groups["g"].dead) == [0, 1, 2]
    assert world.deliver("g", 9) == []
    world.advance(LONGEST_BACKOFF_MS)
    assert world.deliver("g", 9) == [3, 4]  # attempt 2 of 1
    world.resolve("g", [1], redrive=False)
    world.nack("g", [(3, 2), (4, 2)], 0)  # there is room for one
    assert sorted(world.model.groups["g"].dead) == [0, 2, 3]
    world.check_groups()


def test_a_letter_that_is_redriven_keeps_its_place_and_finds_it_when_it_dies_again() -> None:
    world = dying(3, max_dead_letters=3)
    world.resolve("g", None, redrive=True)
    world.enqueue([Item(0)])
    world.pump()
    assert world.deliver("g", 9) == [0, 1, 2, 3]
    world.nack("g", [(3, 1)], 0)  # no room: the three may come back
    assert world.model.groups["g"].dead == {}
    world.nack("g", [(0, 1), (1, 1), (2, 1)], 0)
    assert sorted(world.model.groups["g"].dead) == [0, 1, 2]
    assert world.shard.consumers.dead_letter_usage() == (3, True)


def test_messages_that_no_consumer_answers_do_not_outgrow_the_limit_either() -> None:
    world = dying(6, dead=0, max_dead_letters=2)
    world.advance(1000)
    world.expire()
    assert (len(letters_of(world)), world.deliver("g", 9)) == (2, [])
    world.advance(LONGEST_BACKOFF_MS)
    assert world.deliver("g", 9) == [2, 3, 4, 5]


def test_attempts_of_a_message_that_can_not_be_buried_stop_at_their_highest_number() -> None:
    world = dying(1, max_dead_letters=0)
    group = world.shard.consumers.group("g")
    for n in range(3):
        group._attempt[:1] = MAX_ATTEMPT - 1 + min(n, 1)
        held = group.is_current_attempt(np.array([0]), np.array([group._attempt[0]], np.uint32), world.shard.queue)
        assert held.all()
        counts = world.shard.consumers.nack("g", np.array([0]), group._attempt[:1].astype(np.uint32), 0, world.now)
        assert (counts.retried, counts.dead) == (1, 0)
        assert int(group._attempt[0]) == MAX_ATTEMPT
    assert group.first_unacked == 0


def test_a_hundred_thousand_letters_take_a_bounded_room() -> None:
    """Buried in any order, redriven and done with: what has gone takes no room for long."""
    rng, table = np.random.default_rng(1), DeadLetters()
    for part in np.array_split(rng.permutation(100_000), 50):
        offsets = np.sort(part)
        rows = np.zeros(len(offsets), QUEUED)
        rows["seq"] = offsets
        table.add(offsets, np.ones(len(offsets), np.uint32), rows, 5)
    assert table.offsets().tolist() == list(range(100_000))
    assert (table.dead_after(-1, NEVER)[2]["seq"] == np.arange(100_000)).all()
    assert sum(column.nbytes for column in table._table) < 20_000_000
    for part in np.array_split(rng.permutation(99_000), 50):
        table.remove(table.find(np.sort(part))[0])
    assert len(table) == table.dead == 1_000
    assert table._used <= 2_048


# ---------------------------------------------------------------- reasons
def reasons_of(world: World) -> dict[int, str]:
    listed = world.shard.consumers.dead_letters("g", -1, 100)
    return dict(zip(listed.offset.tolist(), listed.reasons, strict=True))


def test_a_dead_letter_keeps_the_reason_of_the_nack_that_made_it_one() -> None:
    world = dying(5, dead=0, max_attempts=2, format=formats.NEWEST)
    world.nack("g", [(0, 1)], 0, dead=True, reason="status 400: no such order")
    world.nack("g", [(1, 1)], 0, reason="it is tried again, and this is forgotten")
    world.deliver("g", 1)
    world.nack("g", [(1, 2)], 0, reason="status 503")
    world.nack("g", [(2, 1)], 0, dead=True)
    assert reasons_of(world) == {0: "status 400: no such order", 1: "status 503", 2: ""}
    world.pump()
    world.power_cut()  # from its frames
    assert reasons_of(world) == {0: "status 400: no such order", 1: "status 503", 2: ""}
    world.checkpoint()
    world.power_cut()  # from the checkpoint
    assert reasons_of(world) == {0: "status 400: no such order", 1: "status 503", 2: ""}
    world.resolve("g", [0], redrive=True)
    assert world.deliver("g", 1) == [0]
    world.nack("g", [(0, 1)], 0, dead=True)
    assert reasons_of(world)[0] == "", "what it died of before it was redriven says nothing of this time"


def test_no_reason_is_written_while_a_node_does_not_read_its_frames() -> None:
    world = dying(1, dead=0, format=SINCE_FORMAT[FrameKind.DEAD_REASON] - 1)
    world.nack("g", [(0, 1)], 0, reason="status 503")
    assert reasons_of(world) == {0: ""}


def test_beyond_their_room_dead_letters_have_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master leaves it out of the frame: copies need not agree on what there is room for."""
    monkeypatch.setattr(consumers, "MAX_REASONS_BYTES", 2 * room_of("status 503"))
    world = dying(4, dead=0, format=formats.NEWEST)
    for offset in range(3):
        given = world.shard.consumers.nack("g", *attempts(offset), 0, world.now, reason="status 503")
        assert given.dead == 1
    assert reasons_of(world) == {0: "status 503", 1: "status 503", 2: ""}
    world.shard.consumers.resolve("g", np.array([1]), redrive=False, now_ms=world.now)
    world.shard.consumers.nack("g", *attempts(3), 0, world.now, reason="status 504")
    assert reasons_of(world) == {0: "status 503", 2: "", 3: "status 504"}, "what has gone makes room"
    world.shard.consumers.resolve("g", None, redrive=True, now_ms=world.now)
    assert letters_of(world).reason_bytes == 0


def attempts(offset: int) -> tuple[I64, U32]:
    return np.array([offset]), np.array([1], np.uint32)


# ---------------------------------------------------------------- retention
def test_letters_are_kept_for_their_retention_and_then_dropped() -> None:
    world = dying(3, dead=2, dlq_retention_ms=5000)
    world.advance(3000)
    world.nack("g", [(2, 1)], 0)
    world.advance(2000)
    assert world.expire_dead() == 0
    world.advance(1)
    assert world.expire_dead() == 2
    assert sorted(world.model.groups["g"].dead) == [2]
    assert world.expire_dead() == 0, "which finds the oldest of those that are left"
    assert letters_of(world).oldest == world.model.groups["g"].since[2]  # nothing to look at before
    world.pump()
    world.power_cut()
    world.advance(3000)
    assert world.expire_dead() == 1


def test_a_redriven_letter_that_nobody_takes_is_kept_for_as_long_again() -> None:
    world = dying(2, dlq_retention_ms=5000)
    world.advance(4000)
    world.resolve("g", [0], redrive=True)
    world.advance(2000)
    assert world.expire_dead() == 1
    assert sorted(world.model.groups["g"].redriven) == [0]
    world.advance(3001)
    assert world.expire_dead() == 1
    assert world.deliver("g", 5) == []


def test_a_letters_age_survives_a_checkpoint_and_a_crash() -> None:
    world = dying(1, dlq_retention_ms=5000)
    died = world.now
    world.advance(1000)
    world.stop()
    assert letters_of(world).oldest == died


def test_a_redriven_letter_waits_for_its_backoff_through_a_restart() -> None:
    world = dying(1, max_attempts=2, dead=0)
    world.nack("g", [(0, 1)], 0)
    world.deliver("g", 1)
    world.nack("g", [(0, 2)], 0)
    world.resolve("g", None, redrive=True)
    assert world.deliver("g", 1) == [0]
    world.nack("g", [(0, 1)], 5000)
    world.stop()
    assert world.deliver("g", 1) == []
    world.advance(5000)
    assert world.deliver("g", 1) == [0]


def test_a_retry_names_the_attempt_that_it_ends_so_a_second_one_ends_nothing() -> None:
    """A13: also for dead letters, and whoever appended it."""
    world = dying(1, max_attempts=2, dead=0)
    world.nack("g", [(0, 1)], 0)
    world.deliver("g", 1)
    world.nack("g", [(0, 2)], 0)
    world.resolve("g", None, redrive=True)
    one, first = np.array([0]), np.array([1], np.uint32)
    for _ in range(2):
        progress = GroupProgress("g", one, one + 1, first, np.array([world.now]))
        world.shard.consumers.apply_progress(FrameKind.RETRY, 0, progress, world.now)
    table = letters_of(world)
    assert table.attempts(table.find(one)[0]).tolist() == [2]


# ---------------------------------------------------------------- bodies
def trimmed(world: World) -> World:
    """The same after what lies below the floors was trimmed, and everything was written."""
    world.pump()
    world.trim()
    world.stop()
    return world


def test_a_letters_row_is_its_own_when_the_queue_is_trimmed() -> None:
    world = trimmed(dying(4))
    assert world.shard.queue.start == 4
    world.check_groups()  # with bodies
    world.resolve("g", None, redrive=True)
    world.pump()
    world.power_cut()
    assert world.deliver("g", 2) == [0, 1]
    assert world.deliver("g", 9) == [2, 3]
    world.nack("g", [(2, 1)], 0)
    world.ack("g", [(0, 2), (3, 4)])
    world.check_groups()
    world.check_ledger()


def freed_by(world: World, act: Callable[[], object]) -> list[int]:
    """The seqs that `act` frees."""
    seen: list[Records] = []
    told = world.shard.consumers.on_freed

    def note(rows: Records) -> None:
        seen.append(rows.copy())
        told(rows)

    world.shard.consumers.on_freed = note
    act()
    world.shard.consumers.on_freed = told
    return [int(seq) for rows in seen for seq in rows["seq"]]


def test_what_ends_a_letter_frees_its_body_once_when_the_queue_has_it_no_more() -> None:
    world = trimmed(dying(6))
    for act, freed in (
        (lambda: world.resolve("g", [0], redrive=False), [0]),
        (lambda: world.resolve("g", [1, 2], redrive=True), []),
        (lambda: world.ack("g", [(0, 2)]), [1]),
        (lambda: (world.deliver("g", 1), world.nack("g", [(2, 1)], 0)), []),  # it dies again
        (lambda: world.delete_group("g"), [2, 3, 4, 5]),
    ):
        assert freed_by(world, act) == freed
    world.check_ledger()


def test_a_letter_whose_unit_is_still_in_the_queue_frees_nothing_trim_will() -> None:
    world = dying(3, dead=2)
    assert freed_by(world, lambda: world.resolve("g", [0], redrive=False)) == []
    assert world.shard.consumers.pinned().tolist() == [1]
    world.check_ledger()


def test_a_body_that_two_groups_have_as_a_letter_is_freed_by_the_last_of_them() -> None:
    world = dying(2)
    world.join("h")
    world.deliver("h", 2)
    world.nack("h", [(0, 1)], 0)
    world.ack("h", [(1, 2)])
    trimmed(world)
    assert world.shard.consumers.pinned().tolist() == [0, 1]
    assert world.shard.consumers.trimmed_dead_letters()["seq"].tolist() == [0, 1]
    assert freed_by(world, lambda: world.resolve("g", None, redrive=False)) == [1]
    assert freed_by(world, lambda: world.delete_group("h")) == [0]
    world.check_ledger()


def test_letters_follow_their_bodies_when_these_are_relocated() -> None:
    world = dying(3)
    world.join("h")
    world.deliver("h", 3)
    world.nack("h", [(0, 1), (2, 1)], 0)
    consumers = world.shard.consumers
    seq, offset, check = np.array([2, 7, 0]), np.array([500, 700, 300]), np.array([5, 7, 3], np.uint32)
    consumers.relocate(seq, offset, check)
    for name, wanted in (("g", {0: 300, 2: 500}), ("h", {0: 300, 2: 500})):
        rows = consumers.dead_letters(name, -1, 10).rows
        found = {int(row["seq"]): (int(row["offset"]), int(row["check"])) for row in rows}
        assert {at: found[at] for at in wanted} == {0: (300, 3), 2: (500, 5)}, name
    assert int(consumers.dead_letters("g", 0, 1).rows["offset"][0]) not in (300, 500, 700)


# ---------------------------------------------------------------- the table against a dictionary
def rows_of(offsets: I64) -> Records:
    rows = np.zeros(len(offsets), QUEUED)
    rows["seq"] = offsets + 1000
    return rows


@CI
@given(st.data())
def test_the_table_does_what_a_dictionary_does(data: st.DataObject) -> None:
    table, plain, now = DeadLetters(), dict[int, list[Any]](), 0  # offset -> state, attempt, visible, since, reason
    done = set[int]()
    gone: list[int] = []
    table.on_removed = lambda offsets, rows: gone.extend((rows["seq"] - 1000).tolist())
    some = st.sets(st.integers(0, 25), max_size=8)
    with (
        patch.object(dead_letters, "SWEEP_ROWS", 2),
        patch.object(dead_letters, "SCAN_ROWS", data.draw(st.integers(1, 3))),
    ):
        for _ in range(data.draw(st.integers(1, 12))):
            now += data.draw(st.integers(0, 3))
            named = np.array(sorted(data.draw(some)), np.int64)
            act = data.draw(
                st.sampled_from(["bury", "die", "retry", "redrive", "hand out", "ack", "drop", "age", "save"])
            )
            working, found = table.find_redriven(named)
            assert named[found].tolist() == [
                at for at in named.tolist() if at in plain and plain[at][0] != dead_letters.DEAD
            ]
            removed, why = list[int](), ("", "status 503", "ä")[now % 3]
            if act == "bury":
                new = np.array([at for at in named.tolist() if at not in plain and at not in done], np.int64)
                table.add(new, np.full(len(new), 3, np.uint32), rows_of(new), now, why)
                plain |= {at: [dead_letters.DEAD, 3, 0, now, why] for at in new.tolist()}
            elif act == "die":
                table.die_again(working[found], np.full(int(found.sum()), 9, np.uint32), now, why)
                plain |= {at: [dead_letters.DEAD, 9, 0, now, why] for at in named[found].tolist()}
            elif act == "retry":
                table.retry(working[found], np.full(int(found.sum()), now + 2))
                for at in named[found].tolist():
                    plain[at][:3] = [dead_letters.FREE, plain[at][1] + 1, now + 2]
            elif act == "redrive":
                table.redrive(named, now)
                for at in named.tolist():
                    if at in plain and plain[at][0] == dead_letters.DEAD:
                        plain[at] = [dead_letters.FREE, 1, 0, now, ""]
            elif act == "hand out":
                ready = [at for at in sorted(plain) if plain[at][0] == dead_letters.FREE and plain[at][2] <= now]
                most = data.draw(st.integers(0, 5))
                offsets, attempts = table.deliver(now, now + 3, most)
                assert offsets.tolist() == ready[:most]
                assert attempts.tolist() == [plain[at][1] for at in ready[:most]]
                for at in ready[:most]:
                    plain[at][0] = dead_letters.OUT
            elif act == "ack":
                removed = [at for at in sorted(plain) if plain[at][0] != dead_letters.DEAD and 3 <= at < 15]
                table.remove(table.redriven_in(np.array([3, 9]), np.array([9, 15])))
            elif act == "drop":
                places, there = table.find(named)
                removed = [at for at in named.tolist() if at in plain]
                table.remove(places[there])
            elif act == "age":
                old = [at for at in sorted(plain) if plain[at][3] < now - 4]
                assert table.older_than(now - 4).tolist() == old
            else:
                saved, removed_by = table.snapshot(), table.on_removed
                table = DeadLetters()
                table.restore(saved)
                table.on_removed = removed_by
                for state in plain.values():
                    state[0] = dead_letters.FREE if state[0] == dead_letters.OUT else state[0]
            assert gone == removed
            gone.clear()
            done |= set(removed)
            plain = {at: state for at, state in plain.items() if at not in done}
            assert len(table) == len(plain)
            assert table.offsets().tolist() == sorted(plain)
            dead, attempts, rows, reasons = table.dead_after(-1, NEVER)
            assert dead.tolist() == [at for at in sorted(plain) if plain[at][0] == dead_letters.DEAD]
            assert attempts.tolist() == [plain[at][1] for at in dead.tolist()]
            assert (rows["seq"] - 1000).tolist() == dead.tolist()
            assert reasons == [plain[at][4] for at in dead.tolist()]
            assert table.reason_bytes == sum(room_of(state[4]) for state in plain.values())
            assert table.dead == len(dead)
            states = list(plain.values())
            assert sum(table.counts(now)) == len(states) - len(dead)
            assert table.counts(now)[2] == sum(s[0] == dead_letters.FREE and s[2] > now for s in states)
            assert table.next_visible <= min((s[2] for s in states if s[0] == dead_letters.FREE), default=NEVER)


# ---------------------------------------------------------------- every replica says the same
def said(shard: Shard) -> dict[str, object]:
    """Each group as frames describe it, however far the copy has looked at the queue: a filter lets the floor lag."""
    fields, arrays = shard.consumers.snapshot()
    tags = shard.queue.read(shard.queue.start, shard.queue.visible)["tag"]
    found: dict[str, object] = {}
    for n, of in enumerate(fields):
        name, floor, fresh = str(of["name"]), int(str(of["floor"])), int(str(of["fresh"]))
        mine = {key: arrays[f"g{n}.{key}"] for key in ("done", "tried", "attempt", "visible")}
        done = np.unpackbits(mine["done"].astype(np.uint8), count=fresh - floor)
        wanted = [tag_of(str(tag)) for tag in of["tags"]]  # type: ignore[attr-defined]
        left = [at for at in range(floor, shard.queue.visible) if at >= fresh or not done[at - floor]]
        still = [at for at in left if not wanted or int(tags[at - shard.queue.start]) in wanted]
        tried = [column.tolist() for key, column in mine.items() if key != "done"]
        letters = {key: column.tolist() for key, column in arrays.items() if key.startswith(f"g{n}.letter")}
        found[name] = (of["tags"], still, tried, sorted(letters.items()))
    return found


class Follower:
    """A copy that is given each frame of a world's log, in order."""

    def __init__(self, world: World) -> None:
        self.world, self.disk = world, MemoryFiles(random.Random(0), 64)
        self.shard = persist.create(self.disk, ROOT, UID, "t", 0, world.config, world.born)
        self.end = 0

    def follow(self) -> None:
        log = CommitLog.open(self.world.disk.copy(), f"{ROOT}/log", UID, self.world.config.log_segment_bytes)
        frames: list[Frame] = list(log.scan(self.end))
        for frame in frames:
            self.shard.commit(frame.offset)
            self.shard.apply(frame)
            self.end = frame.end
        self.shard.commit(self.end)


def send(world: World, draw: Callable[[int, int], int]) -> None:
    world.enqueue([Item(0, tag=(0, RED, BLUE)[draw(0, 2)]) for _ in range(draw(1, 6))])
    world.pump()


STEPS: Steps = CONSUMERS | {
    "send": (6, send),
    "wait": (4, lambda world, draw: world.advance((1, 500, 1000, 5000)[draw(0, 3)])),
    "trim": (2, lambda world, draw: world.trim()),
}


def check_all_say_the_same(seed: int, length: int) -> None:
    rng = random.Random(seed)
    names = [name for name, (weight, _) in STEPS.items() for _ in range(weight)]
    with small_blocks(rng):
        world = world_of(seed)
        followers = [Follower(world), Follower(world)]
        for n in range(length):
            step: Step = STEPS[rng.choice(names)][1]
            step(world, rng.randint)
            if n % 15 == 14:
                world.pump()
                followers[0].follow()  # the other one gets them all at the end, or when files are about to go
                if rng.random() < 0.3:
                    followers[1].follow()
                    world.checkpoint()
        world.pump()
        live = said(world.shard)
        for follower in followers:
            follower.follow()
            assert said(follower.shard) == live, f"seed {seed}: a follower"
        assert followers[0].shard.consumers.pinned().tolist() == world.shard.consumers.pinned().tolist()
        ledgers = [shard.space.ledger.segments.tolist() for shard in (world.shard, *(f.shard for f in followers))]
        assert ledgers[0] == ledgers[1] == ledgers[2], f"seed {seed}"
        world.kill()
        assert said(world.shard) == live, f"seed {seed}: after a crash"
        world.stop()
        assert said(world.shard) == live, f"seed {seed}: from a checkpoint"


@pytest.mark.parametrize("chunk", range(4))
def test_all_copies_say_the_same_of_every_group(chunk: int) -> None:
    """The master, a copy that follows frame by frame, one that gets them late, and one come back from a checkpoint."""
    for seed in range(5 * 10**6 + chunk, 5 * 10**6 + times(160), 4):
        check_all_say_the_same(seed, length=90)


@CI
@given(st.integers(0, 10**9), st.integers(1, 60))
def test_hypothesis_finds_no_history_after_which_copies_differ(seed: int, length: int) -> None:
    check_all_say_the_same(seed, length)


# ---------------------------------------------------------------- counts
def test_what_a_filter_leaves_out_does_not_count_as_available() -> None:
    world = World(1, replace(SMALL, max_unacked=100))
    world.enqueue([Item(0, tag=tag) for tag in (RED, 0, 0, RED, BLUE, 0)])
    world.pump()
    world.join("g", ("red",))
    group = world.shard.consumers.group("g")
    assert group.counts(world.shard.queue, world.now).available == 2
    assert world.deliver("g", 1) == [0]
    world.enqueue([Item(0, tag=tag) for tag in (0, RED, 0)])
    world.pump()
    counts = group.counts(world.shard.queue, world.now)
    assert (counts.available, counts.in_flight) == (2, 1)
    world.ack("g", [(0, 4)])
    assert group.counts(world.shard.queue, world.now).available == 1


def test_a_count_reads_so_many_units_and_those_after_it_the_next() -> None:
    with patch.object(groups, "COUNT_ROWS", 10):
        world = World(1, replace(SMALL, max_unacked=100))
        world.enqueue([Item(0)] * 30 + [Item(0, tag=RED)])
        world.pump()
        world.join("g", ("red",))
        group = world.shard.consumers.group("g")
        found = [group.counts(world.shard.queue, world.now).available for _ in range(5)]
    assert found == [21, 11, 1, 1, 1]


def test_the_oldest_message_that_is_not_done_is_found_behind_what_the_filter_leaves_out() -> None:
    world = World(1, replace(SMALL, max_unacked=100))
    world.enqueue([Item(0)] * 3 + [Item(0, tag=RED)])
    world.pump()
    came = world.now
    world.join("g", ("red",))
    world.join("all")
    world.advance(DAY_MS)
    consumers, queue = world.shard.consumers, world.shard.queue
    assert [consumers.group(name).oldest(queue) for name in ("g", "all")] == [3, 0]
    assert world.shard.space.released_ms(3) == came
    world.ack("g", [(3, 4)])
    assert consumers.group("g").oldest(queue) is None
