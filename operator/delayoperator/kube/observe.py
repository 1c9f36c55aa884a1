"""One look at a cluster's objects: as the caches hold them, and listed where these can't say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from delayoperator.cluster.shard_summary import ClaimView, PodView, SetView, ordinal
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.caches import HeldObjects
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
    listed: bool = False  # some were not held, and are newer than what was

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
        self._selector = f"{CLUSTER_LABEL}={name}"
        self._expandable: dict[str, bool] = {}  # by storage class
        self._zones = MachineZones(api)

    def observe(self, held: HeldObjects) -> LiveObjects:
        """Raises ApiError."""
        bodies = {kind: held[kind] if kind in held else self._listed(kind) for kind in (*OWNED, POD, CLAIM)}
        claims = {str(it["metadata"]["name"]): it for it in bodies[CLAIM]}
        pods = self._pods(bodies[POD])
        return LiveObjects(
            {(kind, str(it["metadata"]["name"])): it for kind in OWNED for it in bodies[kind]},
            pods,
            self._claims(bodies[CLAIM]),
            claims,
            bodies[POD],
            {pod.node: NodeLocation(pod.machine, self._zone(pod)) for pod in pods},
            any(kind not in held for kind in bodies),
        )

    def read_set(self) -> tuple[SetView | None, Sequence[PodView]]:
        """The StatefulSet and its pods; a consistent read. Raises ApiError."""
        body = self._api.get(STATEFUL_SET, self._namespace, self._name)
        return None if body is None else set_view(body), self._pods(self._listed(POD))

    def list_claims(self) -> Sequence[ClaimView]:
        """A consistent read. Raises ApiError."""
        return self._claims(self._listed(CLAIM))

    def _pods(self, bodies: Iterable[Json]) -> Sequence[PodView]:
        pods = [view for it in bodies if (view := pod_view(self._name, it)) is not None]
        return sorted(pods, key=lambda pod: ordinal(pod.node))

    def _claims(self, bodies: Sequence[Json]) -> Sequence[ClaimView]:
        self._read_storage_classes(bodies)
        views = [claim_view(self._name, it, self._expandable) for it in bodies]
        return [it for it in views if it is not None]

    def _zone(self, pod: PodView) -> str:
        return "" if pod.zoneless else self._zones.zone(pod.machine)

    def list_placed(self) -> Mapping[int, frozenset[str]]:
        """By uid, the nodes where the shard has or is to have a copy; a consistent read. Raises ApiError."""
        placed = {}
        for body in self._api.list(DELAY_SHARD, self._namespace, self._selector):
            spec = body.get("spec") or {}
            nodes = *(spec.get("replicas") or ()), *(spec.get("target") or ())
            placed[int(spec.get("uid") or 0)] = frozenset(map(str, nodes))
        return placed

    def _listed(self, kind: ObjectKind) -> Sequence[Json]:
        try:
            return self._api.list(kind, self._namespace, self._selector)
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
