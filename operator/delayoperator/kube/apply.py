"""Makes a cluster's objects as they should be: server-side apply of what differs, and nothing where nothing does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from delayregistry.kube.cluster_watches import labelled_cluster

from delayoperator.cluster.conditions import ClusterProblem
from delayoperator.cluster.reasons import Reason
from delayoperator.cluster.shard_summary import some
from delayoperator.cluster.volumes import Volumes, volumes
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.kinds import CLAIM, LEASE, OPTIONAL, PRUNED, ObjectKind, kind_of
from delayoperator.kube.observe import LiveObjects
from delayoperator.resources import ClusterView, differences, foreign, grown, whole_bytes

Report = Callable[[Reason, str, bool], None]
"""(reason, message, is a warning) -> an event."""


@dataclass(slots=True)
class ApplyOutcome:
    written: list[ObjectKind] = field(default_factory=list)
    problems: list[ClusterProblem] = field(default_factory=list)
    conflicts: list[ObjectKind] = field(default_factory=list)  # changed since they were observed: for the next round
    retry_after_s: float = 0.0


def problem(error: ApiError) -> ClusterProblem:
    """The problem that an error amounts to. Its reason says who can help."""
    if error.forbidden:
        return ClusterProblem(Reason.FORBIDDEN, f"the operator may not {error.what}: {error.message or error.reason}")
    if error.refused:
        return ClusterProblem(Reason.OBJECT_REFUSED, f"{error.what} is refused: {error.message or error.reason}")
    return ClusterProblem(Reason.APPLY_FAILED, str(error))


class Applier:
    def __init__(self, api: Api, say: Report) -> None:
        self._api, self._report = api, say

    def apply(self, view: ClusterView, desired: Iterable[Json], live: LiveObjects) -> ApplyOutcome:
        """Each object by itself: one that fails holds up none of the others."""
        outcome = ApplyOutcome()
        made: list[str] = []
        wanted: set[tuple[ObjectKind, str]] = set()
        for body in desired:
            kind, name = kind_of(body), str(body["metadata"]["name"])
            wanted.add((kind, name))
            try:
                self._one(view, kind, name, body, live.owned.get((kind, name)), outcome, made)
            except ApiError as error:
                if kind in OPTIONAL and error.not_found:
                    said = f"{kind.name} {name} is asked for, and the cluster knows no {kind.plural}.{kind.group}"
                    outcome.problems.append(ClusterProblem(Reason.OBJECT_REFUSED, said))
                else:
                    self._failed(error, outcome, kind)
        if made:
            self._report(Reason.OBJECT_APPLIED, f"made {some(made, 12)}", False)
        for (kind, name), body in live.owned.items():
            asked = "deletionTimestamp" in body["metadata"]
            if kind in PRUNED and (kind, name) not in wanted and not asked and _is_its(view, body):
                try:
                    self._api.delete(kind, view.namespace, name, str(body["metadata"]["uid"]))
                except ApiError as error:
                    self._failed(error, outcome, kind)
                    continue
                outcome.written.append(kind)
                self._report(Reason.OBJECT_PRUNED, f"{kind.name} {name} is not wished for any more", False)
        return outcome

    def grow(self, view: ClusterView, live: LiveObjects, outcome: ApplyOutcome) -> Volumes:
        """Asks each claim that is too small to grow. Returns which claims grow and which were refused."""
        found = volumes(whole_bytes(view.storage.size), view.storage.size, live.claims)
        refused = list(found.refused)
        for it in found.grow:
            patch = grown(view, live.claim_bodies[it.claim.name])
            if patch is None:
                continue
            try:
                self._api.merge(CLAIM, view.namespace, it.claim.name, patch)
            except ApiError as error:
                if error.forbidden or error.refused:
                    refused.append(f"{it.reason} ({error.message})")
                elif not error.conflict:
                    outcome.problems.append(problem(error))
                continue
            outcome.written.append(CLAIM)
            self._report(Reason.VOLUME_GROWN, it.reason, False)
        return replace(found, refused=tuple(refused))

    def _one(
        self,
        view: ClusterView,
        kind: ObjectKind,
        name: str,
        body: Json,
        found: Json | None,
        outcome: ApplyOutcome,
        made: list[str],
    ) -> None:
        if found is None:  # there, perhaps, without our label
            found = self._api.get(kind, view.namespace, name)
            if found is not None and labelled_cluster(found) == view.name:
                outcome.conflicts.append(kind)  # made since it was observed: what we want may depend on it
                return
        why = None if found is None else foreign(view, found)
        if why is not None:
            said = f"{kind.name} {name} is needed by this cluster and is left alone: {why}"
            outcome.problems.append(ClusterProblem(Reason.NAME_TAKEN, said))
            return
        if found is not None and "deletionTimestamp" in found["metadata"]:
            return  # its end is a change that wakes us
        differs = differences(body, found)
        if not differs:
            return
        # Nodes renew their leases each second, and no operator wants them other than another does.
        self._api.apply(kind, body, "" if kind is LEASE else version_of(found))
        outcome.written.append(kind)
        if found is None:
            made.append(f"{kind.name} {name}")
        else:
            told = [str(it) for it in differs if not it.path.startswith("metadata.annotations[delaycluster.io/")]
            self._report(Reason.OBJECT_APPLIED, f"{kind.name} {name}: {some(told or ['ours again'])}", False)

    def _failed(self, error: ApiError, outcome: ApplyOutcome, kind: ObjectKind) -> None:
        if error.conflict:
            outcome.conflicts.append(kind)
            return
        outcome.retry_after_s = max(outcome.retry_after_s, error.retry_after_s or 0.0)
        outcome.problems.append(problem(error))


def version_of(found: Json | None) -> str:
    return "" if found is None else str(found["metadata"]["resourceVersion"])


def _is_its(view: ClusterView, body: Json) -> bool:
    return any(it.get("uid") == view.uid for it in body["metadata"].get("ownerReferences") or ())
