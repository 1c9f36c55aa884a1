"""Objects that people make about a cluster, with spec.cluster: DelaySchedules, DelayTopics and
DelayUsers, in whatever namespace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from delayregistry.kube.cluster_watches import ClusterKey

from delayoperator.control_loop.loop import LoopClock
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.caches import HeldObjects, referred_cluster
from delayoperator.kube.kinds import ObjectKind


class ReferringObjects:
    """Of one kind, about one cluster. namespaces: where the operator looks; "" is everywhere."""

    def __init__(self, api: Api, kind: ObjectKind, cluster: ClusterKey, namespaces: Sequence[str]) -> None:
        self._api, self._kind, self._cluster, self._namespaces = api, kind, cluster, namespaces

    def held(self, held: HeldObjects) -> list[Json]:
        """As the caches have them, else listed; none where the kind is not installed. Those that are being deleted are
        among them. Raises ApiError."""
        try:
            return self._wanted(held[self._kind]) if self._kind in held else self.listed()
        except ApiError as error:
            if error.not_found:
                return []
            raise

    def listed(self) -> list[Json]:
        """A consistent read. Raises ApiError, also where the kind is not installed."""
        return self._wanted([it for namespace in self._namespaces for it in self._api.list(self._kind, namespace)])

    def tell(self, body: Json, clock: LoopClock, ready: bool, reason: str, message: str, **more: object) -> None:
        """Writes its status where that is news: the condition Ready, and `more`. Raises ApiError."""
        meta, before = body["metadata"], body.get("status") or {}
        generation, status = int(meta.get("generation", 0)), "True" if ready else "False"
        known: Json = next((it for it in before.get("conditions") or () if it.get("type") == "Ready"), {})
        now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since = known.get("lastTransitionTime") if known.get("status") == status else None
        condition = {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since or now,
        }
        after = {"observedGeneration": generation, "conditions": [condition], **more}
        if any(before.get(key) != value for key, value in after.items()):
            patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": after}
            self._api.merge(self._kind, meta["namespace"], meta["name"], patch, "status")

    def _wanted(self, bodies: Sequence[Json]) -> list[Json]:
        return [it for it in bodies if referred_cluster(it) == self._cluster]


def present(bodies: Sequence[Json]) -> list[Json]:
    """Those that are not being deleted."""
    return [it for it in bodies if "deletionTimestamp" not in it["metadata"]]
