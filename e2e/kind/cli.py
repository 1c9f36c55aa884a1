"""The `kind` command of the Kubernetes tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from e2e.cluster.build import timed
from e2e.cluster.images import base_image
from e2e.cluster.shell import Word, fail, sh
from e2e.kind.contents import HERE
from e2e.kind.engine import HOME, Engine, engine
from e2e.kind.nodeimage import prepare

USAGE = """\
kind build                        make what `up` needs, where kind runs on podman
kind up TARGET=TAG ...            a cluster anew, with these targets of the project's Dockerfile on every node
                                  (`rebalance` on the workers alone)
kind exec -- CMD ...              run CMD with the cluster's PATH and KUBECONFIG
kind down                         delete it
"""
ROOT = HERE.parents[1]
NAME = "delaycluster-e2e"


def main() -> None:
    match sys.argv[1:]:
        case ["build"]:
            build(engine())
        case ["up", *targets] if targets and all("=" in one for one in targets):
            up(engine(), dict(one.split("=", 1) for one in targets))
        case ["exec", "--", command, *words]:
            environment = engine().environment
            os.execvpe(command, [command, *words], environment)
        case ["down"]:
            _kind(engine(), "delete", "cluster", "--name", NAME)
        case _:
            fail(f"usage:\n{USAGE}")


def build(on: Engine) -> list[str]:
    """Options of `kind create cluster`."""
    return ["--image", prepare(on)] if on.makes_nodes else []


def up(on: Engine, tags: Mapping[str, str]) -> None:
    """tags: of the images, by the targets of the Dockerfile."""
    options = build(on)
    _kind(on, "delete", "cluster", "--name", NAME)
    with timed("starting kind"):
        _kind(on, "create", "cluster", "--config", HERE / "cluster.yaml", "--wait", "180s", *options)
    _images(on, {target: tag for target, tag in tags.items() if target != "rebalance"})
    if "rebalance" in tags:
        nodes = _kind(on, "get", "nodes", "--name", NAME, capture=True).split()
        workers = ",".join(node for node in nodes if "control-plane" not in node)
        _images(on, {"rebalance": tags["rebalance"]}, "--nodes", workers)


def _images(on: Engine, tags: Mapping[str, str], *load: str) -> None:
    if on.makes_nodes:
        base_image()
    archive = HOME / "load.tar"
    archive.unlink(missing_ok=True)
    with timed(f"building and loading {', '.join(tags.values())}"):
        for target, tag in tags.items():
            sh(on.name, "build", *on.build, "--target", target, "--tag", tag, ROOT, env=on.environment)
        several = ["--multi-image-archive"] * (on.name == "podman")  # docker needs not be told
        sh(on.name, "save", *several, "--output", archive, *tags.values(), env=on.environment, quiet=True)
        _kind(on, "load", "image-archive", archive, "--name", NAME, *load)
    archive.unlink()


def _kind(on: Engine, *argv: Word, capture: bool = False) -> str:
    """Its stdout when `capture` is set."""
    return sh("kind", *argv, env=on.environment, capture=capture).stdout
