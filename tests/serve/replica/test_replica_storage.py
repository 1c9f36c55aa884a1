"""A chosen copy applies its log before it leads: what takes much memory of that takes the node's turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from delayapi.units import HOUR_MS
from delaynode.replica.context import ReplicaContext
from delaynode.replica.storage import ReplicaStorage
from delaynode.replication.transport.until import wait_until
from delaynode.store.maintenance import persist
from delaynode.store.shard import Shard
from delayregistry.model import ShardSpec

from tests.serve.support.hosts import CONFIG, Node, node


def opened(made: Node) -> ReplicaStorage:
    """A copy that has host "a"'s log, and has applied none of it."""
    master, uid = made.hosts["a"], made.hosts["a"].shard.identity.uid
    context = SimpleNamespace(resources=master.resources, data=str(made.directory))
    storage = ReplicaStorage(ShardSpec(uid, "t", 0, ("n0",)), cast(ReplicaContext, context), lambda *_, **__: None)
    files, config = master.resources.files, replace(CONFIG, flush_units=10)
    shard = persist.create(files, storage.directory, uid, "t", 0, config, master.shard.index.watermark.due)
    shard.log.receive(memoryview(master.shard.log.read_raw(0, 1 << 20)))
    batch = shard.log.next_batch(sync=True)
    assert batch is not None
    batch.run()
    shard.log.finish(batch)
    storage.shard = shard
    return storage


def test_a_copy_that_applies_its_log_flushes_before_its_units_are_too_many_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with node(tmp_path) as made:
            for _ in range(30):
                await made.send("a", [made.clock.now_ms() + HOUR_MS] * 3)
            storage = opened(made)
            shard, resources, most, turns = cast(Shard, storage.shard), storage.context.resources, 0, 0
            begin = persist.begin_checkpoint

            def begun(*args: Any) -> persist.CheckpointJob:
                nonlocal most, turns
                assert resources.checkpoints.locked()
                if args[2] is shard:
                    most, turns = max(most, shard.index.unflushed), turns + 1
                return begin(*args)

            monkeypatch.setattr(persist, "begin_checkpoint", begun)
            async with resources.checkpoints:
                applying = asyncio.create_task(storage.apply_all())
                await wait_until(lambda: shard.index.unflushed >= shard.config.max_unflushed, 0.01)
                await asyncio.sleep(0.1)
                assert not applying.done()
            frames = await asyncio.wait_for(applying, 30)
            assert shard.applied == shard.log.end
            assert shard.index.pending == 90
            assert frames >= 30
            assert turns >= 3
            assert shard.config.max_unflushed <= most < shard.config.max_unflushed + 3

    asyncio.run(main())
