"""Each secret that a sink may name: missing, malformed, changed; what is in it is never shown."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from delaysink.events import OutgoingMessage
from delaysink.http_target import HttpTarget
from delaysink.nats_credentials import parse_credentials
from delaysink.outcome import Verdict
from delaysink.process import new_target
from delaysink.secret_file import BadSecret
from delaysink.settings import read_settings
from delaysink.target import SinkTarget

from tests.sinks.support.nats_keys import ACCOUNT, Key, NatsOperator
from tests.sinks.support.receiver import Receiver, status

MARK = "once-upon-a-time"
NAMED = {"secret": {"name": "mine", "key": "the.key"}}
HTTP = {"url": "http://127.0.0.1:9/", "allow": ["127.0.0.0/8"]}
KAFKA: dict[str, Any] = {"servers": ["127.0.0.1:9"], "timeout": "1s"}
SECRETS: dict[str, dict[str, Any]] = {
    "signing": {"http": {**HTTP, "signing": NAMED}},
    "authorization": {"http": {**HTTP, "authorization": NAMED}},
    "ca": {"http": {**HTTP, "ca": NAMED}},
    "nats": {"nats": {"servers": ["nats://127.0.0.1:9"], "timeout": "1s", "credentials": NAMED}},
    "kafka-ca": {"kafka": {**KAFKA, "tls": True, "ca": NAMED}},
    "kafka-password": {"kafka": {**KAFKA, "sasl": {"username": "delay", "password": NAMED}}},
}
"""Name -> the target of a sink that needs it."""
OPERATOR = NatsOperator()
PEM = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"
MALFORMED = [
    ("signing", MARK, "does not begin with whsec_"),
    ("signing", f"whsec_{MARK}", "not base64"),
    ("authorization", f"Bearer {MARK}\r\nX-Evil: 1", "a character that no header may have"),
    ("authorization", f"Bearer {MARK}ä", "a character that no header may have"),
    ("authorization", f"Bearer {MARK}" + "x" * 5_000, "limit is 4,096"),
    ("ca", MARK, "no certificates in PEM"),
    ("ca", f"grün {MARK}", "no certificates in PEM"),
    ("ca", f"a\0{MARK}", "no certificates in PEM"),
    ("ca", PEM.format(MARK), "no certificates in PEM"),
    ("nats", MARK, "has no NATS USER JWT"),
    ("nats", OPERATOR.credentials.replace("USER NKEY", MARK), "has no USER NKEY SEED"),
    ("nats", OPERATOR.credentials.replace(OPERATOR.user_jwt, MARK), "is no JWT"),
    ("nats", OPERATOR.credentials.replace(OPERATOR.user.seed, MARK), "no seed of a user"),
    ("nats", OPERATOR.credentials.replace(OPERATOR.user.seed, OPERATOR.user.seed[:-1]), "no seed of a user"),
    ("nats", OPERATOR.credentials.replace(OPERATOR.user.seed, Key(ACCOUNT).seed), "no seed of a user"),
    ("nats", OPERATOR.credentials.replace(OPERATOR.user.seed, OPERATOR.user.public), "no seed of a user"),
    ("kafka-ca", MARK, "not in PEM format"),
    ("kafka-ca", f"grün {MARK}", "not in PEM format"),
    ("kafka-ca", PEM.format(MARK), "not in PEM format"),
]


def target_of(name: str, secrets: Path) -> SinkTarget:
    return new_target(read_settings("s", {"topic": "t", **SECRETS[name]}), secrets)


def refusal(name: str, secrets: Path) -> str:
    """What opening it says."""

    async def opened() -> None:
        target = target_of(name, secrets)
        try:
            await target.open()
        finally:
            await target.close()

    with pytest.raises(BadSecret) as caught:
        asyncio.run(opened())
    assert str(secrets / "mine/the.key") in str(caught.value)
    assert MARK not in str(caught.value)
    return str(caught.value)


def unlinked(path: Path) -> None:
    path.unlink()
    path.with_name("other").write_text(MARK)


def no_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


UNREADABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no Secret": (no_folder, "is missing: make the key 'the.key' of the Secret 'mine'"),
    "no key": (unlinked, "is missing: make the key 'the.key' of the Secret 'mine'"),
    "empty": (lambda path: path.write_text(" \n"), "is empty"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "can't be read: Is a directory"),
    "no text": (lambda path: path.write_bytes(MARK.encode() + b"\xff\xfe"), "is not text in UTF-8"),
    "large": (lambda path: path.write_text(MARK * 5_000), "bytes; the limit is 65,536"),
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("how", UNREADABLE)
def test_a_secret_that_is_not_there_or_no_text_is_said(name: str, how: str, tmp_path: Path) -> None:
    make, says = UNREADABLE[how]
    path = tmp_path / "mine/the.key"
    path.parent.mkdir()
    path.write_text(MARK)
    make(path)
    assert says in refusal(name, tmp_path)


@pytest.mark.parametrize(("name", "text", "says"), MALFORMED)
def test_a_malformed_secret_is_said_and_never_shown(name: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/the.key").write_bytes(text.encode())
    said = refusal(name, tmp_path)
    assert says in said
    assert OPERATOR.user.seed not in said


def test_each_secret_of_a_sink_is_tried() -> None:
    """Of each kind of target those that its settings have."""
    for spec in SECRETS.values():
        assert read_settings("s", {"topic": "t", **spec}).secrets, spec
    named = {name for spec in SECRETS.values() for target in spec.values() for name in target}
    assert {"signing", "authorization", "ca", "credentials", "sasl"} <= named


def test_a_ca_with_comments_beyond_ascii_is_taken(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    pem = trustme.CA().cert_pem.bytes().decode()
    (tmp_path / "mine/the.key").write_text(f"# Zertifikat für grüne Dienste\n{pem}", "utf-8")

    async def main() -> None:
        target = target_of("ca", tmp_path)
        await target.open()
        await target.close()

    asyncio.run(main())


def test_a_user_s_credentials_sign_what_nats_asks() -> None:
    found = parse_credentials(OPERATOR.credentials.replace("\n", "\r\n"), "x")
    assert found.jwt.decode() == OPERATOR.user_jwt
    assert base64.b64decode(found.signature("nonce")) == OPERATOR.user.sign("nonce")
    assert OPERATOR.user_jwt not in repr(found)


def test_a_malformed_authorization_replaces_none_that_was_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaysink.secret_file.LOOK_S", 0.0)
    path = tmp_path / "mine/the.key"
    path.parent.mkdir()
    path.write_text("Bearer first")

    async def main() -> None:
        async with Receiver(lambda _: status(200)) as receiver:
            spec = {"topic": "t", "http": {**HTTP, "url": receiver.url, "authorization": NAMED}}
            target = new_target(read_settings("s", spec), tmp_path)
            assert isinstance(target, HttpTarget)
            await target.open()
            for text, sent, problem in (
                ("Bearer first", "Bearer first", ""),
                (f"{MARK}\x01", "Bearer first", "no header may have"),
                ("", "Bearer first", "is empty"),
                (None, "Bearer first", "is missing"),
                ("Bearer second", "Bearer second", ""),
            ):
                path.unlink(missing_ok=True)
                if text is not None:
                    path.write_text(text)
                assert (await target.deliver(OutgoingMessage("id", 0, 1))).verdict is Verdict.DELIVERED
                assert receiver.requests[-1].headers["Authorization"] == sent
                assert problem in target.problem
                assert bool(problem) == bool(target.problem), target.problem
                assert MARK not in target.problem
            await target.close()

    asyncio.run(main())
