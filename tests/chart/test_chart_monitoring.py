"""The dashboard and the alerts speak of metrics that nodes and operator have, and link to pages that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from delaynode.metrics import FlowFigures, GroupLoad, NodeCollector, NodeMetrics, NodeState, TopicLoad
from delayoperator.cluster.conditions import ClusterObservation
from delayoperator.cluster.reasons import NEEDS_PAGE
from delayoperator.handlers.table import Clusters
from delayoperator.kube.api import Api
from delayoperator.kube.caches import ObjectCaches
from delayoperator.metrics import OperatorCollector

from tests.chart.places import CHART, ROOT, Json, anchors, read

# prometheus-operator's, of a PodMonitor's targets
TARGET_LABELS = {"namespace", "pod", "job", "container", "endpoint", "instance"}
BY_REASON = "{{ $labels.reason | toLower }}"


def exposed() -> dict[str, set[str]]:
    """Every series of a node that has done everything once, and of the operator, with its labels."""
    metrics = NodeMetrics()
    for counter in (metrics.enqueued, metrics.released, metrics.acknowledged, metrics.cancelled, metrics.dead):
        counter["orders"] = 1
    metrics.impossible["orders"] = 1
    metrics.denied["Produce", "NoRule", "false"] = metrics.unauthenticated["expired"] = 1
    metrics.firings["orders", "fired"] = 1
    metrics.count_quota_refused("orders", "", "pendingMessages", 1)
    metrics.http_requests["Send", "ok"] = 1
    for histogram in (metrics.lateness["orders"], metrics.enqueue_latency["orders"], metrics.http_latency["Send"]):
        histogram.add(np.array([3]))
    collector = NodeCollector(metrics)
    collector.loads = {"orders": TopicLoad(1, (1, 1, 1, 1), groups={"mail": GroupLoad()})}
    collector.flow = FlowFigures(refused=1, panics=0)
    collector.state = NodeState(certificates=(("server", True, 1e9),))
    families = [*collector.collect(), *operator_collector().collect()]
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def operator_collector() -> OperatorCollector:
    """The collector of an operator that has seen one cluster, once."""
    tended = SimpleNamespace(observation=ClusterObservation("orders", 3))
    worker = SimpleNamespace(
        namespace="shop", name="orders", rounds=1, last=tended, managed_by="another", failovers=1,
        last_look_s=lambda: 0.5,
    )  # fmt: skip
    clusters, api = SimpleNamespace(workers=lambda: [worker]), SimpleNamespace(sent={"get": 1})
    caches = SimpleNamespace(silent_s=lambda: [("pods", "", 0.5)])
    return OperatorCollector(cast(Clusters, clusters), cast(Api, api), cast(ObjectCaches, caches), lambda: True)


def dashboard() -> Json:
    return dict(json.loads((CHART / "files" / "dashboard.json").read_text()))


def alerts() -> list[Json]:
    (group,) = read(CHART / "files" / "alerts.yaml")
    return list(group["rules"])


def expressions() -> Iterator[tuple[str, str]]:
    """(what it is for, PromQL) of every panel, variable and alert."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]
    for alert in alerts():
        yield alert["alert"], alert["expr"]


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bdelay_[a-z_]+", expression))


@pytest.mark.parametrize(("title", "expression"), list(expressions()), ids=lambda text: text[:30])
def test_every_metric_that_is_asked_for_is_exposed(title: str, expression: str) -> None:
    assert metrics_in(expression), f"{title} asks for none of our metrics"
    assert metrics_in(expression) <= exposed().keys()


@pytest.mark.parametrize(("title", "expression"), list(expressions()), ids=lambda text: text[:30])
def test_every_label_that_is_asked_for_is_on_the_metric(title: str, expression: str) -> None:
    known = set.union(TARGET_LABELS, *(exposed()[name] for name in metrics_in(expression)))
    chosen = {name for part in re.findall(r"\{([^{}]*)\}", expression) for name in re.findall(r"(\w+)\s*[=!]", part)}
    grouped = {name.strip() for part in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for name in part.split(",")}
    assert chosen | grouped <= known, title


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    asked = set.union(*(metrics_in(expression) for _, expression in expressions()))
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed()}
    assert {name for name in families if not any(one.startswith(name) for one in asked)} == set()


def test_panels_do_not_lie_on_each_other_and_have_numbers_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        mine = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not mine & cells, panel["title"]
        assert max(x for x, _ in mine) < 24
        cells |= mine
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_no_panel_names_a_data_source_of_one_installation() -> None:
    def sources(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "uid" in value and "type" in value:
                yield value["uid"]
            for item in value.values():
                yield from sources(item)
        elif isinstance(value, list):
            for item in value:
                yield from sources(item)

    assert set(sources(dashboard()["panels"])) == {"${datasource}"}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_says_what_is_wrong_how_bad_it_is_and_where_the_page_is(alert: Json) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert {"summary", "description", "runbook_url"} <= alert["annotations"].keys()
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert (ROOT / page).is_file()
    wanted = {str(reason).lower() for reason in NEEDS_PAGE} if anchor == BY_REASON else {anchor} - {""}
    assert wanted <= anchors(ROOT / page)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_uses_only_labels_that_its_expression_leaves(alert: Json) -> None:
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())))
    aggregated = re.match(r"\s*(?:histogram_quantile\([\d.]+, )?(?:sum|max) by \(([^)]*)\)", alert["expr"])
    left = {name.strip() for name in aggregated[1].split(",")} if aggregated else TARGET_LABELS | {"topic", "group"}
    assert used <= left
