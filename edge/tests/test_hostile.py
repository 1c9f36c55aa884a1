"""Clients that mean harm, or are broken: the others are served, and nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from calls import enqueue, request, unary
from fakenode import ENQUEUE, ENQUEUE_STREAM, FakeNode
from http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    NO_FLAGS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    frame,
    message,
)  # fmt: skip


@pytest.fixture
def node(start: Callable[..., FakeNode]) -> FakeNode:
    return start(handshake_ms=500, header_ms=500, request_idle_ms=500)


@pytest.fixture(autouse=True)
def others_are_served(node: FakeNode) -> Iterator[None]:
    yield
    with node.channel() as channel:
        assert unary(channel, "Echo")(b"on", timeout=20) == b"on"
    node.wait_at_rest()
    assert node.edge.figures()["panics"] == 0


def is_cut(node: FakeNode) -> bool:
    node.wait(lambda: node.edge.figures()["connections"] == 0)
    return node.edge.figures()["connections_cut"] == 1


def test_a_client_that_says_nothing_is_cut(node: FakeNode) -> None:
    with Http2(node.edge.port, begin=False) as client:
        client.ended_within(5)
    assert is_cut(node)


def test_a_preface_byte_by_byte_is_cut(node: FakeNode) -> None:
    with Http2(node.edge.port, begin=False) as client:
        for byte in PREFACE:
            if not client.try_send(bytes([byte])):
                break
            time.sleep(0.05)
        client.ended_within(5)
    assert is_cut(node)


@pytest.mark.parametrize("piece", [1, 5])
def test_headers_byte_by_byte_are_cut(piece: int, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        block = client.head(x_padding="y" * 500)
        data = frame(HEADERS, END_HEADERS | END_STREAM, 1, block)
        began = time.monotonic()
        for at in range(0, len(data), piece):
            if not client.try_send(data[at : at + piece]):
                break
            time.sleep(0.02)
        client.ended_within(5)
        assert time.monotonic() - began < 5
    assert is_cut(node)


def test_a_header_block_that_does_not_end_is_cut(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        block = client.head()
        client.send(frame(HEADERS, END_STREAM, 1, block[:5]))
        for _ in range(40):
            if not client.try_send(frame(CONTINUATION, NO_FLAGS, 1, b"")):
                break
            time.sleep(0.05)
        client.ended_within(5)
    node.wait(lambda: node.edge.figures()["connections"] == 0)


def test_continuations_without_end_are_stopped(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        client.send(frame(HEADERS, END_STREAM, 1, client.head()))
        sent = 0
        while sent < 20_000 and client.try_send(frame(CONTINUATION, NO_FLAGS, 1, b"\0\1a\1b" * 200)):
            sent += 1
        client.ended_within(10)


def test_an_hpack_bomb_is_refused(node: FakeNode) -> None:
    plain = b"\x83\x86"  # :method POST, :scheme http
    for name, value in (
        (b":path", b"/test.Test/Echo"),
        (b":authority", b"edge"),
        (b"content-type", b"application/grpc"),
    ):
        plain += bytes([0, len(name)]) + name + bytes([len(value)]) + value
    entry = b"\x40\x01b\x7f\xb9\x16" + b"z" * 3_000  # into the dynamic table, as 62
    with Http2(node.edge.port) as client:
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, plain + entry))
        assert client.answer(1)[0]["grpc-status"] == "0"
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, plain + b"\xbe" * 12_000))  # 36 MB, were it written out
        assert client.ended_within(10) == ENHANCE_YOUR_CALM
    assert memory_bytes() < 1 << 30


def test_rapid_reset_is_calmed(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        block = client.head("/test.Test/HoldStream")
        stream = 1
        while stream < 200_000:
            out = b""
            for _ in range(50):
                out += frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, NO_FLAGS, stream, bytes(4))
                stream += 2
            if not client.try_send(out):
                break
        assert client.ended_within(20) in (ENHANCE_YOUR_CALM, None)
    assert len(node.begun("HoldStream")) < 10_000


def test_rapid_reset_of_whole_requests_is_bounded_by_the_budget(start) -> None:
    node = start(rows_bytes=1 << 20)
    node.hold = True
    with Http2(node.edge.port) as client:
        body = message(request(b"x").SerializeToString())
        block = client.head(ENQUEUE)
        for stream in range(1, 6_001, 2):
            out = frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)
            if not client.try_send(out + frame(RST_STREAM, NO_FLAGS, stream, (8).to_bytes(4))):
                break
        time.sleep(0.2)
        assert node.edge.figures()["rows_bytes"] <= 1 << 20
    node.release()
    node.wait_at_rest()


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, NO_FLAGS, 0, bytes(8)),
        frame(SETTINGS, NO_FLAGS, 0, struct.pack(">HI", 4, 70_000)),
        frame(PRIORITY, NO_FLAGS, 1, bytes(5)),
        frame(WINDOW_UPDATE, NO_FLAGS, 0, b"\0\0\0\1"),
        frame(0xFA, NO_FLAGS, 0, b"unknown"),
        frame(RST_STREAM, NO_FLAGS, 1, bytes(4)),
    ],
    ids=["ping", "settings", "priority", "window", "unknown", "reset"],
)
def test_floods_are_calmed(flood: bytes, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        client.answer(client.call(body=message(b"x")))
        sent = 0
        while sent < 300_000 and client.try_send(flood * 100):
            sent += 100
        assert client.ended_within(20) in (ENHANCE_YOUR_CALM, None, 1)


def test_empty_data_frames_without_end_are_stopped(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        stream = client.call("/test.Test/Chat", end=False)
        sent = 0
        while sent < 100_000 and client.try_send(frame(DATA, NO_FLAGS, stream) * 100):
            sent += 100
        client.ended_within(20)


def test_one_byte_data_frames_are_served(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        stream = client.call("/test.Test/Echo", end=False)
        body = message(b"slowly" * 20)
        for at in range(len(body)):
            client.send(frame(DATA, NO_FLAGS, stream, body[at : at + 1]))
        client.send(frame(DATA, END_STREAM, stream))
        assert client.answer(stream)[1] == body


def test_a_client_that_sends_over_its_window_is_ended_or_its_call(node: FakeNode) -> None:
    node.on_loop(lambda: node.edge.pause_reading(True))
    with Http2(node.edge.port) as client:
        stream = client.call("/test.Test/Echo", message(bytes(4 << 20))[:5], end=False)
        client.try_send(frame(DATA, NO_FLAGS, stream, bytes(16_384)) * 1_000)
        # Over the stream's window the call is reset, and what still comes for it is dropped; over the connection's,
        # which may be first, the connection ends.
        with contextlib.suppress(ConnectionError):
            client.read_until(RST_STREAM, GOAWAY)
    node.on_loop(lambda: node.edge.pause_reading(False))


def test_a_window_of_nothing_holds_no_more_than_the_answers(node: FakeNode) -> None:
    with Http2(node.edge.port, settings=[(4, 0)]) as client:
        for _ in range(100):
            client.call("/test.Test/Big", message(b"10000"))
        node.wait(lambda: len(node.begun("Big")) == 100)
        node.wait(lambda: node.edge.figures()["unread_bytes"] >= 1_000_000)
        assert node.edge.figures()["unread_bytes"] < 1_100_000


@pytest.mark.parametrize("kind", ["application/json", "", "text/html", "application/grpc-web+proto"])
def test_another_content_type_is_unsupported(kind: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        assert client.answer(client.call(body=message(b"x"), content_type=kind))[0][":status"] == "415"


def test_a_get_is_not_allowed(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        assert client.answer(client.call(method="GET"))[0][":status"] == "405"


def test_http_1_is_ended(node: FakeNode) -> None:
    with Http2(node.edge.port, begin=False) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        client.ended_within(5)


@pytest.mark.parametrize("path", ["/test.Test/Echo", "/test.Test/Chat", ENQUEUE, ENQUEUE_STREAM])
def test_a_truncated_message_is_an_error(path: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        for body in (b"\0", message(b"hello")[:-1], message(b"hello") + b"\0\0"):
            assert client.answer(client.call(path, body))[0]["grpc-status"] == "13"


@pytest.mark.parametrize("timeout", ["", "1", "5X", "-1S", "999999999S"])
def test_a_malformed_timeout_is_an_error(timeout: str, node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        fields, _ = client.answer(client.call(body=message(b"x"), grpc_timeout=timeout))
        assert fields["grpc-status"] == ("13" if timeout else "0")


def test_a_message_that_claims_4_gib_is_refused(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        assert client.answer(client.call(body=b"\0\xff\xff\xff\xff", end=False))[0]["grpc-status"] == "8"


def test_a_client_may_die_in_each_phase(node: FakeNode) -> None:
    whole = PREFACE + frame(SETTINGS, NO_FLAGS, 0)
    with Http2(node.edge.port) as client:
        block = client.head(ENQUEUE)
    body = message(request(b"x" * 3_000).SerializeToString())
    whole += frame(HEADERS, END_HEADERS, 1, block)
    for at in range(0, len(body), 1_000):
        whole += frame(DATA, NO_FLAGS, 1, body[at : at + 1_000])
    whole += frame(DATA, END_STREAM, 1)
    for end in [*range(0, len(whole), 97), len(whole)]:
        for hard in (False, True):
            with socket.create_connection(("127.0.0.1", node.edge.port)) as client:
                if hard:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(whole[:end])


def test_noise_is_survived(node: FakeNode) -> None:
    noise = random.Random(7)
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", node.edge.port)) as client:
            begin = PREFACE + frame(SETTINGS, NO_FLAGS, 0) if noise.random() < 0.8 else b""
            frames = b"".join(
                frame(
                    noise.randrange(12), noise.randrange(256), noise.randrange(6), noise.randbytes(noise.randrange(60))
                )
                for _ in range(noise.randrange(20))
            )
            with contextlib.suppress(OSError):
                client.sendall(begin + frames)


MANY = """
import socket, sys
from http2 import PREFACE, SETTINGS, frame
sockets = []
for _ in range(int(sys.argv[2])):
    sockets.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    sockets[-1].sendall(PREFACE + frame(SETTINGS, 0, 0))
print("ready", flush=True)
sys.stdin.read()
"""


def test_10000_connections_are_served(node: FakeNode, start: Callable[..., FakeNode]) -> None:
    many, wanted = 10_000, 10_500
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{wanted} open files are needed, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    big = start(max_connections=many)
    before = memory_bytes()
    clients = subprocess.Popen(
        [sys.executable, "-c", MANY, str(big.edge.port), str(many - 1)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert clients.stdout is not None
    assert clients.stdout.readline() == b"ready\n"
    big.wait(lambda: big.edge.figures()["connections"] == many - 1)
    with big.channel() as channel:
        assert enqueue(channel)(request(b"x"), timeout=30).count == 1
    assert memory_bytes() - before < 300 << 20
    clients.communicate(timeout=30)
    big.wait_at_rest(60)


def memory_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
