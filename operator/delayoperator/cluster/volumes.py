"""Claims that are smaller than wished: grown where the storage class allows it. A claim never shrinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delayoperator.cluster.shard_summary import ClaimView


@dataclass(frozen=True, slots=True)
class GrowClaim:
    claim: ClaimView
    reason: str


@dataclass(frozen=True, slots=True)
class Volumes:
    grow: tuple[GrowClaim, ...] = ()
    growing: tuple[str, ...] = ()  # asked for, and not there yet
    refused: tuple[str, ...] = ()  # each with who does not allow it


def volumes(wanted_bytes: int, wanted: str, claims: Sequence[ClaimView]) -> Volumes:
    """wanted: as it was written, for the sentences (`100Gi`)."""
    grow: list[GrowClaim] = []
    growing: list[str] = []
    refused: list[str] = []
    for claim in claims:
        if not claim.capacity_bytes:
            continue  # not bound yet: only bound claims can grow
        if claim.requested_bytes < wanted_bytes:
            reason = f"{claim.name} has {_gib(claim.requested_bytes)}, {wanted} is wished for"
            if claim.expandable is False:
                refused.append(f"{reason} (its storage class has no allowVolumeExpansion)")
            else:
                grow.append(GrowClaim(claim, reason))
        elif claim.capacity_bytes < claim.requested_bytes:
            growing.append(f"{claim.name} has {_gib(claim.capacity_bytes)} of {_gib(claim.requested_bytes)}")
    return Volumes(tuple(grow), tuple(growing), tuple(refused))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.4g} GiB"
