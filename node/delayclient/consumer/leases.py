"""Leases of one queue's messages: extended again and again while the application works on them.

received        invisible/3           2 invisible/3                        max_lease
|---------------|---------------------|------------ ... ------------------|-------- invisible --------|
handed on       extended              extended                            no more    comes again
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from delayclient.consumer.acks import QueueAcks
from delayclient.consumer.received import ReceivedBatch
from delayclient.errors import DelayError
from delayclient.routing.routing import Cluster

_log: Final = logging.getLogger("delayclient")

RENEW_SHARE: Final = 3
"""A lease is extended when the third part of it has passed."""
_LOOK_SHARE: Final = 20
"""Looks in an invisible time; what comes to be extended until the next one goes with the others of this one."""


class _Lease(NamedTuple):
    attempt: int
    renew_s: float
    until_s: float
    """By the loop's clock: not extended after that."""


class RenewingAcks(QueueAcks):
    """As QueueAcks; a message that was taken is the application's until it is acknowledged, refused or given back."""

    def __init__(
        self, cluster: Cluster, topic: str, queue: int, group: str, invisible_ms: int, max_lease_ms: int
    ) -> None:
        super().__init__(cluster, topic, queue, group, invisible_ms)
        self._invisible_s = invisible_ms / 1000
        self._max_lease_s = max_lease_ms / 1000
        self._leases: dict[int, _Lease] = {}  # by offset
        self._renewing: asyncio.Task[None] | None = None

    def taken(self, batch: ReceivedBatch, rows: slice, received_s: float) -> None:
        """The application has these rows now; they were received at `received_s` by the loop's clock."""
        renew_s, until_s = received_s + self._invisible_s / RENEW_SHARE, time.monotonic() + self._max_lease_s
        for offset, attempt in zip(batch.offset[rows].tolist(), batch.attempt[rows].tolist(), strict=True):
            self._leases[offset] = _Lease(attempt, renew_s, until_s)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_all())

    def ack(self, offset: int) -> None:
        self._leases.pop(offset, None)
        super().ack(offset)

    def ack_many(self, offsets: NDArray[np.int64]) -> None:
        self._forget(offsets)
        super().ack_many(offsets)

    def nack(
        self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], backoff_ms: int, *, dead: bool = False,
        reason: str = "",
    ) -> None:  # fmt: skip
        super().nack(offsets, attempts, backoff_ms, dead=dead, reason=reason)
        self._forget(offsets)

    def give_back(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32]) -> None:
        self._forget(offsets)
        super().give_back(offsets, attempts)

    def give_back_later(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], after_s: float) -> None:
        self._forget(offsets)
        super().give_back_later(offsets, attempts, after_s)

    async def close(self, timeout_s: float) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        await super().close(timeout_s)

    def _forget(self, offsets: NDArray[np.int64]) -> None:
        for offset in offsets.tolist():
            self._leases.pop(offset, None)

    async def _renew_all(self) -> None:
        try:
            while self._leases:
                now = time.monotonic()
                soon = now + self._invisible_s / _LOOK_SHARE
                due = {offset: lease for offset, lease in self._leases.items() if lease.renew_s <= soon}
                late = [offset for offset, lease in due.items() if lease.until_s <= now]
                for offset in late:
                    del self._leases[offset], due[offset]
                if late:
                    _log.warning(
                        "%d messages of group %s from %s-%d are worked on for longer than max_lease: they come again",
                        len(late), self._group, self._topic, self._queue,
                    )  # fmt: skip
                if due:
                    await self._renew(due, now)
                await asyncio.sleep(self._invisible_s / _LOOK_SHARE)
        finally:
            self._renewing = None

    async def _renew(self, due: dict[int, _Lease], now_s: float) -> None:
        offsets = np.array(list(due), np.int64)
        attempts = np.array([lease.attempt for lease in due.values()], np.uint32)
        renew_s = now_s + self._invisible_s / RENEW_SHARE
        try:
            extended = await self.extend(offsets, attempts, self.invisible_ms)
        except DelayError as error:
            _log.warning(
                "the leases of %d messages of group %s on %s-%d were not extended: %s",
                len(due), self._group, self._topic, self._queue, error,
            )  # fmt: skip
            return  # tried again at the next look
        for (offset, lease), is_extended in zip(due.items(), extended.tolist(), strict=True):
            if self._leases.get(offset) is lease:  # it may be done by now, or taken again
                if is_extended:
                    self._leases[offset] = lease._replace(renew_s=renew_s)
                else:
                    del self._leases[offset]
        if not extended.all():
            _log.warning(
                "%d messages of group %s from %s-%d are another consumer's by now, or acknowledged",
                int((~extended).sum()), self._group, self._topic, self._queue,
            )  # fmt: skip
