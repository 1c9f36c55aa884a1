"""Membership: this process's lease in the registry, and what the registry has, followed for as long as it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Protocol, TypeVar

from delayregistry.model import (
    MIN_LEASE_SECONDS,
    AdvisedNodes,
    ClusterSpec,
    NodeLease,
    ShardObject,
    ShardStatus,
    Version,
    renewal_s,
)
from delayregistry.port import Registry, RegistryError, RegistryUnavailable
from delayregistry.security import SecurityObject

from delaynode.node.routes import Routes
from delaynode.replication.transport.until import wait_event

WATCH_SECONDS = 0.05
LEASES_SECONDS = 1.0
RETRY_SECONDS = 0.5  # between tries while nothing can go on without the registry
RENEW_AGAIN_SECONDS = 0.5  # after a renewal that failed: a lease of 3 s outlives two quick refusals
LOG_AGAIN_SECONDS = 10.0  # and between words about that in the log
REQUESTS = 32  # of the shards, sent to the registry at once
T = TypeVar("T")


class LeaseHolder(Protocol):
    """The node: gives the lease to write, and is called when leases have been read."""

    def lease(self, renewals: int) -> NodeLease:
        """This node's lease as it is to be written now."""

    def leases_read(self) -> None:
        """`routes.leases` is new."""

    def shards_read(self, shards: Iterable[ShardObject]) -> None:
        """`routes` has another spec or shards."""


class Membership:
    """Owned by the event loop. Every call of the registry runs in a thread.

    Renewals have a thread of their own, and so have the reads of the watch loop. A node that takes over hundreds of
    shards sends hundreds of requests. A renewal that waited behind these came seconds late, and the operator took a
    node that was taking over for a dead one.
    """

    def __init__(
        self,
        registry: Registry,
        routes: Routes,
        member: LeaseHolder,
        log: Callable[..., None],
        take_security: Callable[[SecurityObject | None], Awaitable[None]] | None = None,
    ) -> None:
        """take_security: takes what the registry has as the security document; None: that is not followed."""
        self._registry, self._routes, self._member, self._log = registry, routes, member, log
        self._take_security = take_security
        self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="registry")
        self._renewing = ThreadPoolExecutor(1, thread_name_prefix="registry-lease")
        self._watching = ThreadPoolExecutor(1, thread_name_prefix="registry-watch")
        self._renewals = 0
        self._spec_read = asyncio.Event()
        self.waiting_for: str | None = None  # what keeps this process from starting

    async def call(self, call: Callable[[], T]) -> T:
        """Away from the event loop. Raises what the call raises."""
        return await _run(self._pool, call)

    # ------------------------------------------------------------ starting
    async def read_cluster_spec(self) -> ClusterSpec | None:
        """The cluster's, however long the registry is out of reach: to give up would only mean to be started again, and
        ever later each time. Raises RegistryError when waiting can't help."""
        found = await self._call_until_available(self._pool, self._registry.read_cluster)
        return None if found is None else found.spec

    async def read_advice(self) -> AdvisedNodes | None:
        """How many nodes the operator says there should be. Raises RegistryUnavailable."""
        return await self.call(self._registry.read_advice)

    async def join(self) -> None:
        """The first renewal, likewise: from then on this process is the node's."""
        await self._call_until_available(self._renewing, self._next_renewal())

    async def _call_until_available(self, pool: Executor, call: Callable[[], T]) -> T:
        began, logged_at = time.monotonic(), 0.0
        while True:
            try:
                found = await _run(pool, call)
            except RegistryUnavailable as error:
                self.waiting_for = str(error)
                if time.monotonic() > logged_at + LOG_AGAIN_SECONDS:
                    logged_at = time.monotonic()
                    self._log("registry-awaited", reason=str(error), seconds=round(logged_at - began, 1))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                if logged_at:
                    self._log("registry-answered", seconds=round(time.monotonic() - began, 1))
                self.waiting_for = None
                return found

    # ------------------------------------------------------------ the lease
    async def renew(self) -> None:
        """Raises RegistryError."""
        await _run(self._renewing, self._next_renewal())

    def _next_renewal(self) -> Callable[[], None]:
        lease = self._member.lease(self._renewals)
        self._renewals += 1
        return partial(self._registry.renew_lease, lease)

    async def renew_loop(self) -> None:
        at_most_s = inf
        while True:
            await self._until_renewal(at_most_s)
            at_most_s = inf
            try:
                await self.renew()
            except RegistryError as error:
                self._log("lease-not-renewed", reason=str(error))
                at_most_s = RENEW_AGAIN_SECONDS

    async def _until_renewal(self, at_most_s: float) -> None:
        """The lease may become shorter meanwhile: the operator counts by the new one at once."""
        began_s = time.monotonic()
        while (left_s := began_s + min(self._renewal_s(), at_most_s) - time.monotonic()) > 0:
            await wait_event(self._spec_read, left_s)

    def _renewal_s(self) -> float:
        cluster = self._routes.cluster
        return renewal_s(MIN_LEASE_SECONDS if cluster is None else cluster.lease_seconds)

    # ------------------------------------------------------------ what it says
    async def watch_loop(self) -> None:
        seen, leases_read = -1, 0.0
        while True:
            try:
                version = await _run(self._watching, self._registry.version)
                if version != seen or time.monotonic() - leases_read > LEASES_SECONDS:
                    leases = await _run(self._watching, self._registry.list_leases)
                    self._routes.leases = {lease.node: lease for lease in leases}
                    self._member.leases_read()
                    leases_read = time.monotonic()
                if version != seen:
                    cluster = await _run(self._watching, self._registry.read_cluster)
                    shards = await _run(self._watching, self._registry.list_shards)
                    self._routes.update(cluster.spec if cluster is not None else None, shards)
                    self._spec_read.set()
                    if self._take_security is not None:
                        await self._take_security(await _run(self._watching, self._registry.read_security))
                    seen = version
                    self._member.shards_read(shards)
            except RegistryError as error:
                self._log("registry-unreachable", reason=str(error))
            except Exception as error:  # to renew the lease and hear of nothing would be worse than to be dead
                self._log("internal-error", reason=f"{type(error).__name__}: {error}")
                await asyncio.sleep(LEASES_SECONDS)
            await asyncio.sleep(WATCH_SECONDS)

    # ------------------------------------------------------------ for the shards
    async def get_shard(self, name: str) -> ShardObject | None:
        """A consistent read. Raises RegistryError."""
        return await self.call(partial(self._registry.get_shard, name))

    async def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        """Raises RegistryError."""
        return await self.call(partial(self._registry.write_status, name, status, version))

    # ------------------------------------------------------------ life
    def close(self) -> None:
        """Ends the calls that wait for an answer first: whoever stops the process does not wait for them."""
        self._registry.close()
        for pool in (self._pool, self._renewing, self._watching):
            pool.shutdown(cancel_futures=True)


async def _run(pool: Executor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, call)
