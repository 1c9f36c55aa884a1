"""A DelayCluster under test: its objects as `kubectl` shows them, and what is not yet whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harness.kubectl import Kubectl, Object, run, wait_until

API_VERSION = "delaycluster.io/v1alpha1"
WHOLE_SECONDS = 180.0
DELAYCTL = str(Path(sys.executable).with_name("delayctl"))
DELAYCTL_SECONDS = 120.0
LABEL = "delaycluster.io/cluster"


@dataclass(frozen=True, slots=True)
class Shard:
    """A DelayShard, as far as the scenarios look at it."""

    name: str
    topic: str
    queue: int
    replicas: tuple[str, ...]  # node ids
    master: str | None
    epoch: int
    serving_epoch: int
    in_sync: int  # copies
    conditions: tuple[str, ...]

    @classmethod
    def of(cls, found: Object) -> Shard:
        spec, status = found["spec"], found.get("status") or {}
        return cls(
            name=found["metadata"]["name"],
            topic=spec["topic"],
            queue=spec["queue"],
            replicas=tuple(spec["replicas"]),
            master=spec.get("master"),
            epoch=spec.get("epoch", 0),
            serving_epoch=status.get("servingEpoch", 0),
            in_sync=len(status.get("inSync", ())),
            conditions=tuple(f"{one['type']}/{one['reason']}" for one in status.get("conditions", ())),
        )

    @property
    def surplus(self) -> bool:
        """Kept, though no topic asks for it."""
        return any(condition.startswith("Surplus/") for condition in self.conditions)

    @property
    def faults(self) -> list[str]:
        if self.epoch == 0 or self.serving_epoch != self.epoch:
            return [f"{self.name}: epoch {self.epoch} of {self.master}, serving {self.serving_epoch} {self.conditions}"]
        if self.in_sync != len(self.replicas):
            return [f"{self.name}: {self.in_sync} of {len(self.replicas)} copies in sync {self.conditions}"]
        return []


@dataclass(frozen=True, slots=True)
class ClusterUnderTest:
    kube: Kubectl
    name: str
    namespace: str

    @property
    def endpoint(self) -> str:
        return f"{self.name}-client.{self.namespace}.svc:7070"

    def manifest(self, **spec: Any) -> Object:
        names = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": API_VERSION, "kind": "DelayCluster", "metadata": names, "spec": spec}

    def apply(self, **spec: Any) -> None:
        """By an owner: after a plain apply kubectl takes the next owner for its successor, and drops its fields."""
        self.kube.apply(self.manifest(**spec), namespace=self.namespace, owner="e2e-platform")

    def add_topic(self, name: str, queues: int) -> None:
        """By an owner of its own: who applies a topic need not know the others."""
        topic = {"name": name, "queues": queues}
        self.kube.apply(self.manifest(topics=[topic]), namespace=self.namespace, owner=f"e2e-{name}")

    def edit(self, **spec: Any) -> None:
        self.kube.patch("delaycluster", self.name, {"spec": spec}, self.namespace)

    @property
    def replicas(self) -> int:
        """Nodes that are asked for."""
        return int(self.object["spec"]["nodes"])

    def scale(self, replicas: int) -> None:
        """By its scale subresource."""
        self.kube("scale", "delaycluster", self.name, f"--replicas={replicas}", "--namespace", self.namespace)

    @property
    def object(self) -> Object:
        return self.kube.get("delaycluster", self.name, self.namespace)

    def condition(self, type_: str) -> Object:
        """Empty when it is not set."""
        conditions: list[Object] = self.object.get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == type_), {})

    def events(self) -> list[Object]:
        found = self.kube.list("events", self.namespace)
        return [one for one in found if one["involvedObject"].get("name") == self.name]

    # ------------------------------------------------------------ shards
    def shards(self, topic: str | None = None) -> list[Shard]:
        found = self.kube.list("delayshards", self.namespace, f"{LABEL}={self.name}")
        shards = sorted((Shard.of(one) for one in found), key=lambda one: (one.topic, one.queue))
        return [shard for shard in shards if topic in (None, shard.topic)]

    def epochs(self) -> dict[str, int]:
        return {shard.name: shard.epoch for shard in self.shards()}

    def unwhole(self) -> list[str]:
        """The faults that keep it from being whole: all copies of all shards must be in sync, and the status say so."""
        found = self.object
        spec, status = found["spec"], found.get("status", {})
        faults = [fault for shard in self.shards() for fault in shard.faults]
        wanted = sum(topic["queues"] for topic in spec.get("topics", ()))
        for field, right in (("shards", wanted), ("servedShards", wanted), ("inSyncShards", wanted)):
            if status.get(field) != right:
                faults.append(f"status.{field}: {status.get(field)}, not {right}")
        for field in ("nodes", "readyNodes"):
            if status.get(field) != spec["nodes"]:
                faults.append(f"status.{field}: {status.get(field)}, not {spec['nodes']}")
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            faults.append("the operator has not seen the last edit")
        ready = next((one for one in status.get("conditions", ()) if one["type"] == "Ready"), None)
        if ready is None or ready["status"] != "True":
            faults.append(f"Ready: {ready}")
        return faults

    def wait_whole(self, seconds: float = WHOLE_SECONDS) -> float:
        return wait_until(f"cluster {self.name} is whole", self.unwhole, seconds)

    # ------------------------------------------------------------ pods
    def pods(self) -> dict[str, Object]:
        """By node id."""
        found = self.kube.list("pods", self.namespace, f"{LABEL}={self.name},app.kubernetes.io/component=node")
        return {f"n{pod['metadata']['name'].rpartition('-')[2]}": pod for pod in found}

    def claims(self) -> dict[str, Object]:
        """The nodes' volumes, by node id."""
        found = self.kube.list("pvc", self.namespace, f"{LABEL}={self.name}")
        return {f"n{claim['metadata']['name'].rpartition('-')[2]}": claim for claim in found}

    def machine_of(self, node: str) -> str:
        """The Kubernetes node under a node id."""
        return str(self.pods()[node]["spec"]["nodeName"])

    def victim(self, topic: str, spare: Sequence[str] = ()) -> str:
        """The node id with most masters of `topic`, on none of the Kubernetes nodes to `spare`."""
        masters = [shard.master for shard in self.shards(topic)]
        pods = {node: pod["spec"]["nodeName"] for node, pod in self.pods().items()}
        able = [node for node in sorted(pods) if pods[node] not in spare and node in masters]
        assert able, f"no master of {topic} can be harmed: masters {masters}, pods on {pods}, to spare {spare}"
        return max(able, key=masters.count)

    # ------------------------------------------------------------ from outside, by `delayctl --kube`
    @property
    def target(self) -> tuple[str, str]:
        return "--kube", f"{self.kube.context}/{self.namespace}/{self.name}"

    def delayctl(self, *argv: str, seconds: float = DELAYCTL_SECONDS) -> str:
        return run((DELAYCTL, *argv, *self.target), seconds=seconds)

    def delete(self) -> None:
        self.kube.delete("delaycluster", self.name, self.namespace)
