"""Whose a DelayCluster is, where operators of several releases look after the same namespaces. Pure.

The claim is `status.operator` of the DelayCluster: the release, its namespace, its version. It is written on condition
that the object is as it was read, before anything of the cluster is touched. Of two operators the newer keeps the
cluster, so that they cannot take it from each other in turn; of equal ones, the one that has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

DEAD_AFTER_MS = 60_000  # an operator whose Lease of the election has not changed for so long; a rollout takes less


@dataclass(frozen=True, slots=True)
class OperatorClaim:
    """release: the name of the Lease of the election in `namespace`, which is also the Deployment's."""

    release: str
    namespace: str
    version: str

    @classmethod
    def read(cls, status: object) -> OperatorClaim | None:
        """None: there is none, or nobody can be told from it."""
        found: Any = status.get("operator") if isinstance(status, dict) else None
        if not isinstance(found, dict) or not found.get("release") or not found.get("namespace"):
            return None
        return cls(str(found["release"]), str(found["namespace"]), str(found.get("version") or ""))

    def as_json(self) -> dict[str, str]:
        return {"release": self.release, "namespace": self.namespace, "version": self.version}

    def same_release(self, other: OperatorClaim) -> bool:
        return (self.release, self.namespace) == (other.release, other.namespace)

    def __str__(self) -> str:
        return f"release {self.release} in namespace {self.namespace}, version {self.version or 'unknown'}"


class HolderLife(Enum):
    """Of another release's leader, as seen by its Lease. UNKNOWN: the Lease may not be read."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class ClaimStep(Enum):
    KEEP = "it is ours"
    TAKE = "it becomes ours"
    LEAVE = "another operator has it"


def claim_step(mine: OperatorClaim, found: OperatorClaim | None, holder: HolderLife) -> ClaimStep:
    """The same release in another version takes the claim whatever the versions are: by the Lease of the election it is
    the one process of that release that acts. So an operator that was rolled back has its clusters again."""
    if found == mine:
        return ClaimStep.KEEP
    if found is None or mine.same_release(found):
        return ClaimStep.TAKE
    if holder is HolderLife.DEAD or is_older(found.version, mine.version):
        return ClaimStep.TAKE
    return ClaimStep.LEAVE


def is_older(version: str, than: str) -> bool:
    """By the numbers that they begin with. A version without any is neither older nor newer."""
    left, right = _numbers(version), _numbers(than)
    return bool(left) and bool(right) and left < right


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if found is None:
        return ()
    numbers = [int(it) for it in found[1].split(".")]
    while numbers and not numbers[-1]:  # 1.0 is 1
        numbers.pop()
    return tuple(numbers) or (0,)
