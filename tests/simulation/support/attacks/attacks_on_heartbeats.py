"""More attacks, as in attacks.py: heartbeats that an attacker forges, alters, replays and holds back."""

from __future__ import annotations

from dataclasses import replace

from delaynode.replication.protocol import Heartbeat, HeartbeatReply, encode_heartbeat

from tests.simulation.support.attacker import altered, granted, said
from tests.simulation.support.attacks.schedules import attack
from tests.simulation.support.machine.loop import MILLI
from tests.simulation.support.stage import Run, cluster

FRESH_SECONDS = 1.0  # half of the cluster's lease
FAILOVER_SECONDS = 12.0  # the operator's look, a lease, the choice


def cut_off(run: Run, master: str) -> None:
    """From all but the attacker."""
    run.isolate(master)
    weather = run.world.machines[master].weather
    weather.down, weather.fates = True, ("lost",)


def another_serves(run: Run, former: str) -> None:
    """The former master is cut off; another takes over, and answers."""
    run.until(lambda: run.master() != former, FAILOVER_SECONDS, "another is chosen")
    run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, FAILOVER_SECONDS, "another serves")
    run.world.run(2.0)


def forged_replies(seed: int, *, sealed: bool = True) -> None:
    """The master is cut off, and an attacker answers its heartbeats in the names of those it asks."""
    with cluster(seed, sealed=sealed) as run:
        master, network = run.master(), run.world.network

        def tap(source: str, target: str, data: bytes) -> bool:
            message = said(data)
            if source == master and isinstance(message, Heartbeat):
                network.inject(source, encode_heartbeat(granted(message, target)))
            return True

        network.tap = tap
        cut_off(run, master)
        another_serves(run, master)


@attack
def p1_forged_replies_keep_no_master_that_is_cut_off(seed: int) -> None:
    forged_replies(seed)


@attack
def p2_altered_replies_keep_no_master_that_is_cut_off(seed: int) -> None:
    with cluster(seed, sealed=True) as run:
        master, network = run.master(), run.world.network
        heard: dict[str, bytes] = {}

        def tap(source: str, target: str, data: bytes) -> bool:
            message = said(data)
            if target == master and isinstance(message, HeartbeatReply):
                heard[source] = data
            if source == master and isinstance(message, Heartbeat) and target in heard:
                network.inject(source, altered(heard[target], granted(message, target)))
            return True

        network.tap = tap
        run.world.run(1.0)
        cut_off(run, master)
        another_serves(run, master)


@attack
def p3_replayed_replies_keep_no_master_that_is_cut_off(seed: int) -> None:
    with cluster(seed, sealed=True) as run:
        master, network = run.master(), run.world.network
        heard: list[bytes] = []

        def tap(source: str, target: str, data: bytes) -> bool:
            message = said(data)
            if target == master and isinstance(message, HeartbeatReply) and network.reaches(source, target):
                heard.append(data)
            if source == master and not network.reaches(source, target):
                for reply in heard:
                    network.inject(master, reply)
            return True

        network.tap = tap
        run.world.run(1.0)
        cut_off(run, master)
        another_serves(run, master)


def count_answers(run: Run, slave: str, master: str) -> list[int]:
    """The ids of the master's heartbeats for which the slave was asked for leases: filled from now on."""
    process = run.world.machines[slave].process
    assert process is not None
    answer, answered = process.replica_leases.answer, list[int]()

    def counted(heartbeat: Heartbeat) -> HeartbeatReply:
        if heartbeat.node == master and heartbeat.shards:
            answered.append(heartbeat.heartbeat_id)
        return answer(heartbeat)

    process.replica_leases.answer = counted  # type: ignore[method-assign]
    return answered


@attack
def p4_heartbeat_that_was_held_back_binds_nobody(seed: int) -> None:
    with cluster(seed, sealed=True) as run:
        master, slave, network = run.master(), run.slaves()[0], run.world.network
        held: list[bytes] = []
        count = 0

        def tap(source: str, target: str, data: bytes) -> bool:
            nonlocal count
            if (source, target) != (master, slave):
                return True
            count += 1
            if count % 4 == 0:
                held.append(data)
            return count % 4 != 0

        network.tap = tap
        run.world.run(3.0)
        cut_off(run, master)
        run.world.run(FRESH_SECONDS + 0.01)
        assert len(held) > 2
        answered = count_answers(run, slave, master)
        for at, data in enumerate(held):
            run.world.scheduler.after(at * 100 * MILLI, network.inject, slave, data)
        another_serves(run, master)
        assert not answered, "a heartbeat of long ago counts"


@attack
def p5_a_heartbeat_counts_once(seed: int) -> None:
    with cluster(seed, sealed=True) as run:
        master, slave, network = run.master(), run.slaves()[0], run.world.network
        answered = count_answers(run, slave, master)

        def tap(source: str, target: str, data: bytes) -> bool:
            if (source, target) == (master, slave):
                for after_ms in (1, 20, 400, 1_500):
                    run.world.scheduler.after(after_ms * MILLI, network.inject, target, data)
            return True

        network.tap = tap
        run.world.run(3.0)
        assert len(answered) > 5, "leases were granted"
        assert len(answered) == len(set(answered)), "a heartbeat counts twice"


@attack
def p6_heartbeats_of_a_process_that_has_ended_count_for_nothing(seed: int) -> None:
    with cluster(seed, sealed=True) as run:
        master, network = run.master(), run.world.network
        heard: list[tuple[str, bytes]] = []

        def tap(source: str, target: str, data: bytes) -> bool:
            heard.append((target, data))
            return True

        network.tap = tap
        run.world.run(2.0)
        for name in run.world.machines:
            run.restart(name)
        network.tap = None
        for at, (target, data) in enumerate(heard):
            run.world.scheduler.after(at * 5 * MILLI, network.inject, target, data)
            now = replace(said(data), incarnation=1)
            run.world.scheduler.after(at * 5 * MILLI, network.inject, target, altered(data, now))
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch > 1, 30, f"{master} or another serves")
