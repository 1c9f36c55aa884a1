"""`kubectl delay`, as kubectl itself finds and runs it: a program on the PATH, against a fake API server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.support.kubeworld import KubeWorld, kube_world

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on PATH")


class Shell:
    """A person's: kubectl and the plugin are on its PATH, a kubeconfig is named."""

    def __init__(self, kubeconfig: Path) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), str(Path(str(KUBECTL)).parent)])
        home = str(kubeconfig.parent)
        self.environment = {"PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": home, "COLUMNS": "100"}

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", *words], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def delay(self, *words: str) -> str:
        done = self.kubectl("delay", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KubeWorld]:
    with kube_world(tmp_path / "kubeconfig") as found:
        yield found


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "kubeconfig")


def test_kubectl_finds_the_plugin_and_passes_on_its_help(shell: Shell) -> None:
    found = shell.kubectl("plugin", "list")
    assert str(Path(sys.executable).with_name("kubectl-delay")) in found.stdout.split(), found.stderr
    said = shell.delay("--help")
    assert said.startswith("Usage: kubectl delay [OPTIONS] COMMAND")
    assert "-n, --namespace NS" in said
    assert "Usage: kubectl delay top [OPTIONS] [TOPIC]" in shell.delay("top", "--help")
    assert "Try 'kubectl delay --help'" in shell.kubectl("delay", "topp").stderr


@pytest.mark.parametrize(
    "place", [(), ("-n", "shop"), ("--context", "fake"), ("--namespace=shop", "--context=fake", "-c", "orders")],
    ids=" ".join,
)  # fmt: skip
def test_kubectls_words_lead_to_the_cluster(world: KubeWorld, shell: Shell, place: tuple[str, ...]) -> None:
    shell.delay(*place, "produce", "t", "--delay", "1h")
    assert len(world.nodes[0].cluster.shards[0].bodies()) == 1


def test_exit_status_and_words_of_an_error_come_through_kubectl(world: KubeWorld, shell: Shell) -> None:
    unknown = shell.kubectl("delay", "--context", "prod", "pending", "t")
    assert (unknown.returncode, "no context 'prod'; it has fake" in unknown.stderr) == (2, True)
    world.api.fault(path="/delayclusters", code=403, times=None)
    refused = shell.kubectl("delay", "pending", "t")
    assert (refused.returncode, "may not list delayclusters" in refused.stderr) == (3, True)


def test_options_before_the_plugins_name_are_refused_by_kubectl_as_the_page_says(shell: Shell) -> None:
    wrong = shell.kubectl("-n", "shop", "delay", "shards")
    assert wrong.returncode == 1
    assert "flags cannot be placed before plugin name" in wrong.stderr
