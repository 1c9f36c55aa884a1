"""More attacks, as in attacks.py: a chosen master lives, answers the operator, and can't begin the term that it was
chosen for: its way to the registry fails for this one shard."""

from __future__ import annotations

import asyncio

from delaynode.replica.role import ReplicaRole
from delayoperator.control_loop.term_starts import TAKE_UP_MS
from delayregistry.model import Condition, Version
from delayregistry.port import Conflict, OutcomeUnknown, RegistryError

from tests.simulation.support.attacks.attacks_on_terms import missing_for
from tests.simulation.support.attacks.schedules import attack
from tests.simulation.support.machine.loop import MILLI
from tests.simulation.support.stage import Run, cluster

PASSED_OVER_SECONDS = TAKE_UP_MS / 1000 + 8  # the 8 s: until the operator looks, and a lease to wait out
FOR_EVER = 600.0


def not_taken_up(run: Run) -> Condition | None:
    return next((it for it in run.shard().conditions if it.reason == "NotTakenUp"), None)


def served(run: Run) -> bool:
    return run.status().serving_epoch == run.shard().spec.epoch


def writes_refused(run: Run, node: str, error: RegistryError) -> None:
    """Let the node's writes of a shard's status fail; its reads are right."""
    process = run.world.machines[node].process
    assert process is not None

    def write_status(*_: object) -> Version:
        raise error

    process.registry.write_status = write_status  # type: ignore[method-assign]


@attack
def h3_404_for_the_chosen_one_alone_makes_way_for_another(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        met = missing_for(run, one, FOR_EVER)
        run.cut("control", other)  # so that `one` is chosen
        run.world.kill(master)
        run.until(lambda: run.master() == one, 20, "the one that finds no such shard is chosen")
        run.mend("control", other)
        run.until(lambda: run.master() == other and served(run), PASSED_OVER_SECONDS, "another serves")
        assert met() > 1
        assert run.replica(one).role is ReplicaRole.SLAVE
        stored = run.stored()
        run.until(lambda: run.stored() > stored, 5, "clients go on")


@attack
def chosen_one_whose_watch_never_shows_it_makes_way_for_another(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        run.world.machines[one].weather.lag_ns = 600_000 * MILLI
        run.cut("control", other)
        run.world.kill(master)
        run.until(lambda: run.master() == one, 20, "the one that hears nothing is chosen")
        run.mend("control", other)
        run.until(lambda: run.master() == other and served(run), PASSED_OVER_SECONDS, "another serves")


@attack
def chosen_one_whose_writes_are_refused_makes_way_for_another(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        forbidden = OutcomeUnknown("403 Forbidden") if seed % 2 else Conflict("404 Not Found")
        writes_refused(run, one, forbidden)
        run.cut("control", other)
        run.world.kill(master)
        run.until(lambda: run.master() == one, 20, "the one that may not write is chosen")
        run.mend("control", other)
        run.until(lambda: run.master() == other and served(run), PASSED_OVER_SECONDS, "another serves")


@attack
def sole_copy_that_finds_no_such_shard_is_named_until_it_does(seed: int) -> None:
    with cluster(seed, close=False) as run:
        master, slave = run.master(), run.slaves()[0]
        missing_for(run, slave, 40.0)
        run.world.kill(master)
        run.until(lambda: run.master() == slave, 20, "the only copy that is left is chosen")
        epoch = run.shard().spec.epoch
        run.until(lambda: not_taken_up(run) is not None, PASSED_OVER_SECONDS, "a condition names it")
        said = not_taken_up(run)
        assert said is not None
        for what in (slave, f"epoch {epoch}", " s", "the registry has no such shard", master):
            assert what in said.message
        run.until(lambda: served(run), 40, "it serves once its registry finds the shard")
        assert run.shard().spec.epoch == epoch, "no other term was tried meanwhile"
        run.until(lambda: not run.shard().conditions, 5, "nothing is said any more")
        stored = run.stored()
        run.until(lambda: run.stored() > stored, 5, "clients go on")


@attack
def two_that_find_no_such_shard_are_not_chosen_in_turn_all_the_time(seed: int) -> None:
    with cluster(seed, close=False, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        missing_for(run, one, FOR_EVER)
        missing_for(run, other, 100.0)
        run.world.kill(master)
        run.until(lambda: run.master() != master, 20, "one of the two is chosen")
        epoch, told = run.shard().spec.epoch, len(run.world.truth._views)
        run.world.run(60.0)
        assert 1 <= run.shard().spec.epoch - epoch <= 3, "the pause doubles"
        assert len(run.world.truth._views) - told < 20, "the object is not written all the time"
        assert not_taken_up(run) is not None
        run.until(lambda: served(run), 140, "the one that finds it again serves")
        assert run.master() == other


@attack
def chosen_copy_that_is_long_at_work_is_kept(seed: int) -> None:
    """Its disk has to take a lot before the copy may lead; meanwhile the copy answers as a candidate."""
    with cluster(seed, replicas=3, lag_seconds=60) as run:
        master, (one, other) = run.master(), run.slaves()
        storage, worked = run.replica(one).local.storage, []
        settle = storage.sync_log

        async def slowly() -> None:
            await asyncio.sleep(3 * TAKE_UP_MS / 1000)
            await settle()
            worked.append(1)

        storage.sync_log = slowly  # type: ignore[method-assign]
        run.cut("control", other)
        run.world.kill(master)
        run.until(lambda: run.master() == one, 20, "the one that has much to do is chosen")
        epoch = run.shard().spec.epoch
        run.mend("control", other)
        run.until(lambda: bool(worked) or run.shard().spec.epoch > epoch, 40, "it has done its work")
        run.world.run(5.0)
        assert (run.master(), run.shard().spec.epoch) == (one, epoch), "a copy at work was passed over"
        assert served(run)


@attack
def served_shard_is_not_given_back_to_one_that_could_not_begin(seed: int) -> None:
    """Balance wants each node to lead one of two shards."""
    with cluster(seed, nodes=2, queues=2, clients=False) as run:
        master, (slave,) = run.master(), run.slaves()
        run.switch("t-0", slave)
        run.until(lambda: run.master() == slave and served(run), 20, "the other one leads")
        missing_for(run, master, 120.0)
        run.until(lambda: run.master() == master, 40, "it is to have its shard back")
        run.until(lambda: run.master() == slave and served(run), PASSED_OVER_SECONDS, "it is passed over")
        epoch = run.shard().spec.epoch
        run.world.run(25.0)
        assert (run.shard().spec.epoch, served(run)) == (epoch, True), "the shard was stopped for it again"
