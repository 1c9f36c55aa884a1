"""Looks at a stopped copy of a shard, file by file, and says what is wrong where. Reads only, and goes on after errors.

    findings    what is found, and what was looked at
    statepass   checkpoint, wheels and shard.json      logpass    the CommitLog
    timerpass   the TimerLog and the wheels            queuepass  the ConsumeQueue
    accounts    every message is somewhere, once       overlay    files that can't be changed

About 100 bytes of memory a message that is in the log or in the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from delaynode.store.config import ShardConfig
from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.files import Files
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.marker import MARKER
from delaynode.store.queue.consume_queue import QUEUED_BYTES, ConsumeQueue
from delaynode.store.timer.timer_log import TimerLog
from delaynode.store.verify.accounts import account
from delaynode.store.verify.findings import Finding, Report, Summary
from delaynode.store.verify.log_pass import LogPass
from delaynode.store.verify.overlay import Overlay, ReadOnlyFiles
from delaynode.store.verify.queue_pass import QueuePass
from delaynode.store.verify.state_pass import (
    check_against_log,
    check_ends,
    check_ledger,
    dead_letters_below,
    read_state,
    watermark_of,
)
from delaynode.store.verify.timer_pass import TimerPass

__all__ = ["Finding", "Overlay", "ReadOnlyFiles", "Summary", "size_of", "verify_shard"]

UNLIMITED = 1 << 62  # a segment size that no file reaches


def size_of(files: Files, directory: str) -> int:
    """Bytes that verify_shard() will read, about."""
    parts = [f"{directory}/{part}" for part in ("log", "timerlog", "queue")]
    segments = [f"{part}/{name}" for part in parts for name in files.list(part)]
    return sum(files.size(path) for path in (*segments, f"{directory}/checkpoint", f"{directory}/wheels"))


def verify_shard(
    files: Files,
    directory: str,
    on_finding: Callable[[Finding], None],
    progress: Callable[[int], None] = lambda read: None,
) -> Summary:
    """Look at everything in a shard's directory. on_finding: each finding; progress: bytes read so far."""
    started = time.perf_counter()
    report = Report(on_finding, progress)
    _verify(files, directory, report)
    _try_to_open(files, directory, report)
    report.end()
    report.summary.seconds = time.perf_counter() - started
    return report.summary


def _verify(files: Files, directory: str, report: Report) -> None:
    state = read_state(files, directory, report)
    checkpoint = state.checkpoint
    uid = state.identity.uid if state.identity is not None else checkpoint.uid if checkpoint is not None else None
    if uid is None:
        report.add(directory, -1, "nothing says whose files these are: neither shard.json nor checkpoint can be read")
        return
    timer = TimerLog(files, f"{directory}/timerlog", UNLIMITED, uid)
    queue = ConsumeQueue(files, f"{directory}/queue", UNLIMITED, uid)
    check_ends(directory, state, timer, queue, report)
    as_of = None if checkpoint is None else checkpoint.log_offset
    facts = LogPass(files, f"{directory}/log", uid, as_of, state.expected(), state.skipped(), report).run()
    check_against_log(directory, state, facts, report)

    timer_start, timer_end = timer.file.start, timer.end
    queue_start, queue_end = -(-queue.file.start // QUEUED_BYTES), queue.file.end // QUEUED_BYTES
    if checkpoint is not None:
        timer_start, timer_end = checkpoint.timer_start, min(timer_end, checkpoint.timer_end)
        queue_start, queue_end = checkpoint.queue_start, min(queue_end, checkpoint.queue_end)
    mark = watermark_of(state, facts)
    bound_ms = None if checkpoint is None else checkpoint.minute_bound_ms
    timers = TimerPass(timer, timer_start, timer_end, state.horizon_ms, mark, bound_ms, state.copy, facts, report)
    pending = timers.run()
    released = QueuePass(queue, queue_start, queue_end, facts, report).run()
    if checkpoint is None:
        return
    if pending.complete:
        sizes = pending.pending["size"]
        for what, expected, found in (
            ("pending", len(sizes), checkpoint.pending),
            ("pending_bytes", int(sizes.sum(dtype=np.int64)), checkpoint.pending_bytes),
        ):
            if expected != found:
                path = f"{directory}/checkpoint"
                report.add(path, -1, f"{what} is not what the TimerLog has", expected=expected, found=found)
    if facts.complete:
        account(directory, facts, released, pending, queue_start > 0, report)
    if state.ledger is not None and pending.complete and released.complete:
        try:
            letters = dead_letters_below(state, queue)
        except Damaged as error:
            report.add(f"{directory}/checkpoint", -1, str(error))
            return
        columns = (pending.pending, released.rows, letters)
        offset = np.concatenate([rows["offset"] for rows in columns])
        size = np.concatenate([rows["size"] for rows in columns])
        check_ledger(directory, state.ledger, (offset, size), report)


def _try_to_open(files: Files, directory: str, report: Report) -> None:
    """Recover it with all writes kept in memory: what a start would say, and how much would be pending."""
    trial = Overlay(files)
    trial.remove(f"{directory}/{MARKER}")  # told already
    try:
        shard, recovery = persist.recover(trial, directory, ShardConfig())
    except (Damaged, NewerFormat) as error:
        report.add(directory, -1, f"a start refuses it: {error}")
    except Exception as error:  # the store should have refused: say so rather than end here
        report.add(directory, -1, f"a start fails: {type(error).__name__}: {error}")
    else:
        report.summary.pending = shard.index.pending
        if recovery.dropped_bytes:
            report.add(directory, -1, f"a start drops {recovery.dropped_bytes:,} bytes of the log's tail", note=True)
