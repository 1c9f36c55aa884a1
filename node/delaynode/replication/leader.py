"""One reign of one shard: what is committed, who is in sync, when it serves, how it ends (DESIGN 5.1-5.4, 5.7).

    commit = the lowest durable log offset of this copy and of every counted member (see replication/in_sync.py)
    serves   only while it holds a live promise of every counted member

Order of writes: to go on without a member, the smaller set is in the registry first; to count on a new one, commits
wait for it first and the registry is told then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from delayregistry.model import Handover, ShardObject, ShardStatus, Version
from delayregistry.port import Conflict, RegistryError

from delaynode.replication.in_sync import Entries, InSync
from delaynode.replication.lease import Promises
from delaynode.replication.protocol import Release
from delaynode.replication.shipping import PeerReplica, Phase, Shipping
from delaynode.replication.transport.peers import Peers
from delaynode.replication.transport.until import until
from delaynode.store.log.commit_log import CommitLog, WriteBatch
from delaynode.store.types import Buffer

TELL_SECONDS = 0.05  # an idle shard's slaves learn of a commit within this
RETRY_SECONDS = 0.2
GATHER_MS = 300  # a new master waits so long for the old in-sync set to follow it, once it may serve
OVERWRITTEN_MS = 1_000  # a watch may be so far behind this reign's own writes
MISSING_AGAIN_MS = 10_000  # two reads that found no shard, further apart than this, are two incidents
HAND_OVER_MS = 2_000
SWITCH_AGAIN_MS = 10_000  # each try that nobody takes up stops the shard for HAND_OVER_MS
POLL_SECONDS = 0.02
QUICK_SECONDS = 0.002  # while clients wait
NEAR_BYTES = 4 << 20  # a member this close to the log's end may join the in-sync set,
ABREAST_MS = 5_000  # if it also has what was there a look ago, or has been so close for so long,
APPLIED_MS = 20_000  # and has applied what was committed then, or nearly, or has been so close for this long
APPLIED_BYTES = 1 << 20  # nearly: a moment's work


@dataclass(frozen=True, slots=True)
class Reign:
    """What is fixed for a reign. entry: this copy's name in the in-sync set."""

    uid: int
    epoch: int
    node: str
    incarnation: str
    entry: str
    lag_ms: int
    fsync: bool


class StatusStore(Protocol):
    """The shard's object in the registry. Raises RegistryError."""

    async def get(self) -> ShardObject | None:
        """A consistent read."""

    async def write(self, status: ShardStatus, version: Version) -> Version: ...


class Host(Protocol):
    """What serves the shard."""

    def advance(self) -> None:
        """commit_limit() may have moved."""

    def pause(self, why: str) -> None:
        """Append nothing and answer nothing until resume()."""

    def resume(self) -> None: ...


class Leader:
    """Owned by the event loop. Made once the reign's epoch is persisted; over at stop().

    over(why): called once, when this reign has ended by itself: a higher epoch is known, or it has resigned.
    """

    def __init__(
        self,
        reign: Reign,
        log: CommitLog,
        shipping: Shipping,
        peers: Peers,
        promises: Promises,
        statuses: StatusStore,
        boot_ms: Callable[[], int],
        note: Callable[..., None],
    ) -> None:
        self.reign = reign
        self.shipping = shipping
        self.in_sync = InSync(reign.entry, frozenset((reign.entry,)))
        self.leaving: frozenset[str] = frozenset()  # nodes whose copy is to go
        self.over: Callable[[str], None] = lambda why: None
        self.host: Host | None = None
        self.ended: str | None = None
        self.handover: Handover | None = None
        self.hindered: str | None = None  # why its last write of the status was none; None: it was, or it wrote none
        self._log, self._peers, self._promises, self._statuses = log, peers, promises, statuses
        self._boot_ms, self._note = boot_ms, note
        self._loop = asyncio.get_running_loop()
        self._version: Version | None = None
        self._missing_ms: tuple[int, int] | None = None  # first and last of the reads in a row that found no shard
        self._named = False  # this reign has written one
        self._former: Entries = frozenset((reign.entry,))  # the in-sync set that the reign before left in the registry
        self._wrote: ShardStatus | None = None  # what this reign wrote last
        self._overwritten_ms: int | None = None  # since when the registry shows another status
        self._welcome: frozenset[str] = frozenset()  # as of that version: the replicas that are not to leave
        self._serving = False  # the registry names this reign
        self._resigned: str | None = None
        self._ends = log.end, log.end  # of the log at the last two looks, the earlier one first
        self._commits = shipping.commit, shipping.commit  # the commit offset, likewise
        self._telling: asyncio.TimerHandle | None = None
        self._settling: asyncio.Task[None] | None = None
        self._switching: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._successor: str | None = None  # node that the operator wants to lead
        self._not_again_ms = 0  # a switchover that nobody took is not tried before
        shipping.changed = self._member_changed
        shipping.replaceable = self._replaceable
        shipping.deposed = self.deposed

    # ------------------------------------------------------------ members
    def set_replicas(self, nodes: Iterable[str], leaving: Iterable[str]) -> None:
        """As the registry has them."""
        others = tuple(node for node in nodes if node != self.reign.node)
        if self.ended is None:
            self.leaving = frozenset(leaving)
            self.shipping.set_replicas(others)
            if self.handover is None and self._resigned is None:
                self._promises.lead(self.reign.uid, self.reign.epoch, others)
            self._settle()

    def member_of(self, entry: str) -> PeerReplica | None:
        for member in self.shipping.members.values():
            if member.entry == entry:
                return member
        return None

    def _counted_nodes(self) -> list[str]:
        """Nodes of the counted members; "" for an entry nobody is known to have."""
        found = (self.member_of(entry) for entry in self.in_sync.counted() if entry != self.reign.entry)
        return [member.node if member is not None else "" for member in found]

    @property
    def in_sync_size(self) -> int:
        """Copies that have every committed frame, this one included: those that join may lack the last of them."""
        return len(self.in_sync.written)

    # ------------------------------------------------------------ shipping, as the host sees it
    @property
    def ships(self) -> bool:
        """There are others to send to."""
        return bool(self.shipping.members)

    def sealed(self, batch: WriteBatch, parts: list[Buffer]) -> None:
        """On the thread that writes."""
        self.shipping.sealed(batch, parts)

    def wrote(self) -> None:
        """This copy has stored more of its log."""
        self.shipping.wrote()

    def needed_from(self) -> int:
        return self.shipping.needed_from()

    # ------------------------------------------------------------ commit
    def own_durable(self) -> int:
        return self._log.synced if self.reign.fsync else self._log.written

    def commit_limit(self) -> int:
        """Every frame before this log offset is stored by every counted member."""
        limit = self.own_durable()
        for entry in self.in_sync.counted():
            if entry != self.reign.entry:
                member = self.member_of(entry)
                limit = min(limit, member.durable if member is not None else 0)
        return limit

    def committed(self, offset: int) -> None:
        """The host has committed up to here."""
        self.shipping.commit = max(self.shipping.commit, offset)
        if self._telling is None and self.shipping.members:
            self._telling = self._loop.call_later(TELL_SECONDS, self._tell)

    def _tell(self) -> None:
        self._telling = None
        self.shipping.tell()

    def live(self) -> bool:
        """Whether what is read here may be answered: no other process can be serving this shard now."""
        if not self._serving or self.ended is not None or self.handover is not None:
            return False
        nodes = self._counted_nodes()
        return not nodes or self._promises.live(self.reign.uid, nodes)

    def _member_changed(self, member: PeerReplica) -> None:
        if self.host is not None:
            self.host.advance()
        self._settle()

    # ------------------------------------------------------------ the in-sync set
    def _wanted(self) -> Entries:
        """The set that should be in the registry."""
        good = {self.reign.entry}
        for entry in self.in_sync.counted() - good:
            member = self.member_of(entry)
            if member is None or not self._fit(member):
                continue
            coming = entry in self.in_sync.joining and entry not in self.in_sync.written
            if not coming or member.durable >= self.shipping.commit:
                good.add(entry)
        return frozenset(good)

    def _fit(self, member: PeerReplica) -> bool:
        if member.damaged or member.node in self.leaving or self._promises.silent(member.node):
            return False
        behind = member.durable < max(member.next, self.own_durable())
        return not (behind and self._boot_ms() - member.moved_ms > self.reign.lag_ms)

    def _abreast(self, member: PeerReplica) -> bool:
        """Whether commits may wait for it: they would for as long as it is behind, and one that has much to apply,
        as after a start, is slow to store what comes."""
        now = self._boot_ms()
        if not member.heard or self._log.end - member.durable > NEAR_BYTES:
            member.near_ms = None
            return False
        if member.near_ms is None:
            member.near_ms = now
        near_ms = now - member.near_ms
        stores = member.durable >= self._ends[0] or near_ms > ABREAST_MS
        committed = min(self._commits[0], member.durable, self.shipping.commit - APPLIED_BYTES)
        applied = member.applied >= committed  # of what it has stored
        return stores and (applied or near_ms > APPLIED_MS)

    def _join(self) -> None:
        """Members that have nearly caught up: from now on commits wait for them, and for their promise.

        The registry is told once they have all that is committed: no later commit is without them then.
        """
        counted = self.in_sync.counted()
        for member in self.shipping.members.values():
            if member.phase is not Phase.STREAMING or member.entry in counted or not self._abreast(member):
                continue
            if self._fit(member) and self._promises.live(self.reign.uid, (member.node,)):
                self.in_sync.join(member.entry)
                self._note("replica-joins", peer=member.node, entry=member.entry)

    def _replaceable(self, entry: str) -> bool:
        """Whether a copy may be thrown away for a new one: no failover can choose it.

        entry: empty where the copy's id can't be read. Then all that are named must be known to be other copies.
        """
        counted = self.in_sync.counted()
        if not entry:
            others = all(one == self.reign.entry or self.member_of(one) is not None for one in counted)
            return self._began and self._serving and self.in_sync.settled and others
        return self._began and self._serving and entry not in counted

    @property
    def _began(self) -> bool:
        """The log is applied, so this reign may commit frames.

        A reign that ends before, as its copy can't apply its log, has committed nothing that the copies of the former
        in-sync set lack. So it leaves that set as it was, and until then no copy is thrown away.
        """
        return self.host is not None

    def watched(self, status: ShardStatus | None) -> None:
        """The registry's status, as it is watched.

        Only this reign may write it, but a person, a backup tool or a registry restored from an older state may have.
        It is written again: a failover would choose by it.
        """
        if status == self._wrote:
            self._overwritten_ms = None
        elif self._overwritten_ms is None:
            self._overwritten_ms = self._boot_ms()

    def _overwritten(self) -> bool:
        since = self._overwritten_ms
        return since is not None and self._boot_ms() - since > OVERWRITTEN_MS

    def look(self) -> None:
        """A member may have fallen silent or behind, or a promise have come: to be called a few times a second."""
        self._ends = self._ends[1], self._log.end
        self._commits = self._commits[1], self.shipping.commit
        self._settle()
        self._switch()

    def _settle(self) -> None:
        """See to it that the registry names who is in sync."""
        if not self._serving or self.ended is not None or self.handover is not None:
            return
        self._join()
        differs = self._wanted() != self.in_sync.written or not self.in_sync.settled
        if self._settling is None and (differs or self._overwritten()):
            self._settling = self._loop.create_task(self._write_sets())

    async def _write_sets(self) -> None:
        try:
            while self.ended is None and self.handover is None:
                wanted = self._wanted()
                if wanted == self.in_sync.written and not self.in_sync.tried and not self._overwritten():
                    self._forget_lost()
                    return
                if not await self._write(wanted, None):
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._settling = None

    def _forget_lost(self) -> None:
        """Members that fell away before a write could name them."""
        for entry in list(self.in_sync.joining):
            member = self.member_of(entry)
            if member is None or not self._fit(member):
                self.in_sync.give_up(entry)
                if self.host is not None:
                    self.host.advance()

    async def _write(self, wanted: Entries | None, handover: Handover | None, resigned: str | None = None) -> bool:
        """Write the status; False when that did not (or may not) have happened. Ends the reign at a higher epoch.

        wanted: None for the set that is recorded by then: another write may be under way, and who was taken out by it
        must not be put in again.
        """
        async with self._writing:
            if self.ended is not None:
                return False
            if self._version is None and not await self._read():
                return False
            version = self._version
            if version is None:
                return False
            if wanted is None:
                wanted = self.in_sync.written if self._began else self._former
            elif self.handover is not None:
                return False  # it has begun meanwhile, and must not be wiped out
            else:
                named = self._as_replicas(wanted)
                if self._serving and named != wanted and named == self.in_sync.written:
                    self._version = None  # to see what becomes of the others
                    return False
                wanted = named
            reign = self.reign
            status = ShardStatus(reign.epoch, reign.incarnation, tuple(sorted(wanted)), handover, resigned)
            self.in_sync.trying(wanted)
            self._version = None  # unless this succeeds it must be read again
            try:
                self._version = await self._statuses.write(status, version)
            except Conflict as error:
                self.in_sync.refused(wanted)  # somebody changed another field, or a new reign has begun: read again
                self.hindered = f"the registry refused its status: {error}"
                return await self._read() and False
            except RegistryError as error:
                self._note("status-not-written", epoch=reign.epoch, reason=str(error))
                self.hindered = f"the registry did not take its status: {error}"
                return False
            if self._overwritten():
                self._note("status-written-again", epoch=reign.epoch)
            self._wrote, self._overwritten_ms, self.hindered = status, None, None
            before, self._named = self.in_sync.written, True
            self.in_sync.succeeded(wanted)
            if before != wanted:
                self._note("in-sync", epoch=reign.epoch, entries=sorted(wanted))
        if self.host is not None:
            self.host.advance()
        return True

    async def _read(self) -> bool:
        """Learn the object's version; False when it can't be had or names a later reign."""
        try:
            found = await self._statuses.get()
        except RegistryError as error:
            self._note("registry-unreachable", reason=str(error))
            self.hindered = f"the registry did not show it the shard: {error}"
            return False
        if found is None:
            self.hindered = "the registry has no such shard, by what this node is told"
            self._not_found()
            return False
        self._missing_ms = None
        if found.spec.uid != self.reign.uid:
            self._end("the registry has another shard of this name")
            return False
        if found.spec.epoch > self.reign.epoch:
            self.deposed(found.spec.epoch)
            return False
        if found.spec.epoch < self.reign.epoch:
            self._note("registry-behind", epoch=self.reign.epoch, registry_epoch=found.spec.epoch)
            self.hindered = f"the registry knows of epoch {found.spec.epoch} only"
            return False
        self._version = found.version
        if found.status is not None and found.status.serving_epoch < self.reign.epoch:
            self._former = frozenset(found.status.in_sync)
        self._welcome = frozenset(found.spec.replicas) - frozenset(found.spec.leaving)
        self.set_replicas(found.spec.replicas, found.spec.leaving)  # what is watched may be older
        return True

    def _not_found(self) -> None:
        """A read found no such shard. The reign ends once that has stayed so for lag_ms: the object may be about to
        be put back, by a backup tool or `kubectl replace --force`."""
        now = self._boot_ms()
        before = self._missing_ms
        if before is None or now - before[1] > MISSING_AGAIN_MS:
            self._note("shard-not-found", epoch=self.reign.epoch)
            before = now, now
        self._missing_ms = before[0], now
        if now - before[0] >= self.reign.lag_ms:
            self._end("the shard is gone from the registry")

    def _as_replicas(self, entries: Entries) -> Entries:
        """Those whose nodes are to have a copy in the version that is about to be written over: one that may go has
        perhaps thrown its copy away (attack A10)."""
        members = [member for member in self.shipping.members.values() if member.node in self._welcome]
        return entries & {self.reign.entry, *(member.entry for member in members)}

    # ------------------------------------------------------------ the reign's life
    async def begin(
        self,
        former: Iterable[str],
        replicas: Iterable[str],
        leaving: Iterable[str],
        *,
        vacated: bool,
        missing: Callable[[], int] = lambda: 0,
    ) -> bool:
        """Wait out one's own promise, gather who follows, write the status. False when another reign has begun.

        former: the in-sync set so far. vacated: the registry says that the master before serves no more, so there is
        nothing to wait out. missing: how many of the former set won't follow, since their processes have ended or are
        about to; one too many costs a copy its place in the first set, not its data. The log must be on disk as far
        as it goes. From here on all of it is committed: every member of the new set has it.
        """
        self.set_replicas(replicas, leaving)
        others = frozenset(former) - {self.reign.entry}
        if others and not vacated:  # without others only this node can have been serving: its former process is dead
            await until(lambda: self.ended is not None or self._promises.wait_ms(self.reign.uid) == 0, POLL_SECONDS)
        deadline = self._boot_ms() + GATHER_MS
        await until(
            lambda: (
                self.ended is not None
                or self._boot_ms() >= deadline
                or len(self._following(others)) >= len(others) - missing()
            ),
            POLL_SECONDS,
        )
        self._promises.hurry()
        while self.ended is None:
            members = self._following(others)
            for entry in members:
                self.in_sync.join(entry)
            if await self._write(frozenset((self.reign.entry, *members)), None):
                self.shipping.commit = max(self.shipping.commit, self._log.end)  # whoever has less may not join
                self._serving = True
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False

    def _following(self, entries: Entries) -> Entries:
        """Those that follow this reign and have all of its log."""
        members = self.shipping.members.values()
        return entries & {m.entry for m in members if m.phase is Phase.STREAMING and m.durable >= self._log.end}

    def deposed(self, epoch: int) -> None:
        """A higher epoch is known."""
        self._end(f"epoch {epoch} has begun")

    def _end(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
            self._promises.stop_asking(self.reign.uid)
            self.over(why)

    def stop(self) -> None:
        """Nothing more is sent, asked or written."""
        self._end("stopped")
        self.shipping.stop()
        if self._telling is not None:
            self._telling.cancel()
        for task in (self._settling, self._switching):
            if task is not None:
                task.cancel()

    # ------------------------------------------------------------ giving it away
    @property
    def resigned(self) -> str | None:
        """Why it serves no more in this epoch; the registry may not know yet."""
        return self._resigned

    async def answered(self) -> bool:
        """Whether the registry answers now, and names this reign.

        To be asked before the shard is stopped to be given away. Without the registry nobody can take it over, and a
        write that got no answer may have given it away: it would stand still until the registry is back.
        """
        async with self._writing:
            return self.ended is None and await self._read()

    async def resign(self, why: str) -> None:
        """Serve no more in this epoch, and say so: the operator chooses another."""
        if self.ended is not None or self._resigned is not None:
            return
        self._resigned = why
        heartbeat = self._promises.stop_asking(self.reign.uid)
        self._serving = False
        if not self._named:  # who is chosen next takes this word for it that nobody else serves
            await until(lambda: self.ended is not None or self._promises.wait_ms(self.reign.uid) == 0, POLL_SECONDS)
        while self.ended is None:
            if await self._write(None, None, why):
                self._release(self.shipping.members, heartbeat)
                self._end(f"resigned: {why}")
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _release(self, nodes: Iterable[str], heartbeat: int) -> None:
        for node in nodes:
            self._peers.send(node, Release(self.reign.uid, self.reign.epoch, heartbeat))

    def switch_to(self, node: str | None) -> None:
        """Hand over to this node's copy as soon as it is in sync; None: not any more."""
        self._successor = node
        self._switch()

    def _switch(self) -> None:
        member = self.shipping.members.get(self._successor) if self._successor is not None else None
        ready = self._serving and self.ended is None and self._switching is None and self.host is not None
        if (
            not ready
            or self._boot_ms() < self._not_again_ms
            or member is None
            or member.damaged
            or member.entry not in self.in_sync.written
        ):
            return
        self._switching = self._loop.create_task(self._hand_over(member))

    async def _hand_over(self, member: PeerReplica) -> None:
        assert self.host is not None
        answered = await self.answered()
        wanted = self._successor == member.node and member.entry in self.in_sync.written
        if not answered or not self._serving or not wanted:
            self._switching, self._not_again_ms = None, self._boot_ms() + HAND_OVER_MS
            return
        host, deadline = self.host, self._boot_ms() + HAND_OVER_MS
        host.pause(f"being handed over to {member.node}")
        try:
            end = self._log.end
            await until(
                lambda: (
                    min(member.durable, self.shipping.commit) >= end
                    or self._boot_ms() > deadline
                    or member.damaged  # it is about to end, say
                    or self.ended is not None
                ),
                QUICK_SECONDS,
            )
            if self.ended is not None or member.damaged or min(member.durable, self.shipping.commit) < end:
                return
            heartbeat = self._promises.stop_asking(self.reign.uid)
            self.handover = Handover(self.reign.epoch, end)
            self.shipping.tell()
            written = False
            while self.ended is None and self._boot_ms() < deadline:
                if not written:
                    written = await self._write(None, self.handover)
                    if written:
                        self._release((member.node,), heartbeat)
                        self._note("handed-over", to=member.node, log_end=end)
                await asyncio.sleep(POLL_SECONDS)
            while self.ended is None:  # nobody took it: take it back
                if await self._write(None, None):
                    self.handover = None
                    self._promises.lead(self.reign.uid, self.reign.epoch, tuple(self.shipping.members))
                    self._note("handover-taken-back", to=member.node)
                    return
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._switching = None
            self._not_again_ms = self._boot_ms() + SWITCH_AGAIN_MS
            if self.ended is None:
                host.resume()
                self._settle()
