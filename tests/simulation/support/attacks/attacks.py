"""The replication attacks on an earlier wording of the design, each as a schedule written by hand.

Every schedule ends with all troubles over, the cluster healthy, everything acknowledged delivered, and all copies the
same (Run.close()); meanwhile the checker looks at every commit, answer and registry write.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from delaynode.replica.role import ReplicaRole
from delaynode.replication.peer_replica import Phase
from delaynode.replication.protocol import Ack
from delayregistry.model import Durability

from tests.simulation.support.attacks.schedules import attack, shrink
from tests.simulation.support.machine.loop import MILLI, SECOND
from tests.simulation.support.stage import cluster


# ---------------------------------------------------------------- the in-sync set
@attack
def b1_master_dies_between_the_larger_set_and_its_answer(seed: int) -> None:
    power = seed % 2 == 0
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        run.world.machines[master].weather.script.append(("write_status", "done"))
        run.once(lambda shard: len(run.status().in_sync) == 2, lambda: run.world.kill(master, power=power))
        run.world.start(slave)
        run.until(lambda: run.master() == slave, 20, "the slave that was just recorded takes over")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")
        run.world.run(1.0)


@attack
def b1_master_that_may_have_recorded_a_slave_waits_for_it(seed: int) -> None:
    """The master has no answer to its write yet, the registry has the larger set, and what the master sends is late."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        line = run.world.network.line(master, slave)
        late = partial(setattr, line, "stream_ns", 300 * MILLI)
        run.world.machines[master].weather.script.append(("write_status", "done"))
        run.once(lambda shard: shard.status is not None and len(shard.status.in_sync) == 2, late)
        run.world.start(slave)
        run.until(lambda: len(run.status().in_sync) == 2, 20, "the larger set has landed")
        run.world.run(0.45)
        run.world.kill(master, power=True)
        line.stream_ns = 0
        run.until(lambda: run.master() == slave, 20, "the slave that was just recorded takes over")


@attack
def b1_larger_set_lands_after_the_master_has_given_it_up(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        run.world.machines[master].weather.script.append(("write_status", "later"))
        run.world.start(slave)
        run.until(lambda: not run.world.machines[master].weather.script, 20, "the larger set was sent")
        run.world.machines[master].weather.down = True  # the master can't read what became of its write
        run.world.kill(slave)
        run.world.run(3.0)
        run.world.kill(master, power=True)
        run.world.start(slave)
        run.world.run(8.0)


@attack
def a1_other_writers_of_the_object_depose_nobody(seed: int) -> None:
    with cluster(seed) as run:
        epoch, slave = run.shard().spec.epoch, run.slaves()[0]

        def touch() -> None:
            shard = run.shard()
            run.world.truth.change(shard.name, shard.version, lambda one: replace(one, conditions=one.conditions))

        for at in range(400):
            run.at(at * 0.01, touch)
        shrink(run, slave)
        run.world.start(slave)
        run.until(run.healthy, 20, "the slave is in sync again, between all those writes")
        assert run.shard().spec.epoch == epoch


@attack
def a7_second_death_right_after_a_failover_loses_nothing(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        first = run.master()
        run.world.kill(first)
        run.until(lambda: run.master() != first, 15, "another master")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 15, "it serves")
        assert len(run.status().in_sync) == 2, "the third copy followed the new master from the start"
        second = run.master()
        run.world.run(0.3)
        stored = run.stored()
        run.world.kill(second, power=True)
        run.until(lambda: run.master() not in (first, second), 15, "the third takes over")
        run.until(lambda: run.stored() > stored, 15, "it serves")


@attack
def a9_below_min_in_sync_nothing_is_acknowledged_but_releases_go_on(seed: int) -> None:
    with cluster(seed, min_in_sync=2) as run:
        shrink(run, run.slaves()[0])
        stored, delivered = run.stored(), run.clients.counts["delivered"]
        run.world.run(3.0)
        assert run.stored() == stored
        assert run.clients.reasons["NOT_ENOUGH_REPLICAS"] > 0
        assert run.clients.counts["delivered"] > delivered


@attack
def a9_retry_is_not_acknowledged_while_the_second_copy_lacks_the_batch(seed: int) -> None:
    """The master committed the batch alone and refused it. Now the slave is back and joins, but lacks the batch."""
    with cluster(seed, min_in_sync=2, lag_seconds=10) as run:
        slave = run.slaves()[0]
        shrink(run, slave)
        stored, leader = run.stored(), run.replica(run.master()).leader
        assert leader is not None
        end, (view,) = leader.shipping.committed_offset, run.clients.shards.values()
        with run.world.client_loop.running():
            run.clients.spawn(run.clients.send(view, 777, 0, run.world.random("one more")))
        run.until(lambda: leader.shipping.committed_offset > end, 5, "it is committed alone")
        run.world.start(slave)
        (member,) = leader.shipping.members.values()
        run.until(lambda: member.phase is Phase.STREAMING, 10, "the slave follows")
        run.world.machines[slave].disk.hung_until_ns = run.world.scheduler.now_ns + 8 * SECOND
        process = run.world.machines[run.master()].process
        assert process is not None
        with process.loop.running():  # the slave has said what it has, and that is not all
            leader.shipping.received(slave, Ack(leader.term.uid, leader.term.epoch, end, 0))
        run.until(lambda: bool(leader.in_sync.joining), 7, "it joins, as near as it has been for so long")
        assert member.durable < leader.shipping.committed_offset
        run.world.run(0.8)
        assert run.stored() == stored, "acknowledged while the second copy lacks it"


# ---------------------------------------------------------------- terms
@attack
def b2_master_ships_before_its_own_disk_has_it_and_comes_back_at_once(seed: int) -> None:
    with cluster(seed) as run:
        master, epoch = run.master(), run.shard().spec.epoch
        disk = run.world.machines[master].disk
        disk.hung_until_ns = run.world.scheduler.now_ns + 900 * MILLI
        run.world.run(0.6)
        run.world.kill(master, power=True)
        run.world.start(master)
        run.until(lambda: run.shard().spec.epoch > epoch, 15, "its term is not resumed")
        run.world.run(2.0)


@attack
def b2_master_that_comes_back_alone_does_not_write_its_epoch_twice(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.machines[master].disk.hung_until_ns = run.world.scheduler.now_ns + 900 * MILLI
        run.world.run(0.6)  # what it ships now, its own disk does not get
        run.cut(master, slave)
        run.world.control.up = False
        run.world.kill(master, power=True)
        run.world.start(master)
        run.world.run(6.0)
        run.mend(master, slave)
        run.world.run(1.0)


@attack
def b3_deposed_master_drops_what_was_not_committed(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.cut(master, slave)
        run.world.run(0.15)  # it goes on appending, and nothing of that commits
        assert run.replica(master).shard is not None
        run.isolate(master)
        run.world.machines[master].weather.down = True
        run.until(lambda: run.master() == slave, 20, "the slave takes over")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")
        run.world.run(1.0)
        run.rejoin(master)
        run.world.machines[master].weather.down = False
        run.until(run.healthy, 30, "the former master follows")


@attack
def b5_copy_whose_disk_failed_once_is_never_trusted_again(seed: int) -> None:
    with cluster(seed) as run:
        slave = run.slaves()[0]
        before = run.replica(slave).local.storage.replica_id
        run.fail_disk(slave)
        run.until(lambda: before not in run.status().in_sync, 10, "its copy is out of the in-sync set")
        run.until(run.healthy, 30, "another copy was fetched")
        assert run.replica(slave).local.storage.replica_id != before


@attack
def b5_master_whose_disk_failed_once_gives_way(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        before = run.replica(master).local.storage.replica_id
        run.fail_disk(master)
        run.until(lambda: run.master() == slave, 15, "the slave takes over")
        run.until(run.healthy, 30, "the failed copy was replaced")
        assert before not in run.status().in_sync


@attack
def b6_power_cut_of_the_whole_cluster_loses_nothing_that_was_synced(seed: int) -> None:
    with cluster(seed) as run:
        for name in run.world.machines:
            run.world.kill(name, power=True)
        run.world.run(1.0)
        run.world.start_all()
        run.until(run.healthy, 40, "the same copies serve again")


@attack
def b6_killed_process_keeps_its_page_cache_with_async_and_one_replica(seed: int) -> None:
    with cluster(seed, replicas=1, durability=Durability.ASYNC) as run:
        entry = run.status().in_sync
        run.restart(run.master())
        run.until(run.healthy, 30, "the only copy serves again")
        assert run.status().in_sync == entry


@attack
def a13_acknowledgement_is_good_at_the_next_master(seed: int) -> None:
    with cluster(seed) as run:
        for _ in range(3):
            master = run.master()
            delivered = run.clients.counts["delivered"]
            run.restart(master)
            run.until(lambda master=master: run.master() != master or run.healthy(), 20, "a term after it")  # type: ignore[misc]
            run.until(lambda count=delivered: run.clients.counts["delivered"] > count + 20, 20, "consumers go on")  # type: ignore[misc]


# ---------------------------------------------------------------- promises
@attack
def a2_restarted_slave_waits_out_what_it_may_have_promised(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.cut(slave, master, both=False)  # the master's own lease lives on for a while
        run.world.freeze(master)
        run.restart(slave)
        started = run.world.scheduler.now_ns
        run.until(lambda: run.master() == slave, 20, "the slave is chosen")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 20, "it serves")
        assert run.world.scheduler.now_ns - started >= 2 * SECOND
        run.world.thaw(master)
        run.world.run(2.0)


@attack
def a2_chosen_slave_stops_granting_leases_though_its_replies_get_lost(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.cut(slave, master, both=False)  # heartbeats come, replies do not get back
        run.cut("control", master)
        run.world.machines[master].weather.down = True
        run.until(lambda: run.master() == slave, 20, "the slave is chosen")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "the lease that it granted ran out")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, 10, "it serves")


@attack
def a2_late_release_does_not_void_a_newer_lease(seed: int) -> None:
    with cluster(seed) as run:
        master, slave, uid = run.master(), run.slaves()[0], run.shard().spec.uid
        run.world.control.up = False  # no control loop takes the switchover up
        run.switch("t-0", slave)
        line = run.world.network.line(master, slave)
        late = partial(setattr, line, "stream_ns", 2_400 * MILLI)
        run.once(lambda shard: shard.status is not None and shard.status.handover is not None, late)
        run.until(lambda: run.status().handover is not None, 5, "the master has stopped")
        run.until(lambda: run.status().handover is None, 10, "and takes it back")
        run.world.run(0.1)
        for _ in range(100):
            run.world.run(0.01)
            assert run.replica(slave).context.replica_leases.wait_ms(uid) > 0, "what was promised anew stands"
        line.stream_ns = 0


@attack
def a2_chosen_slave_waits_while_a_master_that_is_cut_off_may_serve(seed: int) -> None:
    """The master does not learn of the choice: no registry, no message and no reply reaches it."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.machines[master].weather.down = True
        run.once(lambda shard: shard.spec.master == slave, lambda: run.cut(master, slave))
        run.until(lambda: run.master() == slave, 20, "the slave is chosen")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")
        run.world.run(2.0)


@attack
def a2_lease_counts_from_before_its_heartbeat_however_late_the_reply(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.network.line(slave, master).latency_ns = 850 * MILLI
        run.world.machines[master].weather.down = True
        deaf = partial(run.cut, master, slave, both=False)  # replies to what was asked before still come
        run.once(lambda shard: shard.spec.master == slave, deaf)
        run.until(lambda: run.master() == slave, 20, "the slave is chosen")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")
        run.world.run(2.0)


@attack
def a2_slave_restarted_when_it_is_chosen_waits_all_the_same(seed: int) -> None:
    with cluster(seed, lease_seconds=3) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.machines[master].weather.down = True

        def trouble() -> None:
            run.cut(master, slave)
            run.restart(slave)

        run.once(lambda shard: shard.spec.master == slave, trouble)
        run.until(lambda: run.status().serving_epoch > 1, 30, "it serves")
        run.world.run(2.0)


@attack
def a2_master_that_only_its_registry_has_lost_is_told_by_its_slave(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.machines[master].weather.down = True
        run.until(lambda: run.master() == slave, 20, "the slave is chosen")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 5, "it serves")
        run.until(lambda: run.replica(master).role is not ReplicaRole.MASTER, 2, "the former master knows")


@attack
def third_copy_follows_no_deposed_master(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        run.world.machines[master].weather.down = True
        run.cut(master, one)
        run.cut("control", other)  # so that `one` is chosen
        deaf = partial(setattr, run.world.network.line(other, master), "loss", 1.0)  # no heartbeat tells it
        run.once(lambda shard: shard.spec.master == one, deaf)
        run.until(lambda: run.master() == one, 20, "another master")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")
        for _ in range(3):
            run.world.network.break_links(master, other)
            run.world.run(0.7)


@attack
def frozen_master_answers_nothing_after_its_leases(seed: int) -> None:
    with cluster(seed) as run:
        master = run.master()
        run.world.freeze(master)
        run.until(lambda: run.master() != master, 20, "another master")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")
        run.world.run(1.0)
        run.world.thaw(master)
        run.world.run(1.0)
