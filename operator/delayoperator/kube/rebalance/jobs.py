"""Runs of the rebalance job: single ones, one for each request of a DelayRebalance that has neither moves nor a plan;
and what became of those that the schedule starts."""

from __future__ import annotations

from delayoperator.crds.rebalance import DelayRebalanceStatus
from delayoperator.kube.api import Api, ApiError, Json
from delayoperator.kube.caches import HeldObjects
from delayoperator.kube.kinds import CLUSTER_LABEL, CRON_JOB, JOB
from delayoperator.rebalance_plan import Job, JobState
from delayoperator.resources import ClusterView, names
from delayoperator.resources.cronjob import job_name, single_job

COMPONENT = "app.kubernetes.io/component=rebalance"
NO_JOB = "spec.rebalance of the DelayCluster is not set: no job may run; set it, if only to {}, or list spec.moves"


class RebalanceJobs:
    def __init__(self, api: Api, namespace: str, cluster: str) -> None:
        self._api, self._namespace = api, namespace
        self._selector = f"{CLUSTER_LABEL}={cluster},{COMPONENT}"

    def state_of(self, view: ClusterView, meta: Json, status: DelayRebalanceStatus) -> Job:
        """The Job of the run that was asked for. Any other run of the cluster's is waited for: it may be the one that
        writes this plan, as the CronJob's does. Raises ApiError."""
        if view.rebalance is None:
            return Job(JobState.FAILED, NO_JOB)
        jobs = {str(it["metadata"]["name"]): it for it in self._api.list(JOB, self._namespace, self._selector)}
        own = jobs.get(job_name(str(meta["name"]), str(meta["uid"]), status.requested_at or ""))
        if own is not None:
            return _state(own)
        return Job(JobState.RUNS if any(_state(it).state is JobState.RUNS for it in jobs.values()) else JobState.NONE)

    def failed_run(self, view: ClusterView, held: HeldObjects) -> str:
        """Why the last of the schedule's runs that has ended failed; "": it did not. A run for a DelayRebalance is told
        of there. Raises ApiError."""
        if view.rebalance is None or view.rebalance.schedule is None:
            return ""
        found = self._api.list(JOB, self._namespace, self._selector) if JOB not in held else held[JOB]
        jobs = [it for it in found if _is_scheduled(it, view)]
        ended = [it for it in sorted(jobs, key=_age) if _state(it).state is not JobState.RUNS]
        last = _state(ended[-1]) if ended else Job(JobState.NONE)
        return last.message if last.state is JobState.FAILED else ""

    def start(self, view: ClusterView, meta: Json, status: DelayRebalanceStatus) -> bool:
        """Whether there is a new Job. meta: the DelayRebalance's, asked for at status.requested_at. Raises ApiError."""
        if self.state_of(view, meta, status).state is not JobState.NONE:
            return False
        body = single_job(view, str(meta["name"]), str(meta["uid"]), status.requested_at or "")
        try:
            self._api.create(JOB, self._namespace, body)
        except ApiError as error:
            if not error.conflict:
                raise
            return False  # it is there already
        return True


def _is_scheduled(job: Json, view: ClusterView) -> bool:
    wanted = (CRON_JOB.name, names.rebalance(view.name))
    return any((it.get("kind"), it.get("name")) == wanted for it in job["metadata"].get("ownerReferences") or ())


def _age(job: Json) -> tuple[str, str]:
    meta = job["metadata"]
    return str(meta.get("creationTimestamp", "")), str(meta["name"])  # a CronJob numbers its Jobs by their time


def _state(job: Json) -> Job:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Complete":
            return Job(JobState.FINISHED)
        if condition.get("type") == "Failed":
            why = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            name = job["metadata"]["name"]
            return Job(JobState.FAILED, f"Job {name} failed ({why}); kubectl logs job/{name} says more")
    return Job(JobState.RUNS)
