"""The network between nodes: streams that stall and break, datagrams that get lost, late, doubled and superseded.

A stream delivers in order, whole messages. Cut off, it stalls; what it carries arrives after the cut ends, unless it
breaks first: then a suffix of what was sent is lost, and each side learns of that in its own time. Once the same
process has connected again, nothing of its connection before arrives, as in Links.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from delaynode.replication.heartbeat_guard import HeartbeatGuard, HeartbeatKey
from delaynode.replication.protocol import Message, decode, encode
from delaynode.replication.transport.peers import Handler

from tests.simulation.support.machine.loop import MICRO, MILLI, ProcessLoop, Scheduler

CLUSTER = "sim"
SOCKET_DATAGRAMS = 300  # datagrams that wait for a frozen process


class End(Protocol):
    """A process, as the network sees it."""

    name: str
    incarnation: str
    loop: ProcessLoop
    guard: HeartbeatGuard

    @property
    def handler(self) -> Handler: ...

    def datagram(self, data: bytes) -> None: ...


@dataclass
class Line:
    """How well one machine reaches another, one way."""

    cut: bool = False
    latency_ns: int = 200 * MICRO
    jitter_ns: int = 300 * MICRO
    loss: float = 0.0  # share of the datagrams that get lost
    stream_ns: int = 0  # how much later than a datagram a stream's message arrives
    waiting: list[Callable[[], None]] = field(default_factory=list)  # stalled streams


class Network:
    """sealed: nodes agree on a key by each link, and heartbeats count only with a seal. tap(source, target, data): sees
    each datagram that is sent, whether it arrives or not, and says whether it may go its way."""

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, trace: Callable[..., None], *, sealed: bool = False
    ) -> None:
        self.scheduler, self.rng, self.trace, self.sealed = scheduler, rng, trace, sealed
        self.tap: Callable[[str, str, bytes], bool] | None = None
        self._lines: dict[tuple[str, str], Line] = {}
        self.ends: dict[str, End] = {}  # processes that listen, by node
        self.links: list[Link] = []
        self.newest: dict[tuple[str, str], Link] = {}  # by the incarnations of the processes that it joins

    def line(self, source: str, target: str) -> Line:
        line = self._lines.get((source, target))
        if line is None:
            line = self._lines[source, target] = Line()
        return line

    def reaches(self, source: str, target: str) -> bool:
        return not self.line(source, target).cut

    def both_ways(self, one: str, other: str) -> bool:
        return self.reaches(one, other) and self.reaches(other, one)

    # ------------------------------------------------------------ trouble
    def cut(self, source: str, target: str) -> None:
        self.line(source, target).cut = True

    def mend(self, source: str, target: str) -> None:
        line = self.line(source, target)
        line.cut = False
        waiting, line.waiting = line.waiting, []
        for at, go_on in enumerate(waiting):  # TCP retransmits at its own pace
            self.scheduler.after(self.rng.randint(1, 400) * MILLI + at, go_on)

    def break_links(self, one: str, other: str) -> None:
        """Break the connections between the two nodes."""
        for link in list(self.links):
            if {link.source.name, link.target} == {one, other}:
                link.fail()

    def delay_ns(self, source: str, target: str) -> int:
        line = self.line(source, target)
        return line.latency_ns + self.rng.randint(0, line.jitter_ns)

    # ------------------------------------------------------------ datagrams
    def send_datagram(self, source: str, target: str, data: bytes) -> None:
        if self.tap is not None and not self.tap(source, target, data):
            return
        line = self.line(source, target)
        if line.cut or self.rng.random() < line.loss:
            return
        copies = 2 if self.rng.random() < 0.01 else 1
        for _ in range(copies):
            delay = self.delay_ns(source, target)
            if self.rng.random() < 0.01:
                delay += self.rng.randint(1, 3_000) * MILLI
            self.scheduler.after(delay, self._datagram, source, target, data)

    def _datagram(self, source: str, target: str, data: bytes) -> None:
        end = self.ends.get(target)
        if end is not None and self.reaches(source, target):
            end.datagram(data)

    def inject(self, target: str, data: bytes) -> None:
        """Somebody's datagram arrives there, however badly the lines are cut."""
        end = self.ends.get(target)
        if end is not None:
            end.datagram(data)

    # ------------------------------------------------------------ processes
    def listen(self, end: End) -> None:
        self.ends[end.name] = end

    def gone(self, end: End, *, at_once: bool) -> None:
        """The process has ended. at_once: its kernel tells the connected peers; else they find out by themselves."""
        if self.ends.get(end.name) is end:
            del self.ends[end.name]
        for link in list(self.links):
            if link.source is end or link.reached is end:
                link.fail(quick=at_once)


class Link:
    """A connection that `source` made to a node: messages go there, replies come back."""

    def __init__(self, network: Network, source: End, target: str, reached: End, lost: Callable[[Link], None]) -> None:
        self.network, self.source, self.target, self.reached = network, source, target, reached
        self._lost = lost
        self.open = True
        self.there = Way(self, source.name, target, reached.loop, self._at_target)
        self.back = Way(self, target, source.name, source.loop, self._at_source)
        self.origin = SimOrigin(source.name, source.incarnation, self)
        network.links.append(self)
        joins = source.incarnation, reached.incarnation
        if (before := network.newest.get(joins)) is not None:
            before.there.close(before._tell_target)
        network.newest[joins] = self
        if network.sealed:
            key = HeartbeatKey.new(network.rng.randbytes)
            reached.guard.answer_by(CLUSTER, source.name, source.incarnation, key)
            source.guard.ask_by(CLUSTER, target, reached.incarnation, key)

    def _at_target(self, message: Message) -> None:
        self.reached.handler.from_master(self.origin, message)

    def _at_source(self, message: Message) -> None:
        self.source.handler.from_slave(self.target, message)

    def fail(self, *, quick: bool | None = None) -> None:
        """Break the connection: messages on their way are lost from some message on."""
        if not self.open:
            return
        self.open = False
        rng, scheduler = self.network.rng, self.network.scheduler
        self.network.links.remove(self)
        for way, tell in ((self.there, self._tell_target), (self.back, self._tell_source)):
            way.end(rng.randint(0, len(way.queue)) if rng.random() < 0.5 else 0)
            late = rng.random() < 0.3 if quick is None else not quick
            scheduler.after(
                rng.randint(200, 6_000) * MILLI if late else rng.randint(50, 3_000) * MICRO, way.close, tell
            )

    def _tell_target(self) -> None:
        self.reached.handler.origin_lost(self.origin)

    def _tell_source(self) -> None:
        self._lost(self)


class Way:
    """One direction of a connection."""

    def __init__(
        self, link: Link, source: str, target: str, loop: ProcessLoop, arrive: Callable[[Message], None]
    ) -> None:
        self._link, self._loop, self._arrive = link, loop, arrive
        self._line = link.network.line(source, target)
        self.queue: deque[bytes] = deque()
        self.bytes = 0
        self._last_ns = 0
        self._stalled = 0  # messages whose time came while the line was cut
        self._ended = self._closed = False

    def send(self, message: Message) -> None:
        if self._ended:
            return
        data = b"".join(encode(message))
        network, line = self._link.network, self._line
        self.queue.append(data)
        self.bytes += len(data)
        delay = line.latency_ns + network.rng.randint(0, line.jitter_ns) + line.stream_ns
        when = max(self._last_ns, network.scheduler.time_ns() + delay)
        self._last_ns = when
        network.scheduler.at(when, self._come)

    def _come(self) -> None:
        """One more message may arrive."""
        if not self.queue:
            return
        line = self._line
        if line.cut:
            if not self._stalled:
                line.waiting.append(self._flush)
            self._stalled += 1
            return
        if self._stalled:
            self._stalled += 1
            return
        self._hand_over()

    def _flush(self) -> None:
        if self._line.cut:
            self._line.waiting.append(self._flush)
            return
        count, self._stalled = self._stalled, 0
        for _ in range(min(count, len(self.queue))):
            self._hand_over()

    def _hand_over(self) -> None:
        data = self.queue.popleft()
        self.bytes -= len(data)
        self._loop.call_soon(self._arrive, decode(memoryview(data)[4:]))

    def end(self, keep: int) -> None:
        """End this direction: the first `keep` of the messages on their way still arrive."""
        self._ended = True
        while len(self.queue) > keep:
            self.bytes -= len(self.queue.pop())

    def close(self, tell: Callable[[], None]) -> None:
        """Nothing more arrives; this side learns of it."""
        if self._closed:
            return
        self._ended = self._closed = True
        self.queue.clear()
        self.bytes = 0
        self._loop.call_soon(tell)


@dataclass(eq=False)
class SimOrigin:
    """The sender of a master's messages. Implements delaynode.replication.transport.peers.Origin."""

    node: str
    incarnation: str
    link: Link

    def reply(self, message: Message) -> None:
        self.link.back.send(message)


class SimPeers:
    """Implements delaynode.replication.transport.peers.Peers for one process. always: nodes that it has links to
    whoever wants them."""

    def __init__(self, network: Network, end: End, always: Iterable[str] = ()) -> None:
        self._network, self._end, self._always = network, end, frozenset(always)
        self._wanted: tuple[str, ...] = ()
        self._links: dict[str, Link] = {}
        self._trying: set[str] = set()

    def want(self, nodes: Iterable[str]) -> None:
        self._wanted = tuple(sorted({*nodes, *self._always}))
        for node in self._wanted:
            self._connect_soon(node)
        for node in sorted(set(self._links) - set(self._wanted)):
            link = self._links.pop(node)
            link.fail(quick=True)

    def _connect_soon(self, node: str) -> None:
        if node in self._links or node in self._trying:
            return
        self._trying.add(node)
        network = self._network
        network.scheduler.after(3 * network.delay_ns(self._end.name, node), self._connect, node)

    def _connect(self, node: str) -> None:
        if self._end.loop.dead:
            return
        self._trying.discard(node)
        if node not in self._wanted or node in self._links:
            return
        network = self._network
        reached = network.ends.get(node)
        frozen = reached is not None and reached.loop.frozen  # a frozen process sends no greeting
        if reached is None or frozen or not network.both_ways(self._end.name, node):
            self._trying.add(node)
            network.scheduler.after(network.rng.randint(50, 500) * MILLI, self._connect, node)
            return
        self._links[node] = Link(network, self._end, node, reached, self._lost)
        self._end.loop.call_soon(self._end.handler.link_up, node)

    def _lost(self, link: Link) -> None:
        node = link.target
        if self._links.get(node) is not link:
            return  # the caller has given the connection up
        del self._links[node]
        self._end.handler.link_down(node)
        if node in self._wanted:
            self._trying.add(node)
            self._network.scheduler.after(self._network.rng.randint(5, 200) * MILLI, self._connect, node)

    def drop(self, node: str) -> None:
        link = self._links.get(node)
        if link is not None:
            link.fail(quick=True)

    def send(self, node: str, message: Message) -> None:
        link = self._links.get(node)
        if link is not None:
            link.there.send(message)

    def backlog_bytes(self, node: str) -> int:
        link = self._links.get(node)
        return link.there.bytes if link is not None else 0
