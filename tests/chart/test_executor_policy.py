"""Which pods a rebalance job may make and delete, by the chart's admission policy; its CEL by cel-python."""

from __future__ import annotations

from typing import Any

import celpy
import pytest
from celpy import celtypes
from celpy.adapter import json_to_cel

from tests.chart.places import CHART, Json
from tests.chart.test_chart_rendered import HELM, kinds, render
from tests.chart.test_shard_policy import asked_of

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not on PATH")

JOB = "system:serviceaccount:team:shop-rebalance"
EXECUTOR = {"delaycluster.io/cluster": "shop", "app.kubernetes.io/component": "rebalance"}
NODE = {"delaycluster.io/cluster": "shop", "app.kubernetes.io/component": "node"}


@pytest.fixture(scope="module")
def policy() -> Json:
    (found,) = (
        it
        for it in kinds(render(CHART, "none", "--set", "rbac.sparkExecutors=true"), "ValidatingAdmissionPolicy")
        if it["metadata"]["name"].endswith("-executors")
    )
    return dict(found["spec"])


def evaluated(text: str, given: dict[str, Any], marked: tuple[str, str] = ("", "")) -> Any:
    program = celpy.Environment()
    functions = {
        **asked_of("delayrebalances", "execute", given["request"], marked),
        "startsWith": lambda value, start: celtypes.BoolType(str(value).startswith(str(start))),
        "endsWith": lambda value, end: celtypes.BoolType(str(value).endswith(str(end))),
    }
    values = {**{name: json_to_cel(it) for name, it in given.items()}, "authorizer": celtypes.MapType()}
    return program.program(program.compile(text), functions=functions).evaluate(values)


def refused(policy: Json, operation: str, labels: Json | None, account: str | None = None) -> list[str]:
    """The messages of what refuses the job."""
    metadata: Json = {} if labels is None else {"labels": labels}
    pod = {"metadata": metadata, "spec": {} if account is None else {"serviceAccountName": account}}
    request = {"userInfo": {"username": JOB}, "operation": operation, "namespace": "team"}
    given = {"request": request, "object": None if operation == "DELETE" else pod, "oldObject": pod}
    given["variables"] = {it["name"]: evaluated(it["expression"], given) for it in policy["variables"]}
    return [it["message"] for it in policy["validations"] if not evaluated(it["expression"], given)]


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
@pytest.mark.parametrize(
    ("labels", "good"),
    [(EXECUTOR, True), (NODE, False), ({**EXECUTOR, "delaycluster.io/cluster": "till"}, False), ({}, False),
     (None, False), ({"app.kubernetes.io/component": "rebalance"}, False)],
)  # fmt: skip
def test_a_job_has_pods_of_its_own_alone(policy: Json, operation: str, labels: Json | None, good: bool) -> None:
    found = refused(policy, operation, labels)
    assert found == ([] if good else ["a rebalance job makes and deletes pods of its own cluster's job alone"])


def test_its_pods_run_as_nobody_else(policy: Json) -> None:
    assert refused(policy, "CREATE", EXECUTOR, "shop-rebalance") == refused(policy, "CREATE", EXECUTOR, "default") == []
    for account in ("shop-node", "deployer"):
        told = refused(policy, "CREATE", EXECUTOR, account)
        assert told == ["pods of a rebalance job run with its own ServiceAccount"]


def test_the_policy_is_asked_about_rebalance_jobs_alone(policy: Json) -> None:
    (condition,) = policy["matchConditions"]

    def asked(user: str, marked: tuple[str, str]) -> bool:
        request = {"userInfo": {"username": user}, "namespace": "team"}
        return bool(evaluated(condition["expression"], {"request": request}, marked))

    assert asked(JOB, (JOB, "team"))
    assert not asked(JOB, ("", "")), "of another application, which is only called like that"
    for user in ("system:serviceaccount:other:shop-rebalance", "system:serviceaccount:team:shop-node", "anna"):
        assert not asked(user, (user, "team"))
