"""Freeing disk: what goes, what stays; handles, bodies and counts outlive every move (attacks B8, B14, B15)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from delayapi.units import DAY_MS, HOUR_MS
from delaynode.store.errors import Damaged
from delaynode.store.lookup import ALREADY_CANCELLED, CANCELLED, MOVED_NOW, RESCHEDULED
from delaynode.store.maintenance import evacuation, persist
from delaynode.store.maintenance.reclaim import KeepConfig

from tests.store.support import model as m
from tests.store.support.consuming import World
from tests.store.support.freeable import (
    FAR,
    FREE,
    NEAR,
    come_down,
    coming_down,
    consume_all,
    consume_near,
    emptying,
    free,
    log_bytes,
    mixed,
    release_all,
)
from tests.store.support.lives import files_in
from tests.store.support.producing import Item
from tests.store.support.tidying import read_log
from tests.store.support.world import ROOT


# ---------------------------------------------------------------- TRIM
def test_segments_whose_messages_are_all_consumed_go() -> None:
    world = mixed(far=0, trimmed=False)
    before = files_in(world.disk, "log/")
    world.trim()
    world.trim()
    world.checkpoint()
    assert files_in(world.disk, "log/")[: len(before)] == before, "the checkpoint before needs them"
    world.checkpoint()
    assert len(files_in(world.disk, "log/")) < len(before) / 2
    assert world.shard.queue.start == len(world.model.queue)
    world.power_cut()
    world.check_ledger()


def test_a_segment_that_one_message_needs_stays_and_its_neighbours_go() -> None:
    world = World(1, FREE)
    world.join("g")
    for n in range(6):
        world.enqueue([FAR if n == 2 else NEAR] + [NEAR] * 5)
        world.pump()
    consume_near(world)
    world.checkpoint()
    world.trim()
    world.trim()
    world.checkpoint()
    world.checkpoint()
    bases = world.shard.log.file.bases
    assert len(bases) >= 2
    assert any(later - earlier > 2 * 1000 for earlier, later in pairwise(bases)), "no hole"
    world.power_cut()  # recovery takes the hole for what it is
    (due, _), *_ = world.model.live
    world.now = due
    world.settle()
    consume_all(world)


def test_b15_nothing_is_removed_that_a_frame_after_the_checkpoint_needs() -> None:
    """A file goes only when two checkpoints that do without it are on disk."""
    world = mixed(far=0)
    world.trim()
    world.trim()
    paths = files_in(world.disk, "log/")
    world.pump()
    assert files_in(world.disk, "log/")[: len(paths)] == paths
    world.kill()  # the TRIMs are replayed over the files that they free
    world.check_ledger()
    world.checkpoint()
    assert files_in(world.disk, "log/")[: len(paths)] == paths
    world.checkpoint()
    assert len(files_in(world.disk, "log/")) < len(paths)


def test_b15_the_log_is_kept_for_replicas_that_catch_up() -> None:
    config = replace(FREE, keep=KeepConfig(retention_ms=HOUR_MS, keep_log_bytes=3000, keep_log_ms=60_000))
    world = World(1, config)
    world.join("g")
    for _ in range(8):
        world.enqueue([NEAR] * 10)
        world.pump()
        consume_near(world)
    world.checkpoint()
    free(world)
    kept = world.shard.log.end - min(world.shard.log.file.bases)
    assert kept >= 3000
    world.advance(61_000)  # older than keep_log_ms: no longer
    free(world)
    assert world.shard.log.end - min(world.shard.log.file.bases) < 3000


def test_b15_no_frame_goes_that_a_replica_has_not_applied() -> None:
    world = mixed(far=0)
    shard, limit = world.shard, 1500
    gone = shard.space.ledger.empty(shard.checkpointed)
    assert gone.max() > limit
    with world.recording() as events:
        shard.space.trim(world.now, limit, small=True)
        events.append(m.Trim(shard.queue.start))
    left = shard.space.ledger.segments
    assert left["base"][0] > 0, "what all have applied goes"
    assert left["base"][0] <= limit, "and no more"


def test_a_message_that_one_group_has_not_acknowledged_is_kept() -> None:
    world = mixed(far=0, trimmed=False)
    world.join("slow")
    world.pump()
    world.ack("slow", [(0, 7)])
    world.trim()
    assert world.shard.queue.start == 7
    assert world.deliver("slow", 1) == [7]


# ---------------------------------------------------------------- RELOCATE
def test_a_relocated_message_keeps_its_handle_and_its_body() -> None:
    world = mixed()
    handles = sorted(world.model.live)
    before = log_bytes(world)
    world.empty_all()
    assert log_bytes(world) < before / 2
    assert world.cancel(handles[0]) == [CANCELLED]
    assert world.cancel(handles[0]) == [ALREADY_CANCELLED]
    assert world.reschedule(handles[1], Item(40 * DAY_MS)) == MOVED_NOW
    assert world.cancel(handles[1]) == [RESCHEDULED]
    world.pump()
    world.power_cut()
    release_all(world)
    consume_all(world)
    assert len(world.model.queue) == 6 * 10 - 1


def test_b8_a_message_cancelled_while_it_is_relocated_stays_cancelled() -> None:
    world = mixed()
    emptying(world)
    assert world.emptying is not None
    rows = world.emptying.batches[0][0]
    key = int(rows["due"][0]), int(rows["seq"][0])
    assert world.cancel(key) == [CANCELLED]
    world.finish_empty()
    world.now = key[0] + 1
    world.settle()
    assert key not in [(queued.due, queued.seq) for queued in world.model.queue]


def test_b8_a_message_released_while_it_is_relocated_is_released_once() -> None:
    world = mixed()
    emptying(world)
    release_all(world)
    world.finish_empty()
    world.check_ledger()
    world.power_cut()
    consume_all(world)
    assert len(world.model.queue) == 60


def test_b8_a_message_rescheduled_there_and_back_while_it_is_relocated_is_released_once() -> None:
    world = mixed()
    emptying(world)
    key = min(world.model.live)
    world.reschedule(key, Item(20 * DAY_MS))
    world.reschedule((world.now + 20 * DAY_MS, key[1]), Item(key[0] - world.now))
    world.finish_empty()
    world.power_cut()
    world.now = key[0]
    world.settle()
    assert [(q.due, q.seq) for q in world.model.queue].count(key) == 1


def test_a_record_relocated_while_its_hour_comes_down_is_found_at_its_new_place() -> None:
    world = coming_down()
    emptying(world)
    world.finish_empty()
    come_down(world)


def test_a_record_relocated_when_it_is_about_to_be_released_is_read_at_its_new_place() -> None:
    world = World(1, FREE)
    world.join("g")
    for _ in range(4):
        world.enqueue([Item(60_000, size=50), *[NEAR] * 9])
        world.pump()
    consume_near(world)
    world.trim()
    world.checkpoint()
    assert len(world.shard.index.window) == 4
    world.empty_all()
    world.advance(50_000)
    world.settle()
    assert len(world.deliver("g", 10)) == 4  # compares the bodies


def test_b14_rot_is_never_written_again_with_a_fresh_crc() -> None:
    world = mixed()
    segment = world.shard.space.mostly_dead(world.shard.checkpointed, world.now, share=1.0)[0]
    path = f"{ROOT}/log/{int(segment['base']):020d}"
    world.disk.flip(path, 8 * 200 + 3)
    end = world.shard.log_end
    job = evacuation.begin_evacuation(world.shard, segment)
    with pytest.raises(Damaged, match=rf"log: offset {int(segment['base'])}: crc32 differs"):
        job.run()
    assert evacuation.relocate(world.shard, job, world.now) == 0
    evacuation.end_evacuation(world.shard, job)
    assert world.shard.log_end == end


def test_a_segment_is_left_alone_while_a_group_has_not_consumed_what_it_holds() -> None:
    world = World(1, FREE)
    world.join("g")
    for _ in range(3):
        world.enqueue([FAR] + [NEAR] * 9)
        world.pump()
    world.advance(11_000)
    world.settle()
    world.checkpoint()
    world.begin_empty(0)
    world.run_empty()
    assert world.emptying is not None
    assert not world.emptying.batches
    assert world.emptying.kept, "and not looked at again before the queue is trimmed so far"
    assert all(0 <= offset < world.shard.queue.visible for offset in world.emptying.kept.values())


def test_what_is_written_again_gets_segments_of_its_own() -> None:
    """Among new messages, most of which die young, it would have to move again and again."""
    world = mixed()
    world.empty_all()
    world.enqueue([NEAR] * 9)
    world.pump()
    ledger = world.shard.space.ledger.segments
    held = {int(row["base"]): int(row["count"]) for row in ledger}
    assert sorted(count for count in held.values() if count) == [6, 9]


# ---------------------------------------------------------------- retention
def test_a_released_message_that_nobody_asks_for_is_kept_for_the_retention() -> None:
    world = World(1, FREE)
    world.enqueue([NEAR] * 30)
    world.pump()
    world.advance(11_000)
    world.settle()
    world.advance(60_000)
    world.settle()  # release times are kept to the minute
    world.advance(HOUR_MS - 61_000)
    world.settle()
    world.checkpoint()
    world.trim()
    assert world.shard.queue.start == 0
    world.advance(61_000)
    world.settle()
    world.trim()
    assert world.shard.queue.start == 30
    world.checkpoint()
    world.power_cut()
    world.join("late")
    assert world.deliver("late", 10) == []


def test_a_deleted_group_holds_nothing_back() -> None:
    world = mixed(far=0, trimmed=False)
    world.join("slow")
    world.trim()
    assert world.shard.queue.start == 0
    world.delete_group("slow")
    world.trim()
    assert world.shard.queue.start == len(world.model.queue)


def test_recovery_removes_what_a_checkpoint_did_without_and_a_crash_left_behind() -> None:
    world = mixed(far=0)
    world.trim()
    world.trim()
    world.pump()
    for _ in range(2):
        job = persist.begin_checkpoint(world.disk, ROOT, world.shard)
        job.run()
        persist.finish_checkpoint(job)  # and no removal: the process ends here
    left = len(files_in(world.disk, "log/"))
    world.kill()
    assert len(files_in(world.disk, "log/")) < left
    assert read_log(world), "what is left is still a log"
