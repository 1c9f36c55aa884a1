"""Whether a shard needs a new term, and who may have it: the dangerous choice, kept small (docs/protocol.md 4, 5).

A process never resumes a term: a master whose lease names another process than the term does is a dead master,
which may be chosen again, one epoch higher. No copy outside the in-sync set is ever chosen, unless the cluster's spec
allow it, and then it is said. Every member of the in-sync set has every acknowledged frame, so that a member which
gives no answer need not be waited for while another one answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from delayregistry.model import BootstrapVolumes, ClusterSpec, Durability, ShardObject, ShardStatus

from delayoperator.plan.adoption import Adopted, NotAdoptable, adopted, is_unreadable, serves_unnamed, was_adopted
from delayoperator.plan.bootstrap import (
    MakeEmpty,
    Orphaned,
    TakeUp,
    Unheard,
    decide_missing,
    histories_of,
    lost_nodes,
    unheard_nodes,
)
from delayoperator.plan.observed import CopyView, Liveness, NotBegun, Observed, ObservedRole
from delayoperator.plan.replica_health import ReplicaHealth, answer_of, classify_replicas

UNCLEAN_FAILOVER = "UncleanFailover"  # reason of a Risk


@dataclass(frozen=True, slots=True)
class Keep:
    """The term stands."""


@dataclass(frozen=True, slots=True)
class Risk:
    """The messages that a term may cost; a condition says so before it begins."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Promote:
    node: str
    incarnation: str
    reason: str
    risk: Risk | None = None


@dataclass(frozen=True, slots=True)
class WaitForEvidence:
    """Nothing certain is known yet, which is no fault."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """A term is needed and no copy may lead it."""

    reason: str  # CamelCase, for the condition
    message: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """The object has lost its status, and is made again from the copies."""

    found: Adopted
    reason: str


@dataclass(frozen=True, slots=True)
class GiveWay:
    """The object is of an empty shard that was never led, and would hide copies of its name."""

    reason: str


Decision = Keep | Promote | WaitForEvidence | Refuse | Adopt | GiveWay


def decide_term(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> Decision:
    if behind := _registry_behind(shard, seen):
        return behind
    if (shard.spec.uid, shard.spec.epoch) in seen.served_by_another:
        return WaitForEvidence()  # it served a moment ago and gives no answer: what it stored alone must not be cut
    fault = fault_of_master(shard, seen)
    if not isinstance(fault, str):
        fault = _can_never_serve(desired, shard, seen) or fault
    if isinstance(fault, Keep) and (late := seen.not_begun.get((shard.spec.uid, shard.spec.epoch))) is not None:
        return _passed_over(desired, shard, late, seen)
    if isinstance(fault, Keep):
        return _handed_over(shard, seen) or fault
    if isinstance(fault, WaitForEvidence):
        return fault
    if shard.status is None:
        return _first(desired, shard, seen, fault)
    return _failover(desired, shard, shard.status, seen, fault)


def fault_of_master(shard: ShardObject, seen: Observed) -> Keep | WaitForEvidence | str:
    """Why a new term is needed, as the start of a sentence; or that none is, or that this can't be told."""
    spec, status = shard.spec, shard.status
    if spec.master is None:
        return "the shard has no master yet"
    view = seen.node(spec.master)
    if spec.incarnation in seen.ended:
        return f"{spec.master}'s process has ended"
    if view.liveness is Liveness.DEAD:
        return f"{spec.master} is dead"
    if view.incarnation is not None and view.incarnation != spec.incarnation:
        return f"{spec.master} is a new process, which may not resume epoch {spec.epoch}"
    if status is not None and status.resigned is not None and status.serving_epoch == spec.epoch:
        return f"{spec.master} has resigned: {status.resigned}"
    if (why := seen.given_up.get((spec.uid, spec.epoch))) is not None:
        return f"{spec.master} serves epoch {spec.epoch} no more: {why}"
    return Keep() if view.liveness is Liveness.ALIVE else WaitForEvidence()


def previous_master_exited(shard: ShardObject, seen: Observed) -> bool:
    """Whether no process can be serving the shard: its term was taken up, by a process that has ended.

    Before it was taken up those of earlier terms had stopped for ever: its master had waited out the lease that it
    granted, which they lack since then. This can't be said of a term that was never taken up: the master before it may
    still serve.
    """
    spec, status = shard.spec, shard.status
    served = status is not None and (status.serving_epoch, status.incarnation) == (spec.epoch, spec.incarnation)
    return served and spec.incarnation in seen.ended


def _can_never_serve(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> str | None:
    """A chosen master that has not begun to serve, and whose copy turns out to be of no use."""
    status, master = shard.status, shard.spec.master
    if master is None or status is None or status.serving_epoch >= shard.spec.epoch:
        return None
    known = classify_replicas(shard, seen)
    match known.get(master):
        case ReplicaHealth.DAMAGED:
            return f"{master} was chosen, and its copy is damaged"
        case ReplicaHealth.NOTHING:
            return f"{master} was chosen, and has no copy"
        case ReplicaHealth.OUTSIDE if not _may_begin_unclean(desired, shard) or ReplicaHealth.IN_SYNC in known.values():
            # Chosen while unclean failover was allowed. It refuses now, or an in-sync copy that was away is back.
            return f"{master} was chosen, and its copy is not in sync"
        case _:
            return None


def _may_begin_unclean(desired: ClusterSpec, shard: ShardObject) -> bool:
    """The shard's present term, which its master has not begun yet."""
    return desired.allow_unclean_failover or shard.spec.unclean_epoch == shard.spec.epoch


def _registry_behind(shard: ShardObject, seen: Observed) -> Refuse | None:
    """A copy knows of a term that the registry does not: it was restored from an older state. Wherever that copy is:
    by the older state its node may have none."""
    epoch = shard.spec.epoch
    known = {**_answers(shard, seen), **seen.strays.get(shard.spec.uid, {})}
    ahead = {node: copy for node, copy in known.items() if copy.epoch > epoch or serves_unnamed(shard.spec, node, copy)}
    if not ahead:
        return None
    highest = max(copy.epoch for copy in ahead.values())
    what = f"the registry only of {epoch}" if highest > epoch else f"the registry names {shard.spec.master} for it"
    return Refuse(
        "RegistryBehind",
        f"{', '.join(sorted(ahead))} know of epoch {highest}, {what} (was it restored?): `delayctl adopt` brings it up",
    )


def _handed_over(shard: ShardObject, seen: Observed) -> Promote | None:
    """The master has stopped for a switchover. If `to` can't be proven to have all, nothing is decided: the master goes
    on by itself after two seconds."""
    spec, status = shard.spec, shard.status
    if spec.switchover is None or status is None or status.handover is None:
        return None
    if not spec.epoch == status.serving_epoch == status.handover.epoch:
        return None
    to, log_end = spec.switchover.to, status.handover.log_end
    view, copy = seen.node(to), answer_of(shard, to, seen)
    if copy is None or view.incarnation is None or classify_replicas(shard, seen).get(to) is not ReplicaHealth.IN_SYNC:
        return None
    if copy.log_end < log_end or to in seen.ineligible or view.stopping or to == spec.master:
        return None
    return Promote(to, view.incarnation, f"{spec.master} hands over to {to}, which has its log end, {log_end}")


def _passed_over(desired: ClusterSpec, shard: ShardObject, late: NotBegun, seen: Observed) -> Decision:
    """A chosen master that does nothing about it: another copy in sync leads, if there is one.

    Two that both can't are not chosen in turn all the time: those that were chosen in vain are left in peace for a
    while, which doubles. Until they may be tried again, the one that was chosen last stays.
    """
    spec = shard.spec
    what = f"{spec.master} was chosen for epoch {spec.epoch} and has not begun it for over {late.seconds} s"
    if late.silent:
        return Refuse(
            "NoAnswer",
            f"{what}: it renews its lease but gives no answer; waiting, for it may be at work on it",
        )
    fault = f"{what} ({late.what})"
    if shard.status is None:
        return _first(desired, shard, seen, fault, late)
    known = classify_replicas(shard, seen)
    fit = [node for node in _nodes(known, ReplicaHealth.IN_SYNC) if node not in seen.ineligible]
    if fit := _not_in_vain(fit, late):
        copies = _answers(shard, seen)
        node = max(fit, key=_by_preference(shard, copies, seen))
        return _promoted(node, seen, f"{fault}: {node} is in sync, log end {copies[node].log_end}")
    return _no_candidate_begins(known, fault, late, seen)


def _not_in_vain(nodes: Sequence[str], late: NotBegun) -> list[str]:
    """The nodes that were not chosen in vain; where that is each of them, and it is time: the one whose turn is
    next.
    """
    if untried := [node for node in nodes if node not in late.in_vain]:
        return untried
    return [node for node in late.in_vain[:-1] if node in nodes][:1] if late.again else []


def _no_candidate_begins(
    known: Mapping[str, ReplicaHealth], fault: str, late: NotBegun, seen: Observed
) -> WaitForEvidence | Refuse:
    others = {node: health for node, health in known.items() if node != late.in_vain[-1]}
    if any(it is ReplicaHealth.UNCERTAIN and not seen.node(node).silent for node, it in others.items()):
        return WaitForEvidence()
    states = {node: "chosen in vain before" if node in late.in_vain else it.value for node, it in others.items()}
    also = f", or for another copy in sync ({'; '.join(f'{node}: {it}' for node, it in states.items())})"
    return Refuse("NotTakenUp", f"{fault}; waiting for it{also if others else ', which has the only copy'}")


def _first(
    desired: ClusterSpec, shard: ShardObject, seen: Observed, fault: str, late: NotBegun | None = None
) -> Decision:
    """Nothing was ever accepted: status is written before. Any replica will do, the first in the list for balance.

    A directory whose log is empty was made for a first term that never began. Of a damaged copy nobody knows that: the
    object may be an older one, or made again.
    """
    copies, strays = _answers(shard, seen), seen.strays.get(shard.spec.uid, {})
    if holders := [it for it, copy in [*copies.items(), *strays.items()] if copy.log_end > 0 or is_unreadable(copy)]:
        return _status_lost(desired, shard, copies, holders, seen)
    if shard.spec.epoch == 0 and (older := _older_history(desired, shard, seen)):
        return older
    known = classify_replicas(shard, seen)
    # Of an adopted shard something was stored, and who has all of it the copies say.
    if late is None and not was_adopted(shard.spec) and (sole := _sole(shard, known, seen, fault)):
        return sole
    if away := _nodes(known, ReplicaHealth.UNREACHABLE):
        return _nodes_away(away)
    if uncertain := _nodes(known, ReplicaHealth.UNCERTAIN):
        return _awaited(uncertain, seen)
    if was_adopted(shard.spec):
        return Refuse(
            "StatusLost",
            "it was made again for copies, and no node has a whole one: bring the volume or the copy back, or delete "
            "the DelayShard to begin anew without its messages",
        )
    fit = [node for node in known if node not in seen.ineligible]
    if not fit:
        return _clocks_suspect(known, seen)
    if late is not None and not (fit := _not_in_vain(fit, late)):
        return _no_candidate_begins(known, fault, late, seen)
    node = min(fit, key=lambda node: seen.node(node).stopping)  # min and max take the first of equals
    return _promoted(node, seen, f"{fault}: {node} is its first living replica")


def _older_history(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> Decision | None:
    """What there is of this name, beside a shard that was never led: its creation may have been decided long ago."""
    match decide_missing(desired, histories_of(shard.name, seen), seen, unheard_nodes(desired, seen)):
        case Unheard(nodes):
            away = [node for node in nodes if seen.node(node).liveness is Liveness.DEAD]
            return _nodes_away(away) if away else _awaited(nodes, seen)
        case TakeUp(uid, found):
            return GiveWay(f"{shard.name} is empty, and copies of {uid:016x} are there: {found.from_copies}")
        case Orphaned(why):
            return GiveWay(f"{shard.name} is empty, and copies of this name are there: {why}")
        case MakeEmpty():
            return None


def _nodes_away(nodes: Sequence[str]) -> Refuse:
    are = "is" if len(nodes) == 1 else "are"
    return Refuse(
        "NodeAway",
        f"{', '.join(nodes)} {are} away; the first term waits until all nodes have said that they have no data of this "
        "shard",
    )


def _status_lost(
    desired: ClusterSpec, shard: ShardObject, copies: Mapping[str, CopyView], holders: Sequence[str], seen: Observed
) -> Decision:
    """Something was accepted, and the object does not say who has all of it: it was made again, or restored."""
    lost = f"{', '.join(holders)} have data of this shard but its status is gone"
    if desired.bootstrap_volumes is not BootstrapVolumes.ADOPT:
        return Refuse("StatusLost", f"{lost} (a restored registry?): `delayctl adopt` rebuilds it")
    if away := (*unheard_nodes(desired, seen), *lost_nodes(desired, seen)):
        return Refuse("StatusLost", f"{lost}; waiting for {', '.join(away)}, which may have a newer copy")
    copies = {**copies, **seen.strays.get(shard.spec.uid, {})}
    if any(copy.role is ObservedRole.OPENING for copy in copies.values()):
        return WaitForEvidence()
    try:
        found = adopted(shard.spec.uid, copies, shard.spec.epoch)
    except NotAdoptable as error:
        lead = "" if all(map(is_unreadable, copies.values())) else "; `delayctl adopt` rebuilds it"
        return Refuse("StatusLost", f"{lost}: {error}{lead}")
    return Adopt(found, f"{lost}: {found.from_copies}")


def _failover(desired: ClusterSpec, shard: ShardObject, status: ShardStatus, seen: Observed, fault: str) -> Decision:
    known = classify_replicas(shard, seen)
    copies = _answers(shard, seen)
    members = _nodes(known, ReplicaHealth.IN_SYNC)
    fit = [node for node in members if node not in seen.ineligible]
    if not [node for node in fit if node != shard.spec.master] and (trusted := _trusted(desired, shard, seen)):
        return _promoted(trusted, seen, f"{fault}: {trusted} lives and all are in sync, though it gives no answer yet")
    if fit:
        node = max(fit, key=_by_preference(shard, copies, seen))
        what = "is in sync with the highest log end" if len(shard.spec.replicas) > 1 else "has the only copy, log end"
        return _promoted(node, seen, f"{fault}: {node} {what}, {copies[node].log_end}")
    if sole := _sole(shard, known, seen, fault):
        return sole
    rebooted, damaged = _nodes(known, ReplicaHealth.REBOOTED), _nodes(known, ReplicaHealth.DAMAGED)
    found = len(members) + len(rebooted) + len(damaged)
    away, uncertain = _nodes(known, ReplicaHealth.UNREACHABLE), _nodes(known, ReplicaHealth.UNCERTAIN)
    all_found = found >= len(status.in_sync)  # then those that gave no answer are not in sync
    if uncertain and not all_found:
        return _awaited(uncertain, seen)
    if members:
        return _clocks_suspect(members, seen)
    if rebooted and len(rebooted) == len(status.in_sync):
        return _after_reboot(rebooted, copies, seen, fault)
    allowed_by = "failover.allowUnclean" if desired.allow_unclean_failover else shard.unclean_allowed_by
    if allowed_by:
        unclean = _unclean([*rebooted, *_nodes(known, ReplicaHealth.OUTSIDE)], copies, seen, fault, allowed_by)
        if unclean is not None:
            return unclean
    outside = [node for node in _nodes(known, ReplicaHealth.OUTSIDE) if copies[node].log_end > 0]
    return _no_candidate(damaged, rebooted, outside, away if not all_found else [], copies)


def _sole(shard: ShardObject, known: Mapping[str, ReplicaHealth], seen: Observed, fault: str) -> Decision | None:
    """The only copy there can be. Its node opens the directory with this uid or refuses; no other node may serve."""
    (node, *others) = shard.spec.replicas
    if others:
        return None
    incarnation = seen.node(node).incarnation
    if known[node] is ReplicaHealth.UNREACHABLE:
        return Refuse("NodeAway", f"{node} has the only copy and its lease is not renewed; waiting for it")
    if known[node] is ReplicaHealth.UNCERTAIN:
        # No other copy could be chosen, and naming its process does no harm: its answer is not waited for.
        if incarnation is None or seen.between_processes(node):
            return WaitForEvidence()
        return Promote(node, incarnation, f"{fault}: {node} has the only copy")
    return None


def _trusted(desired: ClusterSpec, shard: ShardObject, seen: Observed) -> str | None:
    """One that may lead by what the registry says alone: as many entries as replicas means that all are in sync.

    A node that has much to do may need seconds to answer, and its clients wait. It looks for itself whether its copy
    is named before it leads. A new process is left out: its copy may turn out damaged or older than its machine's boot.
    """
    spec, status = shard.spec, shard.status
    if status is None or len(status.in_sync) < len(spec.replicas) or desired.durability is not Durability.FSYNC:
        return None
    for node in spec.replicas:
        view = seen.node(node)
        lasting = view.stable and not (view.stopping or view.silent or seen.between_processes(node))
        lasting = lasting and node not in (spec.master, *spec.leaving)
        deaf = answer_of(shard, node, seen) is None and node not in seen.answered
        if lasting and deaf and view.liveness is Liveness.ALIVE:
            return node
    return None


def _by_preference(
    shard: ShardObject, copies: Mapping[str, CopyView], seen: Observed
) -> Callable[[str], tuple[bool, bool, bool, int, int]]:
    """Most fit last. All of them have every acknowledged frame, so that a safe choice may also be a quick, lasting one.

    The former master's is the slowest: it has resigned, or its new process acts as if it had just granted every lease.
    """
    spec = shard.spec

    def preference(node: str) -> tuple[bool, bool, bool, int, int]:
        lasting = not seen.node(node).stopping and node not in spec.leaving
        return (
            (spec.uid, node) not in seen.excluded,
            node != spec.master,
            lasting,
            copies[node].log_epoch,
            copies[node].log_end,
        )

    return preference


def _after_reboot(rebooted: Sequence[str], copies: Mapping[str, CopyView], seen: Observed, fault: str) -> Decision:
    """Async durability, and every machine of the in-sync set was started again: each may have lost its log's end."""
    node = _highest([node for node in rebooted if node not in seen.ineligible], copies)
    if node is None:
        return _clocks_suspect(rebooted, seen)
    risk = Risk(
        "AllRebooted",
        f"all machines with an in-sync copy ({', '.join(rebooted)}) were started again, and durability is Async: what "
        f"none of them had written to its disk is lost; {node} has the highest log end, {copies[node].log_end}",
    )
    return _promoted(node, seen, f"{fault}: {node} has the highest log end of all in sync after a reboot", risk)


def _unclean(
    nodes: Sequence[str], copies: Mapping[str, CopyView], seen: Observed, fault: str, allowed_by: str
) -> Decision | None:
    node = _highest([node for node in nodes if node not in seen.ineligible and copies[node].log_end > 0], copies)
    if node is None:
        return None
    risk = Risk(
        UNCLEAN_FAILOVER,
        f"no in-sync copy is left and unclean failover is allowed ({allowed_by}): {node} goes on from log end "
        f"{copies[node].log_end}; acknowledged messages may be lost, or delivered again, or delivered though cancelled",
    )
    return _promoted(node, seen, f"{fault}: {node} is not in sync, and unclean failover is allowed", risk)


def _no_candidate(
    damaged: Sequence[str], rebooted: Sequence[str], outside: Sequence[str], away: Sequence[str],
    copies: Mapping[str, CopyView],
) -> Refuse:  # fmt: skip
    left = ", ".join(f"{node} with log end {copies[node].log_end}" for node in outside)
    beside = f"; whole, but not in sync: {left}" if outside else ""
    if away:
        also = "".join(f"; {node}'s copy is damaged: {copies[node].damaged}" for node in damaged)
        return Refuse("NodeAway", f"no living replica is in sync; waiting for {', '.join(away)}{also}")
    if damaged:
        what = "; ".join(f"{node}: {copies[node].damaged or 'damaged'}" for node in damaged)
        return Refuse("CopyDamaged", f"every in-sync copy that is left is damaged ({what}){beside}")
    if rebooted:
        return Refuse(
            "MachineRebooted",
            f"{', '.join(rebooted)} may have lost the log's end with the page cache, and the other in-sync copies are "
            f"gone{beside}",
        )
    why = "all replicas answer and none has an in-sync copy (was a directory deleted, or swapped with another node's?)"
    return Refuse("NoInSyncReplica", f"{why}{beside}")


def _awaited(nodes: Sequence[str], seen: Observed) -> WaitForEvidence | Refuse:
    if all(seen.node(node).silent for node in nodes):
        return Refuse(
            "NoAnswer",
            f"{', '.join(nodes)} {'renews its lease' if len(nodes) == 1 else 'renew their leases'} but "
            f"{'gives' if len(nodes) == 1 else 'give'} no answer; waiting, for cannot-see is not is-down",
        )
    return WaitForEvidence()


def _clocks_suspect(nodes: Iterable[str], seen: Observed) -> Refuse:
    what = "; ".join(f"{node}: {seen.ineligible[node]}" for node in nodes if node in seen.ineligible)
    return Refuse("ClockSuspect", f"nobody whose clock can be believed may be chosen ({what})")


def _promoted(node: str, seen: Observed, reason: str, risk: Risk | None = None) -> Decision:
    incarnation = seen.node(node).incarnation
    return WaitForEvidence() if incarnation is None else Promote(node, incarnation, reason, risk)


def _highest(nodes: Sequence[str], copies: Mapping[str, CopyView]) -> str | None:
    return max(nodes, key=lambda node: (copies[node].log_epoch, copies[node].log_end), default=None)


def _answers(shard: ShardObject, seen: Observed) -> dict[str, CopyView]:
    found = ((node, answer_of(shard, node, seen)) for node in shard.spec.replicas)
    return {node: copy for node, copy in found if copy is not None and copy.role is not ObservedRole.FETCHING}


def _nodes(known: Mapping[str, ReplicaHealth], health: ReplicaHealth) -> list[str]:
    return [node for node, it in known.items() if it is health]
