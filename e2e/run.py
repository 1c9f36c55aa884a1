"""Brings a clean cluster, builds the images onto it, runs the scenarios, takes the cluster away.

    python -m e2e.run [--on kubelab|kind|current] [--keep] [--spark] [--next] [--cert-manager] [pytest's arguments]

kubelab: e2e/cluster, built from Go modules; needs root on Debian 12. kind: needs Docker, kind, kubectl and helm; where
Docker does not run, root on Debian 12: kind is built and its nodes run on podman. current: the kubeconfig's current
context, which must be named for tests, with an image that it can pull (--image). Without --on: kind where Docker runs
and kind is installed, else kubelab.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e import nextversion
from e2e.harness.helm import next_image, targets

ROOT = Path(__file__).resolve().parents[1]
KUBELAB = (sys.executable, str(ROOT / "e2e" / "kubelab"))
MACHINES = 5  # as docs/examples/production.yaml wants them
KIND = (sys.executable, str(ROOT / "e2e" / "kind" / "kind"))
PYTEST = (
    *(sys.executable, "-m", "pytest", "-c", str(ROOT / "e2e" / "pytest.ini"), "--rootdir", str(ROOT / "e2e")),
    str(ROOT / "e2e" / "scenarios"),
)


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"e2e: {what}", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"e2e: {what}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def call(*argv: str) -> int:
    return subprocess.run(argv, cwd=ROOT).returncode


def must(*argv: str) -> None:
    if code := call(*argv):
        raise SystemExit(f"e2e: {' '.join(argv)[:300]} ended with {code}")


def choose() -> str:
    docker = shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True).returncode
    if docker and shutil.which("kind"):
        return "kind"
    if os.geteuid() == 0 and shutil.which("apt-get"):
        return "kubelab"
    raise SystemExit(
        "e2e: no cluster can be made here: neither Docker with kind, nor root on Debian; "
        "`--on current` takes the kubeconfig's current context"
    )


def build_next() -> None:
    with tempfile.TemporaryDirectory() as directory:
        nextversion.make(Path(directory))
        must(*KUBELAB, "image", directory, f"node=docker.io/{next_image()}")


def on_kubelab(keep: bool, spark: bool, newer: bool, keys: bool, arguments: Sequence[str]) -> int:
    with timed("building Kubernetes (once for each cache)"):
        must(*KUBELAB, "build")
    if keys:
        must(*KUBELAB, "cert-manager", "build")
    try:
        with timed("starting from a clean cluster"):
            must(*KUBELAB, "down")
            must(*KUBELAB, "up", "--nodes", str(MACHINES))
        with timed("building and loading the images"):
            must(*KUBELAB, "image", str(ROOT), *targets(spark))
        if newer:
            with timed("building and loading the next release's image"):
                build_next()
        with timed("scenarios"):
            return call(*KUBELAB, "exec", "--", *PYTEST, *arguments)
    finally:
        if not keep:
            with timed("stopping the cluster"):
                call(*KUBELAB, "down")


def on_kind(keep: bool, spark: bool, arguments: Sequence[str]) -> int:
    with timed("building kind's node image (once for each cache; nothing where Docker pulls it)"):
        must(*KIND, "build")
    try:
        with timed("starting from a clean cluster, building and loading the images"):
            must(*KIND, "up", *targets(spark))
        with timed("scenarios"):
            return call(*KIND, "exec", "--", *PYTEST, "--context", "kind-delaycluster-e2e", *arguments)
    finally:
        if not keep:
            call(*KIND, "down")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=("kubelab", "kind", "current"))
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument("--spark", action="store_true", help="build the rebalance image too (1.4 GB): its job runs")
    parser.add_argument("--next", action="store_true", help="build the next release's image too (kubelab)")
    parser.add_argument(
        "--cert-manager", action="store_true", help="build cert-manager too (kubelab): its scenario runs"
    )
    options, arguments = parser.parse_known_args()
    on = options.on or choose()
    if on == "current":
        raise SystemExit(call(*PYTEST, *arguments, *["--keep"] * options.keep))
    arguments.append("--keep")  # what the scenarios made goes with the cluster
    if on == "kind":
        raise SystemExit(on_kind(options.keep, options.spark, arguments))
    raise SystemExit(on_kubelab(options.keep, options.spark, options.next, options.cert_manager, arguments))


if __name__ == "__main__":
    main()
