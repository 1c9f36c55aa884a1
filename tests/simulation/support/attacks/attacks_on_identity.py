"""More attacks, as in attacks.py: what people do to objects and volumes, while the copies on the disks are whole."""

from __future__ import annotations

from dataclasses import replace

from delaynode.replica.role import ReplicaRole
from delayregistry.model import BootstrapVolumes, ShardObject, ShardSpec

from tests.simulation.support.attacks.attacks_on_objects import directories
from tests.simulation.support.attacks.schedules import attack
from tests.simulation.support.machine.loop import SECOND
from tests.simulation.support.people import adopt
from tests.simulation.support.stage import Run, cluster


def _healthy_with(run: Run, uid: int) -> bool:
    return run.world.truth.shard("t-0") is not None and run.healthy() and run.shard().spec.uid == uid


def _opened(run: Run, node: str) -> bool:
    process = run.world.machines[node].process
    found = process.replicas.get(run.shard().spec.uid) if process is not None else None
    return found is not None and found.shard is not None


@attack
def d1_deleted_object_is_made_again_for_the_copies_that_are_there(seed: int) -> None:
    """`kubectl delete delayshard`: the nodes run on."""
    with cluster(seed) as run:
        uid, epoch = run.shard().spec.uid, run.shard().spec.epoch
        run.world.truth.delete("t-0")
        run.until(lambda: _healthy_with(run, uid), 30, "served again, with its messages")
        assert run.shard().spec.epoch > epoch


@attack
def d1_copy_whose_disk_hangs_is_not_named_in_sync(seed: int) -> None:
    """It has received all that was written while it was away, and has not stored it."""
    with cluster(seed, replicas=2) as run:
        master, (slave,) = run.master(), run.slaves()
        run.world.kill(slave)
        run.until(lambda: len(run.status().in_sync) == 1, 20, "the master goes on alone")
        run.world.start(slave)
        run.until(lambda: _opened(run, slave), 20, "the slave has opened its copy")
        led, followed, disk = run.replica(master).shard, run.replica(slave).shard, run.world.machines[slave].disk
        run.until(lambda: followed.log.end == led.committed_offset == led.log.end, 20, "it has received everything")
        disk.hung_until_ns = run.world.scheduler.now_ns + 15 * SECOND
        assert followed.log.synced < led.committed_offset
        run.world.kill(master)
        run.world.truth.delete("t-0")
        run.world.start(master)
        run.until(lambda: run.world.truth.shard("t-0") is not None, 20, "made again from the copies")
        disk.hung_until_ns = 0


@attack
def d1_cluster_that_is_applied_again_has_its_messages(seed: int) -> None:
    """Everything is deleted but the volumes; the nodes come back one after the other, the one with most last."""
    with cluster(seed) as run:
        uid, master = run.shard().spec.uid, run.master()
        for node in run.world.machines:
            run.world.kill(node)
        run.world.truth.delete("t-0")
        run.world.truth.forget_leases()
        run.world.control.restart()
        for node in run.world.machines:
            if node != master:
                run.world.start(node)
        run.world.run(4.0)
        assert run.world.truth.shard("t-0") is None, "nothing is made before every node has said what it has"
        run.world.start(master)
        run.until(lambda: _healthy_with(run, uid), 30, "served again, with its messages")


@attack
def d1_node_that_never_comes_is_waited_for_only_so_long(seed: int) -> None:
    with cluster(seed, replace_after_seconds=6, clients=False, close=False) as run:
        for node in run.world.machines:
            run.world.kill(node)
        run.world.truth.delete("t-0")
        run.world.truth.forget_leases()
        for machine in run.world.machines.values():
            machine.disk.files.remove_tree("d/shards")
        run.world.control.restart()
        for node in ("n0", "n1"):
            run.world.start(node)
        run.world.run(4.0)
        assert run.world.truth.shard("t-0") is None
        run.until(lambda: run.world.truth.shard("t-0") is not None and run.healthy(), 30, "made without n2")


@attack
def d1_copies_of_two_histories_wait_for_a_persons_word(seed: int) -> None:
    with cluster(seed, bootstrap_volumes=BootstrapVolumes.REFUSE) as run:
        uid = run.shard().spec.uid
        run.world.truth.delete("t-0")
        run.world.run(4.0)
        assert run.world.truth.shard("t-0") is None, "the spec wants a person to decide"
        run.until(lambda: bool(run.world.control.loop.orphans.orphans), 10, "it says so")
        (said,) = run.world.control.loop.orphans.orphans
        assert f"{uid:016x} on " in said
        (reason,) = adopt(run)
        assert reason.startswith("it has no object: ")
        run.until(lambda: _healthy_with(run, uid), 30, "served again, with its messages")


@attack
def d1_creation_that_lands_late_hides_no_copies(seed: int) -> None:
    """Seed 57713: the topic was new when it was decided. Meanwhile another loop made the shard, it took messages, and a
    person deleted its object."""
    with cluster(seed) as run:
        uid, replicas = run.shard().spec.uid, run.shard().spec.replicas
        elsewhere = tuple(node for node in run.world.machines if node not in replicas)
        run.world.truth.delete("t-0")
        run.world.truth.create(ShardSpec(uid ^ 0x5EED, "t", 0, elsewhere if seed % 2 else replicas))
        run.until(lambda: _healthy_with(run, uid), 30, "served again, with its messages")


@attack
def d1_creation_that_lands_late_waits_for_a_node_that_is_away(seed: int) -> None:
    """It has the only copy of what the shard of this name was before."""
    with cluster(seed, replicas=1) as run:
        uid, master = run.shard().spec.uid, run.master()
        run.world.kill(master)
        run.world.truth.delete("t-0")
        run.world.truth.create(ShardSpec(uid ^ 0x5EED, "t", 0, tuple({*run.world.machines} - {master})[:1]))
        run.world.run(6.0)
        assert run.shard().spec.epoch == 0, "nobody leads an empty shard while a node may have copies of its name"
        assert _reasons(run.shard()) == ["NodeAway"]
        run.world.start(master)
        run.until(lambda: _healthy_with(run, uid), 30, "served again, with its messages")


@attack
def d1b_registry_restored_to_before_a_move_costs_no_copy(seed: int) -> None:
    """By the older state the nodes that have the copies now are to have none."""
    with cluster(seed, nodes=4) as run:
        older = run.shard()
        uid, old = older.spec.uid, older.spec.replicas
        new = tuple(node for node in run.world.machines if node not in old)
        run.move("t-0", new)
        run.until(lambda: run.shard().spec.replicas == new and run.healthy(), 60, "moved")
        run.until(lambda: not any(directories(run, node, uid) for node in old), 20, "the former copies are gone")
        run.world.truth.restore(older)
        run.world.run(1.0)
        for node in (*new, *old) if seed % 2 else (*old, *new):
            run.restart(node)
            run.world.run(0.3)
        run.until(lambda: _reasons(run.shard()) == ["RegistryBehind"], 20, "it is seen, and said")
        run.world.run(3.0)
        assert all(directories(run, node, uid) for node in new), "no copy leaves by the word of an older object"
        adopt(run)
        run.until(lambda: _healthy_with(run, uid), 40, "served again")


@attack
def d1b_registry_restored_to_before_a_move_of_a_slave_costs_no_copy(seed: int) -> None:
    """Seed 102490: the term goes on, so the older object has the epoch of the newer one."""
    with cluster(seed, nodes=4) as run:
        older, master = run.shard(), run.master()
        uid, epoch, control = older.spec.uid, older.spec.epoch, run.world.control
        new = next(node for node in run.world.machines if node not in older.spec.replicas)
        run.move("t-0", (master, new))
        run.until(lambda: set(run.shard().spec.replicas) == {master, new} and run.healthy(), 60, "moved")
        assert run.shard().spec.epoch == epoch
        (former,) = {*older.spec.replicas} - {master}
        run.until(lambda: not directories(run, former, uid), 20, "the former copy is gone")
        control.up, run.world.machines[master].weather.down = False, True
        run.world.truth.restore(older)
        run.world.run(3.0)
        assert directories(run, new, uid), "no copy leaves by the word of an older object"
        if seed % 2:  # the master follows the older object
            run.cut(master, former)
            run.world.machines[master].weather.down = False
            run.until(lambda: len(run.status().in_sync) == 1, 20, "it has written its status again")
            run.world.run(3.0)
            assert directories(run, new, uid), "no copy leaves before another one has its place"
            run.mend(master, former)
        control.up, run.world.machines[master].weather.down = True, False
        run.until(lambda: _healthy_with(run, uid), 60, "served on, with its messages")


@attack
def d1_object_of_a_term_that_nobody_began_is_put_back(seed: int) -> None:
    """Seed 64668: the copies never heard of that term, so what was adopted from them must not have its epoch."""
    with cluster(seed) as run:
        named = run.slaves()[0]
        process = run.world.machines[named].process
        assert process is not None
        run.world.control.up = False
        run.world.kill(named)
        older = run.shard()
        spec = replace(older.spec, epoch=older.spec.epoch + 1, master=named, incarnation=process.incarnation)
        run.world.truth.change("t-0", older.version, lambda one: replace(one, spec=spec))
        older = run.shard()
        run.world.run(2.0)
        run.world.truth.delete("t-0")
        run.world.start(named)
        run.world.control.up = True
        run.until(lambda: _healthy_with(run, older.spec.uid), 40, "served again, with its messages")
        assert run.shard().spec.epoch > older.spec.epoch, "nobody gets an epoch that was given before"
        run.world.truth.restore(older)
        run.until(lambda: _reasons(run.shard()) == ["RegistryBehind"], 20, "it is seen, and said")
        adopt(run)
        run.until(lambda: _healthy_with(run, older.spec.uid), 40, "served again")


@attack
def d1_epoch_that_another_process_serves_than_the_registry_names_is_said(seed: int) -> None:
    """The registry was restored to before this term, which another had got then, and to that later state again."""
    with cluster(seed) as run:
        serving, slave = run.master(), run.slaves()[0]
        uid, epoch = run.shard().spec.uid, run.shard().spec.epoch
        process = run.world.machines[slave].process
        assert process is not None
        incarnation = process.incarnation if seed % 2 else "0" * 16  # that process may have ended
        restored = replace(run.shard().spec, master=slave, incarnation=incarnation)
        run.world.truth.change("t-0", run.shard().version, lambda one: replace(one, spec=restored))
        run.until(lambda: _reasons(run.shard()) == ["RegistryBehind"], 20, "it is seen, and said")
        (reason,) = adopt(run)
        assert f"the registry names {slave} for epoch {epoch}, which {serving} serves" in reason
        run.until(lambda: _healthy_with(run, uid), 40, "served again, with all that was acknowledged")


@attack
def d1_copy_without_room_for_its_term_is_whole_when_its_object_is_gone(seed: int) -> None:
    """Seed 75234: it said for ever that its disk had not taken that term up, and nobody went on from the copies."""
    with cluster(seed, lag_seconds=2) as run:
        master, slave = run.master(), run.slaves()[0]
        uid, machine = run.shard().spec.uid, run.world.machines[slave]
        machine.disk.full = True
        run.world.kill(master)
        run.until(lambda: run.master() == slave, 20, "the one without room is chosen")
        run.until(lambda: run.replica(slave).leadership.overdue_reason() is not None, 10, "it can't begin")
        run.world.truth.delete("t-0")
        run.world.run(1.0)
        machine.disk.full = False
        run.world.start(master)
        run.until(lambda: _healthy_with(run, uid), 40, "served again, with its messages")


@attack
def d1_master_that_ends_as_its_shard_is_adopted_is_gone_on_from(seed: int) -> None:
    """Seed 75422: only a master that served knew that nobody else had more, and a damaged copy lay beside."""
    with cluster(seed) as run:
        master, slave, uid = run.master(), run.slaves()[0], run.shard().spec.uid
        run.world.machines[slave].disk.full = True
        run.until(lambda: len(run.status().in_sync) == 1, 20, "the slave is out")
        run.until(lambda: run.replica(slave).role is ReplicaRole.DAMAGED, 20, "its disk has failed it")
        run.world.truth.delete("t-0")
        run.until(lambda: run.world.truth.shard("t-0") is not None, 20, "made again")
        run.world.kill(master)
        run.world.run(0.2)
        run.world.start(master)
        run.world.machines[slave].disk.full = False
        run.until(lambda: _healthy_with(run, uid), 40, "served again, with its messages")


@attack
def d1_empty_shard_beside_full_copies_is_said(seed: int) -> None:
    """Made while the spec wanted that: a person sees what lies beside, and no other copy is touched."""
    with cluster(seed, clients=False, close=False, bootstrap_volumes=BootstrapVolumes.IGNORE) as run:
        uid = run.shard().spec.uid
        run.world.control.up = False
        older = run.shard()
        run.world.truth.delete("t-0")
        run.world.truth.create(replace(older.spec, uid=uid ^ 0x5EED, epoch=0, master=None, incarnation=None))
        run.world.control.up = True
        run.until(run.healthy, 30, "the new, empty shard is served")
        wished = run.world.truth.now.cluster
        assert wished is not None
        spec = replace(wished.spec, bootstrap_volumes=BootstrapVolumes.ADOPT)
        run.world.truth.put_cluster(spec, wished.version)
        run.until(lambda: bool(run.world.control.loop.orphans.orphans), 10, "what lies beside it is said")
        (said,) = run.world.control.loop.orphans.orphans
        assert said.endswith("beside the shard that has this name now")
        for node in older.spec.replicas:
            run.restart(node)
        run.world.run(5.0)
        assert all(directories(run, node, uid) for node in older.spec.replicas)
        assert run.world.control.loop.orphans.orphans == (said,) or run.world.control.loop.orphans.orphans


def _reasons(shard: ShardObject) -> list[str]:
    return [condition.reason for condition in shard.conditions]


@attack
def d5_copies_that_were_replaced_while_their_node_was_away_give_their_disk_back(seed: int) -> None:
    with cluster(seed, nodes=3, replicas=2, replace_after_seconds=4) as run:
        uid, away = run.shard().spec.uid, run.master()
        run.world.kill(away)
        run.until(lambda: away not in run.shard().spec.replicas and run.healthy(), 40, "replaced")
        run.world.run(5.0)
        assert directories(run, away, uid)
        run.world.start(away)
        run.until(lambda: not directories(run, away, uid), 20, "a copy that a later term does without is gone")
