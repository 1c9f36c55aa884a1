"""docs/metrics.md has every metric that the code exports, and every alert, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from prometheus_client.core import Metric

from scripts.names import ROOT
from tests.chart.monitoring import alerts, node_families, operator_collector, sink_families

PAGE = (ROOT / "docs/metrics.md").read_text()
LIBRARY = ("_bucket", "_sum", "_count", "_created")  # what prometheus_client makes of one metric


class Row(NamedTuple):
    kind: str
    labels: frozenset[str]


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def cells(heading: str) -> list[list[str]]:
    """The rows of a section's first table, without its head."""
    lines = re.findall(r"^\| (.*?) *\|$", section(heading), re.MULTILINE)
    return [[cell.strip() for cell in line.split(" |")] for line in lines[1:]]


def ticked(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def name_of(family: Metric) -> str:
    """As a query names it."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def exported(families: Iterable[Metric]) -> dict[str, Row]:
    found = {}
    for family in families:
        kind = "gauge" if family.type == "stateset" else family.type  # as in the text format
        labels = frozenset(label for sample in family.samples for label in sample.labels)
        found[name_of(family)] = Row(kind, labels - {"le"} if kind == "histogram" else labels)
    return found


def written(heading: str) -> dict[str, Row]:
    rows = [(ticked(name), kind, frozenset(ticked(labels))) for name, kind, labels, *_ in cells(heading)]
    return {name: Row(kind, labels) for (name,), kind, labels in rows}


@pytest.mark.parametrize(
    ("heading", "families"),
    [
        ("Nodes", node_families()),
        ("The operator", list(operator_collector().collect())),
        ("Sinks", sink_families()),
    ],
    ids=["nodes", "operator", "sinks"],
)
def test_the_page_has_every_metric_with_its_type_and_labels_and_no_other(heading: str, families: list[Metric]) -> None:
    assert written(heading) == exported(families)


def test_every_metric_that_the_page_names_is_exported() -> None:
    families = [*node_families(), *operator_collector().collect(), *sink_families()]
    known = {name_of(family) for family in families}
    known |= {name + ending for name in known for ending in LIBRARY}
    assert {name for name in re.findall(r"\bdelay_[a-z_]*[a-z](?!\w)", PAGE) if name not in known} == set()


def test_the_tables_name_the_alerts_that_ask_for_each_metric() -> None:
    said = {
        ticked(row[0])[0]: set(ticked(row[5] if len(row) > 5 else ""))
        for heading in ("Nodes", "The operator", "Sinks")
        for row in cells(heading)
    }
    asked = {
        name: {alert["alert"] for alert in alerts() if re.search(rf"\b{name}(?:{'|'.join(LIBRARY)})?\b", alert["expr"])}
        for name in said
    }
    assert said == asked


def test_every_alert_is_on_the_page_with_its_severity_and_the_section_that_it_links_to() -> None:
    rows = {}
    for name, severity, *_, what_to_do in cells("Alerts"):
        link = re.search(r"\]\(([^)]+)\)", what_to_do)
        assert link is not None, name
        page = link[1] if not link[1].startswith("#") else f"metrics.md{link[1]}"
        rows[ticked(name)[0]] = severity, f"docs/{page}"
    links = {alert["alert"]: alert["annotations"]["runbook_url"] for alert in alerts()}
    assert rows == {
        alert["alert"]: (
            alert["labels"]["severity"],
            links[alert["alert"]].replace("{{ $labels.reason | toLower }}", "the-cluster"),
        )
        for alert in alerts()
    }
