"""Starting all of it, running commands inside, and stopping all of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from e2e.cluster.build import build, timed
from e2e.cluster.controlplane import ready_nodes, start_control_plane
from e2e.cluster.hosts import control_plane_host, known_nodes, node_host
from e2e.cluster.nodes import Node
from e2e.cluster.settings import KUBE_VERSION, PLACES, VOLUMES
from e2e.cluster.shell import fail, out, say, sh, succeeds, wait_for

COMMAND = Path(__file__).resolve().parent.parent / "kubelab"


def up(nodes: int) -> None:
    build()
    PLACES.home.mkdir(parents=True, exist_ok=True)
    if shutil.which("modprobe"):
        succeeds("modprobe", "-aq", "br_netfilter", "overlay")
    succeeds("mount", "--make-rshared", "/")
    with timed(f"starting Kubernetes {KUBE_VERSION} with {nodes} nodes"):
        start_control_plane()
        for index in range(nodes):
            Node(index).connect(nodes)
            Node(index).start()
        wait_for("every node", lambda: ready_nodes() >= nodes)
    say(f"up; KUBECONFIG={PLACES.admin} inside `kubelab exec --`")


def execute(command: Sequence[str]) -> NoReturn:
    """Becomes `command` inside the cluster's network, with names such as NAME.NAMESPACE.svc by the cluster's DNS."""
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        fail("exec: which command?")
    if not PLACES.admin.exists():
        fail("the cluster is not up: `kubelab up` starts it")
    ours = {"KUBECONFIG": str(PLACES.admin), "PATH": f"{PLACES.bin}:{os.environ['PATH']}", "KUBELAB": str(COMMAND)}
    # a mount namespace of its own, so that only this command sees the other resolv.conf
    script = f'mount --bind {PLACES.home}/resolv.conf /etc/resolv.conf 2>/dev/null; exec "$@"'
    argv = control_plane_host().inside("unshare", "--mount", "sh", "-c", script, "sh", *command)
    os.execvpe(argv[0], argv, {**os.environ, **ours})


def down() -> None:
    """Stops everything and deletes the state; the cache stays."""
    hosts = [*map(node_host, known_nodes()), control_plane_host()]
    for host in hosts:
        if host.exists():
            host.power_off()
    time.sleep(0.5)  # for the kernel to let go of the mounts
    with open("/proc/mounts") as mounts:
        points = [line.split()[1] for line in mounts]
    ours = (str(PLACES.home), str(PLACES.run))
    succeeds("umount", "-l", *sorted((one for one in points if one.startswith(ours)), reverse=True))
    for host in hosts:
        if host.exists():
            sh("ip", "netns", "delete", host.name)
    for line in out("ip", "netns", "list").splitlines():
        name = line.split()[0]
        # the pods' namespaces: CNI leaves them when a node is powered off; those of anybody else's pods have processes
        if name.startswith("cni-") and not out("ip", "netns", "pids", name, check=False).split():
            sh("ip", "netns", "delete", name)
    for directory in (VOLUMES, PLACES.home, PLACES.run):
        shutil.rmtree(directory, ignore_errors=True)
