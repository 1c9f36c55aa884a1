"""A node's lease is renewed in time, however many shards it takes up at that moment."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from delaynode.node.membership import LeaseHolder, Membership
from delaynode.node.routes import Routes
from delayregistry.model import ClusterObject, ClusterSpec, NodeLease, ShardSpec, ShardStatus, Version, renewal_s
from delayregistry.port import Registry, RegistryUnavailable
from delayregistry.sqlite import SqliteRegistry

from tests.registry.worlds import KubeWorld

SHARDS = 500
REQUEST_S = 0.03  # an API server that answers at its usual pace
LEAST_LEASE_S = 2.0
LEASE = NodeLease("n0", "a", "h:1", "h:2")


@dataclass
class SlowRegistry:
    """Answers each request after REQUEST_S, as many at once as are asked."""

    renewed_s: list[float] = field(default_factory=list)

    def renew_lease(self, lease: NodeLease) -> None:
        time.sleep(REQUEST_S)
        self.renewed_s.append(time.monotonic())

    def get_shard(self, name: str) -> None:
        time.sleep(REQUEST_S)

    def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        time.sleep(REQUEST_S)
        return version

    def version(self) -> int:
        return 1

    def list_leases(self) -> tuple[NodeLease, ...]:
        time.sleep(REQUEST_S)
        return ()

    def read_cluster(self) -> None:
        return None

    def list_shards(self, node: str | None = None) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


def stub_member() -> LeaseHolder:
    return cast(
        LeaseHolder,
        SimpleNamespace(
            lease=lambda renewals: replace(LEASE, renewals=renewals),
            leases_read=lambda: None,
            shards_read=lambda shards: None,
        ),
    )


def take_up_all(
    registry: Registry, versions: list[Version], renewed_s: Callable[[], list[float]]
) -> tuple[float, float]:
    """Ask the registry as Reigning.take_up() and Leader.begin() do, for all shards at once, beside a node's loops.

    Returns how long that took and the longest time between two renewals of the lease, both in seconds.
    """

    async def run() -> tuple[float, float]:
        membership = Membership(registry, Routes(), stub_member(), lambda *args, **fields: None)
        await membership.join()
        loops = [asyncio.create_task(loop()) for loop in (membership.renew_loop, membership.watch_loop)]

        async def take_up(number: int) -> None:
            await membership.get_shard(f"orders-{number}")
            await membership.get_shard(f"orders-{number}")
            await membership.write_status(f"orders-{number}", ShardStatus(1, "a", ("copy",)), versions[number])

        try:
            await asyncio.sleep(1.2)  # the lease has been renewed by the loop, too
            began_s = time.monotonic()
            await asyncio.gather(*(take_up(number) for number in range(len(versions))))
            took_s = time.monotonic() - began_s
            await asyncio.sleep(1.5)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            membership.close()
        times_s = renewed_s()
        return took_s, max(after - before for before, after in itertools.pairwise(times_s))

    return asyncio.run(run())


def shard(number: int) -> ShardSpec:
    return ShardSpec(uid=number + 1, topic="orders", queue=number, replicas=("n0",))


def test_a_lease_is_renewed_in_time_while_500_shards_are_taken_up() -> None:
    registry = SlowRegistry()
    took_s, longest_s = take_up_all(cast(Registry, registry), [Version("1")] * SHARDS, lambda: registry.renewed_s)
    assert longest_s < LEAST_LEASE_S, f"taken up in {took_s:.1f} s"
    assert took_s < 4.0, f"with {SHARDS} shards and {REQUEST_S * 1000:.0f} ms a request"


def test_a_lease_is_renewed_in_time_over_http_while_500_shards_are_taken_up() -> None:
    world = KubeWorld()
    try:
        operator, node = world.open(), world.open(owner=None)
        versions = [operator.create_shard(shard(number)) for number in range(SHARDS)]
        world.server.fault(path="/(delayshards|leases)", delay_s=REQUEST_S, times=None)

        def renewed_s() -> list[float]:
            return [it.at_s for it in world.server.requests("PATCH", "/leases/") if it.status == 200]

        took_s, longest_s = take_up_all(node, versions, renewed_s)
        assert longest_s < LEAST_LEASE_S, f"taken up in {took_s:.1f} s"
    finally:
        world.close()


def test_a_lease_is_renewed_in_time_in_a_file_while_500_shards_are_taken_up(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path / "registry", create=True)
    versions = [registry.create_shard(shard(number)) for number in range(SHARDS)]
    times_s: list[float] = []
    renew = registry.renew_lease

    def renewed(lease: NodeLease) -> None:
        renew(lease)
        times_s.append(time.monotonic())

    cast(Any, registry).renew_lease = renewed
    took_s, longest_s = take_up_all(registry, versions, lambda: times_s)
    assert longest_s < LEAST_LEASE_S, f"taken up in {took_s:.1f} s"


class CountingRegistry(SlowRegistry):
    """With a spec. Refuses the first renewals."""

    def __init__(self, lease_seconds: int, refused: int = 0) -> None:
        super().__init__()
        self.spec, self.refused, self.changes = ClusterSpec("c", 1, lease_seconds=lease_seconds), refused, 1
        self.tried_s: list[float] = []

    def version(self) -> int:
        return self.changes

    def read_cluster(self) -> ClusterObject:  # type: ignore[override]
        return ClusterObject(Version(str(self.changes)), self.spec)

    def renew_lease(self, lease: NodeLease) -> None:
        self.tried_s.append(time.monotonic())
        if len(self.tried_s) <= self.refused:
            raise RegistryUnavailable("refused")
        super().renew_lease(lease)


def renew_for(registry: CountingRegistry, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    """`then` is called in the middle of that time."""

    async def run() -> None:
        membership = Membership(cast(Registry, registry), Routes(), stub_member(), lambda *args, **fields: None)
        loops = [asyncio.create_task(loop()) for loop in (membership.watch_loop, membership.renew_loop)]
        await asyncio.sleep(seconds / 2)
        then()
        await asyncio.sleep(seconds / 2)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        membership.close()

    asyncio.run(run())


def test_a_lease_is_renewed_twice_in_its_time_and_no_more_often() -> None:
    assert [round(renewal_s(seconds), 2) for seconds in (2, 3, 10, 60, 3_600)] == [0.9, 1.35, 4.5, 5.0, 5.0]
    registry = CountingRegistry(lease_seconds=3)
    renew_for(registry, 4.5)
    assert len(registry.renewed_s) in (2, 3), "each 1.35 s"


def test_a_lease_that_becomes_shorter_is_renewed_as_it_needs_from_then_on() -> None:
    registry = CountingRegistry(lease_seconds=30)

    def shorten() -> None:
        registry.spec, registry.changes = replace(registry.spec, lease_seconds=2), 2

    renew_for(registry, 4.0, shorten)
    assert registry.renewed_s, "not only after the 5 s that do for a long one"


def test_two_refusals_in_a_row_do_not_cost_a_lease_of_three_seconds() -> None:
    """A busy API server answers 429 at once. Tried again a second later, the third try came after 3.35 s."""
    registry = CountingRegistry(lease_seconds=3, refused=2)
    began_s = time.monotonic()
    renew_for(registry, 3.5)
    assert registry.renewed_s[0] - began_s < 3.0, "counted from the renewal before the first of these tries"


def test_a_stop_while_the_registry_has_news_ends_the_renewals() -> None:
    """A rolling restart stood still: wait_for() swallowed the cancellation, as the spec was read in the same moment."""

    async def stop() -> bool:
        registry = SlowRegistry()
        member = Membership(cast(Registry, registry), Routes(), stub_member(), lambda *args, **fields: None)
        renewing = asyncio.create_task(member.renew_loop())
        await asyncio.sleep(0.05)
        member._spec_read.set()
        renewing.cancel()
        done, _ = await asyncio.wait([renewing], timeout=10)
        renewing.cancel()
        member.close()
        return bool(done)

    assert asyncio.run(stop())
