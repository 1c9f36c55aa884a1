"""A load on a cluster, in a pod: producers, two groups of consumers, and a checker of the promises to them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harness.kubectl import Failed, Kubectl, Object, wait_until

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("tests/faults/support/sdkload.py", "tests/faults/support/columns.py", "e2e/harness/loadpod.py")
CALM_SECONDS = 4.0  # of load before the harm, and after all is whole again
BEGIN_SECONDS = 120
END_SECONDS = 200
HARM_MS = 10_000  # what it may take from the command until the container or machine is gone
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a queue had no acknowledgement, or no delivery."""

    queue: int
    began_ms: int  # since 1970 UTC
    length_ms: int

    def covers(self, since_ms: int) -> bool:
        """It lay at or after that moment, or over it."""
        return self.began_ms + self.length_ms >= since_ms


@dataclass(frozen=True, slots=True)
class Result:
    totals: Object  # columns.Totals
    errors: dict[str, int]  # the errors that callers got, by kind
    faults: list[str]
    late_ms: dict[str, int]
    queues: int  # that messages came from
    acknowledged: tuple[Pause, ...]
    delivered: tuple[Pause, ...]

    @classmethod
    def of(cls, found: Object) -> Result:
        def all_of(which: str) -> tuple[Pause, ...]:
            return tuple(Pause(queue, *pause) for queue, pauses in enumerate(found[which]) for pause in pauses)

        fixed = {name: found[name] for name in ("totals", "errors", "faults", "late_ms", "queues")}
        return cls(**fixed, acknowledged=all_of("acknowledged"), delivered=all_of("delivered"))

    def assert_kept(self) -> None:
        """Every promise was kept, and there was a load at all."""
        totals = self.totals
        assert not self.faults, self.faults
        assert totals["acknowledged"] > 0, f"nothing was acknowledged: {self.errors}"
        assert not totals["broken"], f"promises were broken: {totals}"
        assert min(totals["delivered"]) > 0, totals

    def longest(self, which: str, queues: Sequence[int], since_ms: int = 0, until_ms: float = math.inf) -> float:
        """The longest pause of these queues, seconds; of those that began by `until_ms`. which: acknowledged or
        delivered."""
        found: tuple[Pause, ...] = getattr(self, which)
        near = [one for one in found if one.covers(since_ms) and one.began_ms <= until_ms]
        fitting = [one.length_ms for one in near if one.queue in queues]
        return max(fitting, default=0) / 1000

    def resumed(self, which: str, queues: Sequence[int], harmed_ms: int) -> float:
        """The end of each queue's pause for the harm, the latest of them: seconds after the harm.

        The SDK's callers are told no error while they wait for the next master, so the harm itself is the first one.
        The pause is the longest of those that began soon enough: a later one has other causes.
        """
        ends = []
        found: tuple[Pause, ...] = getattr(self, which)
        for queue in queues:
            near = [one for one in found if one.queue == queue and one.began_ms <= harmed_ms + HARM_MS]
            own = [one for one in near if one.covers(harmed_ms)]
            if own:
                longest = max(own, key=lambda one: one.length_ms)
                ends.append(longest.began_ms + longest.length_ms - harmed_ms)
        return max(ends, default=0) / 1000


@dataclass(frozen=True, slots=True)
class TokenPod:
    """What an application's pod has for a cluster with TLS: whom to trust, and its ServiceAccount's token."""

    account: str
    audience: str
    ca_secret: str
    server_name: str

    @property
    def settings(self) -> Object:
        return {"ca": "/tls/ca.crt", "token_file": "/tls/token", "server_name": self.server_name}

    def added_to(self, pod: Object) -> Object:
        token = {"audience": self.audience, "expirationSeconds": 600, "path": "token"}
        ca = {"name": self.ca_secret, "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        volume = {"name": "tls", "projected": {"sources": [{"serviceAccountToken": token}, {"secret": ca}]}}
        spec = pod["spec"]
        container = spec["containers"][0]
        mounts = [*container["volumeMounts"], {"name": "tls", "mountPath": "/tls", "readOnly": True}]
        containers = [{**container, "volumeMounts": mounts}]
        more = {"serviceAccountName": self.account, "volumes": [*spec["volumes"], volume], "containers": containers}
        return {**pod, "spec": {**spec, **more}}


@dataclass(frozen=True, slots=True)
class Load:
    kube: Kubectl
    namespace: str
    name: str

    @classmethod
    def start(
        cls, kube: Kubectl, namespace: str, name: str, image: str, machine: str,
        **settings: Any,
    ) -> Load:  # fmt: skip
        """machine: the Kubernetes node to run on. settings: endpoints, of sdkload.Work what is to be other, and
        `shows`, a TokenPod, of a load that comes by TLS."""
        load = cls(kube, namespace, name)
        kube.delete("pod", name, namespace)
        texts = {str(number): (ROOT / path).read_text() for number, path in enumerate(SOURCES)}
        metadata = {"name": name, "namespace": namespace}
        kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts}, owner="e2e-load")
        shows: TokenPod | None = settings.pop("shows", None)
        pod = load._pod(image, machine, settings if shows is None else {**settings, "tls": shows.settings})
        kube.apply(pod if shows is None else shows.added_to(pod))
        wait_until("the load begins", load._not_begun, BEGIN_SECONDS)
        return load

    def _pod(self, image: str, machine: str, settings: Object) -> Object:
        files = [{"key": str(number), "path": path} for number, path in enumerate(SOURCES)]
        container = {
            "name": "load",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-m", "e2e.harness.loadpod", json.dumps(settings)],
            "workingDir": "/load",
            "env": [{"name": "PYTHONPATH", "value": "/load"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
            "securityContext": RESTRICTED,
            "volumeMounts": [{"name": "load", "mountPath": "/load"}, {"name": "tmp", "mountPath": "/tmp"}],
        }
        volumes = [{"name": "load", "configMap": {"name": self.name, "items": files}}, {"name": "tmp", "emptyDir": {}}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "containers": [container],
                "volumes": volumes,
                "nodeName": machine,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
            },
        }

    @property
    def machine(self) -> str:
        """The Kubernetes node that it runs on."""
        return str(self.kube.get("pod", self.name, self.namespace)["spec"]["nodeName"])

    def _lines(self) -> list[Object]:
        text = self.kube("logs", self.name, "--namespace", self.namespace)
        return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]

    def _phase(self) -> str:
        return str(self.kube.get("pod", self.name, self.namespace)["status"]["phase"])

    def _not_begun(self) -> list[str]:
        phase = self._phase()
        if phase in ("Failed", "Succeeded"):
            raise AssertionError(
                f"the load ended: {self.kube('logs', self.name, '--namespace', self.namespace)[-3_000:]}"
            )
        if phase != "Running":
            return [f"its pod is {phase}"]
        return [] if {"began": True} in self._lines() else ["it has not begun"]

    def finish(self) -> Result:
        """Ends it; every message that was acknowledged has had its time to come."""
        code = "open('/tmp/finish', 'w')"
        self.kube("exec", self.name, "--namespace", self.namespace, "--", "python", "-c", code, check=False)

        def unended() -> list[str]:
            phase = self._phase()
            return [] if phase in ("Succeeded", "Failed") else [f"its pod is {phase}"]

        wait_until("the load ends", unended, END_SECONDS)
        results = [line for line in self._lines() if "totals" in line]
        if not results:
            told = self.kube("logs", self.name, "--namespace", self.namespace)
            raise Failed(f"the load ended without a result: {told[-3_000:]}")
        self.remove()
        return Result.of(results[0])

    def remove(self) -> None:
        self.kube.delete("pod", self.name, self.namespace)
        self.kube.delete("configmap", self.name, self.namespace)
