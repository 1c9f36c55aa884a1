"""Which processes are known to have ended, from what the kubelet says of their containers: a failover then waits for no
lease and no promise, so this has to be certain.

A node writes its incarnation into its container's termination message when it starts. The kubelet reads that message
when the container has *terminated* and reports both together, so no clock and no order of events has to be trusted: the
very process that the message names has ended. A pod that is gone, or hangs in Terminating, says nothing: its process
may run on in a machine that cannot be reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

KEPT = 1_000  # incarnations a cluster: a term that names an older one is an old story

_NOTE = re.compile(r"incarnation ([0-9A-Za-z-]{1,64})\n?")


def incarnation_of(message: object) -> str | None:
    """The process that a termination message names; None for any other message."""
    found = _NOTE.fullmatch(message) if isinstance(message, str) else None
    return None if found is None else found[1]


class EndedProcesses:
    """Remembers who has ended: what was once said stays true. One writer; `known` may be read from any thread."""

    def __init__(self) -> None:
        self._order: tuple[str, ...] = ()
        self._known: frozenset[str] = frozenset()

    def add(self, incarnations: Iterable[str]) -> tuple[str, ...]:
        """Returns the ended processes that were not known before."""
        new = tuple(it for it in dict.fromkeys(incarnations) if it not in self._known)
        if new:
            self._order = (*self._order, *new)[-KEPT:]
            self._known = frozenset(self._order)
        return new

    def known(self) -> frozenset[str]:
        return self._known
