"""A node that was away is behind in all of its shards at once: what is on its way to it is bounded, and all arrive.

One whose disk hangs answers heartbeats all the same. What its master keeps for it is bounded too.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from delaynode.replica.context import MAX_LARGE, SMALL_BYTES, TransferPermits
from delaynode.replication import shipping
from delaynode.replication.catch_up import MIN_BYTES, CatchUpBudget
from delaynode.replication.peer_replica import Phase, SnapshotSource
from delaynode.replication.protocol import Ack, Bootstrap, ChunkRequest, Follow, FollowerState, Frames, Message
from delaynode.replication.shipping import READ_BYTES, STUCK_MS, Shipping
from delaynode.replication.transport.until import wait_until
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.log.frames import FrameKind

from tests.store.support.memory_files import MemoryFiles

MIB = 1 << 20
FRAME_BYTES = 50_000
EPOCH = 1


class SlowNode:
    """Takes in all that it is sent; stores it when it is told to. Implements Peers for those that send to it."""

    def __init__(self) -> None:
        self.masters: dict[int, Shipping] = {}
        self.now_ms = 0
        self.told: list[Message] = []  # all but frames
        self.unstored: deque[Frames] = deque()
        self.held = self.most = 0
        self.ends: dict[int, int] = {}

    def want(self, nodes: Iterable[str]) -> None: ...

    def drop(self, node: str) -> None: ...

    def backlog_bytes(self, node: str) -> int:
        return 0

    def send(self, node: str, message: Message) -> None:
        if isinstance(message, Frames):
            self.unstored.append(message)
            self.held += sum(map(len, message.data))
            self.most = max(self.most, self.held)
        else:
            self.told.append(message)

    def store_one(self) -> None:
        if self.unstored:
            self.store(self.unstored.popleft())

    def store(self, frames: Frames) -> None:
        size = sum(map(len, frames.data))
        self.held -= size
        end = self.ends[frames.uid] = frames.offset + size
        self.masters[frames.uid].received("away", Ack(frames.uid, EPOCH, end, 0))


def log_of(uid: int, size: int) -> CommitLog:
    log = CommitLog.open(MemoryFiles(random.Random(uid)), "/log", uid, 64 * MIB)
    write(log, FrameKind.EPOCH)
    while log.end < size:
        write(log, FrameKind.TICK)
    return log


def write(log: CommitLog, kind: FrameKind, master: Shipping | None = None) -> None:
    log.propose(kind, EPOCH, 1, 0, 0, (bytes(FRAME_BYTES),))
    batch = log.next_batch(sync=True)
    assert batch is not None
    if master is not None:
        batch.on_sealed = master.sealed
    batch.run()
    log.finish(batch)


async def no_snapshot() -> SnapshotSource:
    raise AssertionError("nobody needs a whole copy")


class HeldFiles:
    """A whole copy that is held for a transfer, and its permit. Implements SnapshotSource."""

    manifest, log_offset = b"", 100

    def __init__(self, permit: asyncio.Semaphore) -> None:
        self._permit, self._loop = permit, asyncio.get_running_loop()

    def read(self, file: int, offset: int, length: int) -> bytes:
        return bytes(length)

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._permit.release)


@contextmanager
def masters(
    node: SlowNode,
    sizes: list[int],
    budget: CatchUpBudget,
    snapshot: Callable[[], Coroutine[Any, Any, SnapshotSource]] = no_snapshot,
) -> Iterator[list[CommitLog]]:
    """One for each size, whose log it is."""
    logs = [log_of(uid, size) for uid, size in enumerate(sizes)]
    with ThreadPoolExecutor(2) as pool:
        for uid, log in enumerate(logs):
            made = Shipping(
                uid, EPOCH, log, node, pool, lambda: node.now_ms, snapshot, lambda event, **fields: None, budget
            )  # fmt: skip
            made.set_replicas(["away"])
            node.masters[uid] = made
        yield logs
        for made in node.masters.values():
            made.stop()


def test_many_shards_that_catch_up_share_a_budget_and_all_finish() -> None:
    async def main() -> None:
        node, budget = SlowNode(), CatchUpBudget(4 * MIB)
        with masters(node, [3 * MIB] * 40, budget) as logs:
            for uid, master in node.masters.items():
                master.received("away", FollowerState(uid, EPOCH, "copy", 0, 0, ()))
            await wait_until(lambda: node.held >= 4 * MIB - READ_BYTES, 0.001)  # the budget is used
            await asyncio.sleep(0.3)  # nothing is stored yet: this is all that comes
            while any(node.ends.get(uid) != log.end for uid, log in enumerate(logs)):
                node.store_one()
                await asyncio.sleep(0)
            assert node.most <= 4 * MIB + 40 * (MIN_BYTES + FRAME_BYTES + 64)
            await asyncio.sleep(0.01)
            assert budget.used("away") == 0

    asyncio.run(main())


def test_a_shard_that_is_up_to_date_does_not_wait_for_those_that_catch_up() -> None:
    """Its messages would not be committed until others have come from the disk of a node that may hang."""

    async def main() -> None:
        node = SlowNode()
        with masters(node, [3 * MIB, 3 * MIB, 100], CatchUpBudget(MIB)) as logs:
            live, log = node.masters[2], logs[2]
            live.received("away", FollowerState(2, EPOCH, "copy", log.end, 0, ((EPOCH, 0),)))
            live.received("away", Ack(2, EPOCH, log.end, 0))
            for uid in (0, 1):
                node.masters[uid].received("away", FollowerState(uid, EPOCH, "copy", 0, 0, ()))
            await wait_until(lambda: node.held >= MIB - READ_BYTES, 0.001)  # the budget is used up; nothing is stored
            for _ in range(20):
                write(log, FrameKind.TICK, live)
                live.on_written()
                await wait_until(lambda: live.members["away"].next == log.end, 0.001)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_what_a_link_that_is_gone_had_on_its_way_is_given_back() -> None:
    async def main() -> None:
        node, budget = SlowNode(), CatchUpBudget(2 * MIB)
        with masters(node, [3 * MIB] * 4, budget) as logs:
            for again in range(3):
                for uid, master in node.masters.items():
                    master.received("away", FollowerState(uid, EPOCH, "copy", 0, 0, ()))
                await asyncio.sleep(0.01 * again)  # also while it reads
                for master in node.masters.values():
                    master.link_down("away")
                assert budget.used("away") == 0
                await asyncio.sleep(0.05)
                assert budget.used("away") == 0
            assert len(logs) == len(node.masters)

    asyncio.run(main())


def test_the_least_is_smaller_than_what_one_read_brings() -> None:
    assert MIN_BYTES < READ_BYTES < shipping.WINDOW_BYTES


# ---------------------------------------------------------------- a disk that hangs
def test_a_hung_slave_holds_the_log_only_while_a_failover_could_choose_it() -> None:
    async def main() -> None:
        node = SlowNode()
        with masters(node, [3 * MIB], CatchUpBudget()) as (log,):
            master = node.masters[0]
            master.received("away", FollowerState(0, EPOCH, "copy", 0, 0, ()))
            await wait_until(lambda: len(node.unstored) == 3, 0.001)
            node.store_one()
            stored = node.ends[0]
            node.now_ms += STUCK_MS
            assert master.needed_from() == stored < log.end
            node.now_ms += 1
            assert master.needed_from() == log.end
            master.replaceable = lambda replica_id: replica_id != "copy"  # it is counted
            assert master.needed_from() == stored

    asyncio.run(main())


def test_a_slow_slave_holds_the_log_however_long_it_takes() -> None:
    async def main() -> None:
        node = SlowNode()
        with masters(node, [3 * MIB], CatchUpBudget()) as _:
            master = node.masters[0]
            master.received("away", FollowerState(0, EPOCH, "copy", 0, 0, ()))
            for _ in range(3):
                await wait_until(lambda: bool(node.unstored), 0.001)
                node.now_ms += STUCK_MS
                node.store_one()
                node.now_ms += STUCK_MS
                assert master.needed_from() == node.ends[0]
            assert node.ends[0] > 2 * MIB

    asyncio.run(main())


def test_a_hung_slave_that_goes_on_is_offered_the_files_for_the_log_that_was_freed() -> None:
    async def main() -> None:
        node = SlowNode()
        with masters(node, [3 * MIB], CatchUpBudget(MIB)) as (log,):
            master = node.masters[0]
            master.received("away", FollowerState(0, EPOCH, "copy", 0, 0, ()))
            await wait_until(lambda: node.held >= MIB - READ_BYTES, 0.001)  # the budget is used
            node.now_ms += STUCK_MS + 1
            log.begin_segment()
            write(log, FrameKind.TICK)
            assert master.needed_from() == log.end
            log.file.drop([0])
            node.told.clear()
            while node.unstored:
                node.store_one()
            await wait_until(lambda: bool(node.told), 0.001)
            assert isinstance(node.told[0], Follow)
            assert master.members["away"].phase is Phase.ASKED

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_hung_receiver_gives_its_transfer_and_the_log_back_and_begins_anew_when_it_answers() -> None:
    async def main() -> None:
        permits = TransferPermits()

        async def hold() -> SnapshotSource:
            permit = permits.permit(SMALL_BYTES + 1)
            await permit.acquire()
            return HeldFiles(permit)

        node = SlowNode()
        with masters(node, [MIB] * (MAX_LARGE + 1), CatchUpBudget(), hold) as logs:

            def offered(uid: int) -> int:
                return sum(isinstance(told, Bootstrap) and told.uid == uid for told in node.told)

            def wait_longer(ms: int) -> None:
                node.now_ms += ms
                for master in node.masters.values():
                    master.end_stuck_transfers()

            hung, slow, late = node.masters.values()
            for uid, master in node.masters.items():
                master.received("away", FollowerState(uid, EPOCH, "", 0, 0, ()))
                await asyncio.sleep(0.01)
            assert [offered(uid) for uid in node.masters] == [1, 1, 0]
            for _ in range(2):
                slow.received("away", ChunkRequest(1, EPOCH, 0, 0, 1))
                wait_longer(STUCK_MS)
            assert hung.needed_from() == logs[0].end
            assert slow.needed_from() == HeldFiles.log_offset
            await wait_until(lambda: offered(2) == 1, 0.001)
            assert hung.members["away"].phase is Phase.ASKED
            late.link_down("away")
            hung.received("away", FollowerState(0, EPOCH, "", 0, 0, ()))
            await wait_until(lambda: offered(0) == 2, 0.001)

    asyncio.run(asyncio.wait_for(main(), 10))
