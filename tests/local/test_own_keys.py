"""The keys of a local cluster with TLS."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from delayapi.certificates import CertificateStore, load_certificates, load_roots
from delaylocal.own_keys import ADMIN_URI, CLUSTER_URI, make_keys
from delayregistry.security import (
    AccessRule,
    AuthorizationMode,
    NamePattern,
    Operation,
    SecuritySpec,
    SecurityUser,
    StaticToken,
)

NOW = datetime.now(UTC)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_nodes_take_the_certificates_and_find_their_names_in_them(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "security")
    server, peers, operator, admin = (
        load_certificates(directory, NOW) for directory in (keys.server, keys.peers, keys.operator, keys.admin)
    )
    assert server.names == peers.names == (f"{CLUSTER_URI}/role/node", "dns:localhost")
    assert operator.names == (f"{CLUSTER_URI}/role/operator",)
    assert admin.names == (ADMIN_URI,)
    assert load_roots(keys.clients, NOW).roots_pem == server.roots_pem == admin.roots_pem
    assert peers.roots_pem == operator.roots_pem != server.roots_pem
    assert CertificateStore(keys.server).problem is None


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    make_keys(tmp_path / "security")
    for path in (tmp_path / "security", *(tmp_path / "security").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_keys_stay_over_restarts_and_are_made_anew_a_month_before_they_expire(tmp_path: Path) -> None:
    directory = tmp_path / "security"
    make_keys(directory)
    first = contents(directory)
    make_keys(directory, NOW + timedelta(days=330))
    assert contents(directory) == first
    make_keys(directory, NOW + timedelta(days=340))
    second = contents(directory)
    changed = {name for name in first if first[name] != second[name]}
    leaves = ("server", "peers", "operator", "admin")
    assert changed == {f"{leaf}/tls.{kind}" for leaf in leaves for kind in ("crt", "key")}
    for leaf in leaves:
        load_certificates(directory / leaf, NOW + timedelta(days=340))


@pytest.mark.parametrize("broken", ["missing", "empty", "of another key"])
def test_certificate_that_cannot_be_used_is_made_anew(tmp_path: Path, broken: str) -> None:
    directory = tmp_path / "security"
    keys = make_keys(directory)
    key = keys.server / "tls.key"
    if broken == "missing":
        key.unlink()
    else:
        key.write_bytes(b"" if broken == "empty" else (keys.peers / "tls.key").read_bytes())
    make_keys(directory)
    load_certificates(keys.server, NOW)


def test_ca_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "security"
    make_keys(directory)
    (directory / "ca.key").write_text("")
    before = contents(directory)
    with pytest.raises(ValueError):
        make_keys(directory)
    assert contents(directory) == before


def test_document_has_the_admins_token_as_a_hash_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "security")
    token = keys.token_file.read_text().strip()
    mine = StaticToken("admin", hashlib.sha256(token.encode()).hexdigest())
    assert keys.document(None) == SecuritySpec(
        AuthorizationMode.REQUIRED, super_users=("token:admin", ADMIN_URI), tokens=(mine,)
    )
    rule = AccessRule((Operation.PRODUCE,), topic=NamePattern(literal="orders"))
    theirs = SecuritySpec(
        AuthorizationMode.PERMISSIVE,
        super_users=("dns:me", "token:admin"),
        tokens=(StaticToken("shop", "0" * 64), StaticToken("admin", "1" * 64)),
        users=(SecurityUser("token:shop", (rule,)),),
    )
    found = keys.document(theirs)
    assert found == keys.document(found)
    assert found.authorization is AuthorizationMode.PERMISSIVE
    assert found.super_users == ("token:admin", ADMIN_URI, "dns:me")
    assert found.tokens == (mine, StaticToken("shop", "0" * 64))
    assert found.users == theirs.users
