"""Changes of what a cluster in Kubernetes is asked for: through its DelayShards, and through its DelayCluster.

DelayShards are written as the local registry's objects are. The spec is the DelayCluster's, which belongs to
people: it is patched, and the operator does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from delayoperator.control_loop.probe import PatientProber
from delayregistry.kube.adapter import KubeRegistry
from delayregistry.kube.client import Credentials, KubeClient
from delayregistry.kube.names import OwnerReference
from delayregistry.port import RegistryError

from delayctl.targets.errors import TargetRefused, TargetUnreachable
from delayctl.targets.kube import CLUSTERS, KubeAccess, KubeInvalid
from delayctl.targets.kube_route import accessed
from delayctl.targets.kube_target import KubeTarget
from delayctl.targets.port_forward import Forwards
from delayctl.targets.registry import TRIES, RegistryEditor, drained_with

RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
"""The annotation that `kubectl rollout restart` uses; a new value is a new revision of the pods."""


class KubeRegistryEditor(RegistryEditor):
    """A RegistryEditor that writes the spec of the DelayCluster. Raises KubeError too."""

    def __init__(self, registry: KubeRegistry, access: KubeAccess, forwards: Forwards) -> None:
        super().__init__(registry, PatientProber(forwards.dial))
        self._access = access

    def move(self, name: str, to: str, origin: str | None) -> tuple[str, ...]:
        self._not_paused(self._access.delaycluster())
        return super().move(name, to, origin)

    def drain(self, node: str, *, undo: bool) -> None:
        for _ in range(TRIES):
            found = self._access.delaycluster()
            self._not_paused(found)
            wished = tuple((found.get("spec") or {}).get("drained") or ())
            drained = drained_with(replace(self.cluster(), drained=wished), node, undo=undo)
            if undo and node not in wished and node in self.cluster().drained:
                raise TargetRefused(
                    f"{node} is being emptied because spec.nodes leaves it out: scale out again to keep it"
                )
            if drained == wished or self._patched(found, {"drained": list(drained)}):
                return
        raise TargetUnreachable(f"{self._access} changes all the time: it could not be written")

    def restart(self) -> None:
        for _ in range(TRIES):
            found = self._access.delaycluster()
            self._not_paused(found)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            if self._patched(found, {"podTemplate": {"annotations": {RESTARTED: now}}}):
                return
        raise TargetUnreachable(f"{self._access} changes all the time: it could not be written")

    def _patched(self, found: Mapping[str, Any], spec: dict[str, Any]) -> bool:
        """False: somebody else has written it meanwhile. Raises Refused where a rule of the schema forbids it."""
        version = found["metadata"]["resourceVersion"]
        try:
            patch = {"metadata": {"resourceVersion": version}, "spec": spec}
            return self._access.patch(CLUSTERS, self._access.cluster, patch)
        except KubeInvalid as error:
            raise TargetRefused(str(error)) from error

    def _not_paused(self, found: Mapping[str, Any]) -> None:
        if (found.get("spec") or {}).get("paused"):
            raise TargetRefused(
                f"{self._access} is paused: the operator moves and restarts nothing until spec.paused is false"
            )


@contextmanager
def kube_registry_editor(target: KubeTarget) -> Iterator[KubeRegistryEditor]:
    """The cluster that --kube names. Raises TargetUnreachable; what is wrong with the way to it ends the process."""
    with accessed(target) as access:
        pods = access.first_pods()
        client = KubeClient(Credentials(access.configuration), agent="delayctl", connections=4)
        # What a watch meets goes into the error of the call that needs it.
        owner = OwnerReference(access.cluster, str(access.delaycluster()["metadata"]["uid"]))
        registry = KubeRegistry(
            client, access.namespace, access.cluster, owner, manager="delayctl", log=lambda event: None
        )
        try:
            with Forwards(access, pods) as forwards:
                editor = KubeRegistryEditor(registry, access, forwards)
                try:
                    yield editor
                finally:
                    editor.close()
        except RegistryError as error:
            raise TargetUnreachable(str(error)) from error
        finally:
            client.close()
