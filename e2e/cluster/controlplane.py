"""The control plane's host: etcd, API server, controllers, scheduler, DNS, a storage class."""

from __future__ import annotations

import json

from e2e.cluster.hosts import Host, control_plane_host
from e2e.cluster.pki import authority
from e2e.cluster.settings import CONTROL_PLANE_IP, FABRIC, PLACES, PODS, SERVICES, VOLUMES, node_name
from e2e.cluster.shell import Word, out, sh, succeeds, wait_for

ETCD = "http://127.0.0.1:2379"
ETCD_PEERS = "http://127.0.0.1:2380"
NODE_GRACE = "12s"  # a node that says nothing for so long is NotReady (Kubernetes' default: 50 s)

# open as kind's provisioner makes them: kube-controller-manager's makes 0750, and pods run as any user
OPEN_VOLUMES = f"while sleep 0.2; do chmod 0777 {VOLUMES} {VOLUMES}/* 2>/dev/null; done"

STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/host-path",
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
    "allowVolumeExpansion": True,  # the claim may grow; a directory has no size, so nobody resizes anything
}


def kubectl(*argv: Word) -> list[str]:
    """The command, as the administrator, in the control plane's namespace."""
    return control_plane_host().inside(PLACES.bin / "kubectl", "--kubeconfig", PLACES.admin, *argv)


def start_control_plane() -> None:
    authority()
    host = control_plane_host()
    _network(host)
    _etcd(host)
    _api_server(host)
    _controllers(host)
    _dns(host)
    sh(*kubectl("apply", "-f", "-"), quiet=True, stdin=json.dumps(STORAGE_CLASS))
    binding = ("create", "clusterrolebinding", "kubelab-proxy")
    sh(*kubectl(*binding, "--clusterrole=system:node-proxier", "--user=system:kube-proxy"), check=False, quiet=True)
    start_proxy(host, node_name(0), CONTROL_PLANE_IP)  # under a node's name, for kube-proxy waits for its Node


def _network(host: Host) -> None:
    if host.exists():
        return
    host.make()
    host.ip("link", "add", "fabric", "type", "bridge")
    host.ip("addr", "add", f"{CONTROL_PLANE_IP}/24", "dev", "fabric")
    host.ip("link", "set", "fabric", "up")
    host.ip("route", "add", "default", "via", str(FABRIC[254]))  # nobody is there: a way out that ends


def _etcd(host: Host) -> None:
    host.start(
        "etcd",
        PLACES.bin / "etcd",
        *("--data-dir", PLACES.home / "etcd"),
        "--unsafe-no-fsync",
        *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
        *("--listen-peer-urls", ETCD_PEERS, "--initial-advertise-peer-urls", ETCD_PEERS),
        *("--initial-cluster", f"default={ETCD_PEERS}"),
        *("--log-level", "warn"),
    )


def _api_server(host: Host) -> None:
    pki = PLACES.pki
    host.start(
        "kube-apiserver",
        PLACES.bin / "kube-apiserver",
        f"--etcd-servers={ETCD}",
        "--secure-port=6443",
        f"--advertise-address={CONTROL_PLANE_IP}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--service-account-key-file={pki}/sa.key",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--enable-aggregator-routing=true",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
    )
    wait_for("kube-apiserver", lambda: succeeds(*kubectl("get", "--raw", "/readyz")))


def _controllers(host: Host) -> None:
    pki = PLACES.pki
    common = (f"--kubeconfig={PLACES.admin}", "--leader-elect=false", "--profiling=false")
    host.start(
        "kube-controller-manager",
        PLACES.bin / "kube-controller-manager",
        *common,
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        "--enable-hostpath-provisioner=true",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={NODE_GRACE}",
    )
    host.start("kube-scheduler", PLACES.bin / "kube-scheduler", *common)
    host.start("volume-mode", "sh", "-c", OPEN_VOLUMES)


def _dns(host: Host) -> None:
    corefile = PLACES.home / "Corefile"
    corefile.write_text(
        f".:53 {{\n bind {CONTROL_PLANE_IP}\n errors\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n"
        f"  kubeconfig {PLACES.admin}\n  pods insecure\n  ttl 1\n }}\n}}\n"
    )
    host.start("coredns", PLACES.bin / "coredns", "-conf", corefile)
    search = "default.svc.cluster.local svc.cluster.local cluster.local"
    (PLACES.home / "resolv.conf").write_text(f"nameserver {CONTROL_PLANE_IP}\nsearch {search}\n")


def start_proxy(host: Host, hostname: str, address: str) -> None:
    config = PLACES.home / f"proxy-{host.name}.json"
    timeouts = {"tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": hostname,
        "bindAddress": address,
        "clusterCIDR": PODS,
        "healthzBindAddress": f"{address}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": str(PLACES.pki / "kube-proxy.kubeconfig")},
        "conntrack": {"maxPerCore": 0, "min": 0, **timeouts},  # 0: leave the machine's own settings alone
    }
    config.write_text(json.dumps(settings))
    host.start("kube-proxy", PLACES.bin / "kube-proxy", "--config", config)


def ready_nodes() -> int:
    return out(*kubectl("get", "nodes", "--no-headers"), check=False).count(" Ready ")
