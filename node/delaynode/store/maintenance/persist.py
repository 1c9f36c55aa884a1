"""What of a shard is on disk, and how it comes back.

    <shard directory>/
      shard.json    identity and the highest epoch accepted, then a line with the crc32 of that; its presence means
                    that the directory is whole
      checkpoint    see checkpoint.py
      previous.<log offset>     the checkpoint before, see recovery_point.py
      wheels        a copy of both wheels as of a TimerLog position, at least every 5 million units
      damaged       only when the copy has failed, see marker.py
      log/  timerlog/  queue/     segmented files
      log/floor     only while a slave catches up, see frame_chunk.py

Recovery: the derived files are cut to the ends of the checkpoint, or of what takes its place, the wheels rebuilt
from the TimerLog after their copy, and the frames after it applied.
"""

from __future__ import annotations

import json
import posixpath
import secrets
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from delaynode.store.config import ShardConfig
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.commit_log import CommitLog, frames_of
from delaynode.store.log.files import Files
from delaynode.store.log.frames import Frame, FrameKind
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance.checkpoint import Checkpoint
from delaynode.store.maintenance.marker import check_unmarked, is_permanent, mark_damaged
from delaynode.store.maintenance.marker import clear_damaged as clear_damaged  # the way out, for `delaynode verify`
from delaynode.store.maintenance.recovery_point import (
    SpareFiles,
    empty_state,
    find_recovery_point,
    keep_previous,
    read_previous,
    use,
)
from delaynode.store.queue.consume_queue import QUEUED_BYTES, ConsumeQueue
from delaynode.store.queue.ledger import SegmentLedger
from delaynode.store.queue.producers import ROW
from delaynode.store.shard import Shard, ShardIdentity
from delaynode.store.timer.cascade import Cascade
from delaynode.store.timer.index import TimerIndex
from delaynode.store.timer.jobs import FlushJob
from delaynode.store.timer.repair import FlushRepairer
from delaynode.store.timer.timer_log import TimerLog
from delaynode.store.timer.wheel import SLOT, TimerWheel
from delaynode.store.types import Pair, Records

TRASH = ".trash"  # beside the shards' directories
KEPT_EPOCHS = 64  # of a log's list, also when their frames are gone: a copy that comes back is compared with them

Epoch = TypeVar("Epoch", tuple[int, int], list[int])


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery did: units read from the TimerLog, frames applied, bytes of torn tail dropped, and the TimerLog
    positions of flushes that were bad and are made good. origin: what it began with, in words; damage: why that is not
    the checkpoint, "" where it is.
    """

    units: int
    frames: int
    dropped_bytes: int
    repaired: list[int]
    origin: str = ""
    damage: str = ""


def exists(files: Files, directory: str) -> bool:
    """Whether a copy is there, maybe a damaged one; what was left half made, with an empty file or none, is no copy."""
    if not files.size(f"{directory}/shard.json"):
        return False
    return files.size(f"{directory}/checkpoint") > 0 or bool(files.list(f"{directory}/log"))


def new_copy_id() -> str:
    return secrets.token_hex(8)


def read_identity(files: Files, directory: str) -> tuple[ShardIdentity, int]:
    """The identity and the horizon (ms) that the shard was made with. Raises Damaged, NewerFormat."""
    path = f"{directory}/shard.json"
    try:
        content = _read_json(files, path)
        horizon_ms = content.pop("horizon_ms")
        if new := content.keys() - {one.name for one in fields(ShardIdentity)}:
            raise NewerFormat(f"{path}: written by a newer release (with {', '.join(sorted(new))})")
        return ShardIdentity(**content), horizon_ms
    except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{path}: {error}") from error


def read_copy_id(files: Files, directory: str) -> tuple[str, int]:
    """The copy's id and epoch, also where the copy can't be opened; "" and 0 where they can't be read."""
    try:
        content = _read_json(files, f"{directory}/shard.json")
        return str(content["copy_id"]), int(content["epoch"])
    except (OSError, Damaged, ValueError, TypeError, KeyError):
        return "", 0


def _read_json(files: Files, path: str) -> dict[str, Any]:
    """Raises OSError, Damaged, ValueError, TypeError."""
    text, _, crc = files.read(path, 0, files.size(path)).rpartition(b"\n")
    if crc != _crc_line(text):
        raise Damaged(f"{path}: crc32 differs")
    return dict(json.loads(text))


def _crc_line(text: bytes) -> bytes:
    return f"crc32 {zlib.crc32(text):08x}".encode()


def write_identity(files: Files, directory: str, identity: ShardIdentity, horizon_ms: int) -> None:
    text = json.dumps({**asdict(identity), "horizon_ms": horizon_ms}, indent=1).encode()
    files.replace(f"{directory}/shard.json", text + b"\n" + _crc_line(text))


def accept_epoch(files: Files, directory: str, shard: Shard, epoch: int) -> None:
    """Persist a higher epoch; after this the copy refuses lower ones for ever."""
    if epoch <= shard.identity.epoch:
        raise Damaged(f"{directory}: epoch {epoch} does not follow {shard.identity.epoch}")
    identity = replace(shard.identity, epoch=epoch)
    write_identity(files, directory, identity, shard.config.horizon_ms)
    shard.identity = identity


def discard(files: Files, directory: str) -> None:
    """Delete a copy that nobody uses, renamed first: after a crash it is there, whole, or it is no copy."""
    if files.list(directory):
        root, name = posixpath.split(directory)
        held, number = set(files.list(f"{root}/{TRASH}")), 1
        while f"{name}.{number}" in held:
            number += 1
        files.rename(directory, f"{root}/{TRASH}/{name}.{number}")
        files.remove_tree(f"{root}/{TRASH}/{name}.{number}")
    else:
        files.remove_tree(directory)


def create(
    files: Files, directory: str, uid: int, topic: str, queue: int, config: ShardConfig, now_ms: int, epoch: int = 0
) -> Shard:
    """A new, empty copy with a copy id of its own. epoch: the highest that is known."""
    identity = ShardIdentity(uid, new_copy_id(), topic, queue, epoch)
    empty = empty_state(uid, now_ms, config.geometry, config.format)
    ck.write(files, f"{directory}/checkpoint", empty, {})
    write_identity(files, directory, identity, config.horizon_ms)
    return recover(files, directory, config)[0]


def recover(files: Files, directory: str, config: ShardConfig, *, replay: bool = True) -> tuple[Shard, Recovery]:
    """Open a copy and bring it to its log's end. Raises Damaged, NewerFormat; then it has touched derived files only.

    replay: False to leave it as of its checkpoint, with the log that follows whole but not applied: of a copy that is
    to follow, its master knows how much of it is committed.
    """
    check_unmarked(files, directory)
    identity, horizon_ms = read_identity(files, directory)
    config = replace(config, horizon_ms=horizon_ms)
    point = find_recovery_point(files, directory, identity.uid, config.geometry)
    use(files, directory, point)
    state, arrays = point.state, point.arrays
    log = CommitLog.open(files, f"{directory}/log", identity.uid, config.log_segment_bytes)
    if log.end < state.log_offset:
        raise Damaged(f"{log.file.directory}: ends at {log.end}, the checkpoint is at {state.log_offset}")
    ledger = SegmentLedger(arrays.get("ledger"))
    timer_log = TimerLog(files, f"{directory}/timerlog", config.timer_segment_bytes, identity.uid)
    queue = ConsumeQueue(files, f"{directory}/queue", config.queue_segment_bytes, identity.uid)
    spare = _match_files(files, directory, state, ledger, log, timer_log, queue)

    watermark = Pair(state.watermark_due, state.watermark_seq)
    index = TimerIndex(
        timer_log, horizon_ms, watermark, state.minute_bound_ms, config.window_budget, config.geometry,
        config.chunk_units,
    )  # fmt: skip
    index.pending, index.pending_bytes = state.pending, state.pending_bytes
    index.flushed, index.cascade = state.log_offset, Cascade.of(state.cascade) if state.cascade else None
    repairer = FlushRepairer(timer_log, log)
    units = index.rebuild(
        max(state.timer_start, _read_wheels(files, f"{directory}/wheels", index, state)), repairer.repair
    )
    shard = Shard(identity, config, log, index, queue, state.next_seq, [list(e) for e in state.epochs], state.wall_ms)
    _restore(shard, state, arrays, ledger)
    shard.spare, shard.checkpoint_bytes = spare, files.size(f"{directory}/checkpoint")

    end, frames = state.log_offset, 0
    for frame in log.scan(state.log_offset, point.synced):
        if frame.kind is FrameKind.EPOCH:
            log.epochs.append((frame.epoch, frame.offset))
        if replay:
            _apply(shard, frame)
            frames += 1
        end = frame.end
    if log.last_epoch > identity.epoch:
        raise Damaged(f"{directory}/shard.json: epoch {identity.epoch} is persisted, the log is at {log.last_epoch}")
    dropped = log.end - end
    try:
        log.cut(end)
    except OSError as error:
        if is_permanent(error):
            with suppress(OSError):
                mark_damaged(files, directory, f"recovery: {error}", shard.wall_ms, state.log_offset)
        raise
    shard.commit(shard.applied)
    return shard, Recovery(units, frames, dropped, repairer.repaired, point.origin, point.damage)


def _apply(shard: Shard, frame: Frame) -> None:
    shard.commit(frame.offset)
    shard.apply(frame)


def replay(shard: Shard, through: int, max_bytes: int | None = None, *, light: bool = False) -> int:
    """Commit and apply the frames before log offset `through` that are not applied yet, out of the log's files, on any
    one thread; returns their number. max_bytes: stop after so many bytes. Raises Damaged.

    light: stop before a frame that make_room() is to be called for, as it takes memory that a node's shards take in
    turn.
    """
    begin, frames = shard.applied, 0
    for frame in frames_of(shard.log, begin, through):
        if light and (_has_too_many_unflushed(shard) or shard.loader.needs_cascade(frame)):
            break
        _apply(shard, frame)
        frames += 1
        if max_bytes is not None and frame.end - begin >= max_bytes:
            break
    shard.commit(shard.applied)
    return frames


def make_room(files: Files, directory: str, shard: Shard) -> None:
    """Make way for the next frame, of a log that is committed, on any one thread: flush the units that wait, with a
    checkpoint, when they are many; else a piece of the hour that is to come down. Raises Damaged, OSError.
    """
    if _has_too_many_unflushed(shard):
        job = begin_checkpoint(files, directory, shard)
        job.run()
        remove_files(files, finish_checkpoint(job))
        return
    chunk = shard.index.begin_cascade()
    if chunk is not None:
        chunk.run()
        shard.index.finish_cascade(chunk)


def _has_too_many_unflushed(shard: Shard) -> bool:
    return shard.index.unflushed >= shard.config.max_unflushed


def _match_files(
    files: Files,
    directory: str,
    state: Checkpoint,
    ledger: SegmentLedger,
    log: CommitLog,
    timer_log: TimerLog,
    queue: ConsumeQueue,
) -> SpareFiles:
    """Make the files what the checkpoint says: cut the derived ones to its ends, and remove those that it did without,
    but for those of the previous checkpoint, which are returned.

    Raises Damaged when something is missing.
    """
    expected = ledger.bounds(state.log_offset)
    spare = {base for base in log.file.bases if base < state.log_offset} - {base for base, _ in expected}
    timer_log.start, queue.start = state.timer_start, state.queue_start
    timer_start, queue_start = state.timer_start, state.queue_start
    kept: set[int] = set()
    if spare or timer_log.file.closed_below(timer_start) or queue.file.closed_below(queue_start * QUEUED_BYTES):
        for _, other, arrays in read_previous(files, directory, state.uid):
            named = {base for base, _ in SegmentLedger(arrays.get("ledger")).bounds(other.log_offset)}
            kept |= {base for base in spare if base in named or base >= other.log_offset}
            timer_start, queue_start = min(timer_start, other.timer_start), min(queue_start, other.queue_start)
    _remove(files, log.file.drop(spare - kept))
    log.file.check_complete(0, state.log_offset, expected)
    for file, low, start, end in (
        (timer_log.file, timer_start, state.timer_start, state.timer_end),
        (queue.file, queue_start * QUEUED_BYTES, state.queue_start * QUEUED_BYTES, state.queue_end * QUEUED_BYTES),
    ):
        _remove(files, file.drop(file.closed_below(low)))
        file.truncate(end, start)
    queue.cut(state.queue_end)
    return SpareFiles(state.timer_start, state.queue_start, tuple(sorted(kept)))


def _remove(files: Files, paths: list[str]) -> None:
    for path in paths:
        files.remove(path)


def _restore(shard: Shard, state: Checkpoint, arrays: ck.Arrays, ledger: SegmentLedger) -> None:
    shard.checkpointed = shard.applied = state.log_offset
    shard.raise_format(state.format)
    shard.log.epochs = [(epoch, start) for epoch, start in state.epochs]
    shard.known_status = state.kept_epoch, tuple(state.kept_in_sync)
    shard.space.ledger = ledger
    shard.skipped = arrays["skipped"].tolist() if "skipped" in arrays else []
    times = arrays["release_times"].tolist() if "release_times" in arrays else []
    shard.space.release_times = [(int(wall_ms), int(offset)) for wall_ms, offset in times]
    shard.consumers.restore(state.groups, arrays)
    # Without the clock it is a checkpoint of before there was one: `seen_ms` was a frame's wall time then.
    time_ms, wall_ms = arrays.get("producer_clock", np.array([state.wall_ms, state.wall_ms])).tolist()
    shard.producers.restore(arrays.get("producers", np.zeros(0, ROW)), time_ms, wall_ms)
    shard.message_ids.restore(arrays)
    shard.schedules.restore(arrays)


# ---------------------------------------------------------------- wheels
def _read_wheels(files: Files, path: str, index: TimerIndex, now: Checkpoint) -> int:
    """Load the copy if it is good; returns the TimerLog position from which to rebuild."""
    try:
        read = ck.read(files, path)
    except (Damaged, NewerFormat):
        return 0  # only a copy: the TimerLog has it all
    if read is None:
        return 0
    state, arrays = read
    if state.uid != now.uid or not {"minute", "hour"} <= arrays.keys():
        return 0
    for wheel, name in ((index.minute, "minute"), (index.hour, "hour")):
        if arrays[name].dtype != SLOT or len(arrays[name]) != len(wheel.slots):
            return 0
    if state.timer_end > now.timer_end or state.minute_bound_ms > index.minute_bound_ms:
        return 0  # of a later time than the checkpoint: an hour may be cascaded in it that is not yet in the TimerLog
    if state.timer_start != now.timer_start:
        return 0  # files have gone since, and later COUNT units say what they had counted
    for wheel, name in ((index.minute, "minute"), (index.hour, "hour")):
        wheel.slots[:] = arrays[name]
    return state.timer_end


def _dump(wheel: TimerWheel) -> Records:
    return wheel.slots.copy()


# ---------------------------------------------------------------- checkpoint
class CheckpointJob:
    """Persists the state as of `log_offset`. Run it, on any thread, once all before that is committed and written."""

    def __init__(
        self, files: Files, directory: str, shard: Shard, flush: FlushJob, state: Checkpoint, arrays: ck.Arrays
    ) -> None:
        self.log_offset = state.log_offset
        self.size_bytes = 0  # of its file, once it has run
        self.flush = flush
        self._files, self._directory = files, directory
        self._shard = shard
        self._state, self._arrays = state, arrays
        self.queue_start, self.timer_start = state.queue_start, state.timer_start
        self.pending_delete = list(shard.space.pending_delete)  # CommitLog segments that this checkpoint does without

    def run(self) -> None:
        """Raises OSError: the copy is damaged then."""
        self._shard.log.file.sync()
        self.flush.run()
        self._shard.queue.sync()
        state = replace(self._state, timer_end=self._shard.index.log.end)
        keep_previous(self._files, self._directory, state.log_offset)
        self.size_bytes = ck.write(self._files, f"{self._directory}/checkpoint", state, self._arrays)
        self._state = state


def begin_checkpoint(files: Files, directory: str, shard: Shard) -> CheckpointJob:
    """Capture the state that all applied frames have led to. One at a time, and none while an hour is cascaded."""
    shard.producers.expire(shard.producers.time_ms)
    shard.message_ids.expire(shard.producers.time_ms)
    shard.epochs = _kept_epochs(shard.epochs, shard.log.file.start)
    shard.log.epochs = _kept_epochs(shard.log.epochs, shard.log.file.start)
    groups, arrays = shard.consumers.snapshot()
    if len(shard.producers):
        arrays["producers"] = shard.producers.rows().copy()
    arrays["producer_clock"] = np.array([shard.producers.time_ms, shard.producers.wall_ms], np.int64)
    arrays |= shard.message_ids.snapshot() | shard.schedules.snapshot()
    index, freeing = shard.index, shard.space
    flush = index.begin_flush((shard.checkpointed, shard.applied))  # may move the TimerLog's start
    arrays["ledger"] = freeing.ledger.segments.copy()
    if shard.skipped:
        arrays["skipped"] = np.array([at for at in shard.skipped if at >= shard.log.file.start], np.int64)
    arrays["release_times"] = np.array(freeing.release_times, np.int64).reshape(-1, 2)
    state = Checkpoint(
        uid=shard.identity.uid, log_offset=shard.applied, timer_start=index.log.start, timer_end=index.log.end,
        queue_start=shard.queue.start, queue_end=shard.queue.end,
        watermark_due=index.watermark.due, watermark_seq=index.watermark.seq, minute_bound_ms=index.minute_bound_ms,
        next_seq=shard.next_seq, pending=index.pending, pending_bytes=index.pending_bytes,
        epochs=[list(e) for e in shard.epochs], wall_ms=shard.wall_ms, groups=groups,
        kept_epoch=shard.known_status[0], kept_in_sync=list(shard.known_status[1]),
        cascade=index.cascade.saved() if index.cascade is not None else [], format=shard.format,
    )  # fmt: skip
    return CheckpointJob(files, directory, shard, flush, state, arrays)


def abandon_checkpoint(job: CheckpointJob) -> None:
    """One that has not run: what it had taken waits for the next."""
    job._shard.index.abandon_flush()


def _kept_epochs(epochs: list[Epoch], start: int) -> list[Epoch]:
    """Without those of which no frame is kept in a log that starts at `start`, but for the last few."""
    over = sum(later[1] <= start for later in epochs[1:])
    return epochs[min(over, max(0, len(epochs) - KEPT_EPOCHS)) :]


def finish_checkpoint(job: CheckpointJob) -> list[str]:
    """On the owner's thread, after run(). Returns files that neither this checkpoint nor the one before needs, for
    remove_files().
    """
    shard, index, former = job._shard, job._shard.index, job._shard.spare
    index.finish_flush(job.flush)
    shard.checkpointed, shard.checkpoint_bytes = job.log_offset, job.size_bytes
    shard.space.pending_delete = [base for base in shard.space.pending_delete if base not in job.pending_delete]
    shard.spare = SpareFiles(job.timer_start, job.queue_start, tuple(job.pending_delete))
    queue, timer = shard.queue.file, index.log.file
    return [
        *shard.log.file.drop(former.segments),
        *queue.drop(queue.closed_below(former.queue_start * QUEUED_BYTES)),
        *timer.drop(timer.closed_below(min(former.timer_start, index.unread_below()))),
    ]


def remove_files(files: Files, paths: list[str]) -> None:
    """Delete them, on any thread, once no read that began before they were dropped is under way."""
    _remove(files, paths)


def copy_wheels(files: Files, directory: str, shard: Shard) -> None:
    """Write the copy of the wheels, while no checkpoint runs; not when the TimerLog has grown since the last one.

    What a cascade has added to it a recovery cuts off, and other units may come to lie there: once a later checkpoint
    reaches further, nothing would tell that the copy is of another history.
    """
    if shard.index.log.end != shard.index.kept_end:
        return
    arrays: ck.Arrays = {"minute": _dump(shard.index.minute), "hour": _dump(shard.index.hour)}
    state = Checkpoint(
        uid=shard.identity.uid, log_offset=0, timer_start=shard.index.log.start, timer_end=shard.index.log.end,
        queue_start=0, queue_end=0, watermark_due=0, watermark_seq=0,
        minute_bound_ms=shard.index.minute_bound_ms, next_seq=0, pending=0, pending_bytes=0, epochs=[], wall_ms=0,
        format=shard.format,
    )  # fmt: skip
    ck.write(files, f"{directory}/wheels", state, arrays)
