"""The rebalance job's objects: when it runs, as whom, with what."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from delayoperator.resources import ClusterView, build, differences, names
from delayoperator.resources.cronjob import job_name, single_job
from delayoperator.resources.normal import normal
from delayoperator.resources.view import RebalanceJobSpec

from tests.resources.clusters import MINIMAL, PRODUCTION, one

DAILY = RebalanceJobSpec("delaycluster/rebalance:1", schedule="0 3 * * *")
K8S = replace(
    DAILY, master="k8s://https://kubernetes.default.svc", conf={"spark.executor.instances": "4", "a.b": "c d"}
)


def with_job(desired: RebalanceJobSpec | None) -> ClusterView:
    return replace(MINIMAL, rebalance=desired)


def kinds(view: ClusterView) -> list[tuple[str, str]]:
    return [(it["kind"], it["metadata"]["name"]) for it in build(view) if it["metadata"]["name"].endswith("-rebalance")]


def pod(view: ClusterView) -> Any:
    return one(build(view), "CronJob")["spec"]["jobTemplate"]["spec"]["template"]


def conf(view: ClusterView) -> dict[str, str]:
    env = {it["name"]: it.get("value", "") for it in pod(view)["spec"]["containers"][0]["env"]}
    words = shlex.split(env["PYSPARK_SUBMIT_ARGS"])
    assert words.pop() == "pyspark-shell"
    assert set(words[::2]) <= {"--conf"}
    return dict(word.split("=", 1) for word in words[1::2])


def test_without_spec_there_is_nothing_of_it() -> None:
    assert kinds(with_job(None)) == []


def test_without_a_schedule_there_is_no_cronjob_but_a_job_may_run() -> None:
    found = kinds(with_job(replace(DAILY, schedule=None)))
    assert found == [(kind, "orders-rebalance") for kind in ("ServiceAccount", "Role", "RoleBinding")]


def test_the_cronjob_runs_when_it_is_asked_to_in_utc_and_one_at_a_time() -> None:
    spec = one(build(with_job(DAILY)), "CronJob")["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == ("0 3 * * *", "Etc/UTC", "Forbid")


def test_the_job_names_its_cluster_and_its_rebalance() -> None:
    container = pod(with_job(DAILY))["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "delayoperator.rebalance"]
    assert container["args"] == ["--registry=kube:default/orders", "--name=orders-rebalance", "--master=local[*]"]
    assert container["image"] == "delaycluster/rebalance:1"


def test_the_jobs_pods_are_no_nodes() -> None:
    labels, chooses = pod(with_job(DAILY))["metadata"]["labels"], names.selector("orders")
    assert labels["delaycluster.io/cluster"] == "orders", "its end wakes the operator"
    assert not chooses.items() <= labels.items(), "no Service, StatefulSet or disruption budget counts it"


@pytest.mark.parametrize("desired", [DAILY, K8S])
def test_the_jobs_pods_are_as_restricted_as_the_nodes(desired: RebalanceJobSpec) -> None:
    spec = pod(with_job(desired))["spec"]
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_the_job_moves_nothing_itself() -> None:
    rules = one(build(with_job(DAILY)), "Role", "orders-rebalance")["rules"]
    writes = {"create", "patch", "update", "delete", "deletecollection"}
    assert {(it["resources"][0], verb) for it in rules for verb in it["verbs"] if verb in writes} == {
        ("delayrebalances", "create"),
        ("delayrebalances/status", "patch"),
    }


def test_only_with_executors_it_may_make_pods() -> None:
    def makes_pods(desired: RebalanceJobSpec) -> bool:
        rules = one(build(with_job(desired)), "Role", "orders-rebalance")["rules"]
        return any(it["resources"] == ["pods"] and "create" in it["verbs"] for it in rules)

    assert makes_pods(K8S)
    assert not makes_pods(DAILY)


def test_executors_are_told_their_namespace_image_and_driver_and_people_have_the_last_word() -> None:
    assert conf(with_job(DAILY)) == {}
    found = conf(with_job(K8S))
    assert found["spark.kubernetes.namespace"] == "default"
    assert found["spark.kubernetes.container.image"] == "delaycluster/rebalance:1"
    assert found["spark.driver.host"] == "$(POD_IP)"
    assert (found["spark.executor.instances"], found["a.b"]) == ("4", "c d")


def executor(view: ClusterView) -> Any:
    """The executors' pod, as their driver reads it from its own annotation."""
    template = pod(view)
    (volume,) = [it for it in template["spec"]["volumes"] if it["name"] == "executor"]
    (item,) = volume["downwardAPI"]["items"]
    key = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
    return json.loads(template["metadata"]["annotations"][key])["spec"]


def test_executors_are_as_restricted_as_their_driver() -> None:
    driver, found = pod(with_job(K8S))["spec"], executor(with_job(K8S))
    assert found["securityContext"] == driver["securityContext"]
    assert found["containers"][0]["securityContext"] == driver["containers"][0]["securityContext"]
    assert found["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("given", [{}, {"runAsUser": 2_000}])
def test_the_job_and_its_executors_run_as_the_nodes_do(given: dict[str, int]) -> None:
    view = replace(with_job(K8S), pod=replace(MINIMAL.pod, security=given))
    assert pod(view)["spec"]["securityContext"] == executor(view)["securityContext"] == given
    assert "runAsUser" not in pod(view)["spec"]["containers"][0]["securityContext"]


def test_executors_run_where_their_driver_may_and_pull_its_image_with_the_same_secrets() -> None:
    view = replace(PRODUCTION, rebalance=K8S)
    driver, found = pod(view)["spec"], executor(view)
    assert normal({"spec": found})["spec"]["tolerations"] == driver["tolerations"] != []
    assert found["nodeSelector"] == driver["nodeSelector"] != {}
    assert found["imagePullSecrets"] == driver["imagePullSecrets"] != []


def test_executors_mount_the_history_where_the_driver_does() -> None:
    view = with_job(replace(K8S, history=("load", "orders")))
    found = executor(view)
    assert found["volumes"] == [{"name": "history", "persistentVolumeClaim": {"claimName": "load"}}]
    assert found["containers"][0]["volumeMounts"] == [{"name": "history", "mountPath": "/history"}]
    assert executor(with_job(K8S))["volumes"] == []


def test_spark_finds_the_executors_pod_in_the_file_that_is_mounted() -> None:
    template = pod(with_job(K8S))
    mounts = {it["name"]: it["mountPath"] for it in template["spec"]["containers"][0]["volumeMounts"]}
    (volume,) = [it for it in template["spec"]["volumes"] if it["name"] == "executor"]
    file = f"{mounts['executor']}/{volume['downwardAPI']['items'][0]['path']}"
    assert conf(with_job(K8S))["spark.kubernetes.executor.podTemplateFile"] == file
    assert "annotations" not in pod(with_job(DAILY))["metadata"]


def test_history_is_kept_on_the_claim_that_is_named() -> None:
    spec = pod(with_job(replace(DAILY, history=("load", "orders"))))["spec"]
    assert {"name": "history", "persistentVolumeClaim": {"claimName": "load"}} in spec["volumes"]
    assert {"name": "history", "mountPath": "/history"} in spec["containers"][0]["volumeMounts"]
    assert "--history=/history/orders" in spec["containers"][0]["args"]


def test_a_single_job_is_of_the_same_template_and_goes_with_its_rebalance() -> None:
    job = single_job(with_job(DAILY), "by-hand", "u1", "2026-01-01T00:00:00Z")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert "--name=by-hand" in container["args"]
    assert job["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert job == normal(job)


def test_each_request_has_a_job_of_its_own_and_always_the_same() -> None:
    assert job_name("by-hand", "u1", "then") == job_name("by-hand", "u1", "then")
    assert len({job_name("by-hand", uid, at) for uid in ("u1", "u2") for at in ("then", "later")}) == 4
    assert len(job_name("x" * 253, "u1", "then")) <= 63


def test_a_cronjob_as_the_api_server_hands_it_back_is_not_applied_again() -> None:
    wanted = one(build(PRODUCTION), "CronJob")
    live = {**wanted, "status": {}, "spec": {**wanted["spec"], "suspend": False}}
    assert differences(wanted, live) == ()


def test_the_job_starts_by_the_name_that_every_release_has() -> None:
    """An operator may be newer, or older, than the job's image."""
    command = [sys.executable, "-m", "delayoperator.rebalance", "--help"]
    assert "--registry" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
