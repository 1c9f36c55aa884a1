"""Builds what is missing into the cache: Go modules from the module proxy, the rest from Debian's packages.

The Kubernetes components are one binary: k8s.io/kubernetes can't be `go install`ed (its go.mod has replacements), so a
small module of our own requires it and repeats the replacements with the published versions of the staging libraries.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.golang import DEBIAN_PACKAGE, go_command, go_environment
from e2e.cluster.settings import COMPONENTS, KUBE_VERSION, MODULES, PACKAGES, PAUSE_IMAGE, PLACES, STAGING_VERSION
from e2e.cluster.shell import Word, say, sh, succeeds

SOURCE = Path(__file__).parent / "components" / "main.go"
STAMP = "k8s.io/component-base/version"
GO_BUILD = ("build", "-trimpath", "-ldflags")
PAUSE_SOURCE = """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	<-c
}
"""


def build() -> None:
    """Idempotent; about 10 minutes the first time on 2 cores."""
    with alone():
        packages(PACKAGES)
        modules(MODULES)
        kubernetes()
        pause()


@contextmanager
def alone() -> Iterator[None]:
    """Two that build at once: the second waits."""
    PLACES.bin.mkdir(parents=True, exist_ok=True)
    with open(PLACES.cache / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    say(what)
    yield
    say(f"{what}: {time.monotonic() - began:.0f} s")


def packages(names: Sequence[str]) -> None:
    """Installs those of Debian that are missing, and Go where there is none."""
    wanted = names if shutil.which("go") else (*names, DEBIAN_PACKAGE)
    missing = [package for package in wanted if not succeeds("dpkg", "-s", package)]
    if not missing:
        return
    with timed(f"installing {' '.join(missing)}"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        sh("apt-get", "update", "-qq", quiet=True)
        sh("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, quiet=True, env=env)


def modules(wanted: Mapping[str, str]) -> None:
    """wanted: names of binaries, and the modules that make them."""
    for name, module in wanted.items():
        if not (PLACES.bin / name).exists():
            with timed(f"building {name}"):
                _install(name, module)


def module_directory(module: str) -> Path:
    """Where the files of `PATH@VERSION` are in the module cache."""
    return Path(json.loads(_go("mod", "download", "-json", module, cwd=Path("/"), capture=True))["Dir"])


def _go(*argv: Word, cgo: bool = False, cwd: Path | None = None, quiet: bool = False, capture: bool = False) -> str:
    """Its stdout when `capture` is set."""
    done = sh(go_command(), *argv, env=go_environment(cgo), cwd=cwd, quiet=quiet, capture=capture)
    return done.stdout if capture else ""


def kubernetes() -> None:
    binary = PLACES.bin / f"kube-{KUBE_VERSION}"
    if not binary.exists():
        with timed(f"building Kubernetes {KUBE_VERSION}"):
            build_from_kubernetes(SOURCE, binary)
    for name in COMPONENTS:
        link = PLACES.bin / name
        if not link.is_symlink() or os.readlink(link) != binary.name:
            link.unlink(missing_ok=True)
            link.symlink_to(binary.name)


def build_from_kubernetes(main: Path, binary: Path) -> None:
    """main: a main.go that imports packages of k8s.io/kubernetes."""
    module = f"k8s.io/kubernetes@v{KUBE_VERSION}"
    found = json.loads(_go("mod", "download", "-json", module, cwd=Path("/"), capture=True))
    parent = json.loads(_go("mod", "edit", "-json", found["GoMod"], capture=True))
    staging = sorted(one["Old"]["Path"] for one in parent["Replace"] if one["New"]["Path"].startswith("./staging"))
    replaced = "\n".join(f"\t{path} => {path} v{STAGING_VERSION}" for path in staging)
    major, minor, _ = KUBE_VERSION.split(".")
    stamps = f"-X {STAMP}.gitVersion=v{KUBE_VERSION} -X {STAMP}.gitMajor={major} -X {STAMP}.gitMinor={minor}"
    go_mod = (
        f"module kubelab\n\ngo {parent['Go']}\n\n"
        f"require k8s.io/kubernetes v{KUBE_VERSION}\n\nreplace (\n{replaced}\n)\n"
    )
    build_program(main, go_mod, binary, stamps)


def build_program(main: Path, go_mod: str, binary: Path, stamps: str = "") -> None:
    """A module of our own, of this main.go and go.mod. stamps: for the linker."""
    source = PLACES.cache / "src" / main.parent.name
    source.mkdir(parents=True, exist_ok=True)
    shutil.copy(main, source / "main.go")
    (source / "go.mod").write_text(go_mod)
    (source / "go.sum").unlink(missing_ok=True)
    _go("mod", "tidy", cwd=source, quiet=True)
    _go(*GO_BUILD, f"-s -w {stamps}", "-o", binary, ".", cwd=source)


def build_packages(source: Path, packages: Sequence[str], directory: Path) -> None:
    """Programs of the module in `source`."""
    directory.mkdir(parents=True, exist_ok=True)
    _go(*GO_BUILD, "-s -w", "-o", f"{directory}/", *packages, cwd=source)


def _install(name: str, module: str) -> None:
    options = ("-trimpath", "-tags", "seccomp", "-ldflags", "-s -w")
    _go("install", *options, module, cgo=name == "runc", cwd=Path("/"), quiet=True)  # runc's nsenter is C


def pause() -> None:
    """The image of every pod's sandbox: a process that waits for its end."""
    archive = PLACES.cache / "pause.tar"
    if archive.exists():
        return
    source = PLACES.cache / "pause"
    source.mkdir(exist_ok=True)
    (source / "go.mod").write_text("module pause\n\ngo 1.21\n")
    (source / "main.go").write_text(PAUSE_SOURCE)
    binary = PLACES.bin / "pause"
    _go(*GO_BUILD, "-s -w", "-o", binary, ".", cwd=source)
    root = PLACES.cache / "pause-rootfs.tar"
    with tarfile.open(root, "w") as tar:
        tar.add(binary, arcname="pause")
    sh("podman", "import", "-c", 'ENTRYPOINT ["/pause"]', root, PAUSE_IMAGE, quiet=True)
    sh("podman", "save", "--format", "docker-archive", "-o", archive, PAUSE_IMAGE, quiet=True)
