"""A copy on disk that nobody has opened: of which shard it is and what it has, read without changing anything.

<shards' root>/<topic>-<queue>-<uid, 16 hexadecimal digits>/     a copy, see persist.py
<shard directory>/cluster     the name of the cluster that had the copy last, UTF-8
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from delaynode.store.config import ShardConfig
from delaynode.store.errors import Damaged, NewerFormat, Unsynced
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.files import Files
from delaynode.store.log.frames import APPENDS
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.checkpoint import Checkpoint
from delaynode.store.maintenance.marker import check_unmarked, mark_damaged
from delaynode.store.maintenance.recovery_point import find_recovery_point
from delaynode.store.timer.index import GEOMETRY

CLUSTER = "cluster"
_NAME = re.compile(r"(.+)-([0-9]+)-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """epoch: the highest that the copy has accepted. log_epoch, log_end: of its last whole frame. pending: at most so
    many messages are not released yet: what came after the checkpoint is counted, released or not. damage: why the
    copy is of no use, as far as this look shows; then what follows it may be 0.
    """

    directory: str
    uid: int
    topic: str
    queue: int
    cluster: str = ""
    copy_id: str = ""
    epoch: int = 0
    damage: str | None = None
    disk_bytes: int = 0
    log_epoch: int = 0
    log_end: int = 0
    pending: int = 0
    kept_epoch: int = 0
    kept_in_sync: tuple[str, ...] = ()
    newer_format: bool = False  # that is the damage: a newer release wrote it

    @property
    def shard(self) -> str:
        return f"{self.topic}-{self.queue}"


def directories(files: Files, root: str) -> Iterator[tuple[int, str]]:
    """The uid and path of each shard directory that holds a copy, maybe a damaged one."""
    for name in files.list(root):
        match = _NAME.fullmatch(name)
        if match is not None and persist.exists(files, f"{root}/{name}"):
            yield int(match[3], 16), f"{root}/{name}"


def unreadable(directory: str, why: str) -> StoredCopy:
    """What the directory's name alone tells of the copy."""
    match = _NAME.fullmatch(directory.rpartition("/")[2])
    if match is None:
        raise ValueError(f"{directory} is no shard's directory")
    return StoredCopy(directory, int(match[3], 16), match[1], int(match[2]), damage=why)


def read_stored_copy(files: Files, directory: str) -> StoredCopy:
    """Reads the log after the checkpoint, so it may take a while. What it tells of is on disk: an earlier process may
    have ended between a write and its sync. Raises OSError.
    """
    found = replace(
        unreadable(directory, ""), cluster=read_cluster(files, directory), damage=None,
        disk_bytes=disk_bytes(files, directory),
    )  # fmt: skip
    try:
        identity, _ = persist.read_identity(files, directory)
        if identity.uid != found.uid:
            raise Damaged(f"{directory}/shard.json: of shard {identity.uid:016x}")
        found = replace(found, copy_id=identity.copy_id, epoch=identity.epoch)
        check_unmarked(files, directory)
        point = find_recovery_point(files, directory, found.uid, GEOMETRY)
        state = point.state
        log = CommitLog.open(files, f"{directory}/log", found.uid, ShardConfig().log_segment_bytes)
        _sync(files, directory, log, state)
        epoch, end, pending = state.epochs[-1][0] if state.epochs else 0, state.log_offset, state.pending
        for frame in log.scan(state.log_offset, point.synced):
            epoch, end = frame.epoch, frame.end
            pending += frame.count if frame.kind in APPENDS else 0
    except (Damaged, NewerFormat) as error:
        return replace(found, damage=str(error), newer_format=isinstance(error, NewerFormat))
    return replace(
        found, log_epoch=epoch, log_end=end, pending=pending, kept_epoch=state.kept_epoch,
        kept_in_sync=tuple(state.kept_in_sync),
    )  # fmt: skip


def _sync(files: Files, directory: str, log: CommitLog, state: Checkpoint) -> None:
    """Raises Damaged where a write is lost: the kernel says so once, so no process may trust the copy after this."""
    try:
        log.file.sync_all()
    except Unsynced as error:
        mark_damaged(files, directory, f"recovery: {error}", state.wall_ms, state.log_offset)
        raise Damaged(str(error)) from error


def disk_bytes(files: Files, directory: str) -> int:
    paths = [f"{directory}/{name}" for name in files.list(directory)]
    for part in ("log", "timerlog", "queue"):
        paths += [f"{directory}/{part}/{name}" for name in files.list(f"{directory}/{part}")]
    return sum(map(files.size, paths))


def read_cluster(files: Files, directory: str) -> str:
    """The cluster that had the copy last; "" where nothing says so."""
    path = f"{directory}/{CLUSTER}"
    return files.read(path, 0, files.size(path)).decode(errors="replace").strip() if files.size(path) else ""


def write_cluster(files: Files, directory: str, name: str) -> None:
    """Say whose the copy is from now on. Raises OSError."""
    if read_cluster(files, directory) != name:
        files.replace(f"{directory}/{CLUSTER}", name.encode() + b"\n")
