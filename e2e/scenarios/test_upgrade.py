"""`helm upgrade` from the chart of an earlier commit to this one, with a cluster under load."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import CHART, Release, operator_image
from e2e.harness.load import CALM_SECONDS, Load, Result

ROOT = CHART.parents[1]
FOLDER = str(CHART.relative_to(ROOT))


def git(*argv: str) -> bytes:
    """Only reads: not even the index is refreshed."""
    words = ("git", "--no-optional-locks", "-C", str(ROOT), *argv)
    return subprocess.run(words, capture_output=True, check=True).stdout


@pytest.fixture
def earlier_chart(tmp_path: Path) -> Path:
    """The chart before its last change; a changed working tree counts as a change."""
    try:
        changed = git("diff", "--name-only", "HEAD", "--", FOLDER).split()
        commits = git("log", "-2", "--format=%H", "--", FOLDER).split()
        commit = commits[0 if changed else 1].decode()
        archive = git("archive", commit, FOLDER)
    except (FileNotFoundError, subprocess.CalledProcessError, IndexError) as error:
        pytest.skip(f"no earlier chart is at hand here: {error!r}")
    subprocess.run(("tar", "-x", "-C", str(tmp_path)), input=archive, check=True)
    return tmp_path / FOLDER


@pytest.fixture
def upgraded_from(release: Release, earlier_chart: Path, image: str) -> Release:
    """The operator by the earlier chart; first of the fixtures, so that cluster and load are made under it."""
    if release.installed:
        release.uninstall()
    earlier = dataclasses.replace(release, chart=earlier_chart)
    if "operatorImage" not in yaml.safe_load((earlier_chart / "values.yaml").read_text()):
        # Nodes and operator ran one image then.
        earlier = dataclasses.replace(earlier, image=operator_image(image))
    earlier.install()
    return earlier


def test_the_chart_is_upgraded_under_load(
    upgraded_from: Release,
    cluster: ClusterUnderTest,
    release: Release,
    image: str,
    load: Load,
    kept: Callable[..., Result],
) -> None:
    """A cluster of the earlier chart goes on under this one, and no message is lost; the definitions are new."""
    time.sleep(CALM_SECONDS)
    began = time.monotonic()
    dataclasses.replace(release, image=image).install()  # named, or Helm takes the earlier release's
    whole = cluster.wait_whole()
    upgraded = time.monotonic() - began
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        wanted = yaml.safe_load(file.read_text())
        found = cluster.kube.get("crd", wanted["metadata"]["name"])
        schemas = [[version["schema"] for version in one["spec"]["versions"]] for one in (found, wanted)]
        assert schemas[0] == schemas[1], f"{file.name} is not what the cluster has"
    kept(upgraded_s=upgraded, whole_s=whole)
    release.test()
