"""The node's scrub: every file of its shards is read and checked once in `scrub_days`, one shard at a time, slowly.

The bytes are spread evenly over the days, and never come faster than SCRUB_BYTES_PER_SECOND. Where a lap stands is
memory only; each begins at a random file, so that a node which restarts often gets to all of them too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from delaynode.metrics import NodeMetrics
from delaynode.replica.hosts.host import CopyHost
from delaynode.store.errors import Damaged
from delaynode.store.maintenance.scrub import STEP_BYTES, Scrub, size_of

SCRUB_BYTES_PER_SECOND = 8 << 20
POLL_SECONDS = 1.0  # between checks of what may be read by now
MEASURE_SECONDS = 60.0  # between measurements of how large the files are
DAY_SECONDS = 86_400.0


class Scrubber:
    """hosts: the shards served here. Owned by the event loop."""

    def __init__(
        self,
        hosts: Callable[[], Sequence[CopyHost]],
        metrics: NodeMetrics,
        log: Callable[..., None],
        rng: random.Random | None = None,
    ) -> None:
        self._hosts = hosts
        self._metrics = metrics
        self._log = log
        self._rng = rng or random.Random()
        self._done: dict[str, float] = {}  # shard -> when its last lap ended, time.monotonic()
        self._budget = 0.0  # bytes that may be read by now
        self._rate = 0.0  # bytes a second
        self._measure_at = 0.0  # time.monotonic()

    async def run(self) -> None:
        """For ever."""
        looked = time.monotonic()
        lap: tuple[CopyHost, Scrub, float] | None = None
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            hosts = self._hosts()
            self._add_budget(hosts, now - looked)
            looked = now
            while self._budget >= 0:
                if lap is not None and lap[0] not in hosts:
                    lap = None
                if lap is None:
                    host = self._next(hosts)
                    if host is None:
                        break
                    lap = host, Scrub(host.shard, self._rng.random()), now
                if not await self._step(lap[0], lap[1]):
                    host, scrub, begun = lap
                    self._done[host.name] = time.monotonic()
                    seconds = round(time.monotonic() - begun, 1)
                    if scrub.bytes:
                        self._log("scrubbed", shard=host.name, bytes=scrub.bytes, seconds=seconds)
                    lap = None
                    if not scrub.bytes:
                        break
                hosts = self._hosts()

    def _add_budget(self, hosts: Sequence[CopyHost], seconds: float) -> None:
        """What the time that went by allows to read."""
        now = time.monotonic()
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_SECONDS
            rate = sum(size_of(host.shard) / (host.shard.config.scrub_days * DAY_SECONDS) for host in hosts)
            self._rate = min(rate, SCRUB_BYTES_PER_SECOND)
        self._budget = min(self._budget + self._rate * seconds, max(STEP_BYTES, self._rate * POLL_SECONDS))

    def _next(self, hosts: Sequence[CopyHost]) -> CopyHost | None:
        """The shard that waits the longest; one that was never looked at before all others, in random order."""
        return min(hosts, key=lambda host: (self._done.get(host.name, 0.0), self._rng.random()), default=None)

    async def _step(self, host: CopyHost, scrub: Scrub) -> bool:
        """One step; False when the lap is over, or the shard has failed."""
        step = scrub.begin()
        if step is None:
            return False
        try:
            await host.off_loop(step.run)
        except (Damaged, OSError) as error:
            self._metrics.scrub_errors += 1
            if scrub.pass_over_spare(step):
                self._log("spare-file-damaged", shard=host.name, reason=f"scrub: {error}")
                return True
            host.fail(f"scrub: {error}", error)
            return False
        finally:
            self._budget -= step.bytes
            self._metrics.scrub_bytes += step.bytes
        scrub.finish(step)
        return True
