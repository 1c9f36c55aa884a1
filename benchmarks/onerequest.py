"""What a request of one message costs beside its frame: `python -m benchmarks.onerequest [--directory DIR]`.

    call     grpc.aio alone: a handler that answers at once, called by another process
    gate     what bounds the memory of requests: limits.budget, without gRPC
    round    N shards with a frame of one message each are written and synced: each in its own log by the Python threads
             of replica/hosts/sync_threads.py, or by compiled code (where that is installed), or all in one file with
             one write and one sync

Processor time is each part's own, so other work on the machine changes it little; time on the clock is not.
"""

from __future__ import annotations

import argparse
import asyncio
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

import grpc
from delaynode.limits.budget import Budget, ReadingGate
from delaynode.node.node import WRITE_THREADS
from delaynode.store.log.batches import WriteBatch
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.files import DiskFiles
from delaynode.store.log.frames import FrameKind
from delaynode.store.log.segments import SegmentedFile

try:
    from delayedge import Writes
except ImportError:
    Writes = None  # type: ignore[assignment,misc]

REQUEST = bytes(300)
FRAME = (bytes(36), bytes(256))  # an APPEND's columns and record
THREADS = 4
MIB = 1 << 20
SEGMENT_BYTES = 64 * MIB
CALLS, CALLERS = 2_000, 20
TURNS = 7

CLIENT = f"""
import asyncio, grpc, sys
async def main():
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        call = channel.unary_unary("/t/call")
        async def some():
            for _ in range({CALLS // CALLERS}):
                await call(bytes({len(REQUEST)}))
        await asyncio.gather(*(some() for _ in range({CALLERS})))
asyncio.run(main())
"""


async def grpc_call() -> float:
    """Microseconds of processor time of the event loop's thread for each call."""

    async def answer(_: object, context: grpc.aio.ServicerContext) -> bytes:
        await context.read()
        return bytes(40)

    server = grpc.aio.server()
    handlers = {"call": grpc.stream_unary_rpc_method_handler(answer)}  # as the node's are, see server/dispatch.py
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    began = time.thread_time()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, f"127.0.0.1:{port}")
    if await process.wait():
        raise subprocess.CalledProcessError(process.returncode or 1, "the client")
    spent = time.thread_time() - began
    await server.stop(None)
    return spent / CALLS * 1e6


async def gate() -> float:
    """The same for one request through the gate and the budget."""
    reading, budget = ReadingGate(), Budget("of messages", 64 * MIB, 16 * MIB)
    loop = asyncio.get_running_loop()

    async def arrives() -> bytes:
        came: asyncio.Future[bytes] = loop.create_future()
        loop.call_soon(came.set_result, REQUEST)
        return await came

    async def request() -> None:
        data = await reading.read(arrives)
        budget.release(await budget.acquire_soon("peer", len(data)))

    async def bare() -> None:
        await arrives()

    spent = []
    for work in (request, bare):
        began = time.thread_time()
        for _ in range(CALLS // CALLERS):
            await asyncio.gather(*(work() for _ in range(CALLERS)))
        spent.append((time.thread_time() - began) / CALLS * 1e6)
    return spent[0] - spent[1]


class Shards:
    """CommitLogs of `count` shards, and one file beside them."""

    def __init__(self, directory: Path, count: int) -> None:
        self.files = DiskFiles()
        self.logs = [CommitLog.open(self.files, str(directory / str(n)), n + 1, SEGMENT_BYTES) for n in range(count)]
        self.journal = SegmentedFile(self.files, str(directory / "journal"), SEGMENT_BYTES)

    def batches(self) -> list[WriteBatch]:
        """The next batch of each, a frame of one message."""
        found = []
        for log in self.logs:
            log.propose(FrameKind.APPEND, 1, 1, 0, 0, FRAME)
            batch = log.next_batch(sync=True)
            assert batch is not None, "a frame was proposed"
            found.append(batch)
        return found

    def own_files(self, pool: ThreadPoolExecutor) -> None:
        batches = self.batches()

        def lane(first: int) -> None:
            for batch in batches[first::THREADS]:
                batch.run()

        list(pool.map(lane, range(THREADS)))
        for batch in batches:
            batch.log.finish(batch)

    def compiled(self, writes: Writes) -> None:
        batches = self.batches()
        for token, batch in enumerate(batches):
            write = batch.begin_direct()
            assert write is not None, "the file is there"
            writes.submit(token, *write)
        left = len(batches)
        while left:
            select.select([writes], [], [])
            for token, write_errno, sync_errno, _ in writes.take():
                batches[token].end_direct(write_errno, sync_errno)
                batches[token].log.finish(batches[token])
                left -= 1

    def one_file(self) -> None:
        batches = self.batches()
        parts = [[frame.seal(batch.log.synced), *frame.payload] for batch in batches for frame in batch.frames]
        self.journal.append(list(chain.from_iterable(parts)), sum(batch.end - batch.start for batch in batches))
        self.journal.sync()
        for batch in batches:
            batch.log.finish(batch)


def rounds(directory: Path, count: int) -> None:
    shards = Shards(directory / str(count), count)
    writes = Writes(WRITE_THREADS) if Writes is not None else None
    with ThreadPoolExecutor(THREADS) as pool:
        ways: dict[str, Callable[[], None]] = {"own files": lambda: shards.own_files(pool)}
        if writes is not None:
            ways["own files, compiled"] = partial(shards.compiled, writes)
        ways["one file"] = shards.one_file
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        shards.own_files(pool)  # makes the files
        shards.one_file()
        for _ in range(TURNS):
            for name, work in ways.items():
                began, cpu = time.perf_counter(), time.process_time()
                work()
                found[name].append(((time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3))
    if writes is not None:
        writes.close()
    shards.files.close()
    for name, turns in found.items():
        wall_ms, cpu_ms = map(median, zip(*turns, strict=True))
        print(f"round: {count:,} shards, {name}: {wall_ms:.2f} ms, {cpu_ms:.2f} ms of processor time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where the files of the rounds go: on the disk that is meant")
    where = parser.parse_args().directory
    print(f"call: {median(asyncio.run(grpc_call()) for _ in range(3)):.0f} us of processor time", flush=True)
    print(f"gate: {median(asyncio.run(gate()) for _ in range(3)):.0f} us of processor time", flush=True)
    with tempfile.TemporaryDirectory(dir=where) as directory:
        for count in (8, 200, 1_000):
            rounds(Path(directory), count)


if __name__ == "__main__":
    main()
