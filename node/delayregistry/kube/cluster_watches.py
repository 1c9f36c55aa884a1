"""How a registry follows its cluster's objects: by watches of its own, or by those that serve all of a process.

A node has a watch of its own for each kind. An operator of a hundred clusters would have three hundred: as many threads
and connections, each begun anew every ten seconds. So it follows each kind once, whatever the number of clusters. The
API server chooses by the label that the objects of all clusters have; here each event goes to the mirror of its
cluster, and a mirror that comes later is filled with what is known, without a request.

    shared = SharedWatches(client, (), log)                        # of all namespaces
    registry = KubeRegistry(client, namespace, cluster, owner, shared=shared)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from delayregistry.kube.client import ApiRejected, KubeClient
from delayregistry.kube.mirror import Json, Mirror
from delayregistry.kube.names import CLUSTER_LABEL, Names
from delayregistry.kube.objects import name_of
from delayregistry.kube.watch import GRACE_S, WATCH_S, ObjectWatch, Say, Watch

LIVELY_WATCH_S = 300.0  # of leases. A silent one is given up all the same; to begin it anew would prove nothing more
SOON_GONE = "1970-01-01T00:00:00Z"  # a deletionTimestamp: that there is one says it all
LABELLED = {"labelSelector": CLUSTER_LABEL}

ClusterKey = tuple[str, str]
"""A cluster's namespace and name."""
ObjectKey = tuple[str, str]
"""An object's namespace and name."""
Listener = Callable[[str, str, Sequence[Json]], None]
"""(namespace, cluster, objects): something of the cluster's has changed, these are or were its new ones. Called under a
lock; nothing that this process has written itself is told."""


def labelled_cluster(obj: Json) -> str:
    return str((obj["metadata"].get("labels") or {}).get(CLUSTER_LABEL, ""))


def labelled_key(obj: Json) -> ClusterKey:
    return str(obj["metadata"].get("namespace", "")), labelled_cluster(obj)


class ClusterWatches(Protocol):
    """Makes what keeps a mirror of one cluster up to date, once that is started."""

    def shards(self, mirror: Mirror[Any]) -> Watch: ...

    def settings(self, mirror: Mirror[Any]) -> Watch: ...

    def security(self, mirror: Mirror[Any]) -> Watch: ...

    def leases(self, mirror: Mirror[Any]) -> Watch: ...


class OwnWatches:
    """Of one cluster. watch_s, grace_s: see kube/watch.py."""

    def __init__(
        self, client: KubeClient, names: Names, log: Say, watch_s: float = WATCH_S, grace_s: float = GRACE_S
    ) -> None:
        self._client, self._names, self._log = client, names, log
        self._watch_s, self._grace_s = watch_s, grace_s

    def shards(self, mirror: Mirror[Any]) -> Watch:
        query = {"labelSelector": self._names.selector}
        return ObjectWatch(
            self._client, self._names.shards, query, mirror, self._log, None, self._watch_s, self._grace_s
        )

    def settings(self, mirror: Mirror[Any]) -> Watch:
        return self._config_map(mirror, self._names.settings)

    def security(self, mirror: Mirror[Any]) -> Watch:
        return self._config_map(mirror, self._names.security)

    def _config_map(self, mirror: Mirror[Any], name: str) -> Watch:
        return ObjectWatch(
            self._client, self._names.config_maps, {"fieldSelector": f"metadata.name={name}"}, mirror, self._log,
            lambda: self._fetch_config_map(name), self._watch_s, self._grace_s,
        )  # fmt: skip

    def leases(self, mirror: Mirror[Any]) -> Watch:
        return ObjectWatch(
            self._client, self._names.leases, {"labelSelector": self._names.selector}, mirror, self._log, None,
            self._watch_s, self._grace_s, LIVELY_WATCH_S,
        )  # fmt: skip

    def _fetch_config_map(self, name: str) -> list[Json]:
        """One object by its name, which a node may read, where it may list none."""
        try:
            return [self._client.get(f"{self._names.config_maps}/{name}")]
        except ApiRejected as error:
            if error.missing != name:
                raise
            return []


class SharedWatches:
    """Of all clusters of a process: three watches, or three in each of the `namespaces`, where those are named.

    A watch begins when the first cluster needs it.
    """

    def __init__(
        self,
        client: KubeClient,
        namespaces: Sequence[str],
        log: Say,
        watch_s: float = WATCH_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._log = log
        self._scopes: dict[str, tuple[SharedWatch, SharedWatch, SharedWatch]] = {}
        for namespace in namespaces or ("",):
            names = Names(namespace, "")
            self._scopes[namespace] = (
                SharedWatch(client, names.shards, log, watch_s, grace_s),
                SharedWatch(client, names.config_maps, log, watch_s, grace_s),
                SharedWatch(client, names.leases, log, watch_s, grace_s, LIVELY_WATCH_S),
            )

    def of(self, names: Names) -> ClusterWatches:
        scope = self._scopes.get("") or self._scopes[names.namespace]
        return _Feeds(names, self._log, *scope)

    def find(self, path: str) -> SharedWatch | None:
        """The one of this collection, if there is one."""
        return next((it for scope in self._scopes.values() for it in scope if it.path == path), None)

    def list_again(self) -> None:
        """The store was restored from an older state."""
        for scope in self._scopes.values():
            for shared in scope:
                shared.watch.list_again()

    def close(self) -> None:
        for scope in self._scopes.values():
            for shared in scope:
                shared.close()


class _Feeds:
    """The ClusterWatches of one cluster."""

    def __init__(
        self, names: Names, log: Say, shards: SharedWatch, config_maps: SharedWatch, leases: SharedWatch
    ) -> None:
        self._names, self._log = names, log
        self._shards, self._config_maps, self._leases = shards, config_maps, leases

    def shards(self, mirror: Mirror[Any]) -> Watch:
        return ClusterFeed(self._shards, self._names, mirror, self._log)

    def settings(self, mirror: Mirror[Any]) -> Watch:
        return ClusterFeed(self._config_maps, self._names, mirror, self._log, self._names.settings)

    def security(self, mirror: Mirror[Any]) -> Watch:
        return ClusterFeed(self._config_maps, self._names, mirror, self._log, self._names.security)

    def leases(self, mirror: Mirror[Any]) -> Watch:
        return ClusterFeed(self._leases, self._names, mirror, self._log)


class ClusterFeed:
    """What a SharedWatch tells of one cluster, into its mirror. name: of that object alone.

    A mirror that fails is as one whose watch is out, and harms no other; it is filled anew with the next event. Until
    it has been filled once, nothing is known of the cluster.
    """

    def __init__(self, shared: SharedWatch, names: Names, mirror: Mirror[Any], log: Say, name: str = "") -> None:
        self._shared, self._mirror, self._log, self._name = shared, mirror, log, name
        self.key = names.namespace, names.cluster
        self._filled = False
        self._failed_s: float | None = None
        self._failure = ""

    def start(self) -> None:
        self._shared.add(self)

    def stop(self) -> None:
        self._shared.remove(self)

    def join(self, timeout_s: float) -> None:
        """There is no thread of its own."""

    def wait_synced(self, timeout_s: float) -> bool:
        return self._shared.watch.wait_synced(timeout_s) and self._filled

    def wait_running(self, timeout_s: float) -> bool:
        return self._shared.watch.wait_running(timeout_s) and self._failed_s is None

    def out_s(self) -> float:
        failed_s = self._failed_s
        return max(self._shared.watch.out_s(), 0.0 if failed_s is None else time.monotonic() - failed_s)

    @property
    def fault(self) -> str:
        return self._failure if self._failed_s is not None else self._shared.watch.fault

    # ------------------------------------------------------------ under the shared watch's lock
    def apply_list(self, objects: Sequence[Json], version: str | None, *, anew: bool = False) -> None:
        self._guarded(lambda: self._mirror.apply_list([it for it in objects if self._has(it)], version, anew=anew))

    def apply_event(self, kind: str, obj: Json, known: Callable[[], Sequence[Json]], version: str) -> None:
        """known: all of the cluster's objects after it."""
        if self._failed_s is not None:
            self.apply_list(known(), version)
        elif kind == "BOOKMARK" or self._has(obj):
            self._guarded(lambda: self._mirror.apply_event(kind, obj))

    def _has(self, obj: Json) -> bool:
        return self._name in ("", name_of(obj))

    def _guarded(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:  # a fault of ours
            self._failure = f"{type(error).__name__}: {error}"
            if self._failed_s is None:
                self._failed_s = time.monotonic()
                self._say("watch-interrupted", reason=self._failure)
        else:
            self._filled = True  # an event comes after a list
            if self._failed_s is not None:
                self._say("watch-resumed", seconds=round(time.monotonic() - self._failed_s, 1))
                self._failed_s = None

    def _say(self, event: str, **fields: object) -> None:
        namespace, cluster = self.key
        self._log({"event": event, "path": self._shared.path, "namespace": namespace, "cluster": cluster, **fields})


class SharedWatch:
    """One watch of a collection, for the feeds of many clusters, and for whoever listens or asks; to that ObjectWatch
    it is the mirror. Feeds come and go on any thread.

    query: chooses the objects. key_of: whose an object is, which may be a cluster of another namespace than its own.
    optional, forbidden_s: see ObjectWatch.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        log: Say,
        watch_s: float = WATCH_S,
        grace_s: float = GRACE_S,
        lively_watch_s: float | None = None,
        *,
        query: Mapping[str, str] = LABELLED,
        key_of: Callable[[Json], ClusterKey] = labelled_key,
        optional: bool = False,
        forbidden_s: float = 0.0,
    ) -> None:
        self.path = path
        self._key_of, self._log = key_of, log
        self._lock = threading.Lock()
        self._objects: dict[ClusterKey, dict[ObjectKey, Json]] = {}  # by cluster
        self._owner: dict[ObjectKey, ClusterKey] = {}  # the key of `_objects`
        self._feeds: dict[ClusterKey, list[ClusterFeed]] = {}
        self._listeners: list[Listener] = []
        self._heard = 0
        self._filled = self._started = False
        self.watch = ObjectWatch(
            client, path, query, self, log, watch_s=watch_s, grace_s=grace_s, lively_watch_s=lively_watch_s,
            optional=optional, forbidden_s=forbidden_s,
        )  # fmt: skip

    def start(self) -> None:
        """Unless it runs already."""
        with self._lock:
            begins, self._started = not self._started, True
        if begins:
            self.watch.start()

    def add(self, feed: ClusterFeed) -> None:
        with self._lock:
            self._feeds.setdefault(feed.key, []).append(feed)
            if self._filled:
                feed.apply_list(self._known(feed.key), str(self._heard))
        self.start()

    def remove(self, feed: ClusterFeed) -> None:
        with self._lock:
            feeds = self._feeds.get(feed.key, [])
            if feed in feeds:
                feeds.remove(feed)
            if not feeds:
                self._feeds.pop(feed.key, None)

    def listen(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.append(listener)

    def close(self) -> None:
        self.watch.stop()

    def objects(self, key: ClusterKey) -> Sequence[Json] | None:
        """The cluster's, with what this process has written (`on_written`). None: that is not known, since the watch is
        out, or has been silent for longer than it may be. Not to be changed."""
        if self.watch.absent:
            return ()
        if not self.watch.is_current():
            return None
        with self._lock:
            return self._known(key)

    def on_written(self, obj: Json) -> None:
        """The answer to a write of this process."""
        with self._lock:
            known = self._find(obj)
            # One that is not known and not newer than what was heard is gone since.
            if _version(obj) > (self._heard if known is None else _version(known)):
                self._drop(obj)
                self._put({**obj, "metadata": dict(obj["metadata"])})

    def on_deleted(self, namespace: str, name: str, uid: str) -> None:
        """The API server has been asked by this process to delete it: until the watch tells of that, it is about to be
        gone."""
        with self._lock:
            known = self._objects.get(self._owner.get((namespace, name), ("", "")), {}).get((namespace, name))
            if known is not None and known["metadata"].get("uid") == uid:
                self._put({**known, "metadata": {"deletionTimestamp": SOON_GONE, **known["metadata"]}})

    # ------------------------------------------------------------ what its watch tells
    @property
    def resume_version(self) -> str:
        return str(self._heard)

    def apply_list(self, objects: Sequence[Json], version: str | None, *, anew: bool = False) -> None:
        with self._lock:
            before, at = self._objects, int(version or 0)
            newer = [] if anew else [it for some in before.values() for it in some.values() if _version(it) > at]
            self._objects, self._owner = {}, {}
            for obj in objects:
                self._put(obj)
            for obj in newer:
                self._drop(obj)
                self._put(obj)
            self._heard = at if anew else max(self._heard, at)
            self._filled = True
            for key, feeds in self._feeds.items():
                for feed in feeds:
                    feed.apply_list(self._known(key), version, anew=anew)
            for key in before.keys() | self._objects.keys():
                was, now = before.get(key, {}), self._objects.get(key, {})
                # Not by their versions: a store that was restored has given those to other objects.
                if was != now:
                    self._call(key, [it for name, it in now.items() if was.get(name) != it])

    def apply_event(self, kind: str, obj: Json) -> None:
        with self._lock:
            version = _version(obj)
            self._heard = max(self._heard, version)
            if kind == "BOOKMARK":
                for key in self._feeds:
                    self._tell(key, kind, obj)
                return
            known = self._find(obj)
            if known is not None and _version(known) > version:
                return  # this process has written it since: the event of that comes
            own = known is not None and _version(known) == version
            before = self._drop(obj)
            now = None if kind == "DELETED" else self._put(obj)
            if before is not None and before != now:
                self._tell(before, "DELETED", obj)
            if now is not None:
                self._tell(now, kind, obj)
            if not own:
                for concerned in {it for it in (before, now) if it is not None}:
                    self._call(concerned, [obj])

    def _tell(self, key: ClusterKey, kind: str, obj: Json) -> None:
        for feed in self._feeds.get(key, ()):
            feed.apply_event(kind, obj, lambda: self._known(key), str(self._heard))

    def _call(self, key: ClusterKey, objects: Sequence[Json]) -> None:
        for listener in self._listeners:
            try:
                listener(*key, objects)
            except Exception as error:  # a fault of ours, in one cluster
                self._log({"event": "listener-failed", "path": self.path, "error": f"{type(error).__name__}: {error}"})

    def _known(self, key: ClusterKey) -> Sequence[Json]:
        return list(self._objects.get(key, {}).values())

    def _find(self, obj: Json) -> Json | None:
        key = self._owner.get(_object_key(obj))
        return None if key is None else self._objects[key][_object_key(obj)]

    def _put(self, obj: Json) -> ClusterKey:
        obj["metadata"].pop("managedFields", None)  # who wrote which field: more than half of a shard's object
        key = self._key_of(obj)
        self._objects.setdefault(key, {})[_object_key(obj)] = obj
        self._owner[_object_key(obj)] = key
        return key

    def _drop(self, obj: Json) -> ClusterKey | None:
        key = self._owner.pop(_object_key(obj), None)
        if key is not None:
            self._objects[key].pop(_object_key(obj), None)
            if not self._objects[key]:
                del self._objects[key]
        return key


def _object_key(obj: Json) -> ObjectKey:
    return str(obj["metadata"].get("namespace", "")), name_of(obj)


def _version(obj: Json) -> int:
    return int(obj["metadata"]["resourceVersion"])
