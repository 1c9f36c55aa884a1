"""The dashboard and the alerts speak of metrics that nodes and operator have, and link to pages that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from delayoperator.cluster.reasons import NEEDS_PAGE

from tests.chart.monitoring import TARGET_LABELS, alerts, dashboard, exposed
from tests.chart.places import ROOT, Json, anchors

BY_REASON = "{{ $labels.reason | toLower }}"


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
