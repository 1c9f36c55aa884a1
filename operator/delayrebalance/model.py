"""Input and output of the rebalance job. Plain values: no Spark, no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayregistry.model import ListenerTrust
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


class RebalanceError(Exception):
    """The job can't be done; says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Span:
    """The slots of time that are looked at: `count` of them, each `slot_ms` long, from start_ms on."""

    start_ms: int
    slot_ms: int
    count: int

    def start_of(self, slot: int) -> int:
        return self.start_ms + slot * self.slot_ms


@dataclass(frozen=True, slots=True)
class MapNode:
    """A node. endpoint: host:port of its gRPC, "" where there is none; zone, machine: "" where not known. trust: of the
    listener there; None: it is without TLS."""

    name: str
    endpoint: str = ""
    trust: ListenerTrust | None = None
    zone: str = ""
    machine: str = ""
    usable: bool = True  # may get copies and masters: it lives, is not about to end and not to be emptied


@dataclass(frozen=True, slots=True)
class MapShard:
    """A shard, TOPIC-QUEUE. replicas: the nodes that have its copies, in the wished order."""

    name: str
    master: str
    replicas: tuple[str, ...]
    fixed: bool = False  # stays where it is: it moves already, is not sound, or people said so

    @property
    def topic(self) -> str:
        return self.name.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Where everything is, as the registry says. generation: of the DelayCluster object; None without Kubernetes.
    made_for: names what a plan for this map counts on; None where nobody asks."""

    name: str
    nodes: tuple[MapNode, ...]
    shards: tuple[MapShard, ...]
    generation: int | None = None
    made_for: str | None = None


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The range of the load to read, and the limits of a plan."""

    horizon_ms: int = DAY_MS  # from now
    slot_ms: int = 5 * MINUTE_MS
    threshold: float = 1.5  # a node is hot in a slot above so many times the mean of the nodes in it
    tolerance: float = 0.05  # the search ends so near the lower bound: the rest is not worth its moves
    min_gain: float = 0.02  # of the highest load: a plan that takes away less is none
    max_moves: int = 100
    candidates: int = 4_000  # shards whose loads the driver may hold
    bytes_per_second: int = 64 << 20  # that a move is taken to copy, for the estimates
    expires_ms: int = 6 * HOUR_MS
    onto: frozenset[str] = frozenset()  # only these nodes get anything; empty: all that are usable
    away_from: frozenset[str] = frozenset()  # only these lose anything; empty: all
    excluded_topics: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _within("slot", self.slot_ms, MINUTE_MS, DAY_MS, "ms")
        _within("horizon", self.horizon_ms, self.slot_ms, 366 * DAY_MS, "ms")
        _within("threshold", self.threshold, 1, 100)
        _within("tolerance", self.tolerance, 0, 10)
        _within("least gain", self.min_gain, 0, 1)
        _within("moves", self.max_moves, 1, 1_000)
        _within("candidates", self.candidates, 1, 100_000)
        _within("bytes per second", self.bytes_per_second, 65_536, 1 << 40)

    @property
    def slots(self) -> int:
        return -(-self.horizon_ms // self.slot_ms)


@dataclass(frozen=True, slots=True)
class FoundMove:
    """One shard's load goes to another node. copies: `to` gets a copy for it; else it has one and takes over."""

    shard: str
    from_: str
    to: str
    copies: bool
    bytes: int  # that are copied; 0 for a switchover
    messages: int  # that wait in the shard
    due_during_move: int
    replicas: tuple[str, ...]  # the nodes of its copies now, as in the map
    hot_slots_ms: tuple[int, ...]  # starts of the slots in which the shard makes its node hot, the heaviest


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """The load to come over nodes and slots, in messages that fall due; bytes are the wheels' estimates."""

    peak_messages: float  # the most on one node in one slot
    peak_node: str
    peak_slot_ms: int  # that slot's start
    mean_messages: float  # of all nodes in that slot
    peak_bytes: float
    hot_slots: int  # slots in which a node is above the threshold


@dataclass(frozen=True, slots=True)
class Study:
    """The job's findings. moves: empty when no move is worth its cost; `why` gives the reason in either case."""

    why: str
    before: LoadFigures
    after: LoadFigures
    bound_messages: float  # no placement has a lower peak
    moves: tuple[FoundMove, ...]
    start_ms: int
    slot_ms: int
    node_names: tuple[str, ...]
    node_loads: F64 = field(repr=False)  # f64[nodes, slots] messages, as it is
    node_loads_after: F64 = field(repr=False)  # with all moves done
    silent: tuple[str, ...] = ()  # nodes that gave no answer and were left out, as was allowed

    @property
    def ratio(self) -> float:
        """The highest load after the moves over the lower bound; 1 where nothing is due."""
        return self.after.peak_messages / self.bound_messages if self.bound_messages else 1.0


def _within(what: str, value: float, low: float, high: float, unit: str = "") -> None:
    if not low <= value <= high:
        raise RebalanceError(f"{what} is {value:g}{unit}; allowed: {low:g} to {high:g}{unit}")
