"""Another machine, as far as the network goes, that can be unplugged.

Needs root and `ip`; tests are skipped without.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

_CLIENT = "import socket, sys, time; s = socket.create_connection((sys.argv[1], int(sys.argv[2])))"
_CLIENT += "; s.sendall(sys.argv[3].encode())\nwhile s.recv(4096): pass"

_numbers = itertools.count()


class Machine:
    """router: this process's address, as the machine sees it."""

    def __init__(self) -> None:
        self._name = f"dm{os.getpid()}-{next(_numbers)}"
        self._near, self._far = f"{self._name}n", f"{self._name}f"
        net = f"10.{64 + os.getpid() % 150}.200"
        self.router, self._address = f"{net}.1", f"{net}.2"

    def __enter__(self) -> Machine:
        try:
            _ip("netns", "add", self._name)
            _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self._name)
            for where, device, address in (
                ((), self._near, self.router),
                (("-n", self._name), self._far, self._address),
            ):
                _ip(*where, "addr", "add", f"{address}/24", "dev", device)
                _ip(*where, "link", "set", device, "up")
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            self.__exit__()
            why = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            pytest.skip(f"no network namespaces here: {why}")
        return self

    def __exit__(self, *_: object) -> None:
        for what in (("link", "del", self._near), ("netns", "del", self._name)):  # a namespace's go some time after it
            subprocess.run(["ip", *what], capture_output=True, check=False)

    def connect(self, host: str, port: int, text: str) -> subprocess.Popen[bytes]:
        """A process there that sends the text, and reads what is answered."""
        command = ["ip", "netns", "exec", self._name, sys.executable, "-c", _CLIENT, host, str(port), text]
        return subprocess.Popen(command)

    def unplug(self) -> None:
        """Neither side is told."""
        _ip("-n", self._name, "link", "set", self._far, "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
