"""Certificates and tokens are files that change, and what cannot be used never replaces what can."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from delayapi.credentials import MAX_TOKEN_BYTES, BadCredentials, ClientCredentials, Tls

from tests.client.support.authority import write_ca, write_client
from tests.security.authority import Authority


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        self.s += 2.0  # later than the next look
        return self.s


def test_token_is_read_again_once_its_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    credentials = ClientCredentials(Tls(), file, now=Clock())
    assert credentials.metadata() == (("authorization", "Bearer first"),)
    file.write_text("second")
    assert credentials.metadata() == (("authorization", "Bearer second"),)


def test_token_of_a_projected_volume_is_read_again_when_the_kubelet_swaps_its_link(tmp_path: Path) -> None:
    for name in ("..one", "..two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "token").symlink_to("..data/token")
    credentials = ClientCredentials(Tls(), tmp_path / "token", now=Clock())
    (tmp_path / "..new").symlink_to("..two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert credentials.metadata() == (("authorization", "Bearer ..two"),)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"a" * (MAX_TOKEN_BYTES + 1), "has 8,193 bytes; a token has at most 8,192"),
        (b"one two", "is no token"),
        (b"one\nx-delay-principal: admin", "is no token"),
        ("ключ".encode(), "is no token"),
        (b"\0", "is no token"),
    ],
)
def test_token_that_cannot_be_sent_is_refused_and_never_replaces_one_that_can(
    tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(BadCredentials, match=why) as refused:
        ClientCredentials(Tls(), file)
    assert str(file) in str(refused.value)
    file.write_text("good")
    credentials = ClientCredentials(Tls(), file, now=Clock())
    file.write_bytes(content)
    assert credentials.metadata() == (("authorization", "Bearer good"),)
    assert why in credentials.problem
    file.write_text("better")
    assert credentials.metadata() == (("authorization", "Bearer better"),)
    assert not credentials.problem


def test_token_file_that_is_gone_for_a_moment_leaves_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("good")
    credentials = ClientCredentials(Tls(), file, now=Clock())
    file.unlink()
    assert credentials.metadata() == (("authorization", "Bearer good"),)
    assert "cannot be read: No such file" in credentials.problem


def test_token_is_not_sent_without_tls() -> None:
    with pytest.raises(BadCredentials, match="without TLS a token can be read"):
        ClientCredentials(token="secret")


def test_two_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCredentials, match="give one of them"):
        ClientCredentials(Tls(), tmp_path / "token", "secret")


def test_channel_credentials_are_the_same_until_a_file_changes(tmp_path: Path) -> None:
    old, new = Authority(), Authority()
    ca = write_ca(old, tmp_path / "ca.crt")
    certificate, key = write_client(old, tmp_path)
    credentials = ClientCredentials(Tls(ca, certificate, key), now=Clock())
    first = credentials.channel()
    assert credentials.channel() is first
    ca.write_bytes(old.pem)
    assert credentials.channel() is first, "written again, with the same content"
    ca.write_bytes(old.pem + new.pem)
    second = credentials.channel()
    assert second is not first
    write_client(old, tmp_path)
    assert credentials.channel() is not second


def test_certificate_without_its_key_yet_does_not_replace_the_pair_that_fits(tmp_path: Path) -> None:
    authority = Authority()
    ca = write_ca(authority, tmp_path / "ca.crt")
    certificate, key = write_client(authority, tmp_path)
    credentials = ClientCredentials(Tls(ca, certificate, key), now=Clock())
    first = credentials.channel()
    renewed = authority.issue("client")
    certificate.write_bytes(renewed.chain_pem)
    assert credentials.channel() is first
    assert "are not a certificate and its key" in credentials.problem
    key.write_bytes(renewed.key_pem)
    assert credentials.channel() is not first
    assert not credentials.problem


def test_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    authority = Authority()
    ca = write_ca(authority, tmp_path / "ca.crt")
    certificate, key = write_client(authority, tmp_path)
    text, secret = tmp_path / "text", tmp_path / "secret.key"
    text.write_text("no PEM")
    loaded = load_pem_private_key(key.read_bytes(), None)
    secret.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")))
    for tls, why in (
        (Tls(tmp_path / "none"), f"{tmp_path / 'none'} cannot be read"),
        (Tls(text), f"{text} has no certificates in PEM"),
        (Tls(ca, text, key), f"{text} and {key} are not a certificate and its key"),
        (Tls(ca, certificate, ca), f"{certificate} and {ca} are not a certificate and its key"),
        (Tls(ca, certificate, tmp_path / "none"), f"{tmp_path / 'none'} cannot be read"),
        (Tls(ca, certificate, secret), "must have no password"),
    ):
        with pytest.raises(BadCredentials) as refused:
            ClientCredentials(tls)
        assert why in str(refused.value)
    with pytest.raises(BadCredentials, match="a certificate needs its key"):
        Tls(ca, certificate)
