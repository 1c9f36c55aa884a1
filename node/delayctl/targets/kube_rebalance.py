"""`delayctl --kube rebalance`: the DelayRebalance object, whose verbs the operator takes up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delayoperator.crds import VERB

from delayctl.targets.errors import TargetRefused
from delayctl.targets.kube import REBALANCES, KubeAccess, KubeInvalid
from delayctl.targets.rebalances import MOVING, RebalanceOptions, RebalanceTarget, RebalanceView


class KubeRebalanceTarget(RebalanceTarget):
    """name: of the object; None: the one that the CronJob makes. Raises KubeError too."""

    def __init__(self, access: KubeAccess, name: str | None) -> None:
        self._access, self._name = access, name or f"{access.cluster}-rebalance"
        self.place = f" --kube {access.namespace}/{access.cluster}"
        self.carried_out_by = "the operator"

    def read(self) -> RebalanceView | None:
        found = self._found()
        return None if found is None else RebalanceView.of(found)

    def study(self, options: RebalanceOptions) -> tuple[Mapping[str, Any] | None, str]:
        raise TargetRefused(
            "--dry-run is for a local cluster: in Kubernetes the job runs beside the nodes, and what it proposes is "
            f"carried out only when approved; `delayctl rebalance{self.place}` has it made"
        )

    def propose(self, options: RebalanceOptions) -> tuple[bool, str]:
        if options.given:
            raise TargetRefused(
                f"{', '.join(options.given)}: in Kubernetes that is spec.rebalance of the DelayCluster "
                f"{self._access.cluster!r}"
            )
        wanted: dict[str, Any] = {} if options.threshold is None else {"threshold": options.threshold}
        self._access.delaycluster()  # says so where there is none
        found = self._found()
        try:
            if found is None:
                if self._access.create_delayrebalance(self._name, {"cluster": self._access.cluster, **wanted}):
                    return True, ""
                found = self._found()
            if found is not None and RebalanceView.of(found).state == MOVING:
                raise TargetRefused(
                    f"DelayRebalance {self._name!r} is being carried out: --status shows how far, --stop stops it"
                )
            patch: dict[str, Any] = {"metadata": {"annotations": {VERB: "refresh"}}}
            if wanted:
                patch["spec"] = wanted
            self._access.patch(REBALANCES, self._name, patch)
        except KubeInvalid as error:
            raise TargetRefused(str(error)) from error
        return True, ""

    def annotate(self, annotations: Mapping[str, str]) -> None:
        self._access.patch(REBALANCES, self._name, {"metadata": {"annotations": dict(annotations)}})

    def _found(self) -> dict[str, Any] | None:
        found = self._access.delayrebalance(self._name)
        cluster = ((found or {}).get("spec") or {}).get("cluster")
        if found is not None and cluster != self._access.cluster:
            raise TargetRefused(f"DelayRebalance {self._name!r} is about the cluster {cluster!r}")
        return found
