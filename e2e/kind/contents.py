"""The images of Kubernetes' own pods, as archives for `kind build node-image`: made from the binaries that are here."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.settings import COMPONENTS, KUBE_VERSION, PLACES
from e2e.cluster.shell import fail, out, sh
from e2e.kind.engine import HOME

HERE = Path(__file__).parent
BUSYBOX = Path("/bin/busybox")  # Debian's busybox-static
APPLETS = ("sh", "ip", "cat", "mv", "mkdir", "rm", "sleep")
IPTABLES = Path("/usr/sbin/xtables-nft-multi")  # kube-proxy runs it by the names of its commands
PARTS = (  # of the names of images, by the archive that they are in
    ("kube-apiserver", ("/kube-", "/etcd:", "/kindnetd:")),
    ("kube-controller-manager", ("/coredns:",)),
    ("kube-scheduler", ("/pause:",)),
    ("kube-proxy", ("/local-path-",)),
)
IPTABLES_NAMES = tuple(f"{tables}{end}" for tables in ("iptables", "ip6tables") for end in ("", "-save", "-restore"))


@dataclass(frozen=True, slots=True)
class Archive:
    """One image with several names, from files of this machine."""

    entrypoint: str
    names: Sequence[str]
    files: Mapping[str, Path]  # by their paths in the image
    links: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        with tarfile.open(root := HOME / "rootfs.tar", "w") as tar:
            for name, source in self.files.items():
                tar.add(source.resolve(), arcname=name)
            for name, target in self.links.items():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                tar.addfile(link)
        first, *others = self.names
        sh("podman", "import", "-c", f'ENTRYPOINT ["{self.entrypoint}"]', root, first, quiet=True)
        path.unlink(missing_ok=True)
        sh("podman", "save", "--format", "docker-archive", "-o", path, first, *others, quiet=True)
        root.unlink()
        sh("podman", "rmi", first, quiet=True)


def names_by_archive(wanted: Sequence[str]) -> dict[str, list[str]]:
    """Which images are made of the same files. kind takes four archives by these names, whatever is in them.

    wanted: names of images; one that has no place would be pulled, so it is an error.
    """
    found = {archive: [name for name in wanted if any(part in name for part in parts)] for archive, parts in PARTS}
    if missing := set(wanted).difference(*found.values()):
        fail(f"nothing makes {', '.join(sorted(missing))}")
    return found


def archives(wanted: Sequence[str]) -> dict[str, Archive]:
    names = names_by_archive(wanted)
    files, links = _busybox()
    storage = {"usr/local/bin/local-path-provisioner": PLACES.bin / "local-path-provisioner", **files}
    return {
        "kube-apiserver": Archive("/usr/local/bin/kindnetd", names["kube-apiserver"], *_kubernetes()),
        "kube-controller-manager": _alone("coredns", names["kube-controller-manager"]),
        "kube-scheduler": _alone("pause", names["kube-scheduler"]),
        "kube-proxy": Archive("/bin/sh", names["kube-proxy"], storage, links),
    }


def _alone(binary: str, names: Sequence[str]) -> Archive:
    return Archive(f"/{binary}", names, {binary: PLACES.bin / binary})


def images_of_kind(source: Path) -> list[str]:
    """source: kind's module. Of its pods' network and storage, and of the sandbox as its containerd is configured."""
    code = "".join(path.read_text() for path in sorted((source / "pkg/build/nodeimage").glob("const_*.go")))
    config = (source / "images/base/files/etc/containerd/config.toml").read_text()
    return [
        *re.findall(r'= "(docker\.io/kindest/[^"]+)"', code),
        *re.findall(r'sandbox_image = "([^"]+)"', config),
    ]


def _kubernetes() -> tuple[dict[str, Path], dict[str, str]]:
    """Every component is the same binary by another name, and the stand-in for kindnetd runs one of them, kubectl."""
    binary = f"kube-{KUBE_VERSION}"
    files, links = _busybox()
    files |= {f"usr/local/bin/{binary}": PLACES.bin / binary, "usr/local/bin/kindnetd": HERE / "kindnetd.sh"}
    links |= {f"usr/local/bin/{name}": binary for name in COMPONENTS}
    plugins = sorted(Path("/usr/lib").glob("*-linux-gnu/xtables/*.so"))
    files |= {str(path)[1:]: path for path in (IPTABLES, *plugins, *_libraries(IPTABLES, *plugins))}
    links |= {f"usr/sbin/{name}": IPTABLES.name for name in IPTABLES_NAMES}
    return files, links


def _busybox() -> tuple[dict[str, Path], dict[str, str]]:
    return {"bin/busybox": BUSYBOX}, {f"bin/{name}": "busybox" for name in APPLETS}


def _libraries(*binaries: Path) -> list[Path]:
    return [Path(path) for path in sorted(set(re.findall(r"(/\S+) \(0x", out("ldd", *binaries))))]


def server_archive(images: Mapping[str, Archive], to: Path) -> None:
    """Kubernetes as a release's server archive: what `kind build node-image` reads."""
    with tarfile.open(to, "w:gz", compresslevel=1) as tar:
        version = HOME / "version"
        version.write_text(f"v{KUBE_VERSION}")
        tar.add(version, arcname="kubernetes/version")
        for name in ("kubeadm", "kubelet", "kubectl"):
            tar.add((PLACES.bin / name).resolve(), arcname=f"kubernetes/server/bin/{name}")
        for name, one in images.items():
            archive = HOME / f"{name}.tar"
            one.write(archive)
            tar.add(archive, arcname=f"kubernetes/server/bin/{name}.tar")
            archive.unlink()
