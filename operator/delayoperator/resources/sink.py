"""The objects of a DelaySink: what its pods read, whom they are, and the Deployment that runs them.

The pods have no token of Kubernetes: what sends requests to addresses that people choose has nothing to show there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from delayoperator.resources import names, tls
from delayoperator.resources.build import STAMP
from delayoperator.resources.normal import normal
from delayoperator.resources.pod import identity_and_place, pull_policy, restricted
from delayoperator.resources.view import ClusterView, Json

CONTAINER = "sink"
CONFIG, SECRETS, FILE = "/etc/delaysink/sink", "/etc/delaysink/secrets", "sink.json"
SINK_LABEL = names.PREFIX + "sink"
DOCUMENT = names.PREFIX + "sink-document"
"""Annotation of the pods: a digest of what they read at their start."""

DEPLOYMENTS = frozenset({"replicas", "resources", "paused"})
"""Of the spec: the Deployment has them, and their change is none of the document's."""

DEFAULT_RESOURCES = {"requests": {"cpu": "50m", "memory": "96Mi"}}
HEALTHZ = {"httpGet": {"path": "/healthz", "port": "status"}}
GRACE_SECONDS = 30  # beyond the time-out of a delivery


@dataclass(frozen=True, slots=True)
class SinkView:
    """A DelaySink whose spec was found good. secrets: the keys that it needs of each Secret. stopped: it runs no
    pods."""

    name: str
    uid: str
    spec: Mapping[str, object]
    secrets: Sequence[tuple[str, str]]
    timeout_s: int
    replicas: int
    stopped: bool = False


def object_name(sink: str) -> str:
    """Of its Deployment, ConfigMap and ServiceAccount."""
    return f"{sink}-sink"


def selector(cluster: str, sink: str) -> dict[str, str]:
    """Fixed for ever: a Deployment's selector can't change."""
    return {**names.sink_selector(cluster), SINK_LABEL: sink}


def sink_objects(view: ClusterView, sink: SinkView) -> tuple[Json, ...]:
    """In the order in which they are to be applied, in normal form."""
    spec = {name: value for name, value in sink.spec.items() if name not in DEPLOYMENTS}
    document = json.dumps({"kind": "DelaySink", "metadata": {"name": sink.name}, "spec": spec}, sort_keys=True)
    found = (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(view, sink),
            "data": {FILE: document},
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _metadata(view, sink),
            "automountServiceAccountToken": False,
        },
        _deployment(view, sink, document),
    )
    return tuple(_stamped(normal(one)) for one in found)


def _stamped(body: Json) -> Json:
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    body["metadata"]["annotations"] = {**body["metadata"].get("annotations", {}), STAMP: digest}
    return body


def _metadata(view: ClusterView, sink: SinkView) -> Json:
    return {
        "name": object_name(sink.name),
        "namespace": view.namespace,
        "labels": {**names.labels(view.name), **selector(view.name, sink.name)},
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": "DelaySink",
                "name": sink.name,
                "uid": sink.uid,
                "controller": True,
            }
        ],
    }


def _deployment(view: ClusterView, sink: SinkView, document: str) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(view, sink),
        "spec": {
            "replicas": 0 if sink.stopped else sink.replicas,
            "selector": {"matchLabels": selector(view.name, sink.name)},
            "template": {
                "metadata": {
                    "labels": {**names.labels(view.name), **selector(view.name, sink.name)},
                    "annotations": {DOCUMENT: hashlib.sha256(document.encode()).hexdigest()[:16]},
                },
                "spec": {
                    "serviceAccountName": object_name(sink.name),
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": sink.timeout_s + GRACE_SECONDS,
                    "containers": [_container(view, sink)],
                    "volumes": [
                        {"name": "sink", "configMap": {"name": object_name(sink.name)}},
                        {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
                        *_secret_volumes(sink),
                        *tls.ca_volumes(view),
                        *tls.token_volumes(view),
                    ],
                    **identity_and_place(view),
                },
            },
        },
    }


def _container(view: ClusterView, sink: SinkView) -> Json:
    resources = sink.spec.get("resources") or DEFAULT_RESOURCES
    assert isinstance(resources, Mapping)
    port = names.GRPC_PORT if view.tls is None else names.TOKENS_PORT
    host = tls.server_names(view)[0]
    secured = [] if view.tls is None else [f"--ca={tls.MOUNTS}/{tls.SERVER}/ca.crt", f"--server-name={host}"]
    ca = [] if view.tls is None else [
        {"name": tls.SERVER, "mountPath": f"{tls.MOUNTS}/{tls.SERVER}", "readOnly": True}
    ]  # fmt: skip
    return {
        "name": CONTAINER,
        "image": view.image,
        **pull_policy(view.pod),
        "command": ["delaysink"],
        "args": [
            f"--sink={CONFIG}/{FILE}",
            f"--secrets={SECRETS}",
            f"--endpoint={host}:{port}",
            f"--listen=[::]:{names.SINK_PORT}",
            *secured,
            *tls.token_args(view.tls),
        ],
        "ports": [{"name": "status", "containerPort": names.SINK_PORT, "protocol": "TCP"}],
        "resources": {
            kind: {name: str(amount) for name, amount in amounts.items()} for kind, amounts in resources.items()
        },
        # 10 minutes to start, as a node has: a minute is too short where many pods start at once on a busy machine, and
        # a sink that is killed as it starts never does.
        "startupProbe": {**HEALTHZ, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 300},
        "livenessProbe": {**HEALTHZ, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "sink", "mountPath": CONFIG, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *({"name": f"secret-{at}", "mountPath": f"{SECRETS}/{name}", "readOnly": True}
              for at, name in enumerate(_by_name(sink))),
            *ca,
            *tls.token_mounts(view.tls),
        ],
        "securityContext": restricted(),
    }  # fmt: skip


def _by_name(sink: SinkView) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, key in sorted(set(sink.secrets)):
        found.setdefault(name, []).append(key)
    return found


def _secret_volumes(sink: SinkView) -> list[Json]:
    """Only the keys that are named. Optional: a pod whose Secret is missing starts, and says so."""
    return [
        {
            "name": f"secret-{at}",
            "secret": {
                "secretName": name,
                "optional": True,
                "items": [{"key": key, "path": key} for key in keys],
            },
        }
        for at, (name, keys) in enumerate(_by_name(sink).items())
    ]
