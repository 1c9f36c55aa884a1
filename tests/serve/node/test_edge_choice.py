"""What carries clients' calls, by what is asked for and what is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
from delaynode import config

OPTIONS = ("--node-id", "n0", "--registry", "sqlite:r", "--data", "d")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Distributions and their versions."""
    found = {"delaycluster": "0.2.0"}

    def version(distribution: str) -> str:
        if distribution not in found:
            raise PackageNotFoundError(distribution)
        return found[distribution]

    monkeypatch.setattr(config, "version", version)
    monkeypatch.delenv(config.EDGE_VARIABLE, raising=False)
    return found


@pytest.mark.parametrize(("edge", "chosen"), [(None, "grpcio"), ("0.1.0", "grpcio"), ("0.2.0", "compiled")])
def test_the_edge_of_this_release_is_used_where_it_is_installed(
    installed: dict[str, str], edge: str | None, chosen: str
) -> None:
    if edge is not None:
        installed["delaycluster-edge"] = edge
    assert config.parse([*OPTIONS]).edge == chosen
    assert config.parse([*OPTIONS, "--edge", "grpcio"]).edge == "grpcio"


@pytest.mark.parametrize(
    ("edge", "asked", "why"),
    [
        (None, "compiled", "compiled needs the package delaycluster-edge, which is not installed here"),
        (
            "0.1.0",
            "compiled",
            "delaycluster-edge 0.1.0 is installed, and this is delaycluster 0.2.0: install that of 0.2.0",
        ),
        ("0.2.0", "fast", "'fast'; it is one of auto, grpcio, compiled"),
    ],
)
def test_an_edge_that_cannot_be_had_is_said_at_once(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    edge: str | None, asked: str, why: str,
) -> None:  # fmt: skip
    if edge is not None:
        installed["delaycluster-edge"] = edge
    monkeypatch.setenv(config.EDGE_VARIABLE, asked)
    with pytest.raises(SystemExit):
        config.parse([*OPTIONS])
    assert f"--edge: {why}" in capsys.readouterr().err
