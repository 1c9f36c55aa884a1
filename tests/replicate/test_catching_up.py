"""A node that was away is behind in all of its shards at once: what is on its way to it is bounded, and all arrive."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from delaynode.replication import shipping
from delaynode.replication.catch_up import MIN_BYTES, CatchUpBudget
from delaynode.replication.peer_replica import SnapshotSource
from delaynode.replication.protocol import Ack, FollowerState, Frames, Message
from delaynode.replication.shipping import READ_BYTES, Shipping
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


@contextmanager
def masters(node: SlowNode, sizes: list[int], budget: CatchUpBudget) -> Iterator[list[CommitLog]]:
    """One for each size, whose log it is."""
    logs = [log_of(uid, size) for uid, size in enumerate(sizes)]
    with ThreadPoolExecutor(2) as pool:
        for uid, log in enumerate(logs):
            made = Shipping(
                uid, EPOCH, log, node, pool, lambda: 0, no_snapshot, lambda event, **fields: None, budget
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
