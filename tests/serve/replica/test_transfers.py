"""Whole copies on their way: what they hold of a disk is given back however they end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delaynode.replica.context import TransferPermits
from delaynode.replica.follower import ReplicaFollower
from delaynode.replica.local_copy import LocalCopy
from delaynode.replica.replica import Replica
from delaynode.replica.role import ReplicaRole
from delaynode.replica.storage import ReplicaStorage
from delaynode.replication import shipping
from delaynode.replication.catch_up import CatchUpBudget
from delaynode.replication.protocol import Bootstrap, Follow, FollowerState, FollowRefused, Message, SnapshotChunk
from delaynode.replication.shipping import Shipping
from delaynode.replication.transport.until import wait_until
from delaynode.store.config import ShardConfig
from delaynode.store.errors import Refused
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance import persist
from delaynode.store.maintenance.snapshot import CHUNK_BYTES, sealed_chunk
from delaynode.store.maintenance.stored_copy import disk_bytes
from delayregistry.model import ShardObject, ShardSpec, Version

from tests.serve.replica.test_follower import EPOCH, Connection, Leases

NOW_MS = 1_700_000_000_000
SPEC = ShardSpec(1, "orders", 0, ("n1", "n2"))
FILES = [[f"log/{0:020d}", 2 * CHUNK_BYTES], ["checkpoint", CHUNK_BYTES]]
MANIFEST = json.dumps({"version": 7, "uid": 1, "log_offset": 1, "horizon_ms": 1, "files": FILES}).encode()
PIECES = [
    SnapshotChunk(1, EPOCH, file, at, sealed_chunk(bytes(CHUNK_BYTES)))
    for file, at in ((0, 0), (0, CHUNK_BYTES), (1, 0))
]


@contextmanager
def context(data: Path, files: DiskFiles) -> Iterator[Any]:
    with ThreadPoolExecutor(2) as pool:
        resources = SimpleNamespace(files=files, pool=pool, checkpoints=asyncio.Semaphore(1), fsync=True)
        resources.check_copy = lambda size, freed: None
        yield SimpleNamespace(
            data=str(data), resources=resources, transfers=TransferPermits(), boot_ms=lambda: 7, cluster=lambda: None
        )
    files.close()


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def master_of(pool: ThreadPoolExecutor, snapshot: Any, send: Any) -> Shipping:
    """It asks n2 for what it has of the shard."""
    log: Any = SimpleNamespace(written=0, end=0, epochs=())
    peers: Any = SimpleNamespace(send=send)
    master = Shipping(1, EPOCH, log, peers, pool, lambda: 0, snapshot, lambda *_, **__: None, CatchUpBudget())
    master.set_replicas(["n2"])
    return master


def test_a_snapshot_is_released_when_the_term_ends_while_its_files_are_linked(tmp_path: Path) -> None:
    """Its hard links used to stay below .snapshots until the process ended."""

    class Slow(DiskFiles):
        linking, go_on = threading.Event(), threading.Event()

        def link(self, path: str, other: str) -> None:
            super().link(path, other)
            self.linking.set()
            self.go_on.wait(10)

    async def main() -> None:
        files, snapshots = Slow(), tmp_path / "shards" / ".snapshots"
        with context(tmp_path, files) as node:
            storage = ReplicaStorage(SPEC, node, lambda *_, **__: None)
            storage.shard = persist.create(files, storage.directory, 1, "orders", 0, ShardConfig(), NOW_MS)
            holding = asyncio.create_task(storage.hold_snapshot(None))
            await wait_until(files.linking.is_set, 0.01)
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            assert holding.cancelled()
            assert files_below(snapshots)
            files.go_on.set()
            await wait_until(lambda: not files_below(snapshots), 0.01)

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_snapshot_is_released_when_the_term_ends_before_a_thread_is_free_for_that() -> None:
    """The member's link is lost while its snapshot is made; then the term ends."""

    async def main() -> None:
        busy, made, released = threading.Event(), asyncio.Event(), threading.Event()

        async def snapshot() -> Any:
            await made.wait()
            return SimpleNamespace(log_offset=0, manifest=b"", release=released.set)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(busy.wait)
            master = master_of(pool, snapshot, lambda *_: None)
            master.received("n2", FollowerState(1, EPOCH, "", 0, 0, ()))
            await asyncio.sleep(0)
            master.link_down("n2")
            made.set()
            await asyncio.sleep(0.01)
            master.stop()
            await asyncio.sleep(0.01)
            busy.set()
        assert released.is_set()

    asyncio.run(main())


class Fetching:
    """A node without a copy of the shard, which its master sends one."""

    def __init__(self, node: Any) -> None:
        self.data, self.connection = Path(node.data), Connection()
        self.copy = LocalCopy(ShardObject("orders-0", Version("1"), SPEC), node, lambda *_, **__: None, lambda: None)
        self.copy.become(ReplicaRole.ABSENT)
        node.replica_leases = Leases()
        self.follower = ReplicaFollower(self.copy, node, lambda *_, **__: None)

    async def tell(self, *messages: Message) -> None:
        for message in messages:
            await self.follower.handle(self.connection, message)

    async def begin(self) -> None:
        """It has one piece of the log."""
        await self.tell(Follow(1, EPOCH), Bootstrap(1, EPOCH, MANIFEST), PIECES[0])
        assert files_below(self.data) == [f"shards/.incoming/orders-0-{1:016x}/log/{0:020d}"]

    def has_nothing_left(self) -> bool:
        return not files_below(self.data) and self.copy.storage.fetching is None


def test_what_has_come_of_a_copy_goes_with_the_replica(tmp_path: Path) -> None:
    async def main() -> None:
        with context(tmp_path, DiskFiles()) as node:
            fetching = Fetching(node)
            await fetching.begin()
            await fetching.copy.discard("no replica is wanted here")
            assert fetching.has_nothing_left()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["a piece is broken", "what has come is no copy"])
def test_what_has_come_of_a_copy_goes_when_the_transfer_fails(tmp_path: Path, what: str) -> None:
    """It used to stay until the master offered the copy again: a disk that it had filled stayed full."""

    async def main() -> None:
        with context(tmp_path, DiskFiles()) as node:
            fetching = Fetching(node)
            await fetching.begin()
            broken = SnapshotChunk(1, EPOCH, 0, CHUNK_BYTES, bytes(CHUNK_BYTES))
            await fetching.tell(*([broken] if what == "a piece is broken" else PIECES[1:]))
            refused = fetching.connection.replies[-1]
            assert isinstance(refused, FollowRefused)
            assert not refused.damaged
            assert fetching.has_nothing_left()

    asyncio.run(main())


def test_what_has_come_of_a_copy_goes_when_the_link_to_its_master_is_lost(tmp_path: Path) -> None:
    """None of it is used again, and the master may never come back."""

    async def main() -> None:
        with context(tmp_path, DiskFiles()) as node:
            fetching = Fetching(node)
            await fetching.begin()
            replica: Any = Replica.__new__(Replica)
            replica.local, replica._follower, replica._wakeup = fetching.copy, fetching.follower, asyncio.Event()
            replica.leadership = SimpleNamespace(ended=None, is_chosen=lambda: False, leader=None)
            replica.origin_lost(fetching.connection)
            assert replica._wakeup.is_set()
            await replica._step()
            assert fetching.has_nothing_left()

    asyncio.run(main())


def test_a_copy_for_which_there_is_no_room_is_refused_and_the_one_that_is_here_stays(tmp_path: Path) -> None:
    """It used to be thrown away, and the new one to fill the disk: then every shard of the node stopped."""

    async def main() -> None:
        with context(tmp_path, DiskFiles()) as node:
            fetching, asked = Fetching(node), []

            def check_copy(size: int, freed: int) -> None:
                asked.append((size, freed))
                raise Refused("DISK_FULL", "the disk has no room for a copy of 2 MiB")

            storage, node.resources.check_copy = fetching.copy.storage, check_copy
            shard = persist.create(node.resources.files, storage.directory, 1, "orders", 0, ShardConfig(), NOW_MS)
            storage.shard, here = shard, files_below(tmp_path)
            await fetching.tell(Follow(1, EPOCH), Bootstrap(1, EPOCH, MANIFEST))
            assert asked == [(3 * CHUNK_BYTES, disk_bytes(node.resources.files, storage.directory))]
            refused = fetching.connection.replies[-1]
            assert isinstance(refused, FollowRefused)
            assert (refused.damaged, refused.reason) == (
                False, "transfer not begun: the disk has no room for a copy of 2 MiB",
            )  # fmt: skip
            assert (storage.shard, files_below(tmp_path), storage.fetching) == (shard, here, None)

    asyncio.run(main())


def test_a_copy_that_was_refused_is_offered_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each offer links all files of the master's copy, and logs four lines: a disk may be full for days."""
    monkeypatch.setattr(shipping, "FOLLOW_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(shipping, "OFFER_RETRY_SECONDS", 0.3)

    async def main() -> None:
        sent: list[type[Message]] = []

        async def snapshot() -> Any:
            return SimpleNamespace(log_offset=0, manifest=b"", release=lambda: None)

        with ThreadPoolExecutor(1) as pool:
            master = master_of(pool, snapshot, lambda _, message: sent.append(type(message)))
            master.received("n2", FollowRefused(1, EPOCH, 0, False, "this node has no copy of the shard yet"))
            await asyncio.sleep(0.1)
            assert sent == [Follow, Follow]
            master.received("n2", FollowerState(1, EPOCH, "", 0, 0, ()))
            await asyncio.sleep(0.01)
            master.received("n2", FollowRefused(1, EPOCH, 1, False, "transfer not begun"))
            await asyncio.sleep(0.1)
            assert sent == [Follow, Follow, Bootstrap]
            await wait_until(lambda: len(sent) == 4, 0.01)
            assert sent[-1] is Follow
            master.stop()

    asyncio.run(asyncio.wait_for(main(), 5))
