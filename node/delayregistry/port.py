"""The Registry port: the cluster's desired and observed state, with compare-and-swap.

Calls block for a bounded time (seconds at worst) and may come from any thread: an event loop runs them in one.
An adapter for Kubernetes objects and one for a SQLite file answer to the same words.
"""

from __future__ import annotations

from typing import Protocol

from delayregistry.model import (
    AdvisedNodes,
    ClusterObject,
    Condition,
    NodeLease,
    ShardObject,
    ShardSpec,
    ShardStatus,
    Version,
)
from delayregistry.security import SecurityObject


class RegistryError(Exception):
    """Anything the registry could not do."""


class RegistryUnavailable(RegistryError):
    """A read, or a lease renewal, was not answered in time. Nothing was learned."""


class Conflict(RegistryError):
    """A conditional write was refused: the object is not at that version (or, for a creation, exists already).

    Nothing was written. Read again with `get_shard`; a master steps down only if spec.epoch is higher.
    """


class OutcomeUnknown(RegistryError):
    """A write got no answer. It may have happened, or may even happen later: assume the stricter of both until a
    later write of one's own has succeeded."""


class Registry(Protocol):
    def version(self) -> int:
        """A number that grows with every write except lease renewals. Cheap enough to poll every 50 ms.

        May lag behind the truth (a watch), never run ahead of what `list_shards` shows. Raises RegistryUnavailable.
        """

    def read_cluster(self) -> ClusterObject | None:
        """The cluster's spec; None before it was written. The adapter says by whom. Raises RegistryUnavailable."""

    def read_security(self) -> SecurityObject | None:
        """The security document, as text; None: there is none, or it was not heard of yet. From the first call on
        `version` counts its changes too. May be stale. Raises RegistryUnavailable."""

    def read_advice(self) -> AdvisedNodes | None:
        """How many nodes there should be, read consistently; None: nothing says so. Raises RegistryUnavailable."""

    def list_shards(self, node: str | None = None) -> tuple[ShardObject, ...]:
        """All shards, or those with a replica on `node`, by topic and queue. May be a little stale."""

    def get_shard(self, name: str) -> ShardObject | None:
        """One shard, read consistently: it shows every write that was answered before. Raises RegistryUnavailable."""

    def create_shard(self, spec: ShardSpec) -> Version:
        """Raises Conflict when the shard exists, OutcomeUnknown."""

    def write_spec(self, name: str, spec: ShardSpec, version: Version) -> Version:
        """The operator's part, if the object is still at `version`; the new one. Raises Conflict, OutcomeUnknown."""

    def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        """The master's part, likewise."""

    def write_conditions(self, name: str, conditions: tuple[Condition, ...], version: Version) -> Version:
        """The operator's view, likewise. Replaces all of them."""

    def delete_shard(self, name: str, version: Version) -> None:
        """The object goes, if it is still at `version`; copies stay on the nodes' disks.

        Raises Conflict, OutcomeUnknown.
        """

    def renew_lease(self, lease: NodeLease) -> None:
        """Writes the lease, whatever was there. The holder counts `renewals` up. Raises RegistryUnavailable."""

    def probe(self) -> None:
        """Proves that the registry takes writes now. Raises RegistryUnavailable."""

    def list_leases(self) -> tuple[NodeLease, ...]:
        """By node id. Raises RegistryUnavailable."""

    def close(self) -> None:
        """Gives back what the registry holds open. No call may follow."""
