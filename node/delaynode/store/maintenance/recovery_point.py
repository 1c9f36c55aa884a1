"""Where a recovery begins: the checkpoint; where that is damaged, the one before it, or the log's start.

    <shard directory>/
      checkpoint               the newest
      previous.<log offset>    the one before, as long as the newest is the one of this log offset

A second name is given to the checkpoint before it is replaced, so nothing is written for it. What only the previous
one needs (log segments, TimerLog and ConsumeQueue files) is removed with the next checkpoint. So the previous one is
as good as the newest: the frames after it lead to the same state.

It is used only where that shows: all that it names is there, and the log is whole from it on, at least up to the log
offset in its name. A copy from which the log's start has not been freed can also be made from the log alone.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from delaynode.store import formats
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.files import Files
from delaynode.store.log.frames import TICKS, parse_tick
from delaynode.store.log.segments import SegmentedFile
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance.checkpoint import Checkpoint
from delaynode.store.queue.consume_queue import QUEUED_BYTES
from delaynode.store.queue.ledger import SegmentLedger
from delaynode.store.timer.index import Geometry
from delaynode.store.types import MAX_SEQ

PREVIOUS = re.compile(r"previous\.([0-9]{20})")
NO_SECOND_NAME = {errno.ENOENT, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}  # also where a filesystem has none
UNLIMITED = 1 << 62  # a segment size that no file reaches


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """A state to begin with, and what it is read from: a path, or "" for the log's start.

    damage: why the checkpoint is of no use, "" where it is what is used. synced: log offset up to which the log is
    known to have been on disk.
    """

    state: Checkpoint
    arrays: ck.Arrays
    path: str
    synced: int
    damage: str = ""

    @property
    def origin(self) -> str:
        """In words, for people."""
        if not self.path:
            return "the log from its start"
        name = "the previous checkpoint" if self.damage else "the checkpoint"
        return f"{name}, of log offset {self.state.log_offset}"


@dataclass(frozen=True, slots=True)
class SpareFiles:
    """What the newest checkpoint does without, as far as it may still be there for the previous one.

    TimerLog files below position `timer_start`, ConsumeQueue files below queue offset `queue_start`, log segments.
    """

    timer_start: int = 0
    queue_start: int = 0
    segments: tuple[int, ...] = ()


def empty_state(uid: int, now_ms: int, geometry: Geometry, written_format: int = formats.OLDEST) -> Checkpoint:
    """Of a shard that has no frame yet."""
    return Checkpoint(
        uid=uid, log_offset=0, timer_start=0, timer_end=0, queue_start=0, queue_end=0, watermark_due=now_ms,
        watermark_seq=MAX_SEQ, minute_bound_ms=geometry.first_bound(now_ms), next_seq=0, pending=0, pending_bytes=0,
        epochs=[], wall_ms=now_ms, format=written_format,
    )  # fmt: skip


# ---------------------------------------------------------------- the previous checkpoint
def keep_previous(files: Files, directory: str, log_offset: int) -> None:
    """Before the checkpoint of this log offset takes the place of the newest: that becomes the previous one.

    On disk once the checkpoint is replaced. Raises OSError.
    """
    name = f"{directory}/previous.{log_offset:020d}"
    former = [path for path, _ in _names(files, directory)]
    if name in former:  # two checkpoints of the same log offset
        files.unlink(name)
    try:
        files.link(f"{directory}/checkpoint", name)
    except OSError as error:
        if error.errno not in NO_SECOND_NAME:
            raise
    for path in former:
        if path != name:
            files.unlink(path)


def remove_previous(files: Files, directory: str) -> None:
    """The newest checkpoint says what the log alone does not: an older one must not be used any more."""
    for path, _ in _names(files, directory):
        files.remove(path)


def is_previous(name: str) -> bool:
    return PREVIOUS.fullmatch(name) is not None


def _names(files: Files, directory: str) -> list[tuple[str, int]]:
    """(path, log offset of the checkpoint that followed) of the previous checkpoints, newest first.

    After a crash there may be more than one.
    """
    matches = [match for name in files.list(directory) if (match := PREVIOUS.fullmatch(name))]
    return [(f"{directory}/{match[0]}", int(match[1])) for match in reversed(matches)]


def read_previous(files: Files, directory: str, uid: int) -> Iterator[tuple[str, Checkpoint, ck.Arrays]]:
    """The previous checkpoints of this shard that can be read, newest first, each with its path."""
    for path, _ in _names(files, directory):
        with suppress(Damaged, NewerFormat):
            state, arrays = read_as_checkpoint(files, path)
            if state.uid == uid:
                yield path, state, arrays


def read_as_checkpoint(files: Files, path: str) -> tuple[Checkpoint, ck.Arrays]:
    """Raises Damaged, NewerFormat."""
    return ck.decode(files.read(path, 0, files.size(path)), path, "checkpoint")


# ---------------------------------------------------------------- the choice
def find_recovery_point(files: Files, directory: str, uid: int, geometry: Geometry) -> RecoveryPoint:
    """Reads only. Raises Damaged, which says why nothing else can be used either, and NewerFormat."""
    path = f"{directory}/checkpoint"
    try:
        read = ck.read(files, path)
        if read is None:
            raise Damaged(f"{path}: missing")
        state, arrays = read
        if state.uid != uid:
            raise Damaged(f"{path}: of shard {state.uid:x}, the directory is of {uid:x}")
        return RecoveryPoint(state, arrays, path, state.log_offset)
    except Damaged as error:
        damage, reasons = str(error), [str(error)]
    log = CommitLog.open(files, f"{directory}/log", uid, UNLIMITED)
    followed = [log_offset for _, log_offset in _names(files, directory)]
    synced = max(followed, default=log.end)  # without a name nothing tells a torn tail from a damaged log
    for previous, state, arrays in read_previous(files, directory, uid):
        try:
            _check_whole(files, directory, state, SegmentLedger(arrays.get("ledger")), log, synced)
            return RecoveryPoint(state, arrays, previous, synced, damage)
        except Damaged as error:
            reasons.append(f"the previous checkpoint can't be used: {error}")
    try:
        return RecoveryPoint(_state_of_start(log, uid, geometry, synced), {}, "", synced, damage)
    except Damaged as error:
        raise Damaged("; ".join([*reasons, f"the log can't be read from its start: {error}"])) from None


def _check_whole(
    files: Files, directory: str, state: Checkpoint, ledger: SegmentLedger, log: CommitLog, synced: int
) -> None:
    """Raises Damaged unless all that the state names is there, and the log is whole after it."""
    log.file.check_complete(0, state.log_offset, ledger.bounds(state.log_offset))
    for part, start, end in (
        ("timerlog", state.timer_start, state.timer_end),
        ("queue", state.queue_start * QUEUED_BYTES, state.queue_end * QUEUED_BYTES),
    ):
        SegmentedFile(files, f"{directory}/{part}", UNLIMITED).check_complete(start, end)
    if log.end < max(synced, state.log_offset):
        raise Damaged(f"{log.file.directory}: ends at {log.end}, {max(synced, state.log_offset)} was on disk")
    for _ in log.scan(state.log_offset, synced):
        pass


def spare_segments(
    files: Files, directory: str, name: str, newest: RecoveryPoint
) -> Iterator[tuple[str, SegmentedFile, int]]:
    """What the newest checkpoint does without, and the previous one of this name needs: part, its file, where a segment
    begins. Reads only. Raises Damaged unless the previous one could take its place, and NewerFormat."""
    path = f"{directory}/{name}"
    state, arrays = read_as_checkpoint(files, path)
    if state.uid != newest.state.uid:
        raise Damaged(f"{path}: of shard {state.uid:x}, the directory is of {newest.state.uid:x}")
    log = CommitLog.open(files, f"{directory}/log", state.uid, UNLIMITED)
    ledger = SegmentLedger(arrays.get("ledger"))
    _check_whole(files, directory, state, ledger, log, int(name.removeprefix("previous.")))
    bounds = SegmentLedger(newest.arrays.get("ledger")).bounds(newest.state.log_offset)
    mine = {base for base, _ in ledger.bounds(state.log_offset)}
    for base in {base for base in log.file.bases if base < newest.state.log_offset} - {base for base, _ in bounds}:
        if base in mine or base >= state.log_offset:
            yield "log", log.file, base
    for part, low, high in (
        ("timerlog", state.timer_start, newest.state.timer_start),
        ("queue", state.queue_start * QUEUED_BYTES, newest.state.queue_start * QUEUED_BYTES),
    ):
        file = SegmentedFile(files, f"{directory}/{part}", UNLIMITED)
        freed = file.closed_below(low)
        for base in file.closed_below(high):
            if base not in freed:
                yield part, file, base


def _state_of_start(log: CommitLog, uid: int, geometry: Geometry, synced: int) -> Checkpoint:
    """Of before the first frame. Raises Damaged unless every frame is there.

    When the shard was made is in no frame. Its first watermark need only be so early that no message lies below it
    which did not when it came: below the time of each frame up to the first TICK, and of that TICK.
    """
    if not log.file.bases or log.file.bases[0] != 0 or log.end < synced:
        raise Damaged(f"{log.file.directory}: it holds [{log.file.start}, {log.end})")
    made_ms: int | None = None
    is_ticked = False
    for frame in log.scan(0, synced):
        if is_ticked:
            continue
        is_ticked = frame.kind in TICKS
        time_ms = min(frame.wall_ms, parse_tick(frame).due) if is_ticked else frame.wall_ms
        made_ms = time_ms if made_ms is None else min(made_ms, time_ms)
    if made_ms is None:
        raise Damaged(f"{log.file.directory}: it has no frame")
    return empty_state(uid, made_ms, geometry)


def use(files: Files, directory: str, point: RecoveryPoint) -> None:
    """Make the point the copy's checkpoint, where that is damaged. Raises OSError.

    First goes what may be of a TimerLog that goes on differently from here: the copy of the wheels, other checkpoints.
    """
    if not point.damage:
        return
    files.remove(f"{directory}/wheels")
    for path, _ in _names(files, directory):
        if path != point.path:
            files.remove(path)
    ck.write(files, f"{directory}/checkpoint", point.state, point.arrays)
