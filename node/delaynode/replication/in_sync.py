"""The counted members: those that a commit waits for while the registry is being told (docs/protocol.md 3; why so:
attack B1 there).

    written    the set that is known to be in the registry
    tried      sets whose write is under way or got no answer: each may be there, or may even come to be there later
    joining    members that have nearly caught up, and that the registry does not name yet

The counted members are all of these. To shrink, the smaller set is written first; to grow, commits wait first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ReplicaIds = frozenset[str]


@dataclass(slots=True)
class InSync:
    """By replica id, see docs/protocol.md 3. The master's own is always in."""

    written: ReplicaIds
    tried: list[ReplicaIds] = field(default_factory=list)
    joining: set[str] = field(default_factory=set)

    def counted(self) -> ReplicaIds:
        """The counted members, by copy id, this copy included."""
        return self.written.union(self.joining, *self.tried) if self.joining or self.tried else self.written

    def join(self, replica_id: str) -> None:
        """The member has nearly caught up; from now on commits wait for it. It may lack some that came before."""
        self.joining.add(replica_id)

    def trying(self, replica_ids: ReplicaIds) -> None:
        """A write of `replica_ids` is about to be sent."""
        self.tried.append(replica_ids)

    def refused(self, replica_ids: ReplicaIds) -> None:
        """That write certainly did not happen."""
        self.tried.remove(replica_ids)

    def succeeded(self, replica_ids: ReplicaIds) -> None:
        """It did, and so none that was sent before it can happen any more: each was conditional on what it replaced."""
        self.written = replica_ids
        self.tried.clear()
        self.joining -= replica_ids

    def drop(self, replica_id: str) -> None:
        """The member is lost. If a write may have named it, only a later write rids us of it."""
        self.joining.discard(replica_id)

    @property
    def is_resolved(self) -> bool:
        """Nothing is on its way."""
        return not self.tried and not self.joining
