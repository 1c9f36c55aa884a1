"""The `kind` command of the Kubernetes tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from e2e.cluster.build import timed
from e2e.cluster.images import base_image
from e2e.cluster.shell import Word, fail, sh
from e2e.kind.contents import HERE
from e2e.kind.engine import HOME, Engine, engine
from e2e.kind.nodeimage import prepare

USAGE = """\
kind build                        make what `up` needs, where kind runs on podman
kind up IMAGE [REBALANCE_IMAGE]   a cluster anew, the project's Dockerfile as IMAGE on every node; with its target
                                  `rebalance` as REBALANCE_IMAGE, on the workers
kind exec -- CMD ...              run CMD with the cluster's PATH and KUBECONFIG
kind down                         delete it
"""
ROOT = HERE.parents[1]
NAME = "delaycluster-e2e"


def main() -> None:
    match sys.argv[1:]:
        case ["build"]:
            build(engine())
        case ["up", image, *more] if len(more) <= 1:
            up(engine(), image, *more)
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


def up(on: Engine, image: str, rebalance: str = "") -> None:
    options = build(on)
    _kind(on, "delete", "cluster", "--name", NAME)
    with timed("starting kind"):
        _kind(on, "create", "cluster", "--config", HERE / "cluster.yaml", "--wait", "180s", *options)
    _image(on, image, ())
    if rebalance:
        nodes = _kind(on, "get", "nodes", "--name", NAME, capture=True).split()
        workers = ",".join(node for node in nodes if "control-plane" not in node)
        _image(on, rebalance, ("--target", "rebalance"), "--nodes", workers)


def _image(on: Engine, tag: str, options: Sequence[str], *load: str) -> None:
    if on.makes_nodes:
        base_image()
    archive = HOME / "load.tar"
    archive.unlink(missing_ok=True)
    with timed(f"building and loading {tag}"):
        sh(on.name, "build", *on.build, "--tag", tag, *options, ROOT, env=on.environment)
        sh(on.name, "save", "--output", archive, tag, env=on.environment, quiet=True)
        _kind(on, "load", "image-archive", archive, "--name", NAME, *load)
    archive.unlink()


def _kind(on: Engine, *argv: Word, capture: bool = False) -> str:
    """Its stdout when `capture` is set."""
    return sh("kind", *argv, env=on.environment, capture=capture).stdout
