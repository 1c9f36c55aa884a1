"""The operator's chart, installed and uninstalled as people do it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.harness.kubectl import Kubectl, Object, run, wait_until

CHART = Path(__file__).resolve().parents[2] / "charts" / "delaycluster-operator"
INSTALL_SECONDS = 180
INSTANCE = "app.kubernetes.io/instance"
REPLICAS = 2  # as the chart has them
COMPONENT = "app.kubernetes.io/component=operator"


def default_image() -> str:
    """The image that the chart has nodes run when it gets no values."""
    return _image("image")


def operator_image(image: str) -> str:
    """The operator's, by the nodes'."""
    repository, _, tag = image.rpartition(":")
    return f"{repository}-operator:{tag}"


def rebalance_image() -> str:
    """The image that the chart runs the rebalance's jobs with."""
    return _image("rebalanceImage")


def next_image() -> str:
    """The image of the release that e2e/nextversion.py makes."""
    return f"{default_image().rpartition(':')[0]}:next"


def targets(spark: bool) -> list[str]:
    """TARGET=TAG of the Dockerfile, for all that the chart runs. spark: the rebalance's jobs too."""
    tags = {"node": default_image(), "operator": operator_image(default_image())}
    if spark:
        tags["rebalance"] = rebalance_image()
    return [f"{target}=docker.io/{tag}" for target, tag in tags.items()]


def _image(value: str) -> str:
    repository = yaml.safe_load((CHART / "values.yaml").read_text())[value]["repository"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    return f"{repository}:{version}"


@dataclass(frozen=True, slots=True)
class Release:
    kube: Kubectl
    namespace: str
    image: str | None = None  # REPOSITORY:TAG; None: no values at all
    name: str = "delaycluster"
    chart: Path = CHART

    def _helm(self, *argv: str) -> str:
        words = ("helm", *argv, "--kube-context", self.kube.context, "--namespace", self.namespace)
        return run(words, seconds=INSTALL_SECONDS + 20)

    @property
    def installed(self) -> bool:
        return self.name in self._helm("list", "--short").split()

    def install(self, *values: str) -> None:
        """Installs or upgrades, with values such as "rbac.create=true"; returns when the operator is ready."""
        self.kube.namespace(self.namespace)
        if self.image:
            repository, _, tag = self.image.rpartition(":")
            values = (*values, f"image.repository={repository}", f"image.tag={tag}")
        sets = (word for value in values for word in ("--set", value))
        self._helm("upgrade", "--install", self.name, str(self.chart), *sets)
        self.wait_ready()

    def ensure(self) -> None:
        """Installed and ready, whatever was before."""
        if self.installed:
            self.wait_ready()
        else:
            self.install()

    def uninstall(self) -> None:
        self._helm("uninstall", self.name, "--ignore-not-found")

    def test(self) -> None:
        """The chart's own test."""
        self._helm("test", self.name)

    # ------------------------------------------------------------ the operator's Deployment
    @property
    def _selector(self) -> str:
        """The label selector of its pods."""
        return f"{INSTANCE}={self.name},{COMPONENT}"

    @property
    def deployment(self) -> Object:
        found = self.kube.list("deployments", self.namespace, f"{INSTANCE}={self.name}")
        assert len(found) == 1, f"the release has {len(found)} Deployments, not one"
        return found[0]

    def pods(self) -> list[Object]:
        found = self.kube.list("pods", self.namespace, self._selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    @property
    def leader(self) -> str:
        """The pod that acts, by the Lease of the election; "": none does."""
        name = self.deployment["metadata"]["name"]
        if not self.kube.exists("lease", name, self.namespace):
            return ""
        holder = self.kube.get("lease", name, self.namespace)["spec"].get("holderIdentity") or ""
        return str(holder).rpartition("_")[0]

    @property
    def node(self) -> str:
        """The Kubernetes node that the operator acts on; of a chart without an election, that it runs on."""
        pods, leader = self.pods(), self.leader
        return str(next((it for it in pods if it["metadata"]["name"] == leader), pods[0])["spec"]["nodeName"])

    def scale(self, replicas: int) -> None:
        """Other than the chart has it."""
        name = self.deployment["metadata"]["name"]
        self.kube("scale", f"deployment/{name}", f"--replicas={replicas}", "--namespace", self.namespace)
        self.wait_ready(replicas)

    def restart(self) -> None:
        """Other pods, wherever the scheduler puts them now."""
        self.kube(
            "rollout", "restart", f"deployment/{self.deployment['metadata']['name']}", "--namespace", self.namespace
        )
        self.wait_ready()

    def wait_ready(self, replicas: int | None = None) -> None:
        """As many as the Deployment asks for, unless said otherwise."""
        replicas = self.deployment["spec"]["replicas"] if replicas is None else replicas

        def unready() -> list[str]:
            status = self.deployment["status"]
            if status.get("observedGeneration") != self.deployment["metadata"]["generation"]:
                return ["the Deployment has not been seen yet"]
            if status.get("updatedReplicas", 0) != replicas:
                return [f"{status.get('updatedReplicas', 0)} operator pods are of the present revision"]
            pods = self.kube.list("pods", self.namespace, self._selector)
            ready = sum(_is_ready(pod) for pod in pods)
            return [] if ready == len(pods) == replicas else [f"{len(pods)} operator pods, {ready} ready; {_why(pods)}"]

        wait_until(f"{replicas} operators are ready", unready, INSTALL_SECONDS)

    def restarts(self) -> int:
        return sum(
            status["restartCount"] for pod in self.pods() for status in pod["status"].get("containerStatuses", [])
        )

    def logs(self) -> str:
        return self.kube("logs", "--namespace", self.namespace, f"--selector={self._selector}", "--tail=-1")


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _why(pods: list[Object]) -> str:
    found = []
    for pod in pods:
        for status in pod["status"].get("containerStatuses", []):
            for state in status["state"].values():
                found.append(f"{pod['metadata']['name']}: {state.get('reason', '')} {state.get('message', '')}".strip())
    return "; ".join(found)[:600]
