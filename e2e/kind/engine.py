"""What runs kind's nodes: Docker, or podman where there is none."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.settings import PLACES
from e2e.cluster.shell import succeeds

PROVIDER = "KIND_EXPERIMENTAL_PROVIDER"  # kind's own variable
HOME = PLACES.cache / "kind"
MODULES = Path("/lib/modules")  # kind mounts it; a kernel with everything built in has none
LIMITS = {"nofile": (resource.RLIMIT_NOFILE, 65_536), "nproc": (resource.RLIMIT_NPROC, 16_384)}


@dataclass(frozen=True, slots=True)
class Engine:
    name: str  # also the name of its command
    environment: Mapping[str, str]  # of every command that has to do with the cluster
    build: tuple[str, ...] = ()  # options of its `build`

    @property
    def makes_nodes(self) -> bool:
        """Whether the node image is made here: kind's own is pulled by Docker only."""
        return self.name == "podman"


def engine() -> Engine:
    """As KIND_EXPERIMENTAL_PROVIDER says, else Docker where it runs, else podman."""
    asked = os.environ.get(PROVIDER)
    docker = asked == "docker" or (not asked and shutil.which("docker") and succeeds("docker", "info"))
    HOME.mkdir(parents=True, exist_ok=True)
    return Engine("docker", os.environ) if docker else _podman()


def _podman() -> Engine:
    MODULES.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        PROVIDER: "podman",
        "CONTAINERS_CONF": str(_settings()),
        "PATH": f"{PLACES.bin}:{os.environ['PATH']}",
        "KUBECONFIG": str(HOME / "kubeconfig"),
    }
    return Engine("podman", environment, ("--network=host", "--isolation=chroot"))


def _settings() -> Path:
    """podman's settings: names of nodes in DNS, runc that starts systemd on any cgroups, limits that may be set.

    Debian's crun refuses cgroups v1 beside v2, and a root without CAP_SYS_RESOURCE can't raise a limit.
    """
    limits = [f"{name}={_limit(kind, most)}:{_limit(kind, most)}" for name, (kind, most) in LIMITS.items()]
    path = HOME / "containers.conf"
    path.write_text(
        f"[containers]\ndefault_ulimits = {json.dumps(limits)}\n"
        '[network]\nnetwork_backend = "netavark"\n'
        f'[engine]\nevents_logger = "file"\nruntime = "runc"\n[engine.runtimes]\nrunc = ["{PLACES.bin}/runc"]\n'
    )
    return path


def _limit(kind: int, most: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)
