"""The control loop: observe, ask, plan, apply, again and again, from the registry and from what nodes answer.

Level-triggered: nothing is remembered from one round to the next but how long leases stayed unchanged, what nodes
said a moment ago, and since when a chosen master has not begun. Every write is conditional on what was observed; a
refused one, or one without an answer, is left to the next round. Two loops over one registry are
wasteful, not dangerous.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import assert_never

from delayapi.log_levels import LogLevel
from delayregistry.model import ClusterSpec, Condition, ShardObject, ShardSpec
from delayregistry.port import Conflict, OutcomeUnknown, Registry, RegistryError, RegistryUnavailable

from delayoperator.control_loop.liveness import LeaseWatch
from delayoperator.control_loop.probe import NullProber, Prober
from delayoperator.control_loop.replica_queries import ReplicaQueries
from delayoperator.plan import (
    Action,
    AdoptCopies,
    ChangeSpec,
    CreateShard,
    Observed,
    ObservedNode,
    OrphanReport,
    RemoveEmptyShard,
    SetConditions,
    StartTerm,
    missing_shards,
    plan_isolating,
    report_orphans,
)
from delayoperator.plan.topology import NodeLocation

POLL_MS = 50
PROBE_MS = 500
REFUSED_DOUBLINGS = 3  # of the pause, while the registry takes nothing: 400 ms, so that leases are still looked at
WRITERS = 32  # compare-and-swaps at a time: they share the transactions of a registry in a file, thus its fsyncs
WRITING_MS = 500  # of a round: then the leases have to be looked at again, and the rest is planned anew

Log = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class LoopClock:
    """Where the loop's times come from."""

    monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


@dataclass(slots=True)
class LoopPulse:
    """Signs of life of a loop, ms of its monotonic clock. Written by its thread, read by others."""

    looked_ms: int  # it has seen the leases
    ended_round_ms: int  # a round was over, though perhaps in vain


@dataclass(frozen=True, slots=True)
class Round:
    """The outcome of one round."""

    applied: int = 0
    refused: int = 0  # conflicts and outcomes unknown: for the next round


class ControlLoop:
    """Drives one cluster. `new_uid` draws a shard's uid: a random u64, not 0. `log` takes one event, a line each.

    prober: asks nodes for their copies; without one only shards with a single replica can change hands. The loop
    closes it when run() ends.
    ended: the incarnations of processes that are known to have ended, as their supervisor saw it; what it once said
    must stay true. A failover from one of these waits for neither a node's nor a replica's lease.
    writers: so many compare-and-swaps are sent at a time, from threads; 1: one after the other, from the caller's.
    paused: whether to keep out of things: then masters are still chosen where there is none, and no more is done.
    acts: whether this process may write; until then leases and objects are only followed, so that a process that
    begins to act knows who has been silent for how long.
    locations: by node id, where its process runs, as far as it is known. A zone that its lease names stands.
    pulse: where the loop says that it lives.
    """

    def __init__(
        self,
        registry: Registry,
        new_uid: Callable[[], int],
        log: Log,
        clock: LoopClock | None = None,
        prober: Prober | None = None,
        ended: Callable[[], frozenset[str]] = frozenset,
        writers: int = 1,
        paused: Callable[[], bool] = bool,
        acts: Callable[[], bool] = lambda: True,
        locations: Callable[[], Mapping[str, NodeLocation]] = dict,
        pulse: LoopPulse | None = None,
    ) -> None:
        self._registry = registry
        self._new_uid = new_uid
        self._log = log
        self._clock = clock or LoopClock()
        self._prober: Prober = prober or NullProber()
        self._queries = ReplicaQueries(self._prober)
        self._ended = ended
        self._writers = writers
        self._paused, self._acts = paused, acts
        self._locations = locations
        self._pulse = pulse or LoopPulse(0, 0)
        self._probed_ms: int | None = None
        self._watch: LeaseWatch | None = None
        self._watched: tuple[int, int] = (0, 0)  # lease and replacement time of the watch, ms
        self._read_at: int | None = None  # the registry's version at which _cluster and _shards were read
        self._cluster: ClusterSpec | None = None
        self._shards: tuple[ShardObject, ...] = ()
        self._missing = False  # a topic has a shard that is not among them
        self._nodes: Mapping[str, ObservedNode] = {}
        self._orphans = OrphanReport()
        # Input of the last plan that had nothing to do: registry version, nodes, ended processes, whether paused.
        self._stable_world: tuple[int | None, Mapping[str, ObservedNode], frozenset[str], bool] | None = None

    @property
    def nodes(self) -> Mapping[str, ObservedNode]:
        """By node id, as their leases showed them when they were last looked at. From any thread."""
        return self._nodes

    @property
    def orphans(self) -> OrphanReport:
        """As of the last plan. From any thread."""
        return self._orphans

    @property
    def held_copies(self) -> Mapping[str, frozenset[int]]:
        """By node that has said what it has, the uids of its copies. From any thread."""
        return self._queries.held_copies

    @property
    def spare_copies(self) -> Mapping[str, int]:
        """By node that has said what it has, how many copies on which no shard counts. From any thread."""
        return self._queries.spare_copies

    def run(
        self,
        stop: threading.Event,
        poll_ms: int = POLL_MS,
        refresh_ms: int | None = None,
        wake: threading.Event | None = None,
        told: bool = False,
    ) -> None:
        """Rounds until `stop`. A round that did something is followed by the next one at once.

        refresh_ms: between readings of the leases, where that costs the registry something: a change of the objects is
        still seen within poll_ms. wake: set by the watches when something is new; cleared here. told: that is so for
        each change of the registry, which then is not looked at every poll_ms.
        """
        connected, refused = True, 0  # refused: rounds in a row that wrote in vain
        try:
            while not stop.is_set():
                done = Round()
                try:
                    done = self.round()
                    connected = True
                except RegistryError as error:
                    if connected:
                        self._log({"event": "registry-unavailable", "error": str(error)})
                    connected = False
                finally:
                    self._pulse.ended_round_ms = self._clock.monotonic_ms()
                refused = refused + 1 if done.refused and not done.applied else 0
                if done.applied == 0:
                    pause_ms = poll_ms << min(max(0, refused - 1), REFUSED_DOUBLINGS)
                    self._rest(stop, pause_ms, max(refresh_ms or 0, pause_ms), wake or stop, told=told)
        finally:
            self._prober.close()

    def _rest(self, stop: threading.Event, poll_ms: int, refresh_ms: int, wake: threading.Event, *, told: bool) -> None:
        until_s = time.monotonic() + refresh_ms / 1000
        # What this loop wrote in vain is no news to the watches: it is looked at again soon.
        wait_ms = refresh_ms if told and self._read_at is not None else poll_ms
        while not stop.is_set():
            if wake.wait(wait_ms / 1000):
                if told and self._has_news():
                    stop.wait(poll_ms / 2_000)  # a burst of changes is one round
                if wake is not stop:
                    wake.clear()
                return
            if time.monotonic() >= until_s or self._has_news():
                return

    def _has_news(self) -> bool:
        try:
            return self._registry.version() != self._read_at
        except RegistryUnavailable:
            return False  # the next round says so

    def round(self) -> Round:
        """Observes, plans and applies once. Raises RegistryUnavailable when there was nothing to observe."""
        try:
            self._probe()
            self._read()
            asked_ms = self._clock.monotonic_ms()
            leases = self._registry.list_leases()
        except RegistryUnavailable:
            self._lost_contact()
            raise
        if self._cluster is None:
            return Round()
        now_ms = self._pulse.looked_ms = self._clock.monotonic_ms()
        views = self._watch_for(self._cluster).update(leases, asked_ms, now_ms, self._cluster.node_ids)
        self._nodes = nodes = _located(views, self._locations())
        if not self._acts():
            self._stable_world = None
            return Round()
        ended = self._ended()
        paused = self._paused()
        world = self._read_at, nodes, ended, paused
        seen = Observed(self._shards, nodes, ended=ended)
        answered = self._queries.query(
            seen, leases, now_ms, changed=world != self._stable_world, missing=self._missing and not paused
        )
        if answered is None:
            return Round()
        actions = plan_isolating(self._cluster, answered)
        self._orphans = OrphanReport() if paused else report_orphans(self._cluster, answered)
        if paused:
            actions = [action for action in actions if isinstance(action, StartTerm | SetConditions)]
        outcomes = self._apply_all(self._cluster.name, actions, until_ms=now_ms + WRITING_MS) if actions else []
        self._stable_world = None if actions else world
        if "unknown" in outcomes:
            self._lost_contact()
        if set(outcomes) - {"done"}:
            # A list that is a little stale (a watch) has to catch up: the same list would give the same plan.
            self._read_at = None
        done = outcomes.count("done")
        return Round(done, len(outcomes) - done)

    def _probe(self) -> None:
        # Reads may still answer while no process can write (a stopped process holds the file's lock, etcd has no
        # quorum). Then no lease moves, and that must not look as if all nodes were dead.
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
        self._missing = cluster is not None and any(missing_shards(cluster.spec, self._shards))
        self._read_at = version

    def _watch_for(self, cluster: ClusterSpec) -> LeaseWatch:
        lease_ms, gone_ms = cluster.lease_seconds * 1000, cluster.replace_after_seconds * 1000
        if self._watch is None or (lease_ms, gone_ms) != self._watched:
            self._watch = LeaseWatch(lease_ms, max_gap_ms=lease_ms // 2, gone_ms=gone_ms)
            self._watched = (lease_ms, gone_ms)
        return self._watch

    def _apply_all(self, cluster: str, actions: Sequence[Action], until_ms: int) -> list[str]:
        outcomes: list[str] = []
        # Threads that are not kept: an operator may have a hundred clusters, which have seldom something to write.
        with ThreadPoolExecutor(self._writers, "registry-write") as pool:
            each = pool.map if min(self._writers, len(actions)) > 1 else map
            for start in range(0, len(actions), self._writers):
                some = actions[start : start + self._writers]
                outcomes += each(lambda action: self._apply(cluster, action), some)
                if self._clock.monotonic_ms() >= until_ms:
                    break
        return outcomes

    def _apply(self, cluster: str, action: Action) -> str:
        """done, conflict or unknown. Called from several threads."""
        event: dict[str, object] = {"event": "action", "cluster": cluster, **_described(action)}
        try:
            self._write(action)
        except Conflict as error:
            self._log({**event, "outcome": "conflict", "error": str(error)})
            return "conflict"
        except OutcomeUnknown as error:
            self._log({**event, "level": LogLevel.WARNING, "outcome": "unknown", "error": str(error)})
            return "unknown"
        self._log({**event, "outcome": "done"})
        return "done"

    def _write(self, action: Action) -> None:
        match action:
            case CreateShard():
                uid = self._new_uid() if action.uid is None else action.uid
                spec = ShardSpec(uid, action.topic, action.queue, action.replicas, epoch=action.epoch)
                version = self._registry.create_shard(spec)
                if action.status is not None:
                    self._registry.write_status(spec.name, action.status, version)
            case RemoveEmptyShard():
                self._registry.delete_shard(action.shard.name, action.shard.version)
            case AdoptCopies():
                # The epoch first: without a status nobody can be chosen yet.
                version = self._registry.write_spec(action.shard.name, action.spec, action.shard.version)
                self._registry.write_status(action.shard.name, action.status, version)
            case StartTerm() | ChangeSpec():
                self._registry.write_spec(action.shard.name, action.spec, action.shard.version)
            case SetConditions():
                conditions = _stamped(action, self._clock.wall_ms())
                self._registry.write_conditions(action.shard.name, conditions, action.shard.version)
            case _:
                assert_never(action)


def _located(nodes: Mapping[str, ObservedNode], locations: Mapping[str, NodeLocation]) -> Mapping[str, ObservedNode]:
    return {
        node: replace(view, machine=at.machine, zone=view.zone or at.zone) if (at := locations.get(node)) else view
        for node, view in nodes.items()
    }


def new_uid() -> int:
    """A shard's: a random u64, not 0."""
    return secrets.randbelow(2**64 - 1) + 1


def _stamped(action: SetConditions, now_ms: int) -> tuple[Condition, ...]:
    """The conditions, each with the time since when it has held for this reason."""
    since = {(condition.type, condition.reason): condition.since_ms for condition in action.shard.conditions}
    return tuple(replace(new, since_ms=since.get((new.type, new.reason), now_ms)) for new in action.conditions)


def _is_failover(shard: ShardObject) -> bool:
    """Whether its next term replaces a master that did not hand over."""
    return shard.status is not None and shard.status.handover is None


def _described(action: Action) -> dict[str, object]:
    match action:
        case CreateShard():
            what: dict[str, object] = {"shard": f"{action.topic}-{action.queue}", "epoch": action.epoch}
            if action.uid is not None:
                what["uid"] = f"{action.uid:016x}"
        case AdoptCopies():
            what = {"shard": action.shard.name, "epoch": action.spec.epoch}
        case StartTerm(shard, spec):
            what = {"shard": shard.name, "epoch": spec.epoch, "node": spec.master, "failover": _is_failover(shard)}
        case ChangeSpec():
            what = {"shard": action.shard.name, "epoch": action.spec.epoch}
        case RemoveEmptyShard():
            what = {"shard": action.shard.name, "epoch": 0, "uid": f"{action.shard.spec.uid:016x}"}
        case SetConditions():
            what = {
                "shard": action.shard.name,
                "epoch": action.shard.spec.epoch,
                "conditions": [condition.reason for condition in action.conditions],
            }
        case _:
            assert_never(action)
    return {"action": type(action).__name__, **what, "reason": action.reason}
