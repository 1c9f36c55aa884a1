"""The control loop: observe, plan, apply, again and again, from the registry alone.

Level-triggered: nothing is remembered from one round to the next but how long leases stayed unchanged. Every write is
conditional on what was observed; a refused one, or one without an answer, is left to the next round. Two loops over one
registry are wasteful, not dangerous.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from delaynode.registry.model import ClusterSpec, Condition, ShardObject, ShardSpec
from delaynode.registry.port import Conflict, OutcomeUnknown, Registry, RegistryError, Unavailable

from delayoperator.liveness import LeaseWatch
from delayoperator.plan import Action, CreateShard, NodeView, Observed, SetConditions, StartReign, plan

POLL_MS = 100
PROBE_MS = 500

Log = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Clock:
    """Where the loop's times come from."""

    monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did."""

    applied: int = 0
    refused: int = 0  # conflicts and outcomes unknown: for the next round


class ControlLoop:
    """Drives one cluster. `new_uid` draws a shard's uid: a random u64, not 0. `log` takes one event, a line each."""

    def __init__(self, registry: Registry, new_uid: Callable[[], int], log: Log, clock: Clock | None = None) -> None:
        self._registry = registry
        self._new_uid = new_uid
        self._log = log
        self._clock = clock or Clock()
        self._probed_ms: int | None = None
        self._watch: LeaseWatch | None = None
        self._watched_lease_ms = 0
        self._read_at: int | None = None  # the registry's version at which _cluster and _shards were read
        self._cluster: ClusterSpec | None = None
        self._shards: tuple[ShardObject, ...] = ()
        self._settled: tuple[int | None, Mapping[str, NodeView]] | None = None  # what the last plan found in order

    def run(self, stop: threading.Event, poll_ms: int = POLL_MS) -> None:
        """Rounds until `stop`. A round that did something is followed by the next one at once."""
        connected = True
        while not stop.is_set():
            applied = 0
            try:
                applied = self.round().applied
                connected = True
            except RegistryError as error:
                if connected:
                    self._log({"event": "registry-unavailable", "error": str(error)})
                connected = False
            if applied == 0:
                stop.wait(poll_ms / 1000)

    def round(self) -> Round:
        """Observes, plans and applies once. Raises Unavailable when there was nothing to observe."""
        try:
            self._probe()
            self._read()
            asked_ms = self._clock.monotonic_ms()
            leases = self._registry.list_leases()
        except Unavailable:
            self._lost_contact()
            raise
        if self._cluster is None:
            return Round()
        nodes = self._watch_for(self._cluster).look(leases, asked_ms, self._clock.monotonic_ms())
        if (self._read_at, nodes) == self._settled:
            return Round()
        actions = plan(self._cluster, Observed(self._shards, nodes))
        applied = sum(self._apply(self._cluster.name, action) for action in actions)
        self._settled = None if actions else (self._read_at, nodes)
        return Round(applied, len(actions) - applied)

    def _probe(self) -> None:
        # Reads may still answer while nobody can write (a stopped process holds the file's lock, etcd has no quorum).
        # Then nobody's lease moves, and that must not look like everybody's death.
        now_ms = self._clock.monotonic_ms()
        if self._probed_ms is None or now_ms - self._probed_ms >= PROBE_MS:
            self._registry.probe()
            self._probed_ms = now_ms

    def _lost_contact(self) -> None:
        self._probed_ms = None
        if self._watch is not None:
            self._watch.lost_contact()

    def _read(self) -> None:
        version = self._registry.version()
        if version == self._read_at:
            return
        cluster = self._registry.read_cluster()
        self._cluster = None if cluster is None else cluster.spec
        self._shards = self._registry.list_shards()
        self._read_at = version

    def _watch_for(self, cluster: ClusterSpec) -> LeaseWatch:
        lease_ms = cluster.lease_seconds * 1000
        if self._watch is None or lease_ms != self._watched_lease_ms:
            self._watch, self._watched_lease_ms = LeaseWatch(lease_ms, max_gap_ms=lease_ms // 2), lease_ms
        return self._watch

    def _apply(self, cluster: str, action: Action) -> bool:
        event: dict[str, object] = {"event": "action", "cluster": cluster, **_described(action)}
        try:
            self._write(action)
        except Conflict as error:
            self._log({**event, "outcome": "conflict", "error": str(error)})
        except OutcomeUnknown as error:
            self._log({**event, "outcome": "unknown", "error": str(error)})
            self._lost_contact()
        else:
            self._log({**event, "outcome": "done"})
            return True
        # A list that is a little stale (a watch) has to catch up: the same list would give the same plan.
        self._read_at = None
        return False

    def _write(self, action: Action) -> None:
        match action:
            case CreateShard():
                self._registry.create_shard(ShardSpec(self._new_uid(), action.topic, action.queue, action.replicas))
            case StartReign():
                self._registry.write_spec(action.shard.name, action.spec, action.shard.version)
            case SetConditions():
                now_ms = self._clock.wall_ms()
                before = {
                    (condition.type, condition.reason): condition.since_ms for condition in action.shard.conditions
                }
                conditions = tuple(
                    replace(condition, since_ms=before.get((condition.type, condition.reason), now_ms))
                    for condition in action.conditions
                )
                self._registry.write_conditions(action.shard.name, conditions, action.shard.version)
            case _:
                assert_never(action)


def _stamped(action: SetConditions, now_ms: int) -> tuple[Condition, ...]:
    """The conditions, each with the time since when it has held for this reason."""
    since = {(condition.type, condition.reason): condition.since_ms for condition in action.shard.conditions}
    return tuple(replace(new, since_ms=since.get((new.type, new.reason), now_ms)) for new in action.conditions)


def _described(action: Action) -> dict[str, object]:
    match action:
        case CreateShard():
            what: dict[str, object] = {"shard": f"{action.topic}-{action.queue}", "epoch": 0}
        case StartReign():
            what = {"shard": action.shard.name, "epoch": action.spec.epoch, "node": action.spec.master}
        case SetConditions():
            what = {
                "shard": action.shard.name,
                "epoch": action.shard.spec.epoch,
                "conditions": [condition.reason for condition in action.conditions],
            }
        case _:
            assert_never(action)
    return {"action": type(action).__name__, **what, "reason": action.reason}
