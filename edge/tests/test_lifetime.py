"""The edge's own life: drain, close, cut, and that it leaves nothing behind."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time

import grpc
import pytest
from calls import enqueue, enqueue_stream, request, stream, unary
from fakenode import ENQUEUE, FakeNode
from http2 import ACK, GOAWAY, PING, Http2, frame, message

from delayedge import Edge


def test_a_drain_lets_calls_end_and_takes_no_new_ones(node: FakeNode) -> None:
    node.hold = True
    with Http2(node.edge.port) as client:
        call = client.call(ENQUEUE, message(request(b"x").SerializeToString()))
        node.wait(lambda: node.groups)
        node.on_loop(lambda: node.edge.drain(20))
        assert client.read_until(GOAWAY).error == 0
        with pytest.raises(ConnectionRefusedError):
            Http2(node.edge.port)
        time.sleep(0.1)
        assert "drained" not in node.kinds()
        node.release()
        client.send(b"")
        fields, _ = client.answer(call)
        assert fields["grpc-status"] == "0"
    node.wait(lambda: node.kinds()[-1:] == ["drained"])


def test_goaway_names_the_last_call_that_is_served(node: FakeNode) -> None:
    with Http2(node.edge.port) as client:
        client.answer(client.call(body=message(b"x")))
        last = client.call("/test.Test/Hold", body=message(b"x"))
        node.wait(lambda: node.begun("Hold"))
        node.on_loop(lambda: node.edge.drain(20))
        first = client.read_until(GOAWAY)
        ping = client.read_until(PING) if int.from_bytes(first.payload[:4]) != last else None
        if ping is not None:  # the last stream is named once the client has seen the first GOAWAY
            client.send(frame(PING, ACK, 0, ping.payload))
            assert int.from_bytes(client.read_until(GOAWAY).payload[:4]) == last
        node.on_loop(lambda: node.edge.respond(node.begun("Hold")[0].token, b"done"))
        assert client.answer(last)[1] == message(b"done")


def test_a_drain_without_connections_is_drained_at_once(node: FakeNode) -> None:
    node.on_loop(lambda: node.edge.drain(5))
    node.wait(lambda: node.kinds() == ["drained"], 2)


def test_a_drain_cuts_what_is_left_in_the_end(node: FakeNode) -> None:
    with node.channel() as channel:
        call = unary(channel, "Hold").future(b"x")
        node.wait(lambda: node.begun("Hold"))
        node.on_loop(lambda: node.edge.drain(0.5))
        assert call.exception(10).code() is grpc.StatusCode.UNAVAILABLE
    node.wait(lambda: node.kinds()[-1] == "drained")
    assert "connection" in node.gone()


def test_clients_go_on_elsewhere_after_a_drain(start) -> None:
    """A channel of two addresses loses no call."""
    nodes = [start(), start()]
    addresses = ",".join(f"127.0.0.1:{node.edge.port}" for node in nodes)
    options = [("grpc.lb_policy_name", "round_robin"), ("grpc.default_authority", "edge")]
    with grpc.insecure_channel(f"ipv4:{addresses}", options) as channel:
        for i in range(300):
            if i == 100:
                nodes[0].on_loop(lambda: nodes[0].edge.drain(10))
            assert enqueue(channel)(request(b"x"), timeout=10).count == 1
    nodes[0].wait(lambda: "drained" in nodes[0].kinds())


def test_cut_ends_the_connections_of_a_peer(node: FakeNode) -> None:
    with Http2(node.edge.port) as one, node.channel() as channel:
        one.call("/test.Test/Hold", body=message(b"x"))
        node.wait(lambda: node.begun("Hold"))
        assert unary(channel, "Echo")(b"x") == b"x"
        peer = node.begun("Hold")[0].peer
        assert node.on_loop(lambda: node.edge.cut({peer, "ipv4:10.0.0.1:1"})) == 1
        assert one.ended_within(5) is None
        node.wait(lambda: node.gone() == ["connection"])
        assert unary(channel, "Echo")(b"x") == b"x"


def test_a_closed_edge_ignores_what_it_is_asked(node: FakeNode) -> None:
    with node.channel() as channel:
        node.hold = True
        call = enqueue(channel).future(request(b"x"))
        node.wait(lambda: node.groups)
        node.edge.close()
        assert call.exception(10).code() is grpc.StatusCode.UNAVAILABLE
    node.release()
    for token in (0, 1 << 63):
        node.edge.respond(token, b"x")
        node.edge.end(token)
        node.edge.refuse_row(token, 1, "x")
    node.edge.close()
    node.edge.drain(1)
    node.edge.pause_reading(True)
    assert node.edge.figures()["connections"] == 0


def test_a_port_in_use_is_an_oserror(node: FakeNode) -> None:
    with pytest.raises(OSError, match="in use"):
        Edge(f"127.0.0.1:{node.edge.port}", rows={}, unary=[], streams=[])
    with pytest.raises(OSError):
        Edge("nowhere", rows={}, unary=[], streams=[])
    with pytest.raises(ValueError, match="unary"):
        Edge("127.0.0.1:0", rows={"/a/B": "both"}, unary=[], streams=[])


def test_ipv6_clients_are_named(start) -> None:
    try:
        edge = Edge("[::]:0", rows={}, unary=["/a/B"], streams=[])
    except OSError:
        pytest.skip("no IPv6 here")
    peers = []
    for host in ("[::1]", "127.0.0.1"):
        with grpc.insecure_channel(f"{host}:{edge.port}") as channel:
            call = unary_of(channel).future(b"x")
            until = time.monotonic() + 10
            events: list = []
            while not events and time.monotonic() < until:
                events = [event for event in edge.take()[1] if event.kind == "call"]
            peers.append(events[0].peer.rpartition(":")[0])
            edge.respond(events[0].token, b"y")
            assert call.result(10) == b"y"
    assert peers == ["ipv6:[::1]", "ipv4:127.0.0.1"]
    edge.close()


def unary_of(channel: grpc.Channel):
    return channel.unary_unary("/a/B")


def test_nothing_is_left_after_load(start) -> None:
    node = start()

    def client(number: int) -> None:
        with node.channel() as channel:
            for i in range(30):
                enqueue(channel)(request(b"x" * (1 + i * 997)))
                unary(channel, "Echo")(bytes(i * 1_001))
            list(enqueue_stream(channel)(iter([request(b"y" * 100)] * 100)))
            list(stream(channel, "Download")(iter([b"20 30000"])))
            unary(channel, "Hold").future(b"x").cancel()

    def round_of(clients: int) -> None:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        node.wait_at_rest()
        node.events.clear()

    round_of(8)
    before = memory_bytes()
    for _ in range(3):
        round_of(8)
    assert memory_bytes() - before < 64 << 20
    assert node.edge.figures()["panics"] == 0
    assert node.edge.figures()["cpu_seconds"] > 0


def memory_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


LEFT = """
import os
from delayedge import Edge
def left():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
before = left()
for _ in range(5):
    edge = Edge("127.0.0.1:0", rows={}, unary=[], streams=[], threads=3)
    assert left()[1] == before[1] + 3, left()
    edge.close()
    del edge
assert left() == before, (left(), before)
"""


def test_descriptors_and_threads_end_with_the_edge() -> None:
    subprocess.run([sys.executable, "-c", LEFT], check=True, timeout=60)


SIGNALLED = """
import asyncio, os, signal, sys
from delayedge import Edge
async def main():
    edge = Edge("127.0.0.1:0", rows={}, unary=[], streams=[], threads=4)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("ready", flush=True)
    await stop.wait()
    edge.close()
asyncio.run(main())
print("stopped")
"""


def test_signals_go_to_python() -> None:
    child = subprocess.Popen([sys.executable, "-c", SIGNALLED], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=20)[0] == "stopped\n"
    assert child.returncode == 0
