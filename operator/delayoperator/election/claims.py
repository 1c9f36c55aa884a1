"""Claims DelayClusters for this release, and looks whether whoever has one still lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from delayoperator.election.claim import (
    ClaimStep,
    HolderLife,
    OperatorClaim,
    claim_step,
)
from delayoperator.election.lease import LeaseSight
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.kinds import DELAY_CLUSTER, LEASE

NO_LEASE = "none"  # as a version: that there is no Lease is watched for as long


@dataclass(slots=True)
class _Holder:
    sight: LeaseSight = field(default_factory=LeaseSight)
    looked_ms: int | None = None
    life: HolderLife = HolderLife.UNKNOWN


class ClusterClaims:
    """One for the process, from any thread. tenure: of this process (elector.py); None: this process does not lead."""

    def __init__(
        self, api: Api, mine: OperatorClaim, tenure: Callable[[], int | None], monotonic_ms: Callable[[], int],
        dead_after_ms: int,
    ) -> None:  # fmt: skip
        self.mine, self.tenure = mine, tenure
        self._api, self._now_ms, self._dead_after_ms = api, monotonic_ms, dead_after_ms
        self.look_ms = dead_after_ms // 12  # between looks at another release's Lease, however many clusters it has
        self.dropped = False  # the last claim was: the definition of DelayClusters is older than claims
        self._lock = threading.Lock()
        self._holders: dict[tuple[str, str], _Holder] = {}

    def another(self, body: Json) -> OperatorClaim | None:
        """Who has this DelayCluster, unless it is this release or may become so. Writes nothing. body: the object."""
        found = OperatorClaim.read(body.get("status"))
        return found if self._step(found) is ClaimStep.LEAVE else None

    def claim(self, body: Json) -> OperatorClaim | None:
        """Makes the DelayCluster ours on condition that it is as in `body`; returns who has it instead, if anybody.

        Raises ApiError: a conflict, say; it is to be read and judged again.
        """
        found = OperatorClaim.read(body.get("status"))
        step = self._step(found)
        if step is ClaimStep.LEAVE:
            return found
        if step is ClaimStep.TAKE:
            meta = body["metadata"]
            patch = {
                "metadata": {"resourceVersion": meta["resourceVersion"]},
                "status": {"operator": self.mine.as_json()},
            }
            written = self._api.merge(DELAY_CLUSTER, meta["namespace"], meta["name"], patch, "status")
            body.update(written)
            self.dropped = OperatorClaim.read(written.get("status")) is None
        return None

    def holds(self, namespace: str, name: str) -> bool:
        """Whether the DelayCluster is ours at this moment. What was observed before this, and is written on condition
        that it has not changed since, overwrites nothing of an operator that has claimed the cluster meanwhile. Where
        no claim can be stored it is everybody's, as it was before there were claims.

        Raises ApiError.
        """
        body = self._api.get(DELAY_CLUSTER, namespace, name)
        if body is None:
            return False
        found = OperatorClaim.read(body.get("status"))
        return found == self.mine or (found is None and self.dropped)

    def _step(self, found: OperatorClaim | None) -> ClaimStep:
        step = claim_step(self.mine, found, HolderLife.UNKNOWN)
        if step is not ClaimStep.LEAVE or found is None:
            return step
        return claim_step(self.mine, found, self._life(found))

    def _life(self, holder: OperatorClaim) -> HolderLife:
        with self._lock:
            known = self._holders.setdefault((holder.namespace, holder.release), _Holder())
            now_ms = self._now_ms()
            since_ms = None if known.looked_ms is None else now_ms - known.looked_ms
            if since_ms is None or since_ms >= self.look_ms:
                if since_ms is None or since_ms > self._dead_after_ms // 2:
                    known.sight = LeaseSight()  # a time without a look: nothing is known of it
                known.looked_ms = now_ms
                known.life = self._look(holder, known)
            return known.life

    def _look(self, holder: OperatorClaim, known: _Holder) -> HolderLife:
        try:
            body = self._api.get(LEASE, holder.namespace, holder.release)
        except ApiError as error:
            known.sight = LeaseSight()  # an outage is nobody's death
            return HolderLife.UNKNOWN if error.forbidden else HolderLife.ALIVE
        version = NO_LEASE if body is None else str(body["metadata"]["resourceVersion"])
        unchanged_ms = known.sight.unchanged_ms(version, self._now_ms())
        return HolderLife.DEAD if unchanged_ms >= self._dead_after_ms else HolderLife.ALIVE
