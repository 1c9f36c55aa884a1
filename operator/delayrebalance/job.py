"""study(): from the wheels' slots and the cluster's map to the moves that lower the highest load, or to none.

    study(spark, slots, cluster, settings, now_ms=...) -> Study
    run.study_cluster(cluster, settings) -> Study    with a session, and slots from the nodes
    proposal.to_plan(study, cluster, settings, now_ms=...)    the same, as DelayRebalance.status.plan

`slots` is a DataFrame of `delaycluster.slots`' schema, from source.py or history.py. Spark does all that grows with
shards x slots; here are nodes x slots, and the loads of at most `settings.candidates` shards, in the slots that can
become the highest. What a search in those slots gives is then looked at in all slots; where another one has become the
highest, it is searched again with that slot too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from delayrebalance.decision.moves import figures, found_moves
from delayrebalance.decision.search import SearchProblem, destinations, lower_bound, search
from delayrebalance.model import F64, I64, Bool, ClusterMap, RebalanceError, SearchSettings, Span, Study

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delayrebalance.forecast.loads import ShardLoads

ROUNDS = 4
MATTERS = 0.6  # of the lower bound: slots in which no node has more are not searched, only looked at afterwards
NEAR = 0.8  # of a node's own peak: shards are candidates for what they weigh in slots above it
MIN_COPIES_SHARE = (
    0.34  # of the mean: a node with fewer copies gets none taken away; the planner would give it some back
)
MAX_CELLS = 1 << 24  # nodes x slots, 128 MiB


def study(
    spark: SparkSession,
    slots: DataFrame,
    cluster: ClusterMap,
    settings: SearchSettings,
    *,
    now_ms: int,
    silent: Sequence[str] = (),
) -> Study:
    """The load of the next settings.horizon_ms and the moves that spread it. silent: nodes whose rows are missing.

    Raises RebalanceError.
    """
    from delayrebalance.forecast.loads import ShardLoads

    span = Span(now_ms // settings.slot_ms * settings.slot_ms, settings.slot_ms, settings.slots)
    places = _Places.of(cluster, settings, silent)
    if len(cluster.nodes) * span.count > MAX_CELLS:
        raise RebalanceError(
            f"{len(cluster.nodes):,} nodes x {span.count:,} slots are more than {MAX_CELLS:,}: "
            "look less far ahead, or in longer slots"
        )
    loads = ShardLoads(spark, slots, [shard.name for shard in cluster.shards], span)
    try:
        return _Job(loads, span, cluster, places, settings).run(now_ms, tuple(silent))
    finally:
        loads.close()


@dataclass(frozen=True, slots=True)
class _Places:
    """The map in numbers: N nodes, M shards."""

    master: I64  # [M]
    holds: Bool  # [M, N]
    movable: I64  # shards that may be moved
    usable: Bool  # [N]
    onto: Bool  # [N]
    zones: I64  # [N], -1 where not known
    machines: I64  # likewise

    @classmethod
    def of(cls, cluster: ClusterMap, settings: SearchSettings, silent: Sequence[str]) -> _Places:
        number = {node.name: place for place, node in enumerate(cluster.nodes)}
        unknown = {it for shard in cluster.shards for it in (shard.master, *shard.replicas)} - set(number)
        if unknown:
            raise RebalanceError(f"the map names nodes that it does not have: {', '.join(sorted(unknown))}")
        holds = np.zeros((len(cluster.shards), len(number)), dtype=bool)
        for row, shard in enumerate(cluster.shards):
            holds[row, [number[it] for it in {shard.master, *shard.replicas}]] = True
        leaves = settings.away_from or frozenset(number)
        movable = [
            row
            for row, shard in enumerate(cluster.shards)
            if not shard.fixed and shard.master in leaves and shard.topic not in settings.excluded_topics
        ]
        return cls(
            master=np.array([number[shard.master] for shard in cluster.shards], dtype=np.int64),
            holds=holds,
            movable=np.array(movable, dtype=np.int64),
            usable=np.array([node.usable and node.name not in silent for node in cluster.nodes], dtype=bool),
            onto=np.array([not settings.onto or node.name in settings.onto for node in cluster.nodes], dtype=bool),
            zones=_numbered([node.zone for node in cluster.nodes]),
            machines=_numbered([node.machine for node in cluster.nodes]),
        )


def _numbered(names: Sequence[str]) -> I64:
    """i64[N]: equal numbers for equal names; -1 for an empty one."""
    known = sorted(set(names) - {""})
    return np.array([known.index(name) if name else -1 for name in names], dtype=np.int64)


class _Job:
    def __init__(
        self, loads: ShardLoads, span: Span, cluster: ClusterMap, places: _Places, settings: SearchSettings
    ) -> None:
        self._loads, self._span, self._cluster = loads, span, cluster
        self._places, self._settings = places, settings
        # By number, of the shards that were candidates so far.
        self._pending: dict[int, int] = {}
        self._pending_bytes: dict[int, int] = {}
        self._at: dict[int, int] = {}  # the node of each shard that is to move

    def run(self, now_ms: int, silent: tuple[str, ...]) -> Study:
        places, settings = self._places, self._settings
        sums = self._loads.node_sums(places.master, len(self._cluster.nodes))
        counted = places.usable | (sums.messages.max(axis=1, initial=0.0) > 0)
        names = tuple(node.name for node in self._cluster.nodes)
        before = figures(sums.messages, sums.bytes, counted, names, self._span, settings.threshold)
        bound = float(lower_bound(sums.messages, places.usable, sums.tallest).max(initial=0.0))
        bound = max(bound, self._loads.crowded(len(names), bound))
        target = bound * (1 + settings.tolerance)
        after, vectors = sums.messages, np.zeros((0, self._span.count))
        why = self._why_not(before.peak_messages, before.hot_slots, target)
        if not why:
            after, vectors = self._search(sums.messages, target)
            gain = before.peak_messages - float(after.max())
            if gain < settings.min_gain * before.peak_messages or not self._at:
                why = (
                    f"the highest load is {before.peak_messages:,.0f} messages, no placement could have less than "
                    f"{bound:,.0f}, and no {settings.max_moves} allowed moves lower it by {settings.min_gain:.0%}"
                )
                self._at, after, vectors = {}, sums.messages, vectors[:0]
        moves = found_moves(
            self._cluster, sorted(self._at.items()), places.holds, vectors, self._pending,
            self._pending_bytes, sums.messages, counted, self._span, settings, now_ms,
        )  # fmt: skip
        if not why:
            why = (
                f"{len(moves)} moves lower the highest load from {before.peak_messages:,.0f} to {after.max():,.0f} "
                f"messages; no placement could have less than {bound:,.0f}"
            )
        return Study(
            why=why,
            before=before,
            after=figures(after, sums.bytes, counted, names, self._span, settings.threshold),
            bound_messages=bound,
            moves=moves,
            start_ms=self._span.start_ms,
            slot_ms=self._span.slot_ms,
            node_names=names,
            node_loads=sums.messages,
            node_loads_after=after,
            silent=silent,
        )

    def _why_not(self, peak: float, hot_slots: int, target: float) -> str:
        if peak == 0:
            return "nothing falls due in this time"
        if not hot_slots:
            return f"no node is above {self._settings.threshold:g} times the mean in any slot"
        if peak <= target:
            return (
                f"the highest load, {peak:,.0f} messages, is within {self._settings.tolerance:.0%} of the lower bound"
            )
        if not len(self._places.movable):
            return "no shard may be moved now"
        return ""

    def _search(self, before: F64, target: float) -> tuple[F64, F64]:
        """The loads f64[N, S] after the moves that it leaves in self._at, and those shards' vectors f64[k, S]."""
        active = np.flatnonzero(before.max(axis=0) > MATTERS * target)
        best, vectors = before, np.zeros((0, self._span.count))
        best_at: dict[int, int] = {}
        now = before
        for _ in range(ROUNDS):
            self._at = self._searched(now, active, target)
            moved = np.array(sorted(self._at), dtype=np.int64)
            full = self._loads.vectors(moved, np.arange(self._span.count))
            now = before.copy()
            np.subtract.at(now, self._places.master[moved], full)
            np.add.at(now, [self._at[it] for it in moved.tolist()], full)
            better = bool(now.max() < best.max() * (1 - 1e-6))
            if better:
                best, best_at, vectors = now, dict(self._at), full
            others = np.setdiff1d(np.flatnonzero(now.max(axis=0) > now[:, active].max()), active)
            if now.max() <= target or (not better and not len(others)):
                break
            active = np.union1d(active, others)
        self._at = best_at
        return best, vectors

    def _searched(self, now: F64, active: I64, target: float) -> dict[int, int]:
        places, settings = self._places, self._settings
        node_of = places.master.copy()
        for shard, node in self._at.items():
            node_of[shard] = node
        chosen = self._candidates(now, node_of, active, target)
        home, holds = places.master[chosen], places.holds[chosen]
        copies = places.holds.sum(axis=0)
        for shard, node in self._at.items():
            if not places.holds[shard, node]:
                copies[places.master[shard]] -= 1
                copies[node] += 1
        problem = SearchProblem(
            loads=now[:, active],
            vectors=self._loads.vectors(chosen, active),
            home=home,
            at=node_of[chosen],
            allowed=destinations(home, holds, places.usable, (places.zones, places.machines), places.onto),
            holds=holds,
            bytes=np.array([self._pending_bytes[it] for it in chosen.tolist()], dtype=np.int64),
            copies=copies,
            min_copies=int(MIN_COPIES_SHARE * copies.sum() / max(1, len(copies))),
            target=target,
            max_moves=settings.max_moves,
        )
        at = search(problem)
        return {int(shard): int(node) for shard, node, old in zip(chosen, at, home, strict=True) if node != old}

    def _candidates(self, now: F64, node_of: I64, active: I64, target: float) -> I64:
        """Shards by number: those that move already, and of each node the ones that weigh most where it is full."""
        peaks = now[:, active].max(axis=1, keepdims=True)
        share = np.divide(now[:, active], peaks, out=np.zeros((len(now), len(active))), where=peaks > 0)
        weights = np.zeros_like(now)
        weights[:, active] = np.maximum(share - NEAR, 0.0)
        room = max(1, self._settings.candidates - len(self._at))
        hot = peaks[:, 0] > target
        # Half of them from the nodes that are too full, the rest evenly: an exchange needs partners.
        most = np.full(len(now), max(1, room // (2 * len(now))), dtype=np.int64)
        most[hot] += max(1, room // 2 // max(1, int(hot.sum())))
        found = self._loads.candidates(node_of, weights, self._places.movable, most)
        self._pending.update(zip(found.shard.tolist(), found.pending.tolist(), strict=True))
        self._pending_bytes.update(zip(found.shard.tolist(), found.pending_bytes.tolist(), strict=True))
        return np.union1d(found.shard, np.array(sorted(self._at), dtype=np.int64))
