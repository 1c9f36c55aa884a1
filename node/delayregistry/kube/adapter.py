"""The Registry over Kubernetes objects. See the package."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from delayapi.events import EventLog

from delayregistry.codec import BadRecord
from delayregistry.kube import objects
from delayregistry.kube.client import ApiRejected, KubeClient, RequestUnanswered
from delayregistry.kube.cluster_watches import ClusterWatches, OwnWatches, SharedWatches
from delayregistry.kube.leases import LeaseFollower
from delayregistry.kube.mirror import Mirror
from delayregistry.kube.names import NODE_MANAGER, OPERATOR_MANAGER, Names, OwnerReference
from delayregistry.kube.objects import at_version
from delayregistry.kube.watch import GRACE_S, WATCH_S
from delayregistry.model import (
    AdvisedNodes,
    ClusterObject,
    Condition,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Version,
)
from delayregistry.port import Conflict, OutcomeUnknown, RegistryError, RegistryUnavailable
from delayregistry.security import SecurityObject

SYNC_S = 3.0  # how long a call waits for the first list
OUT_S = 5.0  # a watch that has not run for so long is an outage
BACK_S = 1.0  # and so long does version() wait for its end
RENEW_READ_S = 1.0  # a renewal that hangs is tried again while the lease still holds
LEASES_S = 0.9  # so long is a list of the leases good that a node asked for, its watch being out
STOP_S = 1.0  # a watch's thread that still waits for an answer then is left behind
LEASE_SECONDS = 3  # if the spec is not known

Log = Callable[[Mapping[str, object]], None]
Json = dict[str, Any]


class KubeRegistry:
    """See the package. owner: whose the objects are that are created; given, this is the operator's registry.

    pod_uid: of this process's pod. manager: who is said to write, if neither a node nor the operator does. log: gets
    events, from other threads; otherwise they go to stderr as JSON lines. on_change: called, likewise, when version()
    has grown. shared: follows the objects; without it the
    registry has watches of its own, and watch_s, grace_s are theirs (kube/watch.py). The client stays the caller's to
    close.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        cluster: str,
        owner: OwnerReference | None = None,
        *,
        pod_uid: str = "",
        manager: str | None = None,
        log: Log | None = None,
        on_change: Callable[[], None] = lambda: None,
        shared: SharedWatches | None = None,
        watch_s: float = WATCH_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._client, self._owner, self._pod_uid = client, owner, pod_uid
        self._names = names = Names(namespace, cluster)
        self._log: Log = log or EventLog()
        self._by = {"fieldManager": manager or (OPERATOR_MANAGER if owner is not None else NODE_MANAGER)}
        self._shards = Mirror(lambda obj: objects.read_shard(names, obj), self._unreadable("DelayShard"), on_change)
        self._settings = Mirror(objects.read_settings, self._unreadable("ConfigMap"), on_change)
        follow: ClusterWatches = (
            OwnWatches(client, names, self._say, watch_s, grace_s) if shared is None else shared.of(names)
        )
        self._shares = shared is not None
        self._watches = follow.shards(self._shards), follow.settings(self._settings)
        self._security = Mirror(objects.read_security, self._unreadable("ConfigMap"), on_change)
        self._security_watch = follow.security(self._security)
        self._followed = LeaseFollower(self._lease, follow.leases)
        self._starting = threading.Lock()
        self._started = self._following = self._securing = self._closed = False
        self._sorted: tuple[Mapping[str, ShardObject], tuple[ShardObject, ...]] = ({}, ())
        self._last_accepted: ClusterObject | None = None
        self._leases: tuple[float, tuple[NodeLease, ...]] | None = None
        self._lease_versions: dict[str, Version] = {}  # of those that this process has written
        self._bad_leases: set[str] = set()
        self._saying = threading.Lock()  # a lease is read by its watch and by a list

    # ------------------------------------------------------------ what the watches tell
    def version(self) -> int:
        self._start()
        for watch in self._watches:
            if watch.out_s() > OUT_S and not watch.wait_running(BACK_S):
                raise RegistryUnavailable(
                    f"the API server's watch has been out for {watch.out_s():.0f} s: {watch.fault}"
                )
        return self._shards.changes + self._settings.changes + self._security.changes

    def list_shards(self, node: str | None = None) -> tuple[ShardObject, ...]:
        self._wait_synced()
        values, listed = self._sorted
        if values is not (now := self._shards.values()):
            listed = tuple(sorted(now.values(), key=lambda it: (it.spec.topic, it.spec.queue)))
            self._sorted = now, listed
        return listed if node is None else tuple(shard for shard in listed if node in shard.spec.replicas)

    def read_cluster(self) -> ClusterObject | None:
        self._wait_synced()
        found = self._settings.values().get(self._names.settings)
        if found is None and self._owner is None:
            # Another writer has removed them. The operator will write them again; meanwhile nodes go on as they were.
            return self._last_accepted
        if found is None and self._shares:
            found = self._settings_by_name()
        self._last_accepted = found
        return found

    def read_advice(self) -> AdvisedNodes | None:
        try:
            return objects.read_advice(self._client.get(self._names.delay_cluster))
        except (ApiRejected, RequestUnanswered, BadRecord) as error:
            raise RegistryUnavailable(f"DelayCluster {self._names.cluster} not read: {error}") from error

    def read_security(self) -> SecurityObject | None:
        """Waits for nothing: a node may not be let see it, and must go on."""
        with self._starting:
            if not self._securing and not self._closed:
                self._securing = True
                self._security_watch.start()
        return self._security.values().get(self._names.security)

    def _settings_by_name(self) -> ClusterObject | None:
        """Shared watches are of what has the label. Where somebody took that away it is there all the same, and while
        a cluster is paused nothing gives it back: without a spec no shard would fail over."""
        try:
            return objects.read_settings(self._client.get(f"{self._names.config_maps}/{self._names.settings}"))
        except BadRecord:
            return None
        except ApiRejected as error:
            if error.missing == self._names.settings:
                return None
            raise RegistryUnavailable(f"ConfigMap {self._names.settings} not read: {error}") from error
        except RequestUnanswered as error:
            raise RegistryUnavailable(f"ConfigMap {self._names.settings} not read: {error}") from error

    # ------------------------------------------------------------ shards
    def get_shard(self, name: str) -> ShardObject | None:
        try:
            found = self._client.get(self._shard_path(name))
        except ApiRejected as error:
            if error.missing == self._names.object(name):
                return None
            raise RegistryUnavailable(f"shard {name} not read: {error}") from error
        except RequestUnanswered as error:
            raise RegistryUnavailable(f"shard {name} not read: {error}") from error
        try:
            shard = objects.read_shard(self._names, found)
        except BadRecord as error:
            raise RegistryUnavailable(f"DelayShard {self._names.object(name)} can't be read: {error}") from error
        self._shards.on_written(found)
        return shard

    def create_shard(self, spec: ShardSpec) -> Version:
        if self._shards.knows(self._names.object(spec.name)):  # perhaps one that can't be read: then it is not listed
            raise Conflict(f"{spec.name} exists already")
        body = objects.new_shard(self._names, spec, self._owner)
        try:
            return self._create(spec.name, self._names.shards, body, self._shards)
        except Conflict:
            self._label_again(spec)
            raise

    def _label_again(self, spec: ShardSpec) -> None:
        """A shard that exists but is not followed has lost its labels to another writer: nodes no longer serve it."""
        path, labels = self._shard_path(spec.name), objects.shard_labels(self._names, spec.topic)
        try:
            found = self._client.get(path)
            if not objects.has_labels(found, labels):
                patch = at_version({"metadata": {"labels": labels}}, objects.version_of(found))
                self._client.merge(path, patch, self._by)
                self._say({"event": "shard-labelled-again", "name": objects.name_of(found)})
        except (RequestUnanswered, ApiRejected):
            pass  # it is created again with the next round, in vain

    def write_spec(self, name: str, spec: ShardSpec, version: Version) -> Version:
        known = self._shards.values().get(self._names.object(name))
        new_term = known is None or known.spec.epoch != spec.epoch
        return self._swap(name, "", objects.spec_patch(spec, new_term=new_term), version)

    def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        return self._swap(name, "/status", objects.status_patch(status), version)

    def write_conditions(self, name: str, conditions: tuple[Condition, ...], version: Version) -> Version:
        return self._swap(name, "/status", objects.conditions_patch(conditions), version)

    def delete_shard(self, name: str, version: Version) -> None:
        try:
            self._client.delete(self._shard_path(name), {"preconditions": {"resourceVersion": version}})
        except ApiRejected as error:
            if error.code == 409 or error.missing == self._names.object(name):
                raise Conflict(f"{name} is not at version {version}") from error
            raise _not_written(name, error) from error
        except RequestUnanswered as error:
            raise OutcomeUnknown(f"deletion of {name}: {error}") from error

    # ------------------------------------------------------------ leases
    def renew_lease(self, lease: NodeLease) -> None:
        self._follow_leases()
        patch = objects.lease_patch(lease, self._pod_uid, self._lease_seconds(), time.time_ns() // 1_000_000)
        path = f"{self._names.leases}/{self._names.object(lease.node)}"
        try:
            try:
                self._renew(lease.node, path, patch)
            except (RequestUnanswered, _Moved):
                # It may have been done, and a conditional write that comes late can undo nothing.
                self._renew(lease.node, path, patch)
        except ApiRejected as error:
            hint = ": the operator creates it" if error.code == 404 else ""
            raise RegistryUnavailable(f"lease of {lease.node} not renewed: {error}{hint}") from error
        except (RequestUnanswered, _Moved) as error:
            raise RegistryUnavailable(f"lease of {lease.node} not renewed: {error}") from error

    def _renew(self, node: str, path: str, patch: Json) -> None:
        # Conditional, though whatever was there is replaced: a late renewal of a process that is gone must not look
        # like that process.
        version = self._lease_versions.pop(node, None)
        if version is None:
            version = objects.version_of(self._client.get(path, read_s=RENEW_READ_S))
        try:
            answer = self._client.merge(path, at_version(patch, version), self._by, RENEW_READ_S)
        except ApiRejected as error:
            if error.code == 409:
                raise _Moved(str(error)) from error
            raise
        self._lease_versions[node] = objects.version_of(answer)
        self._followed.on_renewed(self._lease_versions[node])

    def list_leases(self) -> tuple[NodeLease, ...]:
        if self._owner is not None:
            self._follow_leases()
            if self._all_nodes_live():
                return self._followed.leases()
        elif self._following and self._followed.returns():
            return self._followed.leases()
        now_s = time.monotonic()
        query = {"labelSelector": self._names.selector}
        if self._owner is None:
            if self._leases is not None and now_s - self._leases[0] < LEASES_S:
                return self._leases[1]
            query["resourceVersion"] = "0"  # from the API server's memory
        try:
            answer = self._client.get(self._names.leases, query)
        except (RequestUnanswered, ApiRejected) as error:
            raise RegistryUnavailable(f"leases not read: {error}") from error
        items = answer.get("items") or []
        if self._owner is not None:
            self._followed.apply_list(items, str(answer["metadata"]["resourceVersion"]))
        found = [lease for obj in items if (lease := self._lease(obj)) is not None]
        leases = tuple(sorted(found, key=lambda lease: lease.node))
        self._leases = now_s, leases
        return leases

    def _all_nodes_live(self) -> bool:
        """By what the watch told: without a request. The operator takes half a lease without a look for an outage."""
        return self._followed.all_moving(self._lease_seconds() / 2)

    def _lease_seconds(self) -> int:
        accepted = self._settings.values().get(self._names.settings) or self._last_accepted
        return accepted.spec.lease_seconds if accepted is not None else LEASE_SECONDS

    def _follow_leases(self) -> None:
        """By whoever needs them for as long as it runs; the others list them."""
        with self._starting:
            if not self._following and not self._closed:
                self._following = True
                self._followed.watch.start()

    def _lease(self, obj: Json) -> NodeLease | None:
        try:
            return objects.read_lease(self._names, obj)
        except BadRecord as error:
            with self._saying:
                if str(error) not in self._bad_leases:
                    self._bad_leases.add(str(error))
                    self._say({"event": "object-unreadable", "reason": str(error)})
            return None

    # ------------------------------------------------------------ life
    def probe(self) -> None:
        if self._owner is not None and self._all_nodes_live():
            return  # their renewals have just been taken
        # A read of one object is answered by etcd, with its quorum. Whether the object is there does not matter.
        try:
            self._client.get(f"{self._names.leases}/{self._names.object('n0')}")
        except ApiRejected as error:
            if not error.missing:
                raise RegistryUnavailable(f"the API server does not answer for its store: {error}") from error
        except RequestUnanswered as error:
            raise RegistryUnavailable(f"the API server does not answer: {error}") from error

    def close(self) -> None:
        with self._starting:
            watches = [*(self._watches if self._started else ())]
            watches += [self._followed.watch] if self._following else []
            watches += [self._security_watch] if self._securing else []
            self._started = self._closed = True  # and no call may follow
        for watch in watches:
            watch.stop()
        deadline_s = time.monotonic() + STOP_S
        for watch in watches:
            watch.join(deadline_s - time.monotonic())

    @property
    def missing_spec(self) -> str:
        """The error where there is no spec."""
        return f"namespace {self._names.namespace}: ConfigMap {self._names.settings} is missing"

    # ------------------------------------------------------------ inside
    def _start(self) -> None:
        with self._starting:
            if not self._started:
                self._started = True
                for watch in self._watches:
                    watch.start()

    def _wait_synced(self) -> None:
        self._start()
        for watch in self._watches:
            if not watch.wait_synced(SYNC_S):
                raise RegistryUnavailable(f"nothing was heard from the API server yet: {watch.fault}")

    def _create(self, what: str, path: str, body: Json, mirror: Mirror[Any]) -> Version:
        try:
            answer = self._client.post(path, body, self._by)
        except ApiRejected as error:
            if error.code == 409:
                raise Conflict(f"{what} exists already") from error
            raise _not_written(what, error) from error
        except RequestUnanswered as error:
            raise OutcomeUnknown(f"creation of {what}: {error}") from error
        return _taken(what, answer, mirror)

    def _swap(self, name: str, sub: str, patch: Json, version: Version) -> Version:
        return self._patch(name, self._names.shards, self._names.object(name), sub, patch, version, self._shards)

    def _patch(
        self, what: str, path: str, name: str, sub: str, patch: Json, version: Version, mirror: Mirror[Any]
    ) -> Version:
        if not (version.isascii() and version.isdecimal()):  # the API server would call it its own error
            raise Conflict(f"{what} is not at version {version}")
        try:
            answer = self._client.merge(f"{path}/{name}{sub}", at_version(patch, version), self._by)
        except ApiRejected as error:
            if error.missing == name:
                mirror.on_missing(name, version)
                raise Conflict(f"{what} is gone") from error
            if error.code == 409:
                raise Conflict(f"{what} is not at version {version}") from error
            raise _not_written(what, error) from error
        except RequestUnanswered as error:
            raise OutcomeUnknown(f"write of {what}: {error}") from error
        return _taken(what, answer, mirror)

    def _shard_path(self, name: str) -> str:
        return f"{self._names.shards}/{self._names.object(name)}"

    def _unreadable(self, kind: str) -> Callable[[str, str, str], None]:
        def say(name: str, version: str, why: str) -> None:
            self._say({"event": "object-unreadable", "kind": kind, "name": name, "version": version, "reason": why})

        return say

    def _say(self, event: Mapping[str, object]) -> None:
        self._log({**event, "cluster": self._names.cluster, "namespace": self._names.namespace})


class _Moved(Exception):
    """Another process has written the lease meanwhile."""


def _not_written(what: str, error: ApiRejected) -> RegistryError:
    if error.code in (400, 405, 412, 413, 415, 422):  # it is this one write that is wrong, and the next may be right
        return Conflict(f"write of {what} refused: {error}")
    # An overloaded or broken server, or rights that are missing: no word on whether anybody's writes are done.
    return OutcomeUnknown(f"write of {what}: {error}")


def _taken(what: str, answer: Json, mirror: Mirror[Any]) -> Version:
    try:
        version = objects.version_of(answer)
    except BadRecord as error:
        raise OutcomeUnknown(f"write of {what}: the answer has no version") from error
    mirror.on_written(answer)
    return version
