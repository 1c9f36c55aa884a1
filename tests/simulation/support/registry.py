"""The registry: one truth, and each process's way to it: slow, stale, cut, or leaving writes without an answer."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from delayregistry.model import (
    ClusterObject,
    ClusterSpec,
    Condition,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Version,
)
from delayregistry.port import Conflict, OutcomeUnknown, RegistryUnavailable

from tests.simulation.support.machine.loop import MICRO, MILLI, Scheduler

Change = Callable[[ShardObject], ShardObject]
Told = Callable[[ShardObject | None, ShardObject], None]


@dataclass(frozen=True, slots=True)
class View:
    """The whole registry at one time."""

    number: int
    cluster: ClusterObject | None
    shards: tuple[ShardObject, ...]


class Truth:
    """The true content of the registry, which etcd or the SQLite file holds in reality."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.told: list[Told] = []  # called with (before, after) at each write of a shard
        self.restored: set[int] = set()  # uids of shards whose status is an older one, until somebody writes it
        self.deleted: set[str] = set()  # names of shards whose object was deleted at some time
        self._times: list[int] = [0]
        self._views: list[View] = [View(0, None, ())]
        self._lease_times: list[int] = [0]
        self._leases: list[tuple[NodeLease, ...]] = [()]
        self._serial = 0

    @property
    def now(self) -> View:
        return self._views[-1]

    def at(self, time_ns: int) -> View:
        return self._views[bisect_right(self._times, time_ns) - 1]

    def leases(self, time_ns: int | None = None) -> tuple[NodeLease, ...]:
        return self._leases[-1] if time_ns is None else self._leases[bisect_right(self._lease_times, time_ns) - 1]

    def shard(self, name: str) -> ShardObject | None:
        return next((shard for shard in self.now.shards if shard.name == name), None)

    def _version(self) -> Version:
        self._serial += 1
        return Version(str(self._serial))

    def _put(self, **changes: object) -> None:
        self._times.append(self.scheduler.now_ns)
        self._views.append(replace(self.now, number=self.now.number + 1, **changes))  # type: ignore[arg-type]

    def put_cluster(self, spec: ClusterSpec, version: Version | None) -> Version:
        if (self.now.cluster.version if self.now.cluster else None) != version:
            raise Conflict("the cluster is not at that version")
        made = ClusterObject(self._version(), spec)
        self._put(cluster=made)
        return made.version

    def create(self, spec: ShardSpec) -> Version:
        if self.shard(spec.name) is not None:
            raise Conflict(f"{spec.name} exists")
        made = ShardObject(spec.name, self._version(), spec)
        self._put(shards=tuple(sorted((*self.now.shards, made), key=lambda one: (one.spec.topic, one.spec.queue))))
        for told in self.told:
            told(None, made)
        return made.version

    def change(self, name: str, version: Version, change: Change) -> Version:
        before = self.shard(name)
        if before is None or before.version != version:
            raise Conflict(f"{name} is not at version {version}")
        after = replace(change(before), version=self._version())
        if after.status != before.status:
            self.restored.discard(before.spec.uid)
        self._put(shards=tuple(after if one.name == name else one for one in self.now.shards))
        for told in self.told:
            told(before, after)
        return after.version

    def delete(self, name: str) -> None:
        """Delete a shard's object, whose topic is gone, without a call of `told`."""
        self.deleted.add(name)
        self._put(shards=tuple(one for one in self.now.shards if one.name != name))

    def restore(self, older: ShardObject) -> None:
        """Restore the object from a backup. Its version is new: no write that is under way fits it."""
        back = replace(older, version=self._version())
        self.restored.add(older.spec.uid)
        self._put(shards=tuple(back if one.name == older.name else one for one in self.now.shards))

    def forget_leases(self) -> None:
        """Delete all leases, as with the cluster's other objects."""
        self._lease_times.append(self.scheduler.now_ns)
        self._leases.append(())

    def renew(self, lease: NodeLease) -> None:
        others = (one for one in self.leases() if one.node != lease.node)
        self._lease_times.append(self.scheduler.now_ns)
        self._leases.append(tuple(sorted((*others, lease), key=lambda one: one.node)))


@dataclass
class Weather:
    """How well a machine reaches the registry. Shares are shares of its calls."""

    down: bool = False  # no call arrives
    no_answer: float = 0.0  # share of the writes that get no answer
    lag_ns: int = 20 * MILLI  # the watches' delay
    apart_ns: int = 0  # how much later the watch of the spec is; below 0: the watch of the shards
    latency_ns: int = 2 * MILLI
    fates: tuple[str, ...] = ("done", "lost", "later")  # possible fates of writes without an answer
    script: list[tuple[str, str]] = field(default_factory=list)  # (method, fate) of the next such calls, for schedules


class Access:
    """One process's registry. Implements delayregistry.port.Registry."""

    def __init__(self, truth: Truth, weather: Weather, rng: random.Random, trace: Callable[..., None]) -> None:
        self._truth, self._weather, self._rng, self._trace = truth, weather, rng, trace
        self.listed_ns = 0  # when all shards were last listed
        self._seen_ns = {"shards": 0, "spec": 0}  # by watch: the time up to which it has told; a watch does not go back

    # ------------------------------------------------------------ time and trouble
    def _spend(self, cost_ns: int) -> None:
        job = self._truth.scheduler.job
        assert job is not None, "the registry is asked on the event loop"
        job.now_ns += cost_ns

    def _read(self) -> None:
        if self._weather.down:
            self._spend(self._rng.randint(200, 1_500) * MILLI)
            raise RegistryUnavailable("no answer")
        self._spend(self._rng.randint(100, self._weather.latency_ns // MICRO) * MICRO)

    def _write(self, what: str, write: Callable[[], Version]) -> Version:
        weather = self._weather
        fate = "lost" if weather.down else ""
        scripted = next((at for at, (method, _) in enumerate(weather.script) if method == what), None)
        if scripted is not None:
            fate = weather.script.pop(scripted)[1]
        elif self._rng.random() < weather.no_answer or (weather.down and self._rng.random() < 0.2):
            fate = self._rng.choice(weather.fates)
        if not fate:
            version = write()
            self._spend(self._rng.randint(300, 2 * weather.latency_ns // MICRO) * MICRO)
            return version
        if fate == "done":
            try:
                write()
            except Conflict:
                fate = "refused"
        elif fate == "later":
            self._truth.scheduler.after(self._rng.randint(300, 6_000) * MILLI, self._late, what, write)
        self._trace("write-unanswered", what=what, fate=fate)
        self._spend(self._rng.randint(500, 2_000) * MILLI)
        raise OutcomeUnknown(f"{what}: no answer")

    def _late(self, what: str, write: Callable[[], Version]) -> None:
        try:
            write()
            self._trace("late-write-lands", what=what)
        except Conflict:
            self._trace("late-write-refused", what=what)

    def _watched(self, watch: str) -> View:
        """The registry as this watch has told it: the watch of the shards and the one of the spec run apart."""
        weather = self._weather
        lag_ns = weather.lag_ns + max(0, weather.apart_ns if watch == "spec" else -weather.apart_ns)
        self._seen_ns[watch] = max(self._seen_ns[watch], self._truth.scheduler.now_ns - lag_ns)
        return self._truth.at(self._seen_ns[watch])

    # ------------------------------------------------------------ Registry
    def version(self) -> int:
        self._read()
        return self._watched("shards").number + self._watched("spec").number

    def read_cluster(self) -> ClusterObject | None:
        self._read()
        return self._watched("spec").cluster

    def list_shards(self, node: str | None = None) -> tuple[ShardObject, ...]:
        self._read()
        shards = self._watched("shards").shards
        if node is not None:
            return tuple(shard for shard in shards if node in shard.spec.replicas)
        self.listed_ns = self._truth.scheduler.now_ns
        return shards

    def list_leases(self) -> tuple[NodeLease, ...]:
        self._read()
        self._watched("shards")
        return self._truth.leases(self._seen_ns["shards"])

    def get_shard(self, name: str) -> ShardObject | None:
        self._read()
        return self._truth.shard(name)

    def put_cluster(self, spec: ClusterSpec, version: Version | None) -> Version:
        return self._write("put_cluster", lambda: self._truth.put_cluster(spec, version))

    def create_shard(self, spec: ShardSpec) -> Version:
        return self._write("create_shard", lambda: self._truth.create(spec))

    def write_spec(self, name: str, spec: ShardSpec, version: Version) -> Version:
        change: Change = lambda shard: replace(shard, spec=spec)  # noqa: E731
        return self._write("write_spec", lambda: self._truth.change(name, version, change))

    def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        change: Change = lambda shard: replace(shard, status=status)  # noqa: E731
        return self._write("write_status", lambda: self._truth.change(name, version, change))

    def write_conditions(self, name: str, conditions: tuple[Condition, ...], version: Version) -> Version:
        change: Change = lambda shard: replace(shard, conditions=conditions)  # noqa: E731
        return self._write("write_conditions", lambda: self._truth.change(name, version, change))

    def delete_shard(self, name: str, version: Version) -> None:
        def delete() -> None:
            found = self._truth.shard(name)
            if found is None or found.version != version:
                raise Conflict(f"{name} is not at version {version}")
            self._truth.delete(name)

        return self._write("delete_shard", delete)

    def renew_lease(self, lease: NodeLease) -> None:
        self._read()
        self._truth.renew(lease)

    def probe(self) -> None:
        self._read()

    def close(self) -> None:
        pass
