"""More attacks, as in attacks.py: the object is made anew or restored, or names a node that is lost (A10, A11)."""

from __future__ import annotations

from dataclasses import replace

from delaynode.replica.role import ReplicaRole
from delayregistry.model import BootstrapVolumes, ShardSpec

from tests.simulation.support.attacks.attacks_on_copies import batch_of
from tests.simulation.support.attacks.schedules import attack, shrink
from tests.simulation.support.machine.loop import SECOND
from tests.simulation.support.people import adopt
from tests.simulation.support.stage import Run, cluster
from tests.simulation.support.workload import ShardView


def directories(run: Run, node: str, uid: int) -> list[str]:
    """Files of that shard's copy on the node's disk."""
    return [path for path in run.world.machines[node].disk.files.files if f"/shards/t-0-{uid:016x}/" in path]


# ---------------------------------------------------------------- A10: the object
@attack
def a10_topic_that_is_made_again_has_nothing_of_the_former_one(seed: int) -> None:
    """A node was away meanwhile: its copy has the highest epoch and log end of all copies called t-0. The spec
    says that the new one is to be empty."""
    with cluster(seed, clients=False, bootstrap_volumes=BootstrapVolumes.IGNORE) as run:
        other, away = run.master(), run.slaves()[0]
        old, due = run.shard().spec.uid, run.world.true_ms() + 6_000
        for number in range(5):
            run.ask(ShardView(old, "t-0"), batch_of(b"old/%d" % number, due, 5, number), lambda appended: None)
        for to in (away, other, away):
            run.switch("t-0", to)
            run.until(lambda to=to: run.master() == to and run.healthy(), 20, "switched over")  # type: ignore[misc]
        run.world.control.up = False
        run.world.kill(away)
        run.world.truth.delete("t-0")
        new = ShardSpec(old ^ 0x5EED, "t", 0, (other, away))
        run.world.truth.create(new)
        run.world.start(away)
        run.world.control.up = True
        run.until(run.healthy, 30, "the new shard is served")
        assert run.shard().spec.epoch < 4, "its epochs begin anew"
        run.clients.begin(new.uid, "t-0")
        run.world.run(8.0)  # what the former shard had is due by now
        assert directories(run, away, old), "what it had is kept for whoever wants it back"


@attack
def a10_registry_restored_from_an_older_state_names_no_master_of_the_past(seed: int) -> None:
    with cluster(seed) as run:
        former, slave = run.master(), run.slaves()[0]
        older = run.shard()
        run.switch("t-0", slave)
        run.until(lambda: run.master() == slave and run.healthy(), 20, "a term that the saved state does not know")
        run.world.truth.restore(older)
        run.world.run(1.0)
        for node in (former, slave) if seed % 2 else (slave, former):
            run.restart(node)
        run.until(lambda: _blocked(run) == ["RegistryBehind"], 20, "it is seen, and said")
        stored = run.stored()
        run.world.run(8.0)
        assert run.shard().spec.epoch == older.spec.epoch, "nobody is chosen for an epoch that was had before"
        assert run.stored() == stored, "nobody serves"
        (reason,) = adopt(run)
        assert f"the registry knows of epoch {older.spec.epoch} only" in reason
        run.until(run.healthy, 30, "served again")
        assert run.shard().spec.epoch > older.spec.epoch + 1, "above every epoch that a copy has"


@attack
def a10_status_that_was_lost_is_made_again_from_the_copies(seed: int) -> None:
    """By itself, or by a person's word where the spec wants that."""
    refuse = seed % 2 == 0
    policy = BootstrapVolumes.REFUSE if refuse else BootstrapVolumes.ADOPT
    with cluster(seed, bootstrap_volumes=policy) as run:
        for node in run.world.machines:
            run.world.kill(node)
        shard = run.shard()
        run.world.truth.change(shard.name, shard.version, lambda one: replace(one, status=None))
        run.world.start_all()
        if refuse:
            run.until(lambda: _blocked(run) == ["StatusLost"], 20, "it is seen, and said")
            (reason,) = adopt(run)
            assert "its status is gone" in reason
        run.until(run.healthy, 30, "served again, with all that was acknowledged")


def _blocked(run: Run) -> list[str]:
    return [condition.reason for condition in run.shard().conditions]


# ---------------------------------------------------------------- A11: a node that stays away
@attack
def a11_node_that_is_away_too_long_is_replaced_and_gives_its_copy_up_when_it_is_back(seed: int) -> None:
    with cluster(seed, replace_after_seconds=6) as run:
        away, uid = (run.slaves()[0] if seed % 2 else run.master()), run.shard().spec.uid
        run.world.kill(away, power=seed % 3 == 0)
        run.world.run(4.0)
        assert away in run.shard().spec.replicas, "it may come back"
        run.until(lambda: away not in run.shard().spec.replicas and run.healthy(), 40, "another has its copy")
        assert directories(run, away, uid)
        run.world.machines[away].weather.lag_ns = 4 * SECOND  # it learns late that it has been replaced
        run.world.start(away)
        epoch = run.shard().spec.epoch
        run.until(lambda: not directories(run, away, uid), 20, "its copy goes")
        assert (run.shard().spec.epoch, away in run.shard().spec.replicas) == (epoch, False)


@attack
def a11_node_that_is_back_before_its_replacement_has_all_is_needed_yet(seed: int) -> None:
    """The node's copy is in sync again when the master dies; the copy that should replace it is not."""
    with cluster(seed, replace_after_seconds=5) as run:
        master, away, uid = run.master(), run.slaves()[0], run.shard().spec.uid
        (spare,) = {*run.world.machines} - {master, away}
        run.cut(master, spare)
        run.world.kill(away)
        run.until(lambda: spare in run.shard().spec.replicas, 30, "it is to be replaced")
        run.world.start(away)
        run.until(lambda: len(run.status().in_sync) == 2, 20, "it is in sync again")
        run.world.run(2.0)
        assert directories(run, away, uid), "its copy stays while the other one is not in sync"
        run.world.kill(master, power=True)
        run.until(lambda: run.master() == away, 20, "it takes over")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 15, "it serves")


@attack
def a11_sole_copy_in_sync_is_not_replaced_however_long_its_node_is_away(seed: int) -> None:
    with cluster(seed, replace_after_seconds=4) as run:
        master, slave = run.master(), run.slaves()[0]
        shrink(run, slave)
        epoch = run.shard().spec.epoch
        run.world.kill(master, power=True)
        run.world.start(slave)
        run.world.run(15.0)
        shard = run.shard()
        assert (shard.spec.epoch, shard.spec.target, run.replica(slave).role) == (epoch, None, ReplicaRole.SLAVE)
        assert _blocked(run) == ["NodeAway"], "it is waited for, and that is said"
        run.world.start(master)
        run.until(run.healthy, 30, "it serves again")


@attack
def copy_that_went_and_is_wanted_again_behind_its_masters_back_is_made_anew(seed: int) -> None:
    """The master hears of neither, and streams on to a copy that is not there."""
    with cluster(seed) as run:
        master, slave, uid = run.master(), run.slaves()[0], run.shard().spec.uid
        other = next(node for node in run.world.machines if node not in run.shard().spec.replicas)
        weather = run.world.machines[master].weather
        run.once(lambda shard: slave not in shard.spec.replicas, lambda: setattr(weather, "down", True))
        run.move("t-0", (master, other))
        run.until(lambda: weather.down and not directories(run, slave, uid), 20, "the copy is gone")
        run.move("t-0", (master, slave))
        run.until(lambda: slave in run.shard().spec.replicas, 10, "it is wanted again")
        run.world.run(0.5)
        weather.down = False
        run.until(lambda: slave in run.shard().spec.replicas and run.healthy(), 30, "moved back")
