"""kind's node image, made on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from e2e.cluster.build import alone, build, build_from_kubernetes, module_directory, modules, packages, timed
from e2e.cluster.images import base_image
from e2e.cluster.settings import BASE_IMAGE, KUBE_VERSION, PLACES
from e2e.cluster.shell import Word, out, sh
from e2e.kind.contents import HERE, archives, images_of_kind, server_archive
from e2e.kind.engine import HOME, Engine

KIND = "sigs.k8s.io/kind@v0.33.0"
MODULES = {"kind": KIND, "local-path-provisioner": "github.com/rancher/local-path-provisioner@v0.0.30"}
PACKAGES = ("netavark", "aardvark-dns", "busybox-static", "containernetworking-plugins", "iptables")
CNI_PLUGINS = Path("/usr/lib/cni")
CONTAINERD = ("containerd", "ctr", "containerd-shim-runc-v2")
HOOK = {"path": "/kind/bin/mount-product-files.sh"}  # of every container, as kind's own base image has it
BASE = "localhost/delaycluster-e2e/kind-base"
# with another text of these the image is another one
SOURCES = ("nodeimage.py", "contents.py", "kindnetd.sh", "../cluster/settings.py")
DOCKERFILE = f"""\
FROM {BASE}:files
COPY bin/ /usr/local/bin/
COPY cni/ /opt/cni/bin/
COPY cri-base.json config.toml /etc/containerd/
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
"""


def prepare(engine: Engine) -> str:
    """Builds what is missing: the image's name. About 10 minutes the first time on 2 cores, and Kubernetes before."""
    build()
    with alone():
        packages(PACKAGES)
        modules(MODULES)
        if not (PLACES.bin / "kubeadm").exists():
            with timed("building kubeadm"):
                build_from_kubernetes(HERE / "kubeadm" / "main.go", PLACES.bin / "kubeadm")
    image = f"localhost/delaycluster-e2e/node:v{KUBE_VERSION}-{_digest()}"
    if not _podman(engine, "image", "exists", image, check=False):
        with timed(f"making {image}"):
            _make(engine, image)
    return image


def _digest() -> str:
    return hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()[:12]


def _podman(engine: Engine, *argv: Word, check: bool = True) -> bool:
    return sh("podman", *argv, env=engine.environment, check=check, quiet=True).returncode == 0


def _make(engine: Engine, image: str) -> None:
    source = module_directory(KIND)
    base_image()
    files = ("--target", "base", "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "-t", f"{BASE}:files")
    _podman(engine, "build", *engine.build, *files, source / "images" / "base")
    _podman(engine, "build", *engine.build, "-t", f"{BASE}:runtime", _context(source))
    required = out(PLACES.bin / "kubeadm", "config", "images", "list", f"--kubernetes-version=v{KUBE_VERSION}").split()
    server = HOME / "kubernetes-server.tar.gz"
    server_archive(archives([*required, *images_of_kind(source)]), server)
    # kind builds with a command named docker, and podman understands all that it asks of it
    shim = HOME / "shim"
    shim.mkdir(exist_ok=True)
    (shim / "docker").unlink(missing_ok=True)
    (shim / "docker").symlink_to(shutil.which("podman") or "podman")
    environment = {**engine.environment, "PATH": f"{shim}:{engine.environment['PATH']}"}
    options = ("--type", "file", "--base-image", f"{BASE}:runtime", "--image", image)
    sh(PLACES.bin / "kind", "build", "node-image", *options, server, env=environment, quiet=True)
    server.unlink()


def _context(source: Path) -> Path:
    """containerd, runc and the CNI plugins for kind's base, and containerd's settings."""
    context = HOME / "runtime"
    shutil.rmtree(context, ignore_errors=True)
    (context / "bin").mkdir(parents=True)
    for name in (*CONTAINERD, "runc"):
        os.link(PLACES.bin / name, context / "bin" / name)
    shutil.copytree(CNI_PLUGINS, context / "cni")
    spec = json.loads(out(PLACES.bin / "ctr", "oci", "spec"))
    spec["hooks"] = {"createContainer": [HOOK]}
    del spec["process"]["rlimits"]
    (context / "cri-base.json").write_text(json.dumps(spec))
    # a root without CAP_SYS_RESOURCE can't make itself less likely to be killed; kind does the same in a user namespace
    config = (source / "images/base/files/etc/containerd/config.toml").read_text()
    restricted = config.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
    (context / "config.toml").write_text(restricted)
    (context / "Dockerfile").write_text(DOCKERFILE)
    return context
