"""A DelayCluster's JSON becomes spec or refusals; never anything else."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from delayapi.log_levels import LogLevel
from delayapi.units import DAY_MS
from delayoperator.cluster.node_scaling import ScalingSettings
from delayoperator.crds import limits
from delayoperator.crds.convert import DesiredCluster, DesiredSecurity, InvalidSpec, desired_of
from delayoperator.crds.definitions import CLUSTER
from delayoperator.resources.view import NetworkAccess, NodeSettings, SecurityMode, ServiceView, TlsSettings
from delayrebalance.model import RebalanceError, SearchSettings
from delayregistry.model import BootstrapVolumes, ClusterSpec, Delivery, Durability, TopicQuotas, TopicSpec, TopicType
from delayregistry.security import IssuerKind, TokenIssuer, Verification
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crds import apiserver
from tests.crds.bad_clusters import GOOD, merged

SCHEMA = CLUSTER.manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def body(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "shop"}, "spec": spec}


def refused(of: object, standing: ClusterSpec | None = None) -> list[str]:
    with pytest.raises(InvalidSpec) as error:
        desired_of(of, standing)
    return [str(refusal) for refusal in error.value.refusals]


def test_an_empty_spec_is_three_nodes_two_copies_no_topics() -> None:
    assert desired_of(body()) == DesiredCluster(ClusterSpec("shop", nodes=3, replicas=2))


def test_the_defaults_of_the_schema_are_the_operators() -> None:
    bare = {"metadata": {"name": "shop"}, "spec": {"topics": [{"name": "orders"}]}}
    stored, *_ = apiserver.refusals(SCHEMA, bare)
    assert desired_of(stored) == desired_of(bare)


def test_every_request_arrives() -> None:
    made = desired_of(
        body(
            nodes=5,
            image="registry.example/delaycluster:1",
            replicas=3,
            minInSync=2,
            delivery="MasterAndSlave",
            durability="Async",
            horizonDays=90,
            paused=True,
            topics=[
                {
                    "name": "orders", "queues": 16, "type": "Delay", "retention": "12h", "dlqRetention": "2w",
                    "maxAttempts": 3, "maxDelay": "1d12h", "maxReleasePerSecond": 500,
                    "quotas": {"pendingMessages": 10, "pendingBytes": 1 << 40, "enqueuePerSecond": 7},
                    "deduplicate": True,
                }
            ],
            bootstrap={"volumes": "Refuse"},
            upgrade={"finalize": "Manual"},
            failover={"leaseSeconds": 5, "lagSeconds": 7, "replaceAfterSeconds": 60, "allowUnclean": True},
            drained=["n4"],
            storage={"size": "100Gi", "storageClassName": "fast", "deleteWithCluster": True},
            resources={"requests": {"cpu": 2, "memory": "1Gi"}},
            podTemplate={
                "labels": {"team": "shop"},
                "annotations": {"note": "x"},
                "nodeSelector": {"disk": "ssd"},
                "affinity": {"nodeAffinity": {"anything": [1, {"a": None}]}},
                "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
                "topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}],
                "priorityClassName": "high",
                "imagePullSecrets": [{"name": "pull"}],
                "imagePullPolicy": "Always",
                "terminationGracePeriodSeconds": 30,
                "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                "securityContext": {"runAsUser": 7, "seLinuxOptions": {"level": "s0"}},
                "volumes": [{"name": "keys", "secret": {"secretName": "keys", "items": [{"key": "a"}]}}],
                "volumeMounts": [{"name": "keys", "mountPath": "/etc/keys", "readOnly": True}],
                "sidecars": [{"name": "logs", "image": "logs:1", "ports": [{"containerPort": 80}]}],
                "initContainers": [{"name": "proxy", "restartPolicy": "Always", "env": [{"name": "E", "value": "1"}]}],
                "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:x"},
                "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["issuer"]}],
                "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            },
            settings={
                "maxConnections": 50, "minFree": "1Gi", "logSegment": "128Mi", "connectionAge": "90m",
                "windowBudget": 65_536, "unread": "1G",
            },
            service={
                "type": "LoadBalancer", "labels": {"a": "b"}, "annotations": {"c": "d"}, "loadBalancerClass": "x/y",
                "loadBalancerSourceRanges": ["10.0.0.0/8"], "externalTrafficPolicy": "Local",
            },
            monitoring={
                "podMonitor": True, "labels": {"release": "prometheus"}, "endpoint": {"interval": "15s"},
                "metricsAuthentication": "MutualTLS",
            },
            networkPolicy={"clients": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}], "monitoring": []},
            logLevel="debug",
            security={
                "mode": "Required",
                "certificates": {"secrets": {"server": "web", "peers": "inner"}, "clientCA": "clients"},
                "tokens": {
                    "serviceAccounts": "TokenReview",
                    "oidc": [{"issuer": "https://a.example", "audience": "b", "groupsClaim": "groups"}],
                },
                "superUsers": ["group:admins"],
            },
            rebalance={"schedule": "0 3 * * *"},
            autoscaling={
                "messagesPerSecond": 900, "horizon": "3h", "settle": "30m", "podStart": "40s", "maxLateness": "5s",
            },
        )
    )  # fmt: skip
    topic = TopicSpec(
        "orders", 16, TopicType.DELAY, 12 * 3_600_000, 14 * 86_400_000, 3, 36 * 3_600_000, 500,
        TopicQuotas(10, 1 << 40, 7), deduplicate=True,
    )  # fmt: skip
    assert made.cluster == ClusterSpec(
        "shop", 5, (topic,), 3, 2, Delivery.MASTER_AND_SLAVE, Durability.ASYNC, 90, 5, 7, ("n4",), True, 60,
        BootstrapVolumes.REFUSE, LogLevel.DEBUG,
    )  # fmt: skip
    defaults = desired_of(body()).cluster
    same = [it.name for it in fields(ClusterSpec) if getattr(made.cluster, it.name) == getattr(defaults, it.name)]
    assert same == ["name", "nodes_version"], "one of them could be left out of convert.py, and nobody would see it"
    assert (made.image, made.paused, made.pod_monitor) == ("registry.example/delaycluster:1", True, True)
    assert made.monitor_labels == {"release": "prometheus"}
    assert (made.monitor_endpoint, made.metrics_authentication) == ({"interval": "15s"}, "mtls")
    assert (made.storage.size, made.storage.class_name, made.storage.delete_with_cluster) == ("100Gi", "fast", True)
    assert made.network == NetworkAccess(({"namespaceSelector": {"matchLabels": {"a": "b"}}},), ())
    issuer = TokenIssuer(IssuerKind.OIDC, "b", "https://a.example", groups_claim="groups")
    settings = TlsSettings(SecurityMode.REQUIRED, "web", "inner", "clients")
    assert made.security == DesiredSecurity(True, settings, Verification.TOKEN_REVIEW, (issuer,), ("group:admins",))
    assert made.resources == {"requests": {"cpu": "2", "memory": "1Gi"}}
    assert made.rebalance is not None
    assert made.rebalance.schedule == "0 3 * * *"
    assert made.scaling == ScalingSettings(900, 3 * 3_600_000, 1_800_000, 40_000, 5_000)
    pod = made.pod
    assert (pod.labels, pod.annotations, pod.node_selector) == ({"team": "shop"}, {"note": "x"}, {"disk": "ssd"})
    assert pod.affinity == {"nodeAffinity": {"anything": [1, {"a": None}]}}
    assert pod.tolerations == ({"key": "k", "operator": "Exists", "effect": "NoSchedule"},)
    assert pod.topology_spread == (
        {
            "topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
        },
    )  # fmt: skip
    assert (pod.priority_class, pod.image_pull_secrets, pod.grace_seconds) == ("high", ("pull",), 30)
    assert pod.image_pull_policy == "Always"
    assert [it["name"] for it in pod.env] == ["A", "C"]
    assert pod.security == {"runAsUser": 7, "seLinuxOptions": {"level": "s0"}}
    assert pod.volumes == ({"name": "keys", "secret": {"secretName": "keys", "items": [{"key": "a"}]}},)
    assert pod.volume_mounts == ({"name": "keys", "mountPath": "/etc/keys", "readOnly": True},)
    assert pod.sidecars == ({"name": "logs", "image": "logs:1", "ports": [{"containerPort": 80}]},)
    (proxy,) = pod.init_containers
    assert proxy == {"name": "proxy", "restartPolicy": "Always", "env": [{"name": "E", "value": "1"}]}
    assert pod.account_annotations == {"eks.amazonaws.com/role-arn": "arn:x"}
    assert pod.host_aliases == ({"ip": "10.0.0.1", "hostnames": ["issuer"]},)
    assert pod.dns_config == {"options": [{"name": "ndots", "value": "2"}]}
    assert made.settings == NodeSettings(50, 1 << 30, 128 << 20, 5_400, 65_536, 10**9)
    balancer = {"loadBalancerClass": "x/y", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    type_and_policy = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    assert made.service == ServiceView({"a": "b"}, {"c": "d"}, {**type_and_policy, **balancer})
    json.dumps([pod.env, pod.tolerations, pod.topology_spread, pod.affinity])  # plain values, no models, no enums


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = refused({"metadata": {"name": "Shop"}, "spec": {"replicas": 4, "minInSync": 5, "drained": ["n0", "n1"]}})
    assert [line.split(":")[0] for line in said] == ["metadata.name", "spec.replicas", "spec.minInSync", "spec.drained"]
    said = refused(body(nodes=0, topics=[{"name": "a", "queues": -1}, {"name": "b", "type": "x", "maxAttempts": "y"}]))
    assert [line.split(":")[0] for line in said] == [
        "spec.nodes", "spec.topics[a].queues", "spec.topics[b].type", "spec.topics[b].maxAttempts",
    ]  # fmt: skip


def test_what_stands_may_not_be_taken_back_though_the_object_is_new() -> None:
    standing = ClusterSpec("shop", 3, (TopicSpec("orders", 8, TopicType.DELAY),), horizon_days=60)
    assert refused(body(topics=[{"name": "orders", "queues": 4}]), standing) == [
        "spec.horizonDays: is 40, but was 60; horizonDays may grow but not shrink: messages may wait that long already",
        "spec.topics[orders].queues: is 4, but was 8; queues may grow but not shrink",
        "spec.topics[orders].type: is Mixed, but was Delay; a topic's type can't be changed",
    ]


def test_a_field_that_a_newer_release_knows_is_passed_over() -> None:
    newer = body(tiering={"cold": True}, topics=[{"name": "orders", "shape": "round"}], storage={"medium": "tape"})
    assert desired_of(newer) == desired_of(body(topics=[{"name": "orders"}]))


def test_null_is_as_absent_as_the_api_server_has_it() -> None:
    nulls = body(nodes=None, topics=[{"name": "orders", "queues": None}], storage={"size": None}, failover=None)
    assert desired_of(nulls) == desired_of(body(topics=[{"name": "orders"}]))
    assert desired_of({"metadata": {"name": "shop"}, "spec": None}) == desired_of(body())


def test_a_long_value_is_cut_in_the_message() -> None:
    (said,) = refused(body(delivery="x" * 10_000))
    assert len(said) < 200


@pytest.mark.parametrize("memory", ["1e999", "9" * 64, "1E", ".5Gi"])
def test_a_strange_quantity_is_a_quantity(memory: Any) -> None:
    assert desired_of(body(resources={"limits": {"memory": memory}})).resources == {"limits": {"memory": memory}}


@pytest.mark.parametrize("memory", ["1e9999999", "-1Gi", "0x10", "1 Gi", "", True, None, 10**80, "1e-999"])
def test_what_is_no_quantity_or_too_little_is_refused(memory: Any) -> None:
    (said,) = refused(body(resources={"limits": {"memory": memory}}))
    assert said.startswith("spec.resources.limits")


@pytest.mark.parametrize("what", [None, 7, "text", [], {}, {"metadata": []}, {"metadata": {"name": ["a"]}, "spec": 3}])
def test_what_is_no_object_is_refused(what: object) -> None:
    assert refused(what)[0].startswith("metadata.name: ")


def test_a_number_that_is_none_is_refused() -> None:
    said = refused(body(rebalance={"threshold": float("nan")}))
    assert said == ["spec.rebalance.threshold: is nan; a number is wanted"]


def test_what_the_rebalance_job_would_refuse_is_refused_before_it_runs() -> None:
    least, most = limits.SLOT_MS
    ahead = limits.LOOK_AHEAD_DAYS * DAY_MS
    for good in ({"slot_ms": least}, {"slot_ms": most}, {"horizon_ms": ahead}, {"slot_ms": least, "horizon_ms": least}):
        SearchSettings(**good)
    for bad in (
        {"slot_ms": least - 1},
        {"slot_ms": most + 1, "horizon_ms": ahead},
        {"horizon_ms": ahead + 1},
        {"slot_ms": most, "horizon_ms": most - 1},
    ):
        with pytest.raises(RebalanceError):
            SearchSettings(**bad)
        texts = {name.removesuffix("_ms"): f"{value}ms" for name, value in bad.items()}
        assert refused(body(rebalance=texts))[0].startswith("spec.rebalance."), texts


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["1Gi", "30m", "n0", "orders", "Delay", "1e999", "0.1m", "1e9999999", "9" * 32, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def holes(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """JSON that follows the schema's names, with anything at all in some of its places."""
    good: st.SearchStrategy[Any] = VALUES
    if "properties" in schema and depth < 6:
        parts = {name: holes(part, depth + 1) for name, part in schema["properties"].items()}
        good = st.fixed_dictionaries({}, optional=parts)
    elif "items" in schema:
        good = st.lists(holes(schema["items"], depth + 1), max_size=3)
    elif "additionalProperties" in schema:
        good = st.dictionaries(st.text(max_size=4), holes(schema["additionalProperties"], depth + 1), max_size=2)
    elif "enum" in schema:
        good = st.sampled_from(schema["enum"])
    elif schema.get("type") == "integer":
        least = schema.get("minimum", -5)
        good = st.integers(least, min(schema.get("maximum", 20), max(least, 20)))
    elif schema.get("type") == "boolean":
        good = st.booleans()
    elif "pattern" in schema:
        good = st.from_regex(schema["pattern"], fullmatch=True)
    return st.one_of(good, good, good, VALUES) if depth else good


@settings(max_examples=300, deadline=None)
@given(spec=VALUES | holes(SCHEMA["properties"]["spec"], 1))
def test_any_json_is_spec_or_refusals(spec: Any) -> None:
    try:
        made = desired_of(
            {"metadata": {"name": "shop"}, "spec": spec}, ClusterSpec("shop", 3, (TopicSpec("orders", 2),))
        )
    except InvalidSpec as error:
        refusals = error.refusals
    else:
        assert made.cluster.name == "shop"
        return
    assert refusals
    assert all(refusal.path and refusal.message for refusal in refusals)


@settings(max_examples=200, deadline=None)
@given(spec=holes(SCHEMA["properties"]["spec"]))
def test_what_the_api_server_takes_the_operator_takes(spec: Any) -> None:
    made = merged(GOOD, {"spec": spec})
    _, schema, cel = apiserver.refusals(SCHEMA, made)
    if not schema and not cel:
        desired_of(made)
