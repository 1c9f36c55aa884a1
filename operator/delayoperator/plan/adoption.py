"""What a shard's object becomes when it is made again from what the shard's copies know. Pure.

A shard's *history* is what its uid stands for: its object names the uid, and so does each copy's directory. An object
may be gone (deleted, or the registry was restored from an older state) while its copies are on the nodes' disks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from delayregistry.model import ShardSpec, ShardStatus, copy_id_of

from delayoperator.plan.observed import CopyView, ObservedRole


class NotAdoptable(Exception):
    """These copies can't be gone on from, or not yet; says why."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """spec has no master: one is chosen next, in a higher epoch."""

    spec: ShardSpec
    status: ShardStatus
    best: tuple[str, ...]  # nodes with the highest log
    log_epoch: int
    log_end: int

    @property
    def from_copies(self) -> str:
        return f"{', '.join(self.best)} with epoch {self.log_epoch}, log end {self.log_end}"


def has_data(copies: Mapping[str, CopyView]) -> bool:
    """Whether something may have been accepted: a directory with an empty log was made for a term that never began. Of
    a damaged copy that is not known, nor of one that is being opened."""
    return any(may_have_messages(copy) or is_unreadable(copy) for copy in copies.values())


def is_unreadable(copy: CopyView) -> bool:
    """Whether it is a copy of which nobody knows what it has."""
    return _is_damaged(copy) and not _is_partial(copy)


def may_have_messages(copy: CopyView) -> bool:
    """Whether something can be served from it, as far as is known; from some by a newer release alone."""
    if _is_partial(copy) or _is_damaged(copy):
        return copy.newer_format
    return copy.log_end > 0 or copy.role is ObservedRole.OPENING


def was_adopted(spec: ShardSpec) -> bool:
    """Whether the object was made from copies and has had no term since."""
    return spec.epoch > 0 and spec.master is None


def serves_unnamed(spec: ShardSpec, node: str, copy: CopyView) -> bool:
    """Whether the node serves the object's epoch, and the object gave that to another node: it is older or newer than
    the one that the node was named by. No two are given the same in one course of events. (Where only one of the two
    fields differs a person has edited it: the next epoch begins, as after any restart.)"""
    another = spec.master not in (None, node) and spec.incarnation not in (None, copy.incarnation)
    return another and copy.serving_epoch == spec.epoch > 0


def adopted(uid: int, copies: Mapping[str, CopyView], epoch: int = 0, *, unproven: bool = False) -> Adopted:
    """copies: by node id, all that there are of this uid: every node of the cluster has said what it has. epoch: the
    object's, 0 where there is none. unproven: a person wants it though a copy that was in sync seems to be lost.

    A master that serves is taken alone. Else the highest log has all that was acknowledged: in an epoch logs differ in
    length only, and each term began with a copy that had everything. A copy whose disk is at work on its log's end is
    not counted on: it may lose that with its power (seed 130814). What the copies keep of the in-sync set may speak
    against that: then the copy that had it all is on no node, as when a volume was lost. Raises NotAdoptable.
    """
    whole = {node: copy for node, copy in copies.items() if not _is_partial(copy)}
    if any(copy.role is ObservedRole.OPENING for copy in whole.values()):
        raise NotAdoptable("a copy is still being opened; try again in a moment")
    if any(copy.role is ObservedRole.CANDIDATE for copy in whole.values()):
        raise NotAdoptable("a copy is about to lead; try again in a moment")
    sound = {node: copy for node, copy in whole.items() if not _is_damaged(copy) and copy.log_end > 0}
    if not sound:
        raise NotAdoptable(f"every copy is damaged{_why(whole)}")
    end = max((copy.log_epoch, copy.log_end) for copy in sound.values())
    best = tuple(sorted(node for node, copy in sound.items() if (copy.log_epoch, copy.log_end) == end))
    serving = [node for node, copy in sound.items() if copy.serving_epoch >= end[0] > 0]
    if serving:
        # It serves on without its object, and only it knows which copies it counts on: one that had as much a moment
        # ago may only be catching up.
        best = (max(serving, key=lambda node: sound[node].serving_epoch),)
        end = sound[best[0]].log_epoch, sound[best[0]].log_end
    elif stored := tuple(node for node in best if not sound[node].unsynced):
        best = stored
    else:
        raise NotAdoptable(f"{', '.join(best)} has the highest log end, and is still storing it; try again in a moment")
    if not serving and not unproven and (why := _why(whole)):
        raise NotAdoptable(f"a copy is damaged, and may have had more{why}: mend it, or `delayctl adopt --unproven`")
    newest = max(sound.values(), key=lambda copy: (copy.kept_epoch, copy.log_end))
    speaks = newest.kept_epoch >= end[0] > 0  # of an earlier epoch than the log's last it says nothing
    named = {copy_id_of(entry): entry for entry in newest.kept_in_sync} if speaks else {}
    in_sync = [sound[node].replica_id for node in best]
    if speaks and not unproven and not _has_one_of_each(sound.values(), newest.kept_epoch):
        raise NotAdoptable(
            f"{', '.join(best)} has the highest log end, but was not in sync in epoch {newest.kept_epoch}, as far as "
            "the copies know; the copy that was is not on any node: bring it back, or `delayctl adopt --unproven`"
        )
    any_copy = sound[best[0]]
    highest = max(epoch, *(copy.epoch for copy in whole.values()))
    replicas = tuple(sorted(sound, key=lambda node: (node not in best, node)))
    spec = ShardSpec(uid, any_copy.topic, any_copy.queue, replicas, epoch=highest)
    if not serving:  # with the boots in which they were in sync: a copy on disk tells none, one that is open its last
        in_sync = [named.get(copy_id_of(entry), entry) for entry in in_sync]
    status = ShardStatus(highest, "", tuple(in_sync))
    return Adopted(spec, status, best, *end)


def _has_one_of_each(sound: Collection[CopyView], epoch: int) -> bool:
    """Whether each in-sync set of that epoch that a copy keeps has a member among these copies.

    The member had all that was acknowledged by then, and the highest log has all that the member has. That log may be
    of a copy that came into the set later, where the master lost its log's end with its power (seed 59487).
    """
    present = {copy_id_of(copy.replica_id) for copy in sound}
    kept = (copy.kept_in_sync for copy in sound if copy.kept_epoch == epoch)
    return all(present & {copy_id_of(entry) for entry in entries} for entries in kept)


def _why(copies: Mapping[str, CopyView]) -> str:
    """Of each damaged copy, what is wrong with it; empty: none is damaged."""
    what = "; ".join(f"{node}: {copy.damaged or 'damaged'}" for node, copy in copies.items() if _is_damaged(copy))
    return f" ({what})" if what else ""


def _is_damaged(copy: CopyView) -> bool:
    return copy.damaged is not None or copy.role is ObservedRole.DAMAGED


def _is_partial(copy: CopyView) -> bool:
    return copy.role in (ObservedRole.FETCHING, ObservedRole.LEAVING)
