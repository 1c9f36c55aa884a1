"""Herds of messages that a pod sends and receives (herdpod.py)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.kubectl import Kubectl, Object, wait_until
from e2e.harness.load import RESTRICTED

SEND_SECONDS = 180.0
END_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Herds:
    """name: of the pod, CLUSTER-load."""

    kube: Kubectl
    namespace: str
    name: str

    @classmethod
    def start(cls, cluster: ClusterUnderTest, image: str, topic: str, herds: Sequence[tuple[int, int]]) -> Self:
        """herds: (due in ms since 1970 UTC, messages). Returns once all are stored."""
        made = cls(cluster.kube, cluster.namespace, f"{cluster.name}-load")
        kube = made.kube
        settings = json.dumps({"endpoint": cluster.endpoint, "topic": topic, "herds": herds})
        names = {"name": made.name, "namespace": made.namespace}
        text = (Path(__file__).parent / "herdpod.py").read_text()
        kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": names, "data": {"herdpod.py": text}})
        container = {
            "name": "herd",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "/herd/herdpod.py", settings],
            "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
            "securityContext": RESTRICTED,
            "volumeMounts": [{"name": "herd", "mountPath": "/herd"}],
        }
        spec = {
            "containers": [container],
            "volumes": [{"name": "herd", "configMap": {"name": made.name}}],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
        }
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": names, "spec": spec})
        wait_until("the herds are stored", lambda: made._lacks("sent"), SEND_SECONDS)
        return made

    def finish(self) -> list[Object]:
        """What came of each herd, once all have come."""
        wait_until("the herds have come", lambda: self._lacks("herds"), END_SECONDS)
        (found,) = (line["herds"] for line in self._lines() if "herds" in line)
        return list(found)

    def _lines(self) -> list[Object]:
        text = self.kube("logs", self.name, "--namespace", self.namespace)
        return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]

    def _lacks(self, word: str) -> list[str]:
        found = self.kube.get("pod", self.name, self.namespace)["status"]["phase"]
        if found == "Failed":
            raise AssertionError(self.kube("logs", self.name, "--namespace", self.namespace)[-3_000:])
        return [] if found != "Pending" and any(word in line for line in self._lines()) else [f"its pod is {found}"]
