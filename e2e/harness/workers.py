"""Workers of a group, as a Deployment, and the pod that knows what they meet (workerpod.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from e2e.harness.kubectl import Failed, Kubectl, Object, wait_until
from e2e.harness.load import RESTRICTED

SEND_SECONDS = 180.0
PROGRAM = "workerpod.py"


@dataclass(frozen=True, slots=True)
class Workers:
    """name: of the Deployment; the pod is NAME-control."""

    kube: Kubectl
    namespace: str
    name: str

    @classmethod
    def start(cls, kube: Kubectl, namespace: str, name: str, image: str, control: Object, work: Object) -> Self:
        """No workers; returns once the herd is stored. control, work: what workerpod.py's functions are given."""
        made = cls(kube, namespace, name)
        text = (Path(__file__).parent / PROGRAM).read_text()
        names = {"name": name, "namespace": namespace}
        kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": names, "data": {PROGRAM: text}})
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": made._pod(image, "work", work)}
        deployment = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        kube.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": names, "spec": deployment})
        spec = {**made._pod(image, "control", control), "restartPolicy": "Never"}
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {**names, "name": made.control}, "spec": spec})
        wait_until("the herd is stored", lambda: [] if made.told("sent") else [made.phase], SEND_SECONDS)
        return made

    @property
    def control(self) -> str:
        return f"{self.name}-control"

    @property
    def phase(self) -> str:
        return str(self.kube.get("pod", self.control, self.namespace)["status"]["phase"])

    def _pod(self, image: str, what: str, settings: Object) -> Object:
        container = {
            "name": what, "image": image, "imagePullPolicy": "IfNotPresent",
            "command": ["python", f"/program/{PROGRAM}", what, json.dumps(settings)],
            "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}], "securityContext": RESTRICTED,
            "volumeMounts": [{"name": "program", "mountPath": "/program"}],
        }  # fmt: skip
        volumes = [{"name": "program", "configMap": {"name": self.name}}]
        return {"containers": [container], "volumes": volumes, "automountServiceAccountToken": False}

    def told(self, word: str) -> Object | None:
        """The newest that the control pod has told of it."""
        text = self.kube("logs", self.control, "--namespace", self.namespace, check=False)
        found = [json.loads(line) for line in text.splitlines() if line.startswith('{"')]
        return next((one for one in reversed(found) if word in one), None)

    def wanted(self) -> float | None:
        """What the HorizontalPodAutoscaler is told, 0 where nothing comes; None: an error."""
        found = self.told("wanted") or {"wanted": None}
        if found["wanted"] is None:
            return None
        return max(1.0, found["wanted"]) if found["active"] else 0.0

    @property
    def replicas(self) -> int:
        return int(self._deployment["spec"].get("replicas", 0))

    @property
    def ready(self) -> int:
        return int(self._deployment.get("status", {}).get("readyReplicas", 0))

    @property
    def _deployment(self) -> Object:
        return self.kube.get("deployment", self.name, self.namespace)

    def scale(self, replicas: int) -> None:
        self.kube("scale", "deployment", self.name, f"--replicas={replicas}", "--namespace", self.namespace)

    def finish(self, seconds: float) -> Any:
        """What came of the herd, once all of it is done."""
        wait_until("the herd is done", lambda: [] if self.told("late_ms") else [self.phase], seconds)
        return self.told("late_ms")

    def delete(self) -> None:
        for kind, name in (("deployment", self.name), ("pod", self.control), ("configmap", self.name)):
            try:
                self.kube.delete(kind, name, self.namespace)
            except Failed as error:
                print(f"workers: {error}")
