"""One look at a cluster's objects: consistent lists, so that a round sees what the one before it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from delayoperator.cluster.shard_summary import ClaimView, PodView, SetView, ordinal
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.kinds import (
    CLAIM,
    CLUSTER_LABEL,
    DELAY_SHARD,
    OPTIONAL,
    OWNED,
    POD,
    STATEFUL_SET,
    STORAGE_CLASS,
    ObjectKind,
)
from delayoperator.kube.machine_zones import MachineZones
from delayoperator.kube.views import claim_view, pod_view, set_view
from delayoperator.plan.topology import NodeLocation
from delayoperator.resources.names import CONTAINER


@dataclass(frozen=True, slots=True)
class LiveObjects:
    """The objects that exist. owned: everything with the cluster's label, by kind and name."""

    owned: Mapping[tuple[ObjectKind, str], Json] = field(default_factory=dict)
    pods: Sequence[PodView] = ()
    claims: Sequence[ClaimView] = ()
    claim_bodies: Mapping[str, Json] = field(default_factory=dict)
    pod_bodies: Sequence[Json] = ()
    locations: Mapping[str, NodeLocation] = field(default_factory=dict)  # by node id, of nodes that have a pod

    def stateful_set(self, name: str) -> Json | None:
        return self.owned.get((STATEFUL_SET, name))

    def set_view(self, name: str) -> SetView | None:
        body = self.stateful_set(name)
        return None if body is None else set_view(body)

    def set_image(self, name: str) -> str:
        """Of the pods that are made from now on; "" where there is no StatefulSet."""
        spec = (self.stateful_set(name) or {}).get("spec") or {}
        containers = spec.get("template", {}).get("spec", {}).get("containers", ())
        return next((str(it["image"]) for it in containers if it["name"] == CONTAINER), "")


class Observer:
    """For one cluster. A storage class that lets volumes grow is asked once; one that does not, at each look, since its
    people are told to change it (VolumesCannotGrow)."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._expandable: dict[str, bool] = {}  # by storage class
        self._zones = MachineZones(api)

    def observe(self) -> LiveObjects:
        """Raises ApiError."""
        selector = f"{CLUSTER_LABEL}={self._name}"
        owned: dict[tuple[ObjectKind, str], Json] = {}
        for kind in OWNED:
            for body in self._listed(kind, selector):
                owned[kind, str(body["metadata"]["name"])] = body
        pod_bodies = self._api.list(POD, self._namespace, selector)
        claims = {str(it["metadata"]["name"]): it for it in self._api.list(CLAIM, self._namespace, selector)}
        pods = [view for it in pod_bodies if (view := pod_view(self._name, it)) is not None]
        self._read_storage_classes(claims.values())
        views = [claim_view(self._name, it, self._expandable) for it in claims.values()]
        return LiveObjects(
            owned,
            sorted(pods, key=lambda pod: ordinal(pod.node)),
            [it for it in views if it is not None],
            claims,
            pod_bodies,
            {pod.node: NodeLocation(pod.machine, self._zone(pod)) for pod in pods},
        )

    def _zone(self, pod: PodView) -> str:
        return "" if pod.zoneless else self._zones.zone(pod.machine)

    def list_placed(self) -> Mapping[int, frozenset[str]]:
        """By uid, the nodes where the shard has or is to have a copy; a consistent read. Raises ApiError."""
        placed = {}
        for body in self._api.list(DELAY_SHARD, self._namespace, f"{CLUSTER_LABEL}={self._name}"):
            spec = body.get("spec") or {}
            nodes = *(spec.get("replicas") or ()), *(spec.get("target") or ())
            placed[int(spec.get("uid") or 0)] = frozenset(map(str, nodes))
        return placed

    def _listed(self, kind: ObjectKind, selector: str) -> list[Json]:
        try:
            return self._api.list(kind, self._namespace, selector)
        except ApiError as error:
            if kind in OPTIONAL and (error.not_found or error.forbidden):
                return []  # its CRD is not installed, or not ours to see: then there is none of ours
            raise

    def _read_storage_classes(self, claims: Iterable[Json]) -> None:
        for name in {str((it.get("spec") or {}).get("storageClassName") or "") for it in claims} - {""}:
            if self._expandable.get(name):
                continue
            try:
                body = self._api.get(STORAGE_CLASS, "", name)
            except ApiError:
                continue  # not ours to read, say: then the claim is asked to grow, and the API server answers
            if body is not None:
                self._expandable[name] = bool(body.get("allowVolumeExpansion", False))
