"""A client that is no peer, or speaks as no peer does, is cut off, is logged once, and costs little."""

from __future__ import annotations

import asyncio
import random
import resource
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from delaynode.replication.protocol import MAX_MESSAGE_BYTES, Ack, Commit, Frames, SnapshotChunk, encode
from delaynode.replication.transport import connection
from delaynode.replication.transport.connection import HELLO_BYTES, Hello, decode_answer, encode_answer
from delaynode.replication.transport.links import Address

from tests.replicate.ends import IMPATIENT, QUICK, all_read, hello_to, pair, ring, running, stranger, until


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


BAD_STARTS = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeroes": bytes(64),
    "a hello too long": connection._GREETING.pack(b"DLYH", 1, HELLO_BYTES),
    "another version": connection._GREETING.pack(b"DLYH", 9, 0),
    "an answer": encode_answer(1),
    "a hello cut off": connection._GREETING.pack(b"DLYH", 1, 4) + b"\xff\xff\0\0",
    "a hello of one word": connection._GREETING.pack(b"DLYH", 1, 3) + b"\1\0x",
    "a hello not in UTF-8": connection._GREETING.pack(b"DLYH", 1, 3) + b"\1\0\xff",
}
BAD_MESSAGES = {
    "too long": struct.pack("<I", MAX_MESSAGE_BYTES + 1),
    "negative": struct.pack("<i", -1),
    "too short": struct.pack("<I", 15),
    "unknown kind": struct.pack("<IB3xQI", 16, 99, 1, 1),
    "a body too short": struct.pack("<IB3xQI", 18, 9, 1, 1) + b"xx",
}


@pytest.mark.parametrize("start", BAD_STARTS.values(), ids=BAD_STARTS)
@running
async def test_whoever_begins_with_something_else_is_cut_off_with_one_log_event(start: bytes) -> None:
    async with pair() as made:
        reader, writer = await stranger(made.addresses["n1"])
        writer.write(start)
        assert await all_read(reader) == b""
        await until("it is logged", lambda: len(made.events("peer-bad-input")) == 1)
        writer.close()
        assert made.links["n1"].unidentified == 0
        assert made.handlers["n1"].count("lost", "") == 0


@pytest.mark.parametrize("bad", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
@running
async def test_a_bad_message_ends_the_connection_with_one_log_event(bad: bytes) -> None:
    async with pair() as made:
        address = made.addresses["n1"]
        reader, writer = await stranger(address)
        writer.write(hello_to(address) + b"".join(encode(Commit(1, 1, 4))) + bad + b"".join(encode(Commit(1, 1, 5))))
        assert await all_read(reader) in (encode_answer(1), b"")
        slave = made.handlers["n1"]
        await until("it is over", lambda: slave.count("lost", "stranger") == 1)
        assert slave.messages("master") == [Commit(1, 1, 4)]
        assert [fields["peer"] for fields in made.events("peer-bad-input")] == ["stranger"]
        writer.close()
        assert made.handlers["n0"].heard == [("up", "n1")]


@running
async def test_whoever_says_nothing_is_cut_off_and_whoever_just_looks_in_is_not_even_logged() -> None:
    async with ring() as made:
        await made.add("n1", times=IMPATIENT)
        _, passing = await stranger(made.addresses["n1"])
        passing.close()
        reader, writer = await stranger(made.addresses["n1"])
        writer.write(b"DLYH")
        assert await all_read(reader) == b""
        assert [fields["reason"] for fields in made.events("peer-bad-input")] == ["no greeting for 0.3 s"]
        writer.close()


@running
async def test_a_server_that_never_answers_the_hello_is_no_link_and_is_tried_again() -> None:
    async with ring() as made:
        await made.add("n0", times=IMPATIENT)
        tries: list[bytes] = []

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tries.append(await reader.read(2_000))
            await all_read(reader)
            writer.close()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        made.addresses["n1"] = Address(host, port, "n1-first")
        made.links["n0"].want(["n1"])
        await until("it has tried twice", lambda: len(tries) == 2)
        assert Hello.decode(tries[0]) == Hello("c", "n0", "n0-first", "n1", "n1-first")
        assert made.handlers["n0"].heard == []
        server.close()


@running
async def test_a_refusal_is_told_before_the_connection_is_closed() -> None:
    async with ring("n1") as made:
        address = made.addresses["n1"]
        reader, writer = await stranger(address)
        writer.write(hello_to(address, node="n7"))
        assert "this is node 'n1', not 'n7'" in decode_answer(await all_read(reader))[1]
        writer.close()


@running
async def test_strangers_that_wait_are_few() -> None:
    async with ring() as made:
        await made.add("n1", times=replace(QUICK, hello=60.0))  # none of them goes by itself before all are there
        crowd = [await stranger(made.addresses["n1"]) for _ in range(300)]
        await until("some were turned away", lambda: bool(made.events("peer-not-accepted")))
        assert made.links["n1"].unidentified <= 128
        for _, writer in crowd:
            writer.close()
        await until("they are gone", lambda: made.links["n1"].unidentified == 0)


@running
async def test_a_message_that_is_announced_and_not_sent_takes_no_memory() -> None:
    async with ring("n1") as made:
        address = made.addresses["n1"]
        before = resident_bytes()
        crowd = []
        for number in range(20):
            _, writer = await stranger(address)
            writer.write(hello_to(address, own=f"s{number}") + struct.pack("<IB3xQI", MAX_MESSAGE_BYTES, 3, 1, 1))
            crowd.append(writer)
        await until("all are there", lambda: len(made.links["n1"].origins) == 20)
        await asyncio.sleep(0.1)
        assert resident_bytes() - before < 20 * (1 << 20)
        for writer in crowd:
            writer.close()


@running
async def test_fuzzed_connections_never_disturb_the_others() -> None:
    rng = random.Random(11)
    async with pair() as made:
        address = made.addresses["n1"]
        valid = [
            encode(Frames(1, 1, 0, 0, (bytes(500),))),
            encode(Ack(1, 1, 1, 1)),
            encode(SnapshotChunk(1, 1, 0, 0, b"x")),
        ]

        async def attack() -> None:
            _reader, writer = await stranger(address)
            said = bytearray(hello_to(address, own=f"f{rng.random()}"))
            for _ in range(rng.randrange(4)):
                said += b"".join(rng.choice(valid))
            for _ in range(rng.randrange(4)):
                said[rng.randrange(len(said))] = rng.randrange(256)
            if rng.random() < 0.3:
                said += rng.randbytes(rng.randrange(100_000))
            at = 0
            try:
                while at < len(said):
                    step = rng.choice([1, 7, 100, 70_000])
                    writer.write(said[at : at + step])
                    await writer.drain()
                    at += step
                    if step == 7:
                        await asyncio.sleep(0)
            except ConnectionError:
                pass
            writer.close()

        for _ in range(300):
            await attack()
        made.links["n0"].send("n1", Commit(1, 1, 777))
        slave = made.handlers["n1"]
        await until("the good link lives", lambda: ("master", "n0", Commit(1, 1, 777)) in slave.heard)
        await until("all are gone", lambda: set(made.links["n1"].origins) == {("n0", "n0-first")})
        assert made.links["n1"].unidentified == 0
        assert made.handlers["n0"].heard == [("up", "n1")]
        assert made.events("peer-handler-failed") == []


@running
async def test_whoever_reads_none_of_the_replies_is_cut_off_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_BACKLOG_BYTES", 1 << 20)
    async with ring("n1") as made:
        address = made.addresses["n1"]
        _, writer = await stranger(address)
        writer.write(hello_to(address))
        slave = made.handlers["n1"]
        slave.on_master = lambda origin, message: origin.reply(SnapshotChunk(1, 1, 0, 0, bytes(1 << 20)))
        for _ in range(64):
            writer.write(b"".join(encode(Commit(1, 1, 1))))
        await until("it is cut off", lambda: slave.count("lost", "stranger") == 1)
        assert [fields["peer"] for fields in made.events("peer-too-slow")] == ["stranger"]
        writer.close()
