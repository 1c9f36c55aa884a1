"""Links: what is sent arrives whole and in order at the process that was meant, or the link is down and says so."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest
from delaynode.replication.protocol import MAX_MESSAGE_BYTES, Ack, Commit, Frames, Message, encode
from delaynode.replication.transport import connection
from delaynode.replication.transport.links import Address, LinkTimes
from delaynode.replication.transport.peers import Origin

from tests.replicate.ends import QUICK, Recorder, hello_to, pair, ring, running, stranger, until


def commits(count: int, start: int = 0) -> list[Message]:
    return [Commit(1, 1, number) for number in range(start, start + count)]


# ---------------------------------------------------------------- what is sent arrives
@running
async def test_messages_and_replies_arrive_in_order() -> None:
    async with pair() as made:
        slave, master = made.handlers["n1"], made.handlers["n0"]
        slave.on_master = lambda origin, message: origin.reply(Ack(1, 1, message.commit, 0))  # type: ignore[union-attr]
        for message in commits(5_000):
            made.links["n0"].send("n1", message)
        await until("all are answered", lambda: len(master.messages("slave")) == 5_000)
        assert slave.messages("master") == commits(5_000)
        assert master.messages("slave") == [Ack(1, 1, number, 0) for number in range(5_000)]
        assert {origin.node for origin in slave.origins} == {"n0"}


@running
async def test_messages_of_all_sizes_arrive_whole_however_the_network_cuts_them() -> None:
    rng = random.Random(5)
    edges = [0, 1, connection.RECEIVE_BYTES // 2, connection.RECEIVE_BYTES, 1 << 20, (16 << 20) + 60]
    near = [max(0, edge + step) for edge in edges for step in range(-40, 41, 4)]
    sizes = [*rng.sample(near, len(near)), *(rng.randrange(200_000) for _ in range(300))]
    bodies = [rng.randbytes(size) for size in sizes if size < 1 << 21] + [rng.randbytes(MAX_MESSAGE_BYTES - 32)]
    async with pair() as made:
        slave = made.handlers["n1"]
        for number, body in enumerate(bodies):
            half = len(body) // 3
            made.links["n0"].send("n1", Frames(1, 1, number, 0, (body[:half], memoryview(body)[half:])))
            if number % 7 == 0:
                await asyncio.sleep(0)
        assert made.links["n0"].backlog_bytes("n1") > 0
        await until("all have come", lambda: len(slave.messages("master")) == len(bodies), 60)
        await until("nothing is queued", lambda: made.links["n0"].backlog_bytes("n1") == 0)
        for number, (got, body) in enumerate(zip(slave.messages("master"), bodies, strict=True)):
            assert isinstance(got, Frames)
            assert got.offset == number
            assert b"".join(got.data) == body  # all of them are still held: none was overwritten


@running
async def test_a_hello_and_messages_in_single_bytes_are_understood() -> None:
    async with ring("n1") as made:
        address = made.addresses["n1"]
        _, writer = await stranger(address)
        said = hello_to(address) + b"".join(encode(Frames(1, 1, 7, 0, (b"abc",)))) + b"".join(encode(Commit(1, 1, 9)))
        for at in range(len(said)):
            writer.write(said[at : at + 1])
            await asyncio.sleep(0.001)
        await until("both are there", lambda: len(made.handlers["n1"].messages("master")) == 2)
        first, second = made.handlers["n1"].messages("master")
        assert isinstance(first, Frames)
        assert (bytes(first.data[0]), second) == (b"abc", Commit(1, 1, 9))
        writer.close()


@running
async def test_messages_sent_in_one_pass_leave_in_one_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Counting(socket.socket):
        def sendmsg(self, *args: object) -> int:  # type: ignore[override]
            calls.append(1)
            return super().sendmsg(*args)  # type: ignore[arg-type]

    async with ring("n0", "n1") as made:
        monkeypatch.setattr("delaynode.replication.transport.links.socket.socket", Counting)
        made.links["n0"].want(["n1"])
        await until("the link is up", lambda: made.handlers["n0"].count("up", "n1") == 1)
        calls.clear()
        for message in commits(1_000):
            made.links["n0"].send("n1", message)
        await until("all have come", lambda: len(made.handlers["n1"].messages("master")) == 1_000)
        assert len(calls) == 1


@running
async def test_what_is_sent_without_a_link_is_dropped_and_nothing_is_queued() -> None:
    async with ring("n0", "n1") as made:
        for node in ("n1", "n9"):
            made.links["n0"].send(node, Commit(1, 1, 1))
            assert made.links["n0"].backlog_bytes(node) == 0
        made.links["n0"].want(["n1"])
        made.links["n0"].send("n1", Commit(1, 1, 2))  # wanted, but not up yet
        await until("the link is up", lambda: made.handlers["n0"].count("up", "n1") == 1)
        made.links["n0"].send("n1", Commit(1, 1, 3))
        await until("it has come", lambda: bool(made.handlers["n1"].messages("master")))
        assert made.handlers["n1"].messages("master") == [Commit(1, 1, 3)]


# ---------------------------------------------------------------- who is connected to whom
@running
async def test_only_the_wanted_nodes_are_connected() -> None:
    async with ring("n0", "n1", "n2") as made:
        master = made.handlers["n0"]
        made.links["n0"].want(["n1", "n2"])
        await until("both are up", lambda: {("up", "n1"), ("up", "n2")} <= set(master.heard))
        made.links["n0"].want(["n2"])
        await until("one is down", lambda: master.count("down", "n1") == 1)
        await until("the other side knows", lambda: made.handlers["n1"].count("lost", "n0") <= 1)
        made.links["n0"].want(["n2", "n1"])
        await until("it is up again", lambda: master.count("up", "n1") == 2)
        assert [entry for entry in master.heard if entry[1] == "n2"] == [("up", "n2")]


@running
async def test_a_link_follows_a_node_to_its_new_process() -> None:
    async with pair() as made:
        first = made.links["n1"]
        await made.add("n1", "n1-second")  # the lease names it now; the old process still listens
        await until("the new one is reached", lambda: made.handlers["n0"].count("up", "n1") == 2)
        made.links["n0"].send("n1", Commit(1, 1, 1))
        await until("it came", lambda: made.handlers["n1"].messages("master") == [Commit(1, 1, 1)])
        assert made.handlers["n0"].heard[:3] == [("up", "n1"), ("down", "n1"), ("up", "n1")]
        await first.close()


@running
async def test_a_changed_address_is_tried_at_once_however_long_the_wait_had_become() -> None:
    async with ring("n0") as made:
        links, handler = await made.add("n5", times=LinkTimes(first_retry=60, longest_retry=60, address_check=60))
        made.addresses["n1"] = Address("127.0.0.1", 1, "nobody")
        links.want(["n1"])
        await until("the first attempt failed", lambda: bool(made.events("link-failed")))
        await made.add("n1")
        assert handler.heard == []
        links.addresses_changed()
        await until("the link is up", lambda: handler.heard == [("up", "n1")], 5)


@running
async def test_an_attempt_that_ends_already_may_be_given_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the end of its time and its task's next turn: it was told as an error of the loop."""
    async with ring("n0", "n1") as made:
        loop, links = asyncio.get_running_loop(), made.links["n0"]
        connect, trying = loop.sock_connect, asyncio.Event()

        async def hang(sock: socket.socket, address: tuple[str, int]) -> None:
            trying.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(loop, "sock_connect", hang)
        links.want(["n1"])
        await trying.wait()
        monkeypatch.setattr(loop, "sock_connect", connect)
        links.drop("n1")
        loop.call_soon(links.drop, "n1")  # its turn comes after the attempt's time has ended
        await until("the link is up", lambda: made.handlers["n0"].count("up", "n1") == 1, 2)


@running
async def test_a_port_that_another_process_listens_on_now_is_no_link() -> None:
    async with ring("n0", "n1", "n2") as made:
        right = made.addresses["n1"]
        for wrong in (Address(*made.addresses["n2"][:2], right.incarnation), right._replace(incarnation="n1-before")):
            made.addresses["n1"] = wrong
            made.links["n0"].want(["n1"])
            made.links["n0"].addresses_changed()
            before = len(made.events("link-failed"))
            await until("it is refused", lambda: len(made.events("link-failed")) > before)  # noqa: B023
            await asyncio.sleep(0.1)
        reasons = [fields["reason"] for fields in made.events("link-failed")]
        assert any("this is node 'n2', not 'n1'" in reason for reason in reasons)
        assert any("this is process 'n1-first' of 'n1', not 'n1-before'" in reason for reason in reasons)
        assert len(reasons) == 2, "each reason is logged once, however often it was tried"
        assert made.handlers["n0"].heard == []
        made.addresses["n1"] = right
        await until("the right one is reached", lambda: made.handlers["n0"].count("up", "n1") == 1)


@running
async def test_clusters_with_the_same_node_names_stay_apart() -> None:
    async with ring("n1") as made:
        links, handler = await made.add("n0", cluster="another")
        links.want(["n1"])
        await until("it is refused", lambda: bool(made.events("link-failed")))
        assert "this is cluster 'c', not 'another'" in made.events("link-failed")[0]["reason"]
        assert handler.heard == []


@running
async def test_a_link_comes_back_after_the_other_process_was_away() -> None:
    async with pair() as made:
        _, port, incarnation, *_ = made.addresses["n1"]
        await made.links["n1"].close()
        await until("the link is down", lambda: made.handlers["n0"].count("down", "n1") == 1)
        await asyncio.sleep(0.3)
        await made.add("n1", incarnation, port=port)
        await until("it is up again", lambda: made.handlers["n0"].count("up", "n1") == 2)


@running
async def test_a_dropped_link_loses_what_was_under_way_and_nothing_old_arrives_after_it_is_up_again() -> None:
    async with pair() as made:
        master, slave = made.handlers["n0"], made.handlers["n1"]
        slave.on_master = lambda origin, message: origin.pause()  # type: ignore[attr-defined]
        for message in commits(10):
            made.links["n0"].send("n1", message)
        await until("the first has come", lambda: len(slave.messages("master")) == 1)
        made.links["n0"].drop("n1")
        made.links["n0"].send("n1", Commit(1, 1, 500))
        await until("it is up again", lambda: master.count("up", "n1") == 2)
        slave.on_master = lambda origin, message: None
        for origin in slave.origins:
            origin.resume()  # type: ignore[attr-defined]
        made.links["n0"].send("n1", Commit(1, 1, 1_000))
        await until("the new one has come", lambda: len(slave.messages("master")) > 1)
        await asyncio.sleep(0.05)
        assert slave.messages("master") == [Commit(1, 1, 0), Commit(1, 1, 1_000)]
        assert slave.heard.index(("lost", "n0")) == 1


@running
async def test_names_are_not_looked_up() -> None:
    async with ring("n0") as made:
        made.addresses["n1"] = Address("localhost", 1, "x")
        made.links["n0"].want(["n1"])
        await until("it is refused", lambda: bool(made.events("link-failed")))
        assert made.events("link-failed")[0]["reason"] == "'localhost' is not an IP address"


@running
async def test_both_sides_find_a_dead_peer_by_themselves() -> None:
    async with pair() as made:
        options = [
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
        ]
        ends = [made.links["n0"]._links["n1"].wire, made.origin("n1", "n0").wire]
        for end in ends:
            assert end is not None
            assert [end._sock.getsockopt(level, name) for level, name, _ in options] == [1, 1, 30_000]


# ---------------------------------------------------------------- a handler that is behind, or fails
@running
async def test_a_paused_origin_hands_over_nothing_and_holds_the_sender_up_until_it_is_resumed() -> None:
    async with pair() as made:
        slave, links = made.handlers["n1"], made.links["n0"]
        slave.on_master = lambda origin, message: origin.pause() if message.offset == 2 else None  # type: ignore
        body = bytes(1 << 20)
        for number in range(64):
            links.send("n1", Frames(1, 1, number, 0, (body,)))
        await until("three have come", lambda: len(slave.messages("master")) == 3)
        await asyncio.sleep(0.2)
        assert len(slave.messages("master")) == 3
        assert links.backlog_bytes("n1") > 16 << 20
        assert slave.heard[-1][0] == "master"  # being paused is no reason to lose the link
        slave.origins[0].resume()  # type: ignore[attr-defined]
        await until("all have come", lambda: len(slave.messages("master")) == 64)
        assert [message.offset for message in slave.messages("master")] == list(range(64))  # type: ignore[union-attr]
        assert links.backlog_bytes("n1") == 0


@running
async def test_small_messages_that_were_read_already_wait_for_the_resume_too() -> None:
    async with pair() as made:
        slave = made.handlers["n1"]
        slave.on_master = lambda origin, message: origin.pause()  # type: ignore[attr-defined]
        for message in commits(200):
            made.links["n0"].send("n1", message)
        for number in range(1, 201):
            await until("one more", lambda: len(slave.messages("master")) >= number)  # noqa: B023
            await asyncio.sleep(0)
            assert len(slave.messages("master")) == number
            slave.origins[0].resume()  # type: ignore[attr-defined]
        assert slave.messages("master") == commits(200)


@running
async def test_a_handler_that_fails_loses_that_link_only() -> None:
    async with pair() as made:
        other, _ = await made.add("n2")
        other.want(["n1"])
        await until("it is up", lambda: made.handlers["n2"].count("up", "n1") == 1)

        def fail(origin: Origin, message: Message) -> None:
            if message == Commit(1, 1, 13):
                raise ZeroDivisionError("thirteen")

        slave = made.handlers["n1"]
        slave.on_master = fail
        for message in commits(20):
            made.links["n0"].send("n1", message)
        await until("the link went and came", lambda: made.handlers["n0"].count("up", "n1") == 2)
        assert slave.messages("master") == commits(14)
        (logged,) = made.events("peer-handler-failed")
        assert (logged["peer"], "ZeroDivisionError: thirteen" in logged["reason"]) == ("n0", True)
        other.send("n1", Commit(1, 1, 99))
        await until("the other link lives", lambda: slave.messages("master")[-1] == Commit(1, 1, 99))
        assert made.handlers["n2"].count("down", "n1") == 0


@running
async def test_a_master_that_fails_over_a_reply_or_a_link_up_loses_the_link_and_gets_a_new_one() -> None:
    async with pair() as made:
        master = made.handlers["n0"]
        failures = iter([True, True, False])

        def fail_at_first(node: str) -> None:
            if next(failures, False):
                raise ValueError("not today")

        def fail_on_message(node: str, message: Message) -> None:
            raise KeyError("reply")

        master.on_slave, master.on_up = fail_on_message, fail_at_first
        made.handlers["n1"].on_master = lambda origin, message: origin.reply(Ack(1, 1, 1, 1))
        made.links["n0"].send("n1", Commit(1, 1, 1))
        await until("it is up for good", lambda: master.count("up", "n1") == 4)
        assert master.count("down", "n1") == 3
        assert len(made.events("peer-handler-failed")) == 3


# ---------------------------------------------------------------- life
@running
async def test_close_tells_the_handler_of_every_connection_and_frees_the_port() -> None:
    async with pair() as made:
        made.links["n1"].want(["n0"])
        await until("both ways", lambda: made.handlers["n1"].count("up", "n0") == 1)
        port = made.addresses["n1"][1]
        await made.links["n1"].close()
        assert made.handlers["n1"].count("down", "n0") == 1
        assert made.handlers["n1"].count("lost", "n0") == 1
        socket.create_server(("127.0.0.1", port)).close()


@running
async def test_the_handler_is_never_called_inside_a_call_of_links() -> None:
    async with pair() as made:
        handler: Recorder = made.handlers["n0"]
        before = list(handler.heard)
        made.links["n0"].send("n1", Commit(1, 1, 1))
        made.links["n0"].drop("n1")
        made.links["n0"].want([])
        made.links["n0"].want(["n1"])
        assert handler.heard == before
        await until("a link is up again", lambda: handler.heard == [("up", "n1"), ("down", "n1"), ("up", "n1")])


@running
async def test_ipv6_works_too() -> None:
    async with ring() as made:
        if not socket.has_ipv6:
            pytest.skip("no IPv6")
        links, handler = await made.add("n0")
        made.links["n6"] = six = type(links)("c", "n6", "six", made.addresses.get, Recorder(), made.log, QUICK)
        try:
            made.addresses["n6"] = Address("::1", await six.start("::1", 0), "six")
        except OSError:
            pytest.skip("no IPv6 loopback")
        links.want(["n6"])
        await until("it is up", lambda: handler.count("up", "n6") == 1)
