"""Network namespaces: each node of a local cluster on a machine of its own, as far as the network goes.

    n0 10.K.0.2 --- 10.K.0.1 router 10.K.100.1 --- 10.K.100.2 this process: clients, control loop
    n1 10.K.1.2 --- 10.K.1.1

The router drops packets of a cut direction silently, as a broken link does; clients' calls that nodes pass on to each
other are cut with them. The registry is a file and stays reachable. Needs root and `ip`; tests are skipped without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

import pytest

CLIENT = 100  # the network of this process
GRPC, HTTP, PEER = 7070, 7170, 7270


class Namespaces:
    """`with Namespaces(nodes) as spaces: FaultCluster(..., options=spaces.options, prefix=spaces.prefix, ...)`."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self._id = f"{os.getpid() % 10_000:04d}"
        self._net = 64 + os.getpid() % 150
        self._router = f"dr{self._id}"
        self._cut: list[list[str]] = []

    def __enter__(self) -> Namespaces:
        try:
            self._make()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            self._remove()
            why = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            pytest.skip(f"no network namespaces here: {why}")
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make(self) -> None:
        router = self._router
        _ip("netns", "add", router)
        _ip("netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for number, node in enumerate(self.nodes):
            _ip("netns", "add", self._space(node))
            self._wire(number, self._space(node))
            _ip("-n", self._space(node), "route", "add", "default", "via", self._address(number, 1))
        self._wire(CLIENT, None)
        for number in range(len(self.nodes)):
            _ip("route", "add", self._network(number), "via", self._address(CLIENT, 1))

    def _wire(self, number: int, space: str | None) -> None:
        """A veth pair from the router to a namespace, or to this process's own."""
        near, far = self._link(number), f"de{self._id}-{number}"
        _ip("link", "add", near, "netns", self._router, "type", "veth", "peer", "name", far)
        inside = () if space is None else ("-n", space)
        if space is not None:
            _ip("link", "set", far, "netns", space)
            _ip(*inside, "link", "set", "lo", "up")
        for place, device, host in ((("-n", self._router), near, 1), (inside, far, 2)):
            _ip(*place, "addr", "add", f"{self._address(number, host)}/24", "dev", device)
            _ip(*place, "link", "set", device, "up")

    def _remove(self) -> None:
        """Remove the namespaces: the devices go with the namespaces, the routes with the devices."""
        for space in (*(self._space(node) for node in self.nodes), self._router):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    # ------------------------------------------------------------ the cluster's part
    def prefix(self, number: int, node: str) -> tuple[str, ...]:
        return (shutil.which("ip") or "ip", "netns", "exec", self._space(node))

    def options(self, number: int, node: str) -> tuple[str, ...]:
        host = self._address(number, 2)
        return ("--listen", f"{host}:{GRPC}", "--http", f"{host}:{HTTP}", "--peer", f"{host}:{PEER}")

    @property
    def endpoints(self) -> list[str]:
        return [f"{self._address(number, 2)}:{GRPC}" for number in range(len(self.nodes))]

    # ------------------------------------------------------------ cuts
    def cut(self, *ways: tuple[str, str]) -> None:
        """Let nothing pass from the first node of each pair to the second."""
        for sender, receiver in ways:
            rule = ["iif", self._link(self.nodes.index(sender)), "to", self._network(self.nodes.index(receiver))]
            _ip("-n", self._router, "rule", "add", *rule, "blackhole")
            self._cut.append(rule)

    def part(self, node: str) -> None:
        """Cut a node off from the others, both ways."""
        for other in self.nodes:
            if other != node:
                self.cut((node, other), (other, node))

    def heal(self) -> None:
        for rule in self._cut:
            _ip("-n", self._router, "rule", "del", *rule, "blackhole")
        self._cut = []

    # ------------------------------------------------------------ names
    def _space(self, node: str) -> str:
        return f"ds{self._id}{node}"

    def _link(self, number: int) -> str:
        return f"dr{self._id}-{number}"

    def _network(self, number: int) -> str:
        return f"10.{self._net}.{number}.0/24"

    def _address(self, number: int, host: int) -> str:
        return f"10.{self._net}.{number}.{host}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
