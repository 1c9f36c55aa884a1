"""What of a shard is on disk, and how it comes back.

    <shard directory>/
      shard.json    identity and the highest epoch accepted, then a line with the crc32 of that; its presence means
                    that the directory is whole
      checkpoint    see checkpoint.py
      wheels        a copy of both wheels as of a TimerLog position, at least every 5 million units
      log/  timerlog/  queue/     segmented files

Recovery: the derived files are cut to the checkpoint's ends, the wheels rebuilt from the TimerLog after their copy,
and the frames after the checkpoint applied.
"""

from __future__ import annotations

import json
import secrets
import zlib
from dataclasses import asdict, dataclass, replace

import numpy as np

from delaynode.store import checkpoint as ck
from delaynode.store.checkpoint import Checkpoint
from delaynode.store.commitlog import CommitLog
from delaynode.store.consumequeue import ConsumeQueue
from delaynode.store.consumers import tag_hash
from delaynode.store.errors import Damaged
from delaynode.store.files import Files
from delaynode.store.groups import Group
from delaynode.store.producers import FirstAnswer, Producer
from delaynode.store.shard import Identity, Shard, ShardConfig
from delaynode.store.timerindex import DAY_MS, HOUR_MS, FlushJob, TimerIndex
from delaynode.store.timerlog import TimerLog
from delaynode.store.timerwheel import SLOT, TimerWheel
from delaynode.store.types import MAX_SEQ, Pair, Records


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery did: units read from the TimerLog, frames applied, bytes of torn tail dropped."""

    units: int
    frames: int
    dropped_bytes: int


def exists(files: Files, directory: str) -> bool:
    return files.size(f"{directory}/shard.json") > 0


def read_identity(files: Files, directory: str) -> tuple[Identity, int]:
    """The identity and the horizon (ms) that the shard was made with. Raises Damaged."""
    path = f"{directory}/shard.json"
    try:
        text, _, crc = files.read(path, 0, files.size(path)).rpartition(b"\n")
        if crc != _crc_line(text):
            raise Damaged(f"{path}: crc32 differs")
        content = json.loads(text)
        horizon_ms = content.pop("horizon_ms")
        return Identity(**content), horizon_ms
    except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{path}: {error}") from error


def _crc_line(text: bytes) -> bytes:
    return f"crc32 {zlib.crc32(text):08x}".encode()


def write_identity(files: Files, directory: str, identity: Identity, horizon_ms: int) -> None:
    text = json.dumps({**asdict(identity), "horizon_ms": horizon_ms}, indent=1).encode()
    files.replace(f"{directory}/shard.json", text + b"\n" + _crc_line(text))


def accept_epoch(files: Files, directory: str, shard: Shard, epoch: int) -> None:
    """Persist a higher epoch; after this the copy refuses lower ones for ever."""
    if epoch <= shard.identity.epoch:
        raise Damaged(f"{directory}: epoch {epoch} does not follow {shard.identity.epoch}")
    shard.identity = replace(shard.identity, epoch=epoch)
    write_identity(files, directory, shard.identity, shard.config.horizon_ms)


def create(files: Files, directory: str, uid: int, topic: str, queue: int, config: ShardConfig, now_ms: int) -> Shard:
    """A new, empty copy with a copy id of its own."""
    identity = Identity(uid, secrets.token_hex(8), topic, queue, 0)
    hour = now_ms - now_ms % HOUR_MS
    empty = Checkpoint(
        uid=uid, log_offset=0, timer_end=0, queue_end=0, watermark_due=now_ms, watermark_seq=MAX_SEQ,
        minute_bound_ms=hour + DAY_MS + HOUR_MS, next_seq=0, pending=0, pending_bytes=0, epochs=[], wall_ms=now_ms,
    )  # fmt: skip
    ck.write(files, f"{directory}/checkpoint", empty, {})
    write_identity(files, directory, identity, config.horizon_ms)
    return recover(files, directory, config)[0]


def recover(files: Files, directory: str, config: ShardConfig) -> tuple[Shard, Recovery]:
    """Open a copy and bring it to its log's end. Raises Damaged, and has touched derived files only then."""
    identity, horizon_ms = read_identity(files, directory)
    config = replace(config, horizon_ms=horizon_ms)
    read = ck.read(files, f"{directory}/checkpoint")
    if read is None:
        raise Damaged(f"{directory}/checkpoint: missing")
    state, arrays = read
    if state.uid != identity.uid:
        raise Damaged(f"{directory}/checkpoint: of shard {state.uid:x}, the directory is of {identity.uid:x}")
    log = CommitLog.open(files, f"{directory}/log", identity.uid, config.log_segment_bytes)
    if log.end < state.log_offset:
        raise Damaged(f"{log.file.directory}: ends at {log.end}, the checkpoint is at {state.log_offset}")
    timer_log = TimerLog(files, f"{directory}/timerlog", config.timer_segment_bytes)
    timer_log.file.truncate(state.timer_end)
    queue = ConsumeQueue(files, f"{directory}/queue", config.queue_segment_bytes)
    queue.cut(state.queue_end)

    watermark = Pair(state.watermark_due, state.watermark_seq)
    index = TimerIndex(timer_log, horizon_ms, watermark, state.minute_bound_ms)
    index.pending, index.pending_bytes = state.pending, state.pending_bytes
    units = index.rebuild(_read_wheels(files, f"{directory}/wheels", index, state.timer_end))
    shard = Shard(identity, config, log, index, queue, state.next_seq, [list(e) for e in state.epochs], state.wall_ms)
    _restore(shard, state, arrays)

    end, frames = state.log_offset, 0
    for frame in log.scan(state.log_offset):
        shard.commit(frame.offset)
        shard.apply(frame)
        end, frames = frame.end, frames + 1
    dropped = log.end - end
    log.cut(end)
    shard.commit(end)
    for file in (log.file, timer_log.file, queue.file):
        if file.start:
            raise Damaged(f"{file.directory}: starts at {file.start}, what lies before is missing")
    return shard, Recovery(units, frames, dropped)


def _restore(shard: Shard, state: Checkpoint, arrays: ck.Arrays) -> None:
    for at, fields in enumerate(state.groups):
        tags = tuple(str(tag) for tag in fields["tags"])  # type: ignore[attr-defined]
        hashes = np.array([tag_hash(tag) for tag in tags], np.uint32)
        floor, fresh = int(fields["floor"]), int(fields["fresh"])  # type: ignore[call-overload]
        group = Group(str(fields["name"]), tags, hashes, floor, shard.config.max_unacked)
        prefix = f"g{at}."
        group.restore(fresh, {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)})
        shard.consumers.groups[group.name] = group
    for producer, seen_ms, *flat in state.producers:
        known = shard.producers.by_id[producer] = Producer(seen_ms=seen_ms)
        known.answers.extend(FirstAnswer(*flat[i : i + 4]) for i in range(0, len(flat), 4))


# ---------------------------------------------------------------- wheels
def _read_wheels(files: Files, path: str, index: TimerIndex, timer_end: int) -> int:
    """Load the copy if it is good; returns the TimerLog position from which to rebuild."""
    try:
        read = ck.read(files, path)
    except Damaged:
        return 0  # only a copy: the TimerLog has it all
    if read is None:
        return 0
    state, arrays = read
    for wheel, name in ((index.minute, "minute"), (index.hour, "hour")):
        if arrays[name].dtype != SLOT or len(arrays[name]) != len(wheel.slots):
            return 0
    if state.timer_end > timer_end or state.minute_bound_ms > index.minute_bound_ms:
        return 0  # of a later time than the checkpoint: an hour may be cascaded in it whose ROLLs are not flushed
    for wheel, name in ((index.minute, "minute"), (index.hour, "hour")):
        wheel.slots[:] = arrays[name]
    return state.timer_end


def _dump(wheel: TimerWheel) -> Records:
    return wheel.slots.copy()


# ---------------------------------------------------------------- checkpoint
class CheckpointJob:
    """Persists the state as of `log_offset`. Run it, on any thread, once that offset is committed."""

    def __init__(
        self, files: Files, directory: str, shard: Shard, flush: FlushJob, state: Checkpoint, arrays: ck.Arrays
    ) -> None:
        self.log_offset = state.log_offset
        self.flush = flush
        self._files, self._directory = files, directory
        self._shard = shard
        self._state, self._arrays = state, arrays

    def run(self) -> None:
        """Raises OSError: the copy is damaged then."""
        self._shard.log.file.sync()
        self.flush.run()
        self._shard.queue.sync()
        state = replace(self._state, timer_end=self._shard.index.log.end)
        ck.write(self._files, f"{self._directory}/checkpoint", state, self._arrays)
        self._state = state


def begin_checkpoint(files: Files, directory: str, shard: Shard) -> CheckpointJob:
    """Capture the state at the log's end. One at a time, and none while an hour is cascaded."""
    shard.producers.expire(shard.wall_ms)
    groups, arrays = [], {}
    for at, group in enumerate(shard.consumers.groups.values()):
        fields, columns = group.snapshot()
        groups.append(fields)
        arrays.update({f"g{at}.{name}": column for name, column in columns.items()})
    producers = [
        [key, p.seen_ms, *(value for answer in p.answers for value in answer)]
        for key, p in shard.producers.by_id.items()
    ]
    index = shard.index
    state = Checkpoint(
        uid=shard.identity.uid, log_offset=shard.log.end, timer_end=index.log.end, queue_end=shard.queue.end,
        watermark_due=index.watermark.due, watermark_seq=index.watermark.seq, minute_bound_ms=index.minute_bound_ms,
        next_seq=shard.next_seq, pending=index.pending, pending_bytes=index.pending_bytes,
        epochs=[list(e) for e in shard.epochs], wall_ms=shard.wall_ms, groups=groups, producers=producers,
    )  # fmt: skip
    flush = index.begin_flush((0, shard.log.end))
    return CheckpointJob(files, directory, shard, flush, state, arrays)


def finish_checkpoint(job: CheckpointJob) -> None:
    """On the owner's thread, after run()."""
    job._shard.index.finish_flush(job.flush)


def copy_wheels(files: Files, directory: str, shard: Shard) -> None:
    """Write the copy of the wheels, while no checkpoint runs. Just after one: a copy that knows more is not used."""
    arrays: ck.Arrays = {"minute": _dump(shard.index.minute), "hour": _dump(shard.index.hour)}
    state = Checkpoint(
        uid=shard.identity.uid, log_offset=0, timer_end=shard.index.log.end, queue_end=0,
        watermark_due=0, watermark_seq=0,
        minute_bound_ms=shard.index.minute_bound_ms, next_seq=0, pending=0, pending_bytes=0, epochs=[], wall_ms=0,
    )  # fmt: skip
    ck.write(files, f"{directory}/wheels", state, arrays)
