"""A cluster's own CA in Secrets (delayoperator.kube.own_ca)."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delayapi.certificates import load_certificates
from delayoperator.cluster.reasons import Reason
from delayoperator.kube.api import ApiError
from delayoperator.kube.own_ca import LEAF_DAYS, RENEW_DAYS, OwnAuthority
from delayoperator.resources.view import SecurityMode, TlsSettings

from tests.resources.clusters import MINIMAL

VIEW = replace(MINIMAL, tls=TlsSettings(SecurityMode.PERMISSIVE, "orders-server-tls", "orders-peers-tls", own_ca=True))
CA, SERVER, PEERS = "orders-ca", "orders-server-tls", "orders-peers-tls"
DAY_MS = 86_400_000


class Clock:
    def __init__(self) -> None:
        self.ms = 1_795_000_000_000

    def wall_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Secrets:
    """The API server's, as far as it is asked."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.asked = 0
        self.forbidden = False

    def get(self, kind: object, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked += 1
        if self.forbidden:
            raise ApiError(f"get Secret {name}", 403, "Forbidden", "no right on secrets")
        return self.bodies.get(name)

    def create(self, kind: object, namespace: str, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        assert name not in self.bodies
        self.bodies[name] = body

    def apply(self, kind: object, body: dict[str, Any]) -> None:
        self.bodies[body["metadata"]["name"]] = body

    def written(self, name: str, directory: Path) -> Path:
        """As the kubelet mounts it."""
        directory.mkdir(exist_ok=True)
        for key, value in self.bodies[name]["data"].items():
            (directory / key).write_bytes(base64.b64decode(value))
        return directory


class Kept:
    def __init__(self) -> None:
        self.secrets, self.clock = Secrets(), Clock()
        self.told: list[str] = []
        self.authority = OwnAuthority(
            self.secrets,  # type: ignore[arg-type]
            self.clock,  # type: ignore[arg-type]
            lambda reason, message, warning: self.told.append(message),
        )

    def days(self, count: int) -> datetime:
        self.clock.ms += count * DAY_MS
        return datetime.fromtimestamp(self.clock.ms / 1000, UTC)


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_what_it_makes_is_what_nodes_use(kept: Kept, tmp_path: Path) -> None:
    assert kept.authority.keep(VIEW) == []
    now = kept.days(0) + timedelta(minutes=1)
    server = load_certificates(kept.secrets.written(SERVER, tmp_path / "server"), now)
    assert server.names[0] == "dns:orders-client.default.svc"
    peers = load_certificates(kept.secrets.written(PEERS, tmp_path / "peers"), now)
    assert peers.names[0] == "spiffe://delaycluster/ns/default/cluster/orders/role/node"
    assert "ownerReferences" not in kept.secrets.bodies[CA]["metadata"], "clients trust it when the cluster is back"
    assert "ownerReferences" in kept.secrets.bodies[SERVER]["metadata"]


def test_certificates_are_renewed_in_time_and_the_ca_stays(kept: Kept) -> None:
    kept.authority.keep(VIEW)
    before = dict(kept.secrets.bodies)
    kept.days(LEAF_DAYS - RENEW_DAYS - 1)
    kept.authority.keep(VIEW)
    assert kept.secrets.bodies == before
    kept.days(2)
    kept.authority.keep(VIEW)
    changed = {name for name, body in kept.secrets.bodies.items() if body != before[name]}
    assert changed == {SERVER, PEERS}


def test_what_somebody_deletes_or_breaks_is_made_again(kept: Kept) -> None:
    kept.authority.keep(VIEW)
    del kept.secrets.bodies[SERVER]
    kept.secrets.bodies[PEERS]["data"]["tls.crt"] = "bm9uZQ=="
    kept.authority.keep(VIEW)
    assert SERVER not in kept.secrets.bodies, "not at each round"
    kept.clock.ms += 3_600_000
    kept.authority.keep(VIEW)
    assert SERVER in kept.secrets.bodies
    assert kept.secrets.bodies[PEERS]["data"]["tls.crt"] != "bm9uZQ=="


def test_a_ca_that_cant_be_read_is_never_replaced(kept: Kept) -> None:
    kept.authority.keep(VIEW)
    kept.secrets.bodies[CA]["data"]["tls.key"] = "bm9uZQ=="
    kept.clock.ms += 3_600_000
    (problem,) = kept.authority.keep(VIEW)
    assert problem.reason is Reason.CERTIFICATE_UNUSABLE
    assert "Secret orders-ca is no CA: tls.crt and tls.key can't be read" in problem.message
    assert kept.secrets.bodies[CA]["data"]["tls.key"] == "bm9uZQ=="


def test_a_ca_that_was_deleted_or_exchanged_changes_no_certificate_until_they_are_deleted_too(kept: Kept) -> None:
    kept.authority.keep(VIEW)
    before, another = dict(kept.secrets.bodies), Kept()
    another.authority.keep(VIEW)
    for wrong, says in ((None, "is gone"), (another.secrets.bodies[CA], "has another CA")):
        kept.secrets.bodies.pop(CA, None)
        if wrong is not None:
            kept.secrets.bodies[CA] = wrong
        kept.clock.ms += 3_600_000
        (problem,) = kept.authority.keep(VIEW)
        assert problem.reason is Reason.CERTIFICATE_UNUSABLE
        assert f"Secret orders-ca {says}: that of orders-server-tls and orders-peers-tls" in problem.message
        assert {name: kept.secrets.bodies[name] for name in (SERVER, PEERS)} == {
            name: before[name] for name in (SERVER, PEERS)
        }
    del kept.secrets.bodies[SERVER], kept.secrets.bodies[PEERS]
    assert kept.authority.keep(VIEW) == []
    assert kept.secrets.bodies[SERVER] != before[SERVER]


def test_a_secret_of_people_s_that_has_the_name_of_one_is_left_alone(kept: Kept) -> None:
    theirs = {"metadata": {"name": SERVER}, "data": {"tls.crt": "bWluZQ==", "tls.key": "bWluZQ=="}}
    kept.secrets.bodies[SERVER] = theirs
    other = Kept()
    other.authority.keep(VIEW)
    kept.secrets.bodies[CA] = other.secrets.bodies[CA]
    (problem,) = kept.authority.keep(VIEW)
    assert "that of orders-server-tls, which stay" in problem.message
    assert kept.secrets.bodies[SERVER] is theirs


def test_without_the_right_it_says_so_and_without_own_ca_it_asks_nothing(kept: Kept) -> None:
    kept.secrets.forbidden = True
    (problem,) = kept.authority.keep(VIEW)
    assert (problem.reason, "may not get Secret orders-server-tls" in problem.message) == (Reason.FORBIDDEN, True)
    asked = kept.secrets.asked
    assert kept.authority.keep(replace(VIEW, tls=None)) == []
    assert kept.secrets.asked == asked
