"""What the replicas of one process share, and the registry as they need it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from delayregistry.model import ClusterSpec, ShardObject, ShardSpec, ShardStatus, TopicQuotas, Version

from delaynode.replica.hosts.host import NodeResources
from delaynode.replication.catch_up import CatchUpBudget
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.transport.peers import Peers
from delaynode.store.config import ShardConfig


class ShardRegistry(Protocol):
    """The registry, without blocking. Raises RegistryError."""

    async def get_shard(self, name: str) -> ShardObject | None: ...

    async def write_status(self, name: str, status: ShardStatus, version: Version) -> Version: ...


MAX_LARGE, MAX_SMALL = 2, 16  # transfers at once
SMALL_BYTES = 8 << 20


class TransferPermits:
    """Places for whole copies that are sent: few for those that fill disk and network, more for those that wait for
    small things most of the time; a new topic has a thousand of them."""

    def __init__(self) -> None:
        self._large, self._small = asyncio.Semaphore(MAX_LARGE), asyncio.Semaphore(MAX_SMALL)

    def permit(self, log_bytes: int) -> asyncio.Semaphore:
        return self._small if log_bytes <= SMALL_BYTES else self._large


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """data: the node's directory. boot_ms: CLOCK_BOOTTIME. transfers: of whole copies, to be sent.

    stopping: whether that node has said in its lease that its process is about to end.
    """

    node: str
    incarnation: str
    data: str
    boot_id: str
    resources: NodeResources
    registry: ShardRegistry
    peers: Peers
    replica_leases: ReplicaLeases
    transfers: TransferPermits
    boot_ms: Callable[[], int]
    cluster: Callable[[], ClusterSpec | None]
    shard_config: Callable[[ShardSpec], ShardConfig]
    release_rate: Callable[[ShardObject], int | None]
    quotas: Callable[[ShardObject], TopicQuotas | None]
    stopping: Callable[[str], bool]
    catching_up: CatchUpBudget = field(default_factory=CatchUpBudget)


@dataclass(frozen=True, slots=True)
class ShardStatusAccess:
    """One shard's object, as its leader needs it."""

    registry: ShardRegistry
    name: str

    async def get(self) -> ShardObject | None:
        return await self.registry.get_shard(self.name)

    async def write(self, status: ShardStatus, version: Version) -> Version:
        return await self.registry.write_status(self.name, status, version)
