"""`--kube`: which cluster in Kubernetes is meant, with whose credentials, and which pods are its nodes."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

GROUP: Final = "delaycluster.io"
VERSION: Final = "v1alpha1"
CLUSTERS: Final = "delayclusters"
REBALANCES: Final = "delayrebalances"
GRPC_PORT: Final = 7070
_TIMEOUT_S: Final = (5, 10)
"""To connect to the API server, and for its answer."""


class KubeError(Exception):
    """The cluster cannot be reached this way; says why."""


class BadTarget(KubeError):
    """What was given with --kube cannot be meant."""


class KubeInvalid(KubeError):
    """A change that a rule of the object's schema forbids."""


@dataclass(frozen=True, slots=True)
class KubeTarget:
    """context, namespace: None for what the kubeconfig says."""

    cluster: str
    namespace: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One node's pod. address: its IP; empty before it has one."""

    name: str
    address: str


def parse_target(text: str) -> KubeTarget:
    """CLUSTER, NAMESPACE/CLUSTER or CONTEXT/NAMESPACE/CLUSTER; a context may have slashes in it. Raises ValueError."""
    context, _, rest = text.rpartition("/")
    context, _, namespace = context.rpartition("/")
    if not rest or (text.count("/") and not namespace) or (text.count("/") > 1 and not context):
        raise ValueError(f"{text!r}: expected CLUSTER, NAMESPACE/CLUSTER or CONTEXT/NAMESPACE/CLUSTER")
    return KubeTarget(rest, namespace or None, context or None)


class KubeAccess:
    """One DelayCluster, through the API server. Every call blocks for seconds at most, and may come from any thread."""

    def __init__(self, target: KubeTarget) -> None:
        """Reads the kubeconfig. Raises BadTarget."""
        try:
            from kubernetes import client
            from kubernetes import config as loaded
        except ImportError:
            raise BadTarget("--kube needs the package kubernetes: pip install 'delaycluster[kubernetes]'") from None
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
        self.api: Any = client.ApiClient(self.configuration)

    def __str__(self) -> str:
        return f"DelayCluster {self.cluster!r} in namespace {self.namespace!r} (context {self.context!r})"

    def close(self) -> None:
        self.api.close()

    def pods(self) -> list[Pod]:
        """The cluster's node pods, by name; none when there are none. Raises KubeError."""
        from kubernetes.client import CoreV1Api

        wanted = f"{GROUP}/cluster={self.cluster},app.kubernetes.io/component=node"
        with _translated("list pods", self):
            found: Any = CoreV1Api(self.api).list_namespaced_pod(
                self.namespace, label_selector=wanted, _request_timeout=_TIMEOUT_S
            )
        pods = [Pod(it.metadata.name, (it.status and it.status.pod_ip) or "") for it in found.items]
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
            found: dict[str, Any] = self._objects().get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, CLUSTERS, self.cluster, _request_timeout=_TIMEOUT_S
            )
        return found

    def patch_delaycluster(self, patch: dict[str, Any]) -> bool:
        """A JSON merge patch; False when it named a metadata.resourceVersion that is not the object's any more.

        Raises KubeError, and KubeInvalid with the rule that forbids it.
        """
        with _translated("patch delayclusters", self):
            return _unless_refused(
                lambda: self._objects().patch_namespaced_custom_object(
                    GROUP,
                    VERSION,
                    self.namespace,
                    CLUSTERS,
                    self.cluster,
                    patch,
                    _request_timeout=_TIMEOUT_S,
                    _content_type="application/merge-patch+json",
                )
            )

    def delayrebalance(self, name: str) -> dict[str, Any] | None:
        """The DelayRebalance object; None when there is none. Raises KubeError."""
        from kubernetes.client.exceptions import ApiException

        with _translated("get delayrebalances", self):
            try:
                found: dict[str, Any] = self._objects().get_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, REBALANCES, name, _request_timeout=_TIMEOUT_S
                )
            except ApiException as error:
                if error.status == 404 and said(error):  # without words it is the kind that is not known
                    return None
                raise
        return found

    def create_delayrebalance(self, name: str, spec: dict[str, Any]) -> bool:
        """False when there is one already. Raises KubeError, and KubeInvalid with the rule that forbids it."""
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "DelayRebalance", "metadata": {"name": name}, "spec": spec}
        with _translated("create delayrebalances", self):
            return _unless_refused(
                lambda: self._objects().create_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, REBALANCES, body, _request_timeout=_TIMEOUT_S
                )
            )

    def patch_delayrebalance(self, name: str, patch: dict[str, Any]) -> bool:
        """A JSON merge patch; False, KubeInvalid and KubeError as with patch_delaycluster()."""
        with _translated("patch delayrebalances", self):
            return _unless_refused(
                lambda: self._objects().patch_namespaced_custom_object(
                    GROUP,
                    VERSION,
                    self.namespace,
                    REBALANCES,
                    name,
                    patch,
                    _request_timeout=_TIMEOUT_S,
                    _content_type="application/merge-patch+json",
                )
            )

    def _objects(self) -> Any:
        from kubernetes.client import CustomObjectsApi

        return CustomObjectsApi(self.api)

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
    from kubernetes.client.exceptions import ApiException

    try:
        write()
    except ApiException as error:
        if error.status == 409:
            return False
        if error.status in (400, 422):
            raise KubeInvalid(said(error)) from None
        raise
    return True


@contextmanager
def _translated(what: str, access: KubeAccess) -> Iterator[None]:
    """Turns what the kubernetes package raises into KubeError."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        if error.status in (401, 403):
            text = f"context {access.context!r} may not {what}: {said(error)}"
        elif error.status == 404 and not said(error):
            text = f"the cluster of context {access.context!r} knows no DelayClusters: is the operator installed?"
        elif error.status == 404:
            text = (
                f"there is no {access}; `kubectl --context {access.context} get delayclusters -A` lists those there are"
            )
        else:
            text = f"{what}: the API server says {said(error) or f'{error.status} {error.reason}'}"
        raise KubeError(text) from None
    except (HTTPError, OSError) as error:
        host = access.configuration.host
        raise KubeError(f"the API server of context {access.context!r}, {host}, gives no answer: {error}") from None


def said(error: Any) -> str:
    """The message of the Status that an API error has as its body; empty when it has none."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return ""
