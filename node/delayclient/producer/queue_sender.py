"""One shard's stream: sends a producer's batches to the shard's master, in order, and follows it when it moves.

The window (numbering.py) decides what is sent; here is the I/O: one EnqueueStream at a time, a writer and a
reader, and after a failure a wait, a look at the route and a new stream.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
from delayapi.codec import decode_enqueue_response
from delayapi.wirefields import WireError

from delayclient.errors import Busy, Closed, DelayError, Unavailable, from_rpc, from_stream
from delayclient.producer.batch import ShardBatch
from delayclient.producer.numbering import SendAction, SendWindow
from delayclient.routing.reachability import PATIENCE_S
from delayclient.routing.routing import Cluster, QueueRoute, backoff_s

_ANSWER_TIMEOUT_S: Final = 5.0
"""No answer for this long: the node is frozen or cut off. Sending again is harmless."""
_IDLE_S: Final = 30.0


def new_producer_id() -> int:
    """A random nonzero u64: 0 means not idempotent."""
    return secrets.randbits(64) or 1


class QueueSender:
    """The way to one shard."""

    def __init__(self, cluster: Cluster, topic: str, queue: int, drained: Callable[[int], None]) -> None:
        """`drained` is called with the queue when no batch waits to be sent."""
        self.topic = topic
        self.queue = queue
        self.window: SendWindow[ShardBatch] = SendWindow(new_producer_id)
        self.failures = 0
        """Failed streams since the last stored batch."""
        self._cluster = cluster
        self._drained = drained
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None
        self._endpoint = ""
        self._route: QueueRoute | None = None
        """The queue's, when the stream was opened."""
        self._uses_fallback = False
        # The stream uses a fallback: it is left once every answer is in.
        self._leaving = False
        self._silent = False
        """The stream was given up because no answer came, though its master is the master still."""
        self._last_error = "the node does not answer"
        self._last_sign_s = self._loop.time()
        self._resume_at_s = 0.0

    @property
    def active(self) -> bool:
        """Something is unanswered, or a stream is open."""
        return self._task is not None

    @property
    def _patience_s(self) -> float:
        """Longer with each failure: a node that is only slow must not be sent all of it again and again."""
        return _ANSWER_TIMEOUT_S * float(2 ** min(self.failures, 3))

    @property
    def responsive(self) -> bool:
        """Its shard answers, as far as is known."""
        if self.failures:
            return False
        return not self.window.outstanding or self._loop.time() - self._last_sign_s < PATIENCE_S

    def add(self, batch: ShardBatch) -> None:
        """Sends a batch after all that were added before."""
        self.window.add(batch)
        self._work.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def check(self, now_s: float) -> None:
        """Gives up what is overdue, and a stream that is silent or idle. To be called a few times a second."""
        self.window.expire(now_s, self._last_error)
        self._check_drained()
        if self._call is None:
            return
        silent_s = now_s - self._last_sign_s
        if self.window.outstanding and silent_s > PATIENCE_S:
            # A frozen master says nothing, and sending again elsewhere is harmless: the numbers are the same.
            moved = self._cluster.master_changed(self.topic, self.queue, self._route)
            if moved or silent_s > self._patience_s:
                self._silent = not moved
                self._call.cancel()
            else:
                self._cluster.route_table.refresh_soon(self.topic)
        elif self.window.empty and silent_s > _IDLE_S:
            self._call.cancel()
        elif not self._leaving and self._cluster.has_direct_route(self.topic, self.queue, self._endpoint):
            self._leaving = True
            self._work.set()

    async def stop(self) -> None:
        """Ends the stream; what is not acknowledged fails."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.window.fail_all(Closed("producer"))

    async def _run(self) -> None:
        try:
            while not self.window.empty:
                self._endpoint = ""
                try:
                    self._endpoint = await self._cluster.address(self.topic, self.queue)
                    await self._stream(self._endpoint)
                except DelayError as error:
                    await self._after_failure(error)
        except Exception as error:
            # A fault of this program: those who wait hear of it now, not after the timeout.
            self.window.fail_all(DelayError(f"the producer failed: {error!r}", code="INTERNAL"))
            raise
        finally:
            self._task = None

    async def _after_failure(self, error: DelayError) -> None:
        self._last_error = str(error)
        failures, self.failures = self.failures, self.failures + 1
        try:
            await self._cluster.after_failure(self.topic, self.queue, error, failures, self._endpoint)
        except DelayError as final:
            self.window.fail_all(final)

    def _check_drained(self) -> None:
        if not self.window.backed_up:
            self._drained(self.queue)

    async def _stream(self, endpoint: str) -> None:
        """Sends and receives until the stream ends. Raises DelayError, unless it ended because it was idle."""
        call = self._call = self._cluster.stream(endpoint, "EnqueueStream")
        self._route = self._cluster.route_table.at(self.topic, self.queue)
        self._uses_fallback = self._route is not None and self._route.endpoint != endpoint
        self._leaving = self._silent = False
        self._last_sign_s = self._loop.time()
        self._resume_at_s = 0.0
        reader = asyncio.create_task(self._read(call))
        reader.add_done_callback(lambda _: self._work.set())
        try:
            await self._write(call, reader)
        finally:
            self._call = None
            call.cancel()
            reader.cancel()
            await asyncio.wait({reader})
            self.window.stream_ended()
        if self.window.empty or self._leaving:
            return
        error = None if reader.cancelled() else reader.exception()
        if isinstance(error, DelayError):
            raise error
        reason = "" if self._silent else "NOT_SERVING"
        raise Unavailable(f"{endpoint} does not answer", code="DEADLINE_EXCEEDED", reason=reason)

    async def _write(self, call: Any, reader: asyncio.Task[None]) -> None:
        while not reader.done():
            paused_s = self._resume_at_s - self._loop.time()
            if self._leaving and not self.window.outstanding:
                return
            entry = self.window.next_to_send() if paused_s <= 0 and not self._leaving else None
            if entry is None:
                self._work.clear()
                if paused_s > 0:
                    self._loop.call_later(paused_s, self._work.set)
                await self._work.wait()
                continue
            if self.window.outstanding == 1:
                self._last_sign_s = self._loop.time()
            self._check_drained()
            try:
                await call.write(entry.batch.wire(entry.producer_id, entry.number))
            except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError):
                break
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                break  # the call was cancelled, not this task
        if not reader.done():
            # The stream broke under a write; the reader is about to hear why.
            await asyncio.wait({reader}, timeout=1.0)

    async def _read(self, call: Any) -> None:
        while True:
            try:
                data = await call.read()
            except grpc.RpcError as error:
                raise self._cluster.access.judged(from_rpc(error)) from None
            if data is grpc.aio.EOF:
                raise Unavailable("the node ended the stream", code="UNAVAILABLE")
            self._last_sign_s = self._loop.time()
            try:
                answer = decode_enqueue_response(data)
            except WireError as error:
                raise Unavailable(f"an answer cannot be read: {error}", code="INTERNAL") from None
            refusal = None if answer.error is None else from_stream(answer.error)
            after = self.window.answered(answer, refusal)
            if refusal is None:
                if self.failures or self._uses_fallback:
                    self._cluster.reachability.record_success(
                        self._endpoint, self._cluster.master(self.topic, self.queue)
                    )
                self.failures = 0
            else:
                self._last_error = str(refusal)
                if after is SendAction.REROUTE:
                    raise refusal
                if after is SendAction.PAUSE:
                    self._pause(refusal)
            self._work.set()

    def _pause(self, refusal: DelayError) -> None:
        wait_s = refusal.retry_after_ms / 1000 if isinstance(refusal, Busy) else 0.0
        if not wait_s:
            wait_s = backoff_s(self.failures)
            self.failures += 1
        self._resume_at_s = self._loop.time() + wait_s
