"""Containment (docs/containment.md): a wrong byte or object harms one copy at most, and the cluster mends it.

Every run also ends as all others do: healthy by itself, with everything delivered, and all copies the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from delayregistry.model import Handover, NodeLease, ShardSpec, ShardStatus, Switchover

from tests.simulation.support.stage import Run, cluster

HARMED = ("copy-damaged", "shard-damaged", "copy-discarded")
SECONDS = 12.0


def harmed(run: Run) -> set[str]:
    """The nodes that have called a copy damaged, or thrown one away."""
    return {line.split()[1] for line in run.world.trace.lines() if line.split()[4:5] and line.split()[4] in HARMED}


# ---------------------------------------------------------------- one wrong byte
@pytest.mark.parametrize("part", ["timerlog/", "queue/", "checkpoint", "shard.json", "wheels"])
@pytest.mark.parametrize("role", ["master", "slave"])
@pytest.mark.parametrize("seed", [1, 3])
def test_a_flipped_bit_in_a_file_costs_that_copy_at_most(part: str, role: str, seed: int) -> None:
    """The node finds it when it starts or reads; the copy is thrown away, fetched again, and joins."""
    rng = random.Random(f"{seed}/{part}/{role}")
    with cluster(seed) as run:
        run.world.run(2.0)
        uid, node = run.shard().spec.uid, run.master() if role == "master" else run.slaves()[0]
        run.world.stop(node)
        run.until(lambda: run.world.machines[node].process is None, 15, "stopped, with a checkpoint")
        disk = run.world.machines[node].disk.files
        paths = [path for path in sorted(disk.files) if f"-{uid:016x}/{part}" in path and disk.files[path].data]
        path = rng.choice(paths)
        run.world.checker.harm(uid, node)
        disk.flip(path, rng.randrange(8 * len(disk.files[path].data)))
        run.world.start(node)
        run.world.run(3.0)
    assert harmed(run) <= {node}


# ---------------------------------------------------------------- one wrong object
def of_spec(change: Callable[[ShardSpec, Run], ShardSpec]) -> Callable[[Run], None]:
    def put(run: Run) -> None:
        before = run.shard()
        run.world.truth.change(before.name, before.version, lambda one: replace(one, spec=change(one.spec, run)))

    return put


def of_status(change: Callable[[ShardStatus], ShardStatus | None]) -> Callable[[Run], None]:
    def put(run: Run) -> None:
        before = run.shard()
        assert before.status is not None
        run.world.truth.restore(replace(before, status=change(before.status)))

    return put


def of_lease(change: Callable[[NodeLease], NodeLease]) -> Callable[[Run], None]:
    def put(run: Run) -> None:
        (lease,) = (one for one in run.world.truth.leases() if one.node == run.master())
        run.world.truth.renew(change(lease))

    return put


def outside(run: Run) -> str:
    return next(node for node in run.world.machines if node not in run.shard().spec.replicas)


def deleted(run: Run) -> None:
    run.world.truth.delete("t-0")


def replaced(run: Run) -> None:
    """Deleted and put back, as a backup tool or `kubectl replace --force` does it."""
    before = run.shard()
    run.world.truth.delete("t-0")
    run.at(0.1, lambda: run.world.truth._put(shards=(replace(before, version=run.world.truth._version()),)))


WRONG: dict[str, Callable[[Run], None]] = {
    "spec.epoch 1000 higher": of_spec(lambda spec, run: replace(spec, epoch=spec.epoch + 1000)),
    "spec.epoch one higher, another master": of_spec(
        lambda spec, run: replace(spec, epoch=spec.epoch + 1, master=run.slaves()[0])
    ),
    "spec.master nobody": of_spec(lambda spec, run: replace(spec, master=None)),
    "spec.master without a copy": of_spec(lambda spec, run: replace(spec, master=outside(run))),
    "spec.master a slave": of_spec(lambda spec, run: replace(spec, master=run.slaves()[0])),
    "spec.incarnation forged": of_spec(lambda spec, run: replace(spec, incarnation="forged")),
    "spec.replicas of nodes that do not exist": of_spec(lambda spec, run: replace(spec, replicas=("n8", "n9"))),
    "spec.replicas without the master": of_spec(lambda spec, run: replace(spec, replicas=(outside(run),))),
    "spec.target a node that does not exist": of_spec(lambda spec, run: replace(spec, target=("n9",))),
    "spec.leaving all": of_spec(lambda spec, run: replace(spec, leaving=spec.replicas)),
    "spec.switchover to a node that does not exist": of_spec(lambda s, run: replace(s, switchover=Switchover("n9"))),
    "status gone": of_status(lambda status: None),
    "status.servingEpoch higher": of_status(lambda status: replace(status, serving_epoch=status.serving_epoch + 5)),
    "status.servingEpoch lower": of_status(lambda status: replace(status, serving_epoch=0)),
    "status.inSync empty": of_status(lambda status: replace(status, in_sync=())),
    "status.inSync of a copy that does not exist": of_status(lambda status: replace(status, in_sync=("feed",))),
    "status.handover forged": of_status(lambda status: replace(status, handover=Handover(status.serving_epoch, 0))),
    "status.resigned forged": of_status(lambda status: replace(status, resigned="somebody says so")),
    "status.incarnation forged": of_status(lambda status: replace(status, incarnation="forged")),
    "object deleted": deleted,
    "object deleted and put back": replaced,
    "lease of another process": of_lease(lambda lease: replace(lease, incarnation="forged")),
    "lease that says that the node stops": of_lease(lambda lease: replace(lease, stopping=True)),
}


@contextmanager
def forging(run: Run) -> Iterator[None]:
    """The checker would object to the forged record itself, and to the step back from it."""
    told, run.world.truth.told = run.world.truth.told, []
    run.world.checker._harmed.add("feed")
    yield
    run.world.truth.told = told


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_object_harms_no_copy_and_is_put_right(what: str) -> None:
    """Within seconds, and with an answer to every client: by its owner, or by a new term."""
    with cluster(1) as run:
        stored = run.stored()
        with forging(run):
            WRONG[what](run)
            run.world.run(1.0)  # it is noticed
            run.until(run.healthy, SECONDS, "it is put right")
            run.world.run(1.0)
        assert run.stored() > stored, "the shard serves on"
    assert harmed(run) <= ({outside(run)} if "without the master" in what else set())
