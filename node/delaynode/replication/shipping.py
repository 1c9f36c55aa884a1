"""Log shipping: each other replica of a shard (peer_replica.py) is asked what it has, and is sent what it lacks.

Frames are sent as soon as they are sealed, while this copy still writes them itself; a member that is behind is sent
what the files have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from typing import Any

from delaynode.replication.catch_up import MIN_BYTES, CatchUpBudget
from delaynode.replication.epochs import common_end
from delaynode.replication.peer_replica import PeerReplica, Phase, SnapshotSource
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
from delaynode.replication.recent_frames import RecentFrames
from delaynode.replication.transport.peers import Peers
from delaynode.store.errors import Damaged, Trimmed
from delaynode.store.log.commit_log import CommitLog, WriteBatch
from delaynode.store.log.frames import BadFrame
from delaynode.store.types import Buffer

WINDOW_BYTES = 32 << 20  # sent to a member and not stored by it
STALLED_MS = 2_000  # a member that has not stored anything for so long is sent no more before it has
# One that no failover can choose holds back neither log nor transfers any more. A large copy may take minutes to open.
STUCK_MS = 600_000
BACKLOG_BYTES = 64 << 20  # queued to a node and not taken by the network
READ_BYTES = 1 << 20  # read from the log at once for a member that is behind: it parses that on its event loop
FOLLOW_RETRY_SECONDS = 0.5
OFFER_RETRY_SECONDS = 5.0  # after a whole copy was refused: an offer links all files here, and a disk may stay full
MAX_CHUNK_BYTES = 4 << 20
COMMIT_NOTICE_SECONDS = 0.05  # an idle shard's slaves learn of a commit within this


class Shipping:
    """Owned by the event loop, but sealed(). `uid` and `epoch` are the term's.

    on_changed(member): it has stored more, fell away or came back. on_superseded(epoch): a member knows that higher
    epoch. replaceable(replica_id): whether that copy may be thrown away for a new one.
    """

    def __init__(
        self,
        uid: int,
        epoch: int,
        log: CommitLog,
        peers: Peers,
        pool: Executor,
        boot_ms: Callable[[], int],
        snapshot: Callable[[], Coroutine[Any, Any, SnapshotSource]],
        log_event: Callable[..., None],
        catching_up: CatchUpBudget,
    ) -> None:
        self.uid, self.epoch = uid, epoch
        self.members: dict[str, PeerReplica] = {}
        self.on_changed: Callable[[PeerReplica], None] = lambda member: None
        self.on_superseded: Callable[[int], None] = lambda epoch: None
        self.replaceable: Callable[[str], bool] = lambda replica_id: True
        self.committed_offset = 0  # as members are told: nothing before the term has begun
        self.first_commit = 0  # all before it is committed, once the term's log is applied here: members are told then
        self._log, self._peers, self._pool, self._boot_ms, self._log_event = log, peers, pool, boot_ms, log_event
        self._snapshot, self._catching_up = snapshot, catching_up
        self._loop = asyncio.get_running_loop()
        self._recent = RecentFrames()
        self._sealed = log.written  # frames before it may be sent
        self._tasks: set[asyncio.Task[None]] = set()
        self._commit_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    # ------------------------------------------------------------ who
    def set_replicas(self, nodes: Iterable[str]) -> None:
        """The nodes that have, or are to have, a replica, but this one."""
        desired = list(nodes)
        for node in desired:
            if node not in self.members:
                self.members[node] = PeerReplica(node)
                self._request_follow(self.members[node])
        for node in [node for node in self.members if node not in desired]:
            self._reset(self.members.pop(node), Phase.DOWN)

    def member_of(self, replica_id: str) -> PeerReplica | None:
        for member in self.members.values():
            if member.replica_id == replica_id:
                return member
        return None

    def link_up(self, node: str) -> None:
        member = self.members.get(node)
        if member is not None:
            self._request_follow(member)

    def link_down(self, node: str) -> None:
        member = self.members.get(node)
        if member is not None and member.phase is not Phase.DOWN:
            self._reset(member, Phase.DOWN)
            self.on_changed(member)

    def _request_follow(self, member: PeerReplica) -> None:
        """A Follow without a link is dropped; link_up() asks again."""
        self._reset(member, Phase.ASKED)
        discardable = member.damaged and self.replaceable(member.replica_id)
        self._peers.send(member.node, Follow(self.uid, self.epoch, discardable))

    def _reset(self, member: PeerReplica, phase: Phase) -> None:
        member.phase = phase  # first: what is given back may go to another shard, not to this member
        self._release(member)
        member.progress_ms = self._boot_ms()

    def _release(self, member: PeerReplica) -> None:
        member.session += 1
        drawn, member.budgeted, member.reading = member.budgeted + member.reading, 0, 0
        self._catching_up.release(member.node, drawn)
        snapshot, member.snapshot = member.snapshot, None
        if snapshot is not None:
            self._loop.run_in_executor(self._pool, snapshot.release)

    def stop(self) -> None:
        self._stopped = True
        for member in self.members.values():
            self._reset(member, Phase.DOWN)
        for task in self._tasks:
            task.cancel()
        self._recent.clear()
        if self._commit_timer is not None:
            self._commit_timer.cancel()

    # ------------------------------------------------------------ what comes back
    def received(self, node: str, message: Message) -> None:
        member = self.members.get(node)
        if member is None or message.epoch != self.epoch or self._stopped:
            return
        match message:
            case Ack():
                self._acked(member, message)
            case FollowerState():
                self._match(member, message)
            case FollowRefused():
                self._refused(member, message)
            case ChunkRequest():
                self._on_chunk_request(member, message)
            case _:
                self._log_event("bad-message", peer=node, what=type(message).__name__)

    def _acked(self, member: PeerReplica, ack: Ack) -> None:
        if member.phase is not Phase.STREAMING or not ack.durable <= member.next:
            return
        member.acked = True
        if ack.durable > member.durable or ack.durable == member.next:
            member.progress_ms = self._boot_ms()
        member.durable = max(member.durable, ack.durable)
        member.applied = max(member.applied, ack.applied)
        stored = max(0, member.budgeted - (member.next - member.durable))
        member.budgeted -= stored
        self._catching_up.release(member.node, stored)
        self.on_changed(member)
        self._pump(member)

    def _refused(self, member: PeerReplica, refused: FollowRefused) -> None:
        if refused.known_epoch > self.epoch:
            self.on_superseded(refused.known_epoch)
            return
        seconds = OFFER_RETRY_SECONDS if member.phase is Phase.FETCHING else FOLLOW_RETRY_SECONDS
        self._reset(member, Phase.DOWN)
        member.damaged = refused.damaged
        self._log_event("follower-refuses", peer=member.node, reason=refused.reason)
        self.on_changed(member)
        self._retry_later(member, seconds)

    def _retry_later(self, member: PeerReplica, seconds: float) -> None:
        self._loop.call_later(seconds, self._retry_follow, member, member.session)

    def _retry_follow(self, member: PeerReplica, session: int) -> None:
        if not self._stopped and member.session == session and self.members.get(member.node) is member:
            self._request_follow(member)

    def _match(self, member: PeerReplica, state: FollowerState) -> None:
        """The member says what it has: go on from where both logs are the same."""
        self._reset(member, Phase.ASKED)
        if state.replica_id != member.replica_id or state.replica_id == "":
            member.durable = member.applied = 0  # another copy than the one that acknowledged
        member.replica_id, member.damaged = state.replica_id, False
        at = common_end(self._log.epochs, self._log.end, state.epochs, state.log_end)
        if state.replica_id == "" or at < state.committed or not self._log.holds_from(at):
            if state.replica_id == "" or self.replaceable(state.replica_id):
                self._spawn(self._offer(member, member.session))
            else:  # a failover could still choose it: it is taken out of the in-sync set first
                member.damaged = True
                self._retry_later(member, FOLLOW_RETRY_SECONDS)
                self.on_changed(member)
            return
        member.phase, member.next, member.near_end_ms = Phase.STREAMING, at, None
        # Acks are of what it keeps: it had no more than `at` of this log, whatever it said of the log that it cuts.
        member.durable, member.applied, member.acked, member.sent_commit = 0, 0, False, self.committed_offset
        self._peers.send(member.node, Start(self.uid, self.epoch, at, self.committed_offset))
        self._log_event("follower-streams", peer=member.node, cut=at, had=state.log_end)
        self.on_changed(member)
        self._pump(member)

    # ------------------------------------------------------------ frames
    def sealed(self, batch: WriteBatch, parts: list[Buffer]) -> None:
        """On the thread that writes: the batch has its final bytes."""
        self._loop.call_soon_threadsafe(self._ready, batch.start, batch.end, tuple(parts))

    def _ready(self, start: int, end: int, parts: tuple[Buffer, ...]) -> None:
        if self._stopped:
            return
        if not any(member.phase is Phase.STREAMING for member in self.members.values()):
            return  # sent from the file, if ever
        if self._recent.add(start, end, parts):
            self._sealed = end
            self._pump_all()

    def on_written(self) -> None:
        """This copy has written more of its log."""
        self._sealed = max(self._sealed, self._log.written)
        self._pump_all()
        streams = (m for m in self.members.values() if m.phase is Phase.STREAMING and self._takes_more(m))
        needed = min((member.next for member in streams), default=self._sealed)
        self._recent.drop_before(min(needed, self._log.written))

    def _pump_all(self) -> None:
        for member in self.members.values():
            self._pump(member)

    def _pump(self, member: PeerReplica) -> None:
        while (
            member.phase is Phase.STREAMING
            and not member.reading
            and member.next < self._sealed
            and self._takes_more(member)
            and self._peers.backlog_bytes(member.node) < BACKLOG_BYTES
        ):
            chunk = self._recent.starting_at(member.next)
            if chunk is None:
                if member.next < self._log.written:
                    self._catch_up(member)
                return
            self._send(member, chunk.start, chunk.end, chunk.parts)

    def _catch_up(self, member: PeerReplica) -> None:
        """Read the next piece of the file for it, or wait for others that catch up."""
        budget, size = self._catching_up, READ_BYTES
        if not budget.has_room(member.node, size):
            if member.next > member.durable:
                budget.wait(member.node, self.uid, lambda: self._pump(member))
                return
            size = MIN_BYTES
        budget.acquire(member.node, size)
        member.reading = size
        self._spawn(self._read(member, member.session))

    def _takes_more(self, member: PeerReplica) -> bool:
        """What is on its way to one that stores nothing is memory, there and here, and there are many shards."""
        waits = member.next - member.durable
        return waits < WINDOW_BYTES and (not waits or self._boot_ms() - member.progress_ms < STALLED_MS)

    def _send(self, member: PeerReplica, start: int, end: int, parts: tuple[Buffer, ...]) -> None:
        if member.next == member.durable:
            member.progress_ms = self._boot_ms()
        member.next, member.sent_commit = end, self.committed_offset
        self._peers.send(member.node, Frames(self.uid, self.epoch, start, self.committed_offset, parts))

    async def _read(self, member: PeerReplica, session: int) -> None:
        """Send the member a piece of the file."""
        start = member.next
        try:
            data = await self._loop.run_in_executor(self._pool, self._log.read_raw, start, member.reading)
        except Trimmed:
            if member.session == session:
                self._request_follow(member)  # it has fallen behind what is kept: it will be offered the files
            return
        except (OSError, Damaged, BadFrame) as error:
            self._log_event("log-not-read", peer=member.node, offset=start, reason=str(error))
            if member.session == session:
                self._reset(member, Phase.DOWN)
                self._retry_later(member, FOLLOW_RETRY_SECONDS)  # the link stays up: nobody else would ask
            return
        if member.session != session:
            return
        self._catching_up.acquire(member.node, len(data) - member.reading)
        member.budgeted, member.reading = member.budgeted + len(data), 0
        if data:
            self._send(member, start, start + len(data), (data,))
        self._pump(member)

    @property
    def needed_to_join(self) -> int:
        """The log offset that a member must have everything before."""
        return max(self.committed_offset, self.first_commit)

    def on_committed(self, offset: int) -> None:
        """All before this log offset is committed: where no frames tell the members soon, they are told."""
        self.committed_offset = max(self.committed_offset, offset)
        if self._commit_timer is None and self.members:
            self._commit_timer = self._loop.call_later(COMMIT_NOTICE_SECONDS, self._on_commit_timer)

    def _on_commit_timer(self) -> None:
        self._commit_timer = None
        self.send_commit()

    def send_commit(self) -> None:
        """Members that stream learn the commit offset, where no frames have told them."""
        for member in self.members.values():
            if member.phase is Phase.STREAMING and member.sent_commit < self.committed_offset:
                member.sent_commit = self.committed_offset
                self._peers.send(member.node, Commit(self.uid, self.epoch, self.committed_offset))

    def send_release(self, nodes: Iterable[str], heartbeat: int) -> None:
        """Give back the leases that these nodes granted for heartbeats up to this one: the term serves no more."""
        for node in nodes:
            self._peers.send(node, LeaseRelease(self.uid, self.epoch, heartbeat))

    def needed_from(self) -> int:
        """The log offset below which no member that is on its way needs this log.

        A stuck member does not count: a disk that hangs there must not fill this one. It is offered the files should
        it go on and lack what was freed.
        """
        needed = self._log.end
        for member in self.members.values():
            if member.phase is Phase.STREAMING:
                if not self._is_stuck(member) or not self.replaceable(member.replica_id):
                    needed = min(needed, member.durable)
            elif member.snapshot is not None:
                needed = min(needed, member.snapshot.log_offset)
        return needed

    def _is_stuck(self, member: PeerReplica) -> bool:
        return self._boot_ms() - member.progress_ms > STUCK_MS

    # ------------------------------------------------------------ the whole copy
    def end_stuck_transfers(self) -> None:
        """Another member may have the place of one whose disk hangs: that answers Follow when it goes on."""
        for member in self.members.values():
            if member.phase is Phase.FETCHING and self._is_stuck(member):
                self._log_event("transfer-stuck", peer=member.node, seconds=STUCK_MS // 1000)
                self._request_follow(member)

    async def _offer(self, member: PeerReplica, session: int) -> None:
        try:
            snapshot = await self._snapshot()
        except (OSError, Damaged) as error:
            self._log_event("snapshot-failed", peer=member.node, reason=str(error))
            if member.session == session:
                self._retry_later(member, FOLLOW_RETRY_SECONDS)
            return
        if member.session != session or self._stopped:
            self._loop.run_in_executor(self._pool, snapshot.release)  # not awaited: stop() would cancel it
            return
        member.snapshot, member.phase, member.progress_ms = snapshot, Phase.FETCHING, self._boot_ms()
        self._peers.send(member.node, Bootstrap(self.uid, self.epoch, snapshot.manifest))
        self._log_event("copy-offered", peer=member.node, log_offset=snapshot.log_offset)

    def _on_chunk_request(self, member: PeerReplica, request: ChunkRequest) -> None:
        if member.phase is not Phase.FETCHING or member.snapshot is None:
            return
        if not 0 < request.length <= MAX_CHUNK_BYTES:
            self._log_event("bad-message", peer=member.node, what=f"PULL of {request.length} bytes")
            return
        member.progress_ms = self._boot_ms()  # it asks for a piece when it has stored another
        self._spawn(self._send_chunk(member, member.session, member.snapshot, request))

    async def _send_chunk(
        self, member: PeerReplica, session: int, snapshot: SnapshotSource, request: ChunkRequest
    ) -> None:
        try:
            data = await self._loop.run_in_executor(
                self._pool, snapshot.read, request.file, request.offset, request.length
            )
        except (OSError, ValueError) as error:
            self._log_event("snapshot-not-read", peer=member.node, reason=str(error))
            if member.session == session:
                self._request_follow(member)
            return
        if member.session == session:
            self._peers.send(member.node, SnapshotChunk(self.uid, self.epoch, request.file, request.offset, data))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
