"""NodeClock: the node's clock against its own past and against its peers' clocks, looked at a few times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from delaynode.clock import boot_ms
from delaynode.replicate.agree import ClockAgreement
from delaynode.serve.clockwatch import ClockWatch

SKEW_SECONDS = 2.0  # out-voted for so long, a master gives its shards away


class NodeClock:
    """Owned by the event loop. woken: called when time has jumped; out_voted: with the reason, after SKEW_SECONDS."""

    def __init__(
        self,
        watch: ClockWatch,
        pool: Executor,
        log: Callable[..., None],
        *,
        woken: Callable[[], None],
        out_voted: Callable[[str], None],
        boot: Callable[[], int] = boot_ms,
    ) -> None:
        self.clock = watch.clock
        self.skew: str | None = None  # what most peers' clocks say of this node's, where they differ
        self._watch, self._pool, self._log = watch, pool, log
        self._woken, self._out_voted, self._boot_ms = woken, out_voted, boot
        self._agreement = ClockAgreement()
        self._skewed_since = 0.0
        self.heard = self._agreement.heard  # what a peer's clock showed

    async def look(self) -> None:
        self._compare()
        if self._watch.look():
            self._woken()
        if self._watch.changed:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._watch.keep)

    def _compare(self) -> None:
        """Most peers' clocks are right: believe a step that they have made too, stop releasing where they differ."""
        found = self._agreement.judge(self.clock.now_ms(), self._boot_ms(), self.clock.disbelieved_ms)
        if found.may_accept:
            self._log("clock-agreed", reason=found.reason)
            self._watch.accept()
        if not found.out_voted:
            self.skew = None
            return
        now = time.monotonic()
        if self.skew is None:
            self._skewed_since = now
            self._log("clock-out-voted", reason=found.reason)
        self.skew = found.reason
        if now - self._skewed_since > SKEW_SECONDS:
            self._out_voted(found.reason)

    def accept(self) -> int:
        """Believe the wall clock; returns by how many ms time moves ahead."""
        return self._watch.accept()

    def unfit(self) -> str | None:
        """Why no master should be chosen here; None when one may be.

        A step of the wall clock that is not believed is no reason: the node goes on by its boot clock, as a master does
        that was chosen before the step.
        """
        return f"its clock differs: {self.skew}" if self.skew is not None else None
