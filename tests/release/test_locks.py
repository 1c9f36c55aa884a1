"""locks/: of what pyproject.toml asks for, one version a package, hashes, and no word about where it was fetched."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from tests.chart.places import ROOT, project, script

lock = script("lock")
LOCKS = sorted(lock.wanted())


def test_the_locks_are_of_what_pyproject_asks_for() -> None:
    assert [path.name for path in lock.stale()] == []


@pytest.mark.parametrize("change", ["another bound", "another package", "one less", "a file that is no lock"])
def test_a_lock_that_does_not_fit_pyproject_is_named(change: str, tmp_path, monkeypatch) -> None:
    needed = lock.wanted()
    monkeypatch.setattr(lock, "FOLDER", tmp_path)
    for name, wanted in needed.items():
        lock.path_of(name).write_text(lock.head(wanted))
    assert lock.stale() == []
    match change:
        case "another bound":
            lock.path_of("node").write_text(lock.head([one.replace("numpy>=", "numpy>") for one in needed["node"]]))
        case "another package":
            lock.path_of("node").write_text(lock.head([*needed["node"], "zstandard>=0.23"]))
        case "one less":
            lock.path_of("node").write_text(lock.head(needed["node"][:-1]))
        case _:
            lock.path_of("node").rename(tmp_path / "forgotten.txt")
            assert lock.stale() == [lock.path_of("node"), tmp_path / "forgotten.txt"]
            return
    assert lock.stale() == [lock.path_of("node")]


def test_an_extra_brings_those_that_it_names() -> None:
    spark = lock.requirements(project(), ("spark",))
    assert {"pyspark>=4.1", "kopf>=1.45", "kubernetes>=31", "numpy>=1.26"} <= spark
    assert not any(one.startswith("delaycluster") for one in spark)


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_one_version_and_hashes(name: str) -> None:
    found = list(lock.pins(lock.path_of(name)))
    assert found
    for package, version, hashes in found:
        assert re.match(r"\d", version), package
        assert hashes, package


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_does_not_say_where_packages_come_from(name: str) -> None:
    text = lock.path_of(name).read_text()
    assert not re.search(r"://|^-|@", text, re.MULTILINE)


def test_all_locks_have_the_same_version_of_a_package() -> None:
    versions = defaultdict(set)
    for name in LOCKS:
        if name != lock.BUILD:
            for package, _, _ in lock.pins(lock.path_of(name)):
                versions[package].add(
                    frozenset(
                        # For which platforms is each lock's own matter; for which Pythons is not.
                        re.sub(r" ;(?!.*python).*", "", version)
                        for other, version, _ in lock.pins(lock.path_of(name))
                        if other == package
                    )
                )
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


def test_wheels_are_asked_for_on_every_python_that_setup_takes() -> None:
    setup = (ROOT / "scripts" / "setup").read_text()
    assert set(re.findall(r"python(3\.\d+)", setup)) == set(lock.PYTHONS)
    assert project()["project"]["requires-python"] == f">={lock.PYTHONS[0]}"


def test_what_only_the_operator_needs_is_not_in_the_nodes_lock() -> None:
    node, operator = ({package for package, _, _ in lock.pins(lock.path_of(it))} for it in ("node", "operator"))
    assert node < operator
    assert "kopf" in operator - node
