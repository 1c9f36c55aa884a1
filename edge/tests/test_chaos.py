"""Clients of all kinds at once, with little room for them: all are served or refused, and nothing is left."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter

import grpc
from calls import enqueue, enqueue_stream, request, stream, unary
from http2 import END_STREAM, NO_FLAGS, RST_STREAM, Http2, frame, message

SECONDS = float(os.environ.get("CHAOS_SECONDS", "4"))
COMPRESSIONS = (None, None, grpc.Compression.Gzip, grpc.Compression.Deflate)
REFUSED = {
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAVAILABLE,
}  # fmt: skip


def test_nothing_is_left_of_many_clients_with_little_room(start) -> None:
    node = start(
        rows_bytes=400_000, rows_bytes_per_connection=200_000, calls_bytes=400_000, calls_bytes_per_connection=200_000,
        unread_bytes=1_000_000, unread_bytes_per_connection=500_000, write_bytes=50_000, unread_ms=300,
        request_idle_ms=400, slow_request_ms=400, keepalive_ms=500, keepalive_timeout_ms=500, max_age_ms=1_500,
        age_grace_ms=500, max_unanswered=8, connection_window_bytes=100_000, stream_window_bytes=20_000,
        max_message_bytes=300_000,
    )  # fmt: skip
    faults: list[BaseException] = []
    served, ended = [0] * 16, Counter()
    until = time.monotonic() + SECONDS

    def run(number: int) -> None:
        chance = random.Random(number)
        try:
            while time.monotonic() < until:
                if number % 4:
                    polite(node, chance, ended)
                else:
                    rude(node, chance)
                served[number] += 1
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        time.sleep(0.3)
        node.on_loop(lambda: node.edge.pause_reading(True))
        time.sleep(0.05)
        node.on_loop(lambda: node.edge.pause_reading(False))
        figures = node.edge.figures()
        assert figures["rows_bytes"] <= 600_000
        assert figures["calls_bytes"] <= 600_000
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert all(served)
    assert ended["ok"] > sum(ended.values()) / 3, ended
    node.wait_at_rest()
    assert node.edge.figures()["panics"] == 0
    with node.channel() as channel:
        assert enqueue(channel)(request(b"x"), timeout=10).count == 1


def polite(node, chance: random.Random, ended: Counter) -> None:
    """grpcio, with all that it does; every answer must be right."""
    with node.channel() as channel:
        for _ in range(chance.randrange(1, 8)):
            size = int(10 ** chance.uniform(0, 5.2))
            how = {"timeout": chance.choice((0.02, 5, 20)), "compression": chance.choice(COMPRESSIONS)}
            try:
                match chance.randrange(6):
                    case 0:
                        assert unary(channel, "Echo")(bytes(size), **how) == bytes(size)
                    case 1:
                        assert enqueue(channel)(request(bytes(size)), **how).count == 1
                    case 2:
                        many = [request(bytes(1 + size // 20), queue=i % 3) for i in range(20)]
                        assert [a.count for a in enqueue_stream(channel)(iter(many), **how)] == [1] * 20
                    case 3:
                        many = [bytes(size // 10)] * 10
                        assert list(stream(channel, "Chat")(iter(many), **how)) == many
                    case 4:
                        answers = stream(channel, "Download")(iter([b"10 %d" % size]), **how)
                        assert [len(answer) for answer in answers] == [size] * 10
                    case _:
                        call = unary(channel, "Hold").future(bytes(size))
                        time.sleep(chance.uniform(0, 0.02))
                        call.cancel()
                ended["ok"] += 1
            except grpc.RpcError as error:
                ended[error.code()] += 1
                if error.code() not in REFUSED:
                    raise


def rude(node, chance: random.Random) -> None:
    """Frames by hand: begun, reset, left, not read."""
    try:
        with Http2(node.edge.port, settings=[(4, chance.choice((0, 1_000, 65_535)))]) as client:
            for _ in range(chance.randrange(1, 12)):
                path = chance.choice(
                    ("/test.Test/Big", "/test.Test/Chat", "/delay.v1.DelayService/EnqueueStream", "/test.Test/Hold")
                )
                body = message(
                    b"%d" % chance.randrange(100_000) if path.endswith("Big") else bytes(chance.randrange(15_000))
                )
                stream_id = client.call(
                    path, body[: chance.choice((len(body), len(body), 3, len(body) // 2))], end=False
                )
                match chance.randrange(4):
                    case 0:
                        client.send(frame(RST_STREAM, NO_FLAGS, stream_id, (8).to_bytes(4)))
                    case 1:
                        client.send(frame(0, END_STREAM, stream_id))
                    case 2:
                        client.read(0.05)
                    case _:
                        time.sleep(chance.uniform(0, 0.1))
            time.sleep(chance.choice((0, 0, 0.5)))
    except (OSError, ConnectionError):
        pass  # cut, or nothing to read
