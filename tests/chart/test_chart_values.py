"""The chart's values, its version, and the copies of the definitions in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.places import CHART, ROOT, VALUES, Json, project, read, script, values_schema
from tests.chart.schemas import faults


def merged(below: Json, above: Json) -> Json:
    """Merge two files' values as Helm lays one over the other."""
    out = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(name), dict)
        out[name] = merged(below[name], value) if both else value
    return out


@pytest.mark.parametrize("path", [CHART / "values.yaml", *sorted(VALUES.glob("*.yaml"))], ids=lambda path: path.stem)
def test_good_values_pass_the_schema(path: Path) -> None:
    assert list(faults(merged(read(CHART / "values.yaml"), read(path) or {}), values_schema())) == []


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"replica": 3}, ".replica: no such field"),
        ({"replicas": 0}, ".replicas: 0"),
        ({"leaseSeconds": 1}, ".leaseSeconds: 1"),
        ({"logLevel": "trace"}, ".logLevel: 'trace' is none of"),
        ({"image": {"repositry": "x"}}, ".image.repositry: no such field"),
        ({"image": {"repository": ""}}, ".image.repository: length 0"),
        ({"image": {"repository": "Registry/Upper"}}, ".image.repository: 'Registry/Upper' does not match"),
        ({"image": {"digest": "sha256:12"}}, ".image.digest: 'sha256:12' does not match"),
        ({"image": {"pullPolicy": "Sometimes"}}, ".image.pullPolicy: 'Sometimes' is none of"),
        ({"watchNamespaces": "default"}, ".watchNamespaces: not of type array"),
        ({"watchNamespaces": ["team_a"]}, ".watchNamespaces[0]: 'team_a' does not match"),
        ({"crds": {"install": True}}, ".crds.install: no such field"),
        ({"crds": {"keep": "yes"}}, ".crds.keep: not of type boolean"),
        ({"rbac": {"escalate": True}}, ".rbac.escalate: no such field"),
        ({"rbac": {"shardAdmin": "yes"}}, ".rbac.shardAdmin: not of type boolean"),
        ({"shardPolicy": {"create": 1}}, ".shardPolicy.create: not of type boolean"),
        ({"metrics": {"secret": "x"}}, ".metrics.secret: no such field"),
        ({"podMonitor": {"endpoint": []}}, ".podMonitor.endpoint: not of type object"),
        ({"env": [{"value": "1"}]}, ".env[0]: name is missing"),
        ({"podLabels": {"team": 1}}, ".podLabels.team: not of type string"),
        ({"podMonitor": {"interval": "30"}}, ".podMonitor.interval: '30' does not match"),
        ({"podSecurityContext": "restricted"}, ".podSecurityContext: not of type"),
        ({"nodePodSecurityContext": []}, ".nodePodSecurityContext: not of type"),
        ({"flowSchema": {"matchingPrecedence": 0}}, ".flowSchema.matchingPrecedence: 0"),
        ({"dashboard": True}, ".dashboard: not of type object"),
        ({"fullnameOverride": "Delay"}, ".fullnameOverride: 'Delay' does not match"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_values_that_cannot_be_meant_are_refused_by_the_schema(values: Json, where: str) -> None:
    found = list(faults(merged(read(CHART / "values.yaml"), values), values_schema()))
    assert [fault for fault in found if fault.startswith(where)], found


def paths(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from paths(item, f"{at}.{name}")
    else:
        yield at


def test_every_value_is_used_by_a_template() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    whole = (
        ".image",
        ".operatorImage",
        ".rebalanceImage",
        ".resources",
        ".dashboard.labels",
    )  # handed on with all that is in them
    for path in paths(read(CHART / "values.yaml")):
        used = next((it for it in whole if path.startswith(f"{it}.")), path)
        assert f".Values{used}" in templates, path


def test_chart_image_and_package_have_one_version() -> None:
    version = project()["project"]["version"]
    chart = read(CHART / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == version
    assert (ROOT / "Dockerfile").read_text().count(f"ARG VERSION={version}\n") == 3
    for name in ("Cargo.toml", "pyproject.toml"):
        assert f'\nversion = "{version}"\n' in (ROOT / "edge" / name).read_text()


def test_the_definitions_in_the_chart_are_those_of_the_project() -> None:
    assert [path.name for path in script("chart").stale()] == []


def test_a_definition_that_was_changed_is_noticed_in_the_chart(tmp_path: Path) -> None:
    chart = script("chart")
    vars(chart)["COPIES"] = tmp_path
    for path, text in chart.wanted():
        path.write_text(text)
    assert chart.stale() == []
    changed = min(tmp_path.glob("*.yaml"))
    changed.write_text(changed.read_text().replace("v1alpha1", "v1beta1"))
    (tmp_path / "forgotten.yaml").write_text("")
    assert chart.stale() == [changed, tmp_path / "forgotten.yaml"]


def test_templates_leave_braces_in_a_description_as_they_are() -> None:
    definition = "# Generated\nkind: X\nmetadata:\n  name: xs.example\nspec:\n  description: a {{b}}\n"
    text = script("chart").template(definition)
    assert '  description: a {{ "{{" }}b{{ "}}" }}\n' in text
    assert "# Generated\n" not in text
