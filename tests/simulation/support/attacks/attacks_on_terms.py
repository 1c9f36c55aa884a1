"""More attacks, as in attacks.py: terms that end, or never begin, though the shard's object says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from delaynode.replica.role import ReplicaRole
from delaynode.replication.protocol import Heartbeat, encode_heartbeat
from delayregistry.model import ShardObject

from tests.simulation.support.attacks.schedules import attack, shrink
from tests.simulation.support.machine.loop import MILLI
from tests.simulation.support.stage import Run, cluster

UNSERVED_SECONDS = 15.0  # from the end of a term until another is served: the operator's look, a lease, the choice
MOST_EPOCH = 2**32 - 1


def missing_for(run: Run, node: str, seconds: float, *, answers: int = 1_000) -> Callable[[], int]:
    """Let the node's consistent reads find no such shard: for so long, `answers` times at most. Returns their count."""
    machine = run.world.machines[node]
    assert machine.process is not None
    access, until_ns, met = machine.process.registry, run.world.scheduler.now_ns + int(seconds * 1e9), 0
    get = access.get_shard

    def get_shard(name: str) -> ShardObject | None:
        nonlocal met
        found = get(name)
        if met >= answers or run.world.scheduler.now_ns >= until_ns:
            return found
        met += 1
        return None

    access.get_shard = get_shard  # type: ignore[method-assign]
    return lambda: met


def read_again(run: Run, node: str) -> None:
    """Make the node's master read the object before its next write, as after any conflict."""
    leader = run.replica(node).leader
    assert leader is not None
    leader.writer._version = None


# ---------------------------------------------------------------- H3: "not found" that is not true
@attack
def h3_one_404_ends_no_term(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        met = missing_for(run, master, 60.0, answers=1)
        read_again(run, master)
        run.world.kill(slave)
        run.until(lambda: len(run.status().in_sync) == 1, 10, "the dead slave is out of the in-sync set")
        stored = run.stored()
        run.until(lambda: run.stored() > stored + 5, 5, "the master goes on without it")
        assert met() == 1
        assert run.shard().spec.epoch == 1, "nobody had to be chosen"


@attack
def h3_404_for_a_while_ends_no_term(seed: int) -> None:
    with cluster(seed, lag_seconds=4) as run:
        master, slave = run.master(), run.slaves()[0]
        missing_for(run, master, 3.5)
        read_again(run, master)
        run.world.kill(slave)
        run.until(lambda: len(run.status().in_sync) == 1, 10, "the dead slave is out of the in-sync set")
        assert run.shard().spec.epoch == 1, "nobody had to be chosen"


@attack
def h3_404_that_stays_makes_way_for_another_master(seed: int) -> None:
    with cluster(seed, lag_seconds=2, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        missing_for(run, master, 60.0)
        read_again(run, master)
        run.world.kill(one)
        run.until(lambda: run.replica(master).role is not ReplicaRole.MASTER, 10, "the master steps down")
        run.until(lambda: run.master() == other, UNSERVED_SECONDS, "another master is chosen")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")


@attack
def h3_sole_copy_whose_term_ended_leads_again(seed: int) -> None:
    with cluster(seed, lag_seconds=2) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        missing_for(run, master, 6.0)
        read_again(run, master)
        run.world.start(slave)  # a larger set is to be written
        run.until(lambda: run.replica(master).role is not ReplicaRole.MASTER, 10, "the master steps down")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, UNSERVED_SECONDS, "the shard is served again")


@attack
def h3_forged_epoch_makes_way_for_another_term(seed: int) -> None:
    with cluster(seed) as run:
        master = run.master()
        run.replica(master).context.replica_leases.on_higher(run.shard().spec.uid, MOST_EPOCH)
        run.until(lambda: run.replica(master).role is not ReplicaRole.MASTER, 5, "the master steps down")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, UNSERVED_SECONDS, "the shard is served again")
        assert run.shard().spec.epoch == 2


@attack
def h3_master_that_is_slow_to_answer_is_kept(seed: int) -> None:
    with cluster(seed) as run:
        run.cut("control", run.master())
        run.world.run(15.0)
        assert run.shard().spec.epoch == 1, "a node that gives the operator no answer still serves"


# ---------------------------------------------------------------- M1: a term that was refused
@attack
def m1_in_sync_copy_that_is_back_leads_where_another_was_chosen_uncleanly(seed: int) -> None:
    with cluster(seed, close=False) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        run.world.kill(master)
        run.world.start(slave)
        run.world.run(2.0)
        allow(run, True)
        machine = run.world.machines[slave]
        machine.weather.lag_ns = 600_000 * MILLI  # it does not hear of the spec or of its choice yet
        run.until(lambda: run.master() == slave, 20, "the copy outside is chosen")
        allow(run, False)
        machine.weather.lag_ns = 20 * MILLI
        run.world.run(3.0)
        assert run.status().serving_epoch < run.shard().spec.epoch, "it refuses"
        run.until(
            lambda: "NodeAway" in [it.reason for it in run.shard().conditions], 5, "a condition says who is awaited"
        )
        run.world.start(master)
        run.until(lambda: run.master() == master, UNSERVED_SECONDS, "the in-sync copy is chosen when it is back")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, 10, "it serves")


def allow(run: Run, unclean: bool) -> None:
    cluster_object = run.world.truth.now.cluster
    assert cluster_object is not None
    desired = replace(cluster_object.spec, allow_unclean_failover=unclean)
    run.world.truth.put_cluster(desired, cluster_object.version)


# ---------------------------------------------------------------- M4: an epoch that no master has begun
@attack
def m4_forged_heartbeat_does_no_harm(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        uid, stored = run.shard().spec.uid, run.stored()
        process = run.world.machines[slave].process
        assert process is not None
        for node in ("anybody", master):
            for number in range(20):
                process.datagram(encode_heartbeat(Heartbeat(node, 1, number, 0, ((uid, MOST_EPOCH),))))
        run.world.run(10.0)
        assert run.stored() > stored + 20
        assert (run.shard().spec.epoch, len(run.status().in_sync)) == (1, 2)


@attack
def m4_new_master_is_promised_by_a_slave_that_has_not_heard_of_it(seed: int) -> None:
    with cluster(seed, replicas=3, nodes=3) as run:
        master, (one, other) = run.master(), run.slaves()
        run.world.machines[one].weather.lag_ns = 60_000 * MILLI  # it renews its lease, but hears of no choice
        missing_for(run, one, 60.0)
        run.cut("control", one)  # so that the other is chosen
        run.world.kill(master)
        run.until(lambda: run.status().serving_epoch == 2, 15, "another serves")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, 5, "it has the leases that it needs")
        assert (run.master(), len(run.status().in_sync)) == (other, 2)


# ---------------------------------------------------------------- M2: no word from the registry
def outage(run: Run, down: bool) -> None:
    for weather in (*(machine.weather for machine in run.world.machines.values()), run.world.control.weather):
        weather.down = down


@attack
def m2_switchover_stops_nothing_while_the_registry_gives_no_answer(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        leader = run.replica(master).leader
        assert leader is not None
        run.switch("t-0", slave)
        run.until(lambda: leader.switchover._switching is not None, 10, "the master begins to hand over")
        outage(run, True)
        stored = run.stored()
        run.world.run(30.0)
        assert run.stored() > stored + 50, "the master goes on"
        outage(run, False)
        run.until(
            lambda: run.master() == slave and run.replica(slave).role is ReplicaRole.MASTER, 20, "the other leads then"
        )


@attack
def m2_out_voted_clock_stops_no_shard_that_nobody_could_take_over(seed: int) -> None:
    with cluster(seed, nodes=4) as run:
        master = run.master()
        outage(run, True)
        run.set_clock(master, -5_000)
        run.world.run(5.0)
        stored = run.stored()
        run.world.run(15.0)
        assert run.stored() > stored + 10, "messages are taken in"
        outage(run, False)
        run.until(lambda: run.master() != master, 20, "another leads once the registry answers")
