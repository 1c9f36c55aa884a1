"""A way past a frame of the CommitLog that can't be applied, for a stopped copy that a person repairs.

    skip   the copy is recovered without the frame's effect, and a checkpoint is written behind it: nobody applies it
           again, neither this copy nor those that are fetched from it. The log's bytes stay as they are.
    cut    the log ends before the frame.

Both are tried with all writes kept in memory first. What was tried is what is put on the disk then, and what that
replaces is kept beside the shards' directories, in `.repair`.
"""

from __future__ import annotations

import json
import posixpath
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

import numpy as np

from delaynode.store.columns import at_or_below
from delaynode.store.config import ShardConfig
from delaynode.store.errors import Damaged, Unappliable
from delaynode.store.log.commit_log import CommitLog, frames_of
from delaynode.store.log.files import Files
from delaynode.store.log.frames import (
    APPENDS,
    FIRES,
    FLAG_DEAD_LETTERS,
    TICKS,
    Frame,
    FrameKind,
    parse_append,
    parse_cancel,
    parse_firings,
    parse_group,
    parse_progress,
    parse_relocate,
    parse_reschedule,
    parse_schedule,
    parse_tick,
    parse_trim,
)
from delaynode.store.maintenance import marker, persist
from delaynode.store.maintenance.recovery_point import remove_previous
from delaynode.store.shard import Shard
from delaynode.store.types import I64
from delaynode.store.verify.overlay import Overlay

KEPT = ".repair"  # beside the shards' directories
MAX_SKIPPED = 100  # frames: where more would have to be skipped, skipping is no way out
COPY_BYTES = 8 << 20
UNLIMITED = 1 << 62  # a segment size that no file reaches
PROGRESS = (FrameKind.ACK, FrameKind.RETRY, FrameKind.DEAD, FrameKind.DEAD_REASON)


@dataclass(slots=True)
class RecoveryAttempt:
    """A recovery with all writes kept in memory. error: where it ended, None when the copy opens."""

    changes: Overlay
    shard: Shard
    error: Unappliable | None = None
    loses: list[str] = field(default_factory=list)  # by skipped frame


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What to do, what it loses, and the word by which a person confirms just this. stuck: why it is no way out."""

    what: str  # "skip" or "cut"
    at: tuple[int, ...]  # log offsets of the frames to be skipped; or where the log is to end
    loses: list[str]
    changes: Overlay
    word: str
    stuck: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A copy that ends at a frame which can't be applied. after: frames behind it, in words."""

    frame: Frame
    why: str
    log_end: int


def recover(files: Files, directory: str, skip: Iterable[int] = ()) -> RecoveryAttempt:
    """Try to open a copy, without the effect of the frames at log offsets `skip`.

    Raises Damaged, OSError, when it fails for anything but a frame's effect.
    """
    trial, wanted = Overlay(files), sorted(skip)
    trial.remove(f"{directory}/{marker.MARKER}")
    shard, _ = persist.recover(trial, directory, ShardConfig(), replay=False)
    attempt, left = RecoveryAttempt(trial, shard), list(wanted)
    moved: int | None = None  # queue offset: from here on, later frames may name other messages than they meant
    try:
        for frame in frames_of(shard.log, shard.applied, shard.log.end):
            shard.commit(frame.offset)
            if left and frame.offset == left[0]:
                left.pop(0)
                attempt.loses.append(f"{frame.kind.name} at {frame.offset}: {loss_of(shard, frame)}")
                if moved is None and _moves_the_queue(shard, frame):
                    moved = shard.queue.end
                shard.skip(frame)
                if not left:
                    _write_checkpoint(trial, directory, shard)
                continue
            if moved is not None and frame.kind in PROGRESS:
                _check_unmoved(frame, moved)
            shard.apply(frame)
        shard.commit(shard.applied)
    except Unappliable as error:
        attempt.error = error
    if left and attempt.error is None:
        raise ValueError(f"no frame that is applied at a start begins at {left[0]}")
    return attempt


def _write_checkpoint(files: Files, directory: str, shard: Shard) -> None:
    shard.commit(shard.applied)
    job = persist.begin_checkpoint(files, directory, shard)
    job.run()
    persist.finish_checkpoint(job)  # the files that it does without go at the next start
    remove_previous(files, directory)  # it does not know what is skipped


def _moves_the_queue(shard: Shard, frame: Frame) -> bool:
    """Whether the frame, were it applied, would release messages: those behind them get other queue offsets without."""
    try:
        if frame.kind in TICKS:
            return parse_tick(frame).released != 0
        if frame.kind in APPENDS:
            due = parse_append(frame).due
            seq = np.arange(frame.first_seq, frame.first_seq + len(due))
        elif frame.kind is FrameKind.RESCHEDULE:
            change = parse_reschedule(frame)
            due, seq = change.new_due, change.seq
        else:
            return False
    except Damaged:
        return True  # nobody can say
    return bool(((due <= frame.wall_ms) | at_or_below(due, seq, shard.index.watermark)).any())


def _check_unmoved(frame: Frame, moved: int) -> None:
    end = int(parse_progress(frame).end.max(initial=0))
    if end > moved:
        why = f"it names queue offset {end - 1}, where another message would lie: from {moved} on all would have moved"
        raise Unappliable(frame.offset, f"{frame.kind.name} of epoch {frame.epoch}", why)


# ---------------------------------------------------------------- plans
def diagnose(files: Files, directory: str) -> Diagnosis | None:
    """The frame at which a recovery ends; None when the copy opens. Raises Damaged, OSError, as recover()."""
    attempt = recover(files, directory)
    if attempt.error is None:
        return None
    log = attempt.shard.log
    frame = next(frames_of(log, attempt.error.offset, log.end))
    return Diagnosis(frame, attempt.error.why, log.end)


def plan_skip(files: Files, directory: str, offsets: Sequence[int]) -> RepairPlan:
    """Skip these frames. Raises Damaged, OSError, ValueError when no frame to be applied begins there."""
    attempt = recover(files, directory, offsets)
    stuck = None
    if any(loss.startswith(f"{FrameKind.EPOCH.name} ") for loss in attempt.loses):
        stuck = "an EPOCH can't be skipped: all frames behind it are of its term"
    elif attempt.error is not None:
        stuck = str(attempt.error)
    at = tuple(sorted(set(offsets)))
    return RepairPlan("skip", at, attempt.loses, attempt.changes, _word(files, directory, "skip", at), stuck)


def propose_skip(files: Files, directory: str, first: int) -> RepairPlan:
    """Skip the frame at `first`, and those that can't be applied without it, as far as that is a way out."""
    offsets = [first]
    while True:
        attempt = recover(files, directory, offsets)
        error = attempt.error
        if error is None or len(offsets) == MAX_SKIPPED:
            return plan_skip(files, directory, offsets)
        kind = next(frames_of(attempt.shard.log, error.offset, attempt.shard.log.end)).kind
        if kind in TICKS | {FrameKind.EPOCH} or "would have moved" in error.why:
            return plan_skip(files, directory, offsets)  # which says why it is stuck
        offsets.append(error.offset)


def plan_cut(files: Files, directory: str, end: int) -> RepairPlan:
    """Cut the log at `end`. Raises Damaged, OSError, ValueError when no frame to be applied begins there."""
    trial = Overlay(files)
    trial.remove(f"{directory}/{marker.MARKER}")
    shard, _ = persist.recover(trial, directory, ShardConfig(), replay=False)
    loses = losses_of(_from(frames_of(shard.log, shard.applied, shard.log.end), end))
    cut = Overlay(files)
    CommitLog.open(cut, f"{directory}/log", shard.identity.uid, UNLIMITED).cut(end)
    error = recover(cut, directory).error
    word = _word(files, directory, "cut", (end,))
    return RepairPlan("cut", (end,), loses, cut, word, None if error is None else str(error))


def _from(frames: Iterable[Frame], begin: int) -> Iterator[Frame]:
    found = False
    for frame in frames:
        found |= frame.offset == begin
        if found:
            yield frame
    if not found:
        raise ValueError(f"no frame that is applied at a start begins at {begin}")


def _word(files: Files, directory: str, what: str, at: tuple[int, ...]) -> str:
    """The word for this plan and this copy as it is: another plan, or a copy that has changed since, has another."""
    identity, _ = persist.read_identity(files, directory)
    path = f"{directory}/checkpoint"
    state = zlib.crc32(files.read(path, 0, files.size(path)))
    sizes = [(name, files.size(f"{directory}/log/{name}")) for name in files.list(f"{directory}/log")]
    return sha256(json.dumps([identity.copy_id, identity.epoch, state, sizes, what, at]).encode()).hexdigest()[:8]


# ---------------------------------------------------------------- doing it
def execute_plan(files: Files, directory: str, plan: RepairPlan) -> str:
    """Put the plan's changes on the disk; returns where what they replace is kept. Raises OSError, Damaged.

    After half of them a start still ends at the same frame. A mark as damaged goes once the copy was seen to open.
    """
    assert plan.stuck is None, "a plan that is a way out"
    kept = _keep(files, directory, plan)
    for path, below, data in sorted(plan.changes.changes(), key=lambda change: _rank(directory, change[0])):
        if path == f"{directory}/{marker.MARKER}":
            continue
        if data is None:
            files.remove(path)
        elif not below:
            files.replace(path, data)
        else:
            if below < files.size(path):
                files.truncate(path, below)
            if data:
                files.append(path, [data])
                files.sync(path)
    attempt = recover(files, directory)
    if attempt.error is not None:
        raise attempt.error
    marker.clear_damaged(files, directory)
    return kept


def _rank(directory: str, path: str) -> tuple[int, int]:
    """The log's later segments go first, so that it ends sooner after a crash, but has no hole; the checkpoint, which
    makes the rest count, is written last."""
    name = posixpath.basename(path)
    return int(path == f"{directory}/checkpoint"), -int(name) if name.isdigit() else 0


def _keep(files: Files, directory: str, plan: RepairPlan) -> str:
    """Copy what the plan's changes replace; returns the directory."""
    root, name = posixpath.split(directory)
    held, number = set(files.list(f"{root}/{KEPT}")), 1
    while f"{name}.{number}" in held:
        number += 1
    kept = f"{root}/{KEPT}/{name}.{number}"
    for path in [path for path, _, _ in plan.changes.changes()]:
        size, copy = files.size(path), f"{kept}/{path.removeprefix(f'{directory}/')}"
        for at in range(0, size, COPY_BYTES):
            files.append(copy, [files.read(path, at, min(COPY_BYTES, size - at))])
        if size:
            files.sync(copy)
    summary = {"what": plan.what, "at": plan.at, "loses": plan.loses, "of": directory}
    files.replace(f"{kept}/repair.json", json.dumps(summary, indent=1).encode() + b"\n")
    return kept


# ---------------------------------------------------------------- what is lost
def at_ms(time_ms: int) -> str:
    """A time in UTC, to the millisecond."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:-6] + " UTC"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def _due(due: I64) -> str:
    if not len(due):
        return ""
    low, high = int(due.min()), int(due.max())
    return f", due {at_ms(low)}" + (f" to {at_ms(high)}" if high > low else "")


def _messages(count: int) -> str:
    return f"{count:,} message" + ("" if count == 1 else "s")


def loss_of(shard: Shard, frame: Frame) -> str:
    """What it means that this frame has no effect, in words. shard: as of the frame before."""
    try:
        return _loss_of(shard, frame)
    except Damaged as error:
        return f"what it was to do can't be read ({error}); its header counts {frame.count:,}"


def _loss_of(shard: Shard, frame: Frame) -> str:
    match frame.kind:
        case FrameKind.APPEND | FrameKind.APPEND_RUNS | FrameKind.APPEND_IDS:
            due = parse_append(frame).due
            return f"LOST: {_messages(len(due))} that may have been acknowledged{_due(due)}"
        case FrameKind.FIRE | FrameKind.FIRE_AGAIN:
            fired, schedules = len(parse_append(frame).due), len(np.unique(parse_firings(frame).number))
            return f"{_messages(fired)} of {schedules:,} schedules: LOST, but for those that fire anew"
        case FrameKind.SCHEDULE:
            put = parse_schedule(frame)
            return f"schedule {put.id!r} {'is not put' if put.put else 'is not deleted'}: it stays as it was"
        case FrameKind.TICK | FrameKind.TICK_AHEAD:
            tick = parse_tick(frame)
            return f"{_messages(max(0, tick.released))} due by {at_ms(tick.due)} are released later, by the next master"
        case FrameKind.CANCEL:
            due = parse_cancel(frame).due
            return f"{_messages(len(due))} that were cancelled will be delivered{_due(due)}"
        case FrameKind.RESCHEDULE:
            due = parse_reschedule(frame).old_due
            return f"{_messages(len(due))} that were rescheduled are delivered at the old time{_due(due)}"
        case FrameKind.GROUP:
            change = parse_group(frame)
            made = "is not made: its first Receive makes it, from what the queue holds then"
            return f"group {change.group!r} {made if change.create else 'is not deleted'}"
        case FrameKind.RELOCATE:
            r = parse_relocate(frame)
            bases = shard.log.file.bases
            at = np.searchsorted(np.array(bases), r.old_offset, "right") - 1
            reach = [shard.log.file.segment_end(base) for base in bases]
            freed = (at < 0) | (r.old_offset >= np.array(reach)[at])
            if freed.any():
                return f"LOST: {_messages(int(freed.sum()))} of {len(freed):,} whose old segments are gone"
            return f"nothing: the records of {_messages(len(freed))} stay where they were"
        case FrameKind.TRIM:
            trim = parse_trim(frame)
            return f"nothing: {len(trim.bases)} segments, and what lies below queue offset {trim.queue_start}, are kept"
        case FrameKind.EPOCH:
            return "the term itself"
    p = parse_progress(frame)
    count = int((p.end - p.start).sum())
    if frame.flags & FLAG_DEAD_LETTERS:
        what = "redriven stay dead letters" if frame.kind is FrameKind.RETRY else "dropped stay dead letters"
        return f"{_messages(count)} of group {p.group!r} that were {what}"
    if frame.kind is FrameKind.ACK:
        return f"up to {_messages(count)} that group {p.group!r} had acknowledged are delivered to it again"
    what = "be tried again later" if frame.kind is FrameKind.RETRY else "become dead letters"
    return f"{_messages(count)} of group {p.group!r} that were to {what} are handed out again at the same attempt"


def losses_of(frames: Iterable[Frame]) -> list[str]:
    """What it means that the log ends before these frames, in words."""
    kinds, counts, acked = Counter[FrameKind](), Counter[FrameKind](), Counter[str]()
    stored, low, high = 0, UNLIMITED, -UNLIMITED
    unreadable: list[str] = []
    for frame in frames:
        kinds[frame.kind] += 1
        counts[FrameKind.FIRE if frame.kind in FIRES else FrameKind.TICK if frame.kind in TICKS else frame.kind] += (
            frame.count
        )
        try:
            if frame.kind in APPENDS - FIRES:
                due = parse_append(frame).due
                stored, low, high = stored + len(due), min(low, int(due.min())), max(high, int(due.max()))
            elif frame.kind is FrameKind.ACK:
                p = parse_progress(frame)
                acked[p.group] += int((p.end - p.start).sum())
        except (Damaged, ValueError) as error:
            unreadable.append(f"what the {frame.kind.name} at {frame.offset} was to do can't be read: {error}")
    found = [
        f"{kinds.total():,} frames: " + ", ".join(f"{count:,} {kind.name}" for kind, count in sorted(kinds.items()))
    ]
    if stored:
        dues = _due(np.array([low, high]))
        found.append(f"LOST: {_messages(stored)} that may have been acknowledged{dues}")
    for kind, what in (
        (FrameKind.FIRE, "{} of schedules are released again: they fire anew what they had fired"),
        (FrameKind.CANCEL, "{} that were cancelled will be delivered"),
        (FrameKind.RESCHEDULE, "{} that were rescheduled are delivered at the old time"),
        (FrameKind.TICK, "{} that were released are released again: delivered once more to those who had them"),
    ):
        if counts[kind]:
            found.append(what.format(_messages(counts[kind])))
    for group, count in sorted(acked.items()):
        found.append(f"up to {_messages(count)} that group {group!r} had acknowledged are delivered to it again")
    return found + unreadable
