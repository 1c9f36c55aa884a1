"""The machines under the Kubernetes nodes, and what can be done to them: of the test cluster, of kind, or nothing."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.harness.kubectl import run

ROOT = Path(__file__).resolve().parents[2]
HARM_SECONDS = 180.0
CONTROL_PLANE_PORT = "6443"


class Machines(Protocol):
    """node: a Kubernetes node's name."""

    def power_off(self, node: str) -> None: ...
    def power_on(self, node: str) -> None: ...
    def unplug(self, node: str) -> None: ...
    def plug_in(self, node: str) -> None: ...
    def cut_api(self, node: str) -> None: ...
    def join_api(self, node: str) -> None: ...
    def freeze_api(self) -> None: ...
    def thaw_api(self) -> None: ...

    def ctr(self, node: str, *argv: str) -> str:
        """containerd's own client on that node, in Kubernetes' namespace."""
        ...


@dataclass(frozen=True, slots=True)
class Kubelab:
    """e2e/cluster; the commands work from inside `kubelab exec` too."""

    def _do(self, *argv: str) -> str:
        return run((sys.executable, str(ROOT / "e2e" / "kubelab"), *argv), seconds=HARM_SECONDS)

    def power_off(self, node: str) -> None:
        self._do("stop-node", _index(node))

    def power_on(self, node: str) -> None:
        self._do("start-node", _index(node))

    def unplug(self, node: str) -> None:
        self._do("cut-node", _index(node))

    def plug_in(self, node: str) -> None:
        self._do("join-node", _index(node))

    def cut_api(self, node: str) -> None:
        self._do("cut-api", _index(node))

    def join_api(self, node: str) -> None:
        self._do("join-api", _index(node))

    def freeze_api(self) -> None:
        self._do("freeze", "kube-apiserver")

    def thaw_api(self) -> None:
        self._do("thaw", "kube-apiserver")

    def save_etcd(self) -> None:
        self._do("save-etcd")

    def restore_etcd(self) -> None:
        """All objects are as they were when etcd was saved; pods, volumes and processes are not."""
        self._do("restore-etcd")

    def ctr(self, node: str, *argv: str) -> str:
        return run(("ctr", "-a", f"/run/kubelab/{node}/containerd.sock", "-n", "k8s.io", *argv), seconds=HARM_SECONDS)


def _index(node: str) -> str:
    return node.removeprefix("kubelab-n")


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes are containers, named like the nodes. Traffic is dropped by rules inside the node's container.

    engine: docker, or podman, which takes the same words.
    """

    cluster: str
    engine: str = "docker"

    @property
    def control_plane(self) -> str:
        return f"{self.cluster}-control-plane"

    def power_off(self, node: str) -> None:
        run((self.engine, "kill", node), seconds=HARM_SECONDS)

    def power_on(self, node: str) -> None:
        run((self.engine, "start", node), seconds=HARM_SECONDS)

    def _inside(self, node: str, *argv: str) -> str:
        return run((self.engine, "exec", node, *argv), seconds=HARM_SECONDS)

    def _cable(self, node: str, action: str) -> None:
        for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o"), ("FORWARD", "-i"), ("FORWARD", "-o")):
            self._inside(node, "iptables", "-w", action, chain, side, "eth0", "-j", "DROP")

    def unplug(self, node: str) -> None:
        self._cable(node, "-I")

    def plug_in(self, node: str) -> None:
        self._cable(node, "-D")

    def _to_api(self, node: str, action: str) -> None:
        words = (self.engine, "inspect", "-f", "{{.NetworkSettings.Networks.kind.IPAddress}}", self.control_plane)
        address = run(words).strip()
        to_api = ("-d", address, "-p", "tcp", "--dport", CONTROL_PLANE_PORT, "-j", "DROP")
        for chain in ("OUTPUT", "FORWARD"):  # the kubelet's own, and the pods'
            self._inside(node, "iptables", "-w", action, chain, *to_api)

    def cut_api(self, node: str) -> None:
        self._to_api(node, "-I")

    def join_api(self, node: str) -> None:
        self._to_api(node, "-D")

    def _signal_api(self, name: str) -> None:
        self._inside(self.control_plane, "sh", "-c", f"kill -{name} $(pidof kube-apiserver)")

    def freeze_api(self) -> None:
        self._signal_api("STOP")

    def thaw_api(self) -> None:
        self._signal_api("CONT")

    def ctr(self, node: str, *argv: str) -> str:
        return self._inside(node, "ctr", "-n", "k8s.io", *argv)


def machines_of(context: str) -> Machines | None:
    """None: nothing is known of the machines, scenarios that harm them are skipped."""
    if context == "kubelab" and os.environ.get("KUBELAB"):
        return Kubelab()
    if context.startswith("kind-"):
        return Kind(context.removeprefix("kind-"), os.environ.get("KIND_EXPERIMENTAL_PROVIDER", "docker"))
    return None
