"""The newest lines of a pod's log stay, where an API server cuts them off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from delayctl.targets.kube import KubeAccess
from delayctl.targets.kube_target import KubeTarget
from delayctl.targets.pod_logs import newest_log

from tests.client.support.kubeworld import NAME, kube_world


def served(log: bytes, options: Mapping[str, str]) -> bytes:
    """As kubelets do: from the first of the last `tailLines` on, no more than `limitBytes`."""
    lines = log.splitlines(keepends=True)[-int(options["tailLines"]) :]
    return b"".join(lines)[: int(options["limitBytes"])]


def log_of(lines: int, width: int) -> bytes:
    return b"".join(b"%d %s\n" % (number, b"x" * width) for number in range(lines))


@pytest.mark.parametrize("width", [10, 900, 1_100, 5_000, 50_000])
def test_the_newest_lines_are_there_and_whole(width: int) -> None:
    log = log_of(300, width)
    found = newest_log(lambda options: served(log, options), 200, 200_000)
    assert log.endswith(found)
    assert 0 < len(found) < 200_000
    assert found.startswith(b"%d " % (300 - found.count(b"\n")))
    assert found.count(b"\n") == 200 or len(found) > 40_000


def test_one_line_that_is_longer_than_the_limit_is_cut() -> None:
    assert newest_log(lambda options: served(b"x" * 900, options), 200, 500) == b"x" * 500


def test_an_audit_page_gets_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    log = log_of(3_000, 2_000)

    def text(path: str, query: Mapping[str, Any], read_s: float) -> str:
        assert path == "/api/v1/namespaces/shop/pods/orders-0/log"
        assert query["container"] == "node"
        return served(log, query).decode()

    with kube_world(kubeconfig):
        access = KubeAccess(KubeTarget(NAME, "shop", "fake"))
        monkeypatch.setattr(access.client, "text", text)
        assert access.log_lines("orders-0", 2_000)[-1].startswith("2999 ")
