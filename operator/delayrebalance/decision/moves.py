"""Loads as figures, and moves with what each costs: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from delayapi import hot_slots

from delayrebalance.model import F64, Bool, ClusterMap, FoundMove, LoadFigures, SearchSettings, Span

START_MS = 2_000  # a move's other steps, beside the copying: joining the in-sync set, the switchover


def figures(loads: F64, sizes: F64, counted: Bool, names: Sequence[str], span: Span, threshold: float) -> LoadFigures:
    """loads, sizes: f64[N, S], messages and bytes."""
    node, slot = np.unravel_index(int(loads.argmax()), loads.shape)
    return LoadFigures(
        peak_messages=float(loads[node, slot]),
        peak_node=names[int(node)],
        peak_slot_ms=span.start_of(int(slot)),
        mean_messages=float(loads[counted, slot].mean()) if counted.any() else 0.0,
        peak_bytes=float(sizes.max(initial=0.0)),
        hot_slots=int(hot_slots.hot(loads, counted, threshold).any(axis=0).sum()),
    )


def found_moves(
    cluster: ClusterMap,
    wanted: Sequence[tuple[int, int]],
    holds: Bool,
    vectors: F64,
    pending: Mapping[int, int],
    pending_bytes: Mapping[int, int],
    before: F64,
    counted: Bool,
    span: Span,
    settings: SearchSettings,
    now_ms: int,
) -> tuple[FoundMove, ...]:
    """The moves in the order in which they are to be made: whose hot slot comes first goes first, then the cheapest.

    wanted: (shard, node) by number, and vectors, f64[k, S], in the same order. The messages that fall due
    during a move assume one move after the other, copying at settings.bytes_per_second.
    """
    too_hot, excess = hot_slots.hot(before, counted, settings.threshold), hot_slots.above(before, counted)
    number = {known.name: place for place, known in enumerate(cluster.nodes)}
    made = []
    for (shard, node), vector in zip(wanted, vectors, strict=True):
        it = cluster.shards[shard]
        at = number[it.master]
        heaviest = hot_slots.of_shard(vector, too_hot[at], excess[at], span.slot_ms, len(wanted))
        copies = not holds[shard, node]
        move = FoundMove(
            shard=it.name,
            from_=it.master,
            to=cluster.nodes[node].name,
            copies=copies,
            bytes=pending_bytes[shard] if copies else 0,
            messages=pending[shard],
            due_during_move=0,
            replicas=it.replicas,
            hot_slots_ms=tuple(span.start_of(slot) for slot in heaviest.tolist()),
        )
        made.append((heaviest[0] if len(heaviest) else span.count, move.bytes, move.shard, move, vector))
    ordered, at_ms = [], float(now_ms)
    for _, _, _, move, vector in sorted(made, key=lambda it: it[:3]):
        end_ms = at_ms + START_MS + move.bytes / settings.bytes_per_second * 1000
        due = hot_slots.due(vector, span.start_ms, span.slot_ms, at_ms, end_ms)
        ordered.append(replace(move, due_during_move=due))
        at_ms = end_ms
    return tuple(ordered)
