"""Links by TLS: who comes in, who is kept out, what a rotation costs, and which keys heartbeats get."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from delayapi.certificates import Certificates
from delaynode.clock import boot_ms, wall_ms
from delaynode.replication.heartbeat_guard import HeartbeatGuard, NoKey
from delaynode.replication.protocol import Commit, Frames, Heartbeat, encode_heartbeat
from delaynode.replication.transport import links as links_module
from delaynode.replication.transport import tls as tls_module
from delaynode.replication.transport.connection import decode_answer
from delaynode.replication.transport.links import RENEW_MS, WITHDRAWN_MS, Address, Links, renewal_ms
from delaynode.replication.transport.tls import LinkSecurity, NotSecured, PeerTls, _context

from tests.replicate.ends import QUICK, Recorder, Ring, all_read, hello_to, ring, running, stranger, until
from tests.security.authority import DAY, Authority, Issued

CLUSTER = "spiffe://delaycluster/ns/a/cluster/b/role/"
NODE = CLUSTER + "node"


def certificates(issued: Issued, roots_pem: bytes) -> Certificates:
    ends_ms = int(issued.certificate.not_valid_after_utc.timestamp() * 1_000)
    return Certificates(issued.chain_pem, issued.key_pem, roots_pem, ends_ms, ())


class Secured:
    """A node of a Ring with TLS."""

    def __init__(self, node: str, ca: Authority, names: tuple[str, ...] = (NODE,), mode: str = "required") -> None:
        self.node, self.held = node, certificates(ca.issue(*names), ca.pem)
        self.tls = PeerTls(lambda: self.held, lambda: CLUSTER)
        required = mode == "required"
        self.guard = HeartbeatGuard(node, f"{node}-first", boot_ms, 1_000, lambda _: required, required=required)
        self.ahead_ms = 0  # of its wall clock
        self.security = LinkSecurity(
            self.tls, required, mode in ("required", "preferred"), self.guard, lambda: wall_ms() + self.ahead_ms
        )
        self.handler = Recorder()

    async def join(self, made: Ring, offers: bool = True) -> Links:
        links = Links("c", self.node, f"{self.node}-first", made.addresses.get, self.handler, made.log, QUICK,
                      security=self.security)  # fmt: skip
        made.links[self.node], made.handlers[self.node] = links, self.handler
        port = await links.start("127.0.0.1", 0)
        made.addresses[self.node] = Address("127.0.0.1", port, f"{self.node}-first", links.versions, offers)
        return links

    def has_key(self, other: str) -> bool:
        return other in self.guard._asking


@contextlib.asynccontextmanager
async def secured(*nodes: Secured) -> AsyncIterator[Ring]:
    try:
        async with ring() as made:
            for node in nodes:
                await node.join(made)
            yield made
    finally:
        for node in nodes:  # once their links are closed: one that is tried again needs the thread of its handshakes
            node.tls.close()


async def up(made: Ring, one: str = "n0", other: str = "n1") -> None:
    made.links[one].want([other])
    await until("the link is up", lambda: ("up", other) in made.handlers[one].heard)


async def refused(made: Ring, one: str, other: str) -> None:
    made.links[one].want([other])
    await until("it is refused", lambda: bool(made.events("link-failed")))
    assert ("up", other) not in made.handlers[one].heard
    assert not any(event[0] == "master" for event in made.handlers[other].heard)


@running
async def test_messages_of_all_sizes_go_both_ways() -> None:
    ca = Authority()
    async with secured(Secured("n0", ca), Secured("n1", ca)) as made:
        await up(made)
        sizes = (0, 1, 20, 5_000, 16_384, 16_385, 40_000, 70_000, 3_000_000, 0, 100, 200_000)
        master, slave = made.handlers["n0"], made.handlers["n1"]
        slave.on_master = lambda origin, message: origin.reply(message)
        sent = [Frames(7, 1, at, 0, (bytes([at]) * size,)) for at, size in enumerate(sizes)]
        for message in sent * 3:
            made.links["n0"].send("n1", message)
        await until("all have come back", lambda: len(master.messages("slave")) == 3 * len(sizes))
        for side in (master.messages("slave"), slave.messages("master")):
            assert [(one.offset, bytes(one.data[0])) for one in side] == [(m.offset, m.data[0]) for m in sent * 3]
        assert made.events("link-up")[0]["tls"] is True


@running
async def test_a_paused_reader_goes_on_where_it_was() -> None:
    ca = Authority()
    async with secured(Secured("n0", ca), Secured("n1", ca)) as made:
        await up(made)
        slave = made.handlers["n1"]

        def stop(origin, message) -> None:
            origin.pause()
            asyncio.get_running_loop().call_later(0.001, origin.resume)

        slave.on_master = stop
        for number in range(200):
            made.links["n0"].send("n1", Commit(7, 1, number))
        await until("all have come", lambda: [one.commit for one in slave.messages("master")] == list(range(200)))


@running
async def test_a_link_agrees_on_a_key_for_heartbeats_and_each_new_one_on_another() -> None:
    ca = Authority()
    one, other = Secured("n0", ca), Secured("n1", ca)
    async with secured(one, other) as made:
        with pytest.raises(NoKey):
            one.guard.seal("n1", Heartbeat("n0", 0, 1, 0, ()))
        await up(made)
        first = one.guard._asking["n1"].key
        assert first.id in other.guard._by_id
        made.links["n0"].drop("n1")
        await until("there is another key", lambda: one.guard._asking["n1"].key != first)
        assert {first.id, one.guard._asking["n1"].key.id} <= set(other.guard._by_id)
        assert not other.has_key("n0"), "a key is for the heartbeats of one side"


@running
async def test_the_key_of_a_former_process_is_not_used_for_one_that_has_none() -> None:
    """A node that was restarted with `--peers off`, or as an older release: it would hear no heartbeat any more."""
    ca = Authority()
    one, other = Secured("n0", ca, mode="preferred"), Secured("n1", ca, mode="preferred")
    async with secured(one, other) as made:
        await up(made)
        await made.links["n1"].close()
        await made.add("n1", "n1-second")
        await until("it is up again", lambda: made.handlers["n0"].count("up", "n1") == 2)
        beat = Heartbeat("n0", 0, 1, 0, ())
        assert one.guard.seal("n1", beat) == encode_heartbeat(beat)


@running
async def test_a_kept_link_needs_nobody_who_wants_it() -> None:
    ca = Authority()
    one = Secured("n0", ca)
    async with secured(one, Secured("n1", ca)) as made:
        made.links["n0"].keep(["n1"])
        made.links["n0"].want([])
        await until("a key is agreed", lambda: one.has_key("n1"))


OTHERS = {
    "another CA": (NODE,),
    "another cluster": ("spiffe://delaycluster/ns/a/cluster/c/role/node",),
    "another namespace": ("spiffe://delaycluster/ns/x/cluster/b/role/node",),
    "the operator": (CLUSTER + "operator",),
    "a client": ("spiffe://example.org/shop",),
    "a DNS name": ("n0.b.a.svc",),
    "a name that only begins so": (NODE + "s",),
    "a node's name alone": (NODE + "/n0",),
    "nobody": (),
}


@pytest.mark.parametrize("dials", [True, False])
@pytest.mark.parametrize("kind", OTHERS)
@running
async def test_only_nodes_of_this_cluster_come_in_and_are_reached(kind: str, dials: bool) -> None:
    ca = Authority()
    issuer = Authority() if kind == "another CA" else ca
    wrong = Secured("n0" if dials else "n1", ca)
    wrong.held = certificates(issuer.issue(*OTHERS[kind]), ca.pem)
    good = Secured("n1" if dials else "n0", ca)
    async with secured(wrong, good) as made:
        await refused(made, "n0", "n1")
        assert not good.guard._by_id, "no key was taken"


@pytest.mark.parametrize(("names", "comes_in"), [(("/n0",), True), (("/n2",), False), (("/n2", "/n0"), True)])
@running
async def test_a_certificate_that_names_nodes_is_of_these_alone(names: tuple[str, ...], comes_in: bool) -> None:
    ca = Authority()
    named = (NODE, *(NODE + name for name in names))
    async with secured(Secured("n0", ca, named), Secured("n1", ca)) as made:
        await (up(made) if comes_in else refused(made, "n0", "n1"))
    async with secured(Secured("n1", ca), Secured("n0", ca, named)) as made:
        await (up(made, "n1", "n0") if comes_in else refused(made, "n1", "n0"))


@running
async def test_an_expired_certificate_and_one_with_another_key_are_refused() -> None:
    ca = Authority()
    other_curve = ec.generate_private_key(ec.SECP384R1())
    for issued in (ca.issue(NODE, begins=-3 * DAY, ends=-DAY), ca.issue(NODE, key=other_curve)):
        one = Secured("n0", ca)
        one.held = certificates(issued, ca.pem)
        async with secured(one, Secured("n1", ca)) as made:
            await refused(made, "n0", "n1")


@running
async def test_no_socket_is_closed_under_a_handshake_that_is_given_up_twice() -> None:
    """As by a time-out, and then by the end of the node: its number could be a file's by the time it is written to."""
    tls, (sock, other) = Secured("n0", Authority()).tls, socket.socketpair()
    sock.setblocking(False)
    began, go_on, open_files = threading.Event(), threading.Event(), []

    def slowly(secured: ssl.SSLSocket) -> None:
        began.set()
        go_on.wait(10)
        open_files.append(secured.fileno())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tls_module, "_step", slowly)
        task = asyncio.create_task(tls.secure(sock, server=False))
        await until("it shakes hands", began.is_set)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until("the thread is done with it", lambda: bool(open_files))
    assert open_files != [-1]
    other.close()
    tls.close()


@running
async def test_where_tls_is_required_plain_text_is_told_so_and_counts_for_nothing() -> None:
    async with secured(Secured("n1", Authority())) as made:
        address = made.addresses["n1"]
        reader, writer = await stranger(address)
        writer.write(hello_to(address))
        assert decode_answer(await all_read(reader)) == (1, "this node takes TLS alone")
        writer.close()
        assert made.handlers["n1"].heard == []
        assert made.links["n1"].unidentified == 0


@running
async def test_where_tls_is_required_nothing_is_dialled_that_does_not_offer_it() -> None:
    one = Secured("n0", Authority())
    async with secured(one) as made:
        await made.add("n1")
        await refused(made, "n0", "n1")
        assert "offers no TLS" in made.events("link-failed")[0]["reason"]
        one.tls.close()


@pytest.mark.parametrize("mode", ["permissive", "preferred"])
@running
async def test_nodes_with_and_without_tls_reach_each_other_until_all_have_it(mode: str) -> None:
    ca = Authority()
    one, other = Secured("n0", ca, mode=mode), Secured("n1", ca, mode=mode)
    async with secured(one, other) as made:
        await made.add("n2")
        await up(made, "n0", "n2")
        await up(made, "n2", "n0")
        await up(made, "n0", "n1")
        made.links["n0"].send("n1", Commit(7, 1, 5))
        await until("it has come", lambda: made.handlers["n1"].messages("master") == [Commit(7, 1, 5)])
        assert one.has_key("n1") is (mode == "preferred")
        assert not one.has_key("n2")


@running
async def test_a_failed_handshake_is_never_followed_by_plain_text() -> None:
    ca, heard = Authority(), []
    one = Secured("n0", ca, mode="preferred")
    async with secured(one) as made:

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(1))
            writer.close()

        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        made.addresses["n1"] = Address("127.0.0.1", port, "n1-first", made.links["n0"].versions, True)
        made.links["n0"].want(["n1"])
        await until("it was tried again and again", lambda: len(heard) > 3)
        server.close()
        assert set(heard) == {b"\x16"}


@running
async def test_certificates_and_cas_are_replaced_without_a_broken_link() -> None:
    old, new = Authority("old"), Authority("new")
    one, other, third = Secured("n0", old), Secured("n1", old), Secured("n2", old)
    async with secured(one, other, third) as made:
        await up(made)
        for node in (one, other, third):
            node.held = certificates(old.issue(NODE), old.pem + new.pem)
        for node in (one, other, third):
            node.held = certificates(new.issue(NODE), old.pem + new.pem)
            await up(made, "n2", "n1") if node is third else None
        for node in (one, other, third):
            node.held = certificates(new.issue(NODE), new.pem)
        await up(made, "n2", "n0")
        made.links["n0"].send("n1", Commit(7, 1, 1))
        await until("it has come", lambda: Commit(7, 1, 1) in made.handlers["n1"].messages("master"))
        assert not any(event[0] == "down" for event in made.handlers["n0"].heard)


def hour(ca: Authority) -> Certificates:
    return certificates(ca.issue(NODE, ends=timedelta(hours=1)), ca.pem)


HOUR_MS = 3_600_000


@pytest.mark.parametrize("whose", ["n0", "n1"])
@running
async def test_a_link_is_made_anew_by_newer_certificates_before_its_own_expire(whose: str) -> None:
    ca = Authority()
    nodes = {"n0": Secured("n0", ca), "n1": Secured("n1", ca)}
    nodes[whose].held = hour(ca)
    async with secured(*nodes.values()) as made:
        await up(made)
        nodes[whose].held = certificates(ca.issue(NODE), ca.pem)
        for node in nodes.values():
            node.ahead_ms = HOUR_MS - RENEW_MS // 3
        await until("it is made anew", lambda: made.handlers["n0"].count("up", "n1") == 2)
        for node in nodes.values():
            node.ahead_ms = 2 * HOUR_MS
        await asyncio.sleep(0.3)
        assert made.handlers["n0"].count("up", "n1") == 2, "it lasts as long as the newer ones"
        made.links["n0"].send("n1", Commit(7, 1, 1))
        await until("it has come", lambda: Commit(7, 1, 1) in made.handlers["n1"].messages("master"))


@pytest.mark.parametrize("whose", ["n0", "n1"])
@running
async def test_a_link_ends_with_its_certificate_also_where_its_dialler_does_nothing(whose: str) -> None:
    ca = Authority()
    nodes = {"n0": Secured("n0", ca), "n1": Secured("n1", ca)}
    nodes[whose].held = hour(ca)
    async with secured(*nodes.values()) as made:
        await up(made)
        nodes["n1"].ahead_ms = HOUR_MS + 10_000  # the dialler's clock is behind, so to say
        await until("it ends", lambda: ("lost", "n0") in made.handlers["n1"].heard)
        assert "has expired" in made.events("peer-bad-input")[0]["reason"]


@running
async def test_a_link_is_made_anew_once_a_ca_that_it_was_made_by_is_taken_away() -> None:
    old, new = Authority("old"), Authority("new")
    one, other = Secured("n0", old), Secured("n1", old)
    async with secured(one, other) as made:
        await up(made)
        for node in (one, other):
            node.held = certificates(new.issue(NODE), new.pem)
        await asyncio.sleep(0.3)
        assert made.handlers["n0"].count("up", "n1") == 1, "the other end may not have heard of it yet"
        one.ahead_ms = other.ahead_ms = WITHDRAWN_MS - 20_000  # the dialler is the first
        await until("it is made anew", lambda: made.handlers["n0"].count("up", "n1") == 2)
        one.ahead_ms = other.ahead_ms = 3 * WITHDRAWN_MS
        await asyncio.sleep(0.3)
        assert made.handlers["n0"].count("up", "n1") == 2, "it is by the new one"
        made.links["n0"].send("n1", Commit(7, 1, 1))
        await until("it has come", lambda: Commit(7, 1, 1) in made.handlers["n1"].messages("master"))


@running
async def test_a_node_whose_ca_is_taken_away_is_shut_out_with_its_links_and_heartbeats() -> None:
    old, new = Authority("old"), Authority("new")
    one, other = Secured("n0", old), Secured("n1", old)
    async with secured(one, other) as made:
        await up(made)
        key = one.guard._asking["n1"].key.id
        assert key in other.guard._by_id, "its heartbeats count"
        other.held = certificates(new.issue(NODE), new.pem)
        await asyncio.sleep(0.2)
        other.ahead_ms = WITHDRAWN_MS + 1_000
        await until("it ends", lambda: ("lost", "n0") in made.handlers["n1"].heard)
        assert "taken away" in made.events("peer-bad-input")[0]["reason"]
        await until("it does not come back", lambda: bool(made.events("link-failed")))
        assert made.handlers["n0"].count("up", "n1") == 1
        assert key not in other.guard._by_id, "its heartbeats count no more"


def test_links_are_made_anew_in_the_last_minutes_or_the_last_quarter_and_not_all_at_once() -> None:
    day_ms = 24 * HOUR_MS
    assert [renewal_ms(0, day_ms, lot) for lot in (0.0, 1.0)] == [day_ms - RENEW_MS, day_ms - RENEW_MS // 2]
    assert renewal_ms(0, 1_000, 0.0) == 750
    assert renewal_ms(5_000, 1_000, 0.5) == 1_000


@running
async def test_whoever_does_not_end_a_handshake_is_cut_off_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "MAX_UNIDENTIFIED", 5)
    ca = Authority()
    async with secured(Secured("n0", ca), Secured("n1", ca)) as made:
        address, mute = made.addresses["n1"], []
        for said in (b"\x16", b"\x16\x03\x01\x02\x00\x01", b"", b"\x16\x03\x01", b"\x16" * 20):
            sock = socket.create_connection(address[:2])
            sock.sendall(said)
            mute.append(sock)
        await until("no more are taken", lambda: made.links["n1"].unidentified > 3)
        await up(made)
        links = made.links["n1"]
        await until("they are gone", lambda: links.unidentified == 0 and not links._securing)
        for sock in mute:
            sock.close()


@running
async def test_strangers_who_hold_all_places_keep_no_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has not said who it is the longest goes, and the log says so once."""
    monkeypatch.setattr(links_module, "MAX_UNIDENTIFIED", 5)
    ca = Authority()
    async with secured(Secured("n0", ca), Secured("n1", ca)) as made:
        made.links["n1"].times = replace(QUICK, hello=600.0)
        mute = [socket.create_connection(made.addresses["n1"][:2]) for _ in range(40)]
        await until("places are taken", lambda: made.links["n1"].unidentified == 5)
        await up(made)
        assert len(made.events("peer-not-accepted")) == 1
        for sock in mute:
            sock.close()
        await until("they are gone", lambda: made.links["n1"].unidentified == 0 and not made.links["n1"]._securing)


@running
async def test_the_port_speaks_tls_1_3_alone() -> None:
    ca = Authority()
    async with secured(Secured("n1", ca)) as made:
        host, port = made.addresses["n1"][:2]
        held = certificates(ca.issue(NODE), ca.pem)
        loop = asyncio.get_running_loop()

        def dial(least: ssl.TLSVersion, most: ssl.TLSVersion) -> str | None:
            context = _context(held, server=False)
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.maximum_version, context.minimum_version = most, least
            with socket.create_connection((host, port), 5) as sock, context.wrap_socket(sock) as wrapped:
                return wrapped.version()

        assert await loop.run_in_executor(None, dial, ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises(OSError):
            await loop.run_in_executor(None, dial, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)


@running
async def test_a_node_without_good_certificates_offers_nothing_and_says_so() -> None:
    one = Secured("n0", Authority())
    one.held = None
    assert not one.tls.usable
    with socket.socket() as sock, pytest.raises(NotSecured, match="no certificate of a node"):
        await one.tls.secure(sock, server=True)
    one.tls.close()


def test_a_private_key_is_written_to_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ca = Authority()
    _context(certificates(ca.issue(NODE), ca.pem), server=True)
    assert not list(tmp_path.iterdir())
