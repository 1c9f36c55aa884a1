"""A slave's side of the protocol for one shard: Follow -> FollowerState -> Start -> Frames ... , or a whole copy first.

Whatever is said in a lower epoch than this copy knows is refused. An epoch is persisted before the copy answers in it.
"""

from __future__ import annotations

from collections.abc import Callable

from delaynode.replica.context import ReplicaContext
from delaynode.replica.hosts.slave import SlaveHost
from delaynode.replica.local_copy import LocalCopy
from delaynode.replication.protocol import (
    Ack,
    Bootstrap,
    ChunkRequest,
    Commit,
    Follow,
    FollowerState,
    FollowRefused,
    Frames,
    LeaseRelease,
    Message,
    SnapshotChunk,
    Start,
)
from delaynode.replication.transport.peers import Origin
from delaynode.store.errors import Damaged, NewerFormat, Refused
from delaynode.store.log.frames import BadFrame, UnknownKind

NEVER_MS = 1 << 40
MAX_CHUNK_REQUESTS = 8  # pieces of a transfer that are asked for at once


def refuse_unknown(origin: Origin, message: Message) -> None:
    """Answers a master that asks for, or streams to, a copy that is not here, so that it asks again in a while.

    Its registry may be ahead of this node's; or behind it, and the copy was thrown away meanwhile: without an answer
    the master would wait for its acks for ever, also once there is to be another copy here.
    """
    origin.reply(FollowRefused(message.uid, message.epoch, 0, False, "this node has no copy of the shard yet"))


class ReplicaFollower:
    """Owned by the replica's worker: one message at a time."""

    def __init__(self, copy: LocalCopy, context: ReplicaContext, log_event: Callable[..., None]) -> None:
        self._copy, self._log_event = copy, log_event
        self._replica_leases, self._boot_ms = context.replica_leases, context.boot_ms
        self.epoch = 0  # the epoch in which it follows
        self.origin: Origin | None = None
        self.streaming = False  # frames come in as the master writes them
        self._matched = False  # a Start on this connection has been carried out: the log is a prefix of the master's
        self._last_heard_ms: int | None = None  # when the master was heard last while it streamed, as far as was looked
        self._acked: Ack | None = None  # the last one
        self._missing_chunks: list[tuple[int, int, int]] = []  # to ask for: file, offset, length; the last one next
        self._outstanding = 0  # pieces asked for
        self._leaving: str | None = None  # why nobody is followed any more
        self.discardable = False  # the master knows that the copy is of no use, and counts on it no more
        copy.on_following, copy.on_failed = self._attach, self.refuse_damaged

    def _attach(self, host: SlaveHost) -> None:
        self._last_heard_ms = None  # a copy that is opened again knows less than it did
        host.on_stored, host.unheard_ms = self.acknowledge, self.unheard_ms

    def unheard_ms(self) -> int:
        """Since the master, which streams to this slave, was heard; or since it was, before the stream ended."""
        now, heard = self._boot_ms(), self._replica_leases.heard_ms(self._copy.uid)
        if heard is not None and self.streaming:
            self._last_heard_ms = now - heard
        return now - self._last_heard_ms if self._last_heard_ms is not None else NEVER_MS

    def on_origin_lost(self, origin: Origin) -> None:
        """The connection is gone."""
        self.unheard_ms()
        if origin is self.origin:
            self.origin, self.streaming = None, False

    def stop(self) -> None:
        self.origin, self.streaming = None, False

    async def handle(self, origin: Origin, message: Message) -> None:
        uid = self._copy.uid
        known = max(self._replica_leases.min_epoch(uid), self.epoch)
        if message.epoch < known:
            if isinstance(message, Follow):
                origin.reply(FollowRefused(uid, message.epoch, known, False, f"epoch {known} is known"))
            return
        if isinstance(message, Follow):
            await self._follow(origin, message)
            return
        if self.origin is None:
            refuse_unknown(origin, message)  # to a copy that was here before this one, or of a connection that is over
            return
        if origin is not self.origin or message.epoch != self.epoch:
            return  # of a connection, or a term, that is over
        match message:
            case Frames():
                self._frames(message)
            case Commit():
                self._commit(message.commit)
            case Start():
                await self._start(message)
            case Bootstrap():
                await self._bootstrap(message)
            case SnapshotChunk():
                await self._store_chunk(message)
            case LeaseRelease():
                pass  # Replicas.from_master() has carried it out: it must not wait for what is before it
            case _:
                self._log_event("bad-message", peer=origin.node, what=type(message).__name__)

    async def _follow(self, origin: Origin, message: Follow) -> None:
        copy, uid = self._copy, self._copy.uid
        self._replica_leases.raise_min_epoch(uid, message.epoch)
        self.streaming = False
        self._matched = self._matched and origin is self.origin and message.epoch == self.epoch
        self.origin, self.epoch = origin, message.epoch
        why = self._refusal_reason()
        self.discardable = message.discardable and why is not None
        if why is not None:
            origin.reply(FollowRefused(uid, message.epoch, message.epoch, True, why))
            return
        if copy.host is None:
            origin.reply(FollowerState(uid, message.epoch, "", 0, 0, ()))
            return
        try:
            await copy.storage.accept_epoch(message.epoch)
        except (OSError, Damaged) as error:
            copy.host.fail(f"epoch {message.epoch} not persisted: {error}", error)
            origin.reply(FollowRefused(uid, message.epoch, message.epoch, True, str(error)))
            return
        self._send_state()

    def _send_state(self) -> None:
        """Say what the copy has; or, where that has come about meanwhile, that it does not follow."""
        copy = self._copy
        if self._refusal_reason() is not None:
            self.refuse_damaged()
            return
        if self.origin is None or copy.host is None:
            return
        log = copy.host.shard.log
        epochs = tuple((epoch, start) for epoch, start in log.epochs)
        committed = max(copy.host.known_committed, copy.host.shard.committed_offset)
        self.origin.reply(
            FollowerState(copy.uid, self.epoch, copy.storage.replica_id, log.end, min(committed, log.end), epochs)
        )

    async def _start(self, message: Start) -> None:
        host = self._copy.host
        if host is None or self.origin is None:
            return
        if self._matched and message.cut < host.shard.log.end:
            # The answer to a FollowerState that was sent before an earlier Start arrived. What it would cut are the
            # master's own, and acknowledged. A master that goes on there gets FollowerState anew: see _frames().
            self._log_event("late-start", cut=message.cut, log_end=host.shard.log.end)
            return
        try:
            await host.cut(message.cut)
        except (OSError, Damaged) as error:
            host.fail(f"cut at {message.cut}: {error}", error)
            self.refuse_damaged()
            return
        if self._leaving is not None:
            return  # as the master has been told meanwhile
        host.commit_to(message.commit)  # before it streams: what it knew until now is as old as the stream before
        self.streaming, self._matched, self._acked = True, True, None
        self.acknowledge()

    def _frames(self, message: Frames) -> None:
        host = self._copy.host
        if host is None or not self.streaming:
            return
        if message.offset != host.shard.log.end:  # not to be thought of on one ordered connection: begin anew
            self._log_event("frames-out-of-order", offset=message.offset, expected=host.shard.log.end)
            self.streaming = False
            self._send_state()
            return
        try:
            host.receive(memoryview(message.data[0]))
        except UnknownKind as unknown:
            error = NewerFormat(f"frame from {self.origin.node if self.origin else 'the master'}: {unknown.args[0]}")
            host.fail(str(error), error)
            return
        except (BadFrame, Damaged) as error:  # broken on its way: nothing was taken
            self._log_event("bad-frames", offset=message.offset, reason=str(error))
            self.streaming = False
            self._send_state()
            return
        self._commit(message.commit)

    def _commit(self, offset: int) -> None:
        host = self._copy.host
        if host is not None and self.streaming:
            host.commit_to(offset)

    def acknowledge(self) -> None:
        """More is stored, or applied."""
        host = self._copy.host
        if host is None or host.failure is not None or not self.streaming or self.origin is None:
            return
        ack = Ack(self._copy.uid, self.epoch, host.durable, host.shard.applied)
        if ack != self._acked:
            self._acked = ack
            self.origin.reply(ack)

    def _refusal_reason(self) -> str | None:
        return self._leaving or self._copy.damaged()

    def leave(self, why: str) -> None:
        """This process is about to end: masters are to go on without the copy now, not when they miss it."""
        self._leaving = why
        self.refuse_damaged()

    def refuse_damaged(self) -> None:
        """The copy is of no use any more: the master is to go on without it."""
        why = self._refusal_reason()
        if self.origin is not None and why is not None:
            self.streaming = False
            self.origin.reply(FollowRefused(self._copy.uid, self.epoch, self.epoch, True, why))

    # ------------------------------------------------------------ a whole copy
    async def _bootstrap(self, message: Bootstrap) -> None:
        self._matched = False
        try:
            incoming = await self._copy.begin_fetch(message.manifest)
        except (OSError, ValueError, Damaged, NewerFormat, Refused) as error:
            await self._give_up(f"transfer not begun: {error}")
            return
        self._missing_chunks = list(incoming.missing_chunks())[::-1]
        self._outstanding = 0
        self._request_chunks()
        if not self._outstanding:
            await self._complete()

    def _request_chunks(self) -> None:
        while self._missing_chunks and self._outstanding < MAX_CHUNK_REQUESTS and self.origin is not None:
            self.origin.reply(ChunkRequest(self._copy.uid, self.epoch, *self._missing_chunks.pop()))
            self._outstanding += 1

    async def _store_chunk(self, chunk: SnapshotChunk) -> None:
        incoming = self._copy.storage.fetching
        if incoming is None:
            return
        try:
            await self._copy.storage.write_chunk(incoming, chunk)
        except (OSError, ValueError) as error:
            await self._give_up(f"piece not stored: {error}")
            return
        self._outstanding -= 1
        self._request_chunks()
        if not self._outstanding and not self._missing_chunks:
            await self._complete()

    async def _complete(self) -> None:
        try:
            await self._copy.end_fetch(self.epoch)
        except (OSError, ValueError, Damaged, NewerFormat) as error:
            await self._give_up(f"transfer not completed: {error}")
            return
        self._send_state()

    async def _give_up(self, why: str) -> None:
        """The master asks again after a while."""
        await self._copy.storage.abort_fetch()
        self._log_event("transfer-failed", reason=why)
        if self.origin is not None:
            self.origin.reply(FollowRefused(self._copy.uid, self.epoch, self.epoch, False, why))
