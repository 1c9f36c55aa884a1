"""Where the things are that these tests are about, and how they are read."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "delaycluster-operator"
EXAMPLES = ROOT / "docs" / "examples"
VALUES = Path(__file__).resolve().parent / "values"
SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"


def documents(text: str) -> list[Json]:
    return [document for document in yaml.safe_load_all(text) if document]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def values_schema() -> Json:
    return dict(json.loads((CHART / "values.schema.json").read_text()))


def custom_schema(kind: str) -> Json:
    """The OpenAPI schema of DelayCluster and so on, from crds/."""
    (found,) = (crd for path in (ROOT / "crds").glob("*.yaml") if (crd := read(path))["spec"]["names"]["kind"] == kind)
    (version,) = found["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"])


def project() -> Json:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """The headings of a Markdown page as GitHub's links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
