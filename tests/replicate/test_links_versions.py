"""Two releases greet each other: both speak the greatest version that both know, or say that there is none."""

from __future__ import annotations

import asyncio
import struct

import pytest
from delaynode.replication.protocol import Commit, encode
from delaynode.replication.transport.connection import Hello, decode_answer, encode_answer
from delaynode.replication.transport.links import Address
from delayregistry.model import VersionRange

from tests.replicate.ends import Ring, all_read, ring, running, stranger, until

HELLO_OF_0_1 = struct.Struct("<4sHH")


def hello_of_release_0_1(own: str, meant: str) -> bytes:
    """As that release wrote it, byte by byte."""
    words = [word.encode() for word in ("c", own, f"{own}-first", meant, f"{meant}-first")]
    body = b"".join(struct.pack("<H", len(word)) + word for word in words)
    return HELLO_OF_0_1.pack(b"DLYH", 1, len(body)) + body


def is_taken_by_release_0_1(hello: bytes) -> bool:
    """As that release read it: version 1 exactly, five words exactly."""
    magic, version, size = HELLO_OF_0_1.unpack_from(hello)
    body, words = hello[HELLO_OF_0_1.size :], 0
    while body:
        (length,) = struct.unpack_from("<H", body)
        body, words = body[2 + length :], words + 1
    return (magic, version, size, words) == (b"DLYH", 1, len(hello) - HELLO_OF_0_1.size, 5)


async def connected(made: Ring, one: VersionRange, other: VersionRange) -> None:
    await made.add("n0", wire=one)
    await made.add("n1", wire=other)
    made.links["n0"].want(["n1"])


@pytest.mark.parametrize(
    ("one", "other", "spoken"),
    [((1, 1), (1, 1), 1), ((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 3), (3, 4), 3)],
)
@running
async def test_two_releases_speak_the_greatest_version_that_both_know(
    one: tuple[int, int], other: tuple[int, int], spoken: int
) -> None:
    async with ring() as made:
        await connected(made, VersionRange(*one), VersionRange(*other))
        await until("the link is up", lambda: made.handlers["n0"].count("up", "n1") == 1)
        assert [fields["version"] for fields in made.events("link-up")] == [spoken]
        assert made.origin("n1", of="n0").version == spoken
        made.links["n0"].send("n1", Commit(1, 1, 7))
        await until("a message comes", lambda: ("master", "n0", Commit(1, 1, 7)) in made.handlers["n1"].heard)


@running
async def test_two_releases_without_a_common_version_both_say_so_and_go_on_trying() -> None:
    async with ring() as made:
        await connected(made, VersionRange(1, 2), VersionRange(3, 4))
        await until("it is refused", lambda: bool(made.events("link-failed")))
        assert made.events("peer-no-common-version")[0]["reason"] == (
            "no wire version in common: 3 to 4 here, 1 to 2 on the other side"
        )
        assert "refused: no wire version in common" in made.events("link-failed")[0]["reason"]
        assert made.handlers["n0"].heard == made.handlers["n1"].heard == []
        await made.links["n1"].close()
        await made.add("n1", "n1-second", wire=VersionRange(2, 3))
        await until("the next release is understood", lambda: made.handlers["n0"].count("up", "n1") == 1)


@running
async def test_release_0_1_is_greeted_as_it_knows_it_whatever_else_this_one_speaks() -> None:
    async with ring() as made:
        heard: list[bytes] = []

        async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(2_000))
            writer.write(b"DLYA" + struct.pack("<HH", 1, 0))
            await all_read(reader)
            writer.close()

        server = await asyncio.start_server(old, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        made.addresses["n1"] = Address(host, port, "n1-first", wire=None)
        await made.add("n0", wire=VersionRange(1, 7))
        made.links["n0"].want(["n1"])
        await until("the link is up", lambda: made.handlers["n0"].count("up", "n1") == 1)
        assert is_taken_by_release_0_1(heard[0])
        assert [fields["version"] for fields in made.events("link-up")] == [1]
        server.close()


@running
async def test_release_0_1_is_answered_as_it_knows_it() -> None:
    async with ring() as made:
        await made.add("n1", wire=VersionRange(1, 7))
        reader, writer = await stranger(made.addresses["n1"])
        writer.write(hello_of_release_0_1("old", "n1") + b"".join(encode(Commit(1, 1, 7))))
        assert await reader.readexactly(8) == b"DLYA" + struct.pack("<HH", 1, 0)
        await until("it is heard", lambda: made.handlers["n1"].messages("master") == [Commit(1, 1, 7)])
        writer.close()


@running
async def test_a_release_that_has_left_version_1_behind_refuses_release_0_1_in_its_words() -> None:
    async with ring() as made:
        await made.add("n1", wire=VersionRange(2, 3))
        reader, writer = await stranger(made.addresses["n1"])
        writer.write(hello_of_release_0_1("old", "n1"))
        refusal = "no wire version in common: 2 to 3 here, 1 on the other side"
        assert decode_answer(await all_read(reader)) == (1, refusal)
        writer.close()
        made.addresses["n0"] = Address("127.0.0.1", 1, "n0-first", wire=None)
        made.links["n1"].want(["n0"])
        await until("it greets none either", lambda: bool(made.events("link-failed")))
        assert "NoCommonVersion" in made.events("link-failed")[0]["reason"]


def test_the_words_of_a_later_greeting_are_passed_over() -> None:
    hello = Hello("c", "n0", "a", "n1", "b", VersionRange(1, 4)).encode()
    longer = hello[8:] + struct.pack("<H", 3) + b"new"
    later = HELLO_OF_0_1.pack(b"DLYH", 1, len(longer)) + longer
    assert Hello.decode(later) == Hello("c", "n0", "a", "n1", "b", VersionRange(1, 4))
    assert encode_answer(1) == b"DLYA" + struct.pack("<HH", 1, 0)
