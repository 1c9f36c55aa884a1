"""Quotas where requests are taken, by groups and one by one: whose are refused, and what that changes for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delayapi.proto.delay.v1 import schedules_pb2
from delaynode.auth.identity import Identity, IdentityKind
from delaynode.clock import monotonic_ms
from delaynode.node.routes import Routes
from delaynode.replication.transport.until import wait_until
from delaynode.server.handlers.rows import RowCalls
from delaynode.store.log.frames import NEVER, SINCE_FORMAT, FrameKind
from delayregistry.model import ClusterSpec, ShardObject, ShardSpec, TopicQuotas, TopicSpec, Version
from delayregistry.security import AuthorizationMode, SecuritySpec, SecurityUser, UserQuotas

from tests.serve.server.test_rows import TOO_LATE_MS, answered, ask, reasons, run, take
from tests.serve.support.rows import Outcome, Place, outcome_of

FLOOD, QUIET = (Identity(f"token:{name}", IdentityKind.TOKEN) for name in ("flood", "quiet"))
Claim = Callable[[Place, RowCalls], Coroutine[Any, Any, None]]
Send = Callable[..., Coroutine[Any, Any, list[Outcome]]]


def limit_users(place: Place, **quotas: UserQuotas) -> None:
    users = tuple(SecurityUser(f"token:{name}", quotas=its) for name, its in quotas.items())
    place.rights.apply(SecuritySpec(AuthorizationMode.OFF, users=users))


async def grouped(
    place: Place, rows: RowCalls, *requests: pb.EnqueueRequest, caller: Identity = FLOOD
) -> list[Outcome]:
    return await answered(take(rows, *requests, caller=caller))


async def singly(place: Place, rows: RowCalls, *requests: pb.EnqueueRequest, caller: Identity = FLOOD) -> list[Outcome]:
    return [await outcome_of(place, one, caller) for one in requests]


@pytest.fixture(params=[grouped, singly])
def send(request: pytest.FixtureRequest) -> Send:
    """The two ways by which requests come: the compiled edge's groups, and grpcio's one by one."""
    return request.param


def stored(place: Place) -> int:
    return place.shard_host.shard.index.pending


def test_pending_messages_fill_up_to_the_last_and_none_of_a_refused_batch_is_there(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.shard_host.set_quotas(TopicQuotas(pending_messages=10))
        assert reasons(await send(place, rows, ask(4), ask(4), ask(3))) == ["", "", "QUOTA"]
        assert stored(place) == 8
        assert reasons(await send(place, rows, ask(2), ask(1))) == ["", "QUOTA"]
        assert stored(place) == 10
        place.shard_host.set_quotas(TopicQuotas(pending_messages=11))
        assert reasons(await send(place, rows, ask(1))) == [""]
        place.shard_host.set_quotas(None)
        assert reasons(await send(place, rows, ask(100))) == [""]

    run(tmp_path, claim)


def test_pending_bytes_are_those_of_the_records(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        size = len(ask(1).records)
        place.shard_host.set_quotas(TopicQuotas(pending_bytes=3 * size))
        assert reasons(await send(place, rows, ask(2), ask(1), ask(1))) == ["", "", "QUOTA"]
        assert place.shard_host.shard.index.pending_bytes == 3 * size

    run(tmp_path, claim)


def test_what_is_released_makes_room(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        place.shard_host.set_quotas(TopicQuotas(pending_messages=2))
        assert reasons(await send(place, rows, ask(2, delay_ms=2_000), ask(1))) == ["", "QUOTA"]
        async with asyncio.timeout(10):
            await wait_until(lambda: stored(place) == 0, 0.001)
        assert reasons(await send(place, rows, ask(2), ask(1))) == ["", "QUOTA"]

    run(tmp_path, claim)


def test_a_user_over_its_rate_is_refused_and_another_on_the_same_shard_is_not(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_per_second=10))
        assert reasons(await send(place, rows, *[ask(10)] * 5)) == ["", *["QUOTA"] * 4]
        assert reasons(await send(place, rows, *[ask(10)] * 5, caller=QUIET)) == [""] * 5
        place.quota_ms += 999
        assert reasons(await send(place, rows, ask())) == ["QUOTA"]
        place.quota_ms += 1
        assert reasons(await send(place, rows, ask())) == [""]
        assert stored(place) == 61
        assert place.node.metrics.quota_refused == {("", "token:flood", "enqueuePerSecond"): 5}

    run(tmp_path, claim)


def test_a_users_bytes_are_limited(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_bytes_per_second=len(ask(1).records)))
        assert reasons(await send(place, rows, ask(2), ask(1))) == ["", "QUOTA"]
        place.quota_ms += 2_000
        assert reasons(await send(place, rows, ask(1))) == [""]

    run(tmp_path, claim)


def test_two_tenants_groups_in_one_turn_are_told_apart(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_per_second=1))
        flood, quiet, more = (
            take(rows, *[ask()] * 50, caller=FLOOD), take(rows, *[ask()] * 50, caller=QUIET),
            take(rows, *[ask()] * 50, caller=FLOOD),
        )  # fmt: skip
        assert reasons(await answered(flood)) == ["", *["QUOTA"] * 49]
        assert reasons(await answered(quiet)) == [""] * 50
        assert reasons(await answered(more)) == ["QUOTA"] * 50
        assert stored(place) == 51

    run(tmp_path, claim)


def test_a_retry_of_what_is_stored_is_answered_as_it_was_and_costs_nothing(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_per_second=10))
        place.shard_host.set_quotas(TopicQuotas(pending_messages=10))
        first = await send(place, rows, ask(10, 7, 0))
        assert reasons(first) == [""]
        again = await send(place, rows, ask(10, 7, 0), ask(1, 7, 1), ask(10, 7, 0))
        assert reasons(again) == ["", "QUOTA", ""]
        assert {(again[at].first_seq, again[at].duplicate) for at in (0, 2)} == {(first[0].first_seq, True)}
        place.shard_host.set_quotas(None)
        place.quota_ms += 1_000  # were the retries paid for, it would take three
        assert reasons(await send(place, rows, ask(1, 7, 1))) == [""]

    run(tmp_path, claim)


def test_what_is_refused_for_another_reason_is_not_paid_for(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_per_second=10))
        assert reasons(await send(place, rows, ask(1_000, delay_ms=TOO_LATE_MS))) == ["DELAY_TOO_LONG"]
        assert reasons(await send(place, rows, ask(10))) == [""]
        place.quota_ms += 1_000
        place.disk_bytes = 0
        assert reasons(await send(place, rows, ask(1_000))) == ["DISK_FULL"]
        place.disk_bytes = 1 << 60
        assert reasons(await send(place, rows, ask(10))) == [""]

    run(tmp_path, claim)


def test_what_waits_for_room_is_counted_when_it_goes_on(tmp_path: Path) -> None:
    """A shard without room takes nothing, so nothing that waits is pending: the limit holds all the same."""

    async def claim(place: Place, rows: RowCalls) -> None:
        place.shard_host.set_quotas(TopicQuotas(pending_messages=10))
        place.maintenance.full = True
        waiting = [take(rows, ask(6)), take(rows, ask(6)), take(rows, ask(4))]
        alone = asyncio.create_task(outcome_of(place, ask(6)))
        await asyncio.sleep(0.01)
        place.maintenance.full = False
        found = reasons(await answered(*waiting))
        found.append((await alone).reason)
        assert sorted(found) == ["", "", "QUOTA", "QUOTA"]
        assert stored(place) == 10

    run(tmp_path, claim)


def test_a_flood_is_refused_before_it_waits_for_room(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_per_second=1))
        place.maintenance.full = True
        flood = take(rows, *[ask()] * 20, caller=FLOOD)
        quiet = take(rows, ask(), caller=QUIET)
        assert [one[0].reason for one in flood.outcomes[1:]] == ["QUOTA"] * 19
        assert not flood.outcomes[0]
        place.maintenance.full = False
        assert reasons(await answered(quiet)) == [""]

    run(tmp_path, claim)


def test_what_another_node_passes_on_counts_for_its_caller_there(tmp_path: Path) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_per_second=2))
        place.remote = True
        found = await answered(take(rows, ask(2), ask(2), caller=FLOOD))
        assert sorted(reasons(found)) == ["", "QUOTA"]
        assert reasons(await answered(take(rows, ask(2), caller=QUIET))) == [""]

    run(tmp_path, claim)


def test_another_document_is_in_force_at_once(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        limit_users(place, flood=UserQuotas(enqueue_per_second=1))
        assert reasons(await send(place, rows, ask(100), ask())) == ["", "QUOTA"]
        limit_users(place, flood=UserQuotas(enqueue_per_second=100))
        assert reasons(await send(place, rows, ask(100), ask())) == ["", "QUOTA"]
        limit_users(place)
        assert reasons(await send(place, rows, ask(100), ask())) == ["", ""]

    run(tmp_path, claim)


@pytest.mark.parametrize("quota", [1, 2, 9, 10, 1_001])
def test_the_parts_of_a_quota_add_up_to_it_with_one_for_each_queue_at_least(quota: int) -> None:
    routes, queues = Routes(), 4
    routes.cluster = ClusterSpec("shop", 1, (TopicSpec("orders", queues, quotas=TopicQuotas(quota, None, quota)),))
    shares = [
        routes.quotas(ShardObject(f"orders-{at}", Version("1"), ShardSpec(at + 1, "orders", at, ("n0",))))
        for at in range(queues)
    ]
    for share in shares:
        assert share is not None
        assert share.pending_bytes is None
        assert share.pending_messages == share.enqueue_per_second
    assert sum(share.pending_messages or 0 for share in shares if share) == max(quota, queues)


def test_firings_wait_while_the_topics_rate_is_owed_and_count_in_it(tmp_path: Path, send: Send) -> None:
    async def claim(place: Place, rows: RowCalls) -> None:
        host, now_ms = place.shard_host, place.shard_host.resources.clock.now_ms()
        host.shard.raise_format(SINCE_FORMAT[FrameKind.SCHEDULE])
        host.set_quotas(TopicQuotas(enqueue_per_second=4))
        place.quota_ms = began_ms = monotonic_ms()
        assert reasons(await send(place, rows, ask(4))) == [""]  # a second is owed
        for number in range(60):
            schedule = schedules_pb2.Schedule(id=f"s{number}", topic="orders", body=b"x")
            schedule.at.add().FromMilliseconds(now_ms + 1)
            host.schedules.put(schedule, now_ms)
        host.on_proposed(host.schedules.next_due())
        async with asyncio.timeout(60):
            await wait_until(lambda: host.shard.schedules.next_due == NEVER, 0.01)
        place.quota_ms = monotonic_ms()
        assert place.quota_ms - began_ms >= 1_000
        assert reasons(await send(place, rows, ask(1))) == ["QUOTA"], "60 firings are owed, 15 seconds"

    run(tmp_path, claim)
