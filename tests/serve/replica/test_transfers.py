"""Whole copies on their way: what they hold of a disk is given back however they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from delaynode.replica.context import TransferPermits
from delaynode.replica.storage import ReplicaStorage
from delaynode.replication.catch_up import CatchUpBudget
from delaynode.replication.protocol import FollowerState
from delaynode.replication.shipping import Shipping
from delaynode.replication.transport.until import wait_until
from delaynode.store.config import ShardConfig
from delaynode.store.log.files import DiskFiles
from delaynode.store.maintenance import persist
from delayregistry.model import ShardSpec

SPEC = ShardSpec(1, "orders", 0, ("n1", "n2"))


@contextmanager
def context(data: Path, files: DiskFiles) -> Iterator[Any]:
    with ThreadPoolExecutor(2) as pool:
        resources = SimpleNamespace(files=files, pool=pool, checkpoints=asyncio.Semaphore(1), fsync=True)
        yield SimpleNamespace(
            data=str(data), resources=resources, transfers=TransferPermits(), boot_ms=lambda: 7, cluster=lambda: None
        )
    files.close()


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


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
            storage.shard = persist.create(files, storage.directory, 1, "orders", 0, ShardConfig(), 1_700_000_000_000)
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
            log: Any = SimpleNamespace(written=0, end=0, epochs=(), holds_from=lambda _: True)
            links: Any = SimpleNamespace(send=lambda *_: None)
            master = Shipping(
                1, 1, log, links, pool, lambda: 0, snapshot, lambda *_, **__: None, CatchUpBudget()
            )  # fmt: skip
            master.set_replicas(["n2"])
            master.received("n2", FollowerState(1, 1, "", 0, 0, ()))
            await asyncio.sleep(0)
            master.link_down("n2")
            made.set()
            await asyncio.sleep(0.01)
            master.stop()
            await asyncio.sleep(0.01)
            busy.set()
        assert released.is_set()

    asyncio.run(main())
