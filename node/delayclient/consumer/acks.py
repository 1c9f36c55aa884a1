"""Acknowledgements of one queue: gathered, sent as ranges of offsets, and sent again until the shard has them.

An acknowledgement is valid whenever it arrives, so sending it twice or late is harmless; one that can never be
delivered is counted and logged, and its message comes again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.reasons import check_reason
from numpy.typing import NDArray

from delayclient.errors import DelayError
from delayclient.routing.routing import Cluster

_log: Final = logging.getLogger("delayclient")

LINGER_S: Final = 0.05
"""How long acknowledgements are gathered: each request costs the node a frame and a sync, and none is waited for."""
RETRY_S: Final = 60.0
"""How long an acknowledgement is tried again."""
_FLUSH_COUNT: Final = 8192
_HELD_TICK_S: Final = 0.1
"""What is to be given back later is given back with the others of this time."""

_Attempts = tuple[NDArray[np.int64], NDArray[np.uint32]]
"""Queue offsets i64[n], attempts u32[n]."""


def to_ranges(offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(start i64[k], end i64[k], exclusive) of the runs in some offsets, in any order, repeated or not."""
    if not len(offsets):
        return offsets, offsets
    ordered = np.sort(offsets)
    gaps = np.flatnonzero(np.diff(ordered) > 1)
    starts = ordered[np.concatenate(([0], gaps + 1))]
    ends = ordered[np.concatenate((gaps, [len(ordered) - 1]))] + 1
    return starts, ends


class QueueAcks:
    """Acknowledgements and refusals of one queue's messages, on their way to the shard."""

    def __init__(self, cluster: Cluster, topic: str, queue: int, group: str, invisible_ms: int = 30_000) -> None:
        self.lost = 0
        """Acknowledgements given up so far."""
        self.invisible_ms = invisible_ms
        """What extend() extends by, unless it is told otherwise."""
        self._cluster = cluster
        self._topic = topic
        self._queue = queue
        self._group = group
        self._acked: list[int] = []
        self._acked_many: list[NDArray[np.int64]] = []
        self._nacked: dict[tuple[int, bool, str], list[_Attempts]] = {}  # by backoff ms, whether they die, and why
        self._returned: list[_Attempts] = []
        self._held: dict[int, list[_Attempts]] = {}  # by when they are given back, in ticks of the loop's clock
        self._to_hold: list[tuple[_Attempts, float]] = []  # not extended yet, and until when they must be
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def ack(self, offset: int) -> None:
        """Done with one message."""
        self._acked.append(offset)
        if self._task is None:
            self._start()

    def ack_many(self, offsets: NDArray[np.int64]) -> None:
        """Done with these messages, i64[n]."""
        self._acked_many.append(offsets)
        if self._task is None:
            self._start()
        if len(offsets) >= _FLUSH_COUNT:
            self._hurry.set()  # as much as a request is worth

    def nack(
        self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], backoff_ms: int, *, dead: bool = False,
        reason: str = "",
    ) -> None:  # fmt: skip
        """End these attempts, i64[n] and u32[n]: the next ones come after `backoff_ms` (-1: the group's backoff).
        Raises ValueError for a reason that is too long."""
        check_reason(reason)
        if len(offsets):
            self._nacked.setdefault((backoff_ms, dead, reason), []).append((offsets, attempts))
            if self._task is None:
                self._start()

    def give_back(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32]) -> None:
        """These were not worked on, i64[n] and u32[n]: another consumer gets them at once, as the same attempts."""
        if len(offsets):
            self._returned.append((offsets, attempts))
            self._hurry.set()
            if self._task is None:
                self._start()

    def give_back_later(self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], after_s: float) -> None:
        """As give_back(), once that time is over; until then no consumer gets them. Nothing else of them is kept."""
        if not len(offsets):
            return
        given = offsets.copy(), attempts.copy()  # else they keep the whole batch
        loop = asyncio.get_running_loop()
        tick = math.ceil((loop.time() + after_s) / _HELD_TICK_S)
        if tick not in self._held:
            self._held[tick] = []
            loop.call_at(tick * _HELD_TICK_S, self._give_back_held, tick)
        self._held[tick].append(given)
        self._to_hold.append((given, tick * _HELD_TICK_S))
        if self._task is None:
            self._start()

    async def extend(
        self, offsets: NDArray[np.int64], attempts: NDArray[np.uint32], invisible_ms: int
    ) -> NDArray[np.bool_]:
        """Keeps these messages, i64[n] and u32[n], for `invisible_ms` from now on: which are still this consumer's.
        Raises DelayError."""
        request = self._request(delay_pb2.ExtendRequest, [(offsets, attempts)], invisible_ms=invisible_ms)
        answer = await self._call("Extend", request, delay_pb2.ExtendResponse.FromString)
        if len(answer.settlement) != len(offsets):
            raise DelayError(f"{len(answer.settlement)} answers for {len(offsets)} messages", code="INTERNAL")
        extended: NDArray[np.bool_] = np.frombuffer(answer.settlement, np.uint8) == delay_pb2.SETTLED
        return extended

    async def flush(self) -> None:
        """Sends all at once and waits until the shard has it, or it is given up."""
        while self._task is not None:
            self._hurry.set()
            await asyncio.wait({self._task})

    async def close(self, timeout_s: float) -> None:
        """Flushes, and gives up what the shard does not have by then. What was to be given back later is so now."""
        for tick in list(self._held):
            self._give_back_held(tick)
        try:
            await asyncio.wait_for(self.flush(), timeout_s)
        except TimeoutError:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait({self._task})

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._acked or self._acked_many or self._nacked or self._returned or self._to_hold:
                if len(self._acked) < _FLUSH_COUNT and not self._hurry.is_set():
                    await self._linger()
                self._hurry.clear()
                await self._send_to_hold()  # first: some of them may be given back by now
                # What is acknowledged while this request is under way goes into the next one.
                nacks = (self._send_nacks(*how) for how in list(self._nacked))
                await asyncio.gather(self._send_acks(), self._send_returned(), *nacks)
        finally:
            self._task = None

    async def _linger(self) -> None:
        timer = asyncio.get_running_loop().call_later(LINGER_S, self._hurry.set)
        await self._hurry.wait()
        timer.cancel()

    async def _send_acks(self) -> None:
        one_by_one, many = self._acked, self._acked_many
        if not one_by_one and not many:
            return
        self._acked, self._acked_many = [], []
        start, end = to_ranges(np.concatenate([np.array(one_by_one, np.int64), *many]))
        request = delay_pb2.AckRequest(
            topic=self._topic, queue=self._queue, group=self._group, start=start.tobytes(), end=end.tobytes()
        )
        try:
            await self._call("Ack", request, delay_pb2.AckResponse.FromString)
        except (DelayError, asyncio.CancelledError) as error:
            count = int((end - start).sum())
            self.lost += count
            _log.warning(
                "%d acknowledgements of group %s on %s-%d were not delivered, their messages come again: %s",
                count, self._group, self._topic, self._queue, error,
            )  # fmt: skip
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _send_nacks(self, backoff_ms: int, dead: bool, reason: str) -> None:
        given = self._nacked.pop((backoff_ms, dead, reason))
        request = self._request(delay_pb2.NackRequest, given, backoff_ms=backoff_ms, dead=dead, reason=reason)
        await self._try("Nack", request, delay_pb2.NackResponse.FromString)

    def _give_back_held(self, tick: int) -> None:
        for offsets, attempts in self._held.pop(tick, ()):
            self.give_back(offsets, attempts)

    async def _send_to_hold(self) -> None:
        given, self._to_hold = self._to_hold, []
        if given:
            longest_s = max(until_s for _, until_s in given) - asyncio.get_running_loop().time()
            hold_ms = max(0, math.ceil(longest_s * 1_000)) + self.invisible_ms  # beyond the time, for the giving back
            request = self._request(delay_pb2.ExtendRequest, [it for it, _ in given], invisible_ms=hold_ms)
            await self._try("Extend", request, delay_pb2.ExtendResponse.FromString)

    async def _send_returned(self) -> None:
        given, self._returned = self._returned, []
        if given:
            request = self._request(delay_pb2.ExtendRequest, given, invisible_ms=0)
            await self._try("Extend", request, delay_pb2.ExtendResponse.FromString, on_doubt=_do_not_repeat)

    def _request(self, kind: Any, given: list[_Attempts], **fields: Any) -> Any:
        return kind(
            topic=self._topic,
            queue=self._queue,
            group=self._group,
            offset=np.concatenate([offsets for offsets, _ in given]).tobytes(),
            attempt=np.concatenate([attempts for _, attempts in given]).tobytes(),
            **fields,
        )

    async def _try(self, method: str, request: Any, decode: Any, on_doubt: Callable[[], None] | None = None) -> None:
        """Without it the messages come again all the same, when their invisible time is over."""
        try:
            await self._call(method, request, decode, on_doubt)
        except DelayError as error:
            _log.warning(
                "%s of group %s on %s-%d was not delivered: %s", method, self._group, self._topic, self._queue, error
            )

    async def _call(self, method: str, request: Any, decode: Any, on_doubt: Callable[[], None] | None = None) -> Any:
        return await self._cluster.call(
            method, self._topic, self._queue, request, decode, timeout_s=RETRY_S, on_doubt=on_doubt
        )


def _do_not_repeat() -> None:
    """The messages may be another consumer's by now, as the same attempts: a second try would take them away."""
    raise DelayError("it may have been done")
