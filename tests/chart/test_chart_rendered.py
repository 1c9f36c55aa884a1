"""The chart as Helm renders it. Without helm on PATH (or in kubelab's cache) these tests are skipped.

UPDATE_SNAPSHOTS=1 writes tests/chart/snapshots anew; read the difference before it is committed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from delayapi.events import VARIABLE
from delayapi.log_levels import LogLevel
from delayoperator.__main__ import Options

from tests.chart.places import CHART, ROOT, SNAPSHOTS, VALUES, Json, documents, read
from tests.chart.test_chart_rights import node_rules, rights

CACHE = Path(os.environ.get("KUBELAB_CACHE", Path.home() / ".cache" / "kubelab")) / "bin"
HELM = shutil.which("helm") or shutil.which("helm", path=str(CACHE))
RELEASE = ("delaycluster", "--namespace", "delaycluster-system", "--kube-version", "1.33.0")
CASES = sorted(path.stem for path in VALUES.glob("*.yaml"))

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not on PATH")


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *words], capture_output=True, text=True, timeout=120, check=False)


def render(chart: Path, case: str, *more: str) -> list[Json]:
    ended = helm("template", *RELEASE[:1], str(chart), *RELEASE[1:], "--values", str(VALUES / f"{case}.yaml"), *more)
    assert ended.returncode == 0, ended.stderr
    return documents(ended.stdout)


def named(objects: list[Json]) -> dict[tuple[str, str, str], Json]:
    return {(it["kind"], it["metadata"].get("namespace", ""), it["metadata"]["name"]): it for it in objects}


def kinds(objects: list[Json], kind: str) -> list[Json]:
    return [it for it in objects if it["kind"] == kind]


def without_definitions(objects: list[Json]) -> list[Json]:
    return [it for it in objects if it["kind"] != "CustomResourceDefinition"]


class Readable(yaml.SafeDumper):
    """Texts of many lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Readable.add_representer(str, _text)


def snapshot(objects: list[Json]) -> str:
    """In a fixed order and form, so that releases of Helm that write YAML differently agree."""
    ordered = [found for _, found in sorted(named(without_definitions(objects)).items())]
    for found in kinds(ordered, "ConfigMap"):  # the dashboard has tests of its own
        found["data"] = {name: f"{len(text.splitlines())} lines" for name, text in found["data"].items()}
    return "".join(f"---\n{yaml.dump(found, Dumper=Readable, width=120, sort_keys=True)}" for found in ordered)


@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_as_it_did(case: str) -> None:
    kept, now = SNAPSHOTS / f"{case}.yaml", snapshot(render(CHART, case))
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOTS.mkdir(exist_ok=True)
        kept.write_text(now)
    assert now == kept.read_text(), "if the change is meant: UPDATE_SNAPSHOTS=1, and read what differs"


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_finds_nothing(case: str) -> None:
    ended = helm("lint", "--strict", "--kube-version", "1.33.0", str(CHART), "--values", str(VALUES / f"{case}.yaml"))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_helm_refuses_values_that_the_schema_refuses() -> None:
    ended = helm("template", "x", str(CHART), "--set", "replicas=0")
    assert ended.returncode != 0
    assert "replicas" in ended.stderr


def test_the_definitions_are_installed_as_the_project_has_them_and_are_kept() -> None:
    found = named(kinds(render(CHART, "none"), "CustomResourceDefinition"))
    wanted = named([read(path) for path in (ROOT / "crds").glob("*.yaml")])
    assert found.keys() == wanted.keys()
    for key, definition in found.items():
        assert definition["spec"] == wanted[key]["spec"]
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_definitions_can_be_left_to_others_or_go_with_the_release() -> None:
    assert kinds(render(CHART, "none", "--set", "crds.create=false"), "CustomResourceDefinition") == []
    for definition in kinds(render(CHART, "none", "--set", "crds.keep=false"), "CustomResourceDefinition"):
        assert "annotations" not in definition["metadata"]


def test_an_operator_of_some_namespaces_has_no_right_outside_of_them() -> None:
    objects = render(CHART, "one-namespace")
    assert kinds(objects, "ClusterRole") == kinds(objects, "ClusterRoleBinding") == []
    roles, bindings = (in_watched_namespaces(kinds(objects, kind)) for kind in ("Role", "RoleBinding"))
    assert {it["metadata"]["namespace"] for it in roles} == {"orders", "billing"}
    assert all(role["rules"] == read(CHART / "files" / "rules.yaml") for role in roles)
    for binding in bindings:
        (subject,) = binding["subjects"]
        assert subject["namespace"] == "delaycluster-system"
        assert binding["roleRef"]["name"] in {it["metadata"]["name"] for it in roles}


def in_watched_namespaces(objects: list[Json]) -> list[Json]:
    return [it for it in objects if it["metadata"]["namespace"] != "delaycluster-system"]


@pytest.mark.parametrize("case", CASES)
def test_the_lease_of_the_election_is_its_releases_own_and_others_only_see_it(case: str) -> None:
    objects = named(render(CHART, case))
    (deployment,) = (it for (kind, *_), it in objects.items() if kind == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = Options.from_environment({it["name"]: it["value"] for it in container["env"]})
    namespace, _, lease = options.lease.partition("/")
    assert (namespace, lease) == ("delaycluster-system", deployment["metadata"]["name"])
    own, seen = (objects["Role", namespace, f"{lease}-{what}"]["rules"] for what in ("leader", "seen"))
    tokens = ("", "serviceaccounts/token", "create")  # of its own account, by which nodes know it
    assert rights(own) == {tokens, *(("coordination.k8s.io", "leases", verb) for verb in elections_verbs())}
    (account,) = (rule["resourceNames"] for rule in own if rule["resources"] == ["serviceaccounts/token"])
    assert account == [deployment["spec"]["template"]["spec"]["serviceAccountName"]] == [options.account]
    assert all(rule.get("resourceNames") == [lease] for rule in own if rule["verbs"] != ["create"])
    assert [(rule["resourceNames"], rule["verbs"]) for rule in seen] == [([lease], ["get"])]
    subjects = objects["RoleBinding", namespace, f"{lease}-leader"]["subjects"]
    assert [it["name"] for it in subjects] == [deployment["spec"]["template"]["spec"]["serviceAccountName"]]


def elections_verbs() -> set[str]:
    """What LeaderElection asks of the API server."""
    source = (ROOT / "operator" / "delayoperator" / "election" / "elector.py").read_text()
    verbs = {"get": "get", "watch": "watch", "merge": "patch", "post": "create"}
    return {verb for method, verb in verbs.items() if f"self._client.{method}(" in source}


def operators_roles(*more: str) -> list[Json]:
    """Its ClusterRoles; another one is for people."""
    bound = {it["roleRef"]["name"] for it in kinds(render(CHART, "none", *more), "ClusterRoleBinding")}
    return [it for it in kinds(render(CHART, "none", *more), "ClusterRole") if it["metadata"]["name"] in bound]


def test_an_operator_of_some_namespaces_may_read_what_lies_outside_of_all() -> None:
    (role,) = operators_roles("--set", "watchNamespaces={orders}")
    assert role["rules"] == read(CHART / "files" / "cluster-objects.yaml") + read(CHART / "files" / "machines.yaml")
    by_choice = "rbac.readClusterObjects=false,rbac.readNodes=true"
    (role,) = operators_roles("--set", "watchNamespaces={orders}", "--set", by_choice)
    assert role["rules"] == read(CHART / "files" / "machines.yaml")


def test_an_operator_of_the_whole_cluster_has_all_sets_of_rules() -> None:
    (role,) = operators_roles()
    rules, read_there, machines, namespaces = (
        read(CHART / "files" / f"{name}.yaml") for name in ("rules", "cluster-objects", "machines", "namespaces")
    )
    assert role["rules"] == rules + read_there + machines
    (role,) = operators_roles("--set", "rbac.readNodes=false")
    assert role["rules"] == rules + read_there
    (role,) = operators_roles("--set", "rbac.readNamespaces=true")
    assert role["rules"] == rules + read_there + machines + namespaces


@pytest.mark.parametrize("case", CASES)
def test_pods_keep_to_the_restricted_level(case: str) -> None:
    pods = [it["spec"]["template"]["spec"] for it in kinds(render(CHART, case), "Deployment")]
    pods += [it["spec"] for it in kinds(render(CHART, case), "Pod")]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_operators_metrics_have_a_port_by_tls_where_a_secret_is_given() -> None:
    objects = render(CHART, "everything")
    (pod,), (monitor,) = (kinds(objects, kind) for kind in ("Deployment", "PodMonitor"))
    spec = pod["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    options = Options.from_environment({it["name"]: it["value"] for it in container["env"]})
    (mount,) = (it for it in container["volumeMounts"] if it["mountPath"] == options.metrics_certificates)
    (volume,) = (it for it in spec["volumes"] if it["name"] == mount["name"])
    assert volume["secret"] == {"secretName": "operator-metrics"}
    assert options.metrics_clients == ("spiffe://example.org/prometheus", "dns:prometheus.monitoring.svc")
    (port,) = (it for it in container["ports"] if it["name"] == "metrics")
    assert options.metrics == f"0.0.0.0:{port['containerPort']}"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["scheme"]) == ("metrics", "https")
    assert endpoint["tlsConfig"] == {"serverName": "operator.delaycluster-system.svc"}
    (plain,) = kinds(render(CHART, "none", "--set", "podMonitor.create=true"), "PodMonitor")
    assert plain["spec"]["podMetricsEndpoints"][0]["port"] == "http"


def pod_security(*more: str) -> tuple[Json, Json | None]:
    """The operator's, and what it is told of pods whose DelayCluster names none."""
    (deployment,) = kinds(render(CHART, "none", *more), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    variables = {it["name"]: it["value"] for it in pod["containers"][0]["env"]}
    told = Options.from_environment(variables).pod_security
    return pod["securityContext"], None if told is None else dict(told)


def test_ids_are_fixed_but_where_openshift_chooses_them() -> None:
    own, told = pod_security()
    assert (own["runAsUser"], own["runAsGroup"], told) == (10_001, 10_001, None)
    own, told = pod_security("--api-versions", "security.openshift.io/v1")
    assert told is not None
    for context in (own, told):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & context.keys()
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_people_have_the_last_word_on_the_security_contexts_also_with_empty_ones() -> None:
    chosen = '{"runAsUser": 2000, "fsGroup": 2000}'
    given = pod_security("--set-json", f"podSecurityContext={chosen}", "--set-json", "nodePodSecurityContext={}")
    assert given == ({"runAsUser": 2_000, "fsGroup": 2_000}, {})


def test_there_are_two_operators_and_never_fewer_in_an_upgrade() -> None:
    (deployment,) = kinds(render(CHART, "none"), "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }


@pytest.mark.parametrize("case", CASES)
def test_operators_are_on_machines_and_in_zones_of_their_own_and_leave_dead_ones_soon(case: str) -> None:
    (deployment,) = kinds(render(CHART, case), "Deployment")
    labels, pod = deployment["spec"]["template"]["metadata"]["labels"], deployment["spec"]["template"]["spec"]
    spread = pod["topologySpreadConstraints"]
    assert [it["topologyKey"] for it in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for it in spread:
        assert it["labelSelector"]["matchLabels"].items() <= labels.items()
        assert it["whenUnsatisfiable"] == "ScheduleAnyway", "where there is one machine they both run on it"
        assert it["matchLabelKeys"] == ["pod-template-hash"], "or the pods that an upgrade replaces would count"
    stays = {it["key"]: it["tolerationSeconds"] for it in pod["tolerations"] if "tolerationSeconds" in it}
    assert stays == {"node.kubernetes.io/not-ready": 10, "node.kubernetes.io/unreachable": 10}
    (budget,) = kinds(render(CHART, case), "PodDisruptionBudget")
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert budget["spec"]["maxUnavailable"] == 1, "a drain takes one at a time"


@pytest.mark.parametrize("case", CASES)
def test_the_operator_reads_its_settings_as_the_chart_writes_them(case: str) -> None:
    (deployment,) = kinds(render(CHART, case), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = Options.from_environment({it["name"]: it["value"] for it in container["env"]})
    wanted = read(VALUES / f"{case}.yaml") or {}
    assert options.namespaces == tuple(wanted.get("watchNamespaces", ()))
    (port,) = (it for it in container["ports"] if it["name"] == "http")
    assert options.http == f"0.0.0.0:{port['containerPort']}"
    assert container["command"] == ["python", "-m", Options.__module__.removesuffix(".__main__")]
    assert options.election.lease_seconds == wanted.get("leaseSeconds", 5)
    levels = [it["value"] for it in container["env"] if it["name"] == VARIABLE]
    assert [LogLevel(level) for level in levels] == [wanted.get("logLevel", "info")]


@pytest.mark.parametrize(
    ("values", "nodes", "operator"),
    [
        ((), "delaycluster/delaycluster:0.1.0", "delaycluster/delaycluster-operator:0.1.0"),
        (  # as an earlier release's values have it: the nodes' image keeps its name, the operator's is found by it
            ("image.repository=mirror/delaycluster", "image.tag=1.2"),
            "mirror/delaycluster:1.2",
            "mirror/delaycluster-operator:1.2",
        ),
        (
            (f"image.digest=sha256:{'1' * 64}", "operatorImage.tag=1.2"),
            f"delaycluster/delaycluster@sha256:{'1' * 64}",
            "delaycluster/delaycluster-operator:1.2",
        ),
        (
            ("operatorImage.repository=mirror/op", f"operatorImage.digest=sha256:{'2' * 64}"),
            "delaycluster/delaycluster:0.1.0",
            f"mirror/op@sha256:{'2' * 64}",
        ),
    ],
)
def test_the_operators_image_follows_the_nodes_unless_it_is_named(
    values: tuple[str, ...], nodes: str, operator: str
) -> None:
    (deployment,) = kinds(render(CHART, "none", *(word for it in values for word in ("--set", it))), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = Options.from_environment({it["name"]: it["value"] for it in container["env"]})
    assert (options.image, container["image"]) == (nodes, operator)


def test_probes_ask_for_what_the_operator_serves() -> None:
    (deployment,) = kinds(render(CHART, "none"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    source = (ROOT / "operator" / "delayoperator" / "__main__.py").read_text()
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert paths == ["/healthz", "/healthz", "/readyz"]
    assert all(f'web.get("{path}"' in source for path in (*paths, "/metrics"))


def test_a_flow_schema_is_made_where_it_is_asked_for_alone() -> None:
    assert kinds(render(CHART, "none"), "FlowSchema") == []
    (found,) = kinds(render(CHART, "none", "--set", "flowSchema.create=true"), "FlowSchema")
    assert (found["apiVersion"], found["metadata"].get("namespace")) == ("flowcontrol.apiserver.k8s.io/v1", None)
    assert found["spec"]["priorityLevelConfiguration"] == {"name": "workload-high"}


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        ("flowSchema.create=true", ["system:serviceaccounts"]),
        (
            "flowSchema.create=true,watchNamespaces={a,b}",
            ["system:serviceaccounts:a", "system:serviceaccounts:b"],
        ),
    ],
)
def test_the_flow_schema_has_the_operator_and_all_that_nodes_do_in_a_failover(more: str, groups: list[str]) -> None:
    objects = render(CHART, "none", "--set", more)
    (found,) = kinds(objects, "FlowSchema")
    operator, nodes = found["spec"]["rules"]
    (deployment,) = kinds(objects, "Deployment")
    account = {"name": deployment["spec"]["template"]["spec"]["serviceAccountName"], "namespace": "delaycluster-system"}
    assert operator["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": account}]
    assert operator["nonResourceRules"] == [{"nonResourceURLs": ["*"], "verbs": ["*"]}], "it asks which resources exist"
    assert [it["group"]["name"] for it in nodes["subjects"]] == groups
    had = rights(nodes["resourceRules"])
    for wanted in rights(node_rules()):
        if wanted[0] == "delaycluster.io" and wanted[1].startswith("delayshards") and wanted[2] != "update":
            assert wanted in had
    assert {("coordination.k8s.io", "leases", "get"), ("coordination.k8s.io", "leases", "patch")} <= had


def test_alerts_link_to_the_readers_own_pages() -> None:
    (rule,) = kinds(render(CHART, "everything"), "PrometheusRule")
    links = [alert["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for alert in group["rules"]]
    base = "https://git.example.com/delaycluster/blob/v0.1.0/docs/"
    assert links
    assert all(link.startswith(base) and "//" not in link.removeprefix(base) for link in links)


def test_notes_of_a_release_in_some_namespaces_name_one_of_them() -> None:
    namespaces = ("--set", "watchNamespaces={a,b}")
    ended = helm("install", *RELEASE[:1], str(CHART), *RELEASE[1:3], "--dry-run=client", *namespaces)
    if "unknown flag" in ended.stderr or "Kubernetes cluster unreachable" in ended.stderr:
        pytest.skip("this helm writes no notes without a cluster")
    assert ended.returncode == 0, ended.stderr
    assert "kubectl apply --namespace a -f -" in ended.stdout


# ------------------------------------------------------------ an upgrade from the chart that is committed


def committed(tmp_path: Path) -> Path:
    """The chart of the last commit that has another one than the working tree; skips where there is none."""
    inside = CHART.relative_to(ROOT)
    git = ["git", "-C", str(ROOT)]
    log = subprocess.run([*git, "log", "--format=%H", "-n", "20", "--", str(inside)], capture_output=True, text=True)
    for commit in log.stdout.split():
        differs = subprocess.run([*git, "diff", "--quiet", commit, "--", str(inside)], check=False).returncode
        if differs:
            archive = subprocess.run([*git, "archive", commit, str(inside)], capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive, check=True)
            return tmp_path / inside
    pytest.skip("no commit has another chart than this one")


IMMUTABLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "Deployment": (("spec", "selector"),),
    "RoleBinding": (("roleRef",),),
    "ClusterRoleBinding": (("roleRef",),),
}
"""Fields that the API server takes no change of: an upgrade that changes one fails."""


def at(found: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        found = found[part]
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_release_of_the_chart_before_can_be_upgraded(case: str, tmp_path: Path) -> None:
    before = committed(tmp_path)
    ended = helm("template", *RELEASE[:1], str(before), *RELEASE[1:], "--values", str(VALUES / f"{case}.yaml"))
    if "values don't meet the specifications" in ended.stderr:
        pytest.skip("the chart before knows some of these values not yet")
    assert ended.returncode == 0, ended.stderr
    old, new = named(documents(ended.stdout)), named(render(CHART, case))
    for key in old.keys() & new.keys():
        for path in IMMUTABLE.get(key[0], ()):
            assert at(new[key], path) == at(old[key], path), key
    gone = [key for key in old.keys() - new.keys() if key[0] == "CustomResourceDefinition"]
    assert gone == [], "a definition that leaves the chart takes every object of its kind with it unless it is kept"
