"""Makes a release's artefacts of the checked-out commit (docs/release.md says which come out the same twice).

    python scripts/release.py --out dist --base-image REPOSITORY@sha256:...

Into an empty directory: source distribution and wheel, the chart's package, an OCI archive of each image with a list of
its packages (CycloneDX), the compiled edge's wheel as the images have it, the release notes, and SHA256SUMS. Without
--base-image the images and the edge are not made.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = {"node": "delaycluster", "operator": "delaycluster-operator", "rebalance": "delaycluster-rebalance"}
SUMS: Final = "SHA256SUMS"
BUILD: Final = """
import os, sys
from setuptools import build_meta
os.umask(0o022)  # the modes of what it generates
out = sys.argv[1]  # setuptools has other words in argv afterwards
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""
_DIGEST: Final = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def run(argv: Sequence[str | Path], cwd: Path = ROOT, **environment: str) -> bytes:
    return subprocess.run(argv, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True).stdout


def same_times(archive: Path, epoch: int) -> None:
    """Rewrites a tar archive, compressed or not: entries by name, of nobody, all of one time (s since 1970)."""
    with tarfile.open(archive) as old:
        entries = {member.name: (member, old.extractfile(member)) for member in old}
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as new:
            for name in sorted(entries):
                member, file = entries[name]
                member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                new.addfile(member, file)
    if archive.suffix in (".gz", ".tgz"):
        archive.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))
    else:
        archive.write_bytes(plain.getvalue())


def export(commit: str, to: Path, epoch: int) -> None:
    """The commit's files, without what the clone or its umask adds, and what the console's pages run in browsers."""
    to.mkdir(parents=True, exist_ok=True)
    archive = run(("git", "archive", commit))
    subprocess.run(("tar", "--extract", "--no-same-owner", "--directory", to), input=archive, check=True)
    run((sys.executable, to / "scripts" / "assets.py", "--only", "console"))
    for path in to.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch))


def notes(changelog: str, version: str) -> str:
    """The version's section of CHANGELOG.md; before it has one, what is not released yet."""
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", changelog, re.MULTILINE))
    for title in (version, "Unreleased"):
        if title in sections:
            heading = version if title == version else f"{version} (not released)"
            return f"# DelayCluster {heading}\n\n{sections[title].strip()}\n"
    raise SystemExit(f"release: CHANGELOG.md has neither a section {version} nor Unreleased")


def distributions(source: Path, out: Path, epoch: int) -> None:
    run((sys.executable, "-c", BUILD, out), source, SOURCE_DATE_EPOCH=str(epoch))
    for archive in out.glob("*.tar.gz"):
        same_times(archive, epoch)


def chart(source: Path, out: Path, epoch: int, helm: str) -> None:
    run((helm, "package", source / "charts" / "delaycluster-operator", "--destination", out))
    for archive in out.glob("*.tgz"):
        same_times(archive, epoch)


def build(source: Path, target: str, *words: str | Path, **arguments: str) -> None:
    """Builds a target of the Dockerfile. Layers that other builds left have other times, so none is taken."""
    given = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    options = ("--network=host", "--isolation=chroot", "--no-cache", *words)
    run(("podman", "build", *options, *given, "--target", target, source))


def image(source: Path, out: Path, epoch: int, target: str, base: str, version: str, revision: str) -> None:
    """The image and the list of its packages."""
    name, tag = IMAGES[target], f"localhost/delaycluster-release/{target}:{version}"
    words = (f"--timestamp={epoch}", "--tag", tag)
    build(source, target, *words, BASE_IMAGE=base, VERSION=version, REVISION=revision)
    archive = out / f"{name}-{version}.oci.tar"
    run(("podman", "save", "--quiet", "--format", "oci-archive", "--output", archive, tag))
    same_times(archive, epoch)
    told = run((sys.executable, ROOT / "scripts" / "sbom.py", name, version, archive))
    (out / f"{name}-{version}.cdx.json").write_bytes(told)


def sums(out: Path) -> str:
    """As `sha256sum --check` reads it."""
    files = sorted(path for path in out.iterdir() if path.name != SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text}: a release names its base image by digest, REPOSITORY@sha256:...")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a directory that is empty, or not there yet")
    parser.add_argument("--base-image", type=digest, metavar="REPOSITORY@sha256:...", help="what the images start from")
    parser.add_argument("--targets", nargs="+", choices=IMAGES, default=list(IMAGES), help="the images to make")
    parser.add_argument("--helm", default=shutil.which("helm"), help="the command [default: on PATH]")
    options = parser.parse_args()
    if options.helm is None:
        parser.error("helm is not on PATH: name it by --helm")
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        parser.error(f"{out} is not empty")
    commit = run(("git", "rev-parse", "HEAD")).decode().strip()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or run(("git", "show", "-s", "--format=%ct", commit)))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        export(commit, source, epoch)
        version = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
        (out / "RELEASE-NOTES.md").write_text(notes((source / "CHANGELOG.md").read_text(), version))
        if options.base_image:
            for target in options.targets:
                image(source, out, epoch, target, options.base_image, version, commit)
            build(source, "edge-wheel", "--output", out, BASE_IMAGE=options.base_image)
        chart(source, out, epoch, options.helm)
        distributions(source, out, epoch)  # last: setuptools leaves files in the source
    (out / SUMS).write_text(sums(out))
    sys.stdout.write((out / SUMS).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
