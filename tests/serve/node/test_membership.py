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
from delayregistry.model import NodeLease, ShardSpec, ShardStatus, Version
from delayregistry.port import Registry
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
