"""After each kind of load nothing is held, and the process is no larger than before it."""

from __future__ import annotations

import ctypes
import gc
import gzip
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from calls import request
from fakenode import ENQUEUE, ENQUEUE_STREAM, FakeNode
from http2 import HEADERS, NO_FLAGS, RST_STREAM, WINDOW_UPDATE, Http2, frame, message

WARM_UP, REPETITIONS = 10, 50
# Of resident memory, over all repetitions. Each moves 1 MB or more: one lost request or answer in each is 5 MB.
GROWTH_BYTES = 3 << 20
KIB = 1 << 10
BODY = random.Random(1).randbytes(100 * KIB)
COMPRESSED = message(gzip.compress(BODY, 1), compressed=1)
BOMB = message(gzip.compress(bytes(20 << 20), 1), compressed=1)
CANCEL = (8).to_bytes(4)
MAX_WAITING = 64  # the default
PATHS = ("/test.Test/Hold", "/test.Test/HoldStream", ENQUEUE, ENQUEUE_STREAM)

pytestmark = pytest.mark.timeout(600)


# ------------------------------------------------------------------------------------------------ what is measured


def resident_bytes() -> int:
    """Without what was freed and is kept for what comes next."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def left_by(load: Callable[[], None]) -> tuple[int, int, int]:
    """By how many bytes, descriptors and threads the process has grown over the repetitions."""
    for _ in range(WARM_UP):
        load()
    before = resident_bytes(), descriptors(), threads()
    for _ in range(REPETITIONS):
        load()
    grown = resident_bytes() - before[0], descriptors() - before[1], threads() - before[2]
    print(f"grown by {grown[0] / KIB:.0f} KiB, {grown[1]} descriptors, {grown[2]} threads")
    return grown


def leaves_nothing(load: Callable[[], None]) -> bool:
    grown, *others = left_by(load)
    return grown <= GROWTH_BYTES and others == [0, 0]


# -------------------------------------------------------------------------------------------------------- the loads


def unary(node: FakeNode) -> None:
    with connected(node) as client:
        for _ in range(5):
            opened(client, client.call("/test.Test/Echo", message(BODY)), len(BODY))
            opened(client, client.call(ENQUEUE, message(request(BODY, number=13).SerializeToString())), KIB)
        assert opened(client, client.call("/test.Test/Fail", message(b"x")), KIB)[0]["grpc-status"] == "5"


def streams(node: FakeNode) -> None:
    with connected(node) as client:
        opened(client, client.call("/test.Test/Chat", message(BODY[: 20 * KIB]) * 10), 200 * KIB)
        opened(client, client.call("/test.Test/Download", message(b"20 50000")), 1_000_000)
        rows = b"".join(message(request(BODY[: 2 * KIB], queue=i % 3).SerializeToString()) for i in range(50))
        opened(client, client.call(ENQUEUE_STREAM, rows), 10 * KIB)
        bad = message(request(b"a", count=7).SerializeToString())
        opened(client, client.call(ENQUEUE_STREAM, bad * 20), 10 * KIB)


def cancelled(node: FakeNode) -> None:
    for end_phase in phases(node):
        with connected(node) as client:
            for stream in end_phase(client):
                client.send(frame(RST_STREAM, NO_FLAGS, stream, CANCEL))
            go_on(node)
            assert opened(client, client.call("/test.Test/Echo", message(b"on")), KIB)[1] == message(b"on")


def lost(node: FakeNode) -> None:
    """Half of the connections by their clients, who send a reset; half by the node."""
    for end_phase in phases(node):
        for by_node in (False, True):
            with connected(node) as client:
                end_phase(client)
                if by_node:
                    name = "ipv4:{}:{}".format(*client.socket.getsockname())
                    assert node.on_loop(lambda: node.edge.cut({name})) == 1  # noqa: B023 - called here
                else:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            node.wait(lambda: node.edge.figures()["connections"] == 0)
            go_on(node)


def compressed(node: FakeNode) -> None:
    with connected(node) as client:
        for _ in range(5):
            opened(client, client.call("/test.Test/Echo", COMPRESSED, grpc_encoding="gzip"), len(BODY))
        opened(client, client.call("/test.Test/Chat", COMPRESSED * 2, grpc_encoding="gzip"), 2 * len(BODY))
        for bad in (BOMB, COMPRESSED[:-9] + bytes(9), message(b"no gzip", compressed=1)):
            call = client.call("/test.Test/Echo", bad, grpc_encoding="gzip")
            assert opened(client, call, KIB)[0]["grpc-status"] != "0"
        half = client.call("/test.Test/Chat", COMPRESSED[: 40 * KIB], end=False, grpc_encoding="gzip")
        node.wait(lambda: node.edge.figures()["calls_bytes"])
        client.send(frame(RST_STREAM, NO_FLAGS, half, CANCEL))
        node.wait(lambda: not node.edge.figures()["calls"])
        client.call("/test.Test/Echo", COMPRESSED[: 40 * KIB], end=False, grpc_encoding="gzip")  # its connection ends
        node.wait(lambda: node.edge.figures()["calls_bytes"])


def refused(node: FakeNode) -> None:
    with connected(node) as client:
        for path in PATHS:
            for body in (message(BODY)[:-1], b"\0\xff\xff\xff\xff", b"\7" + bytes(4), message(b"x", compressed=1)):
                assert opened(client, client.call(path, body), KIB)[0]["grpc-status"] in ("8", "13")
            assert opened(client, client.call(path, message(BODY), grpc_timeout="no"), KIB)[0]["grpc-status"] == "13"
        for other in ({"path": "/test.Test/Nothing"}, {"content_type": "text/html"}):
            opened(client, client.call(**other), KIB)
        two = client.call("/test.Test/Echo", message(BODY) * 2)
        assert opened(client, two, KIB)[0]["grpc-status"] == "13"
        before = node.edge.figures()["calls_refused"]
        node.on_loop(lambda: node.edge.pause_reading(True))  # no more than `max_waiting` wait: the others are busy
        calls = [client.call("/test.Test/Echo", message(BODY[: 5 * KIB])) for _ in range(MAX_WAITING + 20)]
        node.wait(lambda: node.edge.figures()["calls_refused"] == before + 20)
        assert node.edge.figures()["waiting"] == MAX_WAITING
        go_on(node)
        client.send(frame(WINDOW_UPDATE, NO_FLAGS, 0, (1 << 20).to_bytes(4)))
        assert Counter(ends(client, calls)) == {"0": MAX_WAITING, "8": 20}
    for _ in range(3):
        with Http2(node.edge.port, begin=False) as client:
            client.send(b"GET / HTTP/1.1\r\n\r\n" * 3)
            client.ended_within(20)


LOADS = [unary, streams, cancelled, lost, compressed, refused]


def phases(node: FakeNode) -> Iterator[Callable[[Http2], list[int]]]:
    """Each leaves calls in it, whose streams it returns."""

    def calls_of(client: Http2, body: bytes | None) -> list[int]:
        return [client.call(path, body, end=False) for path in PATHS]

    def headers(client: Http2) -> list[int]:
        return calls_of(client, None)

    def prefix(client: Http2) -> list[int]:
        return calls_of(client, message(BODY)[:3])

    def half(client: Http2) -> list[int]:
        streams = calls_of(client, message(BODY)[: 50 * KIB])
        node.wait(lambda: sum(node.edge.figures()[name] for name in ("calls_bytes", "rows_bytes")) > 4 * len(BODY))
        return streams

    def waiting(client: Http2) -> list[int]:
        node.on_loop(lambda: node.edge.pause_reading(True))
        streams = calls_of(client, message(BODY)[: 15 * KIB])
        node.wait(lambda: node.edge.figures()["waiting"] == len(PATHS))
        return streams

    def handed_over(client: Http2) -> list[int]:
        node.hold = True
        node.events.clear()
        row = message(request(BODY).SerializeToString())
        streams = [client.call(path, row, end=path in ("/test.Test/Hold", ENQUEUE)) for path in PATHS]
        node.wait(lambda: node.begun("Hold") and "message" in node.kinds() and len(node.groups) == 2)
        return streams

    def unread(client: Http2) -> list[int]:
        streams = [client.call("/test.Test/Big", message(b"%d" % (200 * KIB)))]
        streams.append(client.call("/test.Test/Download", message(b"100 20000"), end=False))
        node.wait(lambda: node.edge.figures()["unread_bytes"] > 300 * KIB)
        return streams

    yield from (headers, prefix, half, waiting, handed_over, unread)


def go_on(node: FakeNode) -> None:
    """After a phase: what was held is answered, and there is room again."""
    node.on_loop(lambda: node.edge.pause_reading(False))
    node.release()


def connected(node: FakeNode) -> Http2:
    """Once it has its wide window: what is sent before may be over it, and ends the connection."""
    client = Http2(node.edge.port)
    client.read_until(WINDOW_UPDATE)
    return client


def opened(client: Http2, stream: int, size: int) -> tuple[dict[str, str], bytes]:
    """The answer of a call, whose windows are opened by its size."""
    for one in (0, stream):
        client.try_send(frame(WINDOW_UPDATE, NO_FLAGS, one, (size + KIB).to_bytes(4)))
    return client.answer(stream)


def ends(client: Http2, streams: list[int]) -> list[str]:
    """The statuses of calls that are under way at once."""
    left, statuses = set(streams), []
    while left:
        came = client.read_until(HEADERS)
        fields = dict(client.decoder.decode(came.payload))
        if "grpc-status" in fields:
            left.remove(came.stream)
            statuses.append(fields["grpc-status"])
    return statuses


# -------------------------------------------------------------------------------------------------------- the tests


def at_rest(node: FakeNode, load: Callable[[FakeNode], None]) -> None:
    load(node)
    node.wait_at_rest()
    assert node.edge.figures()["panics"] == 0
    node.events.clear()
    node._methods.clear()
    node.next_seq.clear()


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.__name__)
def test_a_load_leaves_nothing(load: Callable[[FakeNode], None], node: FakeNode) -> None:
    assert leaves_nothing(lambda: at_rest(node, load))


def test_edges_that_are_drained_leave_nothing() -> None:
    def drained() -> None:
        node = FakeNode()
        clients = [connected(node) for _ in range(3)]
        for client in clients:
            for path in PATHS:
                client.call(path, message(BODY)[: 50 * KIB], end=False)
            client.call("/test.Test/Big", message(b"%d" % (200 * KIB)))
        node.wait(lambda: node.edge.figures()["unread_bytes"] > 600 * KIB)
        node.on_loop(lambda: node.edge.drain(0.05))
        node.wait(lambda: "drained" in node.kinds())
        node.wait_at_rest()
        for client in clients:
            assert client.ended_within(20) == 0
            client.socket.close()
        node.stop()
        assert node.faults == []

    assert leaves_nothing(drained)


@pytest.mark.parametrize("what", ["an answer", "a descriptor"])
def test_a_leak_is_seen(what: str, node: FakeNode) -> None:
    """A load that keeps one answer of 100 KiB, or one socket, in each repetition."""
    kept: list[object] = []

    def leaking() -> None:
        at_rest(node, unary)
        kept.append(bytearray(BODY) if what == "an answer" else socket.socket())

    assert not leaves_nothing(leaking)
    for one in kept:
        if isinstance(one, socket.socket):
            one.close()
