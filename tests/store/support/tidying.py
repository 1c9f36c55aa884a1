"""Steps of a World: TRIM, emptying a segment of the CommitLog, cleaning the TimerLog. Nothing needed may go."""

from __future__ import annotations

import numpy as np
from delaynode.store.columns import at_or_below
from delaynode.store.errors import Trimmed
from delaynode.store.log.commit_log import frames_of
from delaynode.store.log.frames import Frame
from delaynode.store.maintenance import evacuation
from delaynode.store.maintenance.evacuation import EvacuationJob
from delaynode.store.timer.cleanup import CleanupJob
from delaynode.store.types import Pair, Records

from tests.store.support import model as m
from tests.store.support.world import WorldBase


def read_log(world: WorldBase) -> list[Frame]:
    """The frames of the segments that are there."""
    log = world.shard.log
    ends = [*log.file.bases[1:], log.end]
    found: list[Frame] = []
    for base, end in zip(log.file.bases, ends, strict=True):
        held = min(end, base + world.disk.size(f"{log.file.directory}/{base:020d}"))
        found += frames_of(log, base, held)
    return found


class Tidying(WorldBase):
    """The steps that a node's maintenance takes."""

    def _forget_jobs(self) -> None:
        super()._forget_jobs()
        self.emptying: EvacuationJob | None = None
        self.cleaning: CleanupJob | None = None

    # ------------------------------------------------------------ TRIM
    def trim(self, *, small: bool = True) -> None:
        shard, start = self.shard, self.model.start
        before = len(shard.log.pending)
        with self.recording() as events:
            shard.space.trim(self.now, shard.checkpointed, small=small)
            if len(shard.log.pending) > before:
                events.append(m.Trim(shard.queue.start))
                self.check_trim(start, shard.queue.start)
        self.check_ledger()

    def check_trim(self, low: int, high: int) -> None:
        """Each message that is kept no longer has outlived its retention, or every group is done with it."""
        groups = self.model.groups.values()
        for offset in range(low, high):
            old = self.released_ms[offset] <= self.now - self.config.keep.retention_ms
            queued = self.model.queue[offset]
            done = bool(groups) and all(
                offset < group.start or not group.takes(queued) or offset in group.done for group in groups
            )
            assert old or done, f"queue offset {offset} was still needed"
            assert offset < self.shard.queue.visible, "trimmed before it was released for good"

    def check_ledger(self) -> None:
        """The ledger counts what is needed: pending, kept for the groups, or a dead letter of some group."""
        letters = {o for group in self.model.groups.values() for o in (*group.dead, *group.redriven)}
        kept = len(self.model.queue) - self.model.start
        trimmed = [self.model.queue[o].msg for o in letters if o < self.model.start]
        segments = self.shard.space.ledger.segments
        assert int(segments["count"].sum()) == len(self.model.live) + kept + len(trimmed)
        bodies = [q.msg for q in self.model.queue[self.model.start :]] + trimmed + list(self.model.live.values())
        assert int(segments["bytes"].sum()) == sum(len(msg.body) for msg in bodies)
        needed = self.needed_rows()
        at = np.searchsorted(segments["base"], needed["offset"], "right") - 1
        assert bool((at >= 0).all())
        ends = np.where(segments["end"] > 0, segments["end"], self.shard.log.end)
        assert bool((needed["offset"] + needed["size"] <= ends[at]).all()), "of a segment that was freed"
        counts, sizes = np.zeros(len(segments), np.int64), np.zeros(len(segments), np.int64)
        np.add.at(counts, at, 1)
        np.add.at(sizes, at, needed["size"])
        assert counts.tolist() == segments["count"].tolist()
        assert sizes.tolist() == segments["bytes"].tolist()

    def needed_rows(self) -> Records:
        """Where the records are that the index, the queue and the dead letters refer to: fields offset and size."""
        shard = self.shard
        index, queue = shard.index, shard.queue
        scan = index.begin_scan(index.watermark, Pair(max([key[0] + 1 for key in self.model.live], default=0), 0))
        scan.run()
        rows, live = scan.result()
        index.close_view(scan.view)
        pending = rows[live & ~at_or_below(rows["due"], rows["seq"], index.watermark)]
        staged = [released.rows for _, released in queue._staged]  # not committed yet
        parts = [pending, queue.read(queue.start, queue.end), *staged, shard.consumers.trimmed_dead_letters()]
        found: Records = np.concatenate([part[["offset", "size"]] for part in parts])
        return found

    # ------------------------------------------------------------ emptying a segment
    def begin_empty(self, choice: int) -> None:
        shard = self.shard
        if self.emptying is None:
            found = shard.space.mostly_dead(shard.checkpointed, self.now, share=float("inf"))
            if len(found):
                self.emptying = evacuation.begin_evacuation(shard, found[choice % len(found)])

    def run_empty(self) -> None:
        if self.emptying is not None and "empty" not in self.ran:
            try:
                self.emptying.run()
            except Trimmed:
                self.emptying.batches = []  # the segment went while the job looked at it
            self.ran.add("empty")

    def finish_empty(self) -> None:
        if self.emptying is None or "empty" not in self.ran:
            return
        shard = self.shard
        with self.recording() as events:
            events += [m.Relocate()] * evacuation.relocate(shard, self.emptying, self.now)
        evacuation.end_evacuation(shard, self.emptying)
        self.emptying = None
        self.ran.discard("empty")
        self.check_ledger()

    def empty_all(self) -> None:
        """Every closed segment that can be emptied is; a TRIM and a checkpoint then free it."""
        self._all_of(self.run_empty, self.finish_empty)
        shard = self.shard
        rows = shard.space.mostly_dead(shard.checkpointed, self.now, share=float("inf"))
        job = evacuation.begin_evacuation(shard, rows)
        job.run()
        with self.recording() as events:
            events += [m.Relocate()] * evacuation.relocate(shard, job, self.now)
        evacuation.end_evacuation(shard, job)
        self.check_ledger()
        self._all_of(self.trim, self.checkpoint, self.trim, self.checkpoint)

    # ------------------------------------------------------------ cleaning the TimerLog
    def begin_clean(self) -> None:
        if self.cleaning is None and self.cascading is None and self.checkpointing is None:
            self.cleaning = self.shard.index.begin_clean()

    def run_clean(self) -> None:
        if self.cleaning is not None and "clean" not in self.ran:
            self.cleaning.run()
            self.ran.add("clean")

    def finish_clean(self) -> None:
        if self.cleaning is not None and "clean" in self.ran:
            self.shard.index.finish_clean(self.cleaning)
            self.cleaning = None
            self.ran.discard("clean")

    def clean(self) -> None:
        """A whole cycle, if a file is closed."""
        self._all_of(self.run_cascade, self.finish_cascade, self.run_clean, self.finish_clean)
        self._all_of(self.pump, self.run_checkpoint, self.finish_checkpoint)
        life = self.recoveries
        for _ in range(1000):
            if self.recoveries != life:
                return
            self.begin_clean()
            if self.cleaning is None:
                return self.checkpoint()
            self._all_of(self.run_clean, self.finish_clean)
        raise AssertionError("the cleaning never ends")
