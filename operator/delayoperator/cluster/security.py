"""How a cluster comes to another security mode: a rolling restart to each, one step at a time.

    Off           plain text; nodes ask nobody
    Permissive    both: a node takes plain text and TLS, from clients and nodes, and dials TLS where it is offered
    Required      TLS alone

Nodes of neighbouring modes talk to each other, nodes of Off and Required do not. So no pod is made of a mode that is
two away from that of a pod that is there. What pods there are decides, not what was asked for before: each step may be
taken back at any moment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from delayregistry.model import NodeLease

from delayoperator.resources.view import SecurityMode

_ORDER = (SecurityMode.OFF, SecurityMode.PERMISSIVE, SecurityMode.REQUIRED)


@dataclass(frozen=True, slots=True)
class SecurityStep:
    """mode: of the pods that are made from now on. waits: why that is not yet what was asked for; "": it is."""

    mode: SecurityMode
    waits: str = ""


def next_step(
    asked: SecurityMode, there: Collection[SecurityMode], leases: Sequence[NodeLease], no_token: str = ""
) -> SecurityStep:
    """there: the modes of the pods, and of the StatefulSet, which makes those that are missing. leases: of the nodes
    that are there. no_token: why the operator could not show nodes who it is; "": it can.
    """
    far = [mode for mode in there if abs(_ORDER.index(mode) - _ORDER.index(asked)) > 1]
    if far:
        waits = f"{asked} comes once every node has been restarted as {SecurityMode.PERMISSIVE}"
        return SecurityStep(SecurityMode.PERMISSIVE, waits)
    begins = asked is SecurityMode.REQUIRED and SecurityMode.REQUIRED not in there
    if begins and there:
        if no_token:
            return SecurityStep(SecurityMode.PERMISSIVE, f"without the plain port the operator has no way: {no_token}")
        lacking = [f"{lease.node}: {why}" for lease in leases if (why := _lacks(lease))]
        if lacking:
            return SecurityStep(SecurityMode.PERMISSIVE, f"{asked} would cut nodes off. {'; '.join(lacking[:5])}")
    return SecurityStep(asked)


def _lacks(lease: NodeLease) -> str:
    """What a node lacks for doing without plain text; "": nothing."""
    if lease.certificate_problem:
        return lease.certificate_problem
    if not lease.peer_tls:
        return "it does not offer TLS to other nodes yet"
    return "" if lease.trust is not None else "it has no certificate with a DNS name for its listeners yet"


def weakest(modes: Collection[SecurityMode]) -> SecurityMode:
    """What holds for all. Off where there are none."""
    return min(modes, key=_ORDER.index, default=SecurityMode.OFF)
