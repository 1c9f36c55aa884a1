"""What the API server's watches have told of all clusters' objects: where rounds look, without a request.

One watch of each kind, for all clusters, or for all in each of the namespaces that the operator is given. An answer
from here may be late by a moment, and what is done after it is conditional on the version of the object that it was
decided from. It is never one of which nothing was heard for SILENT_S, nor one in which an own write is missing. What
can't be said from here is not said: the caller lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from delayregistry.kube import KubeClient, SharedWatches
from delayregistry.kube.cluster_watches import LABELLED, ClusterKey, Listener, SharedWatch, labelled_key
from delayregistry.kube.watch import BOOKMARK_S

from delayoperator.control_loop.loop import Log
from delayoperator.kube.api import Json
from delayoperator.kube.kinds import (
    CLAIM,
    DELAY_REBALANCE,
    DELAY_SCHEDULE,
    DELAY_SINK,
    DELAY_TOPIC,
    DELAY_USER,
    JOB,
    LEASE,
    OPTIONAL,
    OWNED,
    POD,
    ObjectKind,
)

GRACE_S = 15.0
SILENT_S = BOOKMARK_S + GRACE_S  # a watch that has told of nothing for so long is given up
FORBIDDEN_S = 10.0  # rounds list meanwhile, and say so where they may not either
REFERRING = frozenset({DELAY_SCHEDULE, DELAY_TOPIC, DELAY_USER})  # in any namespace
BY_SPEC = REFERRING | {DELAY_REBALANCE, DELAY_SINK}  # people make them, without a label; spec.cluster says whose
CACHED = (
    *OWNED, POD, CLAIM, JOB, DELAY_REBALANCE, DELAY_SCHEDULE, DELAY_SINK, DELAY_TOPIC, DELAY_USER,
)  # fmt: skip

HeldObjects = Mapping[ObjectKind, Sequence[Json]]
"""A cluster's objects at one moment. A kind that is missing is not known, and has to be listed."""


class ObjectCaches:
    """shared: has watches of some of the kinds already. From any thread."""

    def __init__(self, client: KubeClient, namespaces: Sequence[str], shared: SharedWatches, log: Log) -> None:
        self._own: list[SharedWatch] = []
        self._watches: dict[tuple[ObjectKind, str], SharedWatch] = {}
        self._everywhere = not namespaces
        self.namespaces = tuple(namespaces) or ("",)
        for namespace in self.namespaces:
            for kind in CACHED:
                path = kind.path(namespace)
                found = shared.find(path)
                if found is None:
                    found = self._new_watch(client, kind, path, log)
                    self._own.append(found)
                self._watches[kind, namespace] = found

    def start(self, on_change: Callable[[ObjectKind], Listener]) -> None:
        """on_change: makes what is told of changes of a kind, but of leases, which nodes renew all the time."""
        for (kind, _), watch in self._watches.items():
            if kind is not LEASE:
                watch.listen(on_change(kind))
            watch.start()

    def list_again(self) -> None:
        """The store was restored from an older state. Not those that are shared."""
        for watch in self._own:
            watch.watch.list_again()

    def close(self) -> None:
        for watch in self._own:
            watch.close()

    def of_cluster(self, namespace: str, name: str) -> HeldObjects:
        found = {kind: self._objects(kind, (namespace, name)) for kind in CACHED}
        return {kind: objects for kind, objects in found.items() if objects is not None}

    def _objects(self, kind: ObjectKind, cluster: ClusterKey) -> Sequence[Json] | None:
        if kind not in REFERRING:
            return self._watch(kind, cluster[0]).objects(cluster)
        some = [self._watches[kind, namespace].objects(cluster) for namespace in self.namespaces]
        known = [it for it in some if it is not None]
        return [body for it in known for body in it] if len(known) == len(some) else None

    def on_written(self, kind: ObjectKind, body: Json) -> None:
        if kind in CACHED:
            self._watch(kind, str(body["metadata"].get("namespace", ""))).on_written(body)

    def on_deleted(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None:
        if kind in CACHED:
            self._watch(kind, namespace).on_deleted(namespace, name, uid)

    def silent_s(self) -> Iterator[tuple[str, str, float]]:
        """(plural, namespace or "" for all, since when nothing was heard in seconds) of each that has objects."""
        for (kind, namespace), found in self._watches.items():
            if not found.watch.absent:
                yield kind.plural, namespace, found.watch.silent_s()

    def _watch(self, kind: ObjectKind, namespace: str) -> SharedWatch:
        return self._watches[kind, "" if self._everywhere else namespace]

    @staticmethod
    def _new_watch(client: KubeClient, kind: ObjectKind, path: str, log: Log) -> SharedWatch:
        by_spec = kind in BY_SPEC
        return SharedWatch(
            client, path, log, BOOKMARK_S, GRACE_S,
            query={} if by_spec else LABELLED,
            key_of=referred_cluster if by_spec else labelled_key,
            optional=by_spec or kind in OPTIONAL, forbidden_s=FORBIDDEN_S,
        )  # fmt: skip


def referred_cluster(body: Json) -> ClusterKey:
    """The cluster that spec.cluster names: of the object's namespace, unless it says another one."""
    own, said = str(body["metadata"].get("namespace", "")), (body.get("spec") or {}).get("cluster", "")
    if isinstance(said, Mapping):
        return str(said.get("namespace") or own), str(said.get("name") or "")
    return own, str(said)
