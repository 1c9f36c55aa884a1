"""When the nodes are asked for their copies, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from delayregistry.model import NodeLease

from delayoperator.control_loop.probe import NodeAnswer, Prober
from delayoperator.control_loop.term_starts import TermStarts
from delayoperator.plan import CopyView, Observed, ObservedNode, Questions, patrolled, questions
from delayoperator.plan.adoption import serves_unnamed

AGAIN_MS = 100  # a shard waits for a master and the world looks as before: a copy may have been opened since
# Each time in vain the next one waits twice as long, up to KEPT_MS: a shard may wait for days.
KEPT_MS = 1_000  # an answer of this age does for a move under way
PATROL_MS = 3_000  # between questions whether masters serve what they are named for; 5 ms a node with 1,000 copies
SILENT_MS = 5_000  # without an answer for so long, though asked: that is said in a condition


@dataclass(frozen=True, slots=True)
class _TimedAnswer:
    answer: NodeAnswer
    at_ms: int


class ReplicaQueries:
    """Remembers what was said a moment ago, and since when a node has been asked in vain."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self._last_answers: dict[str, _TimedAnswer] = {}
        self._in_vain_since_ms: dict[str, int] = {}
        self._queried_ms: int | None = None
        self._pause_ms = AGAIN_MS
        self._questions: tuple[tuple[Observed, bool], Questions] | None = None
        self._patrolled_ms: int | None = None
        self._given_up: Mapping[tuple[int, int], str] = {}  # as of the last patrol
        self._served_by_others: frozenset[tuple[int, int]] = frozenset()  # likewise
        self._found = _NOTHING_FOUND  # likewise
        self._term_starts = TermStarts()

    @property
    def held_copies(self) -> Mapping[str, frozenset[int]]:
        """By node that has said what it has, the uids of its copies."""
        return self._found.held

    @property
    def spare_copies(self) -> Mapping[str, int]:
        """By node that has said what it has, how many copies on which no shard counts."""
        return self._found.spare

    def query(
        self, seen: Observed, leases: Sequence[NodeLease], now_ms: int, *, changed: bool, missing: bool = False
    ) -> Observed | None:
        """The world with what its nodes answer. None: it has not changed, and no node need be asked yet.

        missing: a topic has a shard that has no object.
        """
        before = self._given_up, self._served_by_others, self._found
        seen = self._patrolled(seen, leases, now_ms)
        patrolled_anew = before != (self._given_up, self._served_by_others, self._found)
        changed = changed or patrolled_anew or self._term_starts.due(now_ms)
        wanted = self._questions_for(seen, all_nodes=missing)
        pause_ms = self._pause_ms if wanted.now else KEPT_MS
        due = self._queried_ms is None or now_ms - self._queried_ms >= pause_ms
        asked = wanted.now | wanted.soon
        if not changed and not (asked and due):
            return None
        self._pause_ms = AGAIN_MS if changed else min(2 * self._pause_ms, KEPT_MS)
        # Where something has changed the answers may have too; but moves change something many times a second.
        kept_ms = AGAIN_MS if changed else KEPT_MS
        stale = {
            node for node in wanted.soon if (it := self._last_answers.get(node)) is None or now_ms - it.at_ms >= kept_ms
        }
        self._query_nodes(wanted.now | stale, leases, now_ms)
        answered, answers = self._with_answers(seen, asked)
        return self._term_starts.update(answered, answers, now_ms)

    def _patrolled(self, seen: Observed, leases: Sequence[NodeLease], now_ms: int) -> Observed:
        """The world with the terms that their processes have given up, though the registry does not say so, and with
        copies that it does not know of.

        A term may end without a word there: the master read a wrong answer from the registry, or a slave told it of
        an epoch that does not exist. A node that gives no answer changes nothing.
        """
        if self._patrolled_ms is None:
            self._patrolled_ms = now_ms
        if now_ms - self._patrolled_ms >= PATROL_MS:
            self._patrolled_ms = now_ms
            nodes = patrolled(seen)
            answers = self._prober.query([lease for lease in leases if lease.node in nodes])
            self._last_answers |= {node: _TimedAnswer(answer, now_ms) for node, answer in answers.items()}
            self._given_up = _given_up(seen, answers)
            self._served_by_others = _served_by_others(seen, answers)
            self._found = _found(seen, self._current_answers(seen))
        return replace(
            seen,
            given_up=self._given_up,
            served_by_another=self._served_by_others,
            unclaimed=self._found.unclaimed,
            strays=self._found.strays,
        )

    def _current_answers(self, seen: Observed) -> dict[str, NodeAnswer]:
        """The last answers. Another process's answer, of before a restart or of after one that the lease does not show
        yet, is none."""
        last = ((node, it.answer) for node, it in self._last_answers.items())
        return {node: answer for node, answer in last if answer.incarnation == seen.node(node).incarnation}

    def _questions_for(self, seen: Observed, *, all_nodes: bool) -> Questions:
        key = seen, all_nodes
        if self._questions is None or self._questions[0] != key:
            self._questions = key, questions(seen, all_nodes=all_nodes)
        return self._questions[1]

    def _query_nodes(self, nodes: Set[str], leases: Sequence[NodeLease], now_ms: int) -> None:
        if not nodes:
            return
        self._queried_ms = now_ms
        answers = self._prober.query([lease for lease in leases if lease.node in nodes])
        for node in sorted(nodes):
            if node in answers:
                self._last_answers[node] = _TimedAnswer(answers[node], now_ms)
                self._in_vain_since_ms.pop(node, None)
            else:
                self._last_answers.pop(node, None)
                self._in_vain_since_ms.setdefault(node, now_ms)

    def _with_answers(self, seen: Observed, asked: Set[str]) -> tuple[Observed, Mapping[str, NodeAnswer]]:
        for node in [node for node in self._in_vain_since_ms if node not in asked]:
            del self._in_vain_since_ms[node]
        current = self._current_answers(seen)
        answers = {node: answer for node, answer in current.items() if node in asked}
        self._found = _found(seen, current)
        copies: dict[tuple[str, str], CopyView] = {}
        for shard in seen.shards:
            for node in shard.spec.replicas:
                copy = answers[node].copies.get(shard.spec.uid) if node in answers else None
                if copy is not None:
                    copies[shard.name, node] = copy
        answered = replace(
            seen,
            nodes=self._silent(seen.nodes),
            copies=copies,
            answered={node: answer.incarnation for node, answer in answers.items() if answer.listed},
            ineligible={node: answer.ineligible for node, answer in answers.items() if answer.ineligible},
            unclaimed=self._found.unclaimed,
            strays=self._found.strays,
        )
        return answered, answers

    def _silent(self, nodes: Mapping[str, ObservedNode]) -> Mapping[str, ObservedNode]:
        latest_ms = self._queried_ms or 0
        silent = {node for node, since_ms in self._in_vain_since_ms.items() if latest_ms - since_ms >= SILENT_MS}
        return {node: replace(view, silent=node in silent) for node, view in nodes.items()}


@dataclass(frozen=True, slots=True)
class _FoundCopies:
    """See Observed."""

    unclaimed: Mapping[int, Mapping[str, CopyView]]
    strays: Mapping[int, Mapping[str, CopyView]]
    held: Mapping[str, frozenset[int]]  # by node that said all that it has, the uids
    spare: Mapping[str, int]  # by the same nodes, how many of the first two they have


_NOTHING_FOUND = _FoundCopies({}, {}, {}, {})


def _found(seen: Observed, answers: Mapping[str, NodeAnswer]) -> _FoundCopies:
    replicas = {shard.spec.uid: shard.spec.replicas for shard in seen.shards}
    unclaimed: dict[int, dict[str, CopyView]] = {}
    strays: dict[int, dict[str, CopyView]] = {}
    for node, answer in answers.items():
        for uid, copy in answer.copies.items():
            nodes = replicas.get(uid)
            if nodes is None:
                unclaimed.setdefault(uid, {})[node] = copy
            elif node not in nodes:
                strays.setdefault(uid, {})[node] = copy
    held = {node: frozenset(answer.copies) for node, answer in answers.items() if answer.listed}
    spare = dict.fromkeys(held, 0)
    for copies in (*unclaimed.values(), *strays.values()):
        for node in copies.keys() & spare.keys():
            spare[node] += 1
    return _FoundCopies(unclaimed, strays, held, spare)


def _given_up(seen: Observed, answers: Mapping[str, NodeAnswer]) -> dict[tuple[int, int], str]:
    found = {}
    for shard in seen.shards:
        spec = shard.spec
        answer = answers.get(spec.master or "")
        copy = answer.copies.get(spec.uid) if answer is not None and answer.incarnation == spec.incarnation else None
        if copy is not None and copy.ended_epoch == spec.epoch:
            found[spec.uid, spec.epoch] = copy.not_serving or "it gives no reason"
    return found


def _served_by_others(seen: Observed, answers: Mapping[str, NodeAnswer]) -> frozenset[tuple[int, int]]:
    specs = {shard.spec.uid: shard.spec for shard in seen.shards}
    return frozenset(
        (uid, specs[uid].epoch)
        for node, answer in answers.items()
        for uid, copy in answer.copies.items()
        if uid in specs and serves_unnamed(specs[uid], node, copy)
    )
