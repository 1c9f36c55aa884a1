"""The end of a master's term: who waits is told, and nothing waits for what is never committed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from delaynode.replication.transport.until import wait_until
from delaynode.store.errors import Refused

from tests.serve.support.hosts import node


def test_a_checkpoint_that_stood_in_line_does_not_outlast_the_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to write what was appended meanwhile and is not committed any more."""

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            due = made.clock.now_ms() + 60_000
            async with host.resources.checkpoints:
                await made.send("a", [due])
                await wait_until(lambda: bool(host.maintenance._writing), 0.01)
                (checkpoint,) = host.maintenance._writing
                await asyncio.sleep(0.1)
                monkeypatch.setattr(host.resources.syncer, "mark", lambda writer: None)  # nothing more is written
                sending = asyncio.create_task(made.send("a", [due]))
                await wait_until(lambda: host.shard.log_end > host.shard.committed_offset, 0.001)
                host.stop_serving("another is chosen")
            assert not checkpoint.done()
            try:
                await asyncio.wait_for(host.wind_down("another is chosen"), 10)
            finally:
                checkpoint.cancel()  # or the node's end would wait for it, too
            for waiting in (checkpoint, sending, asyncio.create_task(host.wait_log_committed(host.shard.log_end))):
                with pytest.raises(Refused, match="another is chosen"):
                    await waiting
            monkeypatch.undo()
            assert not host.resources.checkpoints.locked(), "others may write theirs"

    asyncio.run(main())
