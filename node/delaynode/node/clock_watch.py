"""Keeps what is believed of the clock over a restart of the process, and notices when time has jumped.

    <data>/clock.json    {"boot_id": the kernel's, "offset_ms": ..., "spent_ms": ..., "boot_ms": ...}  see clock.Trust;
                         sealed

Without it a restart would believe any step that happened before. It is replaced atomically and not synced: only a
power cut or a reboot could lose it, and to another boot it says nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from delaynode.clock import GuardedClock, Trust
from delaynode.sealed_json import opened, sealed

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KEPT_WITHIN_MS = 10  # smaller changes of the offset are not worth a write
JUMP_MS = 50  # whoever sleeps until a due is woken when time has moved so much ahead of the loop's clock


def boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""  # not Linux: nothing can be compared after a restart


def read_trust(path: Path, boot: str) -> Trust | None:
    """What a process before believed, if the machine has not booted since."""
    try:
        content = opened(path.read_bytes())
        if not boot or content["boot_id"] != boot:
            return None
        return Trust(*(int(str(content[name])) for name in ("offset_ms", "spent_ms", "boot_ms")))
    except (OSError, ValueError, KeyError):
        return None


def write_trust(path: Path, boot: str, trust: Trust) -> None:
    """Raises OSError."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(sealed({"boot_id": boot, **asdict(trust)}))
    os.replace(temporary, path)


class ClockWatch:
    """Owns the node's clock. poll() is to be called a few times a second, save() whenever it says so."""

    def __init__(
        self,
        directory: str,
        log: Callable[..., None],
        *,
        accept: bool = False,
        make: Callable[[Trust | None], GuardedClock] = lambda trust: GuardedClock(trust=trust),
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """accept: believe the wall clock as it stands, whatever a process before believed."""
        self._path = Path(directory) / "clock.json"
        self._boot = boot_id()
        self._log = log
        self._steady = steady
        kept = read_trust(self._path, self._boot)
        self.clock = make(kept)
        self._saved: Trust | None = None
        self._failed = False
        self._ahead_ms = self._ahead_of_steady_ms()
        if accept and kept is not None:
            self.accept()
        self.poll()

    def _ahead_of_steady_ms(self) -> int:
        return self.clock.now_ms() - int(self._steady() * 1000)

    def poll(self) -> bool:
        """True when time has moved on further than the loop's own clock, which sleeps use."""
        ahead_ms = self._ahead_of_steady_ms()
        jumped = ahead_ms - self._ahead_ms > JUMP_MS
        if abs(ahead_ms - self._ahead_ms) > JUMP_MS:
            self._log("time-jumped", by_ms=ahead_ms - self._ahead_ms)
            self._ahead_ms = ahead_ms
        return jumped

    def accept(self) -> int:
        """Believe the wall clock as it stands; returns by how many ms time moves ahead."""
        moved_ms = self.clock.accept()
        self._log("clock-accepted", moved_ms=moved_ms)
        return moved_ms

    @property
    def changed(self) -> bool:
        """save() has something to write."""
        trust, kept = self.clock.trust, self._saved
        return (
            kept is None
            or max(abs(trust.offset_ms - kept.offset_ms), abs(trust.spent_ms - kept.spent_ms)) > KEPT_WITHIN_MS
        )

    def save(self) -> None:
        """Write what is believed; on any thread. A failure is logged once; the next look tries again."""
        trust = self.clock.trust
        try:
            write_trust(self._path, self._boot, trust)
            self._saved, self._failed = trust, False
        except OSError as error:
            if not self._failed:
                self._log("clock-not-kept", reason=str(error))
            self._failed = True
