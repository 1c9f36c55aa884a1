"""Fetches what browsers run that is not ours: files of npm packages, by the hashes that npm published for them.

The console's go to node/delayconsole/vendor, from where they are in the wheel and in the images; those of tests to
.venv/npm. Neither is committed. A package that was fetched once is kept in ~/.cache/delaycluster/npm for other clones.
The registry is the one that npm is set to: $npm_config_registry, a line `registry=` of an .npmrc, or what npm says.

    python scripts/assets.py            fetch what is missing
    python scripts/assets.py --check    exit 1 where something is missing or has other bytes
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
CONSOLE: Final = ROOT / "node/delayconsole/vendor"
TESTS: Final = ROOT / ".venv/npm"
MAX_BYTES: Final = 16 << 20
TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Package:
    """One npm package. sha512: of its tarball, npm's `dist.integrity`. files: name here by path in the tarball."""

    name: str
    version: str
    sha512: str
    folder: Path
    files: dict[str, str]


PACKAGES: Final = (
    Package(
        "htmx.org",
        "4.0.1",
        "oF7JgXhDW9UXCy/k1ZYFUQgzu/rm19ORWPSPNL91vPluB2PB9+MV55tyQdH/w7o2EAbTYUG5SDW1R60mdkdqGg==",
        CONSOLE,
        {"dist/htmx.min.js": "htmx.min.js", "LICENSE": "htmx.LICENSE"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        CONSOLE,
        {
            "dist/uPlot.iife.min.js": "uplot.min.js",
            "dist/uPlot.min.css": "uplot.min.css",
            "LICENSE": "uplot.LICENSE",
        },
    ),
    Package(
        "axe-core",
        "4.14.1",
        "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        TESTS,
        {"axe.min.js": "axe.min.js"},
    ),
)


class NotFetched(Exception):
    """Says which package, and why."""


def registry() -> str:
    """The address of the npm registry. Raises NotFetched where none is known."""
    given = os.environ.get("npm_config_registry")  # noqa: SIM112  # as npm has it
    found = given or next(_of_files(), "") or _of_npm()
    if not found:
        raise NotFetched("no npm registry is known: set npm_config_registry to its address, or install npm")
    return found.rstrip("/")


def _of_files() -> Iterator[str]:
    for path in (Path.home() / ".npmrc", Path("/etc/npmrc")):
        if path.is_file():
            yield from re.findall(r"^\s*registry\s*=\s*(\S+)", path.read_text("utf-8", "replace"), re.MULTILINE)


def _of_npm() -> str:
    npm = shutil.which("npm")
    if npm is None:
        return ""
    said = subprocess.run([npm, "config", "get", "registry"], capture_output=True, text=True, check=False, cwd="/")
    return said.stdout.strip() if said.stdout.startswith("http") else ""


def tarball(package: Package) -> bytes:
    """Its bytes, from the cache or the registry. Raises NotFetched, also for bytes with another hash."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "delaycluster/npm"
    kept = cache / f"{package.name}-{package.version}.tgz"
    data = kept.read_bytes() if kept.is_file() else b""
    if _hash(data) == package.sha512:
        return data
    url = f"{registry()}/{package.name}/-/{package.name}-{package.version}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            data = bytes(answer.read(MAX_BYTES + 1))
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise NotFetched(f"{package.name} {package.version}: {error}") from None
    if (found := _hash(data)) != package.sha512:
        raise NotFetched(f"{package.name} {package.version}: its SHA-512 is {found}, expected {package.sha512}")
    cache.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_bytes(data)
    part.replace(kept)
    return data


def _hash(data: bytes) -> str:
    return base64.b64encode(hashlib.sha512(data).digest()).decode()


def unpack(package: Package) -> None:
    """Writes the files of the package that are used. Raises NotFetched."""
    with tarfile.open(fileobj=io.BytesIO(tarball(package))) as tar:
        for path, name in package.files.items():
            member = tar.extractfile(f"package/{path}")
            assert member is not None, path
            package.folder.mkdir(parents=True, exist_ok=True)
            (package.folder / name).write_bytes(member.read())
    _stamp(package).write_text(package.sha512)


def _stamp(package: Package) -> Path:
    return package.folder / f"{package.name}.sha512"


def is_there(package: Package) -> bool:
    """Its files are, of this version."""
    stamp = _stamp(package)
    names = [package.folder / name for name in package.files.values()]
    return stamp.is_file() and stamp.read_text() == package.sha512 and all(name.is_file() for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fetch nothing; exit 1 where something is missing")
    parser.add_argument("--only", choices=("console", "tests"), help="those of one folder")
    arguments = parser.parse_args()
    folder = {"console": CONSOLE, "tests": TESTS}.get(arguments.only)
    missing = [it for it in PACKAGES if not is_there(it) and folder in (None, it.folder)]
    for package in missing:
        if arguments.check:
            print(f"{package.name} {package.version} is missing: run `make assets`", file=sys.stderr)
            continue
        try:
            unpack(package)
        except NotFetched as error:
            print(f"assets: {error}", file=sys.stderr)
            return 1
    return int(bool(missing) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
