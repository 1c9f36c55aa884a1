"""The Kubernetes tests. They run against any KUBECONFIG whose context is named for tests; `make e2e` brings a cluster.

.venv/bin/python -m pytest -c e2e/pytest.ini e2e/scenarios --image REPOSITORY:TAG [-m quick] [-k freeze]
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.harness import acts, openshift
from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.diagnose import describe
from e2e.harness.helm import Release, default_image, rebalance_image
from e2e.harness.kubectl import PART_OF, SCENARIOS, Failed, Kubectl, WrongContext, check_context, current_context
from e2e.harness.load import CALM_SECONDS, Load, Result
from e2e.harness.machines import Machines, machines_of

NAMESPACE = "delaycluster-e2e"
OPERATOR_NAMESPACE = "delaycluster-system"
QUEUES = 4
FIGURES: list[dict[str, Any]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("e2e")
    group.addoption("--context", help="of the kubeconfig; default: the current one")
    group.addoption(
        "--allow-context",
        action="append",
        default=[],
        metavar="NAME",
        help="run on it though its name does not say that it is for tests",
    )
    group.addoption("--image", metavar="REPOSITORY:TAG", help="of nodes; the operator's is REPOSITORY-operator:TAG")
    group.addoption("--rounds", type=int, default=1, help="of the scenarios that can be repeated")
    group.addoption("--figures", metavar="FILE", help="write what was measured to it, as JSON lines")
    group.addoption("--openshift", action="store_true", help="pods are treated as by OpenShift's restricted-v2")
    group.addoption("--keep", action="store_true", help="leave operator and clusters when done")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.collectonly:
        return
    try:
        name = config.option.context or current_context()
        check_context(name, config.option.allow_context)
    except (WrongContext, Failed, FileNotFoundError) as error:
        raise pytest.UsageError(str(error)) from error
    config.option.context = name


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("machines") and machines_of(item.config.option.context) is None:
        pytest.skip(f"nothing is known of the machines under context {item.config.option.context}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when in ("setup", "call"):  # before the fixtures take things away
        told = describe(Kubectl(item.config.option.context), NAMESPACE, OPERATOR_NAMESPACE)
        report.sections.append(("the cluster", told))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if FIGURES:
        terminalreporter.section("figures")
        for one in FIGURES:
            terminalreporter.write_line(json.dumps(one))
    if config.option.figures:
        Path(config.option.figures).write_text("".join(json.dumps(one) + "\n" for one in FIGURES))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Notes what was measured; shown at the end and written to --figures."""

    def note(**values: Any) -> None:
        FIGURES.append({"scenario": request.node.name, **values})

    return note


@pytest.fixture(scope="session")
def image(pytestconfig: pytest.Config) -> str:
    """On every node already, or pullable."""
    return str(pytestconfig.option.image or default_image())


@pytest.fixture(scope="session")
def kube(pytestconfig: pytest.Config) -> Kubectl:
    found = Kubectl(pytestconfig.option.context)
    if pytestconfig.option.openshift:
        openshift.become(found)
    found.namespace(NAMESPACE)
    return found


@pytest.fixture(scope="session")
def machines(pytestconfig: pytest.Config) -> Machines:
    found = machines_of(pytestconfig.option.context)
    assert found is not None  # tests that ask for it are marked `machines`
    return found


@pytest.fixture(scope="session")
def release(kube: Kubectl, image: str, pytestconfig: pytest.Config) -> Iterator[Release]:
    """The operator's, installed or not."""
    found = Release(kube, OPERATOR_NAMESPACE, None if image == default_image() else image)
    yield found
    if not pytestconfig.option.keep:
        selector = (f"--selector={PART_OF}={SCENARIOS}", f"--field-selector=metadata.name!={found.namespace}")
        kube("delete", "namespace", *selector, "--timeout=180s", seconds=190)  # while there is an operator
        found.uninstall()
        kube.delete("namespace", found.namespace)


@pytest.fixture
def operator(release: Release) -> Release:
    """The operator, installed and ready: one pod acts, the others stand by."""
    release.ensure()
    return release


@pytest.fixture(scope="session")
def _cluster(kube: Kubectl) -> ClusterUnderTest:
    return ClusterUnderTest(kube, "e2e", NAMESPACE)


@pytest.fixture
def cluster(operator: Release, _cluster: ClusterUnderTest) -> ClusterUnderTest:
    """Three nodes, two copies of each shard, whole: the same one for all scenarios, made anew after one broke it."""
    if _cluster.kube.exists("delaycluster", _cluster.name, _cluster.namespace):
        try:
            _cluster.wait_whole()
        except Failed:
            _cluster.delete()
            _cluster.kube("delete", "pvc", "--all", "--namespace", _cluster.namespace, "--timeout=120s", seconds=130)
    if not _cluster.kube.exists("delaycluster", _cluster.name, _cluster.namespace):
        _cluster.apply(nodes=3, replicas=2, storage={"size": "1Gi"})
        _cluster.wait_whole()
    return _cluster


@pytest.fixture
def namespace(kube: Kubectl, request: pytest.FixtureRequest) -> Iterator[str]:
    """The scenario's own namespace. No test waits for its end: the pods in it may take half a minute to stop."""
    words = request.node.name.removeprefix("test_").split("_")[:4]
    name = f"delaycluster-e2e-{'-'.join(words)}-{int(time.time()) % 100_000}"
    kube.namespace(name)
    yield name
    kube("delete", "namespace", name, "--wait=false")


@pytest.fixture
def acted(operator: Release, kube: Kubectl, namespace: str) -> ClusterUnderTest:
    """A cluster of the scenario's own, with acts.MESSAGES pending."""
    cluster = ClusterUnderTest(kube, "acts", namespace)
    cluster.apply(**acts.SPEC)
    cluster.wait_whole()
    acts.send(cluster)
    return cluster


@pytest.fixture
def topic(cluster: ClusterUnderTest, request: pytest.FixtureRequest) -> str:
    """A topic of this scenario's own, whole."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:24].strip("-")
    name = f"{name}-{int(time.time()) % 100_000}"  # a repeated scenario must not meet the last one's messages
    cluster.add_topic(name, QUEUES)
    cluster.wait_whole()
    return name


@pytest.fixture
def load(cluster: ClusterUnderTest, operator: Release, topic: str, image: str) -> Iterator[Load]:
    """Traffic on `topic`, from the operator's machine: those that a scenario harms are others."""
    settings = {"endpoints": [cluster.endpoint], "topic": topic, "queues": QUEUES, "rate": 400}
    started = Load.start(cluster.kube, cluster.namespace, "load", image, operator.node, **settings)
    yield started
    started.remove()


@pytest.fixture
def job_image(machines: Machines, kube: Kubectl) -> str:
    """The chart's own for rebalance jobs, on every machine."""
    image = rebalance_image()
    for machine in kube.workers():
        if image not in machines.ctr(machine, "images", "list", "-q"):
            pytest.skip(f"{image} is not on {machine}: `make e2e ARGS=--spark` builds it")
    return image


@pytest.fixture
def tidy(cluster: ClusterUnderTest) -> Iterator[None]:
    """Afterwards there is no rebalance, and no job that makes another."""
    yield
    cluster.edit(rebalance=None)
    for found in cluster.kube.list("delayrebalances", cluster.namespace):
        cluster.kube.delete("delayrebalance", found["metadata"]["name"], cluster.namespace)
    cluster.wait_whole()


@pytest.fixture
def kept(load: Load, figure: Callable[..., None]) -> Callable[..., Result]:
    """Ends the load after a calm moment and notes the figures, with the seconds given: every promise was kept."""

    def end(**values: Any) -> Result:
        time.sleep(CALM_SECONDS)
        result = load.finish()
        figure(
            **{name: round(value, 1) if isinstance(value, float) else value for name, value in values.items()},
            acknowledged=result.totals["acknowledged"],
            missing=sum(result.totals["missing"]),
            early=result.totals["early"],
            errors=result.errors,
            pause_of_sends_s=result.longest("acknowledged", range(QUEUES)),
            pause_of_deliveries_s=result.longest("delivered", range(QUEUES)),
        )
        result.assert_kept()
        return result

    return end
