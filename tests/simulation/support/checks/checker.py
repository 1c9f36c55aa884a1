"""The invariants (docs/protocol.md), looked at whenever something is committed, recorded, answered or handed out.

The checker keeps one log a shard of everything that any copy commits: a copy that commits later must have the same
bytes there.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from delaynode.replica.hosts.master import ShardHost
from delaynode.store.log.frames import (
    APPENDS,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    TICKS,
    FrameKind,
    parse,
    parse_append_runs,
    parse_tick,
)
from delaynode.store.queue.consume_queue import QUEUED_BYTES, ReleasedRows
from delaynode.store.shard import MAX_AHEAD_MS, Shard
from delayregistry.model import Durability, ShardObject

from tests.simulation.support.checks.firings import FiringLog
from tests.simulation.support.machine.disk import Disk
from tests.simulation.support.machine.process import DATA, Machine, Process

if TYPE_CHECKING:
    from tests.simulation.support.world import World


@dataclass
class Record:
    """Facts of a shard that stay true for ever."""

    uid: int
    name: str
    directory: str  # the directory of its copies, on each disk
    log: bytearray = field(default_factory=bytearray)  # all that was ever committed
    queue: bytearray = field(default_factory=bytearray)  # all that was ever released
    epoch: int = 0  # the highest in which a master has answered or committed
    commits: dict[int, str] = field(default_factory=dict)  # epoch -> the process that commits in it
    wall_ms: int = 0  # the latest that a master's clock has shown in a committed frame
    writers: dict[int, Process] = field(default_factory=dict)  # epoch -> the process that writes in it
    firings: FiringLog = field(default_factory=FiringLog)
    unjudged: set[int] = field(default_factory=set)  # queue offsets: released by a clock that peers could not outvote


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.records: dict[int, Record] = {}
        self.checks = 0
        # by uid, incarnation and epoch: queue offset from which on rows were committed, what became visible
        self._unbegun: dict[tuple[int, str, int], tuple[int, list[ReleasedRows]]] = {}
        self._harmed: set[str] = set()  # copies that a schedule has damaged
        self._identities: dict[tuple[str, str], tuple[bytes, str]] = {}
        self._by_files: dict[int, Machine] = {id(one.disk): one for one in world.machines.values()}
        world.truth.told.append(self._recorded)

    def fail(self, what: str) -> None:
        self.world.fail(what)

    def record(self, uid: int) -> Record:
        found = self.records.get(uid)
        if found is None:
            shard = next((one for one in self.world.truth.now.shards if one.spec.uid == uid), None)
            name = shard.name if shard is not None else f"{uid:x}"
            found = self.records[uid] = Record(uid, name, f"{DATA}/shards/{name}-{uid:016x}")
        return found

    # ------------------------------------------------------------ watching the real code
    @contextmanager
    def watching(self) -> Iterator[None]:
        commit, show, start = Shard.commit, Shard.show, ShardHost.start

        def watched(shard: Shard, offset: int, now_ms: int | None = None, /) -> list[ReleasedRows]:
            before, rows_before = shard.committed_offset, shard.queue.committed
            seen = commit(shard, offset, now_ms)
            self._committed(shard, before, rows_before, seen)
            return seen

        def shown(shard: Shard, now_ms: int, /) -> list[ReleasedRows]:
            seen = show(shard, now_ms)
            self._committed(shard, shard.committed_offset, shard.queue.committed, seen)
            return seen

        def started(host: ShardHost, epoch: int, node: str, /) -> Coroutine[None, None, None]:
            self._note_writer(host.shard, epoch)
            self._committed(host.shard, host.shard.log.file.start, host.shard.queue.committed, [])
            return start(host, epoch, node)

        Shard.commit, Shard.show, ShardHost.start = watched, shown, started  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            Shard.commit, Shard.show, ShardHost.start = commit, show, start  # type: ignore[method-assign]

    def _note_writer(self, shard: Shard, epoch: int) -> None:
        process = self._by_files[id(shard.log.file.files.disk)].process  # type: ignore[attr-defined]
        if process is not None:
            self.record(shard.identity.uid).writers.setdefault(epoch, process)

    def _committed(self, shard: Shard, before: int, rows_before: int, seen: list[ReleasedRows]) -> None:
        """A copy counts [before, shard.committed) as committed, and queue offsets from `rows_before` on; `seen` became
        visible."""
        files = shard.log.file.files
        if files.dead:  # type: ignore[attr-defined]
            return
        self.checks += 1
        if shard.committed_offset == before and not seen:
            return
        machine = self._by_files[id(files.disk)]  # type: ignore[attr-defined]
        process = machine.process
        record = self.record(shard.identity.uid)
        leads = process is not None and self._leads(process, shard)
        if leads:
            assert process is not None
            before, rows_before, seen = self._begun(process, record, before, rows_before, seen)
        judged = True
        if shard.committed_offset > before:
            known = len(record.log)
            for offset, data in _stored(machine.disk, shard.log.file.directory, before, shard.committed_offset):
                self._log_bytes(record, machine, offset, data, leads)
            if leads and len(record.log) > known:
                assert process is not None
                judged = self._leader_committed(record, process, shard, known)
                self._covered(record, known)
        if shard.queue.committed > rows_before:
            self._queued(record, machine, shard, rows_before)
            if not judged:
                record.unjudged.update(range(rows_before, shard.queue.committed))
        if seen:
            self._seen(record, machine, seen, leads=leads)

    def _begun(
        self, process: Process, record: Record, before: int, rows_before: int, seen: list[ReleasedRows]
    ) -> tuple[int, int, list[ReleasedRows]]:
        """What counts of a commit: nothing until the term's log is applied, then all since its start."""
        replica = process.replicas.get(record.uid)
        assert replica is not None
        assert replica.leader is not None
        assert replica.shard is not None
        key = record.uid, process.incarnation, replica.leader.term.epoch
        first, waiting = self._unbegun.pop(key, (rows_before, []))
        if not replica.leader.state.began:
            self._unbegun[key] = first, [*waiting, *seen]
            return replica.shard.committed_offset, replica.shard.queue.committed, []
        return min(before, len(record.log)), first, [*waiting, *seen]

    def _leads(self, process: Process, shard: Shard) -> bool:
        replica = process.replicas.get(shard.identity.uid)
        return replica is not None and replica.shard is shard and replica.leader is not None

    def _log_bytes(self, record: Record, machine: Machine, offset: int, data: bytes, leads: bool) -> None:
        known = record.log[offset : offset + len(data)]
        if data[: len(known)] != known:
            at = next(i for i in range(len(known)) if data[i] != known[i])
            self.fail(
                f"invariant 3: {record.name}: {machine.name} commits {_frame_at(data, offset, at)}, "
                f"others {_frame_at(bytes(known), offset, at)}"
            )
            return
        if len(data) > len(known):
            if offset + len(known) != len(record.log):
                self.fail(f"{record.name}: {machine.name} commits from {offset} on, known are {len(record.log)}")
            elif not leads:
                self.fail(
                    f"invariant 3: {record.name}: {machine.name}, no master, takes {offset + len(data)} for committed, "
                    f"no master has gone beyond {len(record.log)}"
                )
            else:
                record.log += data[len(known) :]

    def _leader_committed(self, record: Record, process: Process, shard: Shard, low: int) -> bool:
        """Whether peers could tell that each of the clocks by which the frames were written is wrong."""
        epoch = shard.log.epochs[-1][0] if shard.log.epochs else 0
        replica = process.replicas.get(record.uid)
        leader = replica.leader if replica is not None else None
        if leader is None:
            return True
        epoch = leader.term.epoch
        who = f"{process.name}/{process.incarnation}"
        if record.commits.setdefault(epoch, who) != who:
            self.fail(f"invariant 3: {record.name}: {who} commits in epoch {epoch}, {record.commits[epoch]} did before")
        if epoch < record.epoch:
            self.fail(f"invariant 3: {record.name}: {who} commits in epoch {epoch} after epoch {record.epoch} did")
        record.epoch = max(record.epoch, epoch)
        self._alone(process, record, f"commits in epoch {epoch}")
        at, judged = low, True
        while at < len(record.log):
            frame = parse(memoryview(record.log), at, at, record.uid)
            writer = record.writers.get(frame.epoch)
            judged = judged and (writer is None or frame.wall_ms > writer.unjudged_ms)
            if frame.epoch > epoch:
                self.fail(f"invariant 3: {record.name}: {who} commits a frame of epoch {frame.epoch} in {epoch}")
            if frame.epoch == epoch and frame.wall_ms > process.latest_ms:
                self.fail(f"invariant 2: {record.name}: {who}'s clock never showed {frame.wall_ms}")
            ahead_ms = MAX_AHEAD_MS if frame.kind is FrameKind.TICK_AHEAD else 0
            if frame.kind in TICKS and parse_tick(frame).due > frame.wall_ms + ahead_ms:
                self.fail(f"invariant 2: {record.name}: {who} ticks past its clock at {at}")
            record.wall_ms = max(record.wall_ms, frame.wall_ms)
            record.firings.add(frame)
            at = frame.end
        for what in record.firings.wrong:
            self.fail(f"invariant 9: {record.name}: {what}")
        return judged

    # ------------------------------------------------------------ the in-sync set
    def _recorded(self, before: ShardObject | None, after: ShardObject) -> None:
        record = self.record(after.spec.uid)
        status = after.status
        if before is not None:
            if after.spec.epoch < before.spec.epoch:
                self.fail(f"invariant 3: {after.name}: epoch {after.spec.epoch} follows {before.spec.epoch}")
            if status is not None and before.status is not None and status.serving_epoch < before.status.serving_epoch:
                self.fail(f"invariant 3: {after.name}: serving epoch {status.serving_epoch} follows a higher one")
        if status != (before.status if before is not None else None) and status is not None:
            self.world.trace.add(
                "registry", "status", shard=after.name, epoch=status.serving_epoch, in_sync=status.in_sync,
                handover=status.handover, resigned=status.resigned,
            )  # fmt: skip
        if before is None or after.spec != before.spec:
            spec = after.spec
            self.world.trace.add(
                "registry", "spec", shard=after.name, epoch=spec.epoch, master=spec.master, replicas=spec.replicas,
                target=spec.target, leaving=spec.leaving, switchover=spec.switchover, vacant=spec.vacant,
            )  # fmt: skip
        if status is not None:
            self._covered(record, 0, after)

    def _covered(self, record: Record, low: int, shard: ShardObject | None = None) -> None:
        """Every member of the recorded in-sync set has on disk all that was ever committed (from `low` on)."""
        shard = shard or next((one for one in self.world.truth.now.shards if one.spec.uid == record.uid), None)
        if shard is None or shard.status is None or self.world.cluster_spec.allow_unclean_failover:
            return
        if shard.status.serving_epoch < record.epoch or record.uid in self.world.truth.restored:
            return  # restored from an older state: nobody may act upon it
        self.checks += 1
        end = len(record.log)
        for entry in shard.status.in_sync:
            if entry.partition("@")[0] in self._harmed:
                continue
            machine = self.holder(record, entry)
            if machine is None:
                if self.world.cluster_spec.durability is Durability.FSYNC:
                    self.fail(f"invariant 1: {record.name}: nobody has copy {entry}, which is recorded as in sync")
                continue
            at = low
            parts = _stored(machine.disk, f"{record.directory}/log", low, end, durable=self.fsync)
            for offset, data in parts:
                if data != record.log[offset : offset + len(data)]:
                    self.fail(f"invariant 1: {record.name}: {machine.name}, in sync, has other bytes near {offset}")
                at = offset + len(data)
            if at < end:
                self.fail(
                    f"invariant 1: {record.name}: {machine.name} is recorded as in sync and has {at} bytes of the log "
                    f"on disk, {end} are committed"
                )

    @property
    def fsync(self) -> bool:
        return self.world.cluster_spec.durability is Durability.FSYNC

    def holder(self, record: Record, entry: str) -> Machine | None:
        """The machine whose disk has the copy with this entry."""
        copy_id, _, boot = entry.partition("@")
        path = f"{record.directory}/shard.json"
        for machine in self.world.machines.values():
            file = machine.disk.files.files.get(path)
            if file is None or not file.data:
                continue
            known = self._identities.get((machine.name, path))
            if known is None or known[0] != file.data:
                data = bytes(file.data)
                known = self._identities[machine.name, path] = (data, _copy_id(data))
            if known[1] == copy_id and (not boot or boot == machine.clocks.boot_id):
                return machine
        return None

    def harm(self, uid: int, node: str) -> str:
        """A schedule damages the node's copy, which may lack what it is recorded to have. Returns the copy's id."""
        path = f"{self.record(uid).directory}/shard.json"
        copy_id = _copy_id(self.world.machines[node].disk.cached(path))
        self._harmed.add(copy_id)
        self.world.copies.harm(node)
        return copy_id

    def forgive(self, uid: int) -> int:
        """All machines were started again, with Async: bytes on no disk may be lost. Returns how many are left."""
        self.world.copies.part()
        record, end = self.record(uid), 0
        for machine in self.world.machines.values():
            at = 0
            for offset, data in _stored(machine.disk, f"{record.directory}/log", 0, len(record.log)):
                if offset != at:
                    break
                known = record.log[offset : offset + len(data)]
                at += next((i for i in range(len(known)) if known[i] != data[i]), len(known))
            end = max(end, at)
        del record.log[end:]
        record.firings = FiringLog.of(record.log, uid)
        return end

    def disk_changed(self, name: str) -> None:
        """A machine was killed: bytes that were recorded as durable must still be there."""
        for record in self.records.values():
            self._covered(record, 0)

    # ------------------------------------------------------------ the queue
    def master_ms(self, record: Record, *, lately: bool = True) -> int:
        """The latest that a master's clock has shown in a committed frame, or would show now if it had gone on.

        lately: or if it had not been set back lately, of which a slave can't know.
        """
        writers = record.writers.values()
        shown = (one.would_have_shown_ms() if lately else one.would_show_ms() for one in writers)
        return max(record.wall_ms, *shown)

    def _queued(self, record: Record, machine: Machine, shard: Shard, first: int) -> None:
        start = first * QUEUED_BYTES
        data = shard.queue.read(first, shard.queue.committed - first).tobytes()
        known = record.queue[start : start + len(data)]
        if data[: len(known)] != known:
            self.fail(
                f"invariant 2: {record.name}: {machine.name}'s ConsumeQueue differs from {start // QUEUED_BYTES} on"
            )
        elif len(data) > len(known):
            if start + len(known) != len(record.queue):
                self.fail(f"invariant 2: {record.name}: {machine.name}'s ConsumeQueue has a gap")
            record.queue += data[len(known) :]

    def _seen(self, record: Record, machine: Machine, seen: list[ReleasedRows], *, leads: bool) -> None:
        rows = np.concatenate([one.rows for one in seen]) if len(seen) > 1 else seen[0].rows
        for one in seen:
            order = list(zip(one.rows["due"].tolist(), one.rows["seq"].tolist(), strict=True))
            if one.arrived_ms == 0 and order != sorted(order):
                self.fail(f"invariant 2: {record.name}: released out of order: {order}")
        latest, now_ms = max(rows["due"].tolist()), self.master_ms(record, lately=not leads)
        if latest > now_ms:
            self.fail(f"invariant 2: {record.name}: {machine.name} shows {latest} at {now_ms}")

    # ------------------------------------------------------------ answers
    def answers(self, process: Process, host: ShardHost, what: str) -> None:
        """A master sends an answer."""
        self.checks += 1
        record = self.record(host.shard.identity.uid)
        epoch = host.shard.epoch
        if epoch < record.epoch:
            self.fail(
                f"invariant 3: {record.name}: {process.name} answers {what} in epoch {epoch} after epoch "
                f"{record.epoch} has begun to serve"
            )
        record.epoch = max(record.epoch, epoch)
        self._alone(process, record, f"answers {what}")

    def _alone(self, process: Process, record: Record, what: str) -> None:
        for other in self.world.live():
            if other is not process and not other.loop.frozen and _serves(other, record.uid):
                self.fail(f"two masters of {record.name}: {process.name} {what}, {other.name} may answer too")

    def rests_on(self, process: Process, host: ShardHost, what: str, log_end: int) -> None:
        """A master is about to send an answer that follows from its log up to `log_end`."""
        record = self.record(host.shard.identity.uid)
        if log_end > len(record.log):
            self.fail(
                f"invariant 1: {record.name}: {process.name} answers {what} from the log up to {log_end}, only "
                f"{len(record.log)} are committed"
            )

    # ------------------------------------------------------------ at the end
    def final(self) -> None:
        """Everything is healthy and at rest: all copies are the same, and the log keeps its own rules."""
        for record in self.records.values():
            _check_log(self, record)
            shard = next((one for one in self.world.truth.now.shards if one.spec.uid == record.uid), None)
            if shard is None:
                continue  # its topic is gone
            states = {}
            for node in shard.spec.replicas:
                process = self.world.machines[node].process
                replica = process.replicas.get(record.uid) if process is not None else None
                if replica is None or replica.shard is None:
                    self.fail(f"{record.name}: {node} has no copy at the end")
                    return
                states[node] = _state(replica.shard)
                if differs := record.firings.differs(replica.shard.schedules):
                    self.fail(f"invariant 9: {record.name}: {node}: {differs}")
            first = next(iter(states.values()))
            for node, state in states.items():
                if state != first:
                    both = {key: (first[key], state[key]) for key in first if state[key] != first[key]}
                    self.fail(f"invariant 2: {record.name}: {next(iter(states))} and {node} differ at the end: {both}")


def _serves(process: Process, uid: int) -> bool:
    replica = process.replicas.get(uid)
    if replica is None or replica.master is None or replica.leader is None:
        return False
    master = replica.master
    return master.serving and master.paused is None and replica.leader.live()


def _state(shard: Shard) -> dict[str, Any]:
    groups, arrays = shard.consumers.snapshot()
    groups = [{name: value for name, value in group.items() if name != "fresh"} for group in groups]  # deliveries count
    return {
        "end": shard.log.end, "applied": shard.applied, "queue": shard.queue.end, "mark": shard.index.watermark,
        "seq": shard.next_seq, "pending": shard.index.pending, "bytes": shard.index.pending_bytes,
        "epochs": [tuple(one) for one in shard.log.epochs],
        "groups": json.dumps(groups, default=str),
        "arrays": {
            name: _bits(array) if name.endswith(".done") else array.tolist() for name, array in arrays.items()
        },
    }  # fmt: skip


def _bits(packed: Any) -> list[int]:
    """The places of the one bits: the number of zeros after them depends on deliveries."""
    found: list[int] = np.flatnonzero(np.unpackbits(packed)).tolist()
    return found


def _copy_id(data: bytes) -> str:
    try:
        return str(json.loads(data.rpartition(b"\n")[0])["copy_id"])
    except (ValueError, KeyError):
        return ""


def _stored(disk: Disk, directory: str, low: int, high: int, *, durable: bool = False) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of the parts of [low, high) that the log's files hold."""
    bases = disk.files.files.numbered(directory)
    first = max(0, bisect_right(bases, low) - 1)
    for base in bases[first:]:
        if base >= high:
            break
        path = f"{directory}/{base:020d}"
        part = (disk.durable if durable else disk.cached)(path, max(0, low - base), high - base)
        if part:
            yield max(low, base), part


def _frame_at(data: bytes, offset: int, at: int) -> str:
    """The frame that holds data[at]."""
    start = data.rfind(MAGIC.to_bytes(4, "little"), 0, at + 4)
    while start > 0 and int.from_bytes(data[start + 48 : start + 56], "little") != offset + start:
        start = data.rfind(MAGIC.to_bytes(4, "little"), 0, start)
    if start < 0 or len(data) - start < HEADER_BYTES:
        return f"something at {offset + at}"
    fields = HEADER.unpack_from(data, start)
    return f"{FrameKind(fields[3]).name} of epoch {fields[6]} at {fields[10]}"


def _check_log(checker: Checker, record: Record) -> None:
    view, at, epoch, seq = memoryview(record.log), 0, 0, 0
    numbers: dict[int, int] = {}
    while at < len(record.log):
        frame = parse(view, at, at, record.uid)
        if frame.epoch < epoch:
            checker.fail(f"invariant 3: {record.name}: epoch {frame.epoch} at {at} follows {epoch}")
        epoch = frame.epoch
        if frame.kind in APPENDS:
            for producer, number, _ in parse_append_runs(frame):
                if producer and numbers.get(producer, -1) >= number:
                    checker.fail(f"invariant 4: {record.name}: producer {producer}'s batch {number} is stored twice")
                numbers[producer] = number
            if frame.first_seq != seq:
                checker.fail(f"{record.name}: seq {frame.first_seq} at {at}, {seq} is next")
            seq += frame.count
        at = frame.end
