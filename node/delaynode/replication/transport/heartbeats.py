"""Heartbeats and their replies: one UDP socket, one thread, no disk, no event loop.

A master's right to serve hangs on replies that come within fractions of a second, whatever the rest of the process is
busy with. HeartbeatGuard says which of them count, and ReplicaLeases decides about them (replication/); here they are
only carried.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from delayapi.address import family_of, join

from delaynode.replication.heartbeat_guard import HeartbeatGuard, NoKey, Unauthenticated
from delaynode.replication.protocol import BadMessage, HeartbeatReply
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.transport.links import is_ip, is_same_ip

RECEIVE_BYTES = 4 << 20  # of the kernel's queue: what comes while this thread does not run
DATAGRAM_BYTES = 65_536
DRAIN = 2_000  # datagrams that are taken before time is looked at again, so that a flood can't stop the heartbeats
QUIET_SECONDS = 60.0  # before the same trouble is logged again


class HeartbeatThread:
    """bind(), start(), stop(). nudge() from any thread."""

    def __init__(
        self,
        replica_leases: ReplicaLeases,
        guard: HeartbeatGuard,
        address: Callable[[str], tuple[str, int] | None],
        log: Callable[..., None],
        interval_ms: int = 250,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """address: where a node is to be reached now, an IP address and a port. It and log are called on the thread.

        A datagram counts only if it comes from the IP address of the node in whose name it speaks.
        """
        self._replica_leases, self._guard = replica_leases, guard
        self._address = address
        self._log = log
        self._interval = interval_ms / 1000
        self._steady = steady
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._stopping = False
        self._nudged = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._logged: dict[tuple[str, str], float] = {}  # (event, whom it is about) -> when

    def bind(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError."""
        sock = socket.socket(family_of(host), socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            sock.setblocking(False)
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        return int(sock.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        for sock in (self._socket, self._waker, self._woken):
            if sock is not None:
                sock.close()

    def nudge(self) -> None:
        """Send heartbeats now: there is something new to ask for. Cheap; never waits."""
        self._nudged.set()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it has been woken already; closed: it is stopped
            self._waker.send(b"\0")

    # ------------------------------------------------------------ the thread
    def _run(self) -> None:
        sock = self._socket
        assert sock is not None, "bind() first"
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            due = self._steady()
            while not self._stopping:
                selector.select(max(0.0, due - self._steady()))
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._drain(sock)
                if self._nudged.is_set() or self._steady() >= due:
                    due = self._steady() + self._interval
                    self._nudged.clear()  # before heartbeats() is asked: what comes after it needs another round
                    self._survive(self._round, sock)

    def _round(self, sock: socket.socket) -> None:
        for node, heartbeat in self._replica_leases.heartbeats():
            address = self._address(node)
            if address is None:
                self._log_failure("heartbeat-not-sent", node, "its address is not known")
            elif not is_ip(address[0]):
                self._log_failure("heartbeat-not-sent", node, f"{address[0]!r} is not an IP address")
            else:
                try:
                    self._send(sock, self._guard.seal(node, heartbeat), address, node)
                except NoKey as error:
                    self._log_failure("heartbeat-not-sent", node, str(error))
        self._drain(sock)
        self._replica_leases.check_silence()

    def _drain(self, sock: socket.socket) -> None:
        for _ in range(DRAIN):
            try:
                data, sender = sock.recvfrom(DATAGRAM_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # an earlier datagram's fate, as ICMP tells it
                self._log_failure("heartbeat-not-received", "", str(error))
                continue
            self._survive(self._handle, sock, data, sender)

    def _handle(self, sock: socket.socket, data: bytes, sender: tuple[str, int]) -> None:
        try:
            opened = self._guard.open(data)
        except BadMessage as error:
            self._log_failure("peer-bad-input", sender[0], str(error))
            return
        except Unauthenticated as error:
            self._log_failure("heartbeat-unauthenticated", sender[0], str(error))
            return
        message = opened.message
        named = self._address(message.node)
        if named is None or not is_same_ip(named[0], sender[0]):
            reason = f"a datagram in the name of {message.node}, whose lease does not name this address"
            self._log_failure("peer-stranger", sender[0], reason)
        elif isinstance(message, HeartbeatReply):
            self._replica_leases.on_reply(message)
            if opened.again:
                self.nudge()
        else:
            asked = message if opened.fresh else replace(message, shards=())
            self._send(sock, self._guard.seal_reply(opened, self._replica_leases.answer(asked)), sender, message.node)

    def _send(self, sock: socket.socket, data: bytes, to: tuple[str, int], node: str) -> None:
        try:
            sock.sendto(data, to)
            self._logged.pop(("heartbeat-not-sent", node), None)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR):  # these are ordinary losses
                self._log_failure("heartbeat-not-sent", node, f"{join(to[0], to[1])}, {len(data)} bytes: {error}")

    def _survive(self, call: Callable[..., None], *args: object) -> None:
        """Nothing may end this thread: without it no shard of the node has a master for longer than a lease."""
        try:
            call(*args)
        except Exception as error:
            self._log_failure("heartbeat-failed", call.__name__, f"{type(error).__name__}: {error}")

    def _log_failure(self, event: str, peer: str, reason: str) -> None:
        now = self._steady()
        if now - self._logged.get((event, peer), -QUIET_SECONDS) >= QUIET_SECONDS:
            if len(self._logged) > 1_000:  # made-up senders
                self._logged.clear()
            self._logged[event, peer] = now
            self._log(event, peer=peer, reason=reason)
