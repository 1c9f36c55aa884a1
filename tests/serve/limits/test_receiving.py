"""Unfinished requests: the connections that they are on, and which of these are cut when they fill the node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from delaynode.limits import connections, receive_memory
from delaynode.limits.receive_memory import MIN_CUT_BYTES, ReceivedBytes, ReceiveMemory, to_cut

MIB = 1 << 20


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:51234", ("10.0.0.7", 51234)),
        ("ipv6:%5Bfd00::1%5D:51234", ("fd00::1", 51234)),
        ("ipv6:[::1]:7", ("::1", 7)),
    ],
)
def test_a_peer_as_grpc_names_it_is_an_address(peer: str, address: tuple[str, int]) -> None:
    assert connections.address_of(peer) == address


def test_a_connection_is_found_with_what_came_over_it_and_cut_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        served = [server.accept()[0] for _ in range(2)]
        clients[0].sendall(b"x" * 1_000)
        served[0].recv(2_000)
        addresses = [client.getsockname() for client in clients]
        assert connections.received({port}) == {addresses[0]: 1_000, addresses[1]: 0}
        assert connections.cut({addresses[0]}) == 1
        assert clients[0].recv(1) == b""
        clients[1].sendall(b"y")
        assert served[1].recv(1) == b"y"
        for one in (*clients, *served):
            one.close()
        assert connections.received({port}) == {}


def test_those_that_hold_most_are_cut_and_none_that_holds_little() -> None:
    held = {("a", 1): 8 * MIB, ("b", 2): 6 * MIB, ("c", 3): MIN_CUT_BYTES - 1, ("d", 4): -(10**9)}
    assert to_cut(held, 7 * MIB) == [("a", 1)]
    assert to_cut(held, 9 * MIB) == [("a", 1), ("b", 2)]
    assert to_cut(held, 10**12) == [("a", 1), ("b", 2)]
    assert to_cut(held, 0) == []


def test_what_an_honest_client_has_sent_in_years_does_not_look_unfinished() -> None:
    """Frames of 16 KiB have 9 bytes of header; a small call has its headers, and pings come between."""
    large = ReceivedBytes(requests=10**6, size=10**6 * 4 * MIB)
    assert large.sent() > 10**6 * (4 * MIB + 4 * MIB // 16_384 * 9 + 14)
    small = ReceivedBytes(requests=10**9, size=10**9 * 40)
    assert small.sent() > 10**9 * (40 + 300)


async def watch(watched: ReceiveMemory, done: Callable[[], bool]) -> None:
    watching = asyncio.create_task(watched.watch())
    for _ in range(1_000):
        if done():
            break
        await asyncio.sleep(0.01)
    watching.cancel()


@pytest.mark.parametrize(
    ("unfinished", "holes", "done"),
    [
        (60, 0, ["cut 60", "trim"]),  # what waits for a trim meanwhile grows
        (0, 60, ["trim"]),
        (20, 60, ["trim"]),  # holes, and an honest client that sends
        (20, 0, ["trim", "cut 20", "trim"]),
    ],
)
def test_requests_that_hold_the_excess_are_cut_before_the_heap_is_trimmed_and_holes_cost_nobody_a_connection(
    monkeypatch: pytest.MonkeyPatch, unfinished: int, holes: int, done: list[str]
) -> None:
    """The limit is 100 MiB, the process has 110 of them."""
    steps: list[str] = []
    trimmed = 0

    def trim() -> None:
        nonlocal trimmed
        trimmed = holes
        steps.append("trim")

    def cut(peers: list[tuple[str, int]]) -> int:
        steps.append(f"cut {unfinished}")
        return len(peers)

    monkeypatch.setattr(receive_memory, "give_back", trim)
    monkeypatch.setattr(receive_memory, "resident_bytes", lambda: (110 - trimmed) * MIB)
    monkeypatch.setattr(connections, "cut", cut)
    monkeypatch.setattr(connections, "received", lambda port: {("10.0.0.7", 1): unfinished * MIB})

    asyncio.run(watch(ReceiveMemory((), 100 * MIB, lambda *_, **__: None), lambda: len(steps) >= len(done)))
    assert steps[: len(done)] == done


def test_what_came_from_a_client_while_the_connections_were_looked_at_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its finished requests would look unfinished from then on."""
    cut: list[tuple[str, int]] = []
    looks = 0
    watched = ReceiveMemory((), 100 * MIB, lambda *_, **__: None)

    def received(_: int) -> dict[tuple[str, int], int]:
        nonlocal looks
        looks += 1
        if looks == 1:
            watched.count("ipv4:10.0.0.7:1", 50 * MIB)
            return {}
        return {("10.0.0.7", 1): 50 * MIB}

    monkeypatch.setattr(receive_memory, "give_back", lambda: None)
    monkeypatch.setattr(receive_memory, "resident_bytes", lambda: 110 * MIB)
    monkeypatch.setattr(connections, "cut", cut.extend)
    monkeypatch.setattr(connections, "received", received)
    asyncio.run(watch(watched, lambda: looks >= 3 or bool(cut)))
    assert not cut
