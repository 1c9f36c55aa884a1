"""Which shards to move so that the highest load of one node in one slot falls: an assignment search over arrays.

A shard's load is a vector over the slots and lies on its master's node. Each candidate shard is given one node: its
own, another that has a copy (a switchover, which copies nothing), or one that has none (a move). The search lowers
the highest node-slot load step by step: of the node that has it, the move is taken that leaves the lower of the two
nodes' peaks, or, among nearly as good ones, that copies least; where no move helps, an exchange of two shards. Each
step makes the sorted list of the nodes' peaks smaller, so it ends. At last every move is undone that is not needed.

Pure: the same arrays give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delayrebalance.model import F64, I64, Bool

NEAR_BEST = 0.9  # a move with this share of the best one's gain is as good, if it copies less
CRITICAL = 16  # slots of a node that tell most about what an exchange would do to it
EXCHANGES = 48  # of a pair of nodes that are looked at in all slots
MAX_EXCHANGE_SHARDS = 32  # shards of the fullest node that an exchange is tried with
MIN_GAIN = 1e-9  # of a peak: less than that is rounding, not gain
ROUNDS = 6


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """N nodes, S slots, C candidate shards. Loads are messages that fall due."""

    loads: F64  # [N, S] of all shards, candidates included, as they lie at `at`
    vectors: F64  # [C, S] of each candidate
    home: I64  # [C] node that has the load now
    at: I64  # [C] where an earlier search put it; `home` at first
    allowed: Bool  # [C, N] where it may be; its home always
    holds: Bool  # [C, N] nodes that have a copy now
    bytes: I64  # [C] that a move copies
    copies: I64  # [N] copies of all shards on a node, as it is with `at`
    min_copies: int  # a node that has no more gives none of its own away
    target: float  # the search ends when the highest load is down to this
    max_moves: int  # candidates whose node is not their home


def lower_bound(loads: F64, usable: Bool, tallest: F64) -> F64:
    """f64[S]: what the highest load of a node can't get below in each slot, whatever is moved where.

    loads: f64[N, S]; tallest: f64[S], the largest load of a single shard in the slot. The slot's total is spread over
    the usable nodes; another node keeps at most what it has.
    """
    total, count = loads.sum(axis=0), int(usable.sum())
    if not count:
        return np.asarray(loads.max(axis=0, initial=0.0))
    stuck = loads[~usable]
    level = total / len(loads)
    for _ in range(len(stuck) + 1):  # each round finds at least one more node that has less than the level
        below = stuck < level
        level = (total - (stuck * below).sum(axis=0)) / (count + len(stuck) - below.sum(axis=0))
    return np.asarray(np.maximum(level, tallest))


def destinations(home: I64, holds: Bool, usable: Bool, places: Sequence[I64], onto: Bool) -> Bool:
    """bool[C, N] where each shard's load may be: on usable nodes; no two copies come into one place that were apart.

    places: of each kind (zones, machines) i64[N], a number for each place, negative where it is not known. onto: nodes
    that may get something.
    """
    rows, allowed = np.arange(len(home)), np.broadcast_to(usable & onto, holds.shape).copy()
    for at in places:
        # Another copy is in the place that would be left, too: none is lost by the move, wherever it goes.
        spare = (at[home] >= 0) & ((holds & (at == at[home][:, None])).sum(axis=1) > 1)
        for place in np.unique(at[at >= 0]).tolist():
            inside = at == place
            others = (holds & inside).sum(axis=1) - inside[home]
            allowed &= (spare | (others == 0))[:, None] | ~inside
    allowed |= holds & usable & onto  # a switchover moves no copy
    allowed[rows, home] = True
    return allowed


def search(problem: SearchProblem) -> I64:
    """i64[C]: the node of each candidate."""
    state = _State(problem)
    best = np.inf
    for _ in range(ROUNDS):
        state.improve()
        state.undo_needless()
        if not state.highest < best * (1 - 1e-9) or state.highest <= problem.target:
            break  # what was undone gave no room for more
        best = state.highest
    return state.at


class _State:
    def __init__(self, problem: SearchProblem) -> None:
        self.problem = problem
        self.loads = problem.loads.copy()
        self.at = problem.at.copy()
        self.copies = problem.copies.copy()
        self.peaks = self.loads.max(axis=1, initial=0.0)
        self.members = [np.flatnonzero(self.at == node) for node in range(len(self.loads))]
        self.spent = int((self.at != problem.home).sum())

    @property
    def highest(self) -> float:
        return float(self.peaks.max(initial=0.0))

    def improve(self) -> None:
        """Takes steps until the highest load is down to the target, or no step lowers it."""
        for _ in range(20 * self.problem.max_moves + 1_000):
            node = int(self.peaks.argmax())
            if self.peaks[node] <= self.problem.target:
                return
            step = self._best_move(node) or self._best_exchange(node)
            if step is None:
                return
            for shard, to in step:
                self._put(shard, to)

    def undo_needless(self) -> None:
        """Brings shards home, or to a node where they cost less, while the highest load stays as low."""
        problem = self.problem
        limit = max(self.highest, problem.target)
        changed = True
        while changed:
            changed = False
            moved = np.flatnonzero(self.at != problem.home)
            for shard in sorted(moved.tolist(), key=lambda it: (-self._cost(it, int(self.at[it])), it)):
                elsewhere = self.at[shard] != np.arange(len(self.loads))
                free = np.flatnonzero(problem.holds[shard] & problem.allowed[shard] & elsewhere)
                for to in (int(problem.home[shard]), *free.tolist()):
                    cheaper = to == problem.home[shard] or self._cost(shard, to) < self._cost(
                        shard, int(self.at[shard])
                    )
                    if cheaper and self._peak_with(to, shard) <= limit and self._copies_left(shard, to):
                        self._put(shard, to)
                        changed = True
                        break

    def _cost(self, shard: int, to: int) -> int:
        return 0 if self.problem.holds[shard, to] else int(self.problem.bytes[shard])

    def _peak_with(self, node: int, shard: int) -> float:
        return float((self.loads[node] + self.problem.vectors[shard]).max(initial=0.0))

    def _copies_left(self, shard: int, to: int) -> bool:
        return bool(self._may_go(np.array([shard]), np.array([to]))[0, 0])

    def _may_go(self, shards: I64, nodes: I64) -> Bool:
        """bool[k, n]: allowed, and the node that would lose a copy by it keeps enough."""
        problem, home = self.problem, self.problem.home[shards]
        # Where the copy is that the load's way to a node may move: a node that has one gets none.
        now = np.where(problem.holds[shards, self.at[shards]], home, self.at[shards])
        then = np.where(problem.holds[np.ix_(shards, nodes)], home[:, None], nodes)
        enough = self.copies[now] > np.minimum(problem.min_copies, problem.copies[now])  # it may give back what it got
        return np.asarray(problem.allowed[np.ix_(shards, nodes)] & ((now[:, None] == then) | enough[:, None]))

    def _copy_at(self, shard: int, node: int) -> int:
        return int(self.problem.home[shard]) if self.problem.holds[shard, node] else node

    def _put(self, shard: int, to: int) -> None:
        old, home = int(self.at[shard]), self.problem.home[shard]
        self.copies[self._copy_at(shard, old)] -= 1
        self.copies[self._copy_at(shard, to)] += 1
        self.spent += int(to != home) - int(old != home)
        self.at[shard] = to
        self.loads[old] -= self.problem.vectors[shard]
        self.loads[to] += self.problem.vectors[shard]
        for node in (old, to):
            self.members[node] = np.flatnonzero(self.at == node)
            self.peaks[node] = self.loads[node].max(initial=0.0)

    def _leaving(self, node: int) -> I64:
        """Candidates on the node that weigh in its highest slot, the heaviest first."""
        here = self.members[node]
        weight = self.problem.vectors[here, int(self.loads[node].argmax())]
        return here[np.argsort(-weight, kind="stable")][: int((weight > 0).sum())]

    def _affordable(self, shards: I64, more: int = 1) -> Bool:
        """bool[k] moves of which the plan can still have."""
        moved = self.at[shards] != self.problem.home[shards]
        return np.asarray(moved | (self.spent + more <= self.problem.max_moves))

    def _best_move(self, node: int) -> list[tuple[int, int]] | None:
        problem, peak = self.problem, self.peaks[node]
        shards = self._leaving(node)
        shards = shards[self._affordable(shards)]
        if not len(shards):
            return None
        vectors, nodes = problem.vectors[shards], np.flatnonzero(self.peaks < peak)
        left = (self.loads[node] - vectors).max(axis=1)
        fits = self._may_go(shards, nodes) & (left < peak)[:, None]
        results = np.full(fits.shape, np.inf)
        for column, to in enumerate(nodes.tolist()):
            if (rows := fits[:, column]).any():
                results[rows, column] = np.maximum((self.loads[to] + vectors[rows]).max(axis=1), left[rows])
        gains = peak - np.maximum(results, problem.target)
        best = float(gains.max(initial=0.0))
        if best <= peak * MIN_GAIN:
            return None
        costs = np.where(problem.holds[np.ix_(shards, nodes)], 0, problem.bytes[shards][:, None])
        good = gains >= NEAR_BEST * best
        row, column = np.argwhere(good)[np.lexsort((-gains[good], costs[good]))[0]].tolist()
        return [(int(shards[row]), int(nodes[column]))]

    def _best_exchange(self, node: int) -> list[tuple[int, int]] | None:
        problem, peak = self.problem, self.peaks[node]
        going = self._leaving(node)[:MAX_EXCHANGE_SHARDS]
        best: tuple[float, int] = (peak * (1 - MIN_GAIN), 0)
        found: list[tuple[int, int]] | None = None
        for other in np.argsort(self.peaks, kind="stable").tolist():
            if other == node or best[0] <= problem.target:
                continue
            for seen, shard, back in self._promising(node, other, going):
                if seen > best[0]:
                    break
                change = problem.vectors[shard] - problem.vectors[back]
                result = max((self.loads[node] - change).max(), (self.loads[other] + change).max(), problem.target)
                cost = self._cost(shard, other) + self._cost(back, node)
                if (result, cost) < best and self._can_exchange(shard, back, node, other):
                    best, found = (float(result), cost), [(shard, other), (back, node)]
        return found

    def _promising(self, node: int, other: int, going: I64) -> list[tuple[float, int, int]]:
        """Pairs to exchange, by what both nodes' critical slots would have at most: the true peak is no lower."""
        coming = self.members[other]
        going, coming = (
            going[self.problem.allowed[going, other]], coming[self.problem.allowed[coming, node]]
        )  # fmt: skip
        if not len(going) or not len(coming):
            return []
        slots = np.concatenate([np.argsort(-self.loads[it], kind="stable")[:CRITICAL] for it in (node, other)])
        out, back = self.problem.vectors[np.ix_(going, slots)], self.problem.vectors[np.ix_(coming, slots)]
        here = ((self.loads[node][slots] - out)[:, None] + back[None]).max(axis=2)
        there = ((self.loads[other][slots] + out)[:, None] - back[None]).max(axis=2)
        result = np.maximum(here, there)
        order = np.argsort(result, axis=None, kind="stable")[:EXCHANGES]
        rows, columns = np.unravel_index(order, result.shape)
        return list(zip(result.ravel()[order].tolist(), going[rows].tolist(), coming[columns].tolist(), strict=True))

    def _can_exchange(self, shard: int, back: int, node: int, other: int) -> bool:
        home = self.problem.home
        more = sum(int(to != home[it]) - int(self.at[it] != home[it]) for it, to in ((shard, other), (back, node)))
        return (
            self.spent + max(0, more) <= self.problem.max_moves
            and self._copies_left(shard, other)
            and self._copies_left(back, node)
        )
