"""What of the CommitLog is on its way to the file: frames proposed here, or a master's frames as they came.

    CommitLog.next_batch()  ->  batch.run(), on the thread that writes        ->  CommitLog.finish()
                                or begin_direct(), compiled code, end_direct()

One batch of a log is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from delaynode.store.log.frame_chunk import FrameChunk, remove_synced_limit, write_synced_limit
from delaynode.store.log.frames import FLAG_NEW_SEGMENT, Unsealed
from delaynode.store.types import Buffer

if TYPE_CHECKING:
    from delaynode.store.log.commit_log import CommitLog

SYNCED_LIMIT_LAG_BYTES = 16 << 20  # the floor follows what is on disk at this distance, at most

SegmentWrite = tuple[list[Buffer], int, bool]
"""What goes into one segment: buffers, their bytes in all, whether they begin it."""


class DirectWrite(NamedTuple):
    """Bytes for the end of an open file. The descriptor stays open until WriteBatch.end_direct()."""

    descriptor: int
    data: bytes


@dataclass(slots=True)
class WriteBatch:
    """Frames proposed here; made by CommitLog.next_batch(), run on any one thread at a time.

    on_sealed: told with the bytes of the whole batch, in order, before they are written; on the thread that runs it.
    """

    log: CommitLog
    start: int  # log offsets
    end: int
    sync: bool
    frames: list[Unsealed] = field(default_factory=list)
    on_sealed: Callable[[WriteBatch, list[Buffer]], None] | None = None

    def begin_direct(self) -> DirectWrite | None:
        """Instead of run(): what is to be written at the end of an open file, and synced, before end_direct().
        None where it takes more than that, and nothing has happened."""
        if not self.sync or not self._is_one_run():
            return None
        descriptor = self.log.file.begin_direct()
        if descriptor is None:
            return None
        try:
            return DirectWrite(descriptor, b"".join(self._parts()))
        except BaseException:
            self.log.file.end_direct(0)
            raise

    def end_direct(self, write_errno: int, sync_errno: int) -> None:
        """The direct write has ended, with the errno of each call, 0 for none. Raises OSError as run() does."""
        self.log.file.end_direct(self.end - self.start, write_errno, sync_errno)

    def _is_one_run(self) -> bool:
        return not any(frame.flags & FLAG_NEW_SEGMENT for frame in self.frames)

    def _parts(self) -> list[Buffer]:
        """The bytes of a batch that is one run."""
        if len(self.frames) == 1 and self.on_sealed is None:
            (frame,) = self.frames
            return [frame.seal(self.log.synced), *frame.payload]
        return self._seal()[0][0]

    def run(self) -> None:
        """Seal, write and (with `sync`) flush to disk. Raises OSError: the copy is damaged then."""
        file = self.log.file
        for parts, size, new_segment in self._seal():
            file.append(parts, size, new_segment=new_segment)
        if self.sync:
            file.sync()

    def _seal(self) -> list[SegmentWrite]:
        synced = self.log.synced
        runs: list[SegmentWrite] = []
        parts: list[Buffer] = []
        size, new_segment = 0, False
        for frame in self.frames:
            if frame.flags & FLAG_NEW_SEGMENT:
                if size:
                    runs.append((parts, size, new_segment))
                parts, size, new_segment = [], 0, True
            parts.append(frame.seal(synced))
            parts.extend(filter(len, frame.payload))
            size += frame.length
        runs.append((parts, size, new_segment))
        if self.on_sealed is not None:
            self.on_sealed(self, runs[0][0] if len(runs) == 1 else list(chain.from_iterable(run[0] for run in runs)))
        return runs


@dataclass(slots=True)
class ReceivedFrames(WriteBatch):
    """Frames of a master, written as they came.

    A frame's `synced` says what was on the MASTER's disk when it was sealed. Recovery takes it for proof of what is on
    this one: were it written beside earlier frames that are not synced here yet, a power cut that keeps it and tears
    them would look like damage. So before a frame is written, everything before its `synced` is on this disk, or a
    floor says that frames prove nothing above it (see frame_chunk.py).

    Following live, all frames of a piece are of one batch of the master, whose `synced` is at most that batch's start:
    what came before the piece must be on disk, and it is, but where several pieces have come while this disk was busy.
    One such place in a batch costs one more sync. With several, or with pieces read from a file, whose frames were
    synced one group after the other, the floor costs less: it is written once, covers all that is written until it is
    removed, and goes with the first batch that needs none. Meanwhile a power cut takes nothing that was synced, so
    nothing that was acknowledged; what is given up is that rot in the log's last part is told from a torn tail.
    """

    chunks: list[FrameChunk] = field(default_factory=list)

    def _is_one_run(self) -> bool:
        if self.log.synced_limit is not None or any(chunk.segment_starts for chunk in self.chunks):
            return False
        return self._sync_before() == []

    def _parts(self) -> list[Buffer]:
        return [chunk.data for chunk in self.chunks]

    def run(self) -> None:
        """Write and (with `sync`) flush to disk. Raises OSError: the copy is damaged then."""
        log, file = self.log, self.log.file
        positions = self._sync_before()
        if log.synced_limit is not None and positions == [] and log.synced == log.written:
            remove_synced_limit(file.files, file.directory)
            log.synced_limit = None
        elif positions is None or len(positions) > 1 or (positions and log.synced_limit is not None):
            self._lower_synced_limit()
            positions = []
        for at, chunk in enumerate(self.chunks):
            if positions and at == positions[0]:
                file.sync()
            for data, new_segment in chunk.runs():
                file.append([data], len(data), new_segment=new_segment)
        if self.sync:
            file.sync()

    def _sync_before(self) -> list[int] | None:
        """The pieces before which to sync; None where that would not do."""
        durable = self.log.synced
        positions: list[int] = []
        for at, chunk in enumerate(self.chunks):
            if chunk.synced > durable:
                positions.append(at)
                durable = chunk.start
            if chunk.synced > durable:
                return None
        return positions

    def _lower_synced_limit(self) -> None:
        """What frames say of `synced` proves nothing above what is on this disk now, or was a little ago."""
        log = self.log
        if log.synced_limit is None or log.synced - log.synced_limit > SYNCED_LIMIT_LAG_BYTES:
            write_synced_limit(log.file.files, log.file.directory, log.synced)
            log.synced_limit = log.synced
