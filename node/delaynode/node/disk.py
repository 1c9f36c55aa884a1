"""Room on the node's disk: new messages are refused before it is full.

A failed write stops the shard, and what is stored already needs room to be released, acknowledged, checkpointed and
cleaned up. So the last part of the disk is not for enqueues. How much that is:

    cleaning, which copies before it frees         2 log segments
    batches accepted but not yet written           the limit of what is in flight
    a checkpoint, written before an old one goes   the size of the largest that is there: one at a time is written
    what it grows by, message ids aside            32 MiB, with the copy of the wheels
    index units not yet flushed                    84 B each: the unit, and the id of its message in the checkpoint
    a pending message's release and its ack        64 B each

or --min-free-mib, where that is more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from delaynode.store.config import ShardConfig
from delaynode.store.errors import Refused
from delaynode.store.log.incoming_batch import ID_BYTES
from delaynode.store.queue.consume_queue import QUEUED
from delaynode.store.shard import Shard
from delaynode.store.timer.timer_log import STORED

CHECK_SECONDS = 0.25
RETRY_MS = 1_000
CLEANING_BYTES = 2 * ShardConfig().log_segment_bytes
GROWTH_BYTES = 32 << 20  # of a checkpoint, from one to the next
UNFLUSHED_BYTES = STORED.itemsize + ID_BYTES + 16  # beside its id a message's seq and due
RESCHEDULE_BYTES = 150  # of one message: its part of the frame, and two index units
ACK_BYTES = 24  # a range of its own in a frame that it shares


def needed_bytes(shards: Iterable[Shard], in_flight_bytes: int) -> int:
    """What the shards may still write while no new message comes."""
    rows = checkpoint = 0
    for shard in shards:
        index = shard.index
        rows += index.unflushed * UNFLUSHED_BYTES + index.pending * (QUEUED.itemsize + ACK_BYTES)
        checkpoint = max(checkpoint, shard.checkpoint_bytes)
    return CLEANING_BYTES + in_flight_bytes + checkpoint + GROWTH_BYTES + rows


class DiskSpace:
    """reserve_bytes(): what enqueues leave free. unwritten_bytes(): what was let in and no file has yet.

    The disk is asked four times a second at most.
    """

    def __init__(
        self, directory: str, reserve_bytes: Callable[[], int], unwritten_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self._directory = directory
        self._reserve, self._unwritten = reserve_bytes, unwritten_bytes
        self._free_bytes = self._reserve_bytes = 0
        self._good_until = 0.0  # time.monotonic()

    def poll(self) -> tuple[int, int]:
        """(bytes free, bytes that enqueues leave free); what was let in counts as used, written or not."""
        now = time.monotonic()
        if now >= self._good_until:
            disk = os.statvfs(self._directory)
            self._free_bytes = max(0, disk.f_bavail * disk.f_frsize - self._unwritten())
            self._reserve_bytes = self._reserve()
            self._good_until = now + CHECK_SECONDS
        return self._free_bytes, self._reserve_bytes

    def tight(self) -> bool:
        """Little is left: what can be freed should be, before new messages have to be refused."""
        free, reserve = self.poll()
        return free < 2 * reserve

    def full(self) -> bool:
        """New messages are refused."""
        free, reserve = self.poll()
        return free < reserve

    def check(self, size: int) -> None:
        """Let `size` bytes in. Raises Refused DISK_FULL."""
        free, reserve = self.poll()
        if free - size < reserve:
            raise Refused(
                "DISK_FULL",
                f"the node's disk has {free >> 20:,} MiB free; {reserve >> 20:,} MiB are kept "
                "for what is stored already",
                retry_after_ms=RETRY_MS,
            )
        self._free_bytes -= size

    def check_copy(self, size: int, freed: int) -> None:
        """Let a whole copy of `size` bytes in, in the place of one of `freed` bytes. Raises Refused DISK_FULL."""
        free, reserve = self.poll()
        room = free + freed - reserve
        if size > room:
            replaced = f"the copy that it replaces has {freed >> 20:,} MiB, " if freed else ""
            raise Refused(
                "DISK_FULL",
                f"the disk has no room for a copy of {-(-size >> 20):,} MiB: {free >> 20:,} MiB are free, {replaced}"
                f"and {reserve >> 20:,} MiB are kept for what is stored already",
            )
        self._free_bytes -= max(0, size - freed)
