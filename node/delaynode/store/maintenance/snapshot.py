"""The transfer of a whole copy: its files as of its last checkpoint, held while they are sent, put together elsewhere.

    <root>/<shard directory>          a copy
    <root>/.snapshots/<name>/         second names (hard links) of a copy's files: its maintenance goes on meanwhile
    <root>/.incoming/<shard directory>/   what has come; renamed to <root>/<shard directory> when it is whole
    <root>/.trash/                    copies given up, see persist.discard()

manifest, JSON: {"version", "uid", "log_offset", "horizon_ms", "files": [[path, length in bytes], ...]}, its version the
    checkpoint's format
chunk: bytes of one of the files, then their crc32, u32 little-endian

The wheels are not sent: the new owner builds them from the TimerLog. Nor is shard.json: a copy has an id of its own.
What the crc of a piece can't tell, rot on the sender's disk, is found where frames, units and records are read.
"""

from __future__ import annotations

import json
import posixpath
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from delaynode.store import formats
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.files import Files
from delaynode.store.maintenance import checkpoint as ck
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.checkpoint import Checkpoint
from delaynode.store.maintenance.stored_copy import write_cluster
from delaynode.store.queue.consume_queue import QUEUED_BYTES
from delaynode.store.queue.ledger import SegmentLedger
from delaynode.store.shard import ShardIdentity
from delaynode.store.types import Buffer

SNAPSHOTS, INCOMING = ".snapshots", ".incoming"
CHUNK_BYTES = 512 << 10
CRC_BYTES = 4
MAX_OUT_OF_ORDER_BYTES = 64 << 20  # of pieces that have come before an earlier one of their file, at most
ATTEMPTS = 5  # to link files while checkpoints come and go
PATH = re.compile(r"checkpoint|(log|timerlog|queue)/[0-9]{20}")

Parts = list[tuple[str, int]]
"""(path below the copy's directory, bytes) of each file."""


def sealed_chunk(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(CRC_BYTES, "little")


def _opened_chunk(chunk: Buffer) -> memoryview:
    """Raises ValueError when it is not what was sealed."""
    view = memoryview(chunk)
    data, crc = view[:-CRC_BYTES], view[-CRC_BYTES:]
    if len(crc) != CRC_BYTES or zlib.crc32(data) != int.from_bytes(crc, "little"):
        raise ValueError(f"a piece of {len(view)} bytes: its crc32 differs")
    return data


# ---------------------------------------------------------------- the sender
@dataclass(frozen=True, slots=True)
class CheckpointSnapshot:
    """The files of a copy as of its last checkpoint, until release()."""

    files: Files
    directory: str
    log_offset: int  # of the checkpoint: whoever gets the files needs the log from here on
    manifest: bytes
    parts: Parts

    def read(self, file: int, offset: int, length: int) -> bytes:
        """A piece of the file at this place in the manifest. Any thread. Raises OSError, ValueError."""
        if not 0 <= file < len(self.parts):
            raise ValueError(f"no file {file} in a manifest of {len(self.parts)}")
        path, size = self.parts[file]
        if not (length > 0 and 0 <= offset <= size - length):
            raise ValueError(f"[{offset}, {offset + length}) of {path}, which has {size} bytes")
        data = self.files.read(f"{self.directory}/{path}", offset, length)
        if len(data) != length:
            raise OSError(f"{self.directory}/{path}: ends at {offset + len(data)}, it had {size} bytes")
        return sealed_chunk(data)

    def release(self) -> None:
        """The files are needed no more. Any thread, once no read is under way."""
        self.files.remove_tree(self.directory)


def hold_checkpoint(files: Files, directory: str, name: str) -> CheckpointSnapshot:
    """Hold the files of a copy as of its last checkpoint. Any thread. Raises OSError, Damaged.

    What is linked is only ever appended to, below the checkpoint's ends. A copy that is cut to a later checkpoint, or
    whose log is cut above what is committed, loses nothing of it either.
    """
    identity, horizon_ms = persist.read_identity(files, directory)
    missing: Exception | None = None
    for _ in range(ATTEMPTS):
        snapshot_dir = _begin(files, directory, name)
        try:
            state, arrays = _checkpoint_in(files, snapshot_dir)
            parts = [("checkpoint", files.size(f"{snapshot_dir}/checkpoint")), *_parts(files, directory, state, arrays)]
            for path, _ in parts[1:]:
                files.link(f"{directory}/{path}", f"{snapshot_dir}/{path}")
            for path, length in parts:
                if files.size(f"{snapshot_dir}/{path}") < length:
                    raise Damaged(f"{directory}/{path}: ends before {length}, where the checkpoint has it end")
        except FileNotFoundError as error:  # a later checkpoint did without it
            missing = error
            files.remove_tree(snapshot_dir)
            continue
        except BaseException:
            files.remove_tree(snapshot_dir)
            raise
        content = {
            "version": state.format, "uid": identity.uid, "log_offset": state.log_offset, "horizon_ms": horizon_ms,
            "files": parts,
        }  # fmt: skip
        return CheckpointSnapshot(files, snapshot_dir, state.log_offset, json.dumps(content).encode(), parts)
    raise Damaged(f"{directory}: its checkpoint needs a file that is not there: {missing}") from missing


def _begin(files: Files, directory: str, name: str) -> str:
    """A place of its own that has the checkpoint, which may be replaced from now on."""
    root = posixpath.dirname(directory)
    number = 1
    while True:
        snapshot_dir = f"{root}/{SNAPSHOTS}/{name}" + (f"-{number}" if number > 1 else "")
        try:
            files.link(f"{directory}/checkpoint", f"{snapshot_dir}/checkpoint")
            return snapshot_dir
        except FileExistsError:
            number += 1
        except FileNotFoundError as error:
            raise Damaged(f"{directory}/checkpoint: missing") from error


def _checkpoint_in(files: Files, snapshot_dir: str) -> tuple[Checkpoint, ck.Arrays]:
    read = ck.read(files, f"{snapshot_dir}/checkpoint")
    if read is None:
        raise Damaged(f"{snapshot_dir}/checkpoint: empty")
    return read


def _parts(files: Files, directory: str, state: Checkpoint, arrays: ck.Arrays) -> Parts:
    """What the checkpoint needs of the segmented files. Raises FileNotFoundError."""
    ledger = SegmentLedger(arrays.get("ledger")).segments
    spans = zip(ledger["base"].tolist(), ledger["end"].tolist(), strict=True)
    found = [(f"log/{base:020d}", (end or state.log_offset) - base) for base, end in spans]
    for part, start, end in (
        ("timerlog", state.timer_start, state.timer_end),
        ("queue", state.queue_start * QUEUED_BYTES, state.queue_end * QUEUED_BYTES),
    ):
        bases = [int(name) for name in files.list(f"{directory}/{part}") if len(name) == 20 and name.isdigit()]
        at = bisect_right(bases, min(start, end - 1)) - 1  # where all is dropped, still what says where it ends
        if start < end and at < 0:
            raise FileNotFoundError(f"{directory}/{part}: nothing holds {start}")
        needed = [base for base in bases[max(at, 0) :] if base < end]
        found += [(f"{part}/{low:020d}", high - low) for low, high in pairwise([*needed, end])]
    return found


def remove_leftovers(files: Files, root: str) -> None:
    """At a process's start: what transfers and discards of an earlier one have left below the shards' root."""
    for name in (SNAPSHOTS, INCOMING, persist.TRASH):
        files.remove_tree(f"{root}/{name}")


# ---------------------------------------------------------------- the receiver
class IncomingCopy:
    """A copy that is being put together; nothing of it is in its place before finish(). One call at a time."""

    def __init__(self, files: Files, directory: str, manifest: bytes) -> None:
        """Raises ValueError for a manifest that no such program sends, NewerFormat for a newer release's."""
        self._files, self._directory = files, directory
        self.uid, self.log_offset, self._horizon_ms, self._parts = _read_manifest(manifest)
        root, name = posixpath.split(directory)
        self._stage = f"{root}/{INCOMING}/{name}"
        self._received = [0] * len(self._parts)
        self._out_of_order: dict[tuple[int, int], memoryview] = {}
        self.total_bytes = sum(length for _, length in self._parts)
        files.remove_tree(self._stage)

    @property
    def done_bytes(self) -> int:
        return sum(self._received)

    def missing_chunks(self) -> Iterator[tuple[int, int, int]]:
        """(file, offset, length) of the pieces that are not here yet, in the order in which to ask for them."""
        for file, ((_, size), have) in enumerate(zip(self._parts, self._received, strict=True)):
            for offset in range(have, size, CHUNK_BYTES):
                yield file, offset, min(CHUNK_BYTES, size - offset)

    def write(self, file: int, offset: int, chunk: Buffer) -> None:
        """A piece has come; those of one file in about the order of missing_chunks(). Raises ValueError, OSError."""
        data = _opened_chunk(chunk)
        if not (0 <= file < len(self._parts) and len(data)):
            raise ValueError(f"no piece of {len(data)} bytes of file {file} is wanted")
        path, size = self._parts[file]
        if not self._received[file] <= offset <= size - len(data) or (file, offset) in self._out_of_order:
            raise ValueError(f"{path}: [{offset}, {offset + len(data)}) is not wanted")
        if offset > self._received[file]:
            if sum(map(len, self._out_of_order.values())) + len(data) > MAX_OUT_OF_ORDER_BYTES:
                raise ValueError(f"{path}: what comes before {offset} does not come")
            self._out_of_order[file, offset] = data
            return
        next_: memoryview | None = data
        while next_ is not None:
            self._files.append(f"{self._stage}/{path}", [next_])
            self._received[file] += len(next_)
            next_ = self._out_of_order.pop((file, self._received[file]), None)
        if self._received[file] == size:
            self._files.sync(f"{self._stage}/{path}")

    def abort(self) -> None:
        """Delete what has come. Raises OSError."""
        self._files.remove_tree(self._stage)

    def finish(self, uid: int, topic: str, queue: int, epoch: int, cluster: str = "") -> ShardIdentity:
        """Put the copy in its place, with an id of its own. epoch: the highest that is known here. cluster: whose copy
        it is, "" where that is not known.

        After a crash the copy is there, whole, or nothing of it is. Raises ValueError, Damaged, OSError.
        """
        files, directory = self._files, self._directory
        if self.done_bytes != self.total_bytes:
            raise ValueError(f"{directory}: {self.done_bytes:,} of {self.total_bytes:,} bytes are here")
        state, _ = _checkpoint_in(files, self._stage)
        if not uid == self.uid == state.uid:
            raise ValueError(f"{directory}: a copy of shard {state.uid:x}, wanted is {uid:x}")
        if state.log_offset != self.log_offset:
            raise ValueError(f"{directory}: the checkpoint is at {state.log_offset}, not {self.log_offset}")
        last_epoch = state.epochs[-1][0] if state.epochs else 0
        if epoch < last_epoch:
            raise ValueError(f"{directory}: a copy in epoch {last_epoch}, here {epoch} is known")
        if persist.exists(files, directory):
            raise FileExistsError(f"{directory}: there is a copy")
        persist.discard(files, directory)  # what may be left of one that was never whole
        identity = ShardIdentity(uid, persist.new_copy_id(), topic, queue, epoch)
        persist.write_identity(files, self._stage, identity, self._horizon_ms)
        if cluster:
            write_cluster(files, self._stage, cluster)
        files.rename(self._stage, directory)
        return identity


def _read_manifest(manifest: bytes) -> tuple[int, int, int, Parts]:
    """Shard uid, log offset, horizon ms, files."""
    try:
        content = json.loads(manifest)
        if int(content["version"]) > formats.NEWEST:
            found = f"format {content['version']}, this one reads up to {formats.NEWEST}"
            raise NewerFormat(f"manifest: written by a newer release ({found})")
        numbers = content["uid"], content["log_offset"], content["horizon_ms"]
        parts = [(path, length) for path, length in content["files"]]
        is_valid = all(isinstance(number, int) and number >= 0 for number in (*numbers, *(n for _, n in parts)))
        if not is_valid or not all(isinstance(path, str) and PATH.fullmatch(path) for path, _ in parts):
            raise ValueError("a number or a path is not what it should be")
        if len({path for path, _ in parts}) != len(parts) or not all(length for _, length in parts):
            raise ValueError("a file is named twice, or empty")
        if not any(path == "checkpoint" for path, _ in parts):
            raise ValueError("it has no checkpoint")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"manifest: {error}") from error
    return (*numbers, parts)
