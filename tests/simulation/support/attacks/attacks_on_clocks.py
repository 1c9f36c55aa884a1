"""More attacks, as in attacks.py: clocks that are set (B13). A process runs the node's own judgement of its clock."""

from __future__ import annotations

from delayapi.units import HOUR_MS

from tests.simulation.support.attacks.schedules import attack
from tests.simulation.support.stage import cluster


@attack
def b13_clock_set_far_ahead_releases_nothing_early(seed: int) -> None:
    """By the master's clock alone all pending messages would be due. The process may have been restarted by then."""
    with cluster(seed) as run:
        master, epoch, stored = run.master(), run.shard().spec.epoch, run.stored()
        run.set_clock(master, HOUR_MS if seed % 2 else 5_000)
        run.world.run(5.0)
        assert run.shard().spec.epoch == epoch, "it goes on by its boot clock"
        assert run.stored() > stored
        run.restart(master)
        run.until(run.healthy, 20, "healthy, its clock as wrong as before")
        if run.master() != master:
            run.switch("t-0", master)
            run.until(lambda: run.master() == master, 10, "it may lead")
        run.world.run(4.0)


@attack
def b13_master_whose_clock_is_set_far_back_gives_its_shards_away(seed: int) -> None:
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        run.set_clock(master, -HOUR_MS if seed % 2 else -5_000)
        run.until(lambda: run.master() == slave, 15, "most peers' clocks say that it is wrong")
        delivered = run.clients.counts["delivered"]
        run.until(lambda: run.clients.counts["delivered"] > delivered + 20, 20, "what is due is delivered")
        run.switch("t-0", master)
        run.world.run(4.0)
        assert run.master() == slave, "nobody is chosen whose clock is wrong"
        run.world.machines[master].clocks.correct()
        run.until(lambda: run.master() == master and run.healthy(), 30, "its clock is right, and it may lead")


@attack
def sole_copy_whose_machine_boots_with_a_wrong_clock_releases_nothing_early(seed: int) -> None:
    """Only its peers can tell that its clock is wrong, and it serves again before or just after it has asked them."""
    with cluster(seed, replicas=1, nodes=4) as run:
        master = run.master()
        run.world.kill(master, power=True)
        run.set_clock(master, HOUR_MS)
        run.world.run(0.5)
        run.world.start(master)
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch > 1, 20, "it serves, as it has to")
        run.world.run(3.0)
        run.world.machines[master].clocks.correct()
        run.until(run.healthy, 20, "its clock is right")
