"""A node's host: network, containerd, kubelet, kube-proxy."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.controlplane import start_proxy
from e2e.cluster.hosts import Host, control_plane_host, node_host
from e2e.cluster.pki import certificate, kubeconfig
from e2e.cluster.settings import CONTROL_PLANE_IP, PAUSE_IMAGE, PLACES, node_ip, node_name, pod_network
from e2e.cluster.shell import Word, sh, wait_for

CNI_PLUGINS = "/usr/lib/cni"  # Debian's containernetworking-plugins


@dataclass(frozen=True, slots=True)
class Node:
    index: int

    @property
    def host(self) -> Host:
        return node_host(self.index)

    @property
    def home(self) -> Path:
        return PLACES.home / node_name(self.index)

    @property
    def run(self) -> Path:
        return PLACES.run / node_name(self.index)

    @property
    def cable(self) -> str:
        """The control plane's end of the node's cable."""
        return f"to-n{self.index}"

    def ctr(self, *argv: Word, check: bool = True) -> subprocess.CompletedProcess[str]:
        socket = self.run / "containerd.sock"
        return sh(PLACES.bin / "ctr", "-a", socket, "-n", "k8s.io", *argv, check=check, quiet=True)

    def connect(self, nodes: int) -> None:
        """A cable to the fabric, and a route to the pods of each of the `nodes` nodes."""
        host, fabric = self.host, control_plane_host()
        if not host.exists():
            host.make()
            fabric.ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            fabric.ip("link", "set", self.cable, "master", "fabric", "up")
            host.ip("addr", "add", f"{node_ip(self.index)}/24", "dev", "eth0")
            host.ip("link", "set", "eth0", "up")
            host.ip("route", "add", "default", "via", CONTROL_PLANE_IP)
        for other in range(nodes):
            if other != self.index:
                host.ip("route", "replace", pod_network(other), "via", node_ip(other))
        fabric.ip("route", "replace", pod_network(self.index), "via", node_ip(self.index))

    def start(self) -> None:
        for directory in (self.home / "cni", self.home / "kubelet", self.home / "pods-logs", self.run):
            directory.mkdir(parents=True, exist_ok=True)
        self._containerd()
        self._kubelet()
        start_proxy(self.host, self.host.name, node_ip(self.index))

    def _containerd(self) -> None:
        home, run = self.home, self.run
        (home / "cni" / "10-bridge.conflist").write_text(json.dumps(self._cni()))
        runtime = '[plugins."io.containerd.cri.v1.runtime"'
        (home / "containerd.toml").write_text(
            f'version = 3\nroot = "{home}/containerd"\nstate = "{run}/containerd"\n'
            f'[grpc]\n  address = "{run}/containerd.sock"\n[ttrpc]\n  address = "{run}/containerd.sock.ttrpc"\n'
            f'[plugins."io.containerd.cri.v1.images".pinned_images]\n  sandbox = "{PAUSE_IMAGE}"\n'
            f"{runtime}]\n  restrict_oom_score_adj = true\n"
            f'{runtime}.cni]\n  bin_dirs = ["{CNI_PLUGINS}"]\n  conf_dir = "{home}/cni"\n'
            f'{runtime}.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
            f"{runtime}.containerd.runtimes.runc.options]\n  SystemdCgroup = false\n"
            f'[plugins."io.containerd.internal.v1.opt"]\n  path = "{home}/opt"\n'
        )
        self.host.start("containerd", PLACES.bin / "containerd", "--config", home / "containerd.toml")
        wait_for(f"containerd on {self.host.name}", lambda: self.ctr("version", check=False).returncode == 0, 60)
        self.ctr("images", "import", PLACES.cache / "pause.tar")

    def _cni(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.home / "ipam"),
            "ranges": [[{"subnet": pod_network(self.index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "kubelab", "plugins": [{**bridge, "ipam": addresses}, ports]}

    def _kubelet(self) -> None:
        name, home, pki = self.host.name, self.home, PLACES.pki
        certificate(name, f"/O=system:nodes/CN=system:node:{name}", f"DNS:{name},IP:{node_ip(self.index)}")
        authentication = {"x509": {"clientCAFile": str(pki / "ca.crt")}, "anonymous": {"enabled": False}}
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {**authentication, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,  # all nodes share the machine's cgroups
            "enforceNodeAllocatable": [],
            "clusterDNS": [CONTROL_PLANE_IP],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{self.run}/containerd.sock",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "imageMinimumGCAge": "24h",
            "localStorageCapacityIsolation": False,
            "maxPods": 100,
            "nodeStatusUpdateFrequency": "2s",
            "podLogsDir": str(home / "pods-logs"),
            "registryPullQPS": 0,
            "resolvConf": str(PLACES.home / "resolv.conf"),
            "shutdownGracePeriod": "0s",
            "tlsCertFile": str(pki / f"{name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{name}.key"),
            "volumePluginDir": str(home / "volume-plugins"),
        }
        (home / "kubelet.json").write_text(json.dumps(settings))
        self.host.start(
            "kubelet",
            PLACES.bin / "kubelet",
            *("--config", home / "kubelet.json", "--kubeconfig", kubeconfig(name)),
            *("--root-dir", home / "kubelet", "--cert-dir", home / "kubelet-pki"),
            *("--hostname-override", name, "--node-ip", node_ip(self.index)),
        )
