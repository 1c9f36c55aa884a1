"""PeerReplica: how far another replica of a shard is, as the shard's master knows it.

    DOWN -> ASKED (Follow sent) -> STREAMING (frames go out, acks come back)
                               \\-> FETCHING (its copy can't be continued: it is sent this one's files)

Shipping moves it from one phase to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Phase(Enum):
    DOWN = "down"
    ASKED = "asked"
    FETCHING = "fetching"
    STREAMING = "streaming"


@dataclass(slots=True)
class PeerReplica:
    """Another node that has, or is to have, a replica. Offsets are of the log, in bytes."""

    node: str
    phase: Phase = Phase.DOWN
    replica_id: str = ""  # its copy's name in the in-sync set
    next: int = 0  # of the next frame to send
    durable: int = 0  # it has stored everything before, as the cluster's durability asks
    applied: int = 0
    sent_commit: int = 0  # the commit offset
    session: int = 0  # moves whenever it starts anew: what was begun before is dropped
    reading: int = 0  # bytes that are about to be read from the log for it
    budgeted: int = 0  # bytes of what is on its way to it that come out of the budget for catching up
    acked: bool = False  # it has said how much it has stored, since Start
    damaged: bool = False
    near_end_ms: int | None = None  # since when it has been near the log's end: InSyncRule keeps it
    progress_ms: int = 0  # when it last had everything it was sent, or stored more of it; or asked for more of a copy
    snapshot: SnapshotSource | None = None


class SnapshotSource(Protocol):
    """The files of a copy as of its last checkpoint, held for a transfer."""

    @property
    def manifest(self) -> bytes: ...

    @property
    def log_offset(self) -> int:
        """The log offset of the checkpoint: the log is needed from here on."""

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Any thread. Raises OSError, ValueError for what is not in the manifest."""

    def release(self) -> None:
        """Any thread. The files are needed no more."""
