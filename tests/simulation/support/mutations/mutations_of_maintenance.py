"""More planted bugs, as in mutations.py: where cleaning, dead letters, cascades, TRIM, checkpoints, transfers, terms
meet.

Seeds find most of them without a schedule, since the draw has all of that in nearly every run (sizes.py).
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import numpy as np
from delaynode.replica.follower import ReplicaFollower
from delaynode.replica.hosts.maintenance import Maintenance
from delaynode.replica.leadership import Leadership
from delaynode.replica.replica import Replica
from delaynode.replica.role import ReplicaRole
from delaynode.replication.shipping import Shipping
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.evacuation import EvacuationJob
from delaynode.store.maintenance.reclaim import SpaceReclaimer
from delaynode.store.queue.consumers import NONE_I64, Consumers
from delaynode.store.queue.ledger import SegmentLedger
from delaynode.store.timer.due_window import DueWindow
from delaynode.store.timer.index import TimerIndex
from delaynode.store.types import Pair, Records

from tests.simulation.support.mutations.planting import Put, mutation

DAMAGED = "invariant 8: .* copy is called damaged: "
COUNTS = "more messages have gone than it held|no CommitLog segment holds offset"
TWICE = "invariant 8: .* contradicts itself: a RELOCATE would move a message twice"
LOST = "invariant 1: .* was never delivered|all that is due was delivered"


# ---------------------------------------------------------------- relocating
@mutation(None, TWICE, (3, 5))
def relocates_a_dead_letter_twice(put: Put) -> None:  # C1 of the audit of 2026-11
    pending = EvacuationJob._pending

    def all_of_the_minute(self: EvacuationJob, slot: Any) -> Records:
        mark, self._watermark = self._watermark, Pair(-1, -1)
        try:
            return pending(self, slot)
        finally:
            self._watermark = mark

    put(EvacuationJob, "_pending", all_of_the_minute)


@mutation(None, COUNTS, (55, 28))
def relocates_what_died_while_it_was_read(put: Put) -> None:  # cleaning x ticks, cancels
    def all_of_it(self: EvacuationJob, shard: Any) -> list[Any]:
        return [np.ones(len(rows), bool) for rows, _ in self.batches]

    put(EvacuationJob, "still_needed", all_of_it)


@mutation(None, COUNTS, (1, 3))
def relocates_letters_and_does_not_tell_their_groups(put: Put) -> None:  # relocating x dead letters
    put(Consumers, "relocate", lambda self, seq, offset, check: None)


@mutation(None, COUNTS + "|invariant 2: .* ConsumeQueue differs", (1, 3))
def relocates_and_does_not_tell_the_due_window(put: Put) -> None:  # relocating x window
    put(DueWindow, "relocate", lambda self, rows: None)


@mutation(None, COUNTS, (1, 3))
def relocates_and_does_not_count_the_new_place(put: Put) -> None:  # relocating x ledger
    apply = SpaceReclaimer.apply_relocate

    def uncounted(self: SpaceReclaimer, change: Any) -> None:
        with patch.object(SegmentLedger, "hold", lambda *_: None):
            apply(self, change)

    put(SpaceReclaimer, "apply_relocate", uncounted)


# ---------------------------------------------------------------- TRIM
@mutation(None, COUNTS, (0, 1))
def frees_the_bodies_of_letters(put: Put) -> None:  # TRIM x dead letters
    put(Consumers, "pinned", lambda self: NONE_I64)


@mutation(None, COUNTS, (0, 3))
def frees_a_letter_that_its_queue_still_has(put: Put) -> None:  # dead letters x TRIM
    put(Consumers, "_unreferenced", lambda self, owner, offsets, rows: rows)


@mutation(None, LOST, (70, 40))
def trims_what_one_group_has_consumed(put: Put) -> None:  # TRIM x groups
    def lowest(self: Consumers) -> int:
        return max((group.first_unacked for group in self.groups.values()), default=self.queue.start)

    put(Consumers, "lowest_needed", lowest)


@mutation(None, "invariant 8: .* frees the log", (91, 52))
def keeps_no_log_for_followers(put: Put) -> None:  # TRIM x transfers
    put(Shipping, "needed_from", lambda self: self._log.end)


# ---------------------------------------------------------------- checkpoints
@mutation(
    "checkpoint_has_nothing_that_a_deposed_master_cuts", DAMAGED + "|invariant 3: .* commits TICK .*, others EPOCH"
)
def checkpoints_what_is_not_committed(put: Put) -> None:  # checkpoint x terms
    begin = persist.begin_checkpoint

    def hasty(*args: Any) -> Any:
        job = begin(*args)
        job.log_offset, run = 0, job.run  # the job waits for no commit

        def late() -> None:
            job.log_offset = job._state.log_offset
            run()

        job.run = late  # type: ignore[method-assign]
        return job

    put(persist, "begin_checkpoint", hasty)


@mutation(None, DAMAGED, (26832, 26833))
def cancels_a_cascade_with_who_waits_for_it(put: Put) -> None:  # cascades x checkpoints x a node that stops
    async def wait_idle(self: Maintenance) -> None:
        await asyncio.gather(*self._writing, return_exceptions=True)

    put(Maintenance, "wait_idle", wait_idle)


# ---------------------------------------------------------------- the wheels
@mutation(None, "invariant|all that is due", (9, 15))
def lets_the_minute_level_lap_the_watermark(put: Put) -> None:
    limit = TimerIndex._minute_limit
    put(TimerIndex, "_minute_limit", lambda self: limit(self) + 2 * self.geometry.margin_ms)


@mutation(None, "invariant (2|8)", (0, 1))
def follows_a_tick_without_the_hour_that_it_needs(put: Put) -> None:  # cascades x following
    async def load_past(self: Maintenance, mark: Pair) -> None:
        index = self._shard.index
        while index.minute_bound_ms <= mark.due:
            index.minute_bound_ms += index.hour.width_ms
        await real(self, mark)

    real = Maintenance.load_past
    put(Maintenance, "load_past", load_past)


# ---------------------------------------------------------------- terms
@mutation(None, "invariant", (32, 86))
def follows_with_what_it_has_applied_as_master(put: Put) -> None:  # switchover x all that maintenance writes
    async def depose(self: Leadership, why: str) -> None:
        leader, master = self.leader, self.master
        if leader is not None:
            leader.stop()
        if master is not None:
            await master.wind_down(why, stopping=False)
        self.leader = self.master = self.ended = None
        if self._copy.storage.damage is not None:
            self._copy.storage.shard = None
            self._copy.mark_damaged(self._copy.storage.damage, lasting=True)
        else:
            self._copy.become(ReplicaRole.OPENING)  # the copy would refuse to become a slave at once
            self._copy.follow()

    put(Leadership, "end_term", depose)


@mutation(
    "copy_that_follows_a_later_epoch_is_sound_after_a_restart", DAMAGED + ".*epoch .* is persisted, the log is at"
)
def follows_in_an_epoch_that_it_has_not_persisted(put: Put) -> None:
    follow = ReplicaFollower._follow

    async def careless(self: ReplicaFollower, origin: Any, message: Any) -> None:
        copy = self._copy
        accept = copy.storage.accept_epoch

        async def no(epoch: int) -> None:
            pass

        copy.storage.accept_epoch = no  # type: ignore[method-assign]
        try:
            await follow(self, origin, message)
        finally:
            copy.storage.accept_epoch = accept  # type: ignore[method-assign]

    put(ReplicaFollower, "_follow", careless)


@mutation(None, DAMAGED + "cut at .* is committed", (15422,))
def cuts_for_an_answer_to_what_it_said_earlier(put: Put) -> None:
    start = ReplicaFollower._start

    async def obedient(self: ReplicaFollower, message: Any) -> None:
        self._matched = False
        await start(self, message)

    put(ReplicaFollower, "_start", obedient)


@mutation(None, "healthy (again|before .*): .* target", (96,), kinds=("move", "drain", "hang_disk"))
def gives_up_for_good_what_is_wanted_again(put: Put) -> None:
    leave = Replica._leave

    async def for_good(self: Replica) -> None:
        had = self.local.storage.replica_id
        await leave(self)
        if had and not self.local.storage.replica_id:
            self.discarded = True
            self._inbox.clear()

    put(Replica, "_leave", for_good)
