"""A Kubernetes of its control plane alone, with KEDA beside it, as processes: etcd, API server, the controllers of
Deployments and HorizontalPodAutoscalers, KEDA's operator and metrics adapter. Pods are made and never run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from e2e.cluster.keda import BINARIES, PROGRAMS, definitions
from e2e.cluster.settings import PLACES
from tests.security.authority import Authority

Json = dict[str, Any]
START_SECONDS = 300.0  # of a machine that has much else to do
NAMESPACE, AUTHORITY, TOKEN = "keda", "keda-operator", "of-this-test-alone"
METRICS = "external.metrics.k8s.io"
CONTROLLERS = "namespace,serviceaccount,deployment,replicaset,horizontal-pod-autoscaler"


def what_lacks() -> str:
    """Why it can't be; empty when it can."""
    wanted = [*(PLACES.bin / it for it in ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")),
              *(BINARIES / it for it in PROGRAMS)]  # fmt: skip
    return "" if all(it.exists() for it in wanted) else "e2e/kubelab build and e2e/kubelab keda build were not run"


class ControlPlane:
    """directory: of its files and logs."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.kubeconfig = directory, directory / "kubeconfig"

    def kubectl(self, *argv: str, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            [PLACES.bin / "kubectl", f"--kubeconfig={self.kubeconfig}", *argv],
            input=stdin, text=True, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: Json) -> None:
        for one in objects:
            self.kubectl("apply", "-f", "-", stdin=json.dumps(one))

    def get(self, kind: str, name: str) -> Json:
        found: Json = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    @contextmanager
    def process(self, *words: str | Path, **settings: str) -> Iterator[None]:
        name = Path(words[0]).name
        with (self.directory / f"{name}.log").open("wb") as log:
            environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), **settings}
            started = subprocess.Popen(words, stdout=log, stderr=log, env=environment, cwd=self.directory)
            try:
                yield
            finally:
                started.terminate()
                started.wait(60)

    def wait(self, what: str, done: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        until_s = time.monotonic() + seconds
        while not done():
            logs = (f"{it.name}: {it.read_text()[-600:]}" for it in self.directory.glob("*.log"))
            assert time.monotonic() < until_s, f"{what}: not within {seconds:g} s; {'; '.join(logs)}"
            time.sleep(0.5)


@contextmanager
def control_plane_with_keda(directory: Path) -> Iterator[ControlPlane]:
    made, authority = ControlPlane(directory), Authority("control")
    etcd, peer, api, service, adapter, port = _free_ports(6)
    (directory / "ca.crt").write_bytes(authority.pem)
    for name, issued in (("api", authority.issue("localhost")), ("tls", authority.issue(AUTHORITY))):
        (directory / f"{name}.crt").write_bytes(issued.chain_pem)
        (directory / f"{name}.key").write_bytes(issued.key_pem)
    (directory / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    server = {"server": f"https://localhost:{api}", "certificate-authority": str(directory / "ca.crt")}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": server}], "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    made.kubeconfig.write_text(json.dumps(config))
    subprocess.run(["openssl", "genrsa", "-out", directory / "sa.key"], check=True, capture_output=True)
    at, peers = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
    settings = {"WATCH_NAMESPACE": "", "POD_NAMESPACE": NAMESPACE, "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE}
    with ExitStack() as stack:

        def start(*words: str | Path) -> None:
            stack.enter_context(made.process(*words, **settings))

        start(
            PLACES.bin / "etcd", "--data-dir=etcd", "--unsafe-no-fsync", "--log-level=error",
            f"--listen-client-urls={at}", f"--advertise-client-urls={at}", f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
        )  # fmt: skip
        start(
            PLACES.bin / "kube-apiserver", f"--etcd-servers={at}", "--bind-address=127.0.0.1", f"--secure-port={api}",
            "--tls-cert-file=api.crt", "--tls-private-key-file=api.key", "--token-auth-file=tokens.csv",
            "--cert-dir=made", "--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key",
            "--service-account-issuer=https://localhost", "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=RBAC",
        )  # fmt: skip
        made.wait("the API server is ready", lambda: "ok" in made.kubectl("get", "--raw", "/readyz", check=False))
        start(
            PLACES.bin / "kube-controller-manager", f"--kubeconfig={made.kubeconfig}", "--leader-elect=false",
            "--secure-port=0", "--service-account-private-key-file=sa.key",
            "--horizontal-pod-autoscaler-sync-period=5s",
            f"--controllers={','.join(f'{it}-controller' for it in CONTROLLERS.split(','))}",
        )  # fmt: skip
        made.kubectl("apply", "--server-side", "-f", str(definitions()))
        made.apply(*_objects(adapter))
        start(
            BINARIES / "operator", f"--cert-dir={directory}", "--metrics-bind-address=0",
            "--health-probe-bind-address=0", f"--metrics-service-bind-address=127.0.0.1:{service}",
        )  # fmt: skip
        start(
            BINARIES / "adapter", f"--secure-port={adapter}", f"--port={port}", f"--cert-dir={directory}",
            "--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key", "--authentication-skip-lookup=true",
            f"--metrics-service-address=127.0.0.1:{service}", f"--metrics-service-grpc-authority={AUTHORITY}",
            *(f"--{it}-kubeconfig={made.kubeconfig}" for it in ("authentication", "authorization", "lister")),
        )  # fmt: skip
        path = f"/apis/{METRICS}/v1beta1"
        made.wait("KEDA answers", lambda: "APIResourceList" in made.kubectl("get", "--raw", path, check=False))
        yield made


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(it.getsockname()[1]) for it in found]


def _objects(port: int) -> list[Json]:
    """The API server asks the adapter as nobody."""
    access, names = "rbac.authorization.k8s.io", {"name": "keda-metrics", "namespace": NAMESPACE}
    external = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    rules = [
        {"apiGroups": [METRICS], "resources": ["*"], "verbs": ["get", "list"]},
        {"nonResourceURLs": [f"/apis/{METRICS}", f"/apis/{METRICS}/*"], "verbs": ["get"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Service", "metadata": names, "spec": external},
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"v1beta1.{METRICS}"},
            "spec": {
                "group": METRICS, "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": True, "service": {**names, "port": port},
            },
        },
        {"apiVersion": f"{access}/v1", "kind": "ClusterRole", "metadata": {"name": "metrics"}, "rules": rules},
        {
            "apiVersion": f"{access}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "metrics"},
            "roleRef": {"apiGroup": access, "kind": "ClusterRole", "name": "metrics"},
            "subjects": [{"apiGroup": access, "kind": "User", "name": "system:anonymous"}],
        },
    ]  # fmt: skip
