"""A client that writes HTTP/2 frames by hand, and reads what comes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hpack import Decoder, Encoder

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ENHANCE_YOUR_CALM = 11
NO_FLAGS = 0


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def error(self) -> int:
        """Of a GOAWAY or a RST_STREAM."""
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload[:4])


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


def message(body: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(body)) + body


class Http2:
    """Its socket is blocking, with a limit of 20 s."""

    def __init__(self, port: int, *, begin: bool = True, settings: Sequence[tuple[int, int]] = ()) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.encoder, self.decoder = Encoder(), Decoder()
        self.next_stream = 1
        self.connection_window = self.stream_window = 65_535  # to send into, as the server said first
        self._came, self.began = b"", begin
        if begin:
            body = b"".join(struct.pack(">HI", *setting) for setting in settings)
            self.send(PREFACE + frame(SETTINGS, NO_FLAGS, 0, body))
            self.read_until(SETTINGS)  # what it says counts from the acknowledgement on

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self, path: str = "/test.Test/Echo", **other: str) -> bytes:
        """The header block of a call; of others with `_` for `-`, "" leaves one out."""
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "edge", "te": "trailers"}
        fields["content-type"] = "application/grpc"
        fields |= {name.replace("_", "-") if name != "method" else ":method": value for name, value in other.items()}
        block: bytes = self.encoder.encode([(name, value) for name, value in fields.items() if value])
        return block

    def call(self, path: str = "/test.Test/Echo", body: bytes | None = None, *, end: bool = True, **other: str) -> int:
        """Begin a call; returns its stream. body: what DATA frames have; one that is larger than the connection's first
        window waits for the wide one, as sent before it ends the connection."""
        if body is not None and len(body) > self.connection_window:
            self.read_until(WINDOW_UPDATE, stream=0)
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        last = END_STREAM if end else NO_FLAGS
        flags = END_HEADERS | (last if body is None else NO_FLAGS)
        out = frame(HEADERS, flags, stream, self.head(path, **other))
        if body is not None:
            pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)] or [b""]
            for piece in pieces[:-1]:
                out += frame(DATA, NO_FLAGS, stream, piece)
            out += frame(DATA, last, stream, pieces[-1])
        self.send(out)
        return stream

    def read(self, seconds: float = 20) -> Frame | None:
        """The next frame; None when the connection has ended. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while len(self._came) < 9 or len(self._came) < 9 + int.from_bytes(self._came[:3]):
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            try:
                came = self.socket.recv(65_536)
            except ConnectionError:
                return None
            if not came:
                return None
            self._came += came
        length = int.from_bytes(self._came[:3])
        kind, flags, stream = struct.unpack(">BBI", self._came[3:9])
        payload, self._came = self._came[9 : 9 + length], self._came[9 + length :]
        if kind == SETTINGS and not flags & ACK and self.began:
            self.stream_window = dict(struct.iter_unpack(">HI", payload)).get(4, 65_535)
            self.try_send(frame(SETTINGS, ACK, 0))
        if kind == WINDOW_UPDATE and stream == 0 and self.connection_window == 65_535:
            self.connection_window += int.from_bytes(payload)
        return Frame(kind, flags, stream, payload)

    def try_send(self, data: bytes) -> bool:
        try:
            self.send(data)
        except OSError:
            return False
        return True

    def read_until(self, *kinds: int, stream: int | None = None, seconds: float = 20) -> Frame:
        while (came := self.read(seconds)) is not None:
            if came.kind in kinds and stream in (None, came.stream):
                return came
        raise ConnectionError("the connection has ended")

    def answer(self, stream: int, seconds: float = 20) -> tuple[dict[str, str], bytes]:
        """All headers and trailers of a call, and its DATA."""
        fields: dict[str, str] = {}
        data = b""
        while (came := self.read(seconds)) is not None:
            if came.kind == HEADERS:
                found = dict(self.decoder.decode(came.payload))
                if came.stream == stream:
                    fields |= found
            if came.stream == stream and came.kind == DATA:
                data += came.payload
            if came.stream == stream and came.kind == RST_STREAM:
                fields["reset"] = str(came.error)
                break
            if came.stream == stream and came.kind in (HEADERS, DATA) and came.flags & END_STREAM:
                break
        return fields, data

    def ended_within(self, seconds: float) -> int | None:
        """Wait for the end of the connection; returns the last GOAWAY's error, if any. Raises TimeoutError."""
        error, until = None, time.monotonic() + seconds
        while (came := self.read(max(0.01, until - time.monotonic()))) is not None:
            if came.kind == GOAWAY:
                error = came.error
        return error
