"""Which members a commit waits for while the registry is being told (DESIGN 5.3, attack B1).

    written    the set that is known to be in the registry
    tried      sets whose write got no answer: each may be there, or may even come to be there later
    joining    members that have caught up and are not in the registry yet

A commit waits for all of them. To shrink, the smaller set is written first; to grow, commits wait first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Entries = frozenset[str]


@dataclass(slots=True)
class InSync:
    """Entries name copies, see DESIGN 5.5. `me` is always in."""

    me: str
    written: Entries
    tried: list[Entries] = field(default_factory=list)
    joining: set[str] = field(default_factory=set)

    def counted(self) -> Entries:
        """Whom a commit waits for, this copy included."""
        return self.written.union(self.joining, *self.tried) if self.joining or self.tried else self.written

    def join(self, entry: str) -> None:
        """The member has everything that is committed; from now on commits wait for it."""
        self.joining.add(entry)

    def trying(self, wanted: Entries) -> None:
        """A write of `wanted` is about to be sent."""
        self.tried.append(wanted)

    def refused(self, wanted: Entries) -> None:
        """That write certainly did not happen."""
        self.tried.remove(wanted)

    def succeeded(self, wanted: Entries) -> None:
        """It did, and so none that was sent before it can happen any more: each was conditional on what it replaced."""
        self.written = wanted
        self.tried.clear()
        self.joining -= wanted

    def give_up(self, entry: str) -> None:
        """The member is lost. If a write may have named it, only a later write rids us of it."""
        self.joining.discard(entry)

    @property
    def settled(self) -> bool:
        """Nothing is on its way."""
        return not self.tried and not self.joining
