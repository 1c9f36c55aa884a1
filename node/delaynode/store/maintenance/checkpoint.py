"""The checkpoint: one log offset up to which all derived files are on disk, and the state that no file holds.

file `checkpoint`: magic u32 | crc32 u32 (of all that follows) | size of the JSON u32 | 0 u32 | JSON | arrays
the JSON names the file and each array's dtype, shape and place; written to a new file, synced, renamed over the old one
"""

from __future__ import annotations

import json
import posixpath
import struct
import zlib
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt

from delaynode.store import formats
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.files import Files

MAGIC = 0x4B504344  # "DCPK"
HEAD = struct.Struct("<IIII")

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State as of `log_offset`. Positions are file offsets in bytes; times ms.

    format: of this file and of all that it names: CommitLog, TimerLog, ConsumeQueue; `version` in the file.
    """

    uid: int
    log_offset: int
    timer_start: int  # TimerLog position: the first flush of use
    timer_end: int
    queue_start: int  # queue offset: the first that is kept
    queue_end: int
    watermark_due: int
    watermark_seq: int
    minute_bound_ms: int
    next_seq: int
    pending: int
    pending_bytes: int
    epochs: list[list[int]]  # [epoch, start offset]
    wall_ms: int  # of the last frame
    groups: list[dict[str, object]] = field(default_factory=list)
    kept_epoch: int = 0  # of the newest status that this copy has seen in the registry: should that lose it
    kept_in_sync: list[str] = field(default_factory=list)
    cascade: list[int] = field(default_factory=list)  # of the hour at the bound, when it is half done: Cascade.saved()
    format: int = formats.OLDEST


FIELDS = {one.name for one in fields(Checkpoint)} - {"format"}


def encode(checkpoint: Checkpoint, arrays: Arrays, file: str = "checkpoint") -> bytes:
    """The bytes of the file of that name: in another's place it is refused."""
    positions: dict[str, list[object]] = {}
    parts: list[bytes] = []
    at = 0
    for key, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        positions[key] = [array.dtype.descr if array.dtype.names else array.dtype.str, list(array.shape), at]
        parts.append(raw)
        at += len(raw)
    state = asdict(checkpoint)
    version = state.pop("format")
    if not checkpoint.cascade:  # a program that does not know it opens those without, and refuses to read the others
        del state["cascade"]
    text = json.dumps({"version": version, "file": file, "state": state, "arrays": positions}).encode()
    body = HEAD.pack(MAGIC, 0, len(text), 0)[8:] + text + b"".join(parts)
    return struct.pack("<II", MAGIC, zlib.crc32(body)) + body


def decode(data: bytes, what: str, file: str = "") -> tuple[Checkpoint, Arrays]:
    """Raises Damaged or NewerFormat with `what` (a path) in its text. file: what it was written as, if not that."""
    if len(data) < HEAD.size:
        raise Damaged(f"{what}: {len(data)} bytes is too short")
    magic, crc, size, _ = HEAD.unpack_from(data)
    if magic != MAGIC or zlib.crc32(memoryview(data)[8:]) != crc:
        raise Damaged(f"{what}: magic or crc32 differs")
    try:
        content = json.loads(data[HEAD.size : HEAD.size + size])
        new = content["state"].keys() - FIELDS
        version = int(content["version"])
        if version > formats.NEWEST or new:
            found = f"format {version}" + (f" with {', '.join(sorted(new))}" if new else "")
            raise NewerFormat(f"{what}: written by a newer release ({found}), this one reads up to {formats.NEWEST}")
        if content["file"] != (file or posixpath.basename(what)):
            raise Damaged(f"{what}: this is the file {content['file']!r}")
        arrays: Arrays = {}
        base = HEAD.size + size
        for name, (form, shape, at) in content["arrays"].items():
            dtype = np.dtype([tuple(part) for part in form] if isinstance(form, list) else form)
            count = int(np.prod(shape))
            arrays[name] = np.frombuffer(data, dtype, count, base + at).reshape(shape)
        return Checkpoint(**content["state"], format=version), arrays
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # well-sealed, but not by this program
        raise Damaged(f"{what}: not what this program writes ({type(error).__name__}: {error})") from error


def write(files: Files, path: str, checkpoint: Checkpoint, arrays: Arrays) -> int:
    """Returns the file's size in bytes."""
    data = encode(checkpoint, arrays, posixpath.basename(path))
    files.replace(path, data)
    return len(data)


def read(files: Files, path: str) -> tuple[Checkpoint, Arrays] | None:
    """None when there is no checkpoint yet."""
    size = files.size(path)
    return decode(files.read(path, 0, size), path) if size else None
