"""Clients: producers that retry until they are answered, consumers, cancels, reschedules, reads; and what they know.

Each call goes to one node and is served there as the node's front door serves it; its answer may get lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from delayapi.message_ids import hash_id
from delayapi.proto.delay.v1 import delay_pb2
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delayapi.schedule_times import ID_PROPERTY
from delaynode.replica.hosts.master import ShardHost
from delaynode.store.errors import Damaged, Refused
from delaynode.store.log.frames import SINCE_FORMAT, FrameKind
from delaynode.store.log.incoming_batch import ID, IncomingBatch
from delaynode.store.lookup import ALREADY_CANCELLED, CANCELLED, MOVED_NOW, NOT_FOUND, RESCHEDULED, TOO_LATE

from tests.simulation.support.machine.frontdoor import (
    Answer,
    Work,
    cancel,
    columns,
    delete_schedule,
    enqueue,
    extend,
    nack,
    put_schedule,
    reschedule,
    resolve,
    trigger_schedule,
)
from tests.simulation.support.machine.process import Process
from tests.simulation.support.sizes import SIZES

if TYPE_CHECKING:
    from tests.simulation.support.world import World

GROUP = "g"
NEAR_MS = 2_500  # dues lie at most so far ahead, except a few that no run reaches
CALL_SECONDS = 3.0
MOST_EARLY_MS = 2_000  # by a true clock: a node's clock is off at first, may be set ahead unasked, and drifts
LATE_MS = 400  # after its due a message has been delivered in a healthy cluster


@dataclass
class Message:
    """The clients' knowledge of one message."""

    body: bytes
    dues: set[int]  # all dues that it has, or may have
    due: int  # as last answered
    seq: int | None = None  # None: not acknowledged
    cancelled: str = "no"  # no, maybe, yes
    late: bool = False  # answered TOO_LATE: released
    deliveries: int = 0


@dataclass
class ShardView:
    """A shard, as its clients see it."""

    uid: int
    name: str
    messages: dict[bytes, Message] = field(default_factory=dict)
    acked: dict[tuple[str, int], int] = field(default_factory=dict)  # group, queue offset -> epoch of the answer
    by_seq: dict[int, bytes] = field(default_factory=dict)
    last_tried: set[int] = field(default_factory=set)  # seqs delivered as often as is allowed: dead
    handed_out: set[tuple[str, int, int, int]] = field(default_factory=set)  # group, epoch, queue offset, attempt
    again: set[tuple[str, int]] = field(default_factory=set)  # group, queue offset: given back, or redriven
    joined: bool = False  # the first group's GROUP frame is committed
    last_master: str = ""


class Timeout(Exception):
    """No answer."""


NO_ANSWER = object()


class Clients:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.random("clients")
        self.loop = world.client_loop
        self.shards: dict[int, ShardView] = {}
        self.sending = True
        self.senders = 0  # senders at work
        self.consuming = True
        self._over_ms = 0  # ms: messages due until then had to be consumed
        self._takes_ids = world.cluster_spec.nodes_version >= SINCE_FORMAT[FrameKind.APPEND_IDS]
        self._ids = world.random("message ids")
        self._leases = world.random("leases")
        self._schedules = world.random("schedules")
        takes_schedules = world.cluster_spec.nodes_version >= SINCE_FORMAT[FrameKind.SCHEDULE]
        self._has_schedules = takes_schedules and self._schedules.random() < 0.9
        # Consumers name attempts, and take longer for some; not in schedules, which count on their timing.
        self._extends = self._leases.random() < 0.5 and world.sizes is not SIZES
        self.counts = dict.fromkeys(("sent", "answered", "delivered", "cancelled", "moved", "refused", "timeouts"), 0)
        self.reasons: dict[str, int] = {}

    # ------------------------------------------------------------ one call
    async def call(self, view: ShardView, what: str, work: Work, *, slave: bool = False) -> Any:
        """Ask a node, most often the one that should know. Raises Timeout, Refused."""
        world, rng = self.world, self.rng
        node = self._route(view, slave=slave)
        process = world.machines[node].process if node in world.machines else None
        answer: asyncio.Future[Any] = self.loop.create_future()

        def back(result: Any) -> None:
            """Send the answer, on the node's loop."""
            if world.network.reaches(node, "client") and process is not None:
                delay = world.network.delay_ns(node, "client")
                world.scheduler.after(delay, self._answered, answer, result)

        async def serve(at: Process) -> Any:
            replica = at.replicas.get(view.uid)
            if slave:
                host: Any = replica.copy if replica is not None else None
            else:
                host = replica.master if replica is not None else None
            if host is None:
                raise Refused("NOT_SERVING", "not here")
            try:
                result = await work(host, at)
            except (Damaged, OSError) as error:  # as the node's dispatch does it
                host.fail(str(error), error)
                raise Refused("SHARD_DAMAGED", str(error)) from error
            if isinstance(result, Answer):
                world.checker.rests_on(at, host, what, result.log_end)
                result = result.what
            if isinstance(host, ShardHost):
                world.checker.answers(at, host, what)
            return result

        if process is not None and world.network.reaches("client", node):
            delay = world.network.delay_ns("client", node)
            world.scheduler.after(delay, self._arrive, node, process, serve, back)
        late = self.loop.call_later(CALL_SECONDS, _settle, answer, NO_ANSWER)
        result = await answer
        late.cancel()
        if result is NO_ANSWER:
            view.last_master = ""
            self.counts["timeouts"] += 1
            raise Timeout(what)
        if isinstance(result, Refused):
            view.last_master = ""
            self.counts["refused"] += 1
            self.reasons[result.reason] = self.reasons.get(result.reason, 0) + 1
            raise result
        if not slave:
            view.last_master = node
        assert rng is self.rng
        return result

    def _answered(self, answer: asyncio.Future[Any], result: Any) -> None:
        self.loop.call_soon(_settle, answer, result)

    def _arrive(self, node: str, process: Process, serve: Any, back: Any) -> None:
        if self.world.machines[node].process is process:
            process.call(serve, back)

    def _route(self, view: ShardView, *, slave: bool) -> str:
        shard = self.world.truth.shard(view.name)
        nodes = tuple(self.world.machines)
        if slave and shard is not None:
            return self.rng.choice(shard.spec.replicas)
        if view.last_master and self.rng.random() < 0.95:
            return view.last_master
        if shard is not None and shard.spec.master is not None and self.rng.random() < 0.9:
            return shard.spec.master
        return self.rng.choice(nodes)

    # ------------------------------------------------------------ who is at work
    def begin(self, uid: int, name: str, *, producers: int = 2, consumers: int = 2, letters: bool = False) -> None:
        """letters: a client redrives dead letters, or drops them."""
        view = self.shards[uid] = ShardView(uid, name)
        with self.loop.running():
            for number in range(producers):
                self.spawn(
                    self._producer(view, len(self.shards) * 100 + number + 1, self.world.random(f"p{name}{number}"))
                )
            for number in range(consumers):
                self.spawn(self._consumer(view, self.world.random(f"c{name}{number}")))
            for number in range(1, self.world.sizes.groups):
                self.spawn(self._consumer(view, self.world.random(f"c{name}/{number}"), f"{GROUP}{number}"))
            if letters:
                self.spawn(self._undertaker(view, self.world.random(f"u{name}")))
            self.spawn(self._meddler(view, self.world.random(f"m{name}")))
            if self._has_schedules:
                self.spawn(self._scheduler(view, self._schedules))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks = [*getattr(self, "_tasks", ()), task]

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.world.fail(f"client: {task.exception()!r}", task.exception())

    # ------------------------------------------------------------ producers
    async def _producer(self, view: ShardView, producer: int, rng: random.Random) -> None:
        number = 0
        self.senders += 1
        while self.sending:
            await self.send(view, producer, number, rng)
            number += 1
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.2, 0.3, 0.5, 0.8)))
        self.senders -= 1

    async def send(self, view: ShardView, producer: int, number: int, rng: random.Random) -> None:
        """Send one batch, again and again, until it is answered."""
        now = self.world.true_ms()
        count = rng.choice((1, 1, 2, 5, 12))
        herd = now + rng.randint(100, NEAR_MS)
        dues = [herd if rng.random() < 0.5 else self._due(now, rng) for _ in range(count)]
        bodies = [f"{view.name}/{producer}/{number}/{at}".encode() for at in range(count)]
        for body, due in zip(bodies, dues, strict=True):
            view.messages[body] = Message(body, {due}, due)
        self.counts["sent"] += count
        zeros = np.zeros(count, np.uint32)
        size = np.array([len(body) for body in bodies], np.uint32)
        batch = IncomingBatch(
            np.array(dues, np.int64), np.zeros(0, np.uint8), size, zeros, zeros, b"".join(bodies), producer, number
        )
        if self._takes_ids and producer % 2:  # half of the producers; the others number their batches
            ids = np.frombuffer(b"".join(hash_id(body.decode()) for body in bodies), ID)
            batch = replace(batch, producer=0, number=0, ids=ids)
        await self._send_until_answered(view, batch, bodies, f"{producer % 100}/{number}", rng)
        if len(batch.ids) and self._ids.random() < 0.5:
            self.spawn(self._send_again(view, batch, bodies, f"{producer % 100}/{number} again"))

    async def _send_again(self, view: ShardView, batch: IncomingBatch, bodies: list[bytes], what: str) -> None:
        """Another sender has the same messages."""
        self.senders += 1
        await asyncio.sleep(self._ids.choice((0.0, 0.5, 1.5, 3.0)))
        await self._send_until_answered(view, batch, bodies, what, self._ids)
        self.senders -= 1

    async def _send_until_answered(
        self, view: ShardView, batch: IncomingBatch, bodies: list[bytes], what: str, rng: random.Random
    ) -> None:
        count = len(bodies)
        while True:
            try:
                appended = await self.call(view, f"enqueue {what}", enqueue(batch))
            except Timeout:
                continue
            except Refused as refused:
                if refused.reason in PERMANENT:
                    self.world.fail(f"enqueue of {bodies[0].decode()} is refused: {refused.reason}: {refused}")
                await asyncio.sleep(rng.choice((0.02, 0.1, 0.2)))
                continue
            break
        self.counts["answered"] += count
        if appended.count != count:
            self.world.fail(f"invariant 4: {bodies[0].decode()}: {appended.count} messages stored, {count} sent")
        seqs = range(appended.first_seq, appended.first_seq + count) if appended.seq is None else appended.seq.tolist()
        for body, seq in zip(bodies, seqs, strict=True):
            message = view.messages[body]
            if message.seq not in (None, seq):
                self.world.fail(f"invariant 4: {body.decode()} has seq {message.seq}, and now {seq}: stored twice")
            message.seq = seq
            other = view.by_seq.setdefault(message.seq, body)
            if other != body:
                self.world.fail(f"{body.decode()} and {other.decode()} both got seq {message.seq}")
        self.world.trace.add(
            "client", "stored", shard=view.name, first=bodies[0].decode(), n=count, seq=appended.first_seq,
            again=appended.duplicate,
        )  # fmt: skip

    def _due(self, now: int, rng: random.Random) -> int:
        kind = rng.random()
        if kind < 0.15:
            return now - rng.randint(0, 50)
        share, low, high = self.world.sizes.far
        if kind < 1 - share:
            return now + rng.randint(1, NEAR_MS)
        return now + rng.randint(low, high)

    # ------------------------------------------------------------ consumers
    async def _consumer(self, view: ShardView, rng: random.Random, group: str = GROUP) -> None:
        # The first group must be there before another one lets anything be trimmed. No Event: processes have loops.
        while group != GROUP and self.consuming and not view.joined:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        while self.consuming:
            try:
                found = await self.call(view, "receive", self._receive(view, group, rng.choice((1, 4, 32))))
            except (Timeout, Refused):
                await asyncio.sleep(rng.choice((0.05, 0.2)))
                continue
            if not found:
                continue
            found = await self._extended(view, group, found)
            kind, failing = rng.random(), self.world.sizes.failing
            if kind < 0.4 * failing:
                continue  # the consumer died before it acknowledged
            chosen = [one for one in found if rng.random() < 0.9] if kind < 1.5 * failing else found
            if kind < failing:
                await self._quietly(
                    view, "nack", nack(group, found, dead=self._extends and self._leases.random() < 0.1)
                )
            elif chosen:
                await self._quietly(view, "ack", self._ack(view, group, chosen))

    async def _extended(self, view: ShardView, group: str, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """A consumer takes longer for some, or gives some back; those that it still has."""
        if not self._extends or self._leases.random() < 0.7:
            return found
        some = [one for one in found if self._leases.random() < 0.5]
        back = self._leases.random() < 0.3
        invisible_ms = 0 if back else self._leases.choice((50, 400, 2_000))
        if back:
            view.again.update((group, offset) for offset, _ in some)
        await self._quietly(view, "extend", extend(group, some, invisible_ms))
        await asyncio.sleep(self._leases.choice((0.0, 0.1, 0.7)))
        return [one for one in found if one not in some] if back else found

    async def _quietly(self, view: ShardView, what: str, work: Work) -> None:
        try:
            await self.call(view, what, work)
        except (Timeout, Refused):
            return

    def _receive(self, view: ShardView, group: str, most: int) -> Work:
        async def work(host: ShardHost, at: Process) -> list[tuple[int, int]]:
            delivery = await host.receive(group, (), most, 1 << 20, 400, self.world.sizes.invisible_ms, False)
            rows = delivery.rows
            if group == GROUP:
                view.joined = True
                last = delivery.attempt >= self.world.sizes.shard.max_attempts
                view.last_tried.update(rows["seq"][np.flatnonzero(last)].tolist())
            records = b"".join(bytes(part) for part in await host.read_records(rows))
            place = 0
            found = []
            for at_row, offset in enumerate(delivery.offset.tolist()):
                size = int(rows["size"][at_row])
                body, place = records[place : place + size], place + size
                row = rows[at_row]
                where = group, host.shard.epoch, offset
                self._delivered(view, where, body, int(row["due"]), int(row["seq"]))
                found.append((offset, int(delivery.attempt[at_row]) if len(delivery.attempt) else 1))
                self._handed_out(view, (*where, found[-1][1]))
            return found

        return work

    def _delivered(self, view: ShardView, where: tuple[str, int, int], body: bytes, due: int, seq: int) -> None:
        """A message leaves the node for a consumer. where: for which group, in which epoch, its queue offset."""
        world, (group, epoch, offset) = self.world, where
        message = view.messages.get(body)
        self.counts["delivered"] += 1
        if message is None and self._fired(view, body):
            record = world.checker.record(view.uid)
            now_ms = world.checker.master_ms(record)
            if due > now_ms or (due - world.true_ms() > MOST_EARLY_MS and offset not in record.unjudged):
                world.fail(f"invariant 2: a firing that is due {due} is delivered at {now_ms}")
            return
        if message is None:
            world.fail(f"{view.name}: {body!r} is delivered, nobody sent it")
            return
        what = f"{body.decode()} (due {due}, seq {seq}, queue offset {offset})"
        if message.seq is not None and message.seq != seq:
            world.fail(f"invariant 4: {what} was stored as seq {message.seq}: stored twice")
        other = view.by_seq.setdefault(seq, body)
        if other != body:
            world.fail(f"{what}: seq {seq} is {other.decode()}")
        if due not in message.dues:
            world.fail(f"{what}: its dues are {sorted(message.dues)}")
        record = world.checker.record(view.uid)
        early = due - world.checker.master_ms(record)
        if early > 0:
            world.fail(f"invariant 2: {what} is delivered {early} ms early")
        if due - world.true_ms() > MOST_EARLY_MS and offset not in record.unjudged:
            world.fail(f"invariant 2: {what} is delivered {due - world.true_ms()} ms early by a true clock")
        if message.cancelled == "yes":
            world.fail(f"invariant 4: {what} is delivered, and was CANCELLED")
        done = view.acked.get((group, offset))
        if done is not None and done != epoch:  # in one term the delivery may have been under way
            world.fail(f"{what} comes back in epoch {epoch}, acknowledged in epoch {done}")
        message.deliveries += group == GROUP

    def _handed_out(self, view: ShardView, one: tuple[str, int, int, int]) -> None:
        """An attempt is one consumer's, for as long as its master leads and it is not given back."""
        group, epoch, offset, attempt = one
        if one in view.handed_out and (group, offset) not in view.again:
            self.world.fail(f"{view.name}: attempt {attempt} at {offset} is handed out twice to {group} in {epoch}")
        view.handed_out.add(one)

    def _ack(self, view: ShardView, group: str, found: list[tuple[int, int]]) -> Work:
        async def work(host: ShardHost, at: Process) -> None:
            offset, attempt = columns(sorted(found))
            host.check_serving()
            consumers = host.shard.consumers
            done = set(offset.tolist())
            if self._extends and self._leases.random() < 0.5:
                _, settled = consumers.acknowledge_attempts(group, offset, attempt, at.clock.now_ms())
                done = set(offset[settled].tolist())
            else:
                done -= set(consumers.dead_letters(group, -1, 1000).offset.tolist())  # acked too late: may be redriven
                consumers.acknowledge(group, offset, offset + 1, at.clock.now_ms())
            host.on_proposed()
            await host.wait_committed(host.shard.log_end)
            for offset in done:
                view.acked.setdefault((group, offset), host.shard.epoch)

        return work

    async def _undertaker(self, view: ShardView, rng: random.Random) -> None:
        """Redrives dead letters, or drops them."""
        while self.sending:
            await asyncio.sleep(rng.choice((0.3, 1.0, 2.0)))
            group = GROUP if rng.random() < 0.7 else f"{GROUP}1"
            work = resolve(group, redrive=rng.random() < 0.7, share=rng.random(), told=view.again.add)
            await self._quietly(view, "resolve", work)

    # ------------------------------------------------------------ schedules
    async def _scheduler(self, view: ShardView, rng: random.Random) -> None:
        """Owns a few schedules: puts, pauses, triggers and deletes them. Whether they fire as they should, the
        committed log says (checks/firings.py)."""
        while self.sending:
            id_, kind = f"s{rng.randint(0, 2)}", rng.random()
            interval, text = rng.choice((70, 300, 300, 1_100)), f"{rng.randint(0, 9)}"
            schedule = pb.Schedule(id=id_, topic=view.name, body_text=text)
            schedule.every.interval.FromMilliseconds(interval)
            schedule.catch_up = pb.CATCH_UP_ALL  # an hour on the clock is all that a run misses
            schedule.catch_up_window.FromSeconds(366 * 86_400)
            if rng.random() < 0.2:
                schedule.overlap, schedule.overlap_group = pb.OVERLAP_SKIP, GROUP
            work = put_schedule(schedule, None if kind < 0.4 else kind < 0.6)
            if kind > 0.95:
                work = delete_schedule(id_)
            elif kind > 0.8:
                now = self.world.true_ms() // interval * interval
                work = trigger_schedule(id_, None if kind > 0.87 else [now - interval, now])
            await self._quietly(view, f"schedule {id_}", work)
            await asyncio.sleep(rng.choice((0.1, 0.4, 1.5)))
        for number in range(3):  # else the cluster never comes to rest
            await self._end_schedule(view, f"s{number}")

    async def _end_schedule(self, view: ShardView, id_: str) -> None:
        for _ in range(50):
            try:
                await self.call(view, "schedule", delete_schedule(id_))
                return
            except Refused as refused:
                if refused.reason == "UNKNOWN_SCHEDULE":
                    return
            except Timeout:
                pass
            await asyncio.sleep(0.1)

    def _fired(self, view: ShardView, body: bytes) -> bool:
        """Whether it is the message of a schedule."""
        if not self._has_schedules or body.startswith(view.name.encode()):
            return False
        return ID_PROPERTY in delay_pb2.Message.FromString(body).properties

    # ------------------------------------------------------------ cancels, reschedules, reads
    async def _meddler(self, view: ShardView, rng: random.Random) -> None:
        while self.sending:
            await asyncio.sleep(rng.choice((0.05, 0.3, 0.6)))
            kind = rng.random()
            try:
                if kind < 0.2:
                    await self.call(view, "fetch", self._fetch(view, rng), slave=rng.random() < 0.5)
                    continue
                now = self.world.true_ms()
                known = [m for m in list(view.messages.values())[-60:] if m.seq is not None and m.due > now - 500]
                if not known:
                    continue
                message = rng.choice(known)
                await (self._cancel(view, message) if kind < 0.65 else self._move(view, message, rng))
            except (Timeout, Refused):
                continue

    async def _cancel(self, view: ShardView, message: Message) -> None:
        before, dues = message.cancelled, sorted(message.dues)
        message.cancelled = "maybe" if before == "no" else before
        outcome = await self.call(view, "cancel", cancel(message.due, message.seq))
        if outcome in (CANCELLED, ALREADY_CANCELLED):
            self.counts["cancelled"] += 1
            message.cancelled = "yes"
            if message.deliveries and len(dues) == 1:
                self.world.fail(f"invariant 4: {message.body.decode()} is CANCELLED, and was delivered")
        elif outcome in (TOO_LATE, RESCHEDULED):
            message.cancelled = before
            message.late = message.late or outcome == TOO_LATE
        elif outcome == NOT_FOUND:
            self.world.fail(f"{message.body.decode()}, acknowledged with seq {message.seq}, is NOT_FOUND")
        self.world.trace.add("client", "cancel", shard=view.name, what=message.body.decode(), outcome=outcome)

    async def _move(self, view: ShardView, message: Message, rng: random.Random) -> None:
        due = self.world.true_ms() + rng.randint(1, NEAR_MS)
        message.dues.add(due)
        outcome = await self.call(view, "reschedule", reschedule(message.due, message.seq, due))
        if outcome == MOVED_NOW:
            self.counts["moved"] += 1
            message.due = due
        elif outcome == NOT_FOUND:
            self.world.fail(f"{message.body.decode()}, acknowledged with seq {message.seq}, is NOT_FOUND")
        self.world.trace.add(
            "client", "reschedule", shard=view.name, what=message.body.decode(), outcome=outcome, due=due
        )

    def _fetch(self, view: ShardView, rng: random.Random) -> Work:
        async def work(host: Any, at: Process) -> None:
            queue = host.shard.queue
            start = rng.randint(queue.start, max(queue.start, queue.visible))
            offset, rows = await host.fetch(start, 20, 1 << 20, 0)
            await host.wait_committed(host.shard.log_end if host.leads else host.shard.applied)
            record = self.world.checker.record(view.uid)
            data = rows.tobytes()
            low = offset * rows.dtype.itemsize
            if bytes(record.queue[low : low + len(data)]) != data:
                self.world.fail(f"invariant 2: {view.name}: {at.name} reads {rows} at {offset}: never released so")

        return work

    # ------------------------------------------------------------ at the end
    def stop_consuming(self) -> None:
        self.consuming, self._over_ms = False, self.world.true_ms() - LATE_MS

    def check(self) -> None:
        """Fail if a message that had to be delivered while there were consumers was not."""
        now = self._over_ms
        for view in self.shards.values():
            for message in view.messages.values():
                if message.seq is None or message.cancelled != "no" or min(message.dues) > now:
                    continue
                kept = self._outlived(now + LATE_MS)  # as of when outstanding() was last asked
                if not self._came(view, message) and kept < max(message.dues) < now:
                    self.world.fail(
                        f"invariant 1: {message.body.decode()}, acknowledged with seq {message.seq}, due "
                        f"{sorted(message.dues)}, was never delivered"
                    )

    def outstanding(self) -> int:
        """The number of messages that are due and have not been delivered."""
        now = self.world.true_ms()
        return sum(
            not self._came(view, message)
            for view in self.shards.values()
            for message in view.messages.values()
            if message.seq is not None and message.cancelled == "no"
            and self._outlived(now) < max(message.dues) < now - LATE_MS
        )  # fmt: skip

    def acked(self) -> int:
        """The number of deliveries that a group has acknowledged."""
        return sum(len(view.acked) for view in self.shards.values())

    def _came(self, view: ShardView, message: Message) -> bool:
        return message.deliveries > 0 or message.seq in view.last_tried

    def _outlived(self, now: int) -> int:
        """The due, in ms, below which messages may be gone because their retention is over."""
        return now - self.world.sizes.shard.keep.retention_ms


PERMANENT = frozenset(("OUT_OF_ORDER", "UNKNOWN_PRODUCER", "BAD_COLUMNS", "BAD_REQUEST", "BATCH_TOO_LARGE"))


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)
