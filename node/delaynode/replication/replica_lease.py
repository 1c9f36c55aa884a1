"""Leases between a shard's master and its slaves (docs/protocol.md 2; PacificA's, without a lease service).

    slave     "I will not become master before now + lease", said in the reply to a heartbeat
    master    counts 0.9 of the lease from before it SENT that heartbeat, and serves only while it holds a live lease
              of every counted member (replication/in_sync.py)

The lease is a process's own, as of its start: the cluster's may have been changed since, and others may have started
since. So a slave says with each lease how long it is, and a master counts the shorter one of that and its own.

So a master that is frozen or cut off has stopped by itself before any slave of its in-sync set may serve. All times
are ms of CLOCK_BOOTTIME, each node's own; the tenth between the two counts is room for their clocks' drift.

One heartbeat per pair of nodes carries all their shards. Heartbeats may be lost, late, twice, out of order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from delaynode.replication.protocol import MAX_HEARTBEAT_SHARDS, Heartbeat, HeartbeatReply

SILENT_MS = 1_000  # a peer that left heartbeats unanswered for so long is silent
AHEAD_MS = 200  # between words that a shard's heartbeats name an epoch that is not known here
PAUSE_MS = 500  # this process did not run for so long: what it has not heard is its own fault


Asker = tuple[str, int, int]
"""The term that a heartbeat asks for: node, incarnation, epoch."""


@dataclass(slots=True)
class GrantedLease:
    """A slave's last lease on a shard."""

    asker: Asker
    heartbeat: int = 0
    at_ms: int = 0
    until_ms: int = 0


@dataclass(slots=True)
class LeaseRequest:
    """A term of this node: whom it asks."""

    epoch: int
    nodes: tuple[str, ...]
    since: int  # heartbeat id: what was granted for earlier ones may have been given back since


@dataclass(slots=True)
class LeasePeer:
    """unanswered_since_ms: when the first heartbeat was sent since its last answer; None: nothing is owed."""

    unanswered_since_ms: int | None = None
    silent: bool = False
    answered: int = 0  # the highest id that was answered
    sent: dict[int, int] = field(default_factory=dict)  # heartbeat id -> when it was sent


class ReplicaLeases:
    """Both sides' leases of one process. Safe to use from several threads; never waits for anything.

    on_silent(node, silent), on_higher(uid, epoch), on_ahead(uid), on_heard(node, its wall clock, boot clock, round
    trip, all ms): called, on the heartbeat's thread, when a peer falls silent or speaks again, when a slave knows a
    higher epoch than the term it was asked for, when a heartbeat names a higher epoch than is known here, and with
    each reply.

    lease_ms: of this process. former_lease_ms: the longest that an earlier process of this node may have granted.
    """

    def __init__(
        self,
        node: str,
        incarnation: int,
        *,
        lease_ms: int,
        former_lease_ms: int = 0,
        boot_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.lease_ms = lease_ms
        self._former_lease_ms = max(lease_ms, former_lease_ms)
        self._boot_ms, self._wall_ms = boot_ms, wall_ms
        self._lock = threading.Lock()
        self._started_ms = boot_ms()
        self._min_epochs: dict[int, int] = {}  # uid -> the highest epoch known
        self._ahead_reported_ms: dict[int, int] = {}  # uid -> when on_ahead was called last
        self._granted: dict[int, GrantedLease] = {}
        self._released: dict[int, tuple[Asker, int]] = {}  # uid -> who gave back, and up to which heartbeat
        self._requests: dict[int, LeaseRequest] = {}
        self._held: dict[tuple[int, str], int] = {}  # (uid, node) -> until
        self._peers: dict[str, LeasePeer] = {}
        self._clock_peers: tuple[str, ...] = ()  # nodes that get heartbeats for their clocks' sake alone
        self._next_id = 1
        self._checked_ms = self._started_ms
        self.on_silent: Callable[[str, bool], None] = lambda node, silent: None
        self.on_higher: Callable[[int, int], None] = lambda uid, epoch: None
        self.on_ahead: Callable[[int], None] = lambda uid: None
        self.on_heard: Callable[[str, int, int, int], None] = lambda node, wall_ms, boot_ms, round_trip_ms: None
        self.on_request: Callable[[], None] = lambda: None  # there is somebody to ask: don't wait for the interval

    # ------------------------------------------------------------ a slave's side
    def answer(self, heartbeat: Heartbeat) -> HeartbeatReply:
        """Grant what can be granted: nothing for an epoch below the known one, and for one above it not yet.

        A heartbeat alone raises no floor. Anybody can send one datagram, and a floor above the registry's epoch would
        shut every master out until this process ends.
        """
        ahead: list[int] = []
        with self._lock:
            now = self._boot_ms()
            answers = tuple(self._answer(heartbeat, uid, epoch, now, ahead) for uid, epoch in heartbeat.shards)
        for uid in ahead:
            self.on_ahead(uid)
        return HeartbeatReply(
            self.node, heartbeat.incarnation, heartbeat.heartbeat_id, self._wall_ms(), self.lease_ms, answers
        )  # fmt: skip

    def _answer(self, heartbeat: Heartbeat, uid: int, epoch: int, now: int, ahead: list[int]) -> tuple[int, int, bool]:
        min_epoch = self._min_epochs.get(uid)
        # no replica of it here: nothing to grant, and unidentified senders must not fill the memory
        if min_epoch is None:
            return uid, 0, False
        if epoch < min_epoch:
            return uid, min_epoch, False
        if epoch > min_epoch:
            if now - self._ahead_reported_ms.get(uid, -AHEAD_MS) >= AHEAD_MS:
                self._ahead_reported_ms[uid] = now
                ahead.append(uid)
            return uid, min_epoch, False
        asker = (heartbeat.node, heartbeat.incarnation, epoch)
        released = self._released.get(uid)
        if released is not None and released[0] == asker and heartbeat.heartbeat_id <= released[1]:
            return uid, epoch, False
        granted = self._granted.get(uid)
        if granted is None or granted.asker != asker:
            granted = self._granted[uid] = GrantedLease(asker)
        granted.heartbeat = max(granted.heartbeat, heartbeat.heartbeat_id)
        granted.at_ms, granted.until_ms = now, now + self.lease_ms
        return uid, epoch, True

    def raise_min_epoch(self, uid: int, epoch: int) -> None:
        """There is a replica here, and an epoch is known: heartbeats of lower ones are refused from now on."""
        with self._lock:
            self._min_epochs[uid] = max(self._min_epochs.get(uid, 0), epoch)

    def min_epoch(self, uid: int) -> int:
        """The highest epoch known of a shard."""
        with self._lock:
            return self._min_epochs.get(uid, 0)

    def wait_ms(self, uid: int) -> int:
        """How long this node is still bound by a lease not to become the shard's master.

        A process that has just started may have granted anything before it was killed.
        """
        with self._lock:
            granted = self._granted.get(uid)
            until = max(self._started_ms + self._former_lease_ms, granted.until_ms if granted is not None else 0)
            return max(0, until - self._boot_ms())

    def release(self, uid: int, node: str, incarnation: int, epoch: int, heartbeat: int) -> None:
        """A master that serves no more gives back what was granted for its heartbeats up to `heartbeat`."""
        with self._lock:
            if uid not in self._min_epochs:
                return
            asker = (node, incarnation, epoch)
            self._released[uid] = (asker, heartbeat)
            granted = self._granted.get(uid)
            if granted is not None and granted.asker == asker and granted.heartbeat <= heartbeat:
                granted.until_ms = 0

    def heard_ms(self, uid: int) -> int | None:
        """How long ago the shard's master was heard; None: never."""
        with self._lock:
            granted = self._granted.get(uid)
            return None if granted is None else self._boot_ms() - granted.at_ms

    # ------------------------------------------------------------ a master's side
    def lead(self, uid: int, epoch: int, nodes: Iterable[str]) -> None:
        """Ask these nodes, for this term, from now on."""
        with self._lock:
            before = self._requests.get(uid)
            goes_on = before is not None and before.epoch == epoch
            since = before.since if before is not None and goes_on else self._next_id
            now = self._requests[uid] = LeaseRequest(epoch, tuple(nodes), since)
            if not goes_on:
                self._drop_held(uid)
        if now != before:
            self.on_request()

    def request_now(self) -> None:
        """Ask everybody now: who refused a moment ago, for it did not know of the epoch, knows it by now."""
        self.on_request()

    def set_clock_peers(self, nodes: Iterable[str]) -> None:
        """Hear from these nodes, too, whatever is led here: their clocks say whether this node's is right."""
        with self._lock:
            self._clock_peers = tuple(nodes)

    def stop_requesting(self, uid: int) -> int:
        """The term serves no more. Returns the id of the last heartbeat that may have asked for it."""
        with self._lock:
            self._requests.pop(uid, None)
            self._drop_held(uid)
            return self._next_id - 1

    def _drop_held(self, uid: int) -> None:
        for key in [key for key in self._held if key[0] == uid]:
            del self._held[key]

    def heartbeats(self) -> list[tuple[str, Heartbeat]]:
        """What to send now. To be sent at once: the leases count from here."""
        with self._lock:
            shards: dict[str, list[tuple[int, int]]] = {node: [] for node in self._clock_peers}
            for uid, request in self._requests.items():
                for node in request.nodes:
                    shards.setdefault(node, []).append((uid, request.epoch))
            for node in [node for node in self._peers if node not in shards]:
                del self._peers[node]
            now, wall = self._boot_ms(), self._wall_ms()
            made: list[tuple[str, Heartbeat]] = []
            for node, rows in shards.items():
                peer = self._peers.setdefault(node, LeasePeer())
                sent = peer.sent
                for old in [heartbeat for heartbeat, at in sent.items() if now - at > self.lease_ms]:
                    del sent[old]
                for low in range(0, max(1, len(rows)), MAX_HEARTBEAT_SHARDS):
                    part = tuple(rows[low : low + MAX_HEARTBEAT_SHARDS])
                    made.append((node, Heartbeat(self.node, self.incarnation, self._next_id, wall, part)))
                    sent[self._next_id] = now
                    self._next_id += 1
                if peer.unanswered_since_ms is None:
                    peer.unanswered_since_ms = now
            return made

    def on_reply(self, reply: HeartbeatReply) -> None:
        """A reply has come."""
        higher: list[tuple[int, int]] = []
        with self._lock:
            peer = self._peers.get(reply.node)
            if reply.incarnation != self.incarnation or peer is None:
                return
            sent = peer.sent.pop(reply.heartbeat_id, None)
            if sent is None:
                return  # a second copy, or so late that it is worth nothing
            now = self._boot_ms()
            peer.answered = max(peer.answered, reply.heartbeat_id)
            peer.unanswered_since_ms = min(
                (at for heartbeat, at in peer.sent.items() if heartbeat > peer.answered), default=None
            )
            until = sent + min(self.lease_ms, reply.lease_ms) * 9 // 10
            for uid, epoch, granted in reply.shards:
                request = self._requests.get(uid)
                if request is None:
                    continue
                requested = reply.heartbeat_id >= request.since and reply.node in request.nodes
                if granted and epoch == request.epoch and requested:
                    key = (uid, reply.node)
                    self._held[key] = max(self._held.get(key, 0), until)
                elif epoch > request.epoch:
                    higher.append((uid, epoch))
        self.on_heard(reply.node, reply.wall_ms, now, now - sent)
        for uid, epoch in higher:
            self.on_higher(uid, epoch)

    def check_silence(self) -> None:
        """Judge who is silent; after all that has come in was taken."""
        changed: list[tuple[str, bool]] = []
        with self._lock:
            now = self._boot_ms()
            paused = now - self._checked_ms > PAUSE_MS
            self._checked_ms = now
            for node, peer in self._peers.items():
                if paused and peer.unanswered_since_ms is not None:
                    peer.unanswered_since_ms = now
                silent = peer.unanswered_since_ms is not None and now - peer.unanswered_since_ms >= SILENT_MS
                if silent != peer.silent:
                    peer.silent = silent
                    changed.append((node, silent))
        for node, silent in changed:
            self.on_silent(node, silent)

    def silent(self, node: str) -> bool:
        with self._lock:
            peer = self._peers.get(node)
            return peer is not None and peer.silent

    def live(self, uid: int, nodes: Iterable[str]) -> bool:
        """Whether this master holds a live lease of each of these nodes."""
        with self._lock:
            now = self._boot_ms()
            return all(self._held.get((uid, node), 0) > now for node in nodes)
