"""The program's side: starts the agent, and talks to it through links. Blocking; knows nothing of gRPC."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from delayclient.agent import frames

_AGENTS: Final[dict[str, AgentProcess]] = {}
_LOCK = threading.Lock()
_OPEN: Final[weakref.WeakSet[socket.socket]] = weakref.WeakSet()
"""All sockets of this process to agents."""


class ClusterRefused(Exception):
    """What the cluster answered, or why there was no answer: docs/errors.md has the reasons.

    retryable: the same call may succeed later.
    """

    def __init__(self, message: str, code: str = "UNKNOWN", reason: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retryable = retryable


class AgentLost(ConnectionError):
    """The agent has ended, or this process was forked from the one that the link belongs to."""


class Link:
    """One conversation with the agent. A call may be made by any thread; deliveries are read by one."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._calling = threading.Lock()
        self._buffer = bytearray()
        self._unread: deque[frames.Frame] = deque()

    @property
    def usable(self) -> bool:
        return self._pid == os.getpid() and self._socket.fileno() >= 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Does not wait for an answer. Raises AgentLost."""
        data = frames.encode(header, payload)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise AgentLost(f"the agent of process {self._pid} has ended: {error}") from None

    def call(self, header: dict[str, Any], payload: bytes = b"") -> frames.Frame:
        """Waits for the answer; deliveries that come before it are kept. Raises ClusterRefused, AgentLost."""
        with self._calling:
            self.send(header, payload)
            while True:
                answer = self._next()
                if "tag" not in answer[0]:
                    return _checked(answer)
                self._unread.append(answer)

    def delivery(self, timeout_s: float | None) -> frames.Frame | None:
        """The next one; None: none came in time. Raises ClusterRefused: what ended the subscription; AgentLost."""
        if self._unread:
            return _checked(self._unread.popleft())
        found = frames.cut(self._buffer)
        while found is None:
            if not select.select([self._socket], [], [], timeout_s)[0]:
                return None
            self._read()
            found = frames.cut(self._buffer)
        return _checked(found)

    def _next(self) -> frames.Frame:
        while (found := frames.cut(self._buffer)) is None:
            self._read()
        return found

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except OSError as error:
            raise AgentLost(f"the agent of process {self._pid} has ended: {error}") from None
        if not data:
            raise AgentLost(f"the agent of process {self._pid} has ended")
        self._buffer += data

    def close(self) -> None:
        self._socket.close()


def _checked(answer: frames.Frame) -> frames.Frame:
    if "error" in answer[0]:
        raise ClusterRefused(**answer[0]["error"])
    return answer


class AgentProcess:
    """The agent of this process for one cluster. Raises ClusterRefused: settings that can't be used; AgentLost."""

    def __init__(self, endpoints: Sequence[str], access: Mapping[str, Any]) -> None:
        ours, its = socket.socketpair()
        with its:
            command = [sys.executable, "-m", "delayclient.agent.process", str(its.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        self._socket = ours
        _OPEN.add(ours)
        try:
            Link(ours).call({"endpoints": list(endpoints), **access, "parent": os.getpid()})
        except BaseException:
            ours.close()
            self._process.wait()
            raise

    @property
    def running(self) -> bool:
        return self._socket.fileno() >= 0 and self._process.poll() is None

    def link(self) -> Link:
        """Raises AgentLost."""
        ours, its = socket.socketpair()
        _OPEN.add(ours)
        try:
            with its:
                socket.send_fds(self._socket, [b"L"], [its.fileno()])
        except OSError as error:
            raise AgentLost(f"the agent has ended: {error}") from None
        return Link(ours)


def connect(endpoints: Sequence[str], access: Mapping[str, Any]) -> Link:
    """A link to this process's agent for that cluster, which is started where none runs.

    Raises AgentLost, and ClusterRefused for settings that can't be used.
    access: tls (the fields of delayapi.credentials.Tls), token_file, token.
    """
    key = json.dumps([list(endpoints), dict(access)], sort_keys=True)
    with _LOCK:
        agent = _AGENTS.get(key)
        if agent is None or not agent.running:
            agent = _AGENTS[key] = AgentProcess(endpoints, access)
        return agent.link()


def _after_fork() -> None:
    """In the child: its parent's sockets are not its own, and would keep the agent from seeing the parent's end."""
    global _LOCK
    _LOCK = threading.Lock()
    for sock in list(_OPEN):
        sock.close()
    _OPEN.clear()
    _AGENTS.clear()


os.register_at_fork(after_in_child=_after_fork)
