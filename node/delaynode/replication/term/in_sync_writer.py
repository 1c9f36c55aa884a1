"""What a term writes into its shard's status in the registry: the in-sync set, and how the term is given away.

Each write is a compare-and-swap on the object's version. One whose answer is unknown may be there, or come to be there
later: commits wait for whom it names (replication/in_sync.py) until a later write is answered. Only one is under way
at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from delayregistry.model import Handover, ShardObject, ShardStatus, Version
from delayregistry.port import Conflict, RegistryError

from delaynode.replication.in_sync import InSync, ReplicaIds
from delaynode.replication.shipping import Shipping
from delaynode.replication.term.in_sync_rule import InSyncRule
from delaynode.replication.term.state import Term, TermState

RETRY_SECONDS = 0.2
OVERWRITTEN_MS = 1_000  # a watch may be so far behind this term's own writes
MISSING_AGAIN_MS = 10_000  # two reads that found no shard, further apart than this, are two incidents


class WriteResult(Enum):
    """What became of a write of the status."""

    WRITTEN = "written"
    CONFLICT = "conflict"  # certainly not written: somebody changed another field, or a new term has begun
    UNKNOWN = "unknown"  # it may have happened, or may happen yet
    UNREAD = "unread"  # not sent: the term has ended, or the object has to be read, maybe again
    SUPERSEDED = "superseded"  # not sent: a handover has begun meanwhile


class StatusStore(Protocol):
    """The shard's object in the registry. Raises RegistryError."""

    async def get(self) -> ShardObject | None:
        """A consistent read."""

    async def write(self, status: ShardStatus, version: Version) -> Version: ...


class InSyncWriter:
    """Owned by the event loop. end(why), superseded(epoch), set_replicas(nodes, leaving): what the registry's object
    says to the term."""

    def __init__(
        self,
        term: Term,
        state: TermState,
        shipping: Shipping,
        in_sync: InSync,
        rule: InSyncRule,
        statuses: StatusStore,
        end: Callable[[str], None],
        superseded: Callable[[int], None],
        set_replicas: Callable[[Iterable[str], Iterable[str]], None],
        boot_ms: Callable[[], int],
        log_event: Callable[..., None],
    ) -> None:
        self.blocked_reason: str | None = None  # why its last write was none; None: it was, or it wrote none
        self.has_written = False
        self._term, self._state, self._shipping, self._in_sync, self._rule = term, state, shipping, in_sync, rule
        self._statuses, self._end, self._superseded, self._set_replicas = statuses, end, superseded, set_replicas
        self._boot_ms, self._log_event = boot_ms, log_event
        self._loop = asyncio.get_running_loop()
        self._version: Version | None = None
        self._revision = 0  # of the status that this term tried to write last
        self._missing_ms: tuple[int, int] | None = None  # first and last of the reads in a row that found no shard
        self._former: ReplicaIds = frozenset((term.replica_id,))  # what the term before left in the registry
        self._last_status: ShardStatus | None = None  # what this term wrote last
        self._shown: ShardStatus | None = None  # as the watch shows it
        self._overwritten_ms: int | None = None  # since when it shows another status
        self._staying: frozenset[str] = frozenset()  # as of that version: the replicas that are not to leave
        self._updating: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    # ------------------------------------------------------------ when to write
    def update(self) -> None:
        """See to it that the registry names who is in sync."""
        if not self._state.leads:
            return
        self._rule.join()
        differs = self._rule.desired() != self._in_sync.written or not self._in_sync.is_resolved
        if self._updating is None and (differs or self._overwritten()):
            self._updating = self._loop.create_task(self._write_sets())

    async def _write_sets(self) -> None:
        try:
            while self._state.ended is None and self._state.handover is None:
                if (
                    self._overwritten() and not await self.confirm_term()
                ):  # what is watched may be older than what is there
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                desired = self._rule.desired()
                if desired == self._in_sync.written and not self._in_sync.tried and not self._overwritten():
                    self._rule.forget_lost()
                    return
                if await self.publish_in_sync_set(desired) is not WriteResult.WRITTEN:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._updating = None

    def on_status(self, status: ShardStatus | None) -> None:
        """The registry's status, as it is watched.

        Only this term may write it, but a person, a backup tool or a registry restored from an older state may have.
        It is written again: a failover would choose by it.
        """
        self._shown = status
        if status == self._last_status:
            self._overwritten_ms = None
        elif self._overwritten_ms is None:
            self._overwritten_ms = self._boot_ms()

    def _overwritten(self) -> bool:
        since = self._overwritten_ms
        return since is not None and self._boot_ms() - since > OVERWRITTEN_MS

    def stop(self) -> None:
        if self._updating is not None:
            self._updating.cancel()

    # ------------------------------------------------------------ writes
    async def publish_in_sync_set(self, desired: ReplicaIds) -> WriteResult:
        """Write this set, without the replicas that the registry has meanwhile told to leave."""
        async with self._writing:
            if (version := await self._current_version()) is None:
                return WriteResult.UNREAD
            if self._state.handover is not None:
                return WriteResult.SUPERSEDED  # it must not be wiped out
            named = self._as_replicas(desired)
            if self._state.serving and named != desired and named == self._in_sync.written:
                self._version = None  # to see what becomes of the others
                return WriteResult.UNREAD
            result = await self._compare_and_swap(version, named, None, None)
        if result is WriteResult.WRITTEN:
            self._state.advance()
        return result

    async def publish_handover(self, handover: Handover | None, resigned: str | None = None) -> WriteResult:
        """Write that the term is handed over or resigned; neither: a handover is taken back.

        The in-sync set is the one recorded by then: another write may be under way, and who was taken out by it must
        not be put in again.
        """
        async with self._writing:
            if (version := await self._current_version()) is None:
                return WriteResult.UNREAD
            recorded = self._in_sync.written if self._state.began else self._former
            result = await self._compare_and_swap(version, recorded, handover, resigned)
        if result is WriteResult.WRITTEN:
            self._state.advance()
        return result

    async def _compare_and_swap(
        self, version: Version, replica_ids: ReplicaIds, handover: Handover | None, resigned: str | None
    ) -> WriteResult:
        term = self._term
        self._revision += 1  # with each try: one that got no answer may have been written
        entries = tuple(sorted(replica_ids))
        status = ShardStatus(term.epoch, term.incarnation, entries, handover, resigned, self._revision)
        self._in_sync.trying(replica_ids)
        self._version = None  # unless this succeeds it must be read again
        try:
            self._version = await self._statuses.write(status, version)
        except Conflict as error:
            self._in_sync.refused(replica_ids)
            self.blocked_reason = f"the registry refused its status: {error}"
            await self._read()
            return WriteResult.CONFLICT
        except RegistryError as error:
            self._log_event("status-not-written", epoch=term.epoch, reason=str(error))
            self.blocked_reason = f"the registry did not take its status: {error}"
            return WriteResult.UNKNOWN
        if self._overwritten():
            self._log_event("status-written-again", epoch=term.epoch)
        # What was put back meanwhile may have been shown before this answer came.
        self._overwritten_ms = None if self._shown == status else self._boot_ms()
        self._last_status, self.blocked_reason = status, None
        before, self.has_written = self._in_sync.written, True
        self._in_sync.succeeded(replica_ids)
        if before != replica_ids:
            self._log_event("in-sync", epoch=term.epoch, entries=sorted(replica_ids))
        return WriteResult.WRITTEN

    def _as_replicas(self, replica_ids: ReplicaIds) -> ReplicaIds:
        """The replicas whose nodes are to have a copy in the version that is about to be written over: one that may go
        has perhaps thrown its copy away (attack A10)."""
        members = [member for member in self._shipping.members.values() if member.node in self._staying]
        return replica_ids & {self._term.replica_id, *(member.replica_id for member in members)}

    # ------------------------------------------------------------ reads
    async def confirm_term(self) -> bool:
        """Whether the registry answers now, and names this term."""
        async with self._writing:
            return self._state.ended is None and await self._read()

    async def _current_version(self) -> Version | None:
        """The version to write over; None when the term has ended, or it can't be had."""
        if self._state.ended is not None or (self._version is None and not await self._read()):
            return None
        return self._version

    async def _read(self) -> bool:
        """Learn the object's version; False when it can't be had or names a later term, which ends this one."""
        shown = self._shown
        try:
            found = await self._statuses.get()
        except RegistryError as error:
            self._log_event("registry-unreachable", reason=str(error))
            self.blocked_reason = f"the registry did not show it the shard: {error}"
            return False
        if found is None:
            self.blocked_reason = "the registry has no such shard, by what this node is told"
            self._not_found()
            return False
        self._missing_ms = None
        if found.spec.uid != self._term.uid:
            self._end("the registry has another shard of this name")
            return False
        if found.spec.epoch > self._term.epoch:
            self._superseded(found.spec.epoch)
            return False
        if found.spec.epoch < self._term.epoch:
            self._log_event("registry-behind", epoch=self._term.epoch, registry_epoch=found.spec.epoch)
            self.blocked_reason = f"the registry knows of epoch {found.spec.epoch} only"
            return False
        self._version = found.version
        if found.status == self._last_status and self._shown is shown:
            self._overwritten_ms = None
        if found.status is not None and found.status.serving_epoch == self._term.epoch:
            self._revision = max(self._revision, found.status.revision)
        elif found.status is not None and found.status.serving_epoch < self._term.epoch:
            self._former = frozenset(found.status.in_sync)
        self._staying = frozenset(found.spec.replicas) - frozenset(found.spec.leaving)
        self._set_replicas(found.spec.replicas, found.spec.leaving)  # what is watched may be older
        return True

    def _not_found(self) -> None:
        """A read found no such shard. The term ends once that has stayed so for lag_ms: the object may be about to
        be put back, by a backup tool or `kubectl replace --force`."""
        now = self._boot_ms()
        before = self._missing_ms
        if before is None or now - before[1] > MISSING_AGAIN_MS:
            self._log_event("shard-not-found", epoch=self._term.epoch)
            before = now, now
        self._missing_ms = before[0], now
        if now - before[0] >= self._term.lag_ms:
            self._end("the shard is gone from the registry")
