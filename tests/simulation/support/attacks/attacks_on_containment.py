"""More attacks, as in attacks.py: one wrong frame of a master must not take the other copies with it (audit C2)."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from delaynode.replica.storage import ReplicaStorage
from delaynode.replication.in_sync import ReplicaIds
from delaynode.replication.term.leader import Leader
from delaynode.store.errors import Impossible, Unappliable
from delaynode.store.shard import Shard
from delaynode.store.types import I64

from tests.simulation.support.attacks.schedules import attack
from tests.simulation.support.stage import Run, cluster


def master_of(run: Run) -> Shard:
    shard = run.replica(run.master()).shard
    assert shard is not None
    return shard


def expect_internal_error(run: Run, node: str) -> None:
    """Let the node's process meet an internal error without a violation: the schedule planted it."""
    process = run.world.machines[node].process
    assert process is not None
    process.unhandled = lambda what, error: None  # type: ignore[method-assign]


def sound(run: Run, node: str) -> bool:
    return run.replica(node).damaged() is None


@attack
def c2_frame_that_its_master_could_not_apply_reaches_no_other_copy(seed: int) -> None:
    """The frame frees a segment that is not there: no copy could apply it. Once written, it would end them all."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.copies.harm(master)  # its own program harms it
        host = run.replica(master).master
        assert host is not None

        def wrong(limit: int) -> I64:
            host.on_proposed()  # a busy shard: it is in the syncer's line already
            return np.array([77], np.int64)

        run.world.copies.harm(master)  # its memory is harmed: opening its copy again is no violation
        master_of(run).space.ledger.empty = wrong  # type: ignore[method-assign]
        run.until(lambda: run.master() == slave, 30, "the slave takes over")
        assert sound(run, slave)
        run.until(lambda: sound(run, master), 30, "the files of the old master are as good as they were")


@attack
def c2_master_that_contradicts_itself_frees_no_more_and_serves_on(seed: int) -> None:
    """With its wrong counts it would free what is needed."""
    with cluster(seed) as run:
        master, epoch = run.master(), run.shard().spec.epoch
        run.world.copies.harm(master)  # its own program harms it
        shard = master_of(run)
        run.until(lambda: shard.queue.start > 0, 30, "TRIMs at work")
        tries: list[int] = []

        def refuse(start: int) -> NoReturn:
            tries.append(start)
            raise Impossible("more messages have gone than it held")

        shard.space._expired_rows = refuse  # type: ignore[method-assign]
        run.until(lambda: bool(tries), 10, "there is something to free")
        stored = run.stored()
        run.world.run(10.0)
        assert len(tries) == 1, "not tried again"
        assert run.stored() > stored
        assert (run.master(), run.shard().spec.epoch) == (master, epoch)


@attack
def l1_term_that_ends_before_it_has_written_takes_nobody_out_of_the_in_sync_set(seed: int) -> None:
    """The chosen copy meets a fault of its program. If the set named it alone, the last copy would be a damaged one."""
    with cluster(seed, replicas=3) as run:
        master, failing = run.master(), run.slaves()
        harmed: list[str] = []
        for node in failing:
            expect_internal_error(run, node)

        def fault(leader: Leader, entries: ReplicaIds) -> ReplicaIds:
            if not harmed:
                harmed.append(leader.term.node)
                raise RuntimeError("planted")
            return following(leader, entries)

        following = Leader._following
        Leader._following = fault  # type: ignore[method-assign]
        try:
            run.world.kill(master)
            run.until(lambda: bool(harmed), 20, "a slave is chosen")
        finally:
            Leader._following = following  # type: ignore[method-assign]
        (other,) = set(failing) - set(harmed)
        run.until(lambda: run.master() == other, 20, "the other one leads")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 20, "it serves")
        run.restart(harmed[0])


@attack
def c2_chosen_copy_that_can_not_apply_its_log_takes_nobody_out_of_the_in_sync_set(seed: int) -> None:
    """All nodes start again, and the chosen copy can't apply a frame. Such a copy once had named itself alone."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        for node in (slave, master):
            run.world.kill(node)
        harmed: list[str] = []
        apply_all = ReplicaStorage.apply_all

        async def fault(storage: ReplicaStorage) -> int:
            if not harmed:
                harmed.append(storage.context.node)
                run.world.copies.harm(storage.context.node)
                run.world.checker.harm(run.shard().spec.uid, storage.context.node)
            if storage.context.node in harmed:
                raise Unappliable(0, "TRIM of epoch 1", "planted")
            return await apply_all(storage)

        first = master if seed % 2 else slave
        ReplicaStorage.apply_all = fault  # type: ignore[method-assign]
        try:
            run.world.start(first)
            run.world.run(0.5 * (seed % 3))
            run.world.start(slave if first == master else master)
            run.until(lambda: bool(harmed) and run.shard().spec.master not in harmed, 30, "the other copy is chosen")
            run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 20, "it serves")
        finally:
            ReplicaStorage.apply_all = apply_all  # type: ignore[method-assign]
        assert (
            not sound(run, harmed[0])
            or run.replica(harmed[0]).local.storage.replica_id != run.replica(run.master()).local.storage.replica_id
        )


@attack
def l1_copy_whose_worker_has_ended_keeps_nothing_that_it_is_sent(seed: int) -> None:
    """Its master goes on asking it to follow, twice a second."""
    with cluster(seed) as run:
        replica = run.replica(run.slaves()[0])
        expect_internal_error(run, run.slaves()[0])

        async def fault(*_: object) -> None:
            raise RuntimeError("planted")

        replica._follower.handle = fault  # type: ignore[method-assign]
        run.until(replica._worker.done, 30, "an internal error")
        run.world.run(10.0)
        assert not replica._inbox
        run.restart(run.slaves()[0])
