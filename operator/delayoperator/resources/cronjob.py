"""The rebalance job: a CronJob where there is a schedule, and single Jobs of the same template.

Spark runs in the job's own pod (local[*]) unless spec.rebalance.spark.master names a cluster; with k8s:// the pod is
the driver, and makes executors of its own image beside it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping

from delayoperator.resources import names, tls
from delayoperator.resources.normal import normal
from delayoperator.resources.pod import identity_and_place, pull_policy, restricted
from delayoperator.resources.view import ClusterView, Json, RebalanceJobSpec

CONTAINER = "rebalance"
HISTORY, TMP, EXECUTOR = "/history", "/tmp", "/etc/executor"
EXECUTOR_FILE = "pod.json"
EXECUTOR_POD = names.PREFIX + "executor-pod"
"""Annotation of the job's pod: what Spark starts from when it makes an executor's. The pod reads it as a file."""

DEFAULT_RESOURCES = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
DEADLINE_SECONDS = 3_600  # a run that lasts longer is ended: the next one sees a newer load
KEPT_SECONDS = 86_400  # a Job that has ended, for its log
LATE_SECONDS = 600  # a run that could not begin by then is left out
PORTS = {"driver": 7078, "blockmanager": 7079}
SCRATCH = "4Gi"  # what Spark may spill


def cron_job(view: ClusterView) -> Json | None:
    """None: there is no schedule."""
    job_spec = view.rebalance
    if job_spec is None or job_spec.schedule is None:
        return None
    name = names.rebalance(view.name)
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": names.metadata(view, name),
        "spec": {
            "schedule": job_spec.schedule,
            "timeZone": "Etc/UTC",
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": LATE_SECONDS,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"metadata": {"labels": names.job_labels(view.name)}, "spec": _job(view, job_spec, name)},
        },
    }


def single_job(view: ClusterView, rebalance: str, rebalance_uid: str, request: str) -> Json:
    """One run, for the plan of the DelayRebalance of this name. request: tells its requests apart.

    view.rebalance must not be None.
    """
    job_spec = view.rebalance
    assert job_spec is not None
    meta = {
        "name": job_name(rebalance, rebalance_uid, request),
        "namespace": view.namespace,
        "labels": names.job_labels(view.name),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": "DelayRebalance",
                "name": rebalance,
                "uid": rebalance_uid,
                "controller": True,
            }
        ],
    }
    spec = _job(view, job_spec, rebalance)
    found: Json = normal({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec})
    return found


def job_name(rebalance: str, rebalance_uid: str, request: str) -> str:
    """The same for the same request, so that two operators make one Job; at most 63 characters, as pods need."""
    digest = hashlib.sha256(f"{rebalance_uid} {request}".encode()).hexdigest()[:8]
    return f"{rebalance[:54].rstrip('-.')}-{digest}"


def _job(view: ClusterView, job_spec: RebalanceJobSpec, rebalance: str) -> Json:
    return {
        "backoffLimit": 1,
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": {
            "metadata": {
                "labels": names.job_labels(view.name),
                "annotations": {EXECUTOR_POD: _executor_pod(view, job_spec)} if job_spec.executors else {},
            },
            "spec": {
                "serviceAccountName": names.rebalance(view.name),
                "automountServiceAccountToken": True,  # it reads the map, and writes its plan
                "enableServiceLinks": False,
                "restartPolicy": "Never",
                "containers": [_container(view, job_spec, rebalance)],
                "volumes": [*_volumes(job_spec), *tls.token_volumes(view)],
                **identity_and_place(view),
            },
        },
    }


def _container(view: ClusterView, job_spec: RebalanceJobSpec, rebalance: str) -> Json:
    resources = DEFAULT_RESOURCES if job_spec.resources is None else job_spec.resources
    more = [{"name": "executor", "mountPath": EXECUTOR}] if job_spec.executors else []
    return {
        "name": CONTAINER,
        "image": job_spec.image,
        **pull_policy(view.pod),
        "command": ["python", "-m", "delayoperator.rebalance"],
        "args": [
            f"--registry=kube:{view.namespace}/{view.name}",
            f"--name={rebalance}",
            f"--master={job_spec.master}",
            *tls.token_args(view.tls),
            *([] if job_spec.history is None else [f"--history={HISTORY}/{job_spec.history[1]}"]),
        ],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "PYSPARK_SUBMIT_ARGS", "value": _submit_args(_conf(view, job_spec))},
            {"name": "SPARK_LOCAL_DIRS", "value": TMP},
        ],
        "resources": {
            kind: {name: str(amount) for name, amount in amounts.items()} for kind, amounts in resources.items()
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": TMP},
            *_history_mounts(job_spec),
            *tls.token_mounts(view.tls),
            *more,
        ],
        "securityContext": restricted(),
    }


def _conf(view: ClusterView, job_spec: RebalanceJobSpec) -> Mapping[str, str]:
    """Spark's settings. Given ones win. Executors are pods like the job's own, and find their driver by its address."""
    if not job_spec.executors:
        return job_spec.conf
    labels = names.job_labels(view.name)
    return {
        "spark.kubernetes.namespace": view.namespace,
        "spark.kubernetes.container.image": job_spec.image,
        "spark.kubernetes.executor.podTemplateFile": f"{EXECUTOR}/{EXECUTOR_FILE}",
        "spark.kubernetes.authenticate.driver.serviceAccountName": names.rebalance(view.name),
        "spark.kubernetes.authenticate.serviceAccountName": names.rebalance(view.name),
        # The executors are the pod's: they go with it, whatever became of their driver.
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.driver.port": str(PORTS["driver"]),
        "spark.driver.blockManager.port": str(PORTS["blockmanager"]),
        "spark.executor.instances": "2",
        # Executors need no objects beside their pods, so the job has no right to any.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        **{f"spark.kubernetes.executor.label.{key}": value for key, value in labels.items()},
        **job_spec.conf,
    }


def _submit_args(conf: Mapping[str, str]) -> str:
    """The option as pyspark reads it: split like a shell's words."""
    return " ".join(
        [*(f"--conf {shlex.quote(f'{key}={value}')}" for key, value in sorted(conf.items())), "pyspark-shell"]
    )


def _volumes(job_spec: RebalanceJobSpec) -> list[Json]:
    found: list[Json] = [{"name": "tmp", "emptyDir": {"sizeLimit": SCRATCH}}, *_history_volumes(job_spec)]
    if job_spec.executors:
        note = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{EXECUTOR_POD}']"}
        found.append({"name": "executor", "downwardAPI": {"items": [{"path": EXECUTOR_FILE, "fieldRef": note}]}})
    return found


def _history_volumes(job_spec: RebalanceJobSpec) -> list[Json]:
    if job_spec.history is None:
        return []
    return [{"name": "history", "persistentVolumeClaim": {"claimName": job_spec.history[0]}}]


def _history_mounts(job_spec: RebalanceJobSpec) -> list[Json]:
    return [] if job_spec.history is None else [{"name": "history", "mountPath": HISTORY}]


def _executor_pod(view: ClusterView, job_spec: RebalanceJobSpec) -> str:
    """Like the job's own pod; Spark adds the rest, /tmp as a volume among it. Executors write the history's files, and
    the driver puts them in their place: all of them mount it."""
    mounts = [*_history_mounts(job_spec), *tls.token_mounts(view.tls)]
    container = {"name": "executor", "securityContext": restricted(), "volumeMounts": mounts}
    spec = {
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [*_history_volumes(job_spec), *tls.token_volumes(view)],
        **identity_and_place(view),
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}, sort_keys=True)
