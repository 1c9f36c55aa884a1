"""The node pods: what the restricted pod security level asks for, and what they tell the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delayapi.log_levels import LogLevel
from delaynode import config
from delaynode.node import node
from delayoperator.crds import cluster as crd
from delayoperator.crds import limits
from delayoperator.crds.cluster import DelayClusterSpec, Failover, Topic
from delayoperator.crds.security import SecurityModel
from delayoperator.resources import ClusterView, build, differences
from delayoperator.resources.memory import SMALLEST_LIMIT_MIB
from delayoperator.resources.view import (
    ConsoleView,
    NodeSettings,
    PodSpec,
    SecurityMode,
    ServiceView,
    TlsSettings,
    VolumeRequest,
)
from delayregistry.model import BootstrapVolumes, Durability, TopicQuotas
from pydantic import BaseModel

from tests.resources.clusters import MINIMAL, PRODUCTION, container, one, pod_spec, stateful_set
from tests.resources.effects import EFFECTS, Effect, effect
from tests.resources.server import served

BOTH = pytest.mark.parametrize("view", [MINIMAL, PRODUCTION], ids=["minimal", "production"])
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


@BOTH
def test_pods_pass_the_restricted_pod_security_level(view: ClusterView) -> None:
    pod = pod_spec(view)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {key for volume in pod["volumes"] for key in volume} - {"name"} <= VOLUMES
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container(view)  # the others are people's own
    context = own["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in context
    assert not any("hostPort" in port for port in own["ports"])


def test_ids_are_ours_unless_the_cluster_or_the_operator_says_otherwise() -> None:
    """OpenShift's restricted-v2 refuses ids that are not its namespace's own."""
    assert pod_spec(MINIMAL)["securityContext"]["fsGroup"] == 10_001
    theirs = {"fsGroupChangePolicy": "OnRootMismatch"}
    assert pod_spec(replace(MINIMAL, pod_security=theirs))["securityContext"] == theirs
    for given in ({}, {"runAsUser": 2_000}):
        view = replace(MINIMAL, pod=PodSpec(security=given), pod_security=theirs)
        assert pod_spec(view)["securityContext"] == given
    assert "runAsUser" not in container(MINIMAL)["securityContext"]


def test_nothing_is_writable_but_the_data_and_a_small_tmp() -> None:
    assert container(MINIMAL)["securityContext"]["readOnlyRootFilesystem"] is True
    assert {mount["mountPath"] for mount in container(MINIMAL)["volumeMounts"]} == {"/data", "/tmp"}
    assert [volume["emptyDir"]["sizeLimit"] for volume in pod_spec(MINIMAL)["volumes"]] == ["64Mi"]


# ---------------------------------------------------------------- what people add
def test_volumes_mounts_and_containers_of_people_come_beside_ours() -> None:
    pod = pod_spec(PRODUCTION)
    assert [it["name"] for it in pod["containers"]] == ["node", "logs"]
    assert [(it["name"], it["restartPolicy"]) for it in pod["initContainers"]] == [("proxy", "Always")]
    assert {it["name"] for it in pod["volumes"]} == {"tmp", "issuer"}
    mount = {"name": "issuer", "mountPath": "/etc/issuer", "readOnly": True}
    assert mount in container(PRODUCTION)["volumeMounts"]
    assert pod["hostAliases"] == [{"ip": "10.0.0.7", "hostnames": ["issuer.example.com"]}]
    assert pod["dnsConfig"] == {"options": [{"name": "ndots", "value": "2"}]}
    assert not {"initContainers", "hostAliases", "dnsConfig"} & pod_spec(MINIMAL).keys()


def test_what_people_add_is_not_applied_again_while_nothing_changes() -> None:
    """The API server fills in defaults, and leaves out what is false or 0."""
    live = served(stateful_set(PRODUCTION))
    (logs,) = (it for it in live["spec"]["template"]["spec"]["containers"] if it["name"] == "logs")
    assert logs["ports"] == [{"containerPort": 9000, "protocol": "TCP"}]
    assert "stdin" not in logs
    assert differences(stateful_set(PRODUCTION, live), live) == ()


def test_every_name_that_the_pod_takes_is_refused_to_people() -> None:
    pod, claims = pod_spec(MINIMAL), stateful_set(MINIMAL)["spec"]["volumeClaimTemplates"]
    assert {it["name"] for it in pod["volumes"]} | {it["metadata"]["name"] for it in claims} <= {*limits.TAKEN_VOLUMES}
    assert [it["name"] for it in pod["containers"]] == [limits.TAKEN_CONTAINER]
    assert {it["mountPath"] for it in container(MINIMAL)["volumeMounts"]} <= {*limits.TAKEN_PATHS}


def test_annotations_of_the_service_account_are_on_it_and_pods_of_before_are_made_anew() -> None:
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/delay"}
    account = one(build(PRODUCTION), "ServiceAccount", "payments-node")
    assert account["metadata"]["annotations"].items() >= annotations.items()
    job = one(build(PRODUCTION), "ServiceAccount", "payments-rebalance")
    assert not annotations.keys() & job["metadata"]["annotations"].keys()
    changed = replace(MINIMAL, pod=PodSpec(account_annotations=annotations))
    assert stateful_set(changed)["spec"]["template"] != stateful_set(MINIMAL)["spec"]["template"]


def test_settings_reach_the_node_and_win_over_those_of_the_memory_limit() -> None:
    given = NodeSettings(
        max_connections=7, min_free_bytes=(1 << 30) + 1, log_segment_bytes=128 << 20, connection_age_s=90,
        window_budget=70_000, unread_bytes=32 << 20,
    )  # fmt: skip
    found = parsed(replace(MINIMAL, resources={"limits": {"memory": "1Gi"}}, settings=given))
    assert (found.max_connections, found.reserve_bytes, found.log_segment_bytes) == (7, 1_025 << 20, 128 << 20)
    assert (found.security.connection_age_s, found.window_budget, found.unread_bytes) == (90, 70_000, 32 << 20)
    assert container(MINIMAL)["args"] == container(replace(MINIMAL, settings=NodeSettings()))["args"]


def test_metrics_have_a_port_of_their_own_where_they_are_secured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYNODE_CERTIFICATES", "/etc/delaycluster/server")
    view = replace(PRODUCTION, metrics_authentication="token", monitor_endpoint={"interval": "15s"})
    found = parsed(view).metrics_listener
    assert found is not None
    assert (found.listen, found.tls, found.authentication) == ("[::]:7171", True, "token")
    assert {"name": "metrics", "containerPort": 7171, "protocol": "TCP"} in container(view)["ports"]
    (endpoint,) = one(build(view), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["scheme"], endpoint["interval"]) == ("metrics", "https", "15s")
    *_, monitoring = one(build(view), "NetworkPolicy", "payments-nodes")["spec"]["ingress"]
    assert [port["port"] for port in monitoring["ports"]] == [7170, 7171]
    assert parsed(PRODUCTION).metrics_listener is None
    (plain,) = one(build(PRODUCTION), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (plain["port"], "scheme" in plain) == ("http", False)


def test_relabelings_of_people_come_after_ours() -> None:
    theirs = {"action": "labeldrop", "regex": "pod"}
    view = replace(PRODUCTION, monitor_endpoint={"relabelings": [theirs]})
    (endpoint,) = one(build(view), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert [it["action"] for it in endpoint["relabelings"]] == ["replace", "labeldrop"]


def test_the_clients_service_is_as_people_ask_and_the_others_are_not() -> None:
    found = one(build(PRODUCTION), "Service", "payments-client")
    assert found["spec"]["type"] == "LoadBalancer"
    assert found["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert found["spec"]["externalTrafficPolicy"] == "Local"
    assert found["metadata"]["labels"]["team"] == "payments"
    assert "service.beta.kubernetes.io/aws-load-balancer-scheme" in found["metadata"]["annotations"]
    assert differences(found, served(found)) == ()
    assert one(build(MINIMAL), "Service", "orders-client")["spec"]["type"] == "ClusterIP"
    bare = one(build(PRODUCTION, bare_service=True), "Service", "payments")
    assert bare["spec"]["type"] == "ClusterIP", "one load balancer is enough"
    assert one(build(PRODUCTION), "Service", "payments-nodes")["spec"]["clusterIP"] == "None"


# ---------------------------------------------------------------- what the process is told
def parsed(view: ClusterView, **variables: str) -> config.NodeConfig:
    """The settings that the process has, with the kubelet's $(NAME) filled in."""
    values = {"POD_INDEX": "2", "POD_IP": "10.1.2.3", **variables}
    known = {variable["name"] for variable in container(view)["env"]}
    assert values.keys() <= known
    args = container(view)["args"]
    for name, value in values.items():
        args = [arg.replace(f"$({name})", value) for arg in args]
    assert not any("$(" in arg for arg in args)
    return config.parse(args)


def test_the_node_understands_its_arguments() -> None:
    found = parsed(MINIMAL)
    assert (found.node, found.registry, found.data) == ("n2", "kube:default/orders", "/data")
    assert (found.listen, found.advertise, found.peer) == ("[::]:7070", "10.1.2.3:7070", "10.1.2.3:7270")
    assert (found.http, found.advertise_http) == ("[::]:7170", "10.1.2.3:7170")


def test_a_pod_with_an_ipv6_address_advertises_it_between_brackets() -> None:
    found = parsed(MINIMAL, POD_IP="fd00:10:244::7")
    assert (found.advertise, found.peer) == ("[fd00:10:244::7]:7070", "[fd00:10:244::7]:7270")
    assert found.advertise_http == "[fd00:10:244::7]:7170"


def test_a_node_knows_the_zone_that_its_pods_label_names_and_none_where_there_is_no_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (zone,) = (it for it in container(MINIMAL)["env"] if it["name"] == "DELAYNODE_ZONE")
    assert zone["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"
    monkeypatch.setenv("DELAYNODE_ZONE", "eu-west-1a")
    assert parsed(MINIMAL).zone == "eu-west-1a"
    monkeypatch.setenv("DELAYNODE_ZONE", "")
    assert parsed(MINIMAL).zone == ""


def test_a_zone_of_ones_own_is_left() -> None:
    theirs = {"name": "DELAYNODE_ZONE", "value": "cellar"}
    view = replace(MINIMAL, pod=replace(MINIMAL.pod, env=(theirs,)))
    assert [it for it in container(view)["env"] if it["name"] == "DELAYNODE_ZONE"] == [theirs]


@pytest.mark.parametrize("zone", ["a b", "-a", "a.", "x" * 64, "a\n", "é"])
def test_what_is_no_zone_is_refused(
    zone: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELAYNODE_ZONE", zone)
    with pytest.raises(SystemExit):
        parsed(MINIMAL)
    assert "is no zone: 1 to 63 of" in capsys.readouterr().err


def test_every_port_that_the_node_listens_on_is_declared() -> None:
    found = parsed(MINIMAL)
    declared = {(port["containerPort"], port["protocol"]) for port in container(MINIMAL)["ports"]}
    listening = {int(address.rpartition(":")[2]) for address in (found.listen, found.http, found.peer)}
    assert declared == {*((port, "TCP") for port in listening), (7270, "UDP")}


def test_people_add_variables_and_can_not_replace_the_ones_that_the_arguments_need() -> None:
    env = {variable["name"]: variable for variable in container(PRODUCTION)["env"]}
    assert env["GRPC_VERBOSITY"]["value"] == "error"
    assert env["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert len(env) == len(container(PRODUCTION)["env"])


def limited(memory: str) -> config.NodeConfig:
    return parsed(replace(MINIMAL, resources={"limits": {"memory": memory}}))


def test_an_image_is_pulled_as_kubernetes_has_it_unless_people_say_when() -> None:
    assert "imagePullPolicy" not in container(MINIMAL)
    always = replace(MINIMAL, pod=PodSpec(image_pull_policy="Always"))
    assert container(always)["imagePullPolicy"] == "Always"


def test_a_limit_of_one_gib_gives_the_nodes_own_defaults() -> None:
    own, found = parsed(MINIMAL), limited("1Gi")
    assert (found.in_flight_bytes, found.unread_bytes) == (own.in_flight_bytes, own.unread_bytes)
    assert found.window_budget == pytest.approx(own.window_budget, rel=0.05)
    assert found.memory_bytes == 768 << 20


@pytest.mark.parametrize("mib", [SMALLEST_LIMIT_MIB, 512, 1_024, 4_096, 65_536])
def test_the_parts_fit_into_the_limit(mib: int) -> None:
    found = limited(f"{mib}Mi")
    process = 150 << 20
    assert process + 28 * found.window_budget + found.in_flight_bytes + found.unread_bytes <= mib << 20
    assert found.memory_bytes < mib << 20


def test_a_limit_is_a_quantity_in_any_form() -> None:
    assert limited("2Gi") == limited("2048Mi") == limited("2147483648") == limited("2.0Gi")


# ---------------------------------------------------------------- life and death
def test_a_node_has_time_to_hand_its_masters_over() -> None:
    assert pod_spec(MINIMAL)["terminationGracePeriodSeconds"] >= 2 * node.HAND_OVER_SECONDS
    assert pod_spec(PRODUCTION)["terminationGracePeriodSeconds"] == 120


def seconds(probe: str) -> int:
    found = container(MINIMAL)[probe]
    return int(found["periodSeconds"] * found["failureThreshold"])


def test_liveness_asks_only_whether_the_event_loop_answers_and_has_patience() -> None:
    assert container(MINIMAL)["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container(MINIMAL)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert seconds("livenessProbe") >= 60
    assert seconds("startupProbe") >= 300
    assert seconds("readinessProbe") <= 15


def test_machines_and_zones_are_preferred_and_never_required_by_default() -> None:
    pod = pod_spec(MINIMAL)
    rules = pod["affinity"]["podAntiAffinity"]
    assert [*rules] == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [spread["whenUnsatisfiable"] for spread in pod["topologySpreadConstraints"]] == ["ScheduleAnyway"]


def test_an_affinity_that_is_given_holds_alone() -> None:
    assert pod_spec(PRODUCTION)["affinity"] == PRODUCTION.pod.affinity
    assert pod_spec(replace(MINIMAL, pod=PodSpec(affinity={})))["affinity"] == {}


def test_a_spread_without_a_selector_counts_this_clusters_pods() -> None:
    (spread,) = pod_spec(PRODUCTION)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"]["delaycluster.io/cluster"] == "payments"


def test_the_operators_labels_can_not_be_replaced() -> None:
    view = replace(MINIMAL, pod=PodSpec(labels={"delaycluster.io/cluster": "other", "team": "x"}))
    labels = stateful_set(view)["spec"]["template"]["metadata"]["labels"]
    assert (labels["delaycluster.io/cluster"], labels["team"]) == ("orders", "x")


# ---------------------------------------------------------------- restarts
def desired(**changed: Any) -> Callable[[ClusterView], ClusterView]:
    return lambda view: replace(view, cluster=replace(view.cluster, **changed))


def topic(**changed: Any) -> Callable[[ClusterView], ClusterView]:
    def change(view: ClusterView) -> ClusterView:
        first, *others = view.cluster.topics
        return replace(view, cluster=replace(view.cluster, topics=(replace(first, **changed), *others)))

    return change


TLS = TlsSettings(SecurityMode.PERMISSIVE, "server", "peers")
CHANGES: dict[str, Callable[[ClusterView], ClusterView]] = {
    "nodes": desired(nodes=7),
    "image": lambda view: replace(view, image="other:2"),
    "replicas": desired(replicas=3),
    "minInSync": desired(min_in_sync=1),
    "delivery": desired(delivery="MasterAndSlave"),
    "durability": desired(durability=Durability.ASYNC),
    "horizonDays": desired(horizon_days=100),
    "drained": desired(drained=("n0",)),
    "topics": desired(topics=()),
    "topics.queues": topic(queues=9),
    "topics.retention": topic(retention_ms=1),
    "topics.dlqRetention": topic(dlq_retention_ms=1),
    "topics.maxAttempts": topic(max_attempts=1),
    "topics.maxDelay": topic(max_delay_ms=1),
    "topics.maxReleasePerSecond": topic(max_release_per_second=None),
    "topics.quotas": topic(quotas=TopicQuotas(pending_messages=1)),
    "topics.deduplicate": topic(deduplicate=True),
    "failover.leaseSeconds": desired(lease_seconds=5),
    "failover.lagSeconds": desired(lag_seconds=5),
    "failover.replaceAfterSeconds": desired(replace_after_seconds=60),
    "bootstrap.volumes": desired(bootstrap_volumes=BootstrapVolumes.REFUSE),
    "failover.allowUnclean": desired(allow_unclean_failover=True),
    "storage.size": lambda view: replace(view, storage=VolumeRequest("300Gi", "fast")),
    "storage.deleteWithCluster": lambda view: replace(view, storage=VolumeRequest("200Gi", "fast")),
    "resources": lambda view: replace(view, resources={"limits": {"memory": "5Gi"}}),
    "settings": lambda view: replace(view, settings=NodeSettings(max_connections=9)),
    "service": lambda view: replace(view, service=ServiceView({"team": "other"})),
    "podTemplate": lambda view: replace(view, pod=replace(view.pod, labels={"team": "other"})),
    "monitoring.podMonitor": lambda view: replace(view, pod_monitor=False),
    "monitoring.labels": lambda view: replace(view, monitor_labels={}),
    "monitoring.endpoint": lambda view: replace(view, monitor_endpoint={"interval": "1m"}),
    "monitoring.metricsAuthentication": lambda view: replace(view, metrics_authentication="token"),
    "networkPolicy": lambda view: replace(view, network=None),
    "logLevel": desired(log_level=LogLevel.DEBUG),
    "security.mode": lambda view: replace(view, tls=TLS),
    "security.certificates": lambda view: replace(view, tls=replace(TLS, server="other")),
    "security.tokens": lambda view: replace(view, security="{}"),
    "security.superUsers": lambda view: replace(view, security="{}"),
    "console": lambda view: replace(view, console=ConsoleView("console:1")),
}
UNSEEN = {
    "allowedNamespaces",
    "autoscaling",
    "paused",
    "rebalance",
    "upgrade.finalize",
}  # the builders do not read them


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_restarts_the_nodes_exactly_when_the_table_says_so(field: str) -> None:
    before, after = stateful_set(PRODUCTION), stateful_set(CHANGES[field](PRODUCTION))
    assert (before["spec"]["template"] != after["spec"]["template"]) == (EFFECTS[field] is Effect.RESTART)


def test_the_table_is_tested_as_a_whole() -> None:
    fixed = {field for field, what in EFFECTS.items() if what is Effect.FIXED}
    assert CHANGES.keys() | UNSEEN | fixed == EFFECTS.keys()


def test_the_table_knows_every_field_that_people_can_write() -> None:
    """The table names the parts of some fields, since they differ in effect."""
    parts: dict[str, type[BaseModel]] = {"topics": Topic, "failover": Failover, "storage": crd.StorageModel}
    parts |= {"bootstrap": crd.BootstrapModel, "upgrade": crd.UpgradeModel, "security": SecurityModel}
    parts |= {"monitoring": crd.Monitoring}
    for name in written(DelayClusterSpec):
        below = {f"{name}.{part}" for part in written(parts[name])} - {"topics.name"} if name in parts else set()
        assert {key for key in EFFECTS if key.startswith(f"{name}.")} == below
        assert below or effect(name)


@pytest.mark.parametrize("field", EFFECTS)
def test_the_page_for_people_says_what_a_change_of_each_field_does(field: str) -> None:
    page = (Path(__file__).parents[2] / "docs/upgrade.md").read_text()
    section = page.split("## What else restarts the nodes")[1].split("\n## ")[0]
    words = {"topics": "topics", "topics.queues": "queues"}
    assert words.get(field, f"`{field.removeprefix('topics.')}`") in section


def written(model: type[BaseModel]) -> list[str]:
    """The names of a model's fields as people write them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def test_a_field_below_one_that_is_named_is_as_its_parent() -> None:
    assert effect("podTemplate.affinity.nodeAffinity") is Effect.RESTART
    with pytest.raises(KeyError, match="colour"):
        effect("colour.depth")
