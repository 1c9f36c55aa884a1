"""Calls as a node's front door serves them (server/handlers/), without the wire."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
from delayapi.proto.delay.v1 import schedules_pb2 as pb
from delaynode.replica.hosts.master import ShardHost
from delaynode.store.log.incoming_batch import IncomingBatch
from delaynode.store.types import I64, U32

from tests.simulation.support.machine.process import Process

Work = Callable[[ShardHost, Process], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Answer:
    """An operation's answer. It follows from the log up to `log_end`."""

    what: Any
    log_end: int


def enqueue(batch: IncomingBatch) -> Work:
    async def work(host: ShardHost, at: Process) -> Answer:
        await host.maintenance.wait_room()
        appended = await host.stored(host.enqueue(batch))
        return Answer(appended, appended.log_end)

    return work


def put_schedule(schedule: pb.Schedule, paused: bool | None) -> Work:
    async def work(host: ShardHost, at: Process) -> Answer:
        host.check_may_append()
        host.check_clock()
        changed = host.schedules.put(schedule, at.clock.now_ms(), paused=paused)
        return await _scheduled(host, changed)

    return work


def trigger_schedule(id_: str, times: list[int] | None) -> Work:
    """Fire it now, or for those of these nominal times that are over."""

    async def work(host: ShardHost, at: Process) -> Answer:
        host.check_may_append()
        if times is not None:
            host.check_clock()
        now = at.clock.now_ms()
        return await _scheduled(
            host, host.schedules.fire_by_hand(id_, times and [time for time in times if time <= now], now)
        )

    return work


def delete_schedule(id_: str) -> Work:
    async def work(host: ShardHost, at: Process) -> Answer:
        host.check_may_append()
        host.schedules.delete(id_, at.clock.now_ms(), None)
        return await _scheduled(host, None)

    return work


async def _scheduled(host: ShardHost, what: Any) -> Answer:
    host.on_proposed(host.schedules.next_due())
    end = host.shard.log_end
    await host.wait_replicated(end)
    return Answer(what, end)


def columns(found: list[tuple[int, int]]) -> tuple[I64, U32]:
    """The columns of (queue offset, attempt) rows."""
    return np.array([offset for offset, _ in found], np.int64), np.array([attempt for _, attempt in found], np.uint32)


def extend(group: str, found: list[tuple[int, int]], invisible_ms: int) -> Work:
    async def work(host: ShardHost, at: Process) -> None:
        await host.extend(group, *columns(found), invisible_ms)

    return work


def nack(group: str, found: list[tuple[int, int]], *, dead: bool = False) -> Work:
    async def work(host: ShardHost, at: Process) -> None:
        host.check_serving()
        now = host.believed_ms()
        reason = f"refused at {now}" if now % 2 else ""
        host.shard.consumers.nack(group, *columns(found), 50, now, dead=dead, reason=reason)
        host.on_proposed()
        await host.wait_committed(host.shard.log_end)
        host.on_visible()

    return work


def resolve(
    group: str, *, redrive: bool, share: float, told: Callable[[tuple[str, int]], None] = lambda _: None
) -> Work:
    """Redrive, or drop, this share of the group's dead letters; told: of each, (group, queue offset)."""

    async def work(host: ShardHost, at: Process) -> None:
        host.check_serving()
        letters = host.shard.consumers.dead_letters(group, -1, 1000).offset
        chosen = letters[: max(1, int(share * len(letters)))]
        for offset in chosen.tolist():
            told((group, offset))
        host.shard.consumers.resolve(group, chosen, redrive=redrive, now_ms=at.clock.now_ms())
        host.on_proposed()
        await host.wait_committed(host.shard.log_end)
        host.on_visible()

    return work


def cancel(due: int, seq: int | None) -> Work:
    async def work(host: ShardHost, at: Process) -> Answer:
        host.check_serving()
        host.check_in_sync()
        lookup = host.shard.begin_lookup(np.array([due]), np.array([seq]))
        try:
            if lookup.job is not None:
                await host.off_loop(lookup.job.run)
            host.check_serving()
            outcomes = host.shard.cancel(lookup, at.clock.now_ms())
        finally:
            host.shard.end_lookup(lookup)
        host.on_proposed()
        end = host.shard.log_end
        await host.wait_replicated(end)
        return Answer(int(outcomes.outcome[0]), end)

    return work


def reschedule(due: int, seq: int | None, new_due: int) -> Work:
    async def work(host: ShardHost, at: Process) -> Answer:
        host.check_serving()
        host.check_in_sync()
        lookup = host.shard.begin_lookup(np.array([due]), np.array([seq]))
        try:
            if lookup.job is not None:
                await host.off_loop(lookup.job.run)
            host.check_serving()
            now, new = at.clock.now_ms(), np.array([new_due])
            host.check_not_passed(new, now)
            outcomes = host.shard.reschedule(lookup, new, np.zeros(0, np.uint8), now)
        finally:
            host.shard.end_lookup(lookup)
        host.on_proposed(new_due)
        end = host.shard.log_end
        await host.wait_replicated(end)
        return Answer(int(outcomes.outcome[0]), end)

    return work
