"""A master's frames as they come to a slave: checked, kept as they are, and what they prove of this disk.

file `floor` in the CommitLog's directory, while a slave catches up: <log offset> crc32 <hex>
    from this log offset on, what frames say of `synced` is true of their master's disk, maybe not of this one
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise

from delaynode.store.errors import Damaged
from delaynode.store.log.files import Files
from delaynode.store.log.frames import FLAG_NEW_SEGMENT, BadFrame, Frame, FrameKind, parse

SYNCED_LIMIT_FILE = "floor"


# ---------------------------------------------------------------- frames
@dataclass(frozen=True, slots=True)
class FrameChunk:
    """Whole frames, one after the other, from log offset `start` on."""

    start: int
    data: memoryview
    segment_starts: tuple[int, ...]  # log offsets of the frames that begin a segment
    synced: int  # the highest that a frame says

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def runs(self) -> list[tuple[memoryview, bool]]:
        """The parts that go into one segment each, and whether they begin it."""
        cuts = sorted({self.start, *self.segment_starts, self.end})
        return [
            (self.data[low - self.start : high - self.start], low in self.segment_starts)
            for low, high in pairwise(cuts)
        ]

    def before(self, end: int) -> FrameChunk:
        """What of it lies before the frame that begins at `end`."""
        return FrameChunk(
            self.start, self.data[: end - self.start], tuple(at for at in self.segment_starts if at < end), self.synced
        )


def parse_frames(data: memoryview, offset: int, uid: int) -> list[Frame]:
    """The frames that `data` consists of, the first of which is at log offset `offset`. Raises BadFrame."""
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        frame = parse(data, at, offset + at, uid)
        frames.append(frame)
        at = frame.end - offset
    return frames


def check_successors(frames: list[Frame], last_epoch: int) -> None:
    """Raises BadFrame unless these may follow a log that is at `last_epoch`; 0: it has no frame."""
    for frame in frames:
        if frame.synced > frame.offset:
            raise BadFrame(f"the frame at {frame.offset} says that all before {frame.synced} is on disk", 0)
        if frame.kind is FrameKind.EPOCH:
            if frame.epoch <= last_epoch:
                raise BadFrame(f"epoch {frame.epoch} begins at {frame.offset}, after epoch {last_epoch}", 0)
            last_epoch = frame.epoch
        elif frame.epoch != last_epoch:
            raise BadFrame(f"the frame at {frame.offset} is of epoch {frame.epoch}, within epoch {last_epoch}", 0)
    if frames and frames[0].offset == 0 and not frames[0].flags & FLAG_NEW_SEGMENT:
        raise BadFrame("the first frame begins no segment", 0)


def chunk_of(frames: list[Frame], data: memoryview) -> FrameChunk:
    segment_starts = tuple(frame.offset for frame in frames if frame.flags & FLAG_NEW_SEGMENT)
    return FrameChunk(frames[0].offset, data, segment_starts, max(frame.synced for frame in frames))


# ---------------------------------------------------------------- the floor
def read_synced_limit(files: Files, directory: str) -> int | None:
    """None when there is none: what frames say is true of this disk. Raises Damaged."""
    path = f"{directory}/{SYNCED_LIMIT_FILE}"
    size = files.size(path)
    if not size:
        return None
    number, _, rest = files.read(path, 0, size).partition(b" ")
    if rest != _seal(number) or not number.isdigit():
        raise Damaged(f"{path}: not what this program writes")
    return int(number)


def _seal(number: bytes) -> bytes:
    return f"crc32 {zlib.crc32(number):08x}\n".encode()


def write_synced_limit(files: Files, directory: str, offset: int) -> None:
    """offset: all before it is on this disk."""
    number = str(offset).encode()
    files.replace(f"{directory}/{SYNCED_LIMIT_FILE}", number + b" " + _seal(number))


def remove_synced_limit(files: Files, directory: str) -> None:
    """Everything that is written is on disk."""
    files.remove(f"{directory}/{SYNCED_LIMIT_FILE}")
