"""`--kube`: which cluster in Kubernetes is meant, with whose credentials, and which pods are its nodes."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from delayregistry.kube.client import ApiRejected, Credentials, KubeClient, RequestUnanswered
from delayregistry.kube.names import CLUSTER_LABEL, GROUP_VERSION, Names
from delayregistry.kube.objects import read_lease
from delayregistry.model import NodeLease
from delayregistry.security import account_audience

from delayctl.targets.kube_target import KubeTarget
from delayctl.targets.pod_logs import newest_log

CLUSTERS: Final = "delayclusters"
REBALANCES: Final = "delayrebalances"
GRPC_PORT: Final = 7070
TOKEN_S: Final = 3_600
CONNECT_S: Final = 5.0
READ_S: Final = 10.0
"""So long the API server may take for an answer."""


class KubeError(Exception):
    """The cluster cannot be reached this way; says why."""


class BadTarget(KubeError):
    """What was given with --kube cannot be meant."""


class KubeInvalid(KubeError):
    """A change that a rule of the object's schema forbids."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One node's pod. address: its IP; empty before it has one."""

    name: str
    address: str


class KubeAccess:
    """One DelayCluster, through the API server. Every call blocks for seconds at most, and may come from any thread."""

    def __init__(self, target: KubeTarget) -> None:
        """Reads the kubeconfig. Raises BadTarget."""
        from kubernetes import client
        from kubernetes import config as loaded

        config: Any = loaded  # it has no types
        self.configuration: Any = client.Configuration()
        try:
            contexts, current = config.list_kube_config_contexts()
            names = [it["name"] for it in contexts]
            self.context: str = target.context or current["name"]
            if self.context not in names:
                raise BadTarget(f"--kube: the kubeconfig has no context {self.context!r}; it has {', '.join(names)}")
            config.load_kube_config(context=self.context, client_configuration=self.configuration, persist_config=False)
        except config.ConfigException as error:
            raise BadTarget(f"--kube: {error}") from None
        chosen = next(it for it in contexts if it["name"] == self.context)
        self.namespace: str = target.namespace or chosen["context"].get("namespace") or "default"
        self.cluster = target.cluster
        self.client = self._new_client()

    @classmethod
    def with_token(cls, server: str, ca: str, token: str, namespace: str, cluster: str) -> Self:
        """As whoever has that token for the API server. ca: a file."""
        from kubernetes import client

        access = cls.__new__(cls)
        access.configuration = client.Configuration()
        access.configuration.host, access.configuration.ssl_ca_cert = server, ca or None
        access.configuration.api_key = {"authorization": f"Bearer {token}"}
        access.context, access.namespace, access.cluster = server, namespace, cluster
        access.client = access._new_client()
        return access

    def _new_client(self) -> KubeClient:
        return KubeClient(Credentials(self.configuration), "delayctl", connections=4, connect_s=CONNECT_S)

    def __str__(self) -> str:
        return f"DelayCluster {self.cluster!r} in namespace {self.namespace!r} (context {self.context!r})"

    def close(self) -> None:
        self.client.close()

    def secrets(self) -> list[str]:
        """What the API server is shown: a token, a key."""
        shown = []
        for one in self.configuration.api_key.values():
            shown += [one, one.rpartition(" ")[2]]
        with suppress(OSError, TypeError):  # TypeError: there is none
            shown.append(Path(self.configuration.key_file).read_text().strip())
        return shown

    def pods(self, component: str = "node") -> list[Pod]:
        """The cluster's pods of a kind, by name; none when there are none. Raises KubeError."""
        wanted = f"{CLUSTER_LABEL}={self.cluster},app.kubernetes.io/component={component}"
        with _translated("list pods", self):
            path = f"/api/v1/namespaces/{self.namespace}/pods"
            found = self.client.get(path, {"labelSelector": wanted}, READ_S)["items"]
        pods = [Pod(it["metadata"]["name"], it.get("status", {}).get("podIP") or "") for it in found]
        return sorted(pods, key=lambda pod: pod.name)

    def first_pods(self) -> list[Pod]:
        """The pods that have an address. Raises KubeError, with the reason why there are none."""
        pods = [pod for pod in self.pods() if pod.address]
        if pods:
            return pods
        self.delaycluster()
        raise KubeError(
            f"{self} has no node pods yet: `kubectl --context {self.context} -n {self.namespace} describe "
            f"delaycluster {self.cluster}` says why"
        )

    def delaycluster(self) -> dict[str, Any]:
        """The DelayCluster object. Raises KubeError."""
        with _translated("get delayclusters", self):
            return self.client.get(self._path(CLUSTERS, self.cluster), read_s=READ_S)

    def delayclusters(self) -> list[str]:
        """The names of the namespace's DelayClusters. Raises KubeError."""
        with _translated("list delayclusters", self):
            found = self.client.get(self._path(CLUSTERS), {}, READ_S)["items"]
        return sorted(it["metadata"]["name"] for it in found)

    def leases(self) -> list[NodeLease]:
        """Of the nodes that have registered. Raises KubeError."""
        names = Names(self.namespace, self.cluster)
        with _translated("list leases", self):
            path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
            found = self.client.get(path, {"labelSelector": f"{CLUSTER_LABEL}={self.cluster}"}, READ_S)["items"]
        return [lease for it in found if (lease := read_lease(names, it)) is not None]

    def who_am_i(self) -> str:
        """As the API server knows whoever asks. Raises KubeError."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        with _translated("ask who it is", self):
            answer = self.client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", body, {}, READ_S)
        return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")

    def listed(self, plural: str) -> list[dict[str, Any]]:
        """Objects of ours in the cluster's namespace. Raises KubeError."""
        with _translated(f"list {plural}", self):
            return list(self.client.get(self._path(plural), {}, READ_S)["items"])

    def log_lines(self, pod: str, lines: int, container: str = "node") -> list[str]:
        """The last of what a container has written. Raises KubeError."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"

        def ask(options: Mapping[str, str]) -> bytes:
            return self.client.text(path, {"container": container, **options}, READ_S).encode()

        with _translated("get pods/log", self):
            return newest_log(ask, lines, lines * 1_000).decode().splitlines()

    def account_token(self, account: str, seconds: int = TOKEN_S) -> str:
        """A token of a ServiceAccount, [NAMESPACE/]NAME, for this cluster alone. Raises KubeError."""
        namespace, _, name = account.rpartition("/")
        audience = account_audience(self.namespace, self.cluster)
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": seconds},
        }
        with _translated(f"create a token of ServiceAccount {account}", self):
            path = f"/api/v1/namespaces/{namespace or self.namespace}/serviceaccounts/{name}/token"
            return str(self.client.post(path, body, {}, READ_S)["status"]["token"])

    def patch(self, plural: str, name: str, patch: dict[str, Any]) -> bool:
        """A JSON merge patch of a DelayCluster (CLUSTERS) or DelayRebalance (REBALANCES); False when it named a
        metadata.resourceVersion that is not the object's any more.

        Raises KubeError, and KubeInvalid with the rule that forbids it.
        """
        with _translated(f"patch {plural}", self):
            return _unless_refused(lambda: self.client.merge(self._path(plural, name), patch, {}, READ_S))

    def delayrebalance(self, name: str) -> dict[str, Any] | None:
        """The DelayRebalance object; None when there is none. Raises KubeError."""
        with _translated("get delayrebalances", self):
            try:
                return self.client.get(self._path(REBALANCES, name), read_s=READ_S)
            except ApiRejected as error:
                if error.missing:  # any other 404: the kind itself is not known
                    return None
                raise

    def create_delayrebalance(self, name: str, spec: dict[str, Any]) -> bool:
        """False when there is one already. Raises KubeError, and KubeInvalid with the rule that forbids it."""
        body = {"apiVersion": GROUP_VERSION, "kind": "DelayRebalance", "metadata": {"name": name}, "spec": spec}
        with _translated("create delayrebalances", self):
            return _unless_refused(lambda: self.client.post(self._path(REBALANCES), body, {}, READ_S))

    def _path(self, plural: str, name: str = "") -> str:
        path = f"/apis/{GROUP_VERSION}/namespaces/{self.namespace}/{plural}"
        return f"{path}/{name}" if name else path

    # What a connection of one's own to the API server needs.

    def url(self, path: str) -> str:
        host: str = self.configuration.host
        return host.rstrip("/") + path

    def headers(self) -> dict[str, str]:
        """With fresh credentials; a plugin that gets them may take seconds."""
        token = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"authorization": token} if token else {}

    def tls(self) -> ssl.SSLContext | bool:
        """What aiohttp is to check the server's certificate with."""
        configuration = self.configuration
        if not str(configuration.host).startswith("https"):
            return True
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        return context

    def proxy(self) -> str | None:
        from kubernetes.client.rest import should_bypass_proxies

        configuration = self.configuration
        if configuration.proxy and not should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
            return str(configuration.proxy)
        return None


def _unless_refused(write: Callable[[], object]) -> bool:
    """Whether it was written; False where somebody was faster. Raises KubeInvalid where a rule forbids it."""
    try:
        write()
    except ApiRejected as error:
        if error.code == 409:
            return False
        if error.code in (400, 422):
            raise KubeInvalid(error.message) from None
        raise
    return True


@contextmanager
def _translated(what: str, access: KubeAccess) -> Iterator[None]:
    """Turns what the client raises into KubeError."""
    try:
        yield
    except ApiRejected as error:
        if error.code in (401, 403):
            text = f"context {access.context!r} may not {what}: {error.message}"
        elif error.code == 404 and not error.missing:
            text = f"the cluster of context {access.context!r} knows no DelayClusters: is the operator installed?"
        elif error.code == 404:
            text = (
                f"there is no {access}; `kubectl --context {access.context} get delayclusters -A` lists those there are"
            )
        else:
            text = f"{what}: the API server says {error.message or f'{error.code} {error.reason}'}"
        raise KubeError(text) from None
    except RequestUnanswered as error:
        host = access.configuration.host
        raise KubeError(f"the API server of context {access.context!r}, {host}, gives no answer: {error}") from None
