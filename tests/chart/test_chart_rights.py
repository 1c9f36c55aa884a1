"""The operator's rights: exactly what its code asks of the API server, and what it hands on to the nodes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from delayoperator.handlers import routes
from delayoperator.kube import caches, kinds, sinks
from delayoperator.kube.kinds import ObjectKind
from delayoperator.resources import ClusterView, build
from delayoperator.resources.view import RebalanceJobSpec
from delayregistry.model import ClusterSpec, TopicSpec

from tests.chart.places import CHART, ROOT, Json, read

Right = tuple[str, str, str]
"""(API group, resource or resource/subresource, verb)"""

OPERATOR = ROOT / "operator" / "delayoperator"

# KubeRegistry's requests, as it makes them for the operator.
REGISTRY = {
    ("delaycluster.io", "delayshards", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")
} | {
    ("delaycluster.io", "delayshards/status", "patch"),
    *(("", "configmaps", verb) for verb in ("get", "list", "watch", "create", "patch")),
    *(("coordination.k8s.io", "leases", verb) for verb in ("get", "list", "watch", "create")),
}  # fmt: skip

# No call uses it by itself: blockOwnerDeletion needs it on API servers that guard that field.
WITH_OWNERS = {("delaycluster.io", "delayclusters/finalizers", "update")}

# Asked by the admission policy, which the chart of any release may have made.
BY_POLICY = {("delaycluster.io", "delayshards", "administer")}


def rights(rules: Iterable[Json]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def granted() -> set[Right]:
    return rights([*read(CHART / "files" / "rules.yaml"), *outside_of_namespaces()])


def outside_of_namespaces() -> list[Json]:
    names = ("cluster-objects", "machines", "namespaces")
    return [rule for name in names for rule in read(CHART / "files" / f"{name}.yaml")]


def of(kind: ObjectKind, *verbs: str, part: str = "") -> set[Right]:
    return {(kind.group, kind.plural + part, verb) for verb in verbs}


def calls() -> Iterator[tuple[str, ObjectKind, str]]:
    """(method, kind, subresource) of every call of delayoperator.kube.api.Api that names its kind where it is made."""
    for path in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            kind = getattr(kinds, node.args[0].id, None) if isinstance(node.args[0], ast.Name) else None
            if isinstance(kind, ObjectKind):
                given = [*node.args, *(word.value for word in node.keywords)]
                status = any(isinstance(arg, ast.Constant) and arg.value == "status" for arg in given)
                yield node.func.attr, kind, "/status" if status else ""


VERBS = {
    "get": ("get",),
    "list": ("list",),
    "apply": ("create", "patch"),  # server-side apply makes what is not there
    "merge": ("patch",),
    "create": ("create",),
    "delete": ("delete",),
}


def asked_for() -> set[Right]:
    found = set(REGISTRY)
    for kind in kinds.OWNED:
        found |= of(kind, "get", "list", "create", "patch")
    for kind in kinds.PRUNED:
        found |= of(kind, "delete")
    for kind in (kinds.DELAY_CLUSTER, *caches.CACHED):
        found |= of(kind, "list", "watch")
    for kind in sinks.MADE:
        found |= of(kind, "get", "create", "patch")
    for kind in (*caches.REFERRING, kinds.DELAY_SINK):
        found |= of(kind, "patch", part="/status")
    if not routes.settings().scanning.disabled:  # kopf looks out for definitions that come later
        found |= {("apiextensions.k8s.io", "customresourcedefinitions", verb) for verb in ("list", "watch")}
    for method, kind, part in calls():
        if method == "evict":
            found |= of(kind, "create", part="/eviction")
        else:
            found |= of(kind, *VERBS.get(method, ()), part=part)
    return found


def node_rules(master: str = "local[*]") -> list[Json]:
    """The RBAC rules of the nodes and of the rebalance job."""
    spec = ClusterSpec(name="c", nodes=3, replicas=2, topics=(TopicSpec("t", 2),))
    objects = build(ClusterView("ns", "uid", spec, "image", rebalance=RebalanceJobSpec("image", master=master)))
    return [rule for found in objects if found["kind"] in ("Role", "ClusterRole") for rule in found["rules"]]


def test_the_scan_of_the_code_sees_its_calls() -> None:
    found = {(method, kind.name) for method, kind, _ in calls()}
    assert {("get", "DelayCluster"), ("evict", "Pod"), ("merge", "PersistentVolumeClaim"), ("create", "Event")} <= found


def test_the_operator_has_every_right_that_its_code_asks_for() -> None:
    by_choice = rights(read(CHART / "files" / "secrets.yaml"))  # for a CA of a cluster's own, without cert-manager
    assert asked_for() - granted() == by_choice
    assert {resource for _, resource, _ in by_choice} == {"secrets"}


def test_the_operator_holds_what_it_grants_to_the_nodes() -> None:
    """Or the API server would not let it make their Role."""
    assert rights(node_rules()) - granted() == set()


def test_the_operator_has_no_right_that_nothing_uses() -> None:
    assert granted() - asked_for() - rights(node_rules()) - WITH_OWNERS - BY_POLICY == set()


def test_no_rule_has_wildcards_secrets_or_the_power_to_grant_more() -> None:
    for _, resource, verb in granted():
        assert "*" not in (resource, verb)
        assert resource not in ("secrets", "pods/exec", "pods/portforward", "serviceaccounts/token")
        assert verb not in ("escalate", "bind", "impersonate", "deletecollection")


def test_the_rights_for_executors_are_those_that_their_job_gets_and_nothing_else() -> None:
    extra = rights(read(CHART / "files" / "spark-executors.yaml"))
    given = rights(node_rules("k8s://https://kubernetes.default"))
    assert given - granted() - extra == set()
    assert extra - given == set()


def test_a_job_with_executors_has_rights_on_pods_and_on_no_other_object_that_is_not_its_own() -> None:
    """Claims are the nodes' data, ConfigMaps their settings."""
    given = {it for it in rights(node_rules("k8s://https://kubernetes.default")) if it not in rights(node_rules())}
    assert {resource for _, resource, _ in given} == {"pods", "delayrebalances"}
    assert ("", "pods", "patch") not in given


def test_what_lies_outside_of_namespaces_is_only_read() -> None:
    assert {verb for _, _, verb in rights(outside_of_namespaces())} <= {"get", "list", "watch"}


def test_the_page_on_security_names_what_is_read_outside_of_namespaces_and_nothing_else() -> None:
    page = " ".join((ROOT / "docs" / "security.md").read_text().split())
    said = re.search(r"Outside of namespaces it only reads, and only four kinds: ([A-Za-z, ]+)\.", page)
    assert said is not None
    read_there = {resource for _, resource, _ in rights(outside_of_namespaces())}
    assert {kind.lower() for kind in said[1].split(", ")} == read_there


def test_volumes_are_never_the_operators_to_delete() -> None:
    assert ("", "persistentvolumeclaims", "delete") not in granted()


def test_rules_are_one_file_each_that_the_template_takes_as_it_is() -> None:
    templates = [(CHART / "templates" / name).read_text() for name in ("rbac.yaml", "shardpolicy.yaml")]
    taken = {path.name for path in (CHART / "files").glob("*.yaml") if f'"files/{path.name}"' in "".join(templates)}
    assert taken == {
        "rules.yaml", "spark-executors.yaml", "cluster-objects.yaml", "machines.yaml", "namespaces.yaml",
        "shard-admin.yaml", "secrets.yaml",
    }  # fmt: skip


def test_the_security_page_names_each_kind_that_the_operator_has_a_right_on() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    said = page[page.index("**The operator** may read") : page.index("**No Secrets**")].lower()
    known_as = {"persistentvolumeclaims": "claims"}
    kinds_ = {resource.partition("/")[0] for _, resource, _ in rights(read(CHART / "files" / "rules.yaml"))}
    assert not sorted(kind for kind in kinds_ if known_as.get(kind, kind) not in said)
