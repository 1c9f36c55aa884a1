"""Where the cluster keeps things, which versions it is built from, and its addresses."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

KUBE_VERSION = "1.36.3"
GO_VERSION = "1.26.8"  # taken when the machine's Go is of an older minor version
STAGING_VERSION = "0.36.3"  # of the k8s.io/* libraries that belong to it
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
MODULES = {
    "helm": "helm.sh/helm/v4/cmd/helm@v4.3.1",
    "containerd": "github.com/containerd/containerd/v2/cmd/containerd@v2.4.2",
    "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@v2.4.2",
    "ctr": "github.com/containerd/containerd/v2/cmd/ctr@v2.4.2",
    "runc": "github.com/opencontainers/runc@v1.5.2",
    "coredns": "github.com/coredns/coredns@v1.15.0",
}
PACKAGES = (
    *("libseccomp-dev", "pkg-config", "gcc", "libc6-dev"),  # for runc
    *("containernetworking-plugins", "iptables", "conntrack", "ethtool", "socat", "iproute2", "procps", "openssl"),
    *("debootstrap", "podman", "buildah", "uidmap", "fuse-overlayfs"),  # for images
)

PAUSE_IMAGE = "docker.io/kubelab/pause:1"
BASE_IMAGE = "docker.io/library/python:3.11-slim-bookworm"

CONTROL_PLANE = "kubelab-cp"
CONTROL_PLANE_IP = "10.89.0.1"
FABRIC = ipaddress.ip_network("10.89.0.0/24")
SERVICES = "10.96.0.0/16"
SERVICE_IP = "10.96.0.1"  # of the API server
PODS = "10.244.0.0/16"
VOLUMES = Path("/tmp/hostpath_pv")  # fixed in kube-controller-manager's host-path provisioner


@dataclass(frozen=True, slots=True)
class Places:
    """Directories. `home` and `run` go with `down`; `cache` is what `build` has made and stays."""

    home: Path
    cache: Path
    run: Path = Path("/run/kubelab")  # sockets: their paths must stay short

    @property
    def bin(self) -> Path:
        return self.cache / "bin"

    @property
    def pki(self) -> Path:
        return self.home / "pki"

    @property
    def admin(self) -> Path:
        """The administrator's kubeconfig."""
        return self.pki / "admin.kubeconfig"


def _places() -> Places:
    return Places(
        home=Path(os.environ.get("KUBELAB_HOME", "/var/lib/kubelab")),
        cache=Path(os.environ.get("KUBELAB_CACHE", Path.home() / ".cache/kubelab")),
    )


PLACES = _places()


def node_name(index: int) -> str:
    """Also the node's network namespace."""
    return f"kubelab-n{index}"


def node_ip(index: int) -> str:
    return str(FABRIC[10 + index])


def pod_network(index: int) -> str:
    return f"10.244.{index}.0/24"
