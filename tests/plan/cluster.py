"""A cluster small enough to hold in the head: nodes act on the planner's writes, a step at a time.

Logs are lists of frames. A frame is acknowledged once every in-sync copy has it; a copy that begins a term must have
all acknowledged frames. Masters write in the order of docs/protocol.md, but the world stands still meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from delayoperator.plan import (
    Action,
    ChangeSpec,
    CopyView,
    CreateShard,
    Liveness,
    Observed,
    ObservedNode,
    SetConditions,
    StartTerm,
)
from delayoperator.plan.topology import NodeLocation
from delayregistry.model import (
    ClusterSpec,
    Condition,
    ConditionType,
    Handover,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Version,
)


@dataclass
class Copy:
    entry: str
    epoch: int = 0  # persisted
    log: list[tuple[int, int]] = field(default_factory=list)  # frames: (epoch, number)

    def view(self, incarnation: str) -> CopyView:
        log_epoch = self.log[-1][0] if self.log else 0
        return CopyView(self.entry, incarnation, max(self.epoch, log_epoch), log_epoch, len(self.log))


@dataclass
class Node:
    incarnation: str
    runs: bool = True
    stopping: bool = False
    seen: Liveness = Liveness.ALIVE
    gone: bool = False
    answers: bool = True
    zone: str = ""
    machine: str = ""


class Cluster:
    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.shards: dict[str, ShardObject] = {}
        self.nodes: dict[str, Node] = {}
        self.copies: dict[tuple[str, str], Copy] = {}
        self.acknowledged: dict[str, list[tuple[int, int]]] = {}
        self.terms: dict[tuple[str, int], tuple[str | None, str | None]] = {}
        self.ended: set[str] = set()  # incarnations that a supervisor saw end
        self.locations: dict[str, NodeLocation] = {}  # by node: where its next process runs
        self.moved = 0  # copies made by fetching
        self._numbers = 0

    # Actions of people, and failures.

    def start(self, node: str) -> None:
        at = self.locations.get(node, NodeLocation())
        self.nodes[node] = Node(f"process-{self._number()}", zone=at.zone, machine=at.machine)

    def kill(self, node: str) -> None:
        self.nodes[node] = replace(self.nodes[node], runs=False, seen=Liveness.DEAD)

    def end(self, node: str) -> None:
        """The process dies, and its supervisor sees it: its lease may still be fresh, or soon be another process's."""
        self.ended.add(self.nodes[node].incarnation)
        self.nodes[node] = replace(self.nodes[node], runs=False)

    def write(self, name: str) -> None:
        """A client sends a message; the master acknowledges it when every in-sync copy has it."""
        shard = self.shards.get(name)
        if shard is None or shard.status is None or not self._serves(shard) or shard.status.handover is not None:
            return
        frame = shard.spec.epoch, self._number()
        for node in shard.spec.replicas:
            copy = self.copies.get((name, node))
            if copy is not None and copy.entry in shard.status.in_sync:
                if node != shard.spec.master and not self.nodes[node].runs:
                    return  # not acknowledged; the master has it all the same
                copy.log.append(frame)
        self.acknowledged.setdefault(name, []).append(frame)

    # The operator's view, and its actions.

    def observed(self) -> Observed:
        views = {
            name: ObservedNode(
                node.seen,
                node.incarnation,
                stopping=node.stopping,
                replaceable=node.gone,
                zone=node.zone,
                machine=node.machine,
            )
            for name, node in self.nodes.items()
        }
        heard = {name: node.incarnation for name, node in self.nodes.items() if node.runs and node.answers}
        copies = {key: copy.view(heard[key[1]]) for key, copy in self.copies.items() if key[1] in heard}
        return Observed(tuple(self.shards.values()), views, copies, heard, ended=frozenset(self.ended))

    def apply(self, action: Action) -> bool:
        """Write as a registry does: False at another version. Fails where an invariant would break."""
        if isinstance(action, CreateShard):
            assert action.uid is None, "no object of this world is ever deleted"
            spec = ShardSpec(self._number(), action.topic, action.queue, action.replicas)
            assert len(set(spec.replicas)) == len(spec.replicas) > 0
            if spec.name in self.shards:
                return False
            self.shards[spec.name] = ShardObject(spec.name, Version("0"), spec)
            self.terms[spec.name, 0] = (None, None)
            return True
        current = self.shards[action.shard.name]
        if current.version != action.shard.version:
            return False
        match action:
            case StartTerm():
                self._check_term(current, action.spec)
                self._put(replace(current, spec=action.spec))
            case ChangeSpec():
                self._check_change(current, action.spec)
                self._put(replace(current, spec=action.spec))
            case SetConditions():
                assert action.conditions != current.conditions
                self._put(replace(current, conditions=tuple(replace(it, since_ms=1) for it in action.conditions)))
        return True

    def _check_term(self, shard: ShardObject, new: ShardSpec) -> None:
        old = shard.spec
        assert new.epoch == old.epoch + 1
        assert (new.uid, new.topic, new.queue, new.replicas) == (old.uid, old.topic, old.queue, old.replicas)
        assert new.master in old.replicas
        assert new.master not in new.leaving
        if new.vacant:
            assert shard.status is not None
            assert shard.status.serving_epoch == old.epoch, "whoever served before may still do so"
            assert all(it.incarnation != old.incarnation or not it.runs for it in self.nodes.values()), "it runs still"
        assert (shard.name, new.epoch) not in self.terms  # an epoch belongs to one process for ever
        self.terms[shard.name, new.epoch] = new.master, new.incarnation
        copy = self.copies.get((shard.name, new.master))
        if shard.status is not None and len(old.replicas) > 1:
            assert copy is not None
            assert copy.entry in shard.status.in_sync
        kept = self.acknowledged.get(shard.name, [])
        assert not kept or (copy is not None and set(kept) <= set(copy.log)), "an acknowledged message is lost"

    def _check_change(self, shard: ShardObject, new: ShardSpec) -> None:
        old = shard.spec
        assert new != old
        assert (new.uid, new.topic, new.queue) == (old.uid, old.topic, old.queue)
        assert (new.master, new.epoch, new.incarnation) == (old.master, old.epoch, old.incarnation)
        assert len(set(new.replicas)) == len(new.replicas) > 0, "two copies on one node"
        assert new.master is None or new.master in new.replicas
        assert set(new.leaving) <= set(new.replicas) - {new.master}
        dropped = set(old.replicas) - set(new.replicas)
        in_sync = shard.status.in_sync if shard.status is not None else ()
        for node in dropped:
            copy = self.copies.get((shard.name, node))
            assert copy is None or copy.entry not in in_sync, "a member of the in-sync set is dropped"

    # Actions of nodes.

    def nodes_act(self) -> bool:
        """Each shard's present master takes one step, and each node drops its copies that no spec or status names."""
        before = dict(self.shards), len(self.copies)
        for shard in list(self.shards.values()):
            master = self.nodes.get(shard.spec.master or "")
            if master is not None and master.runs and master.incarnation == shard.spec.incarnation:
                self._master_acts(shard)
        for name, node in list(self.copies):
            spec, owner = self.shards[name].spec, self.nodes[node]
            status = self.shards[name].status
            named = status is not None and self.copies[name, node].entry in status.in_sync
            if owner.runs and node not in spec.replicas and not named:
                del self.copies[name, node]
        return before != (self.shards, len(self.copies))

    def _master_acts(self, shard: ShardObject) -> None:
        spec, status, name = shard.spec, shard.status, shard.name
        assert spec.master is not None
        assert spec.incarnation is not None
        own = self.copies.get((name, spec.master))
        if status is None or status.serving_epoch < spec.epoch:
            if own is None:
                assert status is None, "a master without a copy"
                own = self.copies[name, spec.master] = Copy(f"c{self._number()}")
            assert status is None or own.entry in status.in_sync
            own.epoch = spec.epoch
            following = self._followers(shard, own) if status is not None else []
            in_sync = (own.entry, *(it.entry for it in following if status and it.entry in status.in_sync))
            own.log.append((spec.epoch, 0))
            for copy in following:
                copy.log = list(own.log)
            self._put(replace(shard, status=ShardStatus(spec.epoch, spec.incarnation, in_sync)))
            return
        assert own is not None
        to = None if spec.switchover is None else self.copies.get((name, spec.switchover.to))
        if status.handover is not None:
            if to is None or to.entry not in status.in_sync:
                self._put(replace(shard, status=replace(status, handover=None)))
            return
        following = self._followers(shard, own)
        in_sync = (own.entry, *(copy.entry for copy in following))
        for copy in following:
            copy.log = list(own.log)
        if in_sync != status.in_sync:
            self._put(replace(shard, status=replace(status, in_sync=in_sync)))
        elif to is not None and to is not own and to.entry in in_sync:
            self._put(replace(shard, status=replace(status, handover=Handover(spec.epoch, len(own.log)))))

    def _followers(self, shard: ShardObject, own: Copy) -> list[Copy]:
        """The other replicas' copies that can be in sync; a missing one is fetched."""
        found = []
        for node in shard.spec.replicas:
            if node == shard.spec.master or node in shard.spec.leaving:
                continue
            if node in self.nodes and self.nodes[node].runs:
                if (shard.name, node) not in self.copies:
                    self.copies[shard.name, node] = Copy(f"c{self._number()}", log=list(own.log))
                    self.moved += 1
                self.copies[shard.name, node].epoch = shard.spec.epoch
                found.append(self.copies[shard.name, node])
        return found

    def _serves(self, shard: ShardObject) -> bool:
        master = self.nodes.get(shard.spec.master or "")
        at_work = master is not None and master.runs and master.incarnation == shard.spec.incarnation
        return at_work and shard.status is not None and shard.status.serving_epoch == shard.spec.epoch

    def _put(self, shard: ShardObject) -> None:
        old = self.shards[shard.name]
        assert shard.spec.epoch >= old.spec.epoch
        self.shards[shard.name] = replace(shard, version=Version(str(int(old.version) + 1)))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # The state that must come out in the end.

    def faults(self) -> list[str]:
        """The differences from the wished cluster, once every node is well; a sentence each."""
        found = []
        usable = [node for node in self.spec.node_ids if node not in self.spec.drained]
        for topic in self.spec.topics:
            for queue in range(topic.queues):
                if f"{topic.name}-{queue}" not in self.shards:
                    found.append(f"{topic.name}-{queue} is missing")
        for shard in self.shards.values():
            spec, status = shard.spec, shard.status
            kept = {self.copies[key].entry for key in self.copies if key[0] == shard.name}
            wrong: Mapping[str, bool] = {
                "is not served": not self._serves(shard),
                f"has replicas {spec.replicas}": len(usable) >= self.spec.replicas
                and len(spec.replicas) != self.spec.replicas,
                f"is on a drained node {spec.replicas}": len(usable) >= self.spec.replicas
                and not set(spec.replicas) <= set(usable),
                f"is on {spec.replicas}, too near each other": len(usable) >= self.spec.replicas
                and self.could_be_apart(spec.replicas),
                "is not over with a move": spec.target is not None or spec.leaving != (),
                "is not over with a switchover": spec.switchover is not None,
                "is not in sync": status is None or set(status.in_sync) != kept or len(kept) != len(spec.replicas),
                f"has conditions {shard.conditions}": any(
                    is_fault(it, len(usable) >= self.spec.replicas) for it in shard.conditions
                ),
            }
            found += [f"{shard.name} {what}" for what, is_so in wrong.items() if is_so]
        return found

    def could_be_apart(self, replicas: tuple[str, ...]) -> bool:
        """Whether two copies share a zone while a usable zone has none, or a machine while a usable machine has none.
        What some usable node has not told does not count."""
        usable = [self.nodes[node] for node in self.spec.node_ids if node not in self.spec.drained]
        held = [self.nodes[node] for node in replicas]
        return any(
            "" not in there and len(set(its)) < len(its) and not there <= set(its)
            for there, its in (
                ({it.machine for it in usable}, [it.machine for it in held if it.machine]),
                ({it.zone for it in usable}, [it.zone for it in held if it.zone]),
            )
        )


def is_fault(condition: Condition, room: bool) -> bool:
    return condition.type is ConditionType.BLOCKED or (condition.type is ConditionType.HELD and room)
