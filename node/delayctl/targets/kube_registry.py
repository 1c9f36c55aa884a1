"""Changes of what a cluster in Kubernetes is asked for: through its DelayShards, and through its DelayCluster.

DelayShards are written as the local registry's objects are. The DelayCluster's spec belongs to people and to what they
have in Git: a drain and a restart are annotations beside it, and the operator does the rest.
"""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from delayoperator.cluster.annotations import RESTART, cluster_verbs, drain_annotation, paused_by
from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.control_loop.probe import PatientProber
from delayoperator.kube.views import locations_of
from delayoperator.plan.topology import NodeLocation
from delayregistry.kube.adapter import KubeRegistry
from delayregistry.kube.client import Credentials, KubeClient
from delayregistry.kube.names import OwnerReference
from delayregistry.kube.objects import at_version
from delayregistry.model import Version
from delayregistry.port import RegistryError

from delayctl.targets.errors import TargetRefused, TargetUnreachable
from delayctl.targets.kube import CLUSTERS, KubeAccess, KubeInvalid
from delayctl.targets.kube_route import accessed
from delayctl.targets.kube_target import KubeTarget
from delayctl.targets.port_forward import Forwards
from delayctl.targets.registry import TRIES, RegistryEditor, drained_with


class KubeRegistryEditor(RegistryEditor):
    """A RegistryEditor that annotates the DelayCluster. Raises KubeError too."""

    def __init__(
        self, registry: KubeRegistry, access: KubeAccess, dial: Callable[[str], str], token: str = "", asker: str = ""
    ) -> None:
        """token: for the nodes; "": they are asked without TLS. asker: who wants the changes; "": who runs this."""
        source = (lambda: token) if token else None
        super().__init__(registry, PatientProber(OperatorAccess(dial=dial, token=source)))
        self._access, self._asker = access, asker

    def locations(self) -> Mapping[str, NodeLocation]:
        return locations_of(self._access.delaycluster())

    def move(self, name: str, to: str, origin: str | None) -> tuple[str, ...]:
        self._not_paused(self._access.delaycluster())
        return super().move(name, to, origin)

    def drain(self, node: str, *, undo: bool) -> None:
        for _ in range(TRIES):
            found = self._access.delaycluster()
            self._not_paused(found)
            in_spec = tuple((found.get("spec") or {}).get("drained") or ())
            asked = tuple(dict.fromkeys((*in_spec, *cluster_verbs(found).drained)))
            drained_with(replace(self.cluster(), drained=asked), node, undo=undo)
            if undo and node not in asked and node in self.cluster().drained:
                raise TargetRefused(
                    f"{node} is being emptied because spec.nodes leaves it out: scale out again to keep it"
                )
            if undo != (node in asked):
                return
            patch: dict[str, Any] = {
                "metadata": {"annotations": {drain_annotation(node): None if undo else self._asked()}}
            }
            if undo and node in in_spec:
                patch["spec"] = {"drained": [it for it in in_spec if it != node]}
            if self._patched(found, patch):
                return
        raise TargetUnreachable(f"{self._access} changes all the time: it could not be written")

    def restart(self) -> None:
        for _ in range(TRIES):
            found = self._access.delaycluster()
            self._not_paused(found)
            if self._patched(found, {"metadata": {"annotations": {RESTART: self._asked("milliseconds")}}}):
                return
        raise TargetUnreachable(f"{self._access} changes all the time: it could not be written")

    def _asked(self, timespec: str = "seconds") -> str:
        """Who asks, and when: the value of an annotation."""
        return f"{self._asker or _own_name()} {datetime.now(UTC).isoformat(timespec=timespec)}"

    def _patched(self, found: Mapping[str, Any], patch: dict[str, Any]) -> bool:
        """False: somebody else has written it meanwhile. Raises Refused where a rule of the schema forbids it."""
        version = Version(found["metadata"]["resourceVersion"])
        try:
            return self._access.patch(CLUSTERS, self._access.cluster, at_version(patch, version))
        except KubeInvalid as error:
            raise TargetRefused(str(error)) from error

    def _not_paused(self, found: Mapping[str, Any]) -> None:
        if who := paused_by(found):
            raise TargetRefused(f"{self._access} is paused ({who}): until that ends, nothing is moved or restarted")


def _own_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node()}"


@contextmanager
def kube_registry_editor(target: KubeTarget, account: str = "") -> Iterator[KubeRegistryEditor]:
    """The cluster that --kube names. account: a ServiceAccount, [NAMESPACE/]NAME, by whose token nodes are asked.

    Raises TargetUnreachable; what is wrong with the way to it ends the process.
    """
    with accessed(target) as access:
        pods, token = access.first_pods(), access.account_token(account) if account else ""
        with Forwards(access, pods) as forwards, editor_over(access, forwards.dial, token) as editor:
            yield editor


@contextmanager
def editor_over(
    access: KubeAccess, dial: Callable[[str], str], token: str = "", asker: str = ""
) -> Iterator[KubeRegistryEditor]:
    """See KubeRegistryEditor. Raises TargetUnreachable, KubeError."""
    client = KubeClient(Credentials(access.configuration), agent="delayctl", connections=4)
    try:
        # What a watch meets goes into the error of the call that needs it.
        owner = OwnerReference(access.cluster, str(access.delaycluster()["metadata"]["uid"]))
        registry = KubeRegistry(
            client, access.namespace, access.cluster, owner, manager="delayctl", log=lambda event: None
        )
        editor = KubeRegistryEditor(registry, access, dial, token, asker)
        try:
            yield editor
        finally:
            editor.close()
    except RegistryError as error:
        raise TargetUnreachable(str(error)) from error
    finally:
        client.close()
