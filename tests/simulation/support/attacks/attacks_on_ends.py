"""Attacks on the quick failover: a process is known to have ended, and nothing is waited out (docs/protocol.md 4).

In each attack the supervisor reports an end at once, or as late as the schedule says.
"""

from __future__ import annotations

from unittest.mock import patch

from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replica.replica import Replica
from delaynode.replica.role import ReplicaRole
from delaynode.replication.term import in_sync_rule
from delaynode.replication.term.in_sync_rule import APPLIED_MS
from delaynode.replication.transport.until import wait_until

from tests.simulation.support.attacks.schedules import attack
from tests.simulation.support.machine.loop import MILLI, SECOND
from tests.simulation.support.stage import Run, cluster


def prompt(run: Run, delay_ns: int = 20 * MILLI) -> None:
    """From now on the supervisor reports each end of a process, after `delay_ns`."""
    run.world.control.supervisor.delay_ns = lambda: delay_ns


def served(run: Run, epoch: int) -> bool:
    return run.status().serving_epoch == run.shard().spec.epoch >= epoch


def counted_on(run: Run, node: str) -> set[str]:
    """The nodes whose copies the commits of this node's masters wait for."""
    process = run.world.machines[node].process
    leaders = [replica.leader for replica in process.replicas] if process is not None else []
    return {
        member.node
        for leader in leaders
        if leader is not None and leader.ended is None
        for member in leader.shipping.members.values()
        if member.replica_id in leader.in_sync.counted()
    }


@attack
def killed_master_is_followed_at_once(seed: int) -> None:
    """Another leads before any lease or promise runs out; frames of the old master that no peer had read do no harm."""
    for replicas in (2, 3):
        with cluster(seed, replicas=replicas, lease_seconds=3) as run:
            prompt(run)
            for epoch in (2, 3):
                master, started = run.master(), run.world.scheduler.now_ns
                for slave in run.slaves():
                    run.world.network.line(master, slave).stream_ns = 100 * MILLI
                run.world.kill(master)
                run.until(lambda epoch=epoch: served(run, epoch), 10, "another serves")  # type: ignore[misc]
                assert run.world.scheduler.now_ns - started < SECOND
                assert run.shard().spec.vacant
                assert len(run.status().in_sync) == replicas - 1, "who still runs has followed from the start"
                run.world.start(master)
                run.until(run.healthy, 30, "the killed one follows")


@attack
def killed_master_that_is_back_at_once_is_followed_at_once(seed: int) -> None:
    """The control loop may see the process that ended, the one that was started, or both in turn."""
    with cluster(seed, lease_seconds=3) as run:
        prompt(run, (seed % 4) * 300 * MILLI)
        for epoch in (2, 3, 4):
            started = run.world.scheduler.now_ns
            run.restart(run.master())
            run.until(lambda epoch=epoch: served(run, epoch), 10, "served again")  # type: ignore[misc]
            if seed % 4 == 0:
                assert run.world.scheduler.now_ns - started < 1_500 * MILLI
            run.until(run.healthy, 30, "healthy")


@attack
def node_that_stops_by_itself_keeps_nobody_waiting(seed: int) -> None:
    """No shard waits for its end, nor afterwards for a copy that began to follow anew while the node was leaving."""
    with cluster(seed, nodes=3, queues=3, lease_seconds=3) as run:
        for node in (*run.world.machines, *run.world.machines):
            process, asked = run.world.machines[node].process, run.world.scheduler.now_ns
            assert process is not None
            run.world.stop(node)
            run.until(lambda node=node: run.world.machines[node].process is None, 5, "it ends")  # type: ignore[misc]
            assert run.world.scheduler.now_ns - asked < 1_500 * MILLI, "as soon as others lead"
            run.world.run(0.01)
            assert not [name for name in run.world.machines if node in counted_on(run, name)]
            run.world.start(node)
            run.until(run.healthy, 30, "all are in sync again")


@attack
def copy_that_has_its_log_to_apply_keeps_no_commit_waiting(seed: int) -> None:
    """The copy's node is back and busy with applying, so it stores new frames late. The copy joins the in-sync set when
    it has applied its log, or after APPLIED_MS: some redundancy is better than none."""
    with cluster(seed, nodes=2) as run:
        slave, apply = run.slaves()[0], SlaveHost._apply
        busy = True

        def copies() -> list[Replica]:
            process = run.world.machines[slave].process
            return list(process.replicas) if process is not None else []

        async def held(self: SlaveHost, limit: int) -> None:
            await wait_until(lambda: not busy or all(copy.local.host is not self for copy in copies()), 0.01)
            await apply(self, limit)

        for through in (True, False):
            run.world.kill(slave)
            run.until(lambda: len(run.status().in_sync) == 1, 10, "the master goes on alone")
            run.world.run(1.0)
            busy = True
            with patch.object(SlaveHost, "_apply", held), patch.object(in_sync_rule, "APPLIED_BYTES", 0):
                run.world.start(slave)
                run.until(lambda: any(copy._follower.streaming for copy in copies()), 10, "it follows")
                run.world.run(APPLIED_MS / 1000 - 8 if through else APPLIED_MS / 2000)
                assert slave not in counted_on(run, run.master()), "it has its log to apply"
                if not through:
                    run.until(lambda: slave in counted_on(run, run.master()), APPLIED_MS / 1000, "it is counted on")
                busy = False
                run.until(run.healthy, 30, "all are in sync again")


@attack
def end_that_is_told_late_changes_nothing(seed: int) -> None:
    """The lease has run out by then, and another node may lead, or the same one."""
    with cluster(seed, replicas=3) as run:
        prompt(run, 2_300 * MILLI)
        for _ in range(3):
            run.world.kill(run.master())
            run.world.run(1.0)
            run.world.start_all()
            run.until(run.healthy, 30, "healthy")


@attack
def chosen_master_that_ends_before_it_serves_leaves_a_lease_to_wait_out(seed: int) -> None:
    """The master before it is only cut off from all that could inform it: it answers while its leases last."""
    with cluster(seed, replicas=3, lease_seconds=3) as run:
        prompt(run)
        master, one = run.master(), ""
        run.world.machines[master].weather.down = True

        def trouble() -> None:
            nonlocal one
            one = run.master()
            for slave in set(run.shard().spec.replicas) - {master}:
                run.cut(master, slave)
            run.world.kill(one)

        run.once(lambda shard: shard.spec.master != master, trouble)
        run.until(lambda: served(run, 3), 30, "the third copy serves")
        vacant = run.shard().spec.vacant
        run.world.run(2.0)
        assert (vacant, run.shard().spec.epoch) == (False, 3)
        assert run.master() not in (master, one, "")


@attack
def frozen_master_has_not_ended(seed: int) -> None:
    """A master that no peer hears has not ended either: it goes on within its leases, and no longer."""
    with cluster(seed, lease_seconds=3) as run:
        prompt(run)
        master, slave = run.master(), run.slaves()[0]
        for at in range(3):
            if run.master() != master:
                break
            run.world.freeze(master)
            run.at(0.3 + 0.2 * at, run.world.thaw, master)
            run.at(0.3 + 0.2 * at, run.cut, master, slave)
            run.at(0.6 + 0.2 * at, run.mend, master, slave)
            run.world.run(2.0)
        assert run.shard().spec.epoch == 1, "its term goes on"
        run.world.freeze(master)
        run.until(
            lambda: run.master() == slave and run.replica(slave).role is ReplicaRole.MASTER, 20, "the slave serves"
        )
        run.world.thaw(master)
        run.world.run(1.0)


@attack
def master_that_only_its_supervisor_takes_for_ended_would_serve_on(seed: int) -> None:
    """The supervisor reports the end of the node's former process late: that says nothing of the one that leads now."""
    with cluster(seed, lease_seconds=3) as run:
        master, slave = run.master(), run.slaves()[0]
        prompt(run, 6 * SECOND)
        run.restart(slave)
        run.until(run.healthy, 10, "it follows again")
        run.switch("t-0", slave)
        run.until(lambda: run.master() == slave and run.replica(slave).role is ReplicaRole.MASTER, 5, "it leads")
        epoch = run.shard().spec.epoch

        def trouble() -> None:
            run.world.machines[slave].weather.down = True
            run.cut(slave, master)

        run.once(lambda shard: shard.spec.epoch > epoch, trouble)
        run.world.run(7.0)
        assert run.shard().spec.epoch == epoch, "its term stands"


@attack
def control_loop_that_forgot_who_has_ended_takes_the_slow_way(seed: int) -> None:
    with cluster(seed) as run:
        prompt(run)
        run.world.control.up = False
        master = run.master()
        run.world.kill(master)
        run.world.run(0.5)
        supervisor = run.world.control.supervisor
        supervisor.ended = frozenset()
        run.world.control.restart()
        run.world.control.up = True
        run.until(lambda: served(run, 2), 20, "another serves")
        assert not run.shard().spec.vacant
        run.world.start(master)


@attack
def vacancy_is_of_its_epoch_alone(seed: int) -> None:
    """The copy that was chosen for a vacant shard reads of its choice late, when another term has begun."""
    with cluster(seed, replicas=3, lease_seconds=3) as run:
        prompt(run)
        master = run.master()
        for slave in run.slaves():
            run.world.machines[slave].weather.lag_ns = 1_500 * MILLI
        chosen: list[str] = []

        def trouble() -> None:
            chosen.append(run.master())
            run.isolate(chosen[0])
            run.world.machines[chosen[0]].weather.down = True

        run.once(lambda shard: shard.spec.vacant, trouble)
        run.world.kill(master)
        run.until(lambda: bool(chosen), 10, "a vacant shard")
        run.until(lambda: run.shard().spec.epoch > 2, 20, "a later term")
        assert not run.shard().spec.vacant
        run.rejoin(chosen[0])
        run.world.machines[chosen[0]].weather.down = False
        run.until(lambda: served(run, 3), 20, "it is served")
        run.world.start(master)


@attack
def successor_waits_for_the_former_master_though_a_third_node_is_stopped_for_long(seed: int) -> None:
    """That node's copy was not in sync any more: the report of its own end says nothing of others' copies."""
    with cluster(seed, nodes=3, replicas=3, queues=3) as run:
        master, (one, gone) = run.master(), run.slaves()
        run.world.stop(gone)  # it leads another shard, and so says that it stops
        run.until(lambda: run.world.machines[gone].process is None, 5, "it ends")
        run.until(lambda: len(run.status().in_sync) == 2, 10, "its copy is out of the in-sync set")
        first: list[int] = []
        run.once(
            lambda shard: shard.status is not None and shard.status.serving_epoch == 2,
            lambda: first.append(len(run.status().in_sync)),
        )
        run.switch("t-0", one)
        run.until(lambda: bool(first), 10, f"{one} serves in the place of {master}")
        assert first == [2], "the former master's copy has followed from the start"
