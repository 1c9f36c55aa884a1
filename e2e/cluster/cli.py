"""The `kubelab` command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import faults, images, lifecycle
from e2e.cluster.build import build
from e2e.cluster.cert_manager import cert_manager
from e2e.cluster.keda import keda

USAGE = """A real multi-node Kubernetes on one Linux machine, without Docker or an image registry.

    kubelab build                  build what is missing into the cache (about 10 minutes the first time on 2 cores)
    kubelab up [--nodes 3]         start; prints nothing but progress; idempotent
    kubelab exec -- CMD ...        run CMD inside the cluster's network with KUBECONFIG and PATH set
    kubelab base-image             make docker.io/library/python:3.11-slim-bookworm locally (debootstrap, podman)
    kubelab image CONTEXT TARGET=TAG ...       build targets of a Dockerfile and load them on every node
    kubelab cert-manager STEP      build (about 3 minutes the first time), install or remove cert-manager
    kubelab keda build             build KEDA's operator and metrics adapter (about 5 minutes the first time)
    kubelab load ARCHIVE           load a docker-archive on every node
    kubelab stop-node N | start-node N         power a node off (kill -9 of all that it runs) and on again
    kubelab cut-node N | join-node N           unplug a node's network cable, and plug it back in
    kubelab cut-api N | join-api N             cut a node and its pods from the API server only
    kubelab freeze COMPONENT | thaw COMPONENT  SIGSTOP / SIGCONT of kube-apiserver, etcd, ...
    kubelab save-etcd | restore-etcd           keep etcd's files, and put them back: an older state of all objects
    kubelab down                   stop everything and delete the state

Root on Debian 12 is needed. KUBELAB_HOME: the state (/var/lib/kubelab).
KUBELAB_CACHE: what was built (~/.cache/kubelab).
"""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="kubelab", usage=argparse.SUPPRESS, description=USAGE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = found.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS, prog="kubelab")

    def command(name: str, run: Callable[..., object], *names: str) -> argparse.ArgumentParser:
        """names: of the arguments that `run` gets, in order."""
        sub = commands.add_parser(name)
        sub.set_defaults(run=lambda args: run(*(getattr(args, one) for one in names)))
        return sub

    command("build", build)
    command("up", lifecycle.up, "nodes").add_argument("--nodes", type=int, default=3)
    command("exec", lifecycle.execute, "command").add_argument("command", nargs=argparse.REMAINDER)
    command("base-image", images.base_image)
    image = command("image", images.image, "context", "targets")
    image.add_argument("context", type=Path)
    image.add_argument("targets", metavar="TARGET=TAG", nargs="+")
    steps = command("cert-manager", cert_manager, "step")
    steps.add_argument("step", choices=("build", "install", "remove"))
    command("keda", keda, "step").add_argument("step", choices=("build",))
    command("load", images.load, "archive").add_argument("archive", type=Path)
    power, network = (faults.stop_node, faults.start_node), (faults.cut_node, faults.join_node)
    for harm in (*power, *network, faults.cut_api, faults.join_api):
        command(harm.__name__.replace("_", "-"), harm, "index").add_argument("index", type=int)
    for harm_component in (faults.freeze, faults.thaw):
        command(harm_component.__name__, harm_component, "component").add_argument("component")
    command("save-etcd", faults.save_etcd)
    command("restore-etcd", faults.restore_etcd)
    command("down", lifecycle.down)
    return found


def main() -> None:
    args = parser().parse_args()
    args.run(args)
