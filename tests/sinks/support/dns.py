"""A DNS server that changes its mind, and a resolver of aiohttp's that asks it."""

from __future__ import annotations

import asyncio
import socket
import struct

from aiohttp.abc import AbstractResolver, ResolveResult


class RebindingDns(asyncio.DatagramProtocol):
    """answers: the addresses of the first question, of the second, ...; the last ones for all that follow."""

    def __init__(self) -> None:
        self.answers: list[list[str]] = []
        self.asked = 0
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> RebindingDns:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        self.port = self._transport.get_extra_info("sockname")[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._transport is not None
        self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        self.asked += 1
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self._transport.sendto(answer_of(data, addresses), addr)


def answer_of(question: bytes, addresses: list[str]) -> bytes:
    """One question of type A, answered with a time to live of 0."""
    head = question[:2] + struct.pack(">HHHHH", 0x8180, 1, len(addresses), 0, 0)
    rows = (struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(it) for it in addresses)
    return head + question[12:] + b"".join(rows)


class UdpResolver(AbstractResolver):
    """Asks one server on this machine, each time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        labels = b"".join(bytes([len(it)]) + it.encode() for it in host.split("."))
        question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", self._port))
            await loop.sock_sendall(sock, question)
            answer = await asyncio.wait_for(loop.sock_recv(sock, 4_096), 10)
        (count,) = struct.unpack_from(">H", answer, 6)
        rows = [answer[len(question) + 16 * row :][:16] for row in range(count)]
        return [
            ResolveResult(
                hostname=host, host=socket.inet_ntoa(row[12:]), port=port, family=socket.AF_INET, proto=0, flags=0
            )
            for row in rows
        ]

    async def close(self) -> None:
        pass
