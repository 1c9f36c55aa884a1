"""Images: a base image made from Debian's packages, the project's own from its Dockerfile, onto every node."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster.build import timed
from e2e.cluster.hosts import known_nodes, node_host
from e2e.cluster.nodes import Node
from e2e.cluster.settings import BASE_IMAGE, PLACES
from e2e.cluster.shell import sh, succeeds

DEBIAN = "bookworm"
PYTHON = "ca-certificates,python3,python3-pip,python3-venv"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
# the machine's own way to the package registries, whatever it is: pip and apt in a build go the same way
SETTINGS = (SOURCES, Path("/etc/pip.conf"), Path("/etc/ssl/certs/ca-certificates.crt"))
ENVIRONMENT = ("PIP_CERT=/etc/ssl/certs/ca-certificates.crt", "PIP_ROOT_USER_ACTION=ignore")


def base_image() -> None:
    """docker.io/library/python:3.11-slim-bookworm as far as we need it: Debian 12 with its own Python 3.11."""
    if succeeds("podman", "image", "exists", BASE_IMAGE):
        return
    with timed(f"making {BASE_IMAGE}"):
        root, tar = PLACES.cache / "base-rootfs", PLACES.cache / "base-rootfs.tar"
        shutil.rmtree(root, ignore_errors=True)
        sh("debootstrap", "--variant=minbase", f"--include={PYTHON}", DEBIAN, root, *_mirror(), quiet=True)
        for note in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            note.unlink()
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        _copy_settings(root)
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        sh("tar", "-C", root, "--numeric-owner", "-cf", tar, ".")
        changes = [word for line in ENVIRONMENT for word in ("-c", f"ENV {line}")]
        sh("podman", "import", "-c", 'CMD ["python3"]', *changes, tar, BASE_IMAGE, quiet=True)
        shutil.rmtree(root)
        tar.unlink()


def _copy_settings(root: Path) -> None:
    for source in SETTINGS:
        if source.exists():
            target = root / source.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    if SOURCES.exists():
        (root / "etc/apt/sources.list").write_text("")  # debootstrap's; SOURCES says it all


def _mirror() -> list[str]:
    """Where this machine's own packages come from; Debian's default when it doesn't say."""
    for line in SOURCES.read_text().splitlines() if SOURCES.exists() else []:
        if line.startswith("URIs:"):
            return [line.split()[1]]
    return []


def image(context: Path, targets: Sequence[str]) -> None:
    """Builds targets of the Dockerfile in `context`, each a TARGET=TAG, and loads them on every node."""
    base_image()
    tags = dict(one.split("=", 1) for one in targets)
    for target, tag in tags.items():
        with timed(f"building {tag}"):
            sh("podman", "build", "--network=host", "--isolation=chroot", "--target", target, "-t", tag, context)
    archive = PLACES.cache / "load.tar"
    archive.unlink(missing_ok=True)
    # in one archive, for they have most layers in common
    sh(
        "podman",
        "save",
        "--multi-image-archive",
        "--format",
        "docker-archive",
        "-o",
        archive,
        *tags.values(),
        quiet=True,
    )
    load(archive)


def load(archive: Path) -> None:
    """On all nodes at once: unpacking is most of it, and one containerd does that on one core."""
    running = [Node(index) for index in known_nodes() if node_host(index).runs("containerd")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.ctr("images", "import", archive), running))
