"""One TCP connection between two nodes: a greeting each way, then messages (replication/protocol.py).

    hello    magic "DLYH" | least version u16 | size u16 | words, each length u16 | UTF-8: cluster, own node, own
             incarnation, node meant, incarnation meant, greatest version, by TLS a heartbeat key; further words are a
             later release's
    answer   magic "DLYA" | version u16: the one that is spoken from now on | size u16 | why not, UTF-8; empty: welcome

The greeting's own form never changes, so that any two releases can tell each other what they speak: the greatest
version that both do. A release before 0.2 takes a hello of five words and version 1 only: the lease of such a process
names no versions, and it is greeted so. A hello without a greatest version has the least one.

The socket is the loop's own rather than an asyncio transport's, which copies: Python 3.11 joins what writelines() is
given, and copies again what the network does not take at once. Here nothing is copied on the way out. On the way in a
long message is received into a buffer of its own, which is handed over; short ones are copied out of a shared one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import traceback
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from delayregistry.model import FIRST_VERSION, VersionRange

from delaynode.replication.protocol import HEAD_BYTES, MAX_MESSAGE_BYTES, BadMessage, Message, decode
from delaynode.store.types import Buffer, raw

WIRE = VersionRange(1, 1)  # of the messages that follow
HELLO_BYTES = 1 << 10  # all that an unidentified sender can make us keep
RECEIVE_BYTES = 64 << 10
OWN_BUFFER_BYTES = RECEIVE_BYTES // 2  # messages above get a buffer of their own
MAX_BACKLOG_BYTES = 256 << 20  # of messages that the other side does not take
PASS_BYTES = 4 << 20  # read or written before others have their turn
JOIN_BYTES = 64 << 10  # so little is copied into one buffer: many small ones cost the kernel more
RECORD_BYTES = 16 << 10  # of TLS, at most
MAX_BUFFERS = 1_000  # in one sendmsg(); the kernel takes 1,024

NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# events that a connection ends with
BAD_INPUT = "peer-bad-input"
NO_VERSION = "peer-no-common-version"
TOO_SLOW = "peer-too-slow"
HANDLER_FAILED = "peer-handler-failed"

_HELLO_MAGIC, _ANSWER_MAGIC = b"DLYH", b"DLYA"  # different: a socket that got connected to itself hears its own hello
_GREETING = struct.Struct("<4sHH")
GREETING_BYTES = _GREETING.size
_TEXT = struct.Struct("<H")
_KEY = "heartbeat-key="  # before that word
_LENGTH = struct.Struct("<I")
_MIN_LENGTH = HEAD_BYTES - _LENGTH.size


class BadGreeting(Exception):
    """The peer is not the node that it should be; says why."""


class NoCommonVersion(BadGreeting):
    """The peer is of a release that is too far from this one: no version of the wire is known to both."""

    def __init__(self, own: VersionRange, other: VersionRange) -> None:
        super().__init__(f"no wire version in common: {own} here, {other} on the other side")


def common_version(own: VersionRange, other: VersionRange) -> int:
    """Raises NoCommonVersion."""
    found = own.common(other)
    if found is None:
        raise NoCommonVersion(own, other)
    return found


@dataclass(frozen=True, slots=True)
class Hello:
    """What a connecting node says: who it is, and whom it means to reach."""

    cluster: str
    node: str
    incarnation: str
    to_node: str
    to_incarnation: str
    versions: VersionRange = WIRE
    heartbeat_key: str = ""  # as HeartbeatKey.encode() writes it

    def encode(self) -> bytes:
        words = [self.cluster, self.node, self.incarnation, self.to_node, self.to_incarnation]
        if self.versions != FIRST_VERSION or self.heartbeat_key:  # a release before 0.2 takes no sixth word, and no TLS
            words.append(str(self.versions.greatest))
        if self.heartbeat_key:
            words.append(_KEY + self.heartbeat_key)
        texts = [text.encode() for text in words]
        return _greeting(_HELLO_MAGIC, self.versions.least, b"".join(_TEXT.pack(len(text)) + text for text in texts))

    @staticmethod
    def decode(data: bytes) -> Hello:
        """A whole hello. Raises BadGreeting."""
        (least, body), texts = _body(_HELLO_MAGIC, data), []
        try:
            while body:
                (size,) = _TEXT.unpack_from(body)
                text, body = body[_TEXT.size : _TEXT.size + size], body[_TEXT.size + size :]
                if len(text) != size:
                    raise BadGreeting(f"a word of {size} bytes is cut off")
                texts.append(text.decode())
            cluster, node, incarnation, to_node, to_incarnation, *more = texts
            versions = VersionRange(least, int(more[0]) if more else least)
            keys = (word.removeprefix(_KEY) for word in more[1:] if word.startswith(_KEY))
            return Hello(cluster, node, incarnation, to_node, to_incarnation, versions, next(keys, ""))
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise BadGreeting(f"no hello: {error}") from error


def encode_answer(version: int, refusal: str = "") -> bytes:
    """version: of a refusal, the hello's least: whoever greeted so can read it."""
    text = refusal.encode()[: HELLO_BYTES - GREETING_BYTES]
    return _greeting(_ANSWER_MAGIC, version, text.decode(errors="ignore").encode())


def decode_answer(data: bytes) -> tuple[int, str]:
    """The version that is spoken from now on, and why not; empty: welcome. Raises BadGreeting."""
    version, body = _body(_ANSWER_MAGIC, data)
    return version, body.decode(errors="replace")


def _greeting(magic: bytes, version: int, body: bytes) -> bytes:
    if len(body) > HELLO_BYTES - GREETING_BYTES:
        raise ValueError(f"the names of cluster and nodes are {len(body)} bytes together")
    return _GREETING.pack(magic, version, len(body)) + body


def _body(magic: bytes, data: bytes) -> tuple[int, bytes]:
    """The version and what follows the greeting's head."""
    found, version, _ = _GREETING.unpack_from(data)
    if found != magic:
        raise BadGreeting(f"the connection begins with {found!r}, not {magic!r}")
    return version, data[GREETING_BYTES:]


def greeting_bytes(start: memoryview) -> int:
    """How long the greeting that begins with these 8 bytes is. Raises BadGreeting."""
    magic, _, size = _GREETING.unpack_from(start)
    if magic not in (_HELLO_MAGIC, _ANSWER_MAGIC) or size > HELLO_BYTES - GREETING_BYTES:
        raise BadGreeting(f"the connection begins with {bytes(start[:8])!r}")
    return GREETING_BYTES + int(size)


class End(Protocol):
    """Whose connection it is. Called from the event loop only, never from inside a call of Wire."""

    def greeted(self, data: bytes) -> None:
        """The first thing that came, whole. Raises BadGreeting to have the connection closed."""

    def received(self, message: Message) -> None:
        """What it raises closes the connection."""

    def closed(self, reason: str, fault: str) -> None:
        """The last call. fault: whose doing it was, as an event to be logged; empty for what just happens."""


class Wire:
    """Owned by the event loop."""

    def __init__(self, sock: socket.socket, end: End, hello_seconds: float) -> None:
        """sock: connected and non-blocking; closed with the wire."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        self._end = end
        self._greeted = self._paused = False
        self.open = True
        self.backlog_bytes = 0
        self._out: deque[Buffer] = deque()
        self._sending = self._blocked = False  # a flush is to come; it waits for the network
        self._shared = memoryview(bytearray(HELLO_BYTES))
        self._start = self._stop = 0  # what of it is not used yet
        self._own: memoryview | None = None  # the message that is being received into a buffer of its own
        self._filled = 0  # bytes of it
        self._timer = self._loop.call_later(hello_seconds, self.close, f"no greeting for {hello_seconds} s", BAD_INPUT)
        self._loop.add_reader(sock, self._readable)

    def close(self, reason: str, fault: str = "") -> None:
        """What is queued is dropped, what was received but not handed over is too."""
        if not self.open:
            return
        self.open = False
        self._timer.cancel()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._out.clear()
        self.backlog_bytes = 0
        self._loop.call_soon(self._end.closed, reason, fault)

    # ------------------------------------------------------------ out
    def write(self, parts: list[Buffer]) -> None:
        """Queue buffers, which must not change any more. What is queued in one pass of the loop goes out together."""
        if not self.open:
            return
        self._out += parts
        self.backlog_bytes += sum(map(len, parts))
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._flush)
        elif self.backlog_bytes > MAX_BACKLOG_BYTES:
            self.close(f"{self.backlog_bytes} bytes wait for the other side", TOO_SLOW)

    def refuse(self, answer: bytes) -> None:
        """Send the last thing that is ever said here; close() follows."""
        with contextlib.suppress(OSError):  # they find out anyway
            self._sock.send(answer)

    def _flush(self) -> None:
        if not self.open:
            return
        taken = 0
        try:
            while self._out and taken < PASS_BYTES:
                if self.backlog_bytes <= JOIN_BYTES and len(self._out) > 1:
                    joined = b"".join(self._out)
                    self._out.clear()
                    self._out.append(joined)
                sent = (
                    self._sock.sendmsg(islice(self._out, MAX_BUFFERS))
                    if self._tls is None
                    else self._encrypt(self._tls)
                )
                taken += sent
                self._drop(sent)
        except NOT_NOW:
            pass
        except OSError as error:
            self.close(str(error))
            return
        if self._out:
            if not self._blocked:
                self._blocked = True
                self._loop.add_writer(self._sock, self._flush)
            return
        self._sending = False
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._sock)

    def _encrypt(self, tls: ssl.SSLSocket) -> int:
        """Send up to a record. Small buffers fill one together, for each costs a call, 22 bytes and a tag."""
        out = self._out
        if len(out) > 1 and len(out[0]) < RECORD_BYTES:
            parts: list[Buffer] = [out.popleft()]
            size = len(parts[0])
            while out and size < RECORD_BYTES:
                part = memoryview(out.popleft())
                if len(part) > (room := RECORD_BYTES - size):
                    out.appendleft(part[room:])
                    part = part[:room]
                parts.append(part)
                size += len(part)
            out.appendleft(b"".join(parts))
        return tls.send(out[0])

    def _drop(self, sent: int) -> None:
        self.backlog_bytes -= sent
        out = self._out
        while out and (size := len(out[0])) <= sent:
            sent -= size
            out.popleft()
        if sent:
            out[0] = memoryview(out[0])[sent:]

    # ------------------------------------------------------------ in
    def pause(self) -> None:
        """Hand over nothing more, until resume(). The kernel's buffers fill up, then the other side waits."""
        if self.open and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        if self.open and self._paused:
            self._paused = False
            self._loop.call_soon(self._resumed)

    def _resumed(self) -> None:
        if self.open and not self._paused:
            self._receive()
        if self.open and not self._paused:
            self._loop.add_reader(self._sock, self._readable)
            self._go_on()

    def _readable(self) -> None:
        self._read()
        self._go_on()

    def _go_on(self) -> None:
        """Read on soon what is decrypted already: the socket does not tell of it."""
        if self._tls is not None and self.open and not self._paused and self._tls.pending():
            self._loop.call_soon(self._readable)

    def _read(self) -> None:
        """Read what there is, up to the end of one long message, and hand it over."""
        taken = 0
        while taken < PASS_BYTES and self.open and not self._paused:
            own = self._own
            room = self._shared[self._stop :] if own is None else own[self._filled :]
            try:
                got = self._sock.recv_into(room)
            except NOT_NOW:
                return
            except OSError as error:
                self.close(str(error))
                return
            if got == 0:
                self.close("closed by the other side")
                return
            taken += got
            if own is None:
                self._stop += got
                self._receive()
                if self._own is None:
                    return  # what was handed over wants to be answered before more is read
            else:
                self._filled += got
                if self._filled == len(own):
                    self._own = None
                    self._hand_over(own)
                    return

    def _receive(self) -> None:
        """Hand over what is whole in the shared buffer, and make room there for the rest."""
        if not self._greeted and not self._greet():
            return
        shared, start, stop = self._shared, self._start, self._stop
        while stop - start >= _LENGTH.size and self.open and not self._paused:
            (length,) = _LENGTH.unpack_from(shared, start)
            if not _MIN_LENGTH <= length <= MAX_MESSAGE_BYTES:
                self.close(f"a message of {length} bytes", BAD_INPUT)
                return
            begin = start + _LENGTH.size
            if begin + length <= stop:
                start = self._start = begin + length
                self._hand_over(memoryview(bytes(shared[begin:start])))
            elif length > OWN_BUFFER_BYTES:
                # empty(): pages that nothing has come for yet are not there; a bytearray is filled with zeroes first
                self._own, self._filled = raw(np.empty(length, np.uint8)), stop - begin
                self._own[: self._filled] = shared[begin:stop]
                start = stop
            else:
                break
        shared[: stop - start] = shared[start:stop]
        self._start, self._stop = 0, stop - start

    def _greet(self) -> bool:
        """False while the greeting is not whole, or when it was not good."""
        start, stop = self._start, self._stop
        try:
            if stop < GREETING_BYTES or stop < (size := greeting_bytes(self._shared)):
                return False
            self._timer.cancel()
            self._greeted = True
            self._end.greeted(bytes(self._shared[start:size]))
        except BadGreeting as error:
            self.close(str(error), NO_VERSION if isinstance(error, NoCommonVersion) else BAD_INPUT)
            return False
        former, self._shared = self._shared, memoryview(bytearray(RECEIVE_BYTES))
        self._shared[: stop - size] = former[size:stop]
        self._start, self._stop = 0, stop - size
        return True

    def _hand_over(self, data: memoryview) -> None:
        try:
            self._end.received(decode(data))
        except BadMessage as error:
            self.close(str(error), BAD_INPUT)
        except Exception as error:  # whatever it is, this shard's or that one's: the loop must live
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error}, in {where.name} of {where.filename}, line {where.lineno}"
            self.close(reason, HANDLER_FAILED)
