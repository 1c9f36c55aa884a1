"""Calls with tokens that name keys which nobody has, as fast as a second's worth is asked for: HTTP/2 by hand, since a
gRPC client is slower than the node."""

from __future__ import annotations

import json
import ssl
import struct
import time
from collections import Counter
from contextlib import suppress

import hpack

from tests.auth.issuing import token
from tests.redteam.world import World
from tests.serve.server.test_tokens_served import encoded
from tests.serve.support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    header,
)

CONNECTIONS, UNDER_WAY = 8, 900  # calls at once on each: a node lets 1,000 be
TICK_SECONDS = 0.01
DRAIN_SECONDS = 60.0


class _Connection:
    def __init__(self, world: World) -> None:
        self.socket: ssl.SSLSocket = world.handshake("tokens")
        self.socket.setblocking(False)
        self.next, self.open = 1, 0
        self.statuses: Counter[str] = Counter()
        self._decoder = hpack.Decoder()
        self.out, self.inbox = bytearray(PREFACE + frame(SETTINGS, 0, 0, b"")), bytearray()
        self.out += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))

    def call(self, head: bytes, bearer: str) -> None:
        stream, self.next, self.open = self.next, self.next + 2, self.open + 1
        self.out += frame(HEADERS, END_HEADERS, stream, head + _long_header("authorization", bearer))
        self.out += frame(DATA, END_STREAM, stream, bytes(5))

    def turn(self) -> None:
        """Send and take what can be without waiting."""
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self.out:
                del self.out[: self.socket.send(self.out[:65_536])]
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while data := self.socket.recv(65_536):
                self.inbox += data
        self._take()

    def _take(self) -> None:
        at = 0
        while len(self.inbox) >= at + 9:
            size = int.from_bytes(self.inbox[at : at + 3], "big")
            if len(self.inbox) < at + 9 + size:
                break
            kind, flags, payload = self.inbox[at + 3], self.inbox[at + 4], bytes(self.inbox[at + 9 : at + 9 + size])
            if kind == SETTINGS and not flags & ACK:
                self.out += frame(SETTINGS, ACK, 0, b"")
            elif kind == PING and not flags & ACK:
                self.out += frame(PING, ACK, 0, payload)
            elif kind == HEADERS:
                fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
                if flags & END_STREAM:
                    self.open -= 1
                    self.statuses[fields["grpc-status"]] += 1
            at += 9 + size
        del self.inbox[:at]


def flood(world: World, seconds: float, rate: int) -> tuple[Counter[str], float]:
    """How many calls ended with which grpc-status, and in how many seconds. The tokens are the provider's, but for the
    key. Raises AssertionError where a call has no answer."""
    _, body, mac = token(iss=world.provider.url).split(".")
    fields = {":method": "POST", ":scheme": "https", ":path": "/delay.v1.DelayService/QueryRoute",
              ":authority": "node", "content-type": "application/grpc", "te": "trailers"}  # fmt: skip
    head = b"".join(header(*one) for one in fields.items())
    connections = [_Connection(world) for _ in range(CONNECTIONS)]
    began = now = time.monotonic()
    sent = 0
    while now < began + seconds:
        for _ in range(max(0, int((now - began) * rate) - sent)):
            connection = connections[sent % CONNECTIONS]
            if connection.open >= UNDER_WAY:
                break
            key = encoded(json.dumps({"alg": "ES256", "kid": f"flood-{began}-{sent}"}).encode())
            connection.call(head, f"Bearer {key}.{body}.{mac}")
            sent += 1
        for connection in connections:
            connection.turn()
        time.sleep(TICK_SECONDS)
        now = time.monotonic()
    while any(one.open for one in connections) and time.monotonic() < now + DRAIN_SECONDS:
        for connection in connections:
            connection.turn()
        time.sleep(TICK_SECONDS)
    took = time.monotonic() - began
    for connection in connections:
        connection.socket.close()
    found = sum((one.statuses for one in connections), Counter[str]())
    assert found.total() == sent, f"{sent - found.total()} of {sent} calls have no answer"
    return found, took


def _long_header(name: str, value: str) -> bytes:
    """A literal header that is not indexed, of any length."""
    return b"\x00" + _length(len(name)) + name.encode() + _length(len(value)) + value.encode()


def _length(number: int) -> bytes:
    """HPACK's integer with a prefix of seven bits."""
    if number < 127:
        return bytes([number])
    number -= 127
    found = bytearray([127])
    while number >= 128:
        found.append(number % 128 + 128)
        number //= 128
    return bytes([*found, number])
