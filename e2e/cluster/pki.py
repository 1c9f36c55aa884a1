"""Certificates and kubeconfigs, made anew for each cluster."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.settings import CONTROL_PLANE_IP, PLACES, SERVICE_IP
from e2e.cluster.shell import Word, sh

CONTEXT = "kubelab"
API_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


def authority() -> None:
    pki = PLACES.pki
    pki.mkdir(parents=True, exist_ok=True)
    if not (pki / "ca.crt").exists():
        files = ("-keyout", pki / "ca.key", "-out", pki / "ca.crt")
        _openssl("req", "-x509", *_NEW_KEY, *files, "-subj", "/CN=kubelab-ca", "-days", "3650")
        _openssl("genrsa", "-out", pki / "sa.key", "2048")
    names = [f"DNS:{name}" for name in (*API_NAMES, "localhost")]
    names += [f"IP:{address}" for address in ("127.0.0.1", SERVICE_IP, CONTROL_PLANE_IP)]
    certificate("apiserver", "/CN=kube-apiserver", ",".join(names))
    certificate("admin", "/O=system:masters/CN=admin")
    certificate("kube-proxy", "/CN=system:kube-proxy")
    for name in ("admin", "kube-proxy"):
        kubeconfig(name)


_NEW_KEY = ("-newkey", "rsa:2048", "-nodes")


def _openssl(*argv: Word) -> None:
    sh("openssl", *argv, quiet=True)


def certificate(name: str, subject: str, alternative: str = "") -> None:
    """NAME.key and NAME.crt, unless they are there. alternative: `DNS:...,IP:...`."""
    pki = PLACES.pki
    if (pki / f"{name}.crt").exists():
        return
    request, extensions = pki / f"{name}.csr", pki / f"{name}.ext"
    _openssl("req", *_NEW_KEY, "-keyout", pki / f"{name}.key", "-out", request, "-subj", subject)
    lines = ["extendedKeyUsage=serverAuth,clientAuth"] + [f"subjectAltName={alternative}"] * bool(alternative)
    extensions.write_text("\n".join(lines) + "\n")
    by = ("-CA", pki / "ca.crt", "-CAkey", pki / "ca.key", "-CAcreateserial")
    _openssl("x509", "-req", "-in", request, *by, "-days", "3650", "-extfile", extensions, "-out", pki / f"{name}.crt")


def kubeconfig(name: str) -> Path:
    pki = PLACES.pki
    path = pki / f"{name}.kubeconfig"
    server = {"server": f"https://{CONTROL_PLANE_IP}:6443", "certificate-authority": str(pki / "ca.crt")}
    user = {"client-certificate": str(pki / f"{name}.crt"), "client-key": str(pki / f"{name}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [{"name": "kubelab", "cluster": server}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "kubelab", "user": name}}],
    }
    path.write_text(json.dumps(config, indent=1))
    return path
