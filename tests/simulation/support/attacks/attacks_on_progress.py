"""More attacks, as in attacks.py: what might leave a shard, or a copy, stuck until somebody restarts a process."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from unittest.mock import patch

from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replica.role import ReplicaRole
from delaynode.store import formats
from delaynode.store.log.commit_log import CommitLog
from delaynode.store.maintenance import checkpoint

from tests.simulation.support.attacks.schedules import attack, shrink
from tests.simulation.support.machine.loop import SECOND
from tests.simulation.support.stage import Run, cluster


@attack
def switchover_that_was_withdrawn_is_not_tried_again(seed: int) -> None:
    """The node that should take over died: the operator gives the request up, and the master has to as well."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.kill(slave)
        run.switch("t-0", slave)
        run.until(lambda: run.shard().spec.switchover is None, 15, "nobody wants it any more")
        run.world.start(slave)
        run.until(run.healthy, 30, "the slave is in sync again")
        handed: list[int] = []
        run.once(lambda shard: shard.status is not None and shard.status.handover is not None, lambda: handed.append(1))
        run.world.run(15.0)
        assert not handed, "the master has stopped for nobody"
        assert run.master() == master


@attack
def chosen_copy_that_is_deposed_while_it_applies_its_log_follows(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        first, (one, other) = run.master(), run.slaves()
        replica = run.replica(one)
        apply_all, waited = replica.local.storage.apply_all, []

        async def slowly() -> int:
            frames = await apply_all()
            leader = replica.leader
            assert leader is not None
            while leader.ended is None or run.replica(other).role is ReplicaRole.SLAVE:
                waited.append(leader.term.epoch)
                await asyncio.sleep(0.01)
            return frames

        replica.local.storage.apply_all = slowly  # type: ignore[method-assign]
        run.switch("t-0", one)
        run.until(lambda: bool(waited), 10, "it has written its status, and applies its log")
        replica.local.storage.apply_all = apply_all  # type: ignore[method-assign]
        heir = run.world.machines[other].process
        assert heir is not None
        run.change_spec(
            "t-0", lambda spec: replace(spec, master=other, incarnation=heir.incarnation, epoch=spec.epoch + 1)
        )
        run.until(lambda: run.replica(other).role is ReplicaRole.MASTER, 15, "another serves")
        run.until(lambda: run.replica(one).role is ReplicaRole.SLAVE, 15, "the one that was chosen follows it")
        assert first in run.shard().spec.replicas


@attack
def chosen_copy_whose_disk_hangs_gives_way_to_another(seed: int) -> None:
    with cluster(seed, replicas=3, lag_seconds=2) as run:
        master, (one, other) = run.master(), run.slaves()
        run.cut("control", other)  # so that `one` is chosen
        run.world.machines[one].disk.hung_until_ns = run.world.scheduler.now_ns + 60 * SECOND
        run.world.run(0.3)
        run.world.kill(master)
        run.until(lambda: run.master() == one, 20, "the one whose disk hangs is chosen")
        run.mend("control", other)
        run.until(lambda: run.master() == other and run.replica(other).role is ReplicaRole.MASTER, 20, "another serves")


@attack
def chosen_copy_that_had_no_room_follows_once_there_is(seed: int) -> None:
    """Seed 528: the copy learns by a read of its own, not from a watch, that another was chosen instead."""
    with cluster(seed, replicas=3, lag_seconds=2) as run:
        master, (one, other) = run.master(), run.slaves()
        run.cut("control", other)  # so that `one` is chosen
        machine = run.world.machines[one]
        machine.disk.full = True
        run.world.kill(master)
        run.until(lambda: run.master() == one, 20, "the one without room is chosen")
        run.world.run(0.3)
        machine.weather.down = True
        run.mend("control", other)
        run.until(lambda: run.master() == other and run.replica(other).role is ReplicaRole.MASTER, 20, "another serves")
        machine.disk.full, machine.weather.down = False, False
        run.world.start(master)
        run.until(run.healthy, 40, "all three are in sync, and none is said to be damaged")
        assert run.replica(one).leadership.overdue_reason() is None


@attack
def chosen_copy_that_cannot_apply_its_log_has_told_nobody_of_commits(seed: int) -> None:
    """Seed 96547: it leaves the former in-sync set as it was, so nobody may have more of the log for certain."""
    with cluster(seed, replicas=3, lag_seconds=2) as run:
        master, (one, other) = run.master(), run.slaves()
        run.cut("control", other)  # so that `one` is chosen
        storage, former = run.replica(one).local.storage, set(run.status().in_sync)

        async def no_room() -> int:
            await asyncio.sleep(0.3)
            raise OSError(errno.ENOSPC, "No space left on device")

        run.until(lambda: uncommitted(run, one) and uncommitted(run, other), 20, "a frame that nobody calls committed")
        run.world.kill(master)
        storage.apply_all = no_room  # type: ignore[method-assign]
        run.until(lambda: run.status().resigned is not None, 20, "it resigns")
        assert set(run.status().in_sync) == former
        run.mend("control", other)
        run.world.start(master)
        run.until(run.healthy, 40, "another serves, and all are in sync")


def uncommitted(run: Run, node: str) -> bool:
    """The copy has frames that it does not know to be committed."""
    shard = run.replica(node).shard
    assert shard is not None
    return shard.log.written > shard.committed_offset


@attack
def new_shard_whose_first_node_had_no_room_is_served_once_there_is(seed: int) -> None:
    with cluster(seed) as run:
        truth, spare = run.world.truth, next(iter({*run.world.machines} - {*run.shard().spec.replicas}))
        run.world.machines[spare].disk.full = True
        found = truth.now.cluster
        assert found is not None
        topic = replace(found.spec.topics[0], queues=2)
        run.world.cluster_spec = replace(found.spec, topics=(topic,))
        truth.put_cluster(run.world.cluster_spec, found.version)
        run.until(lambda: (one := truth.shard("t-1")) is not None and one.spec.master == spare, 10, "it is chosen")
        run.world.run(1.0)
        assert run.shard("t-1").status is None
        run.world.machines[spare].disk.full = False
        run.until(lambda: run.shard("t-1").status is not None, 10, "it serves")


@attack
def chosen_copy_that_had_no_file_handle_leads_once_there_is_one(seed: int) -> None:
    """The copy has lost nothing, and may be the only one: it must not be called damaged."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        shard, cut = run.replica(slave).shard, CommitLog.cut
        failed: list[int] = []
        assert shard is not None

        def once(log: CommitLog, end: int) -> None:
            if log is shard.log and not failed:
                failed.append(end)
                raise OSError(errno.EMFILE, "too many open files")
            cut(log, end)

        with patch.object(CommitLog, "cut", once):
            run.world.kill(master)
            run.until(lambda: bool(failed), 20, "it is chosen, and finds no file handle")
            run.until(lambda: run.replica(slave).role is ReplicaRole.MASTER, 10, "it serves")
        run.world.start(master)
        run.until(run.healthy, 40, "both are in sync")


@attack
def copy_that_a_newer_program_wrote_waits_for_it_and_is_not_fetched_again(seed: int) -> None:
    """A node was rolled back: a copy that it threw away and fetched again would be in the newer format again."""
    with cluster(seed) as run:
        slave = run.slaves()[0]
        entry, path = (
            run.replica(slave).local.storage.replica_id,
            f"{run.replica(slave).local.storage.directory}/checkpoint",
        )
        shrink(run, slave)
        files = run.world.machines[slave].disk.files
        ours = bytes(files.files[path].data)
        state, arrays = checkpoint.decode(ours, path)
        newer = checkpoint.encode(replace(state, format=formats.NEWEST + 1), arrays)
        files.files[path].data[:] = newer
        run.world.start(slave)
        run.world.run(15.0)
        replica = run.replica(slave)
        assert (replica.role, replica.local.storage.replica_id, bytes(files.files[path].data)) == (
            ReplicaRole.DAMAGED,
            entry,
            newer,
        )
        assert "written by a newer release" in (replica.damaged() or "")
        assert run.status().serving_epoch == run.shard().spec.epoch, "the others serve"
        run.world.kill(slave)
        run.world.run(1.0)
        files.files[path].data[:] = ours
        run.world.start(slave)
        run.until(run.healthy, 40, "the newer program opens it")
        assert run.replica(slave).local.storage.replica_id == entry


@attack
def slave_that_could_not_be_read_for_once_is_read_for_again(seed: int) -> None:
    """The slave's master may have had no file handle left, for instance."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        run.world.run(1.0)
        failed: list[int] = []
        shard, read = run.replica(master).shard, CommitLog.read_raw

        def once(log: CommitLog, offset: int, most: int) -> bytes:
            if shard is not None and log is shard.log and not failed:
                failed.append(offset)
                raise OSError(errno.EMFILE, "too many open files")
            return read(log, offset, most)

        with patch.object(CommitLog, "read_raw", once):
            run.world.start(slave)
            run.until(lambda: bool(failed), 10, "the read that fails")
            run.until(run.healthy, 10, "it has caught up")


@attack
def damaged_copy_stays_while_a_write_under_way_names_it(seed: int) -> None:
    """Seed 1960: the registry does not name the copy yet; the master sent the larger set and has no answer."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        weather = run.world.machines[master].weather
        weather.script.append(("write_status", "later"))
        run.world.start(slave)
        run.until(lambda: not weather.script, 20, "the larger set was sent")
        weather.down = True  # the master can't read what became of its write
        run.world.control.weather.down = True  # a write of the control loop would make the late one fail
        run.world.machines[slave].disk.full = True
        run.until(
            lambda: run.replica(slave).role is ReplicaRole.DAMAGED, 20, "the new member's disk takes nothing more"
        )
        named = run.replica(slave).local.storage.replica_id
        run.until(lambda: len(run.status().in_sync) == 2, 20, "the larger set has landed")
        run.world.run(2.0)
        assert run.replica(slave).local.storage.replica_id == named, "the copy that the registry names"
        weather.down = run.world.control.weather.down = False
        run.world.machines[slave].disk.full = False


@attack
def shard_that_can_commit_nothing_holds_up_no_other_shards_checkpoint(seed: int) -> None:
    """The shard's slave is dead and the registry is away: its master can't record the smaller in-sync set."""
    with cluster(seed, nodes=3, queues=3) as run:
        shards = run.world.truth.now.shards
        blocked = next(one for one in shards if one.spec.master == "n0")
        slave = next(node for node in blocked.spec.replicas if node != "n0")
        for name in [one.name for one in shards if one.name != blocked.name]:
            other = next(node for node in run.world.machines if node not in ("n0", slave))
            run.move(name, ("n0", other))
        run.until(run.healthy, 60, "n0 leads the others, too, with copies elsewhere")
        for machine in run.world.machines.values():
            machine.weather.down = True
        run.world.control.weather.down = True
        run.world.kill(slave)
        run.world.run(4.0)
        process = run.world.machines["n0"].process
        assert process is not None
        masters = {master.name: master for master in process.replicas.masters()}
        with process.loop.running():
            asked = [process.loop.create_task(masters[blocked.name].maintenance.persist(copy_wheels=False))]
        run.world.run(0.5)
        assert not asked[0].done(), "it waits for its slave"
        free = next(master for name, master in masters.items() if name != blocked.name)
        before = free.shard.checkpointed
        with process.loop.running():
            asked.append(process.loop.create_task(free.maintenance.persist(copy_wheels=False)))
        run.until(asked[1].done, 10, "the other one's checkpoint")
        assert free.shard.checkpointed > before
        process.keep(asked[0])
        process.keep(asked[1])


@attack
def master_that_dies_while_a_copy_leaves_is_followed(seed: int) -> None:
    """Only the leaving copy follows the next master, and no in-sync set may name that copy: the master leads alone."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        spare = next(iter({*run.world.machines} - {master, slave}))
        run.once(lambda shard: bool(shard.spec.leaving), lambda: run.world.kill(master))
        run.move("t-0", (master, spare))
        run.until(lambda: run.master() == spare, 30, "the copy that stays is chosen")
        run.until(
            lambda: run.status().serving_epoch == run.shard().spec.epoch, 15, "it serves, though its master stays away"
        )


@attack
def failed_slave_is_not_opened_again_beside_what_it_still_writes(seed: int) -> None:
    """A checkpoint that hangs in the disk would later write files that a copy opened meanwhile knows nothing of."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.cut("control", slave)  # so that the slave is not chosen
        run.world.kill(master)
        run.world.run(0.3)
        replica = run.replica(slave)
        host = replica.local.host
        assert isinstance(host, SlaveHost)
        writing: asyncio.Future[None] = asyncio.Future(loop=run.world.machines[slave].process.loop)  # type: ignore[union-attr]
        host._jobs.add(writing)
        host.fail("No space left on device", OSError(errno.ENOSPC, "No space left on device"))
        run.world.run(10.0)
        assert replica.role is ReplicaRole.DAMAGED
        host._jobs.discard(writing)
        writing.set_result(None)
        run.until(lambda: replica.role is ReplicaRole.SLAVE, 10, "it is opened again")
        run.mend("control", slave)
        run.world.start(master)
