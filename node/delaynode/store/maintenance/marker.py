"""The file `damaged` in a shard's directory: a copy that has failed says so to the process that opens it next.

After a failed fsync the page cache shows bytes that the disk may not have, and the next fsync succeeds; a bit that has
rotted is found only by who reads it again. So a restart must not make such a copy serve: an operator, or a copy
elsewhere, decides.

    {"reason": ..., "time_ms": ..., "committed": ...}        committed: the log offset up to which all was committed
"""

from __future__ import annotations

import errno
import json
from contextlib import suppress

from delaynode.store.errors import Damaged, Unsynced
from delaynode.store.log.files import Files

MARKER = "damaged"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_HANDLE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def is_permanent(error: Exception) -> bool:
    """Whether a copy that failed with this error must not be trusted by another process either.

    A write that found no room, or no file handle, changed nothing that was there: recovery drops what it left behind.
    """
    if isinstance(error, Damaged | Unsynced):
        return True
    if isinstance(error, TimeoutError) and error.errno is None:
        return False  # a wait's, not a disk's
    return isinstance(error, OSError) and error.errno not in NO_ROOM | NO_HANDLE


def mark_damaged(files: Files, directory: str, reason: str, time_ms: int, committed: int) -> None:
    """Raises OSError where the disk does not take it. The first reason stays."""
    if not is_marked(files, directory):
        content = {"reason": reason, "time_ms": time_ms, "committed": committed}
        files.replace(f"{directory}/{MARKER}", json.dumps(content).encode() + b"\n")


def is_marked(files: Files, directory: str) -> bool:
    return MARKER in files.list(directory)


def check_unmarked(files: Files, directory: str) -> None:
    """Raises Damaged, with the reason, when the copy is marked."""
    if not is_marked(files, directory):
        return
    path = f"{directory}/{MARKER}"
    text = files.read(path, 0, files.size(path)).decode(errors="replace").strip()
    with suppress(ValueError, TypeError, KeyError):  # whatever it says, it is there
        text = str(json.loads(text)["reason"])
    raise Damaged(f"{path}: this copy has failed before: {text}; see 'delaynode verify --clear-damaged'")


def clear_damaged(files: Files, directory: str) -> None:
    """For an operator who has verified the copy: let it be opened again."""
    files.remove(f"{directory}/{MARKER}")
