"""Peers over TCP: one connection to each node that is wanted, one from each node that wants this one.

A master sends on the connection that it made, its slaves reply on the same. Nodes are reached where their leases say,
and only the process that the lease names: a port may have been given to another one meanwhile.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from delayapi.address import family_of, join
from delayregistry.model import FIRST_VERSION, VersionRange

from delaynode.replication.heartbeat_guard import HeartbeatKey
from delaynode.replication.protocol import Message, encode
from delaynode.replication.transport.connection import (
    BAD_INPUT,
    HELLO_BYTES,
    WIRE,
    BadGreeting,
    Hello,
    Wire,
    common_version,
    decode_answer,
    encode_answer,
)
from delaynode.replication.transport.peers import Handler
from delaynode.replication.transport.tls import HANDSHAKE, LinkSecurity, NotSecured, SecuredSocket, ready


class Address(NamedTuple):
    """host: an IP address. incarnation: of the process there. wire: the versions that its lease names, if any. tls:
    whether its lease says that it takes TLS."""

    host: str
    port: int
    incarnation: str
    wire: VersionRange | None = None
    tls: bool = False


Lookup = Callable[[str], Address | None]
BACKLOG = 128  # connections that wait to be accepted
MAX_UNIDENTIFIED = 128  # connections at once that have not said hello yet
QUIET_SECONDS = 60.0
RENEW_MS = 600_000  # before certificates expire, links are made anew
WITHDRAWN_MS = 300_000
"""After a CA is taken away, what was made by it ends: a Secret is known to all nodes within two minutes."""
WITHDRAWN = "a CA that was trusted when this link was made has been taken away"
FULL_SECONDS = 1.0  # after which accepting is tried again when this process can open no more files


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Seconds.

    unacknowledged: after which the kernel gives a connection up, and for how long a paused reader may keep the other
    side waiting. Longer than lagSeconds, so that it is never the first to notice: drop() is for those that are silent.
    """

    first_retry: float = 0.05
    longest_retry: float = 1.0
    connect: float = 1.0
    hello: float = 5.0
    address_check: float = 1.0  # between looks at the addresses
    unacknowledged: float = 30.0


def is_ip(host: str) -> bool:
    """Names are not looked up here: a name server that is slow, or gone, must not be able to cause a failover."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_same_ip(one: str, other: str) -> bool:
    """Whether both are one IP address. A socket for IPv6 shows an IPv4 sender as ::ffff:a.b.c.d."""
    try:
        return _plain(one) == _plain(other)
    except ValueError:
        return False


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Raises ValueError."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


class Links:
    """The Peers of a node. Owned by the event loop; the handler is called from the loop, never inside a call of this.

    A handler that raises loses the connection that it was called for.
    """

    def __init__(
        self,
        cluster: str,
        node: str,
        incarnation: str,
        address: Lookup,
        handler: Handler,
        log: Callable[..., None],
        times: LinkTimes | None = None,
        wire: VersionRange = WIRE,
        security: LinkSecurity | None = None,
    ) -> None:
        """address: where a node's process is to be reached now; None while that is not known. wire: the versions that
        this process speaks. security: None: all is plain text."""
        self.cluster, self.node, self.incarnation = cluster, node, incarnation
        self.address = address
        self.handler = handler
        self.log = log
        self.times = times or LinkTimes()
        self.versions = wire
        self.security = security
        self.unidentified = 0
        self._wanted: tuple[str, ...] = ()
        self._kept: tuple[str, ...] = ()
        self._securing: dict[asyncio.Task[None], None] = {}  # the oldest first
        self.origins: dict[tuple[str, str], PeerOrigin] = {}  # (node, incarnation)
        self._links: dict[str, _Link] = {}
        self._logged: dict[str, float] = {}  # reason -> when
        self._ending: set[asyncio.Task[None]] = set()
        self.accepted: set[PeerOrigin] = set()
        self._listener: socket.socket | None = None
        self._looking: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ life
    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        listener = self._listener = socket.create_server((host, port), family=family_of(host), backlog=BACKLOG)
        listener.setblocking(False)
        loop.add_reader(listener, self._accept)
        self._looking = loop.call_later(self.times.address_check, self._check_links)
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Close every connection; the handler has been told of all when this returns."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if self._looking is not None:
            self._looking.cancel()
        self._kept = ()
        self.want(())
        for task in self._securing:
            task.cancel()
        await asyncio.gather(*self._securing, return_exceptions=True)
        for origin in self.accepted:
            origin.wire.close("this node stops")
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.sleep(0)  # what the wires have yet to say

    # ------------------------------------------------------------ the port
    def want(self, nodes: Iterable[str]) -> None:
        """Keep a link up to each of these nodes, and to no other."""
        self._wanted = tuple(nodes)
        self._keep_up()

    def keep(self, nodes: Iterable[str]) -> None:
        """Keep a link up to each of these, too, whoever wants them: heartbeats to them need a key."""
        self._kept = tuple(nodes)
        self._keep_up()

    def _keep_up(self) -> None:
        wanted = dict.fromkeys((*self._wanted, *self._kept))
        for node in [node for node in self._links if node not in wanted]:
            self._links.pop(node).task.cancel()
        for node in wanted:
            if node not in self._links:
                link = self._links[node] = _Link(self, node)
                self._ending.add(link.task)
                link.task.add_done_callback(self._ending.discard)

    def send(self, node: str, message: Message) -> None:
        """Queue a message, whose buffers must not change any more; dropped when there is no link."""
        link = self._links.get(node)
        if link is not None and link.up and link.wire is not None:
            link.wire.write(encode(message))

    def backlog_bytes(self, node: str) -> int:
        """Bytes queued to `node` that the kernel has not taken yet."""
        link = self._links.get(node)
        return link.wire.backlog_bytes if link is not None and link.wire is not None else 0

    def drop(self, node: str) -> None:
        """Close the link and connect anew, at once: nothing is heard from the node any more, or it is heard again."""
        link = self._links.get(node)
        if link is not None:
            link.reconnect("dropped")

    def addresses_changed(self) -> None:
        """Look at once whether the wanted nodes' addresses still hold, and not only with the next second."""
        for link in self._links.values():
            if link.target != self.address(link.node):
                link.reconnect("its address has changed")

    def _check_links(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self.times.address_check, self._check_links)
        self.addresses_changed()
        self._check_certificates()

    def _check_certificates(self) -> None:
        """Links end with their certificates, and with the CAs that were trusted when they were made. The ones that this
        node has made are made anew before, by newer certificates."""
        if self.security is None:
            return
        now_ms = self.security.wall_ms()
        for link in self._links.values():
            link.renew(self.security, now_ms)
        for origin in tuple(self.accepted):
            origin.end_in_time(self.security, now_ms)

    # ------------------------------------------------------------ who connects to this node
    def _accept(self) -> None:
        loop, listener = asyncio.get_running_loop(), self._listener
        for _ in range(BACKLOG):
            if listener is None:
                return
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # most likely too many open files; the listener stays readable meanwhile
                self.log("peer-not-accepted", reason=str(error))
                loop.remove_reader(listener)
                loop.call_later(FULL_SECONDS, self._accept_again)
                return
            if self.unidentified >= MAX_UNIDENTIFIED:
                reason = f"{MAX_UNIDENTIFIED} connections have not said hello yet: the oldest goes"
                self.log_once("peer-not-accepted", reason=reason)
                if (oldest := next(iter(self._securing), None)) is None:
                    sock.close()
                    continue
                del self._securing[oldest]  # its place is this one's: strangers who hold places keep no node out
                oldest.cancel()
            tune(sock, self.times)
            address = join(peer[0], peer[1])
            if self.security is None:
                self.accepted.add(PeerOrigin(self, sock, address))
                continue
            self.unidentified += 1
            task = loop.create_task(self._begin(self.security, sock, address))
            self._securing[task] = None
            task.add_done_callback(partial(self._begun, sock))

    async def _begin(self, security: LinkSecurity, sock: socket.socket, address: str) -> None:
        """TLS or plain text, as the first byte says."""
        secured: SecuredSocket | None = None
        try:
            async with asyncio.timeout(self.times.hello):
                await ready(sock)
                first = sock.recv(1, socket.MSG_PEEK)
                if first == HANDSHAKE:
                    secured = await security.tls.secure(sock, server=True)
                    sock = secured.sock
                elif first and security.required:
                    sock.recv(HELLO_BYTES)
                    sock.send(encode_answer(WIRE.least, "this node takes TLS alone"))
                    raise NotSecured("plain text, and this node takes TLS alone")
        except TimeoutError:
            sock.close()
            self.log_once(BAD_INPUT, address=address, reason=f"no greeting for {self.times.hello} s")
        except OSError as error:
            sock.close()
            self.log_once(BAD_INPUT, address=address, reason=str(error))
        except BaseException:
            sock.close()
            raise
        else:
            self.accepted.add(PeerOrigin(self, sock, address, secured))

    def _begun(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        """_begin() is over, or never began."""
        self._securing.pop(task, None)
        self.unidentified -= 1
        if task.cancelled():
            sock.close()

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    # ------------------------------------------------------------ for the ends of the connections
    def log_once(self, event: str, reason: str, **fields: object) -> None:
        """Log it, unless it was in the last minute: an unidentified sender tries again and again."""
        now = asyncio.get_running_loop().time()
        if now - self._logged.get(reason, -QUIET_SECONDS) >= QUIET_SECONDS:
            if len(self._logged) >= MAX_UNIDENTIFIED:
                self._logged.clear()
            self._logged[reason] = now
            self.log(event, reason=reason, **fields)

    def notify(self, wire: Wire | None, call: Callable[..., None], *args: object) -> None:
        """Tell the handler of a connection's beginning or end."""
        try:
            call(*args)
        except Exception as error:  # the loop, and all other connections, must live
            self.log("peer-handler-failed", reason=f"{type(error).__name__}: {error}, in {call.__name__}()")
            if wire is not None:
                wire.close("the handler failed")


def renewal_ms(now_ms: int, ends_ms: int, lot: float) -> int:
    """When to make a link anew whose certificates expire at `ends_ms`, Unix time: RENEW_MS before, of short-lived ones
    in the last quarter. Where there are no newer ones by then, it is tried again in the last quarter of what is left.

    lot: 0 to 1, so that a node's links, which have one certificate, are not all made anew at once.
    """
    lead_ms = min(RENEW_MS, max(0, ends_ms - now_ms) // 4)
    return ends_ms - lead_ms + int(lead_ms * lot / 2)


def tune(sock: socket.socket, times: LinkTimes) -> None:
    """What every connection is set to. With a user timeout, it also ends what keepalive has found dead."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(times.unacknowledged * 1000))


class PeerOrigin:
    """A connection that another node has made; an Origin once it has said hello."""

    def __init__(
        self,
        links: Links,
        sock: socket.socket,
        peer: str,
        secured: SecuredSocket | None = None,
    ) -> None:
        """secured: None: it has come without TLS."""
        self._links, self._peer, self._secured = links, peer, secured
        self._ends_ms = None if secured is None else secured.ends_ms  # Unix time
        self._end = "a certificate of this link has expired"
        self.node = ""
        self.incarnation = ""
        self.version = 0  # of the wire, once it has said hello
        self.wire = Wire(sock, self, links.times.hello)
        links.unidentified += 1

    def reply(self, message: Message) -> None:
        self.wire.write(encode(message))

    def pause(self) -> None:
        """Let the other side wait: nothing more is handed over, not even what has been read."""
        self.wire.pause()

    def resume(self) -> None:
        self.wire.resume()

    def end_in_time(self, security: LinkSecurity, now_ms: int) -> None:
        """With the first certificate that expires, or a while after a CA is taken away. The node's heartbeats do not
        count either, until it comes by another link."""
        if self._secured is None or self._ends_ms is None:
            return
        if self._end != WITHDRAWN and not security.tls.trusts(self._secured.roots):
            self._end, self._ends_ms = WITHDRAWN, min(self._ends_ms, now_ms + WITHDRAWN_MS)
        if self._ends_ms <= now_ms:
            self._ends_ms = None
            security.guard.answer_no_more(self.node, self.incarnation)
            self.wire.close(self._end, BAD_INPUT)

    # ------------------------------------------------------------ End
    def greeted(self, data: bytes) -> None:
        links = self._links
        hello = Hello.decode(data)
        try:
            self.version = self._agree(hello)
        except BadGreeting as refusal:
            self.wire.refuse(encode_answer(hello.versions.least, str(refusal)))
            raise
        if links.security is not None and self._secured is not None and hello.heartbeat_key:
            try:
                key = HeartbeatKey.decode(hello.heartbeat_key)
            except ValueError as error:
                raise BadGreeting(str(error)) from error
            links.security.guard.answer_by(links.cluster, hello.node, hello.incarnation, key)
        links.unidentified -= 1
        self.node, self.incarnation = hello.node, hello.incarnation
        before = links.origins.get((self.node, self.incarnation))
        links.origins[self.node, self.incarnation] = self
        if before is not None:  # what it still holds was sent before: it must not arrive after what comes now
            before.wire.close("the same process has connected again")
        self.wire.write([encode_answer(self.version)])

    def _agree(self, hello: Hello) -> int:
        """The version to speak. Raises BadGreeting."""
        links = self._links
        if hello.cluster != links.cluster:
            raise BadGreeting(f"this is cluster {links.cluster!r}, not {hello.cluster!r}")
        if hello.to_node != links.node:
            meant = f"{hello.to_node!r}, which {hello.node!r} means to reach"
            raise BadGreeting(f"this is node {links.node!r}, not {meant}")
        if hello.to_incarnation != links.incarnation:
            found = f"this is process {links.incarnation!r} of {links.node!r}"
            raise BadGreeting(f"{found}, not {hello.to_incarnation!r}")
        if not hello.node:
            raise BadGreeting("a node without a name")
        nodes = self._secured.nodes if self._secured is not None else None
        if nodes and hello.node not in nodes:
            raise BadGreeting(f"the certificate is of node {', '.join(sorted(nodes))}, not {hello.node!r}")
        return common_version(links.versions, hello.versions)

    def received(self, message: Message) -> None:
        self._links.handler.from_master(self, message)

    def closed(self, reason: str, fault: str) -> None:
        links = self._links
        links.accepted.discard(self)
        if fault:
            links.log_once(fault, peer=self.node, address=self._peer, reason=reason)
        if not self.node:
            links.unidentified -= 1
            return
        if links.origins.get((self.node, self.incarnation)) is self:
            del links.origins[self.node, self.incarnation]
        links.notify(None, links.handler.origin_lost, self)


class _Link:
    """Keeps a connection to one node up."""

    def __init__(self, links: Links, node: str) -> None:
        self._links = links
        self.node = node
        self.target: Address | None = None
        self._key: HeartbeatKey | None = None  # that the hello has
        self._renew_ms: int | None = None  # when to make it anew, as its certificates expire; Unix time
        self._roots: frozenset[bytes] = frozenset()  # that were trusted when it was made, and still count
        self.wire: Wire | None = None  # None while connecting, and between attempts
        self.version = 0  # of the wire, as of the last answer
        self.up = False
        self._up_at = 0.0
        self._wake = asyncio.Event()
        self._connecting = False
        self._deadline = asyncio.timeout(None)
        self._ended: asyncio.Future[str]
        self._failure = ""  # what was logged last
        self.task = asyncio.create_task(self._keep(), name=f"link to {node}")

    def reconnect(self, reason: str) -> None:
        """Give up what there is, and try at once."""
        self._wake.set()
        if self.wire is not None:
            self.wire.close(reason)
        elif self._connecting and not self._deadline.expired():
            self._deadline.reschedule(0)

    def renew(self, security: LinkSecurity, now_ms: int) -> None:
        """Make it anew, if it is time."""
        if self._renew_ms is not None and not security.tls.trusts(self._roots):
            self._roots = frozenset()
            self._renew_ms = min(self._renew_ms, renewal_ms(now_ms, now_ms + WITHDRAWN_MS, random.random()))
        if self._renew_ms is not None and self._renew_ms <= now_ms:
            self._renew_ms = None
            self.reconnect("its certificates expire, or a CA was taken away")

    async def _keep(self) -> None:
        loop, times = asyncio.get_running_loop(), self._links.times
        wait = times.first_retry
        while True:
            self._wake.clear()
            self.target = self._links.address(self.node)
            try:
                failure = await self._connect_once(self.target)
            except Exception as error:  # whatever it is, the link is to be tried again
                failure = f"{type(error).__name__}: {error}"
            if failure and failure != self._failure:
                self._links.log("link-failed", peer=self.node, reason=failure)
            self._failure = failure
            if not failure and loop.time() - self._up_at > times.longest_retry:
                wait = times.first_retry
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
                wait = times.first_retry
            except TimeoutError:
                wait = min(wait * 2, times.longest_retry)

    async def _connect_once(self, target: Address | None) -> str:
        """Connect, and stay connected for as long as it lasts. Returns why it never was; empty: it was."""
        if target is None:
            return "its address is not known"
        host, port, incarnation, versions, _ = target
        if not is_ip(host):
            return f"{host!r} is not an IP address"
        links, loop = self._links, asyncio.get_running_loop()
        hello = Hello(links.cluster, links.node, links.incarnation, self.node, incarnation, links.versions)
        if versions is None:  # a release before 0.2: it must get the hello that it knows
            common_version(links.versions, FIRST_VERSION)
            hello = replace(hello, versions=FIRST_VERSION)
        security = links.security
        tls = security.tls if security is not None and (security.required or (security.dials and target.tls)) else None
        if tls is not None and not target.tls:
            return "its lease offers no TLS on its peer port, and this node takes TLS alone"
        self._key = self._renew_ms = None
        sock: socket.socket = socket.socket(family_of(host), socket.SOCK_STREAM)
        try:
            tune(sock, links.times)
            self._connecting = True
            async with asyncio.timeout(links.times.connect) as self._deadline:
                await loop.sock_connect(sock, (host, port))
            if tls is not None:
                async with asyncio.timeout(links.times.hello) as self._deadline:
                    secured = await tls.secure(sock, server=False)
                sock, nodes = secured.sock, secured.nodes
                if nodes and self.node not in nodes:
                    raise NotSecured(f"its certificate is of node {', '.join(sorted(nodes))}, not {self.node!r}")
                assert security is not None
                self._renew_ms = renewal_ms(security.wall_ms(), secured.ends_ms, random.random())
                self._roots = secured.roots
                self._key = HeartbeatKey.new()
                hello = replace(hello, heartbeat_key=self._key.encode())
        except OSError as error:  # TimeoutError is one
            sock.close()
            return f"{join(host, port)}: {str(error) or 'no answer'}"
        except BaseException:
            sock.close()
            raise
        finally:
            self._connecting = False
        self._ended = loop.create_future()
        self.wire = Wire(sock, self, links.times.hello)
        try:
            self.wire.write([hello.encode()])
            return await self._ended
        finally:
            self.wire.close("not wanted any more")
            self.wire = None

    # ------------------------------------------------------------ End
    def greeted(self, data: bytes) -> None:
        version, refusal = decode_answer(data)
        if refusal:
            raise BadGreeting(f"refused: {refusal}")
        self.version = common_version(self._links.versions, VersionRange(version, version))
        self.up, self._up_at = True, asyncio.get_running_loop().time()
        security, target = self._links.security, self.target
        if security is not None and self._key is not None and target is not None:
            security.guard.ask_by(self._links.cluster, self.node, target.incarnation, self._key)
        self._links.log("link-up", peer=self.node, version=version, tls=self._key is not None)
        self._links.notify(self.wire, self._links.handler.link_up, self.node)

    def received(self, message: Message) -> None:
        self._links.handler.from_slave(self.node, message)

    def closed(self, reason: str, fault: str) -> None:
        was_up, self.up = self.up, False
        if not self._ended.done():
            self._ended.set_result("" if was_up else reason)
        if was_up:
            self._links.log(fault or "link-down", peer=self.node, reason=reason)
            self._links.notify(None, self._links.handler.link_down, self.node)
