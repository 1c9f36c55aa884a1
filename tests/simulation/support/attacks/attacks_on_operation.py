"""More attacks, as in attacks.py: gray failures, the operator's side, copies that come and go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from delaynode.replica.role import ReplicaRole
from delaynode.store.log.incoming_batch import IncomingBatch
from delayregistry.model import BootstrapVolumes, Delivery

from tests.simulation.support.attacks.schedules import attack, shrink
from tests.simulation.support.machine.loop import MILLI, SECOND
from tests.simulation.support.stage import Run, cluster
from tests.simulation.support.workload import Message


# ---------------------------------------------------------------- gray failures
@attack
def a3_slave_with_a_hanging_disk_is_shrunk_after_lag_seconds(seed: int) -> None:
    with cluster(seed, lag_seconds=2) as run:
        slave, stored = run.slaves()[0], run.stored()
        run.world.machines[slave].disk.hung_until_ns = run.world.scheduler.now_ns + 30 * SECOND
        run.until(lambda: len(run.status().in_sync) == 1, 6, "it is out of the in-sync set")
        run.until(lambda: run.stored() > stored + 5, 5, "the master goes on without it")


@attack
def a3_master_with_a_hanging_disk_steps_down(seed: int) -> None:
    with cluster(seed, lag_seconds=2) as run:
        master = run.master()
        run.world.machines[master].disk.hung_until_ns = run.world.scheduler.now_ns + 30 * SECOND
        run.until(lambda: run.master() != master, 10, "another master")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, 10, "it serves")


@attack
def a3_slow_sync_is_no_reason_for_anything(seed: int) -> None:
    with cluster(seed, lag_seconds=3) as run:
        epoch, in_sync = run.shard().spec.epoch, run.status().in_sync
        for node in (run.master(), run.slaves()[0]):
            run.world.machines[node].disk.hung_until_ns = run.world.scheduler.now_ns + 1_200 * MILLI
            run.world.run(2.5)
        assert (run.shard().spec.epoch, run.status().in_sync) == (epoch, in_sync)


# ---------------------------------------------------------------- the operator's side
@attack
def a4_registry_outage_alone_changes_nothing(seed: int) -> None:
    with cluster(seed) as run:
        epoch, stored = run.shard().spec.epoch, run.stored()
        weathers = [machine.weather for machine in run.world.machines.values()] + [run.world.control.weather]
        for weather in weathers:
            weather.down = True
        run.world.run(20.0)
        assert run.stored() > stored + 50, "the data plane goes on"
        for weather in weathers:
            weather.down = False
        run.world.run(5.0)
        assert run.shard().spec.epoch == epoch


@attack
def a5_member_that_gives_no_answer_is_not_chosen_while_another_does(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        run.cut("control", one)
        run.world.kill(master)
        run.until(lambda: run.master() != master, 20, "another master")
        assert run.master() == other


@attack
def a6_operator_that_dies_in_a_switchover_stops_the_shard_for_two_seconds(seed: int) -> None:
    with cluster(seed) as run:
        slave = run.slaves()[0]
        run.once(lambda shard: shard.status is not None and shard.status.handover is not None, lambda: _down(run))
        run.switch("t-0", slave)
        run.until(lambda: not run.world.control.up, 5, "the master has handed over, and the operator is dead")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, 4, "the master takes it back")


def _down(run: Run) -> None:
    run.world.control.up = False


@attack
def switchover_pauses_the_shard_for_less_than_a_second(seed: int) -> None:
    with cluster(seed) as run:
        slave = run.slaves()[0]
        run.switch("t-0", slave)
        run.until(lambda: run.status().handover is not None, 5, "the master has stopped")
        started = run.world.scheduler.now_ns
        run.until(
            lambda: run.master() == slave and run.replica(slave).role is ReplicaRole.MASTER, 5, "the other serves"
        )
        assert run.world.scheduler.now_ns - started < SECOND


@attack
def switchover_whose_old_master_hears_of_nothing_more(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]

        def trouble() -> None:
            run.cut(master, slave)
            run.world.machines[master].weather.down = True

        run.once(lambda shard: shard.spec.master == slave, trouble)
        run.switch("t-0", slave)
        run.until(
            lambda: run.master() == slave and run.replica(slave).role is ReplicaRole.MASTER, 10, "the other serves"
        )
        run.world.run(2.0)


# ---------------------------------------------------------------- copies that come and go
@attack
def a10_node_that_leaves_and_is_wanted_again_keeps_nothing_by_mistake(seed: int) -> None:
    with cluster(seed, nodes=3) as run:
        slave = run.slaves()[0]
        copy = run.replica(slave).local.storage.replica_id
        spare = next(node for node in run.world.machines if node not in run.shard().spec.replicas)
        run.world.machines[slave].weather.lag_ns = 3 * SECOND  # it sees all of this late
        run.move("t-0", (run.master(), spare))
        run.until(lambda: slave not in run.shard().spec.replicas, 30, "it has gone elsewhere")
        run.move("t-0", (run.master(), slave))
        run.until(lambda: slave in run.shard().spec.replicas, 10, "it is wanted again")
        run.until(run.healthy, 40, "and has a copy that is in sync")
        run.world.run(6.0)
        assert run.replica(slave).local.storage.replica_id == copy, "the copy that was wanted again"


@attack
def move_of_all_copies_under_load(seed: int) -> None:
    with cluster(seed, nodes=4) as run:
        target = tuple(node for node in run.world.machines if node not in run.shard().spec.replicas)
        run.move("t-0", target)
        run.until(lambda: run.healthy() and set(run.shard().spec.replicas) == set(target), 40, "moved")
        run.world.run(2.0)  # what was left elsewhere goes
        for node in run.world.machines:
            names = [path for path in run.world.machines[node].disk.files.files if "/shards/t-0" in path]
            assert (node in target) == bool(names), f"{node} has {names}"


@attack
def drained_node_is_empty_and_stays_so(seed: int) -> None:
    with cluster(seed, nodes=3, queues=2, close=False) as run:
        node = run.master()
        run.drain((node,))
        run.until(run.healthy, 60, "emptied")
        assert all(node not in shard.spec.replicas for shard in run.world.truth.now.shards)


@attack
def a11_sole_copy_is_waited_for(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        run.isolate(master)
        run.world.machines[master].weather.down = True
        run.world.start(slave)
        epoch = run.shard().spec.epoch
        run.world.run(15.0)
        assert run.shard().spec.epoch == epoch, "nobody outside the in-sync set is chosen"
        assert [condition.reason for condition in run.shard().conditions], "and that is said"


@attack
def a8_slaves_are_read_while_there_is_no_master(seed: int) -> None:
    with cluster(seed, delivery=Delivery.MASTER_AND_SLAVE) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.run(0.5)
        run.world.control.up = False
        run.world.kill(master)
        run.world.run(3.0)
        host = run.replica(slave).local.host
        assert host is not None
        record = run.world.checker.record(run.shard().spec.uid)
        with run.world.live()[0].loop.running():
            host.check_serving()
        rows = host.shard.queue.read(0, 1 << 20)
        assert len(rows) > 0
        assert bytes(record.queue[: rows.nbytes]) == rows.tobytes()
        run.world.control.up = True


@attack
def term_that_never_begins_commits_nothing(seed: int) -> None:
    """Its log has frames of the term before that no slave has. It is asked to lead alone, and can't say so."""
    with cluster(seed, close=False, delivery=Delivery.MASTER_AND_SLAVE) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.run(0.5)
        run.cut(slave, master, both=False)
        run.world.run(0.3)
        shard = run.replica(master).local.shard
        assert shard is not None
        committed = shard.committed_offset
        assert shard.log_end > committed, "there is something that it may not commit"
        run.world.machines[master].weather.script = [("write_status", "lost")] * 20
        run.world.truth.delete("t-0")
        run.until(lambda: (made := run.world.truth.shard("t-0")) is not None and made.spec.master == master, 10, "led")
        run.world.run(2.0)
        assert run.replica(master).leadership.master is None, "it does not serve"
        assert run.status().in_sync == (run.replica(master).local.storage.replica_id,), "it is to lead alone"
        shard = run.replica(master).local.shard
        assert shard is not None
        assert shard.committed_offset <= committed, "it has committed nothing"


@attack
def a10_object_that_lost_its_status_is_not_taken_for_a_new_shard(seed: int) -> None:
    with cluster(seed, close=False, bootstrap_volumes=BootstrapVolumes.REFUSE) as run:
        shard = run.shard()
        for node in run.world.machines:
            run.restart(node)
        shard = run.shard()
        run.world.truth.change(shard.name, shard.version, lambda one: replace(one, status=None))
        run.world.run(12.0)
        assert run.shard().status is None, "nobody serves"
        assert run.shard().conditions, "and that is said"


# ---------------------------------------------------------------- minor
@attack
def m1_process_frozen_in_a_registry_write_is_an_outage_for_all(seed: int) -> None:
    with cluster(seed) as run:
        epoch, slave = run.shard().spec.epoch, run.slaves()[0]
        for machine in run.world.machines.values():
            machine.weather.down = True
        run.world.control.weather.down = True
        run.world.freeze(slave)
        run.world.run(5.0)
        run.world.thaw(slave)
        for machine in run.world.machines.values():
            machine.weather.down = False
        run.world.control.weather.down = False
        run.until(run.healthy, 30, "healthy again")
        assert run.shard().spec.epoch == epoch


@attack
def m2_delay_counts_from_the_first_arrival(seed: int) -> None:
    """A retry at the next master gets the first answer, its due included."""
    with cluster(seed) as run:
        view = next(iter(run.clients.shards.values()))
        batch = IncomingBatch(
            np.array([1_500]), np.ones(1, np.uint8), np.array([4], np.uint32), np.zeros(1, np.uint32),
            np.zeros(1, np.uint32), b"m2/0", 7, 0,
        )  # fmt: skip
        view.messages[b"m2/0"] = Message(b"m2/0", set(), 0)
        dues: list[int] = []
        for _ in range(2):
            run.ask(view, batch, lambda appended: dues.extend(() if appended.due is None else appended.due.tolist()))
            if len(dues) == 1:
                view.messages[b"m2/0"].dues.add(dues[0])
                master = run.master()
                run.world.kill(master)
                run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch > 1, 20, "another term")
                run.world.start(master)
        assert dues[0] == dues[1]


@attack
def m3_unclean_failover_only_where_it_is_allowed(seed: int) -> None:
    with cluster(seed, clients=False, close=False, allow_unclean_failover=True) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.kill(slave)
        run.until(lambda: len(run.status().in_sync) == 1, 10, "the dead slave is out")
        run.world.kill(master, power=True)
        run.world.start(slave)
        run.until(lambda: run.master() == slave, 30, "chosen though it is not in sync")
