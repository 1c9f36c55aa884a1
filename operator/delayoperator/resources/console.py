"""The console's objects: the Deployment of one pod, the Service by which browsers come, its certificate.

The pod has no token of Kubernetes, and none for the nodes: it shows both what its user has signed in with. It is one,
because who is signed in is kept in its memory alone; another pod in its place asks everybody to sign in again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delayoperator.resources import names, tls
from delayoperator.resources.pod import identity_and_place, pull_policy, restricted
from delayoperator.resources.view import ClusterView, ConsoleView, Json, TlsSettings

CONTAINER = "console"
PLACE = "/etc/delayconsole"
CERTIFICATE, OIDC, KUBERNETES = "certificate", "oidc", "kubernetes"  # volumes, and directories of PLACE
PORT, HTTPS = 7190, 443
OIDC_CA = "DELAYCONSOLE_OIDC_CA"
DEFAULT_RESOURCES: Mapping[str, Mapping[str, str]] = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    "limits": {"memory": "512Mi"},
}


@dataclass(frozen=True, slots=True)
class _Parts:
    view: ClusterView
    console: ConsoleView
    tls: TlsSettings


def console_objects(view: ClusterView) -> list[Json]:
    """In the order in which they are to be applied; none where there is no console, or nothing to secure it by."""
    if view.console is None or view.tls is None:
        return []
    parts = _Parts(view, view.console, view.tls)
    name = names.console(view.name)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(view, name),
        "automountServiceAccountToken": False,
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(view, name),
        "spec": {
            "type": "ClusterIP",
            "selector": names.console_selector(view.name),
            "ports": [{"name": "https", "port": HTTPS, "targetPort": "https", "protocol": "TCP"}],
        },
    }
    made = [account, *_certificate(parts), service]
    if view.network is not None:
        made.append(_network_policy(view))
    return [*made, _deployment(parts)]


def host_names(view: ClusterView, console: ConsoleView) -> tuple[str, ...]:
    """By which browsers may come: through the Service, an Ingress, or a port-forward."""
    service = f"{names.console(view.name)}.{view.namespace}"
    return tuple(dict.fromkeys((*console.hosts, f"{service}.svc", service, "localhost")))


def _metadata(view: ClusterView, name: str) -> Json:
    meta = names.metadata(view, name)
    return {**meta, "labels": {**meta["labels"], **names.console_selector(view.name)}}


def _certificate(parts: _Parts) -> list[Json]:
    if parts.console.certificate or not parts.tls.cert_manager:
        return []
    name = names.console_certificate(parts.view.name)
    return [tls.server_certificate(parts.view, parts.tls, name, host_names(parts.view, parts.console))]


def _network_policy(view: ClusterView) -> Json:
    """The kubelet's probes come from the pod's own machine, which Kubernetes always lets in."""
    peers = None if view.network is None else view.network.console
    port = {"port": PORT, "protocol": "TCP"}
    rule: list[Json] = [{"ports": [port]}] if peers is None else [{"from": [*peers], "ports": [port]}] if peers else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(view, names.console(view.name)),
        "spec": {
            "podSelector": {"matchLabels": names.console_selector(view.name)},
            "policyTypes": ["Ingress"],
            "ingress": rule,
        },
    }


def _deployment(parts: _Parts) -> Json:
    view = parts.view
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(view, names.console(view.name)),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": names.console_selector(view.name)},
            "template": {
                "metadata": {"labels": {**names.labels(view.name), **names.console_selector(view.name)}},
                "spec": {
                    "serviceAccountName": names.console(view.name),
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "containers": [_container(parts)],
                    "volumes": _volumes(parts),
                    **identity_and_place(view),
                },
            },
        },
    }


def _container(parts: _Parts) -> Json:
    view, console = parts.view, parts.console
    resources = DEFAULT_RESOURCES if console.resources is None else console.resources
    oidc = console.oidc
    return {
        "name": CONTAINER,
        "image": console.image,
        **pull_policy(view.pod),
        "command": ["delayconsole"],
        "args": _args(parts),
        "env": [] if oidc is None or not oidc.ca else [{"name": OIDC_CA, "value": oidc.ca}],
        "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {
            kind: {name: str(amount) for name, amount in amounts.items()} for kind, amounts in resources.items()
        },
        # 15 minutes: it listens once it has a certificate, for which it waits 10 itself.
        "startupProbe": {**_get("/healthz"), "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 450},
        "readinessProbe": {**_get("/healthz"), "periodSeconds": 5, "timeoutSeconds": 3},
        "livenessProbe": {**_get("/healthz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": CERTIFICATE, "mountPath": f"{PLACE}/{CERTIFICATE}", "readOnly": True},
            {"name": KUBERNETES, "mountPath": f"{PLACE}/{KUBERNETES}", "readOnly": True},
            {"name": tls.SERVER, "mountPath": f"{tls.MOUNTS}/{tls.SERVER}", "readOnly": True},
            *([{"name": OIDC, "mountPath": f"{PLACE}/{OIDC}", "readOnly": True}] if oidc and oidc.secret else []),
        ],
        "securityContext": restricted(),
    }


def _args(parts: _Parts) -> list[str]:
    view, console = parts.view, parts.console
    server = tls.server_names(view)[0]
    oidc: list[str] = []
    if console.oidc is not None:
        oidc = [
            f"--oidc-issuer={console.oidc.issuer}",
            f"--oidc-client-id={console.oidc.client_id}",
            *(f"--oidc-scope={scope}" for scope in console.oidc.scopes),
            *([f"--oidc-client-secret={PLACE}/{OIDC}/{console.oidc.secret[1]}"] if console.oidc.secret else []),
        ]
    return [
        f"--cluster={view.namespace}/{view.name}",
        f"--listen=[::]:{PORT}",
        f"--certificates={PLACE}/{CERTIFICATE}",
        *(f"--host={host}" for host in host_names(view, console)),
        f"--endpoint={server}:{names.TOKENS_PORT}",
        f"--ca={tls.MOUNTS}/{tls.SERVER}/ca.crt",
        f"--server-name={server}",
        f"--kubernetes-ca={PLACE}/{KUBERNETES}/ca.crt",
        *oidc,
        *(["--allow-changes"] if console.allow_changes else []),
    ]


def _volumes(parts: _Parts) -> list[Json]:
    """Optional: a pod whose Secret is not there yet starts, and serves once it is there."""
    console = parts.console
    certificate = console.certificate or names.console_certificate(parts.view.name)
    keys = [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]
    secret = None if console.oidc is None else console.oidc.secret
    return [
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": CERTIFICATE, "secret": {"secretName": certificate, "optional": True, "items": keys}},
        {"name": KUBERNETES, "configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        *tls.ca_volumes(parts.view),
        *(
            [{"name": OIDC, "secret": {"secretName": secret[0], "optional": True,
                                       "items": [{"key": secret[1], "path": secret[1]}]}}]
            if secret else []
        ),
    ]  # fmt: skip


def _get(path: str) -> Json:
    return {"httpGet": {"path": path, "port": "https", "scheme": "HTTPS"}}
