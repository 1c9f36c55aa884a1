"""Who may write DelayShards by the chart's admission policy: its CEL by cel-python, with the API server's `authorizer`
as a table of rights. e2e/scenarios/test_shard_policy.py asks a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import celpy
import pytest
from celpy import celtypes
from celpy.adapter import json_to_cel

from tests.chart.places import CHART, Json, read
from tests.chart.test_chart_rendered import HELM, kinds, render

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not on PATH")

OPERATOR = "system:serviceaccount:delaycluster-system:delaycluster-delaycluster-operator"
ANNA = "anna@example.com"


def _with(name: str) -> Any:
    return lambda held, value: celtypes.MapType({**held, celtypes.StringType(name): value})


def asked_of(resource: str, verb: str, request: Json, allowed_to: tuple[str, str]) -> dict[str, Any]:
    """CEL's functions of `authorizer`. allowed_to: user and namespace that have that verb."""

    def allowed(asked: Any) -> celtypes.BoolType:
        right = [str(asked[name]) for name in ("group", "resource", "check")]
        assert right == ["delaycluster.io", resource, verb]
        return celtypes.BoolType((request["userInfo"]["username"], str(asked["namespace"])) == allowed_to)

    return {**{name: _with(name) for name in ("group", "resource", "namespace", "check")}, "allowed": allowed}


def evaluated(text: str, request: Json, administer: tuple[str, str] = ("", "")) -> Any:
    functions = {
        **asked_of("delayshards", "administer", request, administer),
        "split": lambda value, by: celtypes.ListType(map(celtypes.StringType, str(value).split(str(by)))),
    }
    environment = celpy.Environment()
    program = environment.program(environment.compile(text), functions=functions)
    return program.evaluate({"request": json_to_cel(request), "authorizer": celtypes.MapType()})


@pytest.fixture(scope="module")
def policy() -> Json:
    (found,) = kinds(render(CHART, "none"), "ValidatingAdmissionPolicy")
    return found


def write(user: str, operation: str = "UPDATE", part: str = "", name: str = "shop.orders-0") -> Json:
    """The AdmissionRequest, which leaves out what is empty."""
    request = {"userInfo": {"username": user}, "operation": operation, "namespace": "team", "name": name}
    return {**request, **({"subResource": part} if part else {})}


@pytest.mark.parametrize(
    ("request_", "administer", "expected"),
    [
        (write(OPERATOR, "CREATE"), None, True),
        (write(OPERATOR), None, True),
        (write(OPERATOR, "DELETE"), None, True),
        (write(OPERATOR, part="status"), None, True),
        (write("system:serviceaccount:team:shop-node", part="status"), None, True),
        (write("system:serviceaccount:team:shop-node"), None, False),
        (write("system:serviceaccount:team:shop-node", "DELETE"), None, False),
        (write("system:serviceaccount:team:shop-node", "CREATE"), None, False),
        (write("system:serviceaccount:team:till-node", part="status"), None, False),
        (write("system:serviceaccount:team:shop-node", part="status", name="till.orders-0"), None, False),
        (write("system:serviceaccount:team:till-node", part="status", name="till.orders-0"), None, True),
        (write("system:serviceaccount:team:shop-node", part="scale"), None, False),
        (write("system:serviceaccount:other:shop-node", part="status"), None, False),
        (write("system:serviceaccount:team:shop-rebalance", part="status"), None, False),
        (write("system:serviceaccount:other:delaycluster-delaycluster-operator"), None, False),
        (write("system:serviceaccount:kube-system:generic-garbage-collector", "DELETE"), None, True),
        (write("system:serviceaccount:kube-system:namespace-controller", "DELETE"), None, True),
        (write("system:kube-controller-manager", "DELETE"), None, True),
        (write("system:serviceaccount:kube-systems:x", "DELETE"), None, False),
        (write(ANNA), None, False),
        (write(ANNA, part="status"), None, False),
        (write(ANNA, "DELETE"), None, False),
        (write(ANNA), (ANNA, "team"), True),
        (write(ANNA, "DELETE"), (ANNA, "team"), True),
        (write(ANNA), (ANNA, "other"), False),
    ],
)
def test_the_operator_nodes_and_who_may_administer_write_them(
    policy: Json, request_: Json, administer: tuple[str, str] | None, expected: bool
) -> None:
    (rule,) = policy["spec"]["validations"]
    assert bool(evaluated(rule["expression"], request_, administer or ("", ""))) is expected


def test_who_is_refused_is_told_what_is_lacking(policy: Json) -> None:
    (rule,) = policy["spec"]["validations"]
    said = str(evaluated(rule["messageExpression"], write(ANNA)))
    (role,) = (it for it in kinds(render(CHART, "none"), "ClusterRole") if "shard-admin" in it["metadata"]["name"])
    assert said == (
        "DelayShards are written by the operator and by their cluster's nodes. anna@example.com needs the verb "
        f"administer on delayshards in namespace team, which the ClusterRole {role['metadata']['name']} has"
    )
    assert rule["reason"] == "Forbidden"
    assert "\n" not in rule["expression"] + rule["messageExpression"] + rule["message"]


def test_the_policy_is_of_every_write_and_refuses_where_it_can_not_tell(policy: Json) -> None:
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}
    assert set(rule["resources"]) == {"delayshards", "delayshards/status"}
    assert policy["spec"]["failurePolicy"] == "Fail"
    (binding,) = kinds(render(CHART, "none"), "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def made(*more: str) -> Iterator[str]:
    for found in render(CHART, "none", *more):
        if found["kind"].startswith("ValidatingAdmission") or "shard-admin" in found["metadata"]["name"]:
            yield found["kind"]


def test_there_is_a_policy_only_where_the_release_may_have_one_and_the_api_server_knows_it() -> None:
    everything = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole"}
    assert {*made()} == everything
    assert {*made("--set", "watchNamespaces={orders}")} == everything
    assert {*made("--kube-version", "1.29.4")} == {"ClusterRole"}
    assert {*made("--set", "shardPolicy.create=false")} == {"ClusterRole"}
    assert {*made("--set", "rbac.shardAdmin=false")} == everything - {"ClusterRole"}
    nothing_outside = "watchNamespaces={orders},rbac.readClusterObjects=false,rbac.readNodes=false"
    assert [*made("--set", nothing_outside)] == []


def test_the_policy_of_an_operator_of_some_namespaces_is_of_those() -> None:
    watched = ("--set", "watchNamespaces={orders,billing}")
    (binding,) = kinds(render(CHART, "none", *watched), "ValidatingAdmissionPolicyBinding")
    (chosen,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (chosen["key"], chosen["operator"], set(chosen["values"])) == (
        "kubernetes.io/metadata.name", "In", {"orders", "billing"},
    )  # fmt: skip


def test_operators_of_every_release_may_administer() -> None:
    (shards,) = (it for it in read(CHART / "files" / "rules.yaml") if it["resources"] == ["delayshards"])
    assert "administer" in shards["verbs"]
