"""Acknowledgements of one message a request, as the compiled edge has read them: those of a client that came together
are one call inside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from delayapi.receipt import Receipt

from delaynode.server.doors.calls import InnerCall, LaterCall
from delaynode.server.doors.core import CALL_SECONDS, Door
from delaynode.server.doors.rocketmq.clients import ClientKey
from delaynode.server.doors.together import MAX_ROWS
from delaynode.server.edge import ReadCalls
from delaynode.server.handlers.rows import RowGroup
from delaynode.store.errors import Refused

Done: TypeAlias = Callable[[ClientKey, Sequence[Receipt]], None]
"""Told of receipts that need no lease any more."""
Encode: TypeAlias = Callable[[Refused | None], bytes]
"""The encoded status; None: it is acknowledged."""


class Acks:
    """One for a node. Owned by the event loop."""

    def __init__(self, door: Door, done: Done, encode: Encode) -> None:
        self._door, self._done, self._encode = door, done, encode
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, group: RowGroup, calls: ReadCalls) -> None:
        """A client's requests; its id is the group's topic, their receipts its records. Each is answered later."""
        receipts = receipts_of(group)
        for first in range(0, len(receipts), MAX_ROWS):
            some = receipts[first : first + MAX_ROWS]
            task = asyncio.create_task(self._acknowledge(group, some, calls.at(range(first, first + len(some)))))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _acknowledge(self, group: RowGroup, receipts: list[Receipt], calls: ReadCalls) -> None:
        call = InnerCall(LaterCall(group.caller, "", ""), ends(group))
        answers = self._door.dispatch.flow.answers(call)
        try:
            results = await self._door.ack(call, receipts, answers)
        except BaseException as error:  # a fault, or the node is stopping
            calls.end(0, len(receipts), Refused("INTERNAL", f"{type(error).__name__}: {error}"))
            raise
        finally:
            answers.dropped()
        self._done((group.caller.principal, group.topic), receipts)
        became: dict[bytes, list[int]] = {}
        for place, refused in enumerate(results):
            became.setdefault(self._encode(refused), []).append(place)
        for status, places in became.items():
            calls.at(places).answered(0, len(places), status)


def receipts_of(group: RowGroup) -> list[Receipt]:
    records, end = memoryview(group.records), np.cumsum(np.frombuffer(group.size, "<u4"), dtype=np.int64).tolist()
    return [Receipt.unpack(bytes(records[a:b])) for a, b in zip([0, *end], end, strict=False)]


def ends(group: RowGroup) -> float:
    """When the first of the clients gives up, on the clock of time.monotonic()."""
    deadline_ms = group.deadline_ms[group.deadline_ms >= 0]
    return float(deadline_ms.min()) / 1_000 if len(deadline_ms) else time.monotonic() + CALL_SECONDS
