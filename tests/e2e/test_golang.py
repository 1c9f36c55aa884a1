"""Which Go builds the test cluster: the machine's, or the toolchain that comes as a Go module."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from e2e.cluster.golang import go_command, minor
from e2e.cluster.settings import GO_VERSION


def machine_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, download: dict[str, str]) -> Path:
    """Its `go` says that it is `version`, and answers `go mod download` with `download`."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f"#!/bin/sh\ncase $1 in env) echo {version};; mod) echo '{json.dumps(download)}';; esac\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}{os.pathsep}{os.environ['PATH']}")
    return go


@pytest.mark.parametrize(
    ("version", "found"), [("go1.26.8", (1, 26)), ("go1.19", (1, 19)), ("go1.27rc1", (1, 27)), ("go2.0.1", (2, 0))]
)
def test_versions_of_go_are_compared_by_their_minor_number(version: str, found: tuple[int, int]) -> None:
    assert minor(version) == found


@pytest.mark.parametrize("version", [f"go{GO_VERSION}", "go1.99.0"])
def test_the_machines_own_go_is_taken_when_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    own = machine_with(tmp_path, monkeypatch, version, {"Error": "should not be asked"})
    assert go_command() == own


def test_debians_go_fetches_the_toolchain_and_makes_it_runnable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "toolchain"
    programs = (module / "bin" / "go", module / "pkg" / "tool" / "linux_amd64" / "compile")
    for program in programs:
        program.parent.mkdir(parents=True)
        program.write_text("")
        program.chmod(0o444)  # as `go mod download` leaves a module's files
    machine_with(tmp_path, monkeypatch, "go1.19.8", {"Dir": str(module)})
    assert go_command() == programs[0]
    assert all(os.stat(program).st_mode & 0o111 for program in programs)


def test_a_toolchain_that_cannot_be_had_ends_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_with(tmp_path, monkeypatch, "go1.19.8", {"Error": "checksum mismatch"})
    with pytest.raises(SystemExit, match=r"golang\.org/toolchain@v0\.0\.1-go.*: checksum mismatch"):
        go_command()
