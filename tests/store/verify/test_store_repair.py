"""A frame in the log that can't be applied: a person is told what it is, and gets the copy past it (audit C2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from delaynode.store.errors import Damaged, Unappliable
from delaynode.store.log.frames import FrameKind, GroupProgress, append_prefix, column_bytes
from delaynode.store.log.incoming_batch import BatchRun
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.evacuation import begin_evacuation
from delaynode.store.maintenance.marker import is_marked, mark_damaged
from delaynode.store.verify import Finding, repair, verify_shard
from delaynode.store.verify.repair import RepairPlan

from tests.store.support.consuming import World
from tests.store.support.damaging import content_of
from tests.store.support.memory_files import Crashed
from tests.store.support.poisoned import POISONS, due_now, flush, forge, poisoned, prepared
from tests.store.support.replicating import check_well, state_of
from tests.store.support.world import ROOT

KINDS = pytest.mark.parametrize("kind", POISONS, ids=lambda kind: kind.name)

SKIPPED = {
    FrameKind.APPEND: "what it was to do can't be read (frame at {at}: its records are not as long as its column of "
    "sizes says); its header counts 1",
    FrameKind.APPEND_RUNS: "what it was to do can't be read (frame at {at}: its runs have 2 messages, the frame 1); "
    "its header counts 1",
    FrameKind.APPEND_IDS: "what it was to do can't be read (frame payload of 31 bytes is too short for its columns); "
    "its header counts 1",
    FrameKind.SCHEDULE: "schedule 's' is not deleted: it stays as it was",
    FrameKind.FIRE: "1 message of 1 schedules: LOST, but for those that fire anew",
    FrameKind.FIRE_AGAIN: "2 messages of 1 schedules: LOST, but for those that fire anew",
    FrameKind.TICK: "0 messages due by 2023-11-14 22:13:24.995 UTC are released later, by the next master",
    FrameKind.TICK_AHEAD: "0 messages due by 2023-11-14 22:13:24.995 UTC are released later, by the next master",
    FrameKind.CANCEL: "1 message that were cancelled will be delivered, due 2023-11-17 22:13:20.000 UTC",
    FrameKind.RESCHEDULE: "its header counts 1",
    FrameKind.GROUP: "group 'h' is not made: its first Receive makes it, from what the queue holds then",
    FrameKind.ACK: "up to 3 messages that group 'g' had acknowledged are delivered to it again",
    FrameKind.RETRY: "3 messages of group 'g' that were to be tried again later are handed out again at the same "
    "attempt",
    FrameKind.DEAD: "3 messages of group 'g' that were to become dead letters are handed out again at the same attempt",
    FrameKind.RELOCATE: "nothing: the records of 40 messages stay where they were",
    FrameKind.TRIM: "nothing: 1 segments, and what lies below queue offset 2, are kept",
}


def opens(world: World) -> dict[str, object]:
    """The state of the copy as a start finds it."""
    shard, _ = persist.recover(world.disk, ROOT, world.config)
    return state_of(shard)


def carry_out(world: World, plan: RepairPlan) -> str:
    assert plan.stuck is None, plan.stuck
    return repair.execute_plan(world.disk, ROOT, plan)


@KINDS
def test_the_frame_is_named_and_nothing_is_changed_by_looking(kind: FrameKind) -> None:
    bad = poisoned(kind)
    disk, before = bad.world.disk, content_of(bad.world.disk)
    with pytest.raises(Unappliable, match=f"frame at {bad.at}, {kind.name}"):
        persist.recover(disk, ROOT, bad.world.config)
    before = content_of(disk)
    found = repair.diagnose(disk, ROOT)
    assert found is not None
    assert (found.frame.offset, found.frame.kind) == (bad.at, kind)
    repair.propose_skip(disk, ROOT, bad.at)
    repair.plan_cut(disk, ROOT, bad.at)
    assert content_of(disk) == before


@KINDS
def test_a_skipped_frame_has_no_effect_and_all_others_have(kind: FrameKind) -> None:
    bad = poisoned(kind)
    mark_damaged(bad.world.disk, ROOT, "it failed", 1, 0)
    plan = repair.propose_skip(bad.world.disk, ROOT, bad.at)
    assert plan.at == (bad.at,)
    assert SKIPPED[kind].format(at=bad.at) in plan.loses[0]
    kept = carry_out(bad.world, plan)
    assert not is_marked(bad.world.disk, ROOT)
    assert opens(bad.world) == bad.after
    found: list[Finding] = []
    verify_shard(bad.world.disk, ROOT, found.append)
    assert not [one for one in found if not one.note], "\n".join(map(str, found))
    assert f"this {kind.name} was skipped by a repair" in " ".join(map(str, found))
    assert bad.world.disk.size(f"{kept}/checkpoint"), "what was replaced is kept"


@KINDS
def test_a_cut_ends_the_log_before_the_frame_and_says_what_was_behind_it(kind: FrameKind) -> None:
    bad = poisoned(kind)
    log = {path: data for path, data in content_of(bad.world.disk).items() if "/log/" in path}
    plan = repair.plan_cut(bad.world.disk, ROOT, bad.at)
    acked = 5 if kind is FrameKind.ACK else 2  # the bad frame says so
    assert "4 messages that were released are released again: delivered once more to those who had them" in plan.loses
    assert f"up to {acked} messages that group 'g' had acknowledged are delivered to it again" in plan.loses
    assert any(loss.startswith("LOST: 1 message that may have been acknowledged, due 20") for loss in plan.loses)
    kept = carry_out(bad.world, plan)
    assert opens(bad.world) == bad.before
    check_well(bad.world.disk)
    files = content_of(bad.world.disk)
    for path, data in log.items():
        assert data in (files.get(path), files.get(f"{kept}{path.removeprefix(ROOT)}"))


@KINDS
def test_the_copy_goes_on_after_a_skip_and_is_well_for_ever(kind: FrameKind) -> None:
    """Later checkpoints must not forget that the frame was skipped while it is in the log."""
    bad = poisoned(kind)
    carry_out(bad.world, repair.propose_skip(bad.world.disk, ROOT, bad.at))
    world = bad.world
    for _ in range(2):
        world.shard, _ = persist.recover(world.disk, ROOT, world.config)
        persist.accept_epoch(world.disk, ROOT, world.shard, world.shard.identity.epoch + 1)
        world.shard.begin_term(world.shard.identity.epoch, "n0", world.now)
        due_now(world, 2)
        flush(world)
        job = persist.begin_checkpoint(world.disk, ROOT, world.shard)
        job.run()
        persist.remove_files(world.disk, persist.finish_checkpoint(job))
        world.disk.kill()
        check_well(world.disk)


def test_a_segment_is_emptied_whose_skipped_append_can_not_be_read() -> None:
    bad = poisoned(FrameKind.APPEND)
    carry_out(bad.world, repair.propose_skip(bad.world.disk, ROOT, bad.at))
    shard, _ = persist.recover(bad.world.disk, ROOT, bad.world.config)
    shard.space.ledger.open(shard.log_end, bad.world.now)
    job = begin_evacuation(shard, shard.space.ledger.segments[:-1])
    assert len(job._minutes()), "all others are read"


def test_an_epoch_is_not_skipped() -> None:
    world = prepared()
    persist.accept_epoch(world.disk, ROOT, world.shard, 2)
    at = world.shard.log.end
    world.shard.begin_term(2, "n0", world.now)
    flush(world)
    world.disk.kill()
    assert "EPOCH" in str(repair.plan_skip(world.disk, ROOT, [at]).stuck)


def test_two_frames_that_can_not_be_applied_are_skipped_together() -> None:
    world = prepared()
    offsets = [forge(world, kind, *POISONS[kind](world)) for kind in (FrameKind.TRIM, FrameKind.ACK)]
    flush(world)
    world.disk.kill()
    found = repair.diagnose(world.disk, ROOT)
    assert found is not None
    plan = repair.propose_skip(world.disk, ROOT, found.frame.offset)
    assert list(plan.at) == offsets
    carry_out(world, plan)
    assert opens(world) == state_of(world.shard)


def broken_append(world: World, due: int) -> tuple[FrameKind, int, tuple[bytes, ...]]:
    """A batch whose sizes don't add up."""
    columns = column_bytes(np.array([due]), np.array([5], np.uint32), *[np.zeros(1, np.uint32)] * 2)
    return FrameKind.APPEND, 1, (append_prefix([BatchRun(0, 0, 1)]), *map(bytes, columns), b"123")


def test_skipping_what_later_releases_count_on_is_said_to_be_no_way_out() -> None:
    """The TICKs behind it count its messages: only a cut is left, which says what it loses."""
    world = prepared()
    at = forge(world, *broken_append(world, world.now - 1))
    world.shard.queue.end += 1  # as the master believed
    tick_at = world.shard.log.end
    world.shard.tick(world.now + 60_000)
    flush(world)
    world.disk.kill()
    plan = repair.propose_skip(world.disk, ROOT, at)
    assert plan.stuck is not None
    assert f"frame at {tick_at}, TICK" in plan.stuck
    with pytest.raises(AssertionError):
        repair.execute_plan(world.disk, ROOT, plan)
    carry_out(world, repair.plan_cut(world.disk, ROOT, at))
    opens(world)


def test_a_skip_that_would_turn_an_acknowledgement_to_another_message_is_refused() -> None:
    """Without the frame's message those behind it move up a queue offset: one would be taken for acknowledged."""
    world = prepared()
    end = world.shard.queue.end
    at = forge(world, *broken_append(world, world.now - 1))
    due_now(world, 1)  # at the offset after it, on the master
    progress = GroupProgress("g", np.array([end]), np.array([end + 1]), np.zeros(0, np.uint32), np.zeros(0, np.int64))
    forge(world, FrameKind.ACK, 1, progress.payload())
    flush(world)
    world.disk.kill()
    plan = repair.propose_skip(world.disk, ROOT, at)
    assert plan.stuck is not None
    assert "another message would lie" in plan.stuck


def test_a_plan_of_another_moment_has_another_word() -> None:
    bad = poisoned(FrameKind.TRIM)
    word = repair.propose_skip(bad.world.disk, ROOT, bad.at).word
    assert repair.propose_skip(bad.world.disk, ROOT, bad.at).word == word
    assert repair.plan_cut(bad.world.disk, ROOT, bad.at).word != word
    carry_out(bad.world, repair.plan_cut(bad.world.disk, ROOT, bad.at))
    world = bad.world
    world.shard, _ = persist.recover(world.disk, ROOT, world.config)
    forge(world, FrameKind.TRIM, *POISONS[FrameKind.TRIM](world))
    flush(world)
    world.disk.kill()
    assert repair.propose_skip(world.disk, ROOT, bad.at).word != word


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("way", [repair.propose_skip, repair.plan_cut], ids=["skip", "cut"])
def test_half_a_repair_never_opens_and_can_be_repeated(way: Callable[..., RepairPlan], marked: bool) -> None:
    """A power cut at any write."""
    number = 0
    while True:
        bad = poisoned(FrameKind.TRIM)
        disk, done = bad.world.disk, bad.after if way is repair.propose_skip else bad.before
        if marked:
            mark_damaged(disk, ROOT, "it failed", 1, 0)
        plan = way(disk, ROOT, bad.at)
        disk.crash_after(number)
        try:
            carry_out(bad.world, plan)
        except Crashed:
            disk.crash()
        else:
            break
        if repair.diagnose(disk, ROOT) is None:  # all is done but for the mark
            persist.clear_damaged(disk, ROOT)
        else:
            with pytest.raises(Damaged):
                opens(bad.world)
            carry_out(bad.world, way(disk, ROOT, bad.at))
        assert opens(bad.world) == done
        number += 1
    assert number > 3
