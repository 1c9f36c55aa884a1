"""Since when chosen masters have not begun their terms, though their nodes live.

The answers of a master that was chosen, in turn: a slave (it has not heard yet), a candidate, a master. One whose way
to the registry fails for this one shard stays a slave, or a candidate, for ever: its lease is renewed all the same.

Kept in memory only. A new process of the operator begins to count anew, which costs a wait and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from delayregistry.model import ShardObject

from delayoperator.control_loop.probe import NodeAnswer
from delayoperator.plan import CopyView, Liveness, NotBegun, Observed, ObservedRole

# A chosen master that does nothing about it for so long is passed over. It hears of its choice and reads the object
# within a second or two; whatever takes longer (its log, a lease to wait out, a slow disk) it does as one that is
# opening, or as a candidate, and while it says so no time counts. A node that was chosen for 1,000 shards at once
# begins the last of them after 8 s, and while it begins those that were chosen before, no time counts either.
TAKE_UP_MS = 10_000
DOUBLINGS = 3  # of TAKE_UP_MS, before a copy that was chosen in vain is tried again: 80 s at most
# A copy that was passed over gets the shard back for balance, a move or a drain after so long at the earliest: such a
# switchover stops a shard that is served for TAKE_UP_MS, if the copy's way to the registry fails still.
EXCLUDED_MS = 300_000
BLIND_MS = 5_000  # without a look for so long (the registry was away, say): what happened meanwhile is not known


@dataclass(slots=True)
class _PendingTerm:
    node: str
    incarnation: str
    first_ms: int  # when it was first seen to be chosen
    since_ms: int  # it has done nothing about it since then
    ended: bool = False  # it has given the term up
    late: bool = False
    silent: bool = False
    what: str = ""


class TermStarts:
    """Watches the terms that were chosen and are not served yet."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[int, int], _PendingTerm] = {}  # by uid and epoch
        self._in_vain: dict[int, list[str]] = {}  # by uid: nodes that were passed over since the shard was last served
        self._tries: dict[int, int] = {}  # by uid: how often one was
        self._excluded: dict[tuple[int, str], tuple[str, int]] = {}  # by uid and node: the process, and until when
        self._updated_ms: int | None = None

    def due(self, now_ms: int) -> bool:
        """Whether something may be done now that was not before, though the world looks the same."""
        return any(now_ms >= until_ms for _, until_ms in self._excluded.values())

    def update(self, seen: Observed, answers: Mapping[str, NodeAnswer], now_ms: int) -> Observed:
        """The world with the terms that are overdue. To be called at least each BLIND_MS while a shard is unserved.

        answers: by node, of the processes that the leases name.
        """
        if self._updated_ms is not None and now_ms - self._updated_ms > BLIND_MS:
            self._chosen.clear()
        self._updated_ms = now_ms
        begun = self._ended(seen, now_ms)
        uids = {shard.spec.uid for shard in seen.shards} if self._excluded else set()
        self._excluded = {
            (uid, node): (incarnation, until_ms)
            for (uid, node), (incarnation, until_ms) in self._excluded.items()
            if now_ms < until_ms and uid in uids and seen.node(node).incarnation == incarnation
        }
        self._chosen = {
            (shard.spec.uid, shard.spec.epoch): self._updated(shard, seen, answers, begun, now_ms)
            for shard in seen.shards
            if _to_be_begun(shard, seen)
        }
        late = {key: it for key, it in self._chosen.items() if it.late or it.silent}
        not_begun = {key: self._overdue(key[0], it, now_ms) for key, it in late.items()}
        # A copy that has given its term up may be chosen for another one; it may be the only copy.
        given_up = {key: it.what for key, it in late.items() if it.ended and not_begun[key].again}
        return replace(
            seen,
            not_begun={key: overdue for key, overdue in not_begun.items() if key not in given_up},
            given_up={**seen.given_up, **given_up},
            excluded=frozenset(self._excluded),
        )

    def _ended(self, seen: Observed, now_ms: int) -> dict[str, int]:
        """Updates the terms that the last call left open. By process: when it was chosen for the first of the terms
        that it has begun since then."""
        shards = {shard.spec.uid: shard for shard in seen.shards}
        begun: dict[str, int] = {}
        for (uid, epoch), it in self._chosen.items():
            shard = shards.get(uid)
            if shard is None:
                continue
            if _served(shard) == epoch:
                self._excluded.pop((uid, it.node), None)
                begun[it.incarnation] = min(it.first_ms, begun.get(it.incarnation, it.first_ms))
            elif shard.spec.epoch > epoch and it.late:
                tried = self._in_vain.setdefault(uid, [])
                self._in_vain[uid] = [*(node for node in tried if node != it.node), it.node]
                self._tries[uid] = self._tries.get(uid, 0) + 1
                self._excluded[uid, it.node] = it.incarnation, now_ms + EXCLUDED_MS
        for uid in list(self._in_vain):
            if uid not in shards or _served(shards[uid]) == shards[uid].spec.epoch:
                del self._in_vain[uid], self._tries[uid]
        return begun

    def _updated(
        self,
        shard: ShardObject,
        seen: Observed,
        answers: Mapping[str, NodeAnswer],
        begun: Mapping[str, int],
        now_ms: int,
    ) -> _PendingTerm:
        spec = shard.spec
        node, incarnation = spec.master or "", spec.incarnation or ""
        it = self._chosen.get((spec.uid, spec.epoch)) or _PendingTerm(node, incarnation, now_ms, now_ms)
        if incarnation in begun and it.first_ms >= begun[incarnation]:
            it.since_ms = now_ms  # its turn comes
        answer = answers.get(node)
        if answer is not None:
            copy = answer.copies.get(spec.uid)
            it.ended = copy is not None and copy.ended_epoch == spec.epoch
            if copy is not None and not it.ended and _at_work(copy):
                it.since_ms = now_ms
            it.what = _waiting_for(answer, copy, spec.epoch)
            it.late, it.silent = it.ended or now_ms - it.since_ms >= TAKE_UP_MS, False
        else:  # what it said last holds: one answer that is missing means nothing
            it.silent = not it.late and seen.node(node).silent and now_ms - it.since_ms >= TAKE_UP_MS
        return it

    def _overdue(self, uid: int, it: _PendingTerm, now_ms: int) -> NotBegun:
        tried = (*(node for node in self._in_vain.get(uid, ()) if node != it.node), it.node)
        pause_ms = TAKE_UP_MS << min(self._tries.get(uid, 0), DOUBLINGS)
        seconds, waited_ms = 1, now_ms - it.first_ms
        if waited_ms >= TAKE_UP_MS:
            seconds = (TAKE_UP_MS << (waited_ms // TAKE_UP_MS).bit_length() - 1) // 1000
        return NotBegun(seconds, it.what, tried, again=now_ms - it.since_ms >= pause_ms, silent=it.silent)


def _served(shard: ShardObject) -> int:
    return shard.status.serving_epoch if shard.status is not None else 0


def _to_be_begun(shard: ShardObject, seen: Observed) -> bool:
    spec = shard.spec
    if spec.master is None or _served(shard) >= spec.epoch:
        return False
    view = seen.node(spec.master)
    return view.liveness is Liveness.ALIVE and view.incarnation == spec.incarnation


def _at_work(copy: CopyView) -> bool:
    """It recovers, or is a candidate that does not say what keeps it."""
    if copy.role is ObservedRole.CANDIDATE:
        return copy.ended_epoch > 0 or not copy.not_serving  # with an epoch its reason is an earlier term's
    return copy.role is ObservedRole.OPENING


def _waiting_for(answer: NodeAnswer, copy: CopyView | None, epoch: int) -> str:
    """The reason why the node has not begun its term, as it reports it or as its answer suggests."""
    if copy is None:
        return "it has made no copy yet" if answer.listed else "it has not read the shards from the registry yet"
    if copy.damaged:
        return f"its copy is damaged: {copy.damaged}"
    if copy.not_serving and copy.ended_epoch in (0, epoch):
        return copy.not_serving
    if copy.role is ObservedRole.MASTER:
        return f"it leads in epoch {copy.serving_epoch} still, as if it had not heard of another"
    return "it seems not to have heard that it was chosen"
