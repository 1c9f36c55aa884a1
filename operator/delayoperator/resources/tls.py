"""TLS of the nodes: their arguments, the Secrets that they mount, and what cert-manager is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from delayregistry.security import account_audience

from delayoperator.resources import names
from delayoperator.resources.view import CertificateIssuer, ClusterView, Json, SecurityMode, TlsSettings

MOUNTS = "/etc/delaycluster"
SERVER, PEERS, CLIENT_CA = "certificates", "peer-certificates", "client-ca"  # volumes, and directories of MOUNTS
TOKEN, TOKEN_MOUNT = "delaycluster-token", "/var/run/secrets/delaycluster"
CERT_MANAGER = "cert-manager.io/v1"
CA_DURATION = "87600h"  # ten years; its key stays, so that what it issued before stays good


def args(tls: TlsSettings | None) -> list[str]:
    if tls is None:
        return []
    plain = [f"--listener=plain={names.GRPC_PORT},plain,none"] if tls.mode is SecurityMode.PERMISSIVE else []
    mtls = [
        f"--listener=mtls={names.MTLS_PORT},tls,mtls",
        f"--http-listener=mtls={names.HTTP_MTLS_PORT},tls,mtls",
        f"--client-ca={MOUNTS}/{CLIENT_CA}",
    ]
    return [
        *plain,
        f"--listener=tokens={names.TOKENS_PORT},tls,token",
        f"--http-listener=tokens={names.HTTP_TOKENS_PORT},tls,token",
        *(mtls if tls.client_ca else []),
        f"--certificates={MOUNTS}/{SERVER}",
        f"--peer-certificates={MOUNTS}/{PEERS}",
        f"--peers={'required' if tls.mode is SecurityMode.REQUIRED else 'preferred'}",
    ]


def client_ports(tls: TlsSettings | None) -> list[tuple[str, int]]:
    """Names and numbers of the ports for clients."""
    everybody = tls is None or tls.mode is not SecurityMode.REQUIRED
    plain = [("grpc", names.GRPC_PORT), ("http", names.HTTP_PORT)] if everybody else []
    if tls is None:
        return plain
    mtls = [("mtls", names.MTLS_PORT), ("http-mtls", names.HTTP_MTLS_PORT)] if tls.client_ca else []
    return [*plain, ("tokens", names.TOKENS_PORT), ("http-tokens", names.HTTP_TOKENS_PORT), *mtls]


def all_client_ports(tls: TlsSettings | None) -> list[tuple[str, int]]:
    """The same, and that of health, which may be for no client."""
    return [*{**dict(client_ports(tls)), "http": names.HTTP_PORT}.items()]


def volumes(tls: TlsSettings | None) -> list[Json]:
    """Optional: a pod whose Secret is not there yet starts, and says so; it uses the Secret once it is there."""
    return [
        {"name": volume, "secret": {"secretName": secret, "optional": True, **_only_ca(volume)}}
        for volume, secret in _secrets(tls)
    ]


def mounts(tls: TlsSettings | None) -> list[Json]:
    return [{"name": volume, "mountPath": f"{MOUNTS}/{volume}", "readOnly": True} for volume, _ in _secrets(tls)]


def _secrets(tls: TlsSettings | None) -> list[tuple[str, str]]:
    if tls is None:
        return []
    return [(SERVER, tls.server), (PEERS, tls.peers), *([(CLIENT_CA, tls.client_ca)] if tls.client_ca else [])]


def _only_ca(volume: str) -> Json:
    """The key of clients' CA, where it lies beside it, is none of the nodes' business."""
    return {"items": [{"key": "ca.crt", "path": "ca.crt"}]} if volume == CLIENT_CA else {}


def token_volumes(view: ClusterView) -> list[Json]:
    """The rebalance job's token for the nodes; a cluster without TLS takes none."""
    if view.tls is None:
        return []
    source = {"audience": account_audience(view.namespace, view.name), "expirationSeconds": 3_600, "path": "token"}
    return [{"name": TOKEN, "projected": {"sources": [{"serviceAccountToken": source}]}}]


def token_mounts(tls: TlsSettings | None) -> list[Json]:
    return [] if tls is None else [{"name": TOKEN, "mountPath": TOKEN_MOUNT, "readOnly": True}]


def token_args(tls: TlsSettings | None) -> list[str]:
    return [] if tls is None else [f"--token-file={TOKEN_MOUNT}/token"]


def server_names(view: ClusterView) -> tuple[str, ...]:
    """What the listeners' certificate is for; first the name that clients and the operator ask for. No address: nodes
    are dialled by many."""
    service = f"{names.client_service(view.name)}.{view.namespace}"
    return f"{service}.svc", service, names.client_service(view.name)


def peer_names(view: ClusterView) -> tuple[str, ...]:
    return (f"{names.headless_service(view.name)}.{view.namespace}.svc",)


def node_uri(view: ClusterView) -> str:
    return f"spiffe://delaycluster/ns/{view.namespace}/cluster/{view.name}/role/node"


def ca_volumes(view: ClusterView) -> list[Json]:
    """For the nodes' clients: whom to trust with their certificates. Of their Secret ca.crt alone, never the key."""
    if view.tls is None:
        return []
    source = {"secretName": view.tls.server, "optional": True, "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    return [{"name": SERVER, "secret": source}]


def server_certificate(view: ClusterView, settings: TlsSettings, name: str, hosts: Sequence[str]) -> Json:
    """What cert-manager is asked for, of the issuer whom clients are to trust."""
    issuer = settings.issuer or CertificateIssuer(names.own_ca(view.name))
    ref = {"name": issuer.name, "kind": issuer.kind, "group": issuer.group}
    return _certificate(view, name, {"dnsNames": list(hosts), "usages": ["server auth"], "issuerRef": ref}, "Always")


def certificates(view: ClusterView) -> list[Json]:
    """The cluster's own CA, and what it issues. Nothing, where the Secrets are people's."""
    tls = view.tls
    if tls is None or not tls.cert_manager:
        return []
    own: Json = {"name": names.own_ca(view.name), "kind": "Issuer", "group": "cert-manager.io"}
    ca = {
        "isCA": True,
        "commonName": f"delaycluster {view.namespace}/{view.name}"[:64],
        "duration": CA_DURATION,
        "issuerRef": {"name": names.self_signed(view.name), "kind": "Issuer", "group": "cert-manager.io"},
    }
    peers = {
        "dnsNames": list(peer_names(view)),
        "uris": [node_uri(view)],
        "usages": ["server auth", "client auth"],
        "issuerRef": own,
    }
    return [
        _object(view, "Issuer", names.self_signed(view.name), {"selfSigned": {}}),
        _certificate(view, names.own_ca(view.name), ca, "Never"),
        _object(view, "Issuer", names.own_ca(view.name), {"ca": {"secretName": names.own_ca(view.name)}}),
        server_certificate(view, tls, tls.server, server_names(view)),
        _certificate(view, tls.peers, peers, "Always"),
    ]


def _certificate(view: ClusterView, name: str, spec: Json, rotation: str) -> Json:
    key = {"algorithm": "ECDSA", "size": 256, "rotationPolicy": rotation}
    return _object(view, "Certificate", name, {"secretName": name, "privateKey": key, **spec})


def _object(view: ClusterView, kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": CERT_MANAGER, "kind": kind, "metadata": names.metadata(view, name), "spec": spec}
