"""The keys of an issuer: which count, and how seldom they are fetched."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import trustme
from delaynode.auth import keys as auth_keys
from delaynode.auth.key_sources import fetch_keys
from delaynode.auth.keys import (
    MAX_KEYS,
    MAX_SET_BYTES,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    UNKNOWN_SECONDS,
    IssuerKeys,
    KeySet,
    KeysUnusable,
    read_keys,
)
from delayregistry.security import IssuerKind, TokenIssuer

from tests.auth.issuing import AUDIENCE, accounts, jwk, key_set, oidc, private_key


class Issuer:
    """Counts the fetches of its keys, with a clock of its own."""

    def __init__(self) -> None:
        self.keys, self.fetches, self.now_s, self.told = key_set(), 0, 1_000.0, list[str]()
        self.answers = asyncio.Event()
        self.answers.set()

    async def fetch(self) -> KeySet:
        self.fetches += 1
        await self.answers.wait()
        return read_keys(self.keys, "me")

    def cached(self) -> IssuerKeys:
        return IssuerKeys(self.fetch, self.told.append, lambda: self.now_s)


def run(test: Callable[[Issuer, IssuerKeys], Any]) -> None:
    async def inside() -> None:
        issuer = Issuer()
        cached = issuer.cached()
        await test(issuer, cached)
        cached.close()

    asyncio.run(inside())


def test_ten_thousand_unknown_keys_a_second_are_one_fetch_in_thirty_seconds() -> None:
    async def test(issuer: Issuer, cached: IssuerKeys) -> None:
        assert await cached.find("k1") is not None
        issuer.now_s += UNKNOWN_SECONDS
        for second in range(60):
            issuer.now_s += 1
            for number in range(10_000):
                assert await cached.find(f"x{second}-{number}") is None
            assert await cached.find("k1") is not None, "the good ones are served all the while"
        assert issuer.fetches == 3

    run(test)


def test_all_wait_for_the_same_fetch_and_one_that_gives_up_does_not_end_it() -> None:
    async def test(issuer: Issuer, cached: IssuerKeys) -> None:
        issuer.answers.clear()
        waiting = [asyncio.create_task(cached.find("k1")) for _ in range(50)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        issuer.answers.set()
        found = await asyncio.gather(*waiting[1:])
        assert None not in found
        assert issuer.fetches == 1

    run(test)


def test_a_new_key_counts_at_once_where_the_last_fetch_is_long_ago() -> None:
    async def test(issuer: Issuer, cached: IssuerKeys) -> None:
        await cached.find("k1")
        issuer.keys, issuer.now_s = key_set(jwk("k2", number=2)), issuer.now_s + UNKNOWN_SECONDS
        assert await cached.find("k2") is not None
        assert await cached.find("k1") is None, "and one that was withdrawn no more"

    run(test)


def test_keys_are_refreshed_each_hour_while_nobody_waits() -> None:
    async def test(issuer: Issuer, cached: IssuerKeys) -> None:
        await cached.find("k1")
        issuer.keys, issuer.now_s = key_set(jwk("k2")), issuer.now_s + REFRESH_SECONDS + 1
        assert await cached.find("k1") is not None
        await asyncio.sleep(0.01)
        assert await cached.find("k1") is None

    run(test)


def test_an_issuer_that_is_away_keeps_its_keys_and_is_asked_again() -> None:
    async def test(issuer: Issuer, cached: IssuerKeys) -> None:
        issuer.keys = "nothing"
        for _ in range(100):
            with pytest.raises(KeysUnusable, match="not a key set"):
                await cached.find("k1")
        assert issuer.fetches == 1
        issuer.keys, issuer.now_s = key_set(), issuer.now_s + RETRY_SECONDS
        assert await cached.find("k1") is not None
        issuer.keys, issuer.now_s = "nothing", issuer.now_s + UNKNOWN_SECONDS
        assert await cached.find("k2") is None
        assert await cached.find("k1") is not None
        assert len(issuer.told) == 2

    run(test)


# ---------------------------------------------------------------- which keys count
def test_only_keys_that_verify_signatures_count() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"}
    private = json.loads(_private_jwk())
    found = read_keys(
        key_set(
            jwk("good"), secret, jwk("weak", "weak"), jwk("encrypts", use="enc"), {**private, "kid": "private"},
            {**jwk("wrong-alg"), "alg": "HS256"}, {"kty": "EC", "kid": "broken"}, {"kid": "empty"}, 7,
            jwk("b", "RS256"),
        )
    )  # fmt: skip
    assert set(found.keys) == {"good", "b"}


def _private_jwk() -> str:
    from jwt.algorithms import ECAlgorithm

    return str(ECAlgorithm.to_jwk(private_key("ES256")))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a key set"),
        ("[]", "not a key set"),
        ('{"keys":{}}', "not a key set"),
        ('{"keys":[]}', "none of the key set's 0 keys"),
        ('{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}', "none of the key set's 1 keys"),
        ('{"keys":' + "[" * 100_000, "not a key set"),
        (json.dumps({"keys": [{}] * (MAX_KEYS + 1)}), "101 keys; the limit is 100"),
        (" " * (MAX_SET_BYTES + 1), "the limit is 262,144"),
    ],
)
def test_what_is_no_key_set_is_refused(text: str, why: str) -> None:
    with pytest.raises(KeysUnusable, match=why):
        read_keys(text)


# ---------------------------------------------------------------- where they come from
class Provider:
    """An OIDC provider on this machine. answers: by path; a number is a status."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.answers: dict[str, str | int] = {}
        self._asked: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(context)
        answers, asked = self.answers, self._asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                answer = answers.get(self.path, 404)
                self.send_response(answer if isinstance(answer, int) else 200)
                if answer == 302:
                    self.send_header("Location", "/keys")
                self.end_headers()
                if isinstance(answer, str):
                    self.wfile.write(answer.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def asked(self, path: str) -> int:
        """How often it was asked for that."""
        return self._asked.count(path)

    @property
    def trusted(self) -> str:
        return self.authority.cert_pem.bytes().decode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.close()


def test_a_provider_says_where_its_keys_are(provider: Provider) -> None:
    said = {"issuer": provider.url, "jwks_uri": f"{provider.url}/keys"}
    provider.answers |= {"/.well-known/openid-configuration": json.dumps(said), "/keys": key_set()}
    assert set(fetch_keys(oidc(issuer=provider.url, jwks="", ca=provider.trusted), None).keys) == {"k1"}
    given = oidc(issuer="https://elsewhere", jwks="", jwks_url=f"{provider.url}/keys", ca=provider.trusted)
    assert set(fetch_keys(given, None).keys) == {"k1"}


def test_keys_come_only_from_who_is_trusted_and_only_from_there(provider: Provider) -> None:
    provider.answers |= {"/keys": key_set(), "/moved": 302, "/broken": 500, "/large": "x" * (MAX_SET_BYTES + 1)}
    other = trustme.CA().cert_pem.bytes().decode()

    def why(path: str, ca: str = "") -> str:
        issuer = oidc(jwks="", jwks_url=provider.url + path, ca=ca or provider.trusted)
        with pytest.raises(KeysUnusable) as unusable:
            fetch_keys(issuer, None)
        return str(unusable.value)

    assert "certificate verify failed" in why("/keys", other)
    assert "302" in why("/moved")
    assert "500" in why("/broken")
    assert "404" in why("/none")
    assert "more than 262,144 bytes" in why("/large")
    assert "can't be fetched" in why("/keys", "no certificate")


def test_a_provider_that_speaks_for_another_is_not_believed(provider: Provider) -> None:
    for said in ({"issuer": "https://other", "jwks_uri": f"{provider.url}/keys"}, {"issuer": provider.url}, []):
        provider.answers |= {"/.well-known/openid-configuration": json.dumps(said), "/keys": key_set()}
        with pytest.raises(KeysUnusable, match=r"is not of|no https URL"):
            fetch_keys(oidc(issuer=provider.url, jwks="", ca=provider.trusted), None)


def test_a_node_without_an_api_server_has_no_keys_of_service_accounts() -> None:
    with pytest.raises(KeysUnusable, match="this node has none to ask"):
        fetch_keys(accounts(""), None)
    given = TokenIssuer(IssuerKind.SERVICE_ACCOUNTS, AUDIENCE, "x", jwks=key_set())
    assert fetch_keys(given, None).issuer == "x"
    assert auth_keys.UNKNOWN_SECONDS == 30
