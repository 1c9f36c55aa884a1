"""Clients that behave as no gRPC library does: HTTP/2 by hand, thousands of connections on one thread.

They grant the node as much room for answers as the test says and never read them; they keep to the room that the node
grants them, and send of a request only what the test says.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
INITIAL_WINDOW_SIZE = 0x4
FRAME_BYTES = 16_384
STREAM = 1  # each connection has one call at most


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    """A literal header that is not indexed; name and value under 127 bytes."""
    return b"\x00" + b"".join(bytes([len(part)]) + part.encode() for part in (name, value))


def message(data: bytes) -> bytes:
    """A gRPC message on the wire."""
    return struct.pack(">BI", 0, len(data)) + data


def opening(method: str) -> bytes:
    """The frame that starts a call of DelayService."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/delay.v1.DelayService/{method}",
        ":authority": "crowd",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return frame(HEADERS, END_HEADERS, STREAM, b"".join(header(*field) for field in fields.items()))


@dataclass(eq=False)
class Caller:
    """One connection."""

    socket: socket.socket
    out: deque[bytes] = field(default_factory=deque)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    end: bool = False  # the call has no more requests than these
    inbox: bytearray = field(default_factory=bytearray)
    room: int = 65_535  # for the connection's DATA
    stream_room: int = 65_535
    settled: bool = False  # the node's settings came
    over: bool = False  # the call has ended
    closed: bool = False

    def fill(self) -> None:
        """Turn what may be sent into frames, a little at a time."""
        while len(self.out) < 8 and len(self.unsent) and (most := min(self.room, self.stream_room, FRAME_BYTES)) > 0:
            part, self.unsent = self.unsent[:most], self.unsent[most:]
            self.room -= len(part)
            self.stream_room -= len(part)
            last = self.end and not len(self.unsent)
            self.out.append(frame(DATA, END_STREAM if last else 0, STREAM, part))

    def take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self.settled = True
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == INITIAL_WINDOW_SIZE:
                    self.stream_room += value - 65_535
            self.out.append(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.out.append(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if stream:
                self.stream_room += more
            else:
                self.room += more
        elif kind == RST_STREAM or (stream and flags & END_STREAM):
            self.over = True


class Crowd:
    """`count` connections. window: bytes of answers that the node may send to each call, which are never read."""

    def __init__(self, endpoint: str, count: int, window: int = 0) -> None:
        host, _, port = endpoint.rpartition(":")
        self._selector = selectors.DefaultSelector()
        self.callers: list[Caller] = []
        for _ in range(count):
            caller = Caller(socket.create_connection((host, int(port)), 10))
            caller.socket.setblocking(False)
            caller.out.append(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window)))
            self._selector.register(caller.socket, selectors.EVENT_READ, caller)
            self.callers.append(caller)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def call(self, method: str, requests: bytes, *, send: int | None = None, end: bool = True) -> None:
        """Start a call on each connection. requests: messages on the wire, of which `send` bytes are sent (all)."""
        for caller in self.callers:
            caller.out.append(opening(method))
            caller.end = end
            caller.unsent = memoryview(requests)[:send]

    @property
    def settled(self) -> int:
        return sum(caller.settled for caller in self.callers)

    @property
    def over(self) -> int:
        return sum(caller.over for caller in self.callers)

    @property
    def closed(self) -> int:
        return sum(caller.closed for caller in self.callers)

    @property
    def stalled(self) -> int:
        """The number of callers that have nothing more to send, or no room for it, or are closed."""
        return sum(
            caller.closed or not len(caller.unsent) or min(caller.room, caller.stream_room) <= 0
            for caller in self.callers
        )

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(0.01):
                self._read(key.data)
            for caller in self.callers:
                if not caller.closed and (caller.out or len(caller.unsent)):
                    self._write(caller)

    def _read(self, caller: Caller) -> None:
        try:
            data = caller.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(caller)
            return
        caller.inbox += data
        while len(caller.inbox) >= 9:
            size = int.from_bytes(caller.inbox[:3], "big")
            if len(caller.inbox) < 9 + size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", caller.inbox, 3)
            caller.take(kind, flags, stream, bytes(caller.inbox[9 : 9 + size]))
            del caller.inbox[: 9 + size]

    def _write(self, caller: Caller) -> None:
        caller.fill()
        try:
            while caller.out:
                sent = caller.socket.send(caller.out[0])
                if sent < len(caller.out[0]):
                    caller.out[0] = caller.out[0][sent:]
                else:
                    caller.out.popleft()
                    caller.fill()
        except BlockingIOError:
            return
        except OSError:
            self._drop(caller)

    def _drop(self, caller: Caller) -> None:
        caller.closed = True
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(caller.socket)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        for caller in self.callers:
            caller.socket.close()
        self._selector.close()

    def __enter__(self) -> Crowd:
        deadline = time.monotonic() + 20
        while self.settled < len(self.callers):
            assert time.monotonic() < deadline, f"{self.settled} of {len(self.callers)} connections work"
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
