"""Restarts the pods of a cluster, one at a time: evicts the one that `next_restart` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.restart import RestartPod, RestartWaits, afterwards, next_restart
from delayoperator.cluster.shard_summary import PodView, SetView, ShardSummary
from delayoperator.kube.api import Api, ApiError
from delayoperator.kube.apply import ApplyOutcome, Report, problem
from delayoperator.kube.kinds import POD
from delayoperator.kube.observe import LiveObjects
from delayoperator.resources import ClusterView


class PodRestarter:
    """For one cluster. report: gets an event for each restart."""

    def __init__(self, api: Api, report: Report) -> None:
        self._api, self._report = api, report
        # The pod that was restarted last, until all is as before. Only what is said depends on it: an operator that is
        # new does without.
        self._restarted: str | None = None

    def restart_next(
        self,
        view: ClusterView,
        live: LiveObjects,
        counted: ShardSummary,
        stuck: Mapping[str, frozenset[str]],
        outcome: ApplyOutcome,
        read: Callable[[], tuple[SetView | None, Sequence[PodView]]],
        wall_ms: int,
    ) -> RestartPod | RestartWaits | None:
        """None: no pod has to be restarted. read: the StatefulSet and the pods, consistently, since one that is
        restarted may be the last that serves. Raises ApiError."""
        current = live.set_view(view.name)
        if current is None:
            return None
        decided = next_restart(current, live.pods, counted, stuck, wall_ms)
        if isinstance(decided, RestartPod):
            current, pods = read()
            decided = None if current is None else next_restart(current, pods, counted, stuck, wall_ms)
        if current is None:
            return None
        if decided is None and self._restarted is not None:
            decided = afterwards(self._restarted, current, live.pods, counted, wall_ms)
            self._restarted = None if decided is None else self._restarted
        if not isinstance(decided, RestartPod):
            return decided
        pod = decided.pod
        try:
            if pod.stopped is None:
                # The disruption budget has the last word: two operators would never take two pods at once.
                self._api.evict(POD, view.namespace, pod.name, pod.uid)
            else:
                self._api.delete(POD, view.namespace, pod.name, pod.uid)
        except ApiError as error:
            if error.by_budget:
                return RestartWaits(f"{pod.name} is next; the disruption budget {view.name} does not allow it yet")
            outcome.problems.append(problem(error))
            return RestartWaits(f"{pod.name} is next; {error}")
        outcome.written.append(POD)
        self._restarted = pod.name
        self._report(Reason.POD_RESTARTED, f"{decided.reason}; {decided.left} more to come", False)
        return decided
