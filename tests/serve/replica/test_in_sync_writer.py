"""The status in the registry: only the term writes it, and what somebody else put there is written over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from delaynode.replication.in_sync import InSync
from delaynode.replication.term.in_sync_rule import InSyncRule
from delaynode.replication.term.in_sync_writer import OVERWRITTEN_MS, InSyncWriter, WriteResult
from delaynode.replication.term.state import Term, TermState
from delaynode.replication.transport.until import wait_until
from delayregistry.model import ShardObject, ShardSpec, ShardStatus, Version

ALONE = frozenset(("c1",))
SPEC = ShardSpec(1, "orders", 0, ("n1", "n2"), master="n1", epoch=5, incarnation="p1")
OLDER = ShardStatus(5, "p1", ("c1", "c2"))


class Registry:
    """Somebody puts an older object back right after the first write; the watch shows it before the answer comes."""

    def __init__(self) -> None:
        self.status: ShardStatus | None = OLDER
        self.written: list[ShardStatus] = []
        self.writer: InSyncWriter

    async def get(self) -> ShardObject:
        return ShardObject("orders-0", Version(str(len(self.written))), SPEC, self.status)

    async def write(self, status: ShardStatus, version: Version) -> Version:
        self.written.append(status)
        first = len(self.written) == 1
        self.status = OLDER if first else status
        self.writer.on_status(self.status)
        return Version("0" if first else "1")


def test_a_status_that_is_put_back_before_the_answer_is_written_over() -> None:
    async def main() -> None:
        now, registry, in_sync, state = [0], Registry(), InSync(ALONE), TermState(serving=True)
        rule = SimpleNamespace(join=lambda: None, desired=lambda: ALONE, forget_lost=lambda: None)
        nothing: Any = lambda *names, **facts: None  # noqa: E731
        writer = registry.writer = InSyncWriter(
            Term(1, 5, "n1", "p1", "c1", 10_000, True), state, cast(Any, SimpleNamespace(members={})), in_sync,
            cast(InSyncRule, rule), registry, nothing, nothing, nothing, lambda: now[0], nothing,
        )  # fmt: skip
        assert await writer.publish_in_sync_set(ALONE) is WriteResult.WRITTEN
        now[0] += OVERWRITTEN_MS + 1
        writer.update()
        async with asyncio.timeout(10):
            await wait_until(lambda: len(registry.written) == 2, 0.001)
        assert replace(registry.written[1], revision=0) == replace(registry.written[0], revision=0)
        now[0] += OVERWRITTEN_MS + 1
        writer.update()
        await asyncio.sleep(0.01)
        assert len(registry.written) == 2
        writer.stop()

    asyncio.run(main())
