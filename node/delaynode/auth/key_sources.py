"""Where an issuer's keys come from: the document itself, an https address, or the API server. Blocks; called in a
thread."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any, Protocol

from delayregistry.security import IssuerKind, TokenIssuer

from delaynode.auth.keys import MAX_SET_BYTES, KeySet, KeysUnusable, read_keys

FETCH_SECONDS = 5.0  # for each answer
CONFIGURATION = "/.well-known/openid-configuration"
API_KEYS = "/openid/v1/jwks"


class ApiServer(Protocol):
    """What is asked of the API server. Raises OSError, with a sentence."""

    def get(self, path: str) -> Mapping[str, Any]: ...

    def review(self, token: str, audience: str) -> Mapping[str, Any]:
        """The TokenReview's status."""

    def close(self) -> None: ...


def fetch_keys(issuer: TokenIssuer, api: ApiServer | None) -> KeySet:
    """Raises KeysUnusable."""
    if issuer.jwks:
        return read_keys(issuer.jwks, issuer.issuer)
    try:
        if issuer.kind is IssuerKind.SERVICE_ACCOUNTS and not issuer.jwks_url:
            return _of_api_server(issuer, api)
        url = issuer.jwks_url or _configured(issuer)
        return read_keys(_get(url, issuer.ca), issuer.issuer)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise KeysUnusable(f"the keys of {issuer.issuer or issuer.kind} can't be fetched: {error}") from error


def _of_api_server(issuer: TokenIssuer, api: ApiServer | None) -> KeySet:
    if api is None:
        raise KeysUnusable("the keys of ServiceAccounts' tokens are the API server's, and this node has none to ask")
    name = issuer.issuer or str(api.get(CONFIGURATION).get("issuer") or "")
    if not name:
        raise KeysUnusable(f"the API server's {CONFIGURATION} names no issuer")
    return read_keys(json.dumps(dict(api.get(API_KEYS))), name)


def _configured(issuer: TokenIssuer) -> str:
    """Where an OIDC provider says that its keys are."""
    said = json.loads(_get(issuer.issuer.rstrip("/") + CONFIGURATION, issuer.ca))
    if not isinstance(said, dict) or said.get("issuer") != issuer.issuer:
        raise ValueError(f"{CONFIGURATION} is not of {issuer.issuer}")
    return str(said.get("jwks_uri") or "")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # it is an error then


def _get(url: str, ca: str) -> bytes:
    if not url.startswith("https://"):
        raise ValueError(f"{url!r} is no https URL")
    trust = ssl.create_default_context(cadata=ca or None)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), _NoRedirects())
    with opener.open(url, timeout=FETCH_SECONDS) as answer:
        content: bytes = answer.read(MAX_SET_BYTES + 1)
    if len(content) > MAX_SET_BYTES:
        raise ValueError(f"{url} answers with more than {MAX_SET_BYTES:,} bytes")
    return content
