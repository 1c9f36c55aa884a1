"""Mends what of a stopped copy's TimerLog can be mended, also where no recovery would read it."""

from __future__ import annotations

from delayapi.units import HOUR_MS, MINUTE_MS

from delaynode.store.errors import Damaged, NewerFormat
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.files import Files
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.recovery_point import find_recovery_point
from delaynode.store.timer.index import GEOMETRY, MINUTE_SLOTS, hour_slots
from delaynode.store.timer.repair import FlushRepairer
from delaynode.store.timer.timer_log import TimerLog
from delaynode.store.timer.wheel import TimerWheel

UNLIMITED = 1 << 62  # a segment size that no file reaches


def repair_timer_log(files: Files, directory: str) -> list[int]:
    """Make bad flushes good, up to the first that can't be; returns their TimerLog positions. Raises OSError.

    Changes nothing else, and nothing where identity, checkpoint or log can't be read at all.
    """
    try:
        identity, horizon_ms = persist.read_identity(files, directory)
        state = find_recovery_point(files, directory, identity.uid, GEOMETRY).state
        log = CommitLog.open(files, f"{directory}/log", identity.uid, UNLIMITED)
    except (Damaged, NewerFormat):
        return []
    timer = TimerLog(files, f"{directory}/timerlog", UNLIMITED, identity.uid)
    timer.start, timer.file.end = state.timer_start, min(timer.end, state.timer_end)
    mender = FlushRepairer(timer, log)
    try:
        wheels = TimerWheel(MINUTE_MS, MINUTE_SLOTS), TimerWheel(HOUR_MS, hour_slots(horizon_ms))
        timer.rebuild(*wheels, state.timer_start, mender.repair)
    except Damaged:
        pass  # told by verify_shard()
    return mender.repaired
