"""A DelayRebalance as the API server has it: where the driver reads it and writes its status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from delayoperator.crds.rebalance import DelayRebalanceSpec, DelayRebalanceStatus
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.events import EventRecorder
from delayoperator.kube.kinds import DELAY_REBALANCE
from delayoperator.kube.rebalance.jobs import RebalanceJobs
from delayoperator.rebalance_plan import Job, RebalanceConflict, RebalanceEvent, RebalanceRequest, RebalanceStore
from delayoperator.resources import ClusterView

CONSUME_TRIES = 5  # against others who write the object meanwhile


class ResourceRebalanceStore(RebalanceStore):
    """All its methods raise ApiError, and the constructor pydantic's ValidationError for what `body` says."""

    def __init__(self, api: Api, events: EventRecorder, jobs: RebalanceJobs, view: ClusterView, body: Json) -> None:
        self._api, self._events, self._jobs, self._view = api, events, jobs, view
        self._meta: Json = body["metadata"]
        spec, generation = DelayRebalanceSpec.model_validate(body.get("spec") or {}), self._meta.get("generation", 1)
        self.request = RebalanceRequest.of(spec, int(generation), self._meta.get("annotations") or {})
        self.status = DelayRebalanceStatus.model_validate(body.get("status") or {})

    def keep(self, status: DelayRebalanceStatus) -> bool:
        patch = _merge_patch(as_json(self.status), as_json(status))
        if patch:
            with _conflicts():
                self._meta = self._merge({}, {"status": patch}, "status")
        return bool(patch)

    def remove_verbs(self, verbs: frozenset[str]) -> None:
        """At once: a stop that is still there when somebody approves the rest would stop that too."""
        with _conflicts():
            for tries_left in reversed(range(CONSUME_TRIES)):
                answered = self.request.answered(verbs, self._meta.get("annotations") or {})
                if not answered:
                    return
                try:
                    self._merge({"annotations": dict.fromkeys(answered)}, {})
                    return
                except ApiError as error:
                    if not tries_left or not error.conflict:
                        raise
                found = self._api.get(DELAY_REBALANCE, self._meta["namespace"], self._meta["name"])
                if found is None or found["metadata"].get("uid") != self._meta.get("uid"):
                    return
                self._meta = found["metadata"]

    def job(self) -> Job:
        return self._jobs.state_of(self._view, self._meta, self.status)

    def start_job(self, status: DelayRebalanceStatus) -> bool:
        with _conflicts():
            return self._jobs.start(self._view, self._meta, status)

    def record(self, event: RebalanceEvent) -> None:
        self._events.record(self._meta, event.reason, event.message, warning=event.warning, kind=DELAY_REBALANCE)

    def _merge(self, meta: Json, patch: Json, subresource: str = "") -> Json:
        """On condition that nobody has changed the object; the metadata after the write."""
        body = {"metadata": {"resourceVersion": self._meta["resourceVersion"], **meta}, **patch}
        written = self._api.merge(DELAY_REBALANCE, self._meta["namespace"], self._meta["name"], body, subresource)
        return dict(written["metadata"])


def as_json(status: DelayRebalanceStatus) -> Json:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.conflict or error.not_found:
            raise RebalanceConflict from error
        raise


def _merge_patch(old: Any, new: Any) -> Any:
    """The patch that turns `old` into `new`. A field that must go is null."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {key: _merge_patch(old.get(key), new.get(key)) for key in {*old, *new} if old.get(key) != new.get(key)}
