"""Bad tokens at a running node, through both edges: each is refused with what is wrong, and disturbs nobody."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from delayclient.errors import DelayError, NotAuthenticated, from_rpc
from delaynode.auth.tokens import LEEWAY_SECONDS

from tests.auth.issuing import public_pem, token
from tests.serve.support.asking import DOCUMENT, UNKNOWN, Asking, secret
from tests.serve.support.client import poll
from tests.serve.support.secured import Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, edge: str) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tokens")
    with Secured(directory, "permissive", nodes=1, document=DOCUMENT).run() as running:
        yield running


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed_with_the_public_key() -> str:
    head = f"{encoded(json.dumps({'alg': 'HS256', 'kid': 'r1'}).encode())}.{token().split('.')[1]}"
    return f"{head}.{encoded(hmac.digest(public_pem('RS256'), head.encode(), 'sha256'))}"


BAD: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: token(exp=1_700_000_000), "has expired at 2023-11-14T22:13:20Z"),
    "not yet valid": (lambda: token(nbf=4_000_000_000), "is not valid before 2096-10-02T07:06:40Z"),
    "of another audience": (lambda: token(aud="https://kubernetes.default.svc"), "for audience 'https://kubernetes"),
    "with alg none": (
        lambda: ".".join((encoded(b'{"alg":"none"}'), token().split(".")[1], "")),
        "is signed with 'none'",
    ),
    "with HS256 and the public key": (signed_with_the_public_key, "is signed with 'HS256'"),
    "of another cluster": (lambda: token(number=1), "signature is not that of its issuer's key"),
    "of another cluster's key": (lambda: token(key_id="k9", number=1), "has no key 'k9'"),
    "of an unknown issuer": (lambda: token(iss="https://evil.example.com"), "issuer is 'https://evil.example.com'"),
    "a static one that there is not": (lambda: secret("nobody"), "no static one of this cluster"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_is_refused_with_what_is_wrong(secured: Secured, kind: str) -> None:
    make, why = BAD[kind]
    with secured.dial("tokens") as client:
        ended = Asking(client.channel, f"Bearer {make()}").ask("QueryRoute")
        assert ended is not None
        error = from_rpc(ended)
    assert type(error) is NotAuthenticated
    assert why in str(error)
    assert not error.retryable


def test_a_caller_without_a_token_is_told_to_send_one(secured: Secured) -> None:
    with secured.dial("tokens") as client:
        error = from_rpc(Asking(client.channel).ask("QueryRoute"))
    assert "listener tokens asks who calls: send `authorization: Bearer TOKEN`" in str(error)


def test_a_node_without_a_document_calls_no_token_wrong(tmp_path: Path, edge: str) -> None:
    """Whoever meets a new node asks again: a client gives up what is refused."""
    with Secured(tmp_path, "permissive", nodes=1, document=None).run() as new, new.dial("tokens") as client:
        asking = Asking(client.channel, f"Bearer {secret('super')}")
        told: list[DelayError] = []

        def is_told() -> bool:
            ended = asking.ask("QueryRoute")
            assert ended is not None
            told.append(from_rpc(ended))
            return bool(told[-1].reason)  # none as long as nobody listens

        poll("the node answers", is_told)
        assert all(error.retryable for error in told)
        assert told[-1].reason == "NOT_SERVING"
        assert "has not read the security document yet" in str(told[-1])
        new.running.registry.put_security(DOCUMENT, None)
        poll("the token is taken", lambda: asking.ask("QueryRoute") is None)


def test_a_token_of_a_megabyte_disturbs_nobody(secured: Secured) -> None:
    with secured.dial("tokens") as client, secured.dial("tokens") as other:
        assert Asking(client.channel, "Bearer " + "a" * (1 << 20)).ask("QueryRoute") is not None
        assert Asking(other.channel, f"Bearer {secret('super')}").may("QueryRoute")


def test_a_thousand_unknown_keys_disturb_nobody(secured: Secured) -> None:
    body, mac = token().split(".")[1:]
    with secured.dial("tokens") as client, secured.dial("tokens") as other:
        good = Asking(other.channel, f"Bearer {secret('super')}")
        for number in range(1_000):
            head = encoded(json.dumps({"alg": "ES256", "kid": f"x{number}"}).encode())
            assert Asking(client.channel, f"Bearer {head}.{body}.{mac}").code("QueryRoute") is UNKNOWN
            assert number % 50 or good.may("QueryRoute")


def test_a_stream_ends_when_its_token_does(secured: Secured) -> None:
    with secured.dial("tokens") as client:
        expires = int(time.time()) - LEEWAY_SECONDS + 4
        call = client.channel.stream_stream("/delay.v1.DelayService/ReceiveStream")
        began = time.monotonic()

        def nothing() -> Iterator[bytes]:
            time.sleep(15)
            yield from ()

        with pytest.raises(grpc.RpcError) as ended:
            list(call(nothing(), metadata=(("authorization", f"Bearer {token(exp=expires)}"),), timeout=20))
        assert ended.value.code() is UNKNOWN
        assert 1 < time.monotonic() - began < 10
