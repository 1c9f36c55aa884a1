"""Faults of nodes and of the control plane's components."""

from __future__ import annotations

import shutil
import signal

from e2e.cluster.controlplane import ready_nodes, start_control_plane
from e2e.cluster.hosts import control_plane_host, known_nodes
from e2e.cluster.nodes import Node
from e2e.cluster.settings import PLACES, node_ip, pod_network
from e2e.cluster.shell import succeeds, wait_for

ETCD, SAVED = PLACES.home / "etcd", PLACES.home / "etcd-saved"
STATELESS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def stop_node(index: int) -> None:
    """Power off: kill -9 of all that the node runs. Its written files stay, as after a loss of the machine's power."""
    Node(index).host.power_off()


def start_node(index: int) -> None:
    Node(index).start()


def cut_node(index: int) -> None:
    """Unplug its network cable: nothing reaches it or its pods, nor they anything outside it."""
    control_plane_host().ip("link", "set", Node(index).cable, "down")


def join_node(index: int) -> None:
    control_plane_host().ip("link", "set", Node(index).cable, "up")


def cut_api(index: int) -> None:
    """The node and its pods lose the API server, and nothing else."""
    _filter("-I", index)


def join_api(index: int) -> None:
    _filter("-D", index)


def _filter(action: str, index: int) -> None:
    host = control_plane_host()
    for source in (node_ip(index), pod_network(index)):
        rule = ("INPUT", "-s", source, "-p", "tcp", "--dport", "6443", "-j", "DROP")
        there = succeeds(*host.inside("iptables", "-w", "-C", *rule))
        if there == (action == "-D"):
            succeeds(*host.inside("iptables", "-w", action, *rule))


def freeze(component: str) -> None:
    control_plane_host().send_signal(component, signal.SIGSTOP)


def thaw(component: str) -> None:
    control_plane_host().send_signal(component, signal.SIGCONT)


def save_etcd() -> None:
    """The files of etcd as they are now, as a snapshot of its disk has them; one at a time."""
    shutil.rmtree(SAVED, ignore_errors=True)
    freeze("etcd")
    try:
        shutil.copytree(ETCD, SAVED)
    finally:
        thaw("etcd")


def restore_etcd() -> None:
    """Put back the files that were saved, so that versions of objects go back too. Kubernetes' own processes are
    started again, as its manual says; all pods go on."""
    host = control_plane_host()
    for process in (*STATELESS, "etcd"):
        host.kill(process)
    shutil.rmtree(ETCD)
    shutil.copytree(SAVED, ETCD)
    start_control_plane()
    host.kill("coredns")
    host.kill("kube-proxy")
    start_control_plane()
    nodes = [Node(index) for index in known_nodes()]
    for node in nodes:
        if node.host.runs("kubelet"):
            node.host.kill("kubelet")
            node.host.kill("kube-proxy")
            node.start()
    wait_for("every node", lambda: ready_nodes() >= len(nodes))
