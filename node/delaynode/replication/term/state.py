"""What the parts of a term share: what is fixed for it, how far it is, and who serves the shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from delayregistry.model import Handover


@dataclass(frozen=True, slots=True)
class Term:
    """What is fixed for a term. replica_id: this copy's name in the in-sync set."""

    uid: int
    epoch: int
    node: str
    incarnation: str
    replica_id: str
    lag_ms: int
    fsync: bool


class Host(Protocol):
    """What serves the shard."""

    def advance(self) -> None:
        """commit_limit() may have moved."""

    def pause(self, why: str) -> None:
        """Append nothing and answer nothing until resume()."""

    def resume(self) -> None: ...


@dataclass(slots=True)
class TermState:
    """How far a term is. SwitchoverDriver writes `handover`, Leadership writes `host`, and Leader writes the rest."""

    serving: bool = False  # the registry names this term
    stepped_down: str | None = None  # why it serves no more in this epoch; the registry may not know yet
    ended: str | None = None
    handover: Handover | None = None  # it is being given away
    host: Host | None = None  # from when the log is applied

    @property
    def leads(self) -> bool:
        return self.serving and self.ended is None and self.handover is None

    @property
    def began(self) -> bool:
        """The log is applied, so this term may commit frames.

        A term that ends before, as its copy can't apply its log, has committed nothing, and told nobody that
        anything is. So it leaves the former in-sync set as it was, and until then no copy is thrown away.
        """
        return self.host is not None

    def advance(self) -> None:
        """commit_limit() may have moved."""
        if self.host is not None:
            self.host.advance()
