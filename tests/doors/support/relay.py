"""A relay between one client and a node, which may end the connection as no client's library does."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from delayapi.address import split


class Relay:
    """Takes one connection at `endpoint`. Owned by the test, which ends it by reset()."""

    def __init__(self, node: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.passed = 0  # bytes that the node was sent
        self.held = b""  # what the node has said since hold_answers()
        self._node, self._sockets = node, list[socket.socket]()
        self._answering, self._silent = threading.Event(), threading.Event()
        self._answering.set()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            client, _ = self._listening.accept()
            node = socket.create_connection(split(self._node))
            for one in (client, node):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, node]
            threading.Thread(target=self._answer, args=(node, client), daemon=True).start()
            while (data := client.recv(65_536)) and not self._silent.is_set():
                node.sendall(data)
                self.passed += len(data)

    def _answer(self, node: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := node.recv(65_536):
                if self._silent.is_set():
                    return
                if not self._answering.is_set():
                    self.held += data
                    continue
                client.sendall(data)

    def hold_answers(self) -> None:
        """What the node says from now on never comes to the client."""
        self._answering.clear()

    def silence(self) -> None:
        """As a machine that is gone: the connection stands, and nothing is heard of the client any more."""
        self._silent.set()

    def reset(self) -> None:
        """As a process that is killed, to both."""
        self._silent.set()
        self._listening.close()
        for one in self._sockets:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RD)  # wakes who reads
                one.close()
