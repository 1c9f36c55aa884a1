"""Go: the machine's own when it is new enough, else the toolchain, which is a Go module as well.

Debian 12 has Go 1.19. That is enough to download golang.org/toolchain, checked against the checksum database like any
module; newer versions of Go do the same by themselves (GOTOOLCHAIN), but not where it is set to `local`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

from e2e.cluster.settings import GO_VERSION, PLACES
from e2e.cluster.shell import fail, out, sh

DEBIAN_PACKAGE = "golang-go"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as `uname -m` and as Go name them
RUNNABLE = ("bin/*", "pkg/tool/*/*")  # a module's files are not executable


def go_command() -> Path:
    """A `go` of at least GO_VERSION's minor version; one of Debian's packages or the machine's own has to be there."""
    own = shutil.which("go")
    if own is None:
        fail(f"no go command; Debian has it in {DEBIAN_PACKAGE}")
    found = out(own, "env", "GOVERSION").strip()
    return Path(own) if minor(found) >= minor(f"go{GO_VERSION}") else _toolchain(own)


def minor(version: str) -> tuple[int, int]:
    """of `go1.26.8`, `go1.19` or `go1.27rc1`: (1, 26), (1, 19), (1, 27)."""
    major, rest = version.removeprefix("go").split(".")[:2]
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(major), int(digits)


def _toolchain(own: str) -> Path:
    """GO_VERSION from the module proxy, in the module cache."""
    name = f"golang.org/toolchain@v0.0.1-go{GO_VERSION}.linux-{ARCHITECTURES[platform.machine()]}"
    told = sh(own, "mod", "download", "-json", name, cwd=Path("/"), capture=True, check=False).stdout
    found = json.loads(told or "{}")
    if "Dir" not in found:
        fail(f"go mod download {name}: {found.get('Error', 'no answer')}")
    root = Path(found["Dir"])
    for pattern in RUNNABLE:
        for file in root.glob(pattern):
            file.chmod(0o755)
    return root / "bin" / "go"


def go_environment(cgo: bool = False) -> dict[str, str]:
    """For building into the cache. GOTOOLCHAIN: what we chose, and no other that a module asks for."""
    ours = {
        "CGO_ENABLED": str(int(cgo)),
        "GOBIN": str(PLACES.bin),
        "GOFLAGS": "-mod=mod -buildvcs=false",
        "GOTOOLCHAIN": "local",
    }
    return {**{name: value for name, value in os.environ.items() if name != "GOROOT"}, **ours}
