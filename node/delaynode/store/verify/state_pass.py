"""The checkpoint, the copy of the wheels and shard.json: whether they are whole, and what they say of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from delayapi.units import HOUR_MS

from delaynode.store.config import ShardConfig
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.files import Files
from delaynode.store.log.frame_chunk import SYNCED_LIMIT_FILE
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.checkpoint import Checkpoint
from delaynode.store.maintenance.marker import MARKER, is_marked
from delaynode.store.maintenance.recovery_point import find_recovery_point, is_previous, spare_segments
from delaynode.store.maintenance.scrub import scrub_segment
from delaynode.store.maintenance.stored_copy import CLUSTER
from delaynode.store.queue.consume_queue import QUEUED_BYTES, ConsumeQueue
from delaynode.store.queue.consumers import Consumers
from delaynode.store.queue.ledger import SEGMENT
from delaynode.store.shard import ShardIdentity
from delaynode.store.timer.timer_log import TimerLog
from delaynode.store.timer.wheel import SLOT
from delaynode.store.types import Array, Pair, Records
from delaynode.store.verify.findings import Report
from delaynode.store.verify.log_pass import Expected, LogFacts
from delaynode.store.verify.timer_pass import WheelCopy

OURS = {"shard.json", CLUSTER, "checkpoint", "wheels", "log", "timerlog", "queue", MARKER}


@dataclass(slots=True)
class SmallFiles:
    """What the small files say; None where one can't be read."""

    identity: ShardIdentity | None
    horizon_ms: int
    checkpoint: Checkpoint | None
    arrays: ck.Arrays
    copy: WheelCopy | None

    @property
    def ledger(self) -> Records | None:
        found = self.arrays.get("ledger")
        return np.asarray(found, SEGMENT) if found is not None and found.dtype == SEGMENT else None

    def skipped(self) -> list[int]:
        """Log offsets of the frames that a repair has skipped."""
        found = self.arrays.get("skipped")
        return [int(at) for at in found.tolist()] if found is not None else []

    def expected(self) -> Expected | None:
        """The CommitLog's segments as of the checkpoint."""
        ledger = self.ledger
        if ledger is None:
            return None
        return [(int(row["base"]), int(row["end"])) for row in ledger]


def read_state(files: Files, directory: str, report: Report) -> SmallFiles:
    """Read the small files; tells what can't be read, and which files nobody knows."""
    state = SmallFiles(None, ShardConfig().horizon_ms, None, {}, None)
    try:
        state.identity, state.horizon_ms = persist.read_identity(files, directory)
    except (Damaged, NewerFormat) as error:
        report.add(f"{directory}/shard.json", -1, str(error))
    _read_checkpoint(files, directory, state, report)
    state.copy = _read_copy(files, f"{directory}/wheels", state, report)
    marker = f"{directory}/{MARKER}"
    if is_marked(files, directory):
        text = files.read(marker, 0, files.size(marker)).decode(errors="replace").strip()
        report.add(marker, -1, "a node has found this copy damaged", found=text)
        report.summary.marked = True
    for name in files.list(directory):
        if name not in OURS and not is_previous(name):
            report.add(f"{directory}/{name}", -1, "not a file of the store", note=True)
    for part in ("log", "timerlog", "queue"):
        for name in files.list(f"{directory}/{part}"):
            if not (len(name) == 20 and name.isascii() and name.isdigit()) and (part, name) != (
                "log",
                SYNCED_LIMIT_FILE,
            ):
                report.add(f"{directory}/{part}/{name}", -1, "not a segment", note=True)
    return state


def _read_checkpoint(files: Files, directory: str, state: SmallFiles, report: Report) -> None:
    """What the next start begins with. A damaged checkpoint is a note where something else takes its place."""
    path = f"{directory}/checkpoint"
    report.read(files.size(path))
    try:
        if state.identity is None:
            read = ck.read(files, path)
            if read is None:
                raise Damaged(f"{path}: missing")
            state.checkpoint, state.arrays = read
            return
        point = find_recovery_point(files, directory, state.identity.uid, ShardConfig().geometry)
    except (Damaged, NewerFormat) as error:
        report.add(path, -1, str(error))
        return
    state.checkpoint, state.arrays = point.state, point.arrays
    if point.damage:
        report.add(path, -1, f"{point.damage}: the next start uses {point.origin}", note=True)
    for name in filter(is_previous, files.list(directory)):
        previous = f"{directory}/{name}"
        if previous == point.path:
            continue
        try:
            report.read(files.size(previous))
            for part, file, base in spare_segments(files, directory, name, point):
                report.read(scrub_segment(part, file, base, point.state.uid))
        except (Damaged, NewerFormat) as error:
            report.add(previous, -1, f"{error}: of no use, should the checkpoint be lost", note=True)


def _read_copy(files: Files, path: str, state: SmallFiles, report: Report) -> WheelCopy | None:
    """The copy of the wheels, when the next start would use it."""
    try:
        read = ck.read(files, path)
        report.read(files.size(path))
    except (Damaged, NewerFormat) as error:
        report.add(path, -1, f"{error}: the next start reads the whole TimerLog instead", note=True)
        return None
    now = state.checkpoint
    if read is None or now is None:
        return None
    copy, arrays = read
    if not {"minute", "hour"} <= arrays.keys() or copy.uid != now.uid:
        report.add(path, -1, "no copy of this shard's wheels: the next start reads the whole TimerLog", note=True)
        return None
    later = copy.timer_end > now.timer_end or copy.minute_bound_ms > now.minute_bound_ms
    if later or copy.timer_start != now.timer_start:
        return None
    minute, hour = arrays["minute"], arrays["hour"]
    if minute.dtype != SLOT or hour.dtype != SLOT:
        report.add(path, -1, "slots of another kind: the next start reads the whole TimerLog", note=True)
        return None
    return WheelCopy(path, copy.timer_end, copy.minute_bound_ms, np.asarray(minute, SLOT), np.asarray(hour, SLOT))


def check_segments(file: SegmentedFile, report: Report) -> None:
    """No two segments have a byte in common."""
    spans = file.segments()
    for (_, before), (base, _) in pairwise(spans):
        if base < before:
            report.add(f"{file.directory}/{base:020d}", 0, "begins before the segment before it ends", expected=before)


def check_ends(directory: str, state: SmallFiles, timer: TimerLog, queue: ConsumeQueue, report: Report) -> None:
    """The checkpoint's ends against the files' lengths, and what its fields must be at any time."""
    check_segments(timer.file, report)
    check_segments(queue.file, report)
    checkpoint = state.checkpoint
    if checkpoint is None:
        return
    path = f"{directory}/checkpoint"
    for what, end, file in (
        ("timer_end", checkpoint.timer_end, timer.file.end),
        ("queue_end", checkpoint.queue_end, queue.file.end // QUEUED_BYTES),
    ):
        if end > file:
            report.add(path, -1, f"{what} lies behind the file's end", expected=f"at most {file}", found=end)
        elif end < file:
            where = timer.file.directory if what == "timer_end" else queue.file.directory
            report.add(
                where, -1, f"{file - end:,} after the checkpoint's {what}: the next start makes it anew", note=True
            )
    if checkpoint.minute_bound_ms % HOUR_MS:
        report.add(path, -1, "minute_bound_ms is no whole hour", found=checkpoint.minute_bound_ms)
    if not 0 <= checkpoint.queue_start <= checkpoint.queue_end:
        found = f"[{checkpoint.queue_start}, {checkpoint.queue_end})"
        report.add(path, -1, "queue_start lies outside the queue", found=found)
    for group in checkpoint.groups:
        first_unacked, window_end = group.get("floor"), group.get("fresh")
        if (
            not isinstance(first_unacked, int)
            or not isinstance(window_end, int)
            or not 0 <= first_unacked <= window_end <= checkpoint.queue_end
        ):
            report.add(
                path, -1, f"group {group.get('name')!r} lies outside the queue",
                expected=f"[0, {checkpoint.queue_end}]", found=f"[{first_unacked}, {window_end})",
            )  # fmt: skip


def check_against_log(directory: str, state: SmallFiles, facts: LogFacts, report: Report) -> None:
    """What the checkpoint and shard.json say against what the log says as of the checkpoint."""
    log, path = facts.state, f"{directory}/checkpoint"
    epoch = log.epochs[-1][0] if log.epochs else 0
    if state.identity is not None and state.identity.epoch < epoch:
        what = "the epoch is lower than the log's"
        report.add(f"{directory}/shard.json", -1, what, expected=f"at least {epoch}", found=state.identity.epoch)
    checkpoint = state.checkpoint
    if checkpoint is None:
        return
    if facts.end < checkpoint.log_offset:
        report.add(
            path,
            -1,
            "log_offset lies behind the log's end",
            expected=f"at most {facts.end}",
            found=checkpoint.log_offset,
        )
        return
    pairs: list[tuple[str, object, object]] = []
    if log.next_seq is not None and (facts.complete or facts.rows):
        pairs.append(("next_seq", log.next_seq, checkpoint.next_seq))
    if log.queue_end is not None and (facts.complete or len(facts.runs)):
        pairs.append(("queue_end", log.queue_end, checkpoint.queue_end))
    if log.ticked:
        pairs.append(("watermark", tuple(log.watermark), (checkpoint.watermark_due, checkpoint.watermark_seq)))
    if facts.complete:
        pairs.append(("queue_start", log.queue_start, checkpoint.queue_start))
        pairs.append(("epochs", log.epochs, checkpoint.epochs))
    for what, expected, found in pairs:
        if expected != found:
            report.add(path, -1, f"{what} is not what the log's frames lead to", expected=expected, found=found)
    if checkpoint.wall_ms < log.wall_ms:
        report.add(
            path, -1, "wall_ms is before the log's", expected=f"at least {log.wall_ms}", found=checkpoint.wall_ms
        )


def dead_letters_below(state: SmallFiles, queue: ConsumeQueue) -> Records:
    """The QUEUED rows of dead letters whose queue units are trimmed. Raises Damaged."""
    assert state.checkpoint is not None
    config = ShardConfig()

    def never(*args: object) -> Any:
        raise AssertionError("nothing is proposed")

    queue.start = state.checkpoint.queue_start
    consumers = Consumers(queue, never, never, config.group_limits)
    arrays: dict[str, Array] = dict(state.arrays)
    try:
        consumers.restore(state.checkpoint.groups, arrays)
        return consumers.trimmed_dead_letters()
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise Damaged(f"groups that can't be restored: {type(error).__name__}: {error}") from error


def watermark_of(state: SmallFiles, facts: LogFacts) -> Pair:
    if state.checkpoint is None:
        return facts.state.watermark
    return Pair(state.checkpoint.watermark_due, state.checkpoint.watermark_seq)


def check_ledger(directory: str, ledger: Records, needed: tuple[Array, Array], report: Report) -> None:
    """The live counts per segment against the records (offset, size) that pending and kept messages name."""
    offset, size = needed
    base = ledger["base"]
    if not len(base):
        return
    at = np.searchsorted(base, offset, "right") - 1
    outside = at < 0
    if outside.any():
        report.add(
            f"{directory}/checkpoint",
            -1,
            "no segment of the ledger holds a record",
            found=int(offset[np.argmax(outside)]),
        )
    at = np.maximum(at, 0)
    counts = np.bincount(at, minlength=len(base)).astype(np.int64)
    sizes = np.bincount(at, weights=size, minlength=len(base)).astype(np.int64)
    for row in np.flatnonzero((counts != ledger["count"]) | (sizes != ledger["bytes"])).tolist():
        report.add(
            f"{directory}/checkpoint", -1, f"live messages and bytes of segment {int(base[row])}",
            expected=f"{counts[row]}, {sizes[row]}", found=f"{ledger['count'][row]}, {ledger['bytes'][row]}",
        )  # fmt: skip
