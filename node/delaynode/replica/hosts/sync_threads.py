"""Sync rounds: dirty shards' logs are written and flushed together by a few threads, then their callers answered."""

from __future__ import annotations

import asyncio
import threading
import time
from queue import SimpleQueue
from typing import Protocol

from delaynode.store.log.commit_log import WriteBatch


class Writer(Protocol):
    """A shard's host, as the syncer sees it."""

    def next_batch(self) -> WriteBatch | None: ...

    def on_written(self, batch: WriteBatch) -> None:
        """The batch is on disk (or, with Async, in the page cache)."""

    def on_write_failed(self, error: Exception) -> None: ...


Round = list[tuple[Writer, WriteBatch]]


class Syncer:
    """`lanes` rounds run at once; what becomes dirty meanwhile shares the next one (group commit).

    Threads of its own rather than an executor: a round costs one wake-up there and one here, and there are thousands
    a second.
    """

    def __init__(self, lanes: int = 4) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Round | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run_thread, name=f"sync-{n}", daemon=True) for n in range(lanes)]
        self._free = lanes
        self._dirty: dict[Writer, None] = {}  # an ordered set
        self._busy: dict[Writer, float] = {}  # since when, time.monotonic()
        self._starting = False
        self._quiet: asyncio.Future[None] | None = None  # close() waits for it
        for thread in self._threads:
            thread.start()

    def mark(self, writer: Writer) -> None:
        """The writer has frames to write. Cheap; call it after each proposal."""
        self._dirty[writer] = None
        if self._free and not self._starting and writer not in self._busy:
            self._starting = True
            self._loop.call_soon(self._start)  # after this callback: what else it proposes goes along

    def busy(self, writer: Writer) -> bool:
        """Whether something of the writer is being written."""
        return writer in self._busy

    def busy_seconds(self, writer: Writer) -> float:
        """How long its round under way has taken so far; 0 when there is none."""
        since = self._busy.get(writer)
        return 0.0 if since is None else time.monotonic() - since

    def oldest_seconds(self) -> float:
        """How long the oldest round under way has taken so far; 0 when there is none."""
        return time.monotonic() - min(self._busy.values()) if self._busy else 0.0

    def _start(self) -> None:
        self._starting = False
        waiting = [writer for writer in self._dirty if writer not in self._busy]
        while waiting and self._free:
            share = -(-len(waiting) // self._free)
            chosen, waiting = waiting[:share], waiting[share:]
            for writer in chosen:
                del self._dirty[writer]
            batches = [(writer, batch) for writer in chosen if (batch := writer.next_batch()) is not None]
            if batches:
                self._free -= 1
                self._busy.update(dict.fromkeys((writer for writer, _ in batches), time.monotonic()))
                self._work.put(batches)
        self._notify_quiet()

    def _run_thread(self) -> None:
        while (batches := self._work.get()) is not None:
            errors: list[Exception | None] = []
            for _, batch in batches:
                try:
                    batch.run()
                    errors.append(None)
                except Exception as error:  # whatever went wrong, this copy must not go on: its host decides
                    errors.append(error)
            self._loop.call_soon_threadsafe(self._done, batches, errors)

    def _done(self, batches: Round, errors: list[Exception | None]) -> None:
        self._free += 1
        for writer, _ in batches:
            self._busy.pop(writer, None)
        for (writer, batch), failure in zip(batches, errors, strict=True):
            if failure is not None:
                writer.on_write_failed(failure)
                continue
            try:
                writer.on_written(batch)
            except Exception as error:  # one shard's trouble must not keep the others from their answers
                writer.on_write_failed(error)
        self._start()

    def _notify_quiet(self) -> None:
        if self._quiet is not None and not self._busy and not self._quiet.done():
            self._quiet.set_result(None)

    async def close(self) -> None:
        """Wait for the rounds under way."""
        while self._busy or self._starting:
            self._quiet = self._loop.create_future()
            await self._quiet
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
