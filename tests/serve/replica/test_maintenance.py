"""Maintenance's heavy jobs: one at a time on a node, and one shard's trouble is not the others'."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from pathlib import Path

import pytest
from delaynode.replication.transport.until import wait_until
from delaynode.store.errors import Refused
from delaynode.store.maintenance.persist import CheckpointJob

from tests.serve.support.hosts import node


def test_a_shard_that_cannot_commit_does_not_keep_others_from_their_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slave went while its checkpoint stood in line, and the registry is away: frames came that can't commit."""

    async def main() -> None:
        async with node(tmp_path) as made:
            stuck, other = made.hosts["a"], made.hosts["b"]
            due = made.clock.now_ms() + 60_000
            syncer = stuck.resources.syncer
            mark = syncer.mark
            async with stuck.resources.checkpoints:
                await made.send("a", [due])
                checkpoint = asyncio.create_task(stuck.maintenance.checkpoint(copy_wheels=False))
                await asyncio.sleep(0.1)
                monkeypatch.setattr(syncer, "mark", lambda writer: None if writer is stuck else mark(writer))
                sending = asyncio.create_task(made.send("a", [due]))
                await wait_until(lambda: stuck.shard.log_end > stuck.shard.committed_offset, 0.001)
            before = stuck.shard.checkpointed
            await asyncio.wait_for(other.maintenance.checkpoint(copy_wheels=False), 10)
            assert not checkpoint.done()
            assert stuck.shard.index.unflushed == 2, "nothing of it is lost"
            monkeypatch.undo()
            syncer.mark(stuck)
            await asyncio.wait_for(asyncio.gather(checkpoint, sending), 10)
            assert stuck.shard.checkpointed > before

    asyncio.run(main())


def test_new_messages_wait_while_as_many_units_as_may_wait_are_being_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until their flush has ended they are in memory, like those that wait for the next."""
    begun, go_on = threading.Event(), threading.Event()
    run = CheckpointJob.run

    def held(job: CheckpointJob) -> None:
        begun.set()
        assert go_on.wait(30)
        run(job)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            async with host.resources.checkpoints:
                await made.send("a", [made.clock.now_ms() + 60_000] * 2)
                assert host.shard.index.unflushed == host.shard.config.max_unflushed
                monkeypatch.setattr(CheckpointJob, "run", held)
                waiting = asyncio.create_task(host.maintenance.wait_room())
            await wait_until(begun.is_set, 0.01)
            await asyncio.sleep(0.05)
            assert not waiting.done()
            go_on.set()
            await asyncio.wait_for(waiting, 10)
            assert not host.maintenance.full

    asyncio.run(main())


def test_a_node_that_stops_while_a_term_ends_writes_no_second_checkpoint_beside_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk hangs in a checkpoint: the replica's worker waits for it, and is cancelled as the node stops."""
    begun, go_on, running, most = threading.Event(), threading.Event(), [0], [0]
    run = CheckpointJob.run

    def held(job: CheckpointJob) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        begun.set()
        assert go_on.wait(30)
        run(job)
        running[0] -= 1

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            await made.send("a", [made.clock.now_ms() + 60_000])
            monkeypatch.setattr(CheckpointJob, "run", held)
            checkpoint = asyncio.create_task(host.maintenance.checkpoint(copy_wheels=False))
            await wait_until(begun.is_set, 0.01)
            worker = asyncio.create_task(host.wind_down("another term has begun"))
            await asyncio.sleep(0.05)
            worker.cancel()
            await asyncio.wait([worker])
            stopping = asyncio.create_task(host.stop())
            await asyncio.sleep(0.2)
            assert not stopping.done()
            assert not checkpoint.done()
            go_on.set()
            await asyncio.wait_for(asyncio.gather(checkpoint, stopping), 10)
            assert most == [1]

    asyncio.run(main())


def test_a_checkpoint_that_a_terms_end_refuses_after_its_caller_went_is_no_error_of_the_loop(tmp_path: Path) -> None:
    """asyncio says "Task exception was never retrieved", at level error, of a task that nobody asks how it ended."""

    async def main() -> None:
        said: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            await made.send("a", [made.clock.now_ms() + 60_000])

            async def refused(offset: int) -> None:
                await asyncio.sleep(0.05)
                raise Refused("NOT_OWNER", "another term has begun")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(host, "wait_log_committed", refused)
                caller = asyncio.create_task(host.maintenance.checkpoint(copy_wheels=False))
                await asyncio.sleep(0.01)
                caller.cancel()
                await asyncio.wait([caller])
                await asyncio.sleep(0.1)  # it ends before anybody waits for it
                del caller  # which holds it
            gc.collect()
        assert not said

    asyncio.run(main())


def test_a_checkpoint_that_fails_after_its_caller_went_fails_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next role goes on with half a flush, until its own first one (seed 58582 of the simulation)."""
    begun, go_on = threading.Event(), threading.Event()

    def full(job: CheckpointJob) -> None:
        begun.set()
        assert go_on.wait(30)
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            for loop in host._tasks:  # as at a term's end
                loop.cancel()
            await made.send("a", [made.clock.now_ms() + 60_000])
            monkeypatch.setattr(CheckpointJob, "run", full)
            caller = asyncio.create_task(host.maintenance.checkpoint(copy_wheels=False))
            await wait_until(begun.is_set, 0.01)
            caller.cancel()
            await asyncio.wait([caller])
            go_on.set()
            await host.maintenance.wait_idle()
            assert host.failure is not None
            assert "No space left" in host.failure
            monkeypatch.undo()

    asyncio.run(main())


def test_files_stay_while_a_thread_reads_them_whose_caller_is_gone(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        assert go_on.wait(30)

    async def main() -> None:
        async with node(tmp_path) as made:
            host = made.hosts["a"]
            reading = host.off_loop(read)
            await wait_until(begun.is_set, 0.01)
            reading.cancel()
            await asyncio.wait([reading])
            assert len(host.jobs()) == 1
            go_on.set()
            await wait_until(lambda: not host.jobs(), 0.01)

    asyncio.run(main())
