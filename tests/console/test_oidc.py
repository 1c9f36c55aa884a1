"""Sign-in at a provider: what lets somebody in, and everything else that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from delayconsole.oidc import MAX_ANSWER_BYTES, MAX_PENDING, OidcClient, OidcError, OidcFlow, SignedIn

from tests.console.support.provider import CLIENT, SECRET, Provider, providing

BACK = "https://console.example.com/sign-in/back"


def with_provider(test: Callable[[Provider], Awaitable[None]]) -> None:
    async def main() -> None:
        async with providing() as provider:
            await test(provider)

    asyncio.run(main())


def flow_of(provider: Provider, **more: Any) -> OidcFlow:
    return OidcFlow(OidcClient(provider.issuer, CLIENT, ca=provider.ca_pem, **more))


async def signed_in(provider: Provider, flow: OidcFlow, **spoiled: str) -> SignedIn:
    where, browser = await flow.begin(BACK)
    asked = dict(parse_qsl(urlsplit(where).query))
    back = dict(parse_qsl(urlsplit(provider.sign_in(asked)).query))
    return await flow.finish({**back, **spoiled}, spoiled.get("cookie", browser))


def test_who_signs_in_there_is_known_here_and_pkce_is_used(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")

    async def test(provider: Provider) -> None:
        flow = flow_of(provider, scopes=("groups",), secret_file=str(tmp_path / "secret"))
        where, _ = await flow.begin(BACK)
        asked = dict(parse_qsl(urlsplit(where).query))
        assert (asked["response_type"], asked["scope"], asked["code_challenge_method"]) == (
            "code",
            "openid groups",
            "S256",
        )
        found = await signed_in(provider, flow)
        assert found.name == "ann@example.com"
        assert 3_500 < found.lifetime_s <= 3_600
        assert provider.asked[0]["client_secret"] == SECRET
        assert SECRET not in where
        assert found.token not in repr(found)

    with_provider(test)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"aud": "another"}, "Audience doesn't match"),
        ({"iss": "https://evil.example"}, "Invalid issuer"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"nonce": "of another sign-in"}, "its nonce is not ours"),
    ],
)
def test_a_token_of_somebody_else_lets_nobody_in(claims: dict[str, Any], says: str) -> None:
    async def test(provider: Provider) -> None:
        provider.claims = claims
        with pytest.raises(OidcError, match=says):
            await signed_in(provider, flow_of(provider))

    with_provider(test)


@pytest.mark.parametrize(
    ("signed", "says"),
    [({"number": 1}, "can't be trusted: Signature verification failed"), ({"key_id": "k9"}, "does not publish")],
)
def test_a_forged_signature_lets_nobody_in(signed: dict[str, Any], says: str) -> None:
    async def test(provider: Provider) -> None:
        provider.signed = signed
        with pytest.raises(OidcError, match=says):
            await signed_in(provider, flow_of(provider))

    with_provider(test)


@pytest.mark.parametrize("token", ["eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJIUzI1NiJ9.e30.x", "no token", ""])
def test_unsigned_and_shared_key_tokens_let_nobody_in(token: str) -> None:
    async def test(provider: Provider) -> None:
        provider.answer = {"id_token": token}
        with pytest.raises(OidcError):
            await signed_in(provider, flow_of(provider))

    with_provider(test)


def test_a_browser_that_did_not_begin_is_not_signed_in_and_a_state_counts_once() -> None:
    async def test(provider: Provider) -> None:
        flow = flow_of(provider)
        with pytest.raises(OidcError, match="another browser"):
            await signed_in(provider, flow, cookie="an attacker's")
        with pytest.raises(OidcError, match="not begun here"):
            await signed_in(provider, flow, state="guessed")
        with pytest.raises(OidcError, match="not of https"):
            await signed_in(provider, flow, iss="https://evil.example")
        with pytest.raises(OidcError, match="the provider says: no"):
            await signed_in(provider, flow, error="access_denied", error_description="no")
        where, browser = await flow.begin(BACK)
        back = dict(parse_qsl(urlsplit(provider.sign_in(dict(parse_qsl(urlsplit(where).query)))).query))
        await flow.finish(back, browser)
        with pytest.raises(OidcError, match="not begun here"):
            await flow.finish(back, browser)

    with_provider(test)


def test_sign_ins_that_nobody_finishes_are_bounded_and_end() -> None:
    async def test(provider: Provider) -> None:
        now_s = 0.0
        flow = OidcFlow(OidcClient(provider.issuer, CLIENT, ca=provider.ca_pem), lambda: now_s)
        first, browser = await flow.begin(BACK)
        state = dict(parse_qsl(urlsplit(first).query))["state"]
        for _ in range(10_000):
            await flow.begin(BACK)
        assert state in flow._pending, "strangers who begin many keep nobody from ending theirs"
        for _ in range(MAX_PENDING - 10_000):
            await flow.begin(BACK)
        with pytest.raises(OidcError, match="not begun here"):
            await flow.finish({"state": state, "code": "c"}, browser)
        last, browser = await flow.begin(BACK)
        now_s = 601.0
        with pytest.raises(OidcError, match="took too long"):
            await flow.finish({"state": dict(parse_qsl(urlsplit(last).query))["state"], "code": "c"}, browser)

    with_provider(test)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"issuer": "https://evil.example"}, "says that it is 'https://evil.example'"),
        ({"token_endpoint": "http://localhost/token"}, "names no token_endpoint by https"),
        ({"padding": "x" * MAX_ANSWER_BYTES}, "more than 256 KiB"),
    ],
)
def test_a_provider_that_is_not_what_it_should_be(metadata: dict[str, Any], says: str) -> None:
    async def test(provider: Provider) -> None:
        provider.metadata = metadata
        with pytest.raises(OidcError, match=says):
            await flow_of(provider).begin(BACK)

    with_provider(test)


def test_a_provider_whose_certificate_nobody_trusts_is_not_asked() -> None:
    async def test(provider: Provider) -> None:
        with pytest.raises(OidcError, match="gives no answer"):
            await OidcFlow(OidcClient(provider.issuer, CLIENT)).begin(BACK)
        assert provider.asked == []

    with_provider(test)
