"""kind: on Docker where it runs, else on podman with a node image in which nothing is left to be pulled."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from e2e.harness.machines import Kind, machines_of
from e2e.kind import engine as engines
from e2e.kind.contents import images_of_kind, names_by_archive

KUBEADM = [  # what `kubeadm config images list` says of Kubernetes 1.36.3
    *(f"registry.k8s.io/kube-{name}:v1.36.3" for name in ("apiserver", "controller-manager", "scheduler", "proxy")),
    "registry.k8s.io/coredns/coredns:v1.14.2",
    "registry.k8s.io/pause:3.10.2",
    "registry.k8s.io/etcd:3.6.8-0",
]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose `docker` is what the test makes of it."""
    monkeypatch.setattr(engines, "HOME", tmp_path / "kind")
    monkeypatch.setattr(engines, "MODULES", tmp_path / "modules")
    monkeypatch.delenv(engines.PROVIDER, raising=False)
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def docker(machine: Path, code: int) -> None:
    command = machine / "docker"
    command.write_text(f"#!/bin/sh\nexit {code}\n")
    command.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "asked", "found"),
    [(0, "", "docker"), (1, "", "podman"), (0, "podman", "podman"), (1, "docker", "docker")],
)
def test_podman_is_taken_where_docker_does_not_run(
    machine: Path, monkeypatch: pytest.MonkeyPatch, code: int, asked: str, found: str
) -> None:
    docker(machine, code)
    if asked:
        monkeypatch.setenv(engines.PROVIDER, asked)
    assert engines.engine().name == found


def test_with_docker_nothing_is_built_and_nothing_is_set(machine: Path) -> None:
    docker(machine, 0)
    on = engines.engine()
    assert not on.makes_nodes
    assert "CONTAINERS_CONF" not in on.environment
    assert on.build == ()


def test_podman_asks_for_no_limit_that_this_process_may_not_set(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = {resource.RLIMIT_NOFILE: 20_000, resource.RLIMIT_NPROC: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1, hard[kind]))
    docker(machine, 1)
    settings = Path(engines.engine().environment["CONTAINERS_CONF"]).read_text()
    assert 'default_ulimits = ["nofile=20000:20000", "nproc=16384:16384"]' in settings


def test_every_image_is_in_one_archive(tmp_path: Path) -> None:
    code = tmp_path / "pkg/build/nodeimage"
    code.mkdir(parents=True)
    (code / "const_cni.go").write_text('const kindnetdImage = "docker.io/kindest/kindnetd:v1"\n')
    (code / "const_storage.go").write_text(
        'const storageProvisionerImage = "docker.io/kindest/local-path-provisioner:v2"\n'
        'const storageHelperImage = "docker.io/kindest/local-path-helper:v3"\n'
    )
    config = tmp_path / "images/base/files/etc/containerd/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('  sandbox_image = "registry.k8s.io/pause:3.10"\n')
    wanted = [*KUBEADM, *images_of_kind(tmp_path)]
    placed = [name for names in names_by_archive(wanted).values() for name in names]
    assert sorted(placed) == sorted(wanted)
    assert len(placed) == len(KUBEADM) + 4


def test_an_image_that_nothing_makes_is_an_error_here_and_no_pull_on_the_node() -> None:
    with pytest.raises(SystemExit, match=r"nothing makes registry\.k8s\.io/novelty:v1"):
        names_by_archive([*KUBEADM, "registry.k8s.io/novelty:v1"])


def test_nodes_are_harmed_with_the_command_that_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engines.PROVIDER, "podman")
    assert machines_of("kind-delaycluster-e2e") == Kind("delaycluster-e2e", "podman")
    monkeypatch.delenv(engines.PROVIDER)
    assert machines_of("kind-delaycluster-e2e") == Kind("delaycluster-e2e", "docker")
