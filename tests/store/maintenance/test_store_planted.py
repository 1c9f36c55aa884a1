"""The tests of freeing find faults: each of these, planted, makes some of them fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delaynode.store.log.frames import Trim
from delaynode.store.maintenance import evacuation
from delaynode.store.maintenance.reclaim import SpaceReclaimer
from delaynode.store.queue.consumers import Consumers
from delaynode.store.queue.ledger import SegmentLedger
from delaynode.store.timer import cleanup, due_window
from delaynode.store.timer.cascade import CascadeJob
from delaynode.store.timer.cleanup import CleanupJob
from delaynode.store.timer.units import latest_units
from delaynode.store.types import Records

from tests.store import test_store_attacks_clients as attacks
from tests.store.maintenance import test_store_freeing as tests
from tests.store.timer import test_store_cascade as cascades
from tests.store.timer import test_store_timercleaning as cleans

Plant = Callable[[pytest.MonkeyPatch], None]


def no_counts(patch: pytest.MonkeyPatch) -> None:
    result = CleanupJob.result
    patch.setattr(CleanupJob, "result", lambda job: (result(job)[0], result(job)[1][:0]))


def deaf_to_what_comes_while_it_cleans(patch: pytest.MonkeyPatch) -> None:
    result = CleanupJob.result

    def deaf(job: CleanupJob) -> Any:
        job.view.since.clear()
        return result(job)

    patch.setattr(CleanupJob, "result", deaf)


def forgets_the_dead(patch: pytest.MonkeyPatch) -> None:
    def living(rows: Any) -> Any:
        words, live = latest_units(rows)
        return words[live], live[live]

    patch.setattr(cleanup, "latest_units", living)


def removes_files_with_the_trim(patch: pytest.MonkeyPatch) -> None:
    apply = SpaceReclaimer._trim

    def eager(self: SpaceReclaimer, trim: Trim, ended: Records) -> None:
        apply(self, trim, ended)
        for path in self._log.file.drop(trim.bases.tolist()):
            self._log.file.files.remove(path)

    patch.setattr(SpaceReclaimer, "_trim", eager)


def trims_one_too_many(patch: pytest.MonkeyPatch) -> None:
    keep_from = SpaceReclaimer.keep_from
    patch.setattr(SpaceReclaimer, "keep_from", lambda self, now: min(self._queue.visible, keep_from(self, now) + 1))


def trims_by_the_fastest_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Consumers, "lowest_needed", lambda self: max(group.first_unacked for group in self.groups.values()))


def forgets_dead_letters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Consumers, "pinned", lambda self: np.empty(0, np.int64))


def relocates_what_has_ended_meanwhile(patch: pytest.MonkeyPatch) -> None:
    def still_needed(job: evacuation.EvacuationJob, _: object) -> list[Any]:
        return [rows["size"] > 0 for rows, _ in job.batches]

    patch.setattr(evacuation.EvacuationJob, "still_needed", still_needed)


def relocates_past_the_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(due_window.DueWindow, "relocate", lambda self, units: None)


def forgets_what_an_hour_is_told_while_it_comes_down(patch: pytest.MonkeyPatch) -> None:
    run = CascadeJob.run
    patch.setattr(CascadeJob, "run", lambda job: run(job) if job._cascade.first else None)


def copies_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evacuation.EvacuationJob, "_minutes", lambda job: np.empty(0, np.int64))


def keeps_no_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SegmentLedger, "kept_from", lambda self, end, now, size, age: end)


CAUGHT_BY: dict[Plant, Callable[[], None]] = {
    no_counts: cleans.test_counts_are_rebuilt_from_a_cleaned_timer_log_without_the_copy_of_the_wheels,
    deaf_to_what_comes_while_it_cleans: cleans.test_a_record_relocated_while_the_timer_log_is_cleaned_is_found,
    forgets_the_dead: lambda: cleans.test_b15_the_oldest_timer_files_go_and_every_message_stays(4),
    removes_files_with_the_trim: tests.test_b15_nothing_is_removed_that_a_frame_after_the_checkpoint_needs,
    trims_one_too_many: tests.test_a_message_that_one_group_has_not_acknowledged_is_kept,
    trims_by_the_fastest_group: tests.test_a_message_that_one_group_has_not_acknowledged_is_kept,
    forgets_dead_letters: attacks.test_b12d_a_dead_letter_outlives_the_queue_around_it_and_the_segment_its_body_was_in,
    relocates_what_has_ended_meanwhile: tests.test_b8_a_message_cancelled_while_it_is_relocated_stays_cancelled,
    relocates_past_the_window: (tests.test_a_record_relocated_when_it_is_about_to_be_released_is_read_at_its_new_place),
    forgets_what_an_hour_is_told_while_it_comes_down: (
        lambda: cascades.test_an_hour_half_done_is_a_state_that_recovery_knows(1, "checkpoint")
    ),
    copies_without_a_look: tests.test_b14_rot_is_never_written_again_with_a_fresh_crc,
    keeps_no_log: tests.test_b15_the_log_is_kept_for_replicas_that_catch_up,
}


@pytest.mark.parametrize("plant", CAUGHT_BY, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException):  # noqa: B017 - in whatever way, pytest's own included
        CAUGHT_BY[plant]()
