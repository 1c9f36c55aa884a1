"""Changes of what a cluster is asked for, in its registry, by compare-and-swap (docs/control-plane.md).

The control loop sees them within a moment and acts; what is written here is only what is desired. A local cluster's
registry is a file; for one in Kubernetes see kube_registry.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
from delayapi.proto.delay.v1 import delay_pb2
from delaylocal.own_keys import own_access
from delayoperator.control_loop.probe import NodeAnswer, PatientProber, Prober
from delayoperator.plan import CopyView, ObservedRole, missing_shards
from delayoperator.plan.adoption import Adopted, NotAdoptable, adopted, has_data, may_have_messages, serves_unnamed
from delayoperator.plan.bootstrap import described
from delayoperator.plan.topology import NodeLocation, Topology
from delayregistry.model import (
    ClusterObject,
    ClusterSpec,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Switchover,
    Version,
)
from delayregistry.port import Conflict, OutcomeUnknown, Registry, RegistryError
from delayregistry.sqlite import SqliteRegistry

from delayctl.targets.errors import TargetRefused, TargetUnreachable

PURGE_S = 60.0  # a large directory takes a while to delete
RETIRE_AGAIN_S = 0.1  # a copy may change while it is deleted
TRIES = 20  # a write may meet the master's or the operator's


@dataclass(frozen=True, slots=True)
class Adoption:
    """A shard whose object is to be rebuilt from its copies. shard None: it has no object, and gets one."""

    shard: ShardObject | None
    spec: ShardSpec
    status: ShardStatus
    reason: str


@dataclass(frozen=True, slots=True)
class Orphan:
    """A copy on a node's disk of which no object knows; replaced: its object knows others only."""

    node: str
    uid: int
    copy: CopyView
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Retirement:
    """A shard that is to go with all its copies. pending: messages that are not due yet, of the copy with most; None:
    a copy is damaged, or none is left, and nobody knows."""

    shard: ShardObject
    nodes: tuple[str, ...]  # with a copy of it
    pending: int | None


class RegistryEditor(ABC):
    """One cluster's registry, with the questions and changes that commands need."""

    def __init__(self, registry: Registry, prober: Prober) -> None:
        self._registry = registry
        self._prober = prober

    def close(self) -> None:
        self._prober.close()
        self._registry.close()

    # Reads.

    def cluster(self) -> ClusterSpec:
        return self._cluster().spec

    def shard(self, name: str) -> ShardObject:
        """Raises TargetRefused when there is none."""
        found = self._registry.get_shard(name)
        if found is None:
            raise TargetRefused(f"no shard {name!r}; `delayctl shards` lists them")
        return found

    def shards(self) -> tuple[ShardObject, ...]:
        return self._registry.list_shards()

    def leases(self) -> tuple[NodeLease, ...]:
        return self._registry.list_leases()

    def incarnations(self) -> dict[str, str]:
        return {lease.node: lease.incarnation for lease in self.leases()}

    def node_answers(self, nodes: Sequence[str] | None = None) -> Mapping[str, NodeAnswer]:
        """Each node's answer about its copies; nodes that give none in time are missing."""
        leases = self._registry.list_leases()
        return self._prober.query([lease for lease in leases if nodes is None or lease.node in nodes])

    def in_sync(self, shard: ShardObject) -> set[str]:
        """The nodes that say that theirs is one of the copies that the in-sync set names."""
        if shard.status is None:
            return set()
        answers = self.node_answers(shard.spec.replicas)
        copies = {node: answer.copies.get(shard.spec.uid) for node, answer in answers.items()}
        return {node for node, copy in copies.items() if copy is not None and copy.replica_id in shard.status.in_sync}

    def fully_replicated(self, incarnations: Mapping[str, str]) -> bool:
        """Every shard is served by one of these processes, with all its copies in sync."""
        return all(_is_fully_replicated(shard, incarnations) for shard in self.shards())

    def locations(self) -> Mapping[str, NodeLocation]:
        """By node id, what is known beyond the zone that a node's lease says."""
        return {}

    # Changes of the spec.

    def move(self, name: str, to: str, origin: str | None) -> tuple[str, ...]:
        """The copy on `origin`, or the master's, is to be on `to`. Returns the nodes that are to have the copies.

        Raises TargetRefused.
        """
        self._require_usable(to)

        def edit(shard: ShardObject) -> ShardSpec:
            nodes = shard.spec.replicas if shard.spec.target is None else shard.spec.target
            if to in nodes:
                raise TargetRefused(f"{to} has, or is about to have, a copy of {name}")
            source = origin or (shard.spec.master if shard.spec.master in nodes else nodes[0])
            if source not in nodes:
                raise TargetRefused(f"{source} has no copy of {name}; they are on {', '.join(nodes)}")
            self._check_together(to, source, [node for node in nodes if node != source])
            target = tuple(to if node == source else node for node in nodes)
            return replace(shard.spec, target=_first(to, target) if source == shard.spec.master else target)

        return self._edit(name, edit).target or ()

    def switchover(self, name: str, to: str | None) -> tuple[str, str]:
        """`to`, or any that is in sync, is to be the master; (former master, new one). Raises TargetRefused."""
        shard = self.shard(name)
        master = shard.spec.master
        if master is None:
            raise TargetRefused(f"{name} has no master that could hand over")
        ready = self.in_sync(shard) - {master, *shard.spec.leaving}
        if to is None:
            to = next((node for node in shard.spec.replicas if node in ready), None)
            if to is None:
                raise TargetRefused(f"no other copy of {name} is in sync")
        self._require_usable(to)
        if to == master:
            raise TargetRefused(f"{to} is the master of {name} already")
        if to not in shard.spec.replicas:
            raise TargetRefused(f"{to} has no copy of {name}; they are on {', '.join(shard.spec.replicas)}")
        if to not in ready:
            raise TargetRefused(f"{to} is not in sync: it could not take over without losing something")
        chosen = to

        def edit(shard: ShardObject) -> ShardSpec:
            # First in the list: so it stays the master, when others come and go.
            spec = replace(shard.spec, switchover=Switchover(chosen))
            if spec.target is not None:
                return replace(spec, target=_first(chosen, spec.target))
            return replace(spec, replicas=_first(chosen, spec.replicas))

        self._edit(name, edit)
        return master, to

    def cancel_switchover(self, name: str, to: str) -> None:
        """The switchover is not wanted any more, if it is still asked for."""

        def edit(shard: ShardObject) -> ShardSpec:
            requested = shard.spec.switchover == Switchover(to)
            return replace(shard.spec, switchover=None) if requested else shard.spec

        self._edit(name, edit)

    @abstractmethod
    def drain(self, node: str, *, undo: bool) -> None:
        """Drain the node, or use it again. Raises TargetRefused where the others could not hold all."""

    @abstractmethod
    def restart(self) -> None:
        """All nodes are to be restarted, one by one. Raises TargetRefused, TargetUnreachable."""

    def adoptions(self, names: Sequence[str] = (), uid: int | None = None, *, unproven: bool = False) -> list[Adoption]:
        """The shards whose objects know less than their copies do, or are gone, and what they would become. uid: the
        history to go on from, where there are several. unproven: also where a copy that was in sync seems to be lost.

        Raises TargetRefused unless every node answers: whoever is silent might have the most.
        """
        answers = self._all_answers()
        objects = {shard.name: shard for shard in self.shards()}
        unclaimed = self._unclaimed(objects.values(), answers)
        if unknown := [name for name in names if name not in objects and name not in unclaimed]:
            raise TargetRefused(f"no shard and no copy of {', '.join(unknown)}; `delayctl nodes orphans` lists copies")
        present = [objects[name] for name in names if name in objects] if names else objects.values()
        found = [_adoption(shard, answers, unproven=unproven) for shard in present]
        wanted = set(missing_shards(self.cluster(), objects.values()))
        for name in names or sorted(wanted & unclaimed.keys()):
            if name in objects and name in unclaimed and uid in unclaimed[name]:
                raise TargetRefused(
                    f"{name} goes on from {objects[name].spec.uid:016x} now; two histories can't be joined"
                )
            if name not in objects:
                found.append(_made_again(name, unclaimed[name], uid, unproven=unproven))
        return [it for it in found if it is not None]

    def _all_answers(self) -> Mapping[str, NodeAnswer]:
        """Raises TargetRefused where a node of the cluster gives none."""
        answers = {node: answer for node, answer in self.node_answers().items() if answer.listed}
        if silent := [node for node in self.cluster().node_ids if node not in answers]:
            raise TargetRefused(
                f"{', '.join(silent)} {'gives' if len(silent) == 1 else 'give'} no answer: all nodes have to"
            )
        return answers

    def orphans(self) -> list[Orphan]:
        """The copies on nodes' disks on which no object of the registry counts, by shard, uid and node."""
        answers = self.node_answers()
        known = {shard.spec.uid: (*shard.spec.replicas, *(shard.spec.target or ())) for shard in self.shards()}
        found = [
            Orphan(node, uid, copy, replaced=uid in known)
            for node, answer in answers.items()
            for uid, copy in answer.copies.items()
            if uid not in known or (copy.role is ObservedRole.STORED and node not in known[uid])
        ]
        return sorted(found, key=lambda it: (it.copy.shard, it.uid, it.node))

    def retirement(self, name: str) -> Retirement:
        """What is lost with a shard that no topic of the spec has, or of which no copy is whole any more. Raises
        TargetRefused for any other one, and unless every node answers: a copy that nobody sees would stay."""
        shard = self.shard(name)
        answers = self._all_answers()
        if newer := {node: copy.damaged for node, copy in _copies(shard, answers).items() if copy.newer_format}:
            what = "; ".join(f"{node}: {damaged}" for node, damaged in newer.items())
            raise TargetRefused(f"{name} can be read by a newer release ({what}): put that back")
        self._require_unwanted_or_lost(shard, answers)
        return self._retirement(shard, answers)

    def _require_unwanted_or_lost(self, shard: ShardObject, answers: Mapping[str, NodeAnswer]) -> None:
        topic = self.cluster().topic(shard.spec.topic)
        if topic is None or shard.spec.queue >= topic.queues:
            return
        copies = _copies(shard, answers)
        if shard.spec.epoch == 0 and not copies:
            raise TargetRefused(f"{shard.name} is wanted, and was never served: it has lost nothing")
        if whole := [node for node, copy in copies.items() if may_have_messages(copy)]:
            raise TargetRefused(
                f"{shard.name} is wanted, and has a copy that is not damaged on {', '.join(whole)}. If it is not "
                f"served: docs/operations.md#noinsyncreplica says how to go on from that copy. To give it up all the "
                f"same: take topic {topic.name} out of the spec first"
            )

    def _retirement(self, shard: ShardObject, answers: Mapping[str, NodeAnswer]) -> Retirement:
        copies = _copies(shard, answers)
        lost = not copies and shard.spec.epoch > 0
        known = not lost and not any(copy.damaged or copy.role is ObservedRole.OPENING for copy in copies.values())
        pending = max((copy.pending for copy in copies.values()), default=0) if known else None
        return Retirement(shard, tuple(copies), pending)

    def retire(self, retirement: Retirement) -> None:
        """Delete the object, then every copy. Raises TargetRefused where it has changed, or has more messages by now;
        what is left of it is an orphan then, and `nodes orphans --purge` deletes it."""
        shard = retirement.shard
        self._delete(shard)
        for _ in range(TRIES):
            left = self._retirement(shard, self._all_answers())
            if not left.nodes:
                return
            if retirement.pending is not None and (left.pending is None or left.pending > retirement.pending):
                raise TargetRefused(f"{shard.name} has more than {retirement.pending:,} messages by now: look again")
            for orphan in self.orphans():
                if orphan.uid == shard.spec.uid:
                    with suppress(TargetRefused):  # delivered or sent meanwhile: it is asked again
                        self.purge(orphan)
            time.sleep(RETIRE_AGAIN_S)
        raise TargetRefused(f"{shard.name} changes all the time: `delayctl nodes orphans` lists what is left of it")

    def _delete(self, shard: ShardObject) -> None:
        fault: Exception | None = None
        for _ in range(TRIES):
            found = self._registry.get_shard(shard.name)
            if found is None or found.spec.uid != shard.spec.uid:
                return
            self._require_unwanted_or_lost(found, self._all_answers())
            try:
                self._registry.delete_shard(shard.name, found.version)
                return
            except (Conflict, OutcomeUnknown) as error:  # its master and the operator write it too
                fault = error
        raise TargetUnreachable(f"{shard.name} could not be deleted: {fault}")

    def purge(self, orphan: Orphan) -> None:
        """Delete it, for ever. Raises TargetRefused where the node finds that it is wanted, or has changed."""
        lease = next((lease for lease in self._registry.list_leases() if lease.node == orphan.node), None)
        if lease is None or not isinstance(self._prober, PatientProber):
            raise TargetUnreachable(f"{orphan.node} does not run")
        request = delay_pb2.PurgeCopyRequest(uid=orphan.uid, pending=orphan.copy.pending)
        try:
            self._prober.client(lease).purge_copy(request, timeout=PURGE_S)
        except grpc.RpcError as error:
            refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            kind = TargetRefused if refused else TargetUnreachable
            raise kind(error.details() or str(error.code())) from error

    def _unclaimed(
        self, objects: Iterable[ShardObject], answers: Mapping[str, NodeAnswer]
    ) -> dict[str, dict[int, dict[str, CopyView]]]:
        """By shard name and uid: the copies, by node, of which no object knows."""
        known = {shard.spec.uid for shard in objects}
        found: dict[str, dict[int, dict[str, CopyView]]] = {}
        for node, answer in sorted(answers.items()):
            for uid, copy in answer.copies.items():
                if uid not in known:
                    found.setdefault(copy.shard, {}).setdefault(uid, {})[node] = copy
        return found

    def adopt(self, adoption: Adoption) -> None:
        """Raises TargetRefused when the shard's object has changed meanwhile, other than in its conditions.

        Nobody can be chosen before both parts are written, also where that ends between them: an object without a
        status waits for it, and one of an older state is behind until it has the epoch. Beside the newer epoch its old
        in-sync set would be believed.
        """
        shard, spec, status = adoption.shard, adoption.spec, adoption.status
        if shard is None:
            try:
                self._registry.create_shard(spec)
            except Conflict as error:
                raise TargetRefused(f"{spec.name} has changed meanwhile; try again") from error
            self._write_over(spec, None, lambda version: self._registry.write_status(spec.name, status, version))
        elif shard.status is None:
            self._write_over(shard.spec, None, lambda version: self._registry.write_spec(spec.name, spec, version))
            self._write_over(spec, None, lambda version: self._registry.write_status(spec.name, status, version))
        else:
            self._write_over(
                shard.spec, shard.status, lambda version: self._registry.write_status(spec.name, status, version)
            )
            self._write_over(shard.spec, status, lambda version: self._registry.write_spec(spec.name, spec, version))

    def _write_over(self, spec: ShardSpec, status: ShardStatus | None, write: Callable[[Version], Version]) -> None:
        """Write while the object has these two. The operator may write its conditions at the same time."""
        for _ in range(TRIES):
            found = self.shard(spec.name)
            if (found.spec, found.status) != (spec, status):
                break
            with suppress(Conflict):
                write(found.version)
                return
        raise TargetRefused(f"{spec.name} has changed meanwhile; try again")

    def _cluster(self) -> ClusterObject:
        found = self._registry.read_cluster()
        if found is None:
            raise TargetUnreachable("the registry holds no cluster yet")
        return found

    def _require_usable(self, node: str) -> None:
        spec = self.cluster()
        if node not in spec.node_ids:
            raise TargetRefused(f"no node {node!r}; there are {', '.join(spec.node_ids)}")
        if node in spec.drained:
            raise TargetRefused(f"{node} is being drained; `delayctl nodes drain {node} --undo` lets it be used again")
        lease = next((lease for lease in self._registry.list_leases() if lease.node == node), None)
        if lease is None or lease.stopping or node not in self.node_answers([node]):
            raise TargetRefused(f"{node} does not run, or gives no answer")

    def _check_together(self, to: str, source: str, others: Sequence[str]) -> None:
        """Raises TargetRefused where two copies would share a zone or a machine; the operator would undo that."""
        leases, spec, known = self._registry.list_leases(), self.cluster(), self.locations()
        located = [(lease, known.get(lease.node, NodeLocation())) for lease in leases]
        topology = Topology({lease.node: replace(at, zone=lease.zone or at.zone) for lease, at in located})
        may = [it.node for it in leases if it.node in spec.node_ids and it.node not in spec.drained and not it.stopping]
        better = topology.farther(to, others, may)
        living = self.node_answers(better) if better else {}
        if living:
            raise TargetRefused(topology.refusal(to, others, [node for node in better if node in living], source))

    def _edit(self, name: str, edit: Callable[[ShardObject], ShardSpec]) -> ShardSpec:
        fault: Exception | None = None
        for _ in range(TRIES):
            shard = self.shard(name)
            desired = edit(shard)
            if desired == shard.spec:
                return desired
            try:
                self._registry.write_spec(name, desired, shard.version)
                return desired
            except Conflict as error:
                fault = error
            except OutcomeUnknown as error:
                fault = error
                time.sleep(0.2)  # looked at again: it may have happened
        raise TargetUnreachable(f"{name} could not be written: {fault}")


class LocalRegistryEditor(RegistryEditor):
    """The target of a local cluster, whose spec stands in the same file."""

    def __init__(self, registry: SqliteRegistry, data: Path, prober: Prober) -> None:
        super().__init__(registry, prober)
        self._file, self._data = registry, data

    def drain(self, node: str, *, undo: bool) -> None:
        for _ in range(TRIES):
            found = self._cluster()
            drained = drained_with(found.spec, node, undo=undo)
            if drained == found.spec.drained:
                return
            try:
                self._file.put_cluster(replace(found.spec, drained=drained), found.version)
                return
            except (Conflict, OutcomeUnknown):
                continue
        raise TargetUnreachable("the registry takes no writes")

    def restart(self) -> None:
        _signal_supervisor(self._data)


@contextmanager
def registry_editor(data: Path) -> Iterator[RegistryEditor]:
    """The cluster kept in `data`. Raises TargetUnreachable, also for a registry that fails inside."""
    try:
        registry = SqliteRegistry(data / "registry.db")
    except RegistryError as error:
        raise TargetUnreachable(f"{error}: name the cluster's directory, --data DIR") from error
    editor = LocalRegistryEditor(registry, data, PatientProber(own_access(data)))
    try:
        yield editor
    except RegistryError as error:
        raise TargetUnreachable(str(error)) from error
    finally:
        editor.close()


def _signal_supervisor(data: Path) -> None:
    """The process of `delayctl local`, whose pid the directory's lock holds as long as it runs."""
    try:
        with (data / "lock").open("r+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.kill(int(lock.read()), signal.SIGUSR1)
                return
    except (OSError, ValueError) as error:
        raise TargetUnreachable(f"no cluster runs on {data}: {error}") from error
    raise TargetUnreachable(f"no cluster runs on {data}: start it with `delayctl local --data {data}`")


def drained_with(spec: ClusterSpec, node: str, *, undo: bool) -> tuple[str, ...]:
    """The nodes to be emptied, with or without `node`. Raises TargetRefused where the others could not hold all."""
    if node not in spec.node_ids:
        raise TargetRefused(f"no node {node!r}; there are {', '.join(spec.node_ids)}")
    others = tuple(it for it in spec.drained if it != node)
    if undo:
        return others
    left = len(spec.node_ids) - len(others) - 1
    if left < spec.replicas:
        copies = "copy is" if spec.replicas == 1 else "copies are"
        raise TargetRefused(f"{spec.replicas} {copies} wanted of each shard, and {left} other nodes would be left")
    return (*others, node)


def _is_fully_replicated(shard: ShardObject, incarnations: Mapping[str, str]) -> bool:
    spec, status = shard.spec, shard.status
    if status is None or status.serving_epoch != spec.epoch or spec.incarnation != incarnations.get(spec.master or ""):
        return False
    return len(status.in_sync) >= len(spec.replicas)


def _copies(shard: ShardObject, answers: Mapping[str, NodeAnswer]) -> dict[str, CopyView]:
    """The shard's, by node."""
    uid = shard.spec.uid
    return {node: answer.copies[uid] for node, answer in sorted(answers.items()) if uid in answer.copies}


def _first(node: str, nodes: Sequence[str]) -> tuple[str, ...]:
    return (node, *(it for it in nodes if it != node)) if node in nodes else tuple(nodes)


def _adoption(shard: ShardObject, answers: Mapping[str, NodeAnswer], *, unproven: bool) -> Adoption | None:
    spec = shard.spec
    copies = _copies(shard, answers)
    lost = shard.status is None and has_data(copies)
    highest = max((copy.epoch for copy in copies.values()), default=0)
    unnamed = [node for node, copy in copies.items() if serves_unnamed(spec, node, copy)]
    if not lost and highest <= spec.epoch and not unnamed:
        return None
    found = _adopted(shard.name, spec.uid, copies, spec.epoch, unproven=unproven)
    why = "its status is gone" if lost else f"the registry knows of epoch {spec.epoch} only"
    if not lost and highest <= spec.epoch:
        why = f"the registry names {spec.master} for epoch {spec.epoch}, which {', '.join(unnamed)} serves"
    return Adoption(shard, found.spec, found.status, f"{why}: {found.from_copies}")


def _made_again(
    name: str, histories: Mapping[int, Mapping[str, CopyView]], uid: int | None, *, unproven: bool
) -> Adoption:
    chosen = {it: copies for it, copies in histories.items() if uid is None or it == uid}
    if len(chosen) != 1:
        what = "no such history" if uid is not None else f"{len(histories)} histories; choose one with --uid"
        raise TargetRefused(f"{name}: {what}: {described(histories)}")
    ((only, copies),) = chosen.items()
    found = _adopted(name, only, copies, 0, unproven=unproven)
    return Adoption(None, found.spec, found.status, f"it has no object: {found.from_copies}, {described(chosen)}")


def _adopted(name: str, uid: int, copies: Mapping[str, CopyView], epoch: int, *, unproven: bool) -> Adopted:
    try:
        return adopted(uid, copies, epoch, unproven=unproven)
    except NotAdoptable as error:
        raise TargetRefused(f"{name}: {error}") from error
