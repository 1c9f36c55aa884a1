"""More attacks, as in attacks.py: what is not committed yet, and what disks and machines do to a copy (B4, B5, B6)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
from delaynode.replica.hosts.maintenance import Intervals
from delaynode.replica.role import ReplicaRole
from delaynode.store.errors import Refused
from delaynode.store.log.frames import MAGIC, BadFrame, Frame, parse
from delaynode.store.log.incoming_batch import IncomingBatch
from delayregistry.model import ConditionType, Durability, ShardObject

from tests.simulation.support.attacks.schedules import attack
from tests.simulation.support.machine.frontdoor import Work, cancel, enqueue
from tests.simulation.support.machine.loop import MILLI, SECOND
from tests.simulation.support.sizes import SIZES
from tests.simulation.support.stage import Run, cluster
from tests.simulation.support.workload import Message, ShardView, Timeout
from tests.store.support.memory_files import MemoryFile


def batch_of(body: bytes, due_ms: int, producer: int, number: int) -> IncomingBatch:
    """One message."""
    zero = np.zeros(1, np.uint32)
    size = np.array([len(body)], np.uint32)
    return IncomingBatch(np.array([due_ms]), np.zeros(0, np.uint8), size, zero, zero, body, producer, number)


def log_files(run: Run, node: str) -> dict[str, MemoryFile]:
    """The files of t-0's log on that node's disk, in order."""
    directory = f"{run.world.checker.record(run.shard().spec.uid).directory}/log/"
    files = run.world.machines[node].disk.files.files
    return {path: files[path] for path in sorted(files) if path.startswith(directory) and path[-1].isdigit()}


def frames_in(data: bytes, base: int, uid: int) -> list[Frame]:
    """All frames that parse, whatever lies between them."""
    found, at = [], data.find(MAGIC.to_bytes(4, "little"))
    while at >= 0:
        with suppress(BadFrame):
            found.append(parse(memoryview(data), at, base + at, uid))
        at = data.find(MAGIC.to_bytes(4, "little"), at + 1)
    return found


# ---------------------------------------------------------------- B4: what is not committed
@attack
def b4_nothing_is_answered_from_what_is_not_committed(seed: int) -> None:
    """A retry finds its batch in the producer table, a second cancel finds the first; then both frames are cut."""
    with cluster(seed) as run:
        master, slave = run.master(), run.slaves()[0]
        view, now = next(iter(run.clients.shards.values())), run.world.true_ms()
        stored: list[int] = []
        kept = view.messages[b"b4/0"] = Message(b"b4/0", {now + 9_000}, now + 9_000)
        run.ask(view, batch_of(b"b4/0", now + 9_000, 77, 0), lambda appended: stored.append(appended.first_seq))
        kept.seq = stored[0]
        run.world.network.line(master, slave).stream_ns = 10 * SECOND  # heartbeats come, frames do not
        run.world.run(0.3)
        answers: list[str] = []

        async def ask(what: str, work: Work) -> None:
            with suppress(Timeout, Refused):
                await run.clients.call(view, what, work)
                answers.append(what)

        batch = batch_of(b"b4/1", now + 4_000, 77, 1)
        view.messages[b"b4/1"] = Message(b"b4/1", {now + 4_000}, now + 4_000)
        kept.cancelled = "maybe"
        for what, work in (
            ("enqueue", enqueue(batch)), ("its retry", enqueue(batch)), ("cancel", cancel(kept.due, kept.seq)),
            ("the same cancel", cancel(kept.due, kept.seq)),
        ):  # fmt: skip
            with run.world.client_loop.running():
                run.clients.spawn(ask(what, work))
            run.world.run(0.2)
        run.world.run(0.4)
        assert run.replica(master).leader is not None, "its leases last"
        assert not answers, f"answered from what is not committed: {answers}"
        run.world.kill(master, power=True)
        run.world.network.line(master, slave).stream_ns = 0
        run.until(lambda: run.master() == slave, 20, "the slave takes over, without these frames")
        run.ask(view, batch, lambda appended: stored.append(appended.first_seq))
        view.messages[b"b4/1"].seq = stored[1]


@attack
def a7_copy_that_follows_the_new_master_and_lacks_its_logs_end_is_not_named(seed: int) -> None:
    with cluster(seed, replicas=3) as run:
        master, (one, other) = run.master(), run.slaves()
        run.world.machines[master].weather.down = True  # it answers until the other copy is chosen
        run.cut("control", other)  # so that `one` is chosen
        run.world.run(1.0)
        run.world.network.line(master, other).stream_ns = 10 * SECOND
        run.world.network.line(one, other).stream_ns = 1_300 * MILLI
        run.once(lambda shard: shard.spec.master == one, lambda: run.world.kill(master, power=True))
        named: list[int] = []
        begun = lambda shard: shard.status is not None and shard.status.serving_epoch == 2  # noqa: E731
        run.once(begun, lambda: named.append(len(run.status().in_sync)))
        run.until(lambda: run.master() == one, 20, "another master")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 15, "it serves")
        run.world.run(0.5)
        assert named == [1], "the third copy follows, and lacks what was on its way to it"
        for line in (run.world.network.line(master, other), run.world.network.line(one, other)):
            line.stream_ns = 0


# ---------------------------------------------------------------- B5: damage
@attack
def b5_bit_flip_in_what_was_synced_is_no_torn_tail(seed: int) -> None:
    """If the slave took the flipped bit for the end of its log, it would lead without the frames after it."""
    with cluster(seed) as run:
        master, slave, uid = run.master(), run.slaves()[0], run.shard().spec.uid
        run.world.run(1.0)
        copy = run.replica(slave).shard
        assert copy is not None
        # A recovery reads no frame before its checkpoint.
        run.until(lambda: copy.log.synced > copy.checkpointed + 1_000, 10, "synced frames follow the checkpoint")
        for node in (slave, master):
            run.world.kill(node)
        path, file = list(log_files(run, slave).items())[-1]
        frames = frames_in(bytes(file.data), int(path.rpartition("/")[2]), uid)
        synced = max(frame.synced for frame in frames)
        torn = [frame for frame in frames if frame.end <= synced][-1]
        entry = run.world.checker.harm(uid, slave)
        base = int(path.rpartition("/")[2])
        run.world.machines[slave].disk.files.flip(path, 8 * (torn.end - base - 1 - seed % 8) + seed % 8)
        run.world.start(slave)
        epoch = run.shard().spec.epoch
        run.world.run(0.5)
        run.until(lambda: run.replica(slave).role is ReplicaRole.DAMAGED, 10, "it sees that a frame is missing")
        run.world.run(6.0)
        assert run.shard().spec.epoch == epoch, "nobody leads from a damaged copy"
        assert [it.reason for it in run.shard().conditions], "and that is said"
        run.world.start(master)
        run.until(run.healthy, 30, "the master serves again, another copy was fetched")
        assert entry not in run.status().in_sync, "the damaged one was given up"


@attack
def b5_good_frame_after_a_bad_one_in_an_unsynced_tail_stops_no_sole_copy(seed: int) -> None:
    """Pages go to the disk in any order: after an ordinary power cut no answered message is missing."""
    with cluster(seed, replicas=1) as run:
        disk, left = run.world.machines[run.master()].disk, []

        def first_page_lost(file: MemoryFile) -> bytearray:
            """The file as the disk has it: all that was written after the last sync, but for the first frame's page."""
            at = file.data.find(MAGIC.to_bytes(4, "little"), file.synced)
            later = file.data.find(MAGIC.to_bytes(4, "little"), at + 1) if at >= 0 else -1
            if at != file.synced or later < 0:
                return file.data[: file.synced]
            left.append(later)
            return file.data[: file.synced] + bytes(later - file.synced) + file.data[later:]

        disk.files._torn = first_page_lost  # type: ignore[method-assign]
        for _ in range(30):
            if left:
                break
            disk.slow = 300.0  # its syncs take a while, so that frames gather
            run.world.run(0.9)
            run.world.kill(run.master(), power=True)
            disk.slow = 1.0
            run.world.start(run.master())
            run.until(run.healthy, 20, "the sole copy serves again after a power cut")
        assert left, "no tail of several frames was met"


# ---------------------------------------------------------------- B6: machines that start again, with Async
@attack
def b6_one_machine_of_two_loses_its_page_cache_with_async(seed: int) -> None:
    """The other machine has everything; the copy on the first one's disk does not count any more."""
    with cluster(seed, durability=Durability.ASYNC) as run:
        for _ in range(2):
            node = run.master() if seed % 2 else run.slaves()[0]
            before = run.replica(node).local.storage.replica_id
            run.world.kill(node, power=True)
            run.until(lambda entry=before: entry not in run.status().in_sync, 20, "the other one goes on alone")  # type: ignore[misc]
            run.world.start(node)
            run.until(run.healthy, 30, "it follows, and has fetched what it lost")


@attack
def b6_all_machines_start_again_with_async(seed: int) -> None:
    """The operator waits for all of the in-sync set, chooses the copy that has most, and says what may be lost."""
    with cluster(seed, clients=False, durability=Durability.ASYNC) as run:
        master, slave, uid = run.master(), run.slaves()[0], run.shard().spec.uid
        view, far = ShardView(uid, "t-0"), run.world.true_ms() + 3_600_000
        for number in range(8):
            run.ask(view, batch_of(b"b6/%d" % number, far + number, 9, number), lambda appended: None)
        run.world.run(0.5)
        less, more = (master, slave) if seed % 2 else (slave, master)
        for name, machine in run.world.machines.items():
            machine.disk.files.crash = machine.disk.files.kill  # type: ignore[method-assign]
            run.world.kill(name, power=True)
        for file in log_files(run, less).values():
            assert file.synced < len(file.data), "there is something to lose"
            del file.data[max(file.synced, len(file.data) * 2 // 3) :]
        end = run.world.checker.forgive(uid)
        said: list[list[str]] = []

        def term(before: ShardObject | None, after: ShardObject) -> None:
            if before is not None and after.spec.epoch > before.spec.epoch:
                said.append([it.reason for it in before.conditions if it.type is ConditionType.RISKED])

        run.world.truth.told.append(term)
        for name in run.world.machines:
            if name != more:
                run.world.start(name)
        run.world.run(8.0)
        assert run.shard().spec.epoch == 1, "the one that is away may have more"
        run.world.start(more)
        run.until(lambda: run.shard().spec.epoch == 2, 20, "all have been seen")
        assert run.master() == more, f"the highest log end goes on, {end}"
        assert said == [["AllRebooted"]], "what it may have cost was said before"
        run.until(lambda: len(run.status().in_sync) == 2, 30, "the other one has fetched what it lost")
        assert [it.reason for it in run.shard().conditions] == ["AllRebooted"], "said as long as this term lasts"
        run.switch("t-0", less)


@attack
def checkpoint_has_nothing_that_a_deposed_master_cuts(seed: int) -> None:
    """The master's slave stores late, so the master always has uncommitted frames, and it checkpoints all the time."""
    often = Intervals(maintain=0.02, quiet=0.02, checkpoint=0.02, busy_checkpoint=0.02, idle_checkpoint=0.02)
    with cluster(seed, sizes=replace(SIZES, intervals=often)) as run:
        master, slave = run.master(), run.slaves()[0]
        run.world.network.line(master, slave).latency_ns = 200 * MILLI
        run.world.run(2.0 + 0.05 * seed)
        run.isolate(master)
        run.world.machines[master].weather.down = True
        run.until(lambda: run.master() == slave, 20, "the slave takes over")
        run.until(lambda: run.status().serving_epoch == run.shard().spec.epoch, 10, "it serves")
        run.rejoin(master)
        run.world.machines[master].weather.down = False
        run.until(run.healthy, 30, "the former master follows")


@attack
def copy_that_follows_a_later_epoch_is_sound_after_a_restart(seed: int) -> None:
    with cluster(seed) as run:
        former, slave = run.master(), run.slaves()[0]
        run.switch("t-0", slave)
        run.until(lambda: run.master() == slave and run.healthy(), 20, "the slave leads, the former master follows")
        run.world.run(1.0)  # the deposed master stores frames of the later epoch
        run.restart(former)
        run.world.run(1.0)
        run.until(run.healthy, 20, "it follows again")
