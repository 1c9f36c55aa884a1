"""cert-manager, its own chart and what its programs run, for the scenario that asks it for certificates.

Its images can't be pulled, and its programs' main packages are in no module that the proxy has. certmanager/main.go
runs what they run, from cert-manager's module, which has the chart as well.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster.build import alone, build_program, module_directory, timed
from e2e.cluster.hosts import control_plane_host
from e2e.cluster.images import load
from e2e.cluster.settings import PLACES
from e2e.cluster.shell import Word, fail, sh, wait_for

VERSION = "1.21.2"
MODULE = "github.com/cert-manager/cert-manager"
SOURCE = Path(__file__).parent / "certmanager" / "main.go"
GO_MOD = f"module {MODULE}/kubelab\n\ngo 1.26\n\nrequire {MODULE} v{VERSION}\n"
PROGRAMS = ("controller", "webhook", "cainjector")
TARGET = 'FROM scratch AS {name}\nCOPY certmanager /\nUSER 65532\nENTRYPOINT ["/certmanager", "{name}"]\n'
DOCKERFILE = "".join(TARGET.format(name=name) for name in PROGRAMS)
BINARY = PLACES.bin / f"certmanager-{VERSION}"
NAMESPACE = RELEASE = "cert-manager"
ISSUER = """
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: tried, namespace: default}
spec: {selfSigned: {}}
"""
SETTINGS = {
    "crds.enabled": "true",
    "image.tag": f"v{VERSION}",
    "webhook.image.tag": f"v{VERSION}",
    "cainjector.image.tag": f"v{VERSION}",
    "startupapicheck.enabled": "false",  # another program
    "prometheus.enabled": "false",
    "livenessProbe.enabled": "false",  # of its leader election, which is left out
}


def image_of(program: str) -> str:
    """As the chart has it by default."""
    return f"quay.io/jetstack/cert-manager-{program}:v{VERSION}"


def cert_manager(step: str) -> None:
    """build: about 3 minutes the first time on 2 cores. install: what was built; returns once it answers. remove: with
    its CustomResourceDefinitions, and so all that was made of them."""
    {"build": _build, "install": _install, "remove": _remove}[step]()


def _build() -> None:
    with alone():
        if not BINARY.exists():
            with timed(f"building cert-manager {VERSION}"):
                build_program(SOURCE, GO_MOD, BINARY)


def _install() -> None:
    if not BINARY.exists():
        fail("cert-manager was not built: `kubelab cert-manager build`")
    with timed("loading cert-manager's images"), tempfile.TemporaryDirectory() as directory:
        context, archive = Path(directory), Path(directory) / "images.tar"
        shutil.copy(BINARY, context / "certmanager")
        (context / "Dockerfile").write_text(DOCKERFILE)
        for name in PROGRAMS:
            sh("podman", "build", "--isolation=chroot", "--target", name, "-t", image_of(name), context, quiet=True)
        images = map(image_of, PROGRAMS)
        options = ("--multi-image-archive", "--format", "docker-archive")
        sh("podman", "save", *options, "-o", archive, *images, quiet=True)
        load(archive)
    with timed("installing cert-manager's chart"):
        chart = module_directory(f"{MODULE}@v{VERSION}") / "deploy" / "charts" / "cert-manager"
        sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        wait = ("--create-namespace", "--wait", "--timeout", "180s")
        _inside("helm", "upgrade", "--install", RELEASE, chart, "--namespace", NAMESPACE, *sets, *wait)
        # Its Deployments are available before the API server is told of the webhook's CA.
        wait_for("cert-manager's webhook", lambda: not _tried("apply", "--dry-run=server", "-f", "-").returncode)


def _remove() -> None:
    _inside("helm", "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--ignore-not-found")
    selector = f"app.kubernetes.io/instance={RELEASE}"  # the chart keeps them
    _inside("kubectl", "delete", "customresourcedefinitions", "--selector", selector, "--timeout=60s")
    _inside("kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")


def _inside(command: str, *argv: Word) -> None:
    sh(*_words(command, *argv), quiet=True)


def _tried(*argv: Word) -> subprocess.CompletedProcess[str]:
    return sh(*_words("kubectl", *argv), quiet=True, check=False, stdin=ISSUER)


def _words(command: str, *argv: Word) -> list[str]:
    return control_plane_host().inside(PLACES.bin / command, "--kubeconfig", PLACES.admin, *argv)
