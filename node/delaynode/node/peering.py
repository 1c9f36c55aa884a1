"""Peering: what this process has with the other nodes' processes: replica leases, heartbeats and links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from delayapi.address import join, split
from delayregistry.model import ClusterSpec

from delaynode.clock import boot_ms, wall_ms
from delaynode.config import NodeConfig
from delaynode.listener_options import DIALS_TLS
from delaynode.node import lease_file
from delaynode.node.routes import Routes
from delaynode.node_certificates import PEER, NodeCertificates
from delaynode.replication.heartbeat_guard import HeartbeatGuard
from delaynode.replication.protocol import Message
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.transport.heartbeats import HeartbeatThread
from delaynode.replication.transport.links import Address, Links
from delaynode.replication.transport.peers import Handler, Origin
from delaynode.replication.transport.tls import LinkSecurity, PeerTls
from delaynode.store.log.files import Files

NEIGHBOURS = 4  # whose clocks are compared with this node's
MIN_HEARTBEAT_MS = 50


class Peering:
    """Owned by the event loop. `handler` is to be set before listen(); `address` is the one for others since then."""

    def __init__(
        self,
        config: NodeConfig,
        incarnation: str,
        cluster_spec: ClusterSpec | None,
        routes: Routes,
        files: Files,
        log: Callable[..., None],
        certificates: NodeCertificates,
    ) -> None:
        """Blocks for files. Raises OSError."""
        self._config, self._routes, self._files, self._log = config, routes, files, log
        self._lease_ms = (
            cluster_spec.lease_seconds if cluster_spec is not None else 3
        ) * 1000  # as wished at the start
        former_ms = lease_file.adopt(files, config.data, self._lease_ms)
        # When an earlier process's longer lease is over, CLOCK_BOOTTIME.
        self._lower_lease_at_ms = boot_ms() + former_ms if former_ms > self._lease_ms else None
        self.replica_leases = ReplicaLeases(
            config.node, int(incarnation, 16), lease_ms=self._lease_ms, former_lease_ms=former_ms, boot_ms=boot_ms,
            wall_ms=wall_ms,
        )  # fmt: skip
        self._relay = _HandlerRelay()
        name = cluster_spec.name if cluster_spec is not None else ""
        peers = config.security.peers
        self._seals = peers in DIALS_TLS  # heartbeats, to nodes that offer TLS
        guard = HeartbeatGuard(
            config.node, incarnation, boot_ms, self._lease_ms // 2, self._must_seal, required=peers == "required"
        )
        self.tls = PeerTls(partial(certificates.current, PEER), certificates.cluster_uri) if peers != "off" else None
        security = None if self.tls is None else LinkSecurity(self.tls, peers == "required", self._seals, guard)
        self.links = Links(
            name, config.node, incarnation, partial(peer_address, routes), self._relay, log, security=security
        )
        self.address = ""
        self._clock_peers: list[str] = []
        interval_ms = max(MIN_HEARTBEAT_MS, self._lease_ms // 10)
        self._heartbeats = HeartbeatThread(
            self.replica_leases, guard, self._heartbeat_address, log, interval_ms=interval_ms
        )
        guard.on_key = self._heartbeats.nudge

    async def listen(self, handler: Handler, heard: Callable[[str, int, int, int], None]) -> None:
        """heard: told of peers' clocks, on the event loop. Raises OSError."""
        self._relay.handler = handler
        host, port = split(self._config.peer)
        bound = await self.links.start(host, port)
        self.address = self._config.advertise_peer or join(host, bound)
        self._heartbeats.bind(host, bound)
        self.replica_leases.on_request = self._heartbeats.nudge
        loop = asyncio.get_running_loop()
        self.replica_leases.on_heard = lambda *what: _soon(loop, heard, *what)
        self._heartbeats.start()

    def leases_read(self) -> None:
        """`routes.leases` is new."""
        self.links.addresses_changed()
        if (now := self.neighbours()) != self._clock_peers:
            self._clock_peers = now
            self.replica_leases.set_clock_peers(now)
            if self._seals:
                self.links.keep(now)
            self._heartbeats.nudge()  # a process that has just started releases nothing before they have answered

    def neighbours(self) -> list[str]:
        """A few other nodes, the same whoever restarts: those that follow this one in a ring."""
        names = sorted({*self._routes.leases, self._config.node})
        at = names.index(self._config.node)
        return (names[at + 1 :] + names[:at])[:NEIGHBOURS]

    @property
    def offers_tls(self) -> bool:
        return self.tls is not None and self.tls.usable

    def _must_seal(self, node: str) -> bool:
        if self._config.security.peers == "required":
            return True
        found = peer_address(self._routes, node) if self._seals else None
        return found is not None and found.tls

    def _heartbeat_address(self, node: str) -> tuple[str, int] | None:
        found = peer_address(self._routes, node)
        return None if found is None else found[:2]

    def lease_to_lower(self) -> Callable[[], None] | None:
        """The write that is due, once, for a thread: this process has outlasted every lease that was granted before
        it.
        """
        if self._lower_lease_at_ms is None or boot_ms() <= self._lower_lease_at_ms:
            return None
        self._lower_lease_at_ms = None
        return self._lower_lease

    def _lower_lease(self) -> None:
        try:
            lease_file.write(self._files, self._config.data, self._lease_ms)
        except OSError as error:  # the longer one harms nobody but who waits for it after a restart
            self._log("lease-not-lowered", reason=str(error))

    async def close(self) -> None:
        self._heartbeats.stop()
        await self.links.close()
        if self.tls is not None:
            self.tls.close()


def peer_address(routes: Routes, node: str) -> Address | None:
    """Where another node's process is reached; None where its lease says nothing of use."""
    lease = routes.leases.get(node)
    if lease is None or not lease.peer:
        return None
    try:
        return Address(*split(lease.peer), lease.incarnation, lease.wire, lease.peer_tls)
    except ValueError:
        return None  # another's mistake; Links says that there is no address


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    """From another thread; the loop may be gone."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *args)


class _HandlerRelay:
    """Stands for the handler that links are made before."""

    handler: Handler

    def link_up(self, node: str) -> None:
        self.handler.link_up(node)

    def link_down(self, node: str) -> None:
        self.handler.link_down(node)

    def from_slave(self, node: str, message: Message) -> None:
        self.handler.from_slave(node, message)

    def from_master(self, origin: Origin, message: Message) -> None:
        self.handler.from_master(origin, message)

    def origin_lost(self, origin: Origin) -> None:
        self.handler.origin_lost(origin)
