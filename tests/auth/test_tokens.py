"""Tokens: the good ones, and each bad one with the sentence that refuses it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from delaynode.auth.identity import Identity, IdentityKind, NoIdentities
from delaynode.auth.tokens import (
    LEEWAY_SECONDS,
    MAX_GROUPS,
    MAX_TOKEN_BYTES,
    TokenRefused,
    TokenVerifier,
    bearer,
)
from delaynode.clock import GuardedClock
from delaynode.server.callers import Callers, Said
from delaynode.store.errors import Refused
from delayregistry.security import SecuritySpec, StaticToken, Verification

from tests.auth.issuing import (
    ACCOUNT,
    AUDIENCE,
    ISSUER,
    OIDC,
    accounts,
    document,
    jwk,
    key_set,
    oidc,
    public_pem,
    token,
)


class FakeApiServer:
    """Answers a node's questions about tokens."""

    def __init__(self, keys: str = "", status: Mapping[str, Any] | None = None) -> None:
        self.keys, self.status = keys or key_set(), status or {}
        self.asked: list[str] = []
        self.away = False

    def get(self, path: str) -> Mapping[str, Any]:
        self.asked.append(path)
        if self.away:
            raise OSError("it is away")
        found = {"/openid/v1/jwks": self.keys, "/.well-known/openid-configuration": json.dumps({"issuer": ISSUER})}
        return json.loads(found[path])

    def review(self, token: str, audience: str) -> Mapping[str, Any]:
        self.asked.append(audience)
        if self.away:
            raise OSError("it is away")
        return self.status


def verify(spec: SecuritySpec, *sent: str, api: FakeApiServer | None = None) -> Identity:
    """What the last of them is taken for."""

    async def run() -> Identity:
        verifier = TokenVerifier(api)
        verifier.apply(spec)
        try:
            return [await verifier.verify(one) for one in sent][-1]
        finally:
            verifier.close()

    return asyncio.run(run())


def refusal(sent: str, spec: SecuritySpec | None = None, api: FakeApiServer | None = None) -> TokenRefused:
    with pytest.raises(TokenRefused) as refused:
        verify(document(accounts()) if spec is None else spec, sent, api=api)
    assert refused.value.reason == "UNAUTHENTICATED"
    return refused.value


def raw(header: Mapping[str, Any], payload: object, signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(payload).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": ACCOUNT, "exp": time.time() + 3_600}


# ---------------------------------------------------------------- good ones
@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_service_account_is_known_by_its_token(algorithm: str) -> None:
    spec = document(accounts(key_set(jwk("k1", algorithm))))
    exp = int(time.time()) + 600
    credential = f"issuer:{ISSUER}#{AUDIENCE}"
    expected = Identity(ACCOUNT, IdentityKind.TOKEN, (exp + LEEWAY_SECONDS) * 1_000, credential=credential)
    assert verify(spec, token(algorithm, exp=exp)) == expected


def test_an_oidc_user_is_named_by_issuer_and_claim_with_groups() -> None:
    spec = document(oidc(principal_claim="email", groups_claim="roles"))
    claims = {"iss": OIDC, "email": "ann@example.com", "email_verified": True, "roles": ["ops", 7, ""], "sub": "x"}
    found = verify(spec, token(**claims))
    assert (found.principal, found.groups) == (f"oidc:{OIDC}#ann@example.com", ("ops",))
    many = verify(spec, token(**{**claims, "roles": [f"g{number}" for number in range(MAX_GROUPS + 5)]}))
    assert len(many.groups) == MAX_GROUPS


def test_two_issuers_are_kept_apart() -> None:
    spec = document(accounts(), oidc(jwks=key_set(jwk("k1", number=1))))
    assert verify(spec, token(number=1, iss=OIDC, sub=ACCOUNT)).principal == f"oidc:{OIDC}#{ACCOUNT}"
    assert "signature" in refusal(token(number=1), spec).message


def test_a_static_token_is_known_by_its_hash() -> None:
    hashed = hashlib.sha256(b"secret-of-shop").hexdigest()
    spec = document(tokens=(StaticToken("shop", hashed),))
    expected = Identity("token:shop", IdentityKind.TOKEN, None, credential=f"sha256:{hashed}")
    assert verify(spec, "secret-of-shop") == expected
    assert "no static one" in refusal("secret-of-shoq", spec).message
    assert "no static one" in refusal(hashed, spec).message, "the hash itself opens nothing"
    over = document(tokens=(StaticToken("shop", hashed, expires_ms=1_000),))
    assert refusal("secret-of-shop", over).message == "token shop has expired at 1970-01-01T00:00:01Z"


UNNAMED = replace(accounts(), issuer="", jwks="")  # the API server says its name and has its keys


def test_the_keys_of_service_accounts_are_asked_of_the_api_server() -> None:
    api = FakeApiServer()
    for issuer in (UNNAMED, accounts("")):
        assert verify(document(issuer), token(), api=api).principal == ACCOUNT
    assert api.asked.count("/openid/v1/jwks") == 2
    assert api.asked.count("/.well-known/openid-configuration") == 1, "asked for the name where that was left out"


# ---------------------------------------------------------------- bad ones
def test_an_expired_token_says_since_when() -> None:
    assert refusal(token(exp=1_700_000_000)).message == "the token has expired at 2023-11-14T22:13:20Z"


def test_a_token_that_is_not_valid_yet_says_when() -> None:
    assert refusal(token(nbf=4_000_000_000)).message == "the token is not valid before 2096-10-02T07:06:40Z"


def test_clocks_may_differ_a_little() -> None:
    now = time.time()
    verify(document(accounts()), token(exp=now - LEEWAY_SECONDS + 10), token(nbf=now + LEEWAY_SECONDS - 10))
    assert refusal(token(exp=now - LEEWAY_SECONDS - 5)).kind == "expired"
    assert refusal(token(nbf=now + LEEWAY_SECONDS + 5)).kind == "early"


@pytest.mark.parametrize("found", ["https://kubernetes.default.svc", ["a", "b"], ["", ""], AUDIENCE + "x"])
def test_a_token_for_another_audience_says_which(found: object) -> None:
    assert refusal(token(aud=found)).message == f"the token is for audience {found!r}, expected '{AUDIENCE}'"


def test_an_unknown_issuer_is_named_with_those_that_count() -> None:
    message = refusal(token(iss="https://evil.example.com")).message
    assert message == f"the token's issuer is 'https://evil.example.com'; this cluster takes those of: {ISSUER}"
    assert "takes those of: none" in refusal(token(), document()).message


@pytest.mark.parametrize("iss", [None, "", 7, ["a"], {}])
def test_an_issuer_that_is_no_name_is_unknown(iss: object) -> None:
    api = FakeApiServer()
    assert refusal(token(iss=iss), document(UNNAMED), api).kind == "issuer"


def test_another_clusters_token_is_refused_though_its_issuer_has_the_same_name() -> None:
    assert "has no key 'k2'" in refusal(token(key_id="k2", number=1)).message
    assert "signature" in refusal(token(key_id="k1", number=1)).message, "not even where its key has the same id"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, "HS256", "HS512", "ES256K", ["RS256"], {}])
def test_only_signatures_by_public_key_count(algorithm: object) -> None:
    message = refusal(raw({"alg": algorithm, "kid": "k1"}, CLAIMS)).message
    assert message.startswith(f"the token is signed with {algorithm!r}; allowed: RS256")


@pytest.mark.parametrize("secret", [public_pem("RS256"), key_set(jwk("k1", "RS256")).encode()])
def test_a_public_key_is_no_secret_to_sign_with(secret: bytes) -> None:
    """The forgery by HS256 with the issuer's public key."""
    forged = raw({"alg": "HS256", "kid": "k1", "typ": "JWT"}, CLAIMS)
    head = forged.rsplit(".", 1)[0]
    mac = base64.urlsafe_b64encode(hmac.digest(secret, head.encode(), "sha256")).rstrip(b"=").decode()
    assert refusal(f"{head}.{mac}", document(accounts(key_set(jwk("k1", "RS256"))))).kind == "algorithm"


def test_a_signature_is_of_the_keys_kind() -> None:
    spec = document(accounts(key_set(jwk("k1", "RS256", alg="RS256"))))
    assert refusal(token("RS512"), spec).message == "the token is signed with RS512; its key is for RS256"
    assert "its key is for RS256" in refusal(token("ES256"), spec).message


def test_a_changed_token_has_no_signature() -> None:
    head, _, mac = token().split(".")
    other = raw({}, {**CLAIMS, "sub": "system:serviceaccount:kube-system:admin"}).split(".")[1]
    assert refusal(f"{head}.{other}.{mac}").message == "the token's signature is not that of its issuer's key"
    assert refusal(f"{head}.{other}.").kind == "signature"


@pytest.mark.parametrize("key_id", ["", None, "k2", "k" * 10_000, "../../k1"])
def test_an_unknown_key_is_refused(key_id: str | None) -> None:
    found = refusal(token(key_id=key_id))
    assert found.kind == "key"
    assert len(found.message) < 500


def test_a_token_of_a_megabyte_is_refused_unread() -> None:
    began = time.process_time()
    message = refusal("a." + "b" * (1 << 20) + ".c").message
    assert message == f"the token has 1,048,580 bytes; allowed: {MAX_TOKEN_BYTES:,}, of ASCII"
    assert time.process_time() - began < 0.5
    assert "of ASCII" in refusal("é" * 10).message
    assert "of ASCII" in refusal("\ud800").message


@pytest.mark.parametrize(
    "sent",
    [
        "a.b.c", "...", "..", "a.b", "a", ".", raw({}, []), raw({"alg": "ES256"}, 7), raw({"alg": "ES256"}, None),
        "e30.e30.", "\x00.\x00.\x00", base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.", "a" * MAX_TOKEN_BYTES,
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused(sent: str) -> None:
    assert refusal(sent).message.startswith("the token")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": None}, "has no exp"),
        ({"aud": None}, "has no aud"),
        ({"exp": "soon"}, "refused"),
        ({"exp": float("nan")}, "refused|can't be read"),
        ({"exp": float("inf")}, "refused|can't be read"),
        ({"nbf": "soon"}, "refused"),
        ({"nbf": float("inf")}, "refused|can't be read"),
        ({"aud": 7}, "audience|refused"),
        ({"aud": [AUDIENCE, 7]}, "audience|refused"),
        ({"sub": None}, "is no ServiceAccount"),
        ({"sub": "system:serviceaccount:shop"}, "is no ServiceAccount"),
        ({"sub": "system:node:a"}, "is no ServiceAccount"),
        ({"sub": "system:serviceaccount:a:b:c"}, "is no ServiceAccount"),
        ({"sub": ACCOUNT + "\n"}, "is no ServiceAccount"),
        ({"sub": 7}, "is no ServiceAccount|refused"),
    ],
)
def test_signed_claims_that_cannot_be_meant_are_refused(claims: dict, why: str) -> None:
    with pytest.raises(TokenRefused, match=why):
        verify(document(accounts()), token(**claims))


@pytest.mark.parametrize(
    ("more", "claims", "why"),
    [
        ({}, {"sub": ""}, "expected text that names a user"),
        ({}, {"sub": "a\nb"}, "expected text that names a user"),
        ({}, {"sub": "a" * 600}, "characters; allowed: 512"),
        ({"principal_claim": "user"}, {}, "claim user is None"),
        ({"principal_claim": "email"}, {"email": "a@b"}, "has not verified the address"),
        ({"principal_claim": "email"}, {"email": "a@b", "email_verified": "true"}, "has not verified the address"),
    ],
)
def test_an_oidc_token_that_names_nobody_is_refused(more: dict, claims: dict, why: str) -> None:
    with pytest.raises(TokenRefused, match=why):
        verify(document(oidc(**more)), token(**{"iss": OIDC, **claims}))


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "token x", "x" * 1_000])
def test_a_header_that_is_no_bearers_is_refused(authorization: str) -> None:
    with pytest.raises(TokenRefused, match="expected: Bearer TOKEN"):
        bearer(authorization)
    assert bearer("bearer  abc ") == "abc"


# ---------------------------------------------------------------- the cache
def test_a_known_token_is_verified_once_until_the_document_changes() -> None:
    async def run() -> None:
        api = FakeApiServer()
        verifier = TokenVerifier(api)
        verifier.apply(document(UNNAMED))
        sent = token()
        await verifier.verify(sent)
        api.away = True
        for _ in range(3):
            assert (await verifier.verify(sent)).principal == ACCOUNT
        verifier.apply(document(oidc()))
        with pytest.raises(TokenRefused, match="issuer"):
            await verifier.verify(sent)
        verifier.close()

    asyncio.run(run())


def test_a_known_token_is_looked_at_again_when_it_expires() -> None:
    async def run() -> None:
        wall = [time.time() * 1_000]
        verifier = TokenVerifier(now_ms=lambda: int(wall[0]))
        verifier.apply(document(accounts()))
        sent = token(exp=time.time() + 100)
        first = await verifier.verify(sent)
        assert await verifier.verify(sent) is first
        wall[0] += (101 + LEEWAY_SECONDS) * 1_000
        with pytest.raises(TokenRefused, match="the token has expired at"):
            await verifier.verify(sent)
        verifier.close()

    asyncio.run(run())


@pytest.mark.parametrize("known", [True, False])
def test_a_clock_that_is_set_an_hour_ahead_ends_no_token(known: bool) -> None:
    """The node does not believe it, and its tokens go by what it believes: it would refuse all clients else."""

    async def run() -> None:
        wall, boot = [time.time_ns() // 1_000_000], 7_000_000
        clock = GuardedClock(wall=lambda: wall[0], boot=lambda: boot)
        verifier = TokenVerifier(now_ms=clock.now_ms)
        verifier.apply(document(accounts()))

        class Verified(NoIdentities):
            async def resolve(self, *said: object) -> Identity:
                return await verifier.verify(str(said[2]))

        callers = Callers(Verified(), [], now_ms=clock.now_ms)
        shown = Said((), token(exp=time.time() + 600, nbf=time.time() - 1), None)
        if known:
            await callers.find_kept("tokens", "peer", shown)
        wall[0] += 3_600_000
        caller = await callers.find_kept("tokens", "peer", shown)
        assert clock.disbelieved_ms > 3_500_000
        left = caller.seconds_left()
        assert left is not None
        assert 500 < left < 700
        verifier.close()

    asyncio.run(run())


@pytest.mark.parametrize("sent", [{"exp": 1_700_000_000}, {"nbf": 4_000_000_000}])
def test_a_node_whose_clock_differs_from_the_others_leaves_it_to_them(sent: dict[str, int]) -> None:
    """So that a client goes on to another node, and does not end with an error about a token that is good."""

    async def run() -> None:
        verifier = TokenVerifier(skew=lambda: "it is 3,600 s ahead of 2 of 2 nodes")
        verifier.apply(document(accounts()))
        with pytest.raises(Refused, match="; but this node's clock differs: it is 3,600 s ahead") as refused:
            await verifier.verify(token(**sent))
        assert refused.value.reason == "NOT_SERVING"
        with pytest.raises(TokenRefused, match="for audience"):
            await verifier.verify(token(aud="other", **sent))
        verifier.close()

    asyncio.run(run())


def test_an_issuer_that_is_taken_away_and_given_back_counts_at_once() -> None:
    async def run() -> None:
        verifier = TokenVerifier()
        sent = token()
        for spec, taken in ((accounts(), True), (oidc(), False), (accounts(), True)):
            verifier.apply(document(spec))
            if taken:
                assert (await verifier.verify(sent)).principal == ACCOUNT
            else:
                with pytest.raises(TokenRefused, match="the token's issuer is"):
                    await verifier.verify(sent)
        verifier.close()

    asyncio.run(run())


def test_until_there_is_a_document_no_token_is_called_wrong() -> None:
    """A client that meets a new node asks again; it does not give up."""

    async def run() -> None:
        verifier = TokenVerifier()
        for sent in ("static", token(), "é" * 10):
            with pytest.raises(Refused, match="has not read the security document yet") as refused:
                await verifier.verify(sent)
            assert refused.value.reason == "NOT_SERVING"
        verifier.apply(document())
        with pytest.raises(TokenRefused, match="the token is no static one"):
            await verifier.verify("static")
        verifier.close()

    asyncio.run(run())


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaynode.auth.tokens.MAX_KNOWN", 5)

    async def run() -> None:
        verifier = TokenVerifier()
        verifier.apply(document(accounts()))
        for number in range(20):
            await verifier.verify(token(jti=str(number)))
        assert len(verifier._known) == 5
        verifier.close()

    asyncio.run(run())


# ---------------------------------------------------------------- TokenReview
def reviewed(**status: Any) -> FakeApiServer:
    good = {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": ACCOUNT}}
    return FakeApiServer(status={**good, **status})


REVIEWING = document(accounts("", verify=Verification.TOKEN_REVIEW))


def test_the_api_server_may_be_asked_instead() -> None:
    api = reviewed()
    assert verify(REVIEWING, token(), api=api).principal == ACCOUNT
    assert api.asked == [AUDIENCE], "the audience is always given"


def test_a_review_is_kept_for_a_while() -> None:
    api, sent = reviewed(), token()
    verify(REVIEWING, sent, sent, sent, api=api)
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"authenticated": False, "error": "pod is gone"}, "pod is gone"),
        ({"authenticated": "true"}, "does not take the token"),
        ({"audiences": ["https://kubernetes.default.svc"]}, "expected"),
        ({"audiences": None}, "expected"),
        ({"user": {"username": "system:node:a"}}, "no ServiceAccount"),
        ({"user": None}, "no ServiceAccount"),
    ],
)
def test_what_the_api_server_does_not_take_is_refused(status: dict, why: str) -> None:
    assert why in refusal(token(), REVIEWING, reviewed(**status)).message


# ---------------------------------------------------------------- while it can't be known
@pytest.mark.parametrize("spec", [document(UNNAMED), document(accounts("", verify=Verification.TOKEN_REVIEW))])
def test_a_token_that_cannot_be_verified_now_may_be_tried_again(spec: SecuritySpec) -> None:
    api = FakeApiServer()
    api.away = True
    for server in (api, None):
        with pytest.raises(Refused) as refused:
            verify(spec, token(), api=server)
        assert refused.value.reason == "NOT_SERVING"
