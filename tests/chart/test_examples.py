"""docs/examples: what people copy is accepted as it stands, and does what its text says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from delaylocal import LocalCluster
from delayoperator.crds.convert import desired_of
from delayoperator.crds.schedule_convert import wanted
from delayregistry.model import ClusterSpec, TopicSpec
from delaysink.document import read_file

from tests.chart.places import CHART, EXAMPLES, Json, custom_schema, documents, project, read
from tests.chart.schemas import faults
from tests.crds.apiserver import refusals

FILES = sorted(EXAMPLES.rglob("*.yaml"))
CLUSTERS = [
    (path, document) for path in FILES for document in documents(path.read_text()) if document["kind"] == "DelayCluster"
]
PODS = [
    (path, document)
    for path in FILES
    for document in documents(path.read_text())
    if document["kind"] in ("Deployment", "Job", "Pod")
]


def granted(cluster: Json) -> ClusterSpec:
    """The spec as the operator reads it. Raises where the operator would refuse."""
    return desired_of(cluster).cluster


@pytest.mark.parametrize(("path", "cluster"), CLUSTERS, ids=lambda part: part.name if isinstance(part, Path) else "")
def test_a_cluster_is_accepted_by_the_api_server_and_by_the_operator(path: Path, cluster: Json) -> None:
    assert list(faults(cluster, custom_schema("DelayCluster"), closed=True)) == []
    _, by_schema, by_rules = refusals(custom_schema("DelayCluster"), cluster)
    assert by_schema == by_rules == []
    assert granted(cluster).name == cluster["metadata"]["name"]


SCHEDULES = [
    document for path in FILES for document in documents(path.read_text()) if document["kind"] == "DelaySchedule"
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda it: it["metadata"]["name"])
def test_a_schedule_is_accepted_by_the_api_server_and_by_the_operator(schedule: Json) -> None:
    assert list(faults(schedule, custom_schema("DelaySchedule"), closed=True)) == []
    _, by_schema, by_rules = refusals(custom_schema("DelaySchedule"), schedule)
    assert by_schema == by_rules == []
    schedule["metadata"]["namespace"] = "default"
    assert wanted(schedule).topic == "reports"


def test_the_sink_is_accepted_by_the_api_server_and_by_its_process() -> None:
    path = EXAMPLES / "webhook/sink.yaml"
    (sink,) = documents(path.read_text())
    assert list(faults(sink, custom_schema("DelaySink"), closed=True)) == []
    assert refusals(custom_schema("DelaySink"), sink)[1:] == ([], [])
    assert read_file(path).topic == "order-timeouts"
    assert len([line for line in path.read_text().splitlines() if not line.startswith("#")]) <= 10


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"topics": [{"name": "Orders"}]}, ".spec.topics[0].name: 'Orders' does not match"),
        ({"topics": [{"queues": 3}]}, ".spec.topics[0]: name is missing"),
        ({"topics": [{"name": "a", "retention": "soon"}]}, ".spec.topics[0].retention: 'soon' does not match"),
        ({"replica": 2}, ".spec.replica: no such field"),
        ({"nodes": "3"}, ".spec.nodes: not of type integer"),
        ({"nodes": 0}, ".spec.nodes: 0 is out of range"),
        ({"durability": "fsync"}, ".spec.durability: 'fsync' is none of"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_the_check_of_examples_refuses_what_the_schema_refuses(wrong: Json, where: str) -> None:
    cluster = {"apiVersion": "delaycluster.io/v1alpha1", "kind": "DelayCluster", "metadata": {}, "spec": wrong}
    found = list(faults(cluster, custom_schema("DelayCluster"), closed=True))
    assert [fault for fault in found if fault.startswith(where)], found


def test_the_minimal_cluster_is_the_one_of_the_charts_notes() -> None:
    (cluster,) = documents((EXAMPLES / "minimal.yaml").read_text())
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    (inline,) = re.findall(r"<<END\n(.*?)\n  END$", notes, re.MULTILINE | re.DOTALL)
    assert documents(re.sub(r"^  ", "", inline, flags=re.MULTILINE)) == [cluster]


def test_the_production_cluster_goes_on_with_two_nodes_away() -> None:
    """The example's first comment promises this."""
    (cluster,) = documents((EXAMPLES / "production.yaml").read_text())
    spec = granted(cluster)
    assert spec.nodes - 2 >= spec.replicas >= spec.min_in_sync > 1
    assert spec.replicas - spec.min_in_sync >= 1  # a copy lost does not stop what has three
    (term,) = cluster["spec"]["podTemplate"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["labelSelector"]["matchLabels"] == {"delaycluster.io/cluster": cluster["metadata"]["name"]}


def test_owners_of_one_cluster_share_no_topic_and_no_field() -> None:
    owners = {path.stem: document for path, document in CLUSTERS if path.parent.name == "two-owners"}
    assert set(owners) == {"cluster", "team-orders", "team-billing"}
    assert {document["metadata"]["name"] for document in owners.values()} == {"shared"}
    assert "topics" not in owners["cluster"]["spec"]
    teams = [document["spec"] for name, document in owners.items() if name != "cluster"]
    assert all(set(spec) == {"topics"} for spec in teams)
    topics = [topic for spec in teams for topic in spec["topics"]]
    assert sorted(topic["name"] for topic in topics) == ["dunning", "invoices", "order-timeouts"]
    together = {**owners["cluster"], "spec": {**owners["cluster"]["spec"], "topics": topics}}
    assert refusals(custom_schema("DelayCluster"), together)[1:] == ([], [])
    assert len(granted(together).topics) == 3
    page = (EXAMPLES / "two-owners" / "README.md").read_text()
    assert all(f"-f {name}.yaml" in page for name in owners)


@pytest.mark.parametrize(("path", "pods"), PODS, ids=lambda part: part.name if isinstance(part, Path) else "")
def test_pods_run_the_projects_image_under_the_restricted_level(path: Path, pods: Json) -> None:
    spec = pods["spec"]["template"]["spec"]
    image = f"{read(CHART / 'values.yaml')['image']['repository']}:{project()['project']['version']}"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["image"] == image
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_kustomization_puts_the_app_where_its_pods_look_for_it() -> None:
    folder = EXAMPLES / "order-timeout"
    made = read(folder / "kustomization.yaml")
    assert set(made["resources"]) == {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    (generated,) = made["configMapGenerator"]
    for _, pods in PODS:
        (volume,) = pods["spec"]["template"]["spec"]["volumes"]
        assert volume["configMap"]["name"] == generated["name"]
        (container,) = pods["spec"]["template"]["spec"]["containers"]
        (mount,) = container["volumeMounts"]
        assert container["command"][1] == f"{mount['mountPath']}/{generated['files'][0]}"


def run_app(part: str, endpoint: str, **settings: str) -> subprocess.Popen[str]:
    env = {**os.environ, "DELAY_ENDPOINT": endpoint, **settings}
    command = [sys.executable, str(EXAMPLES / "order-timeout" / "app.py"), part]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def events(printed: str, into: dict[str, list[str]]) -> None:
    for line in printed.splitlines():
        found: dict[str, Any] = json.loads(line)
        into[found["event"]].append(found["order"])


def cancelled_in(printed: list[str]) -> list[str]:
    found: dict[str, list[str]] = defaultdict(list)
    events("".join(printed), found)
    return found["cancelled"]


def test_every_order_is_either_paid_or_cancelled(tmp_path: Path) -> None:
    (cluster,) = (document for path, document in CLUSTERS if path.parent.name == "order-timeout")
    (topic,) = granted(cluster).topics
    said: dict[str, list[str]] = defaultdict(list)
    with LocalCluster(tmp_path / "cluster", nodes=1, topics=[TopicSpec(topic.name, 2)], port=0) as local:
        local.wait_ready()
        endpoint = local.endpoints[0]
        timeouts, heard = run_app("timeouts", endpoint), list[str]()
        reader = threading.Thread(target=lambda: heard.extend(timeouts.stdout or ()), daemon=True)
        reader.start()
        quick = {"PAYMENT_TIMEOUT": "2s", "ORDER_EVERY_S": "0.01", "PAID_SHARE": "0.5", "ORDERS": "60"}
        shop = run_app("shop", endpoint, **quick)
        printed, errors = shop.communicate(timeout=60)
        assert shop.returncode == 0, errors
        events(printed, said)
        time.sleep(3.5)  # the last order's time to pay, and some more
        deadline_s = time.monotonic() + 30
        while len({*said["paid"], *cancelled_in(heard)}) < len(said["placed"]) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        timeouts.terminate()
        assert timeouts.wait(30) == 0, timeouts.stderr and timeouts.stderr.read()
        reader.join()
        events("".join(heard), said)
    placed, paid, cancelled, refunded = (set(said[name]) for name in ("placed", "paid", "cancelled", "refunded"))
    assert len(placed) == 60
    assert paid | cancelled == placed
    assert not paid & cancelled
    assert refunded <= cancelled
    assert paid
    assert cancelled - refunded


PAGES = [CHART / "README.md", *sorted(EXAMPLES.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_example_is_on_the_list() -> None:
    listed = set(re.findall(r"\]\(([\w-]+)", (EXAMPLES / "README.md").read_text()))
    assert listed == {path.stem for path in EXAMPLES.iterdir()} - {"README"}
