"""A provider of OpenID Connect in the test's own event loop, by TLS: what it answers is the test's to spoil"""

from __future__ import annotations

import base64
import hashlib
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import trustme
from aiohttp import web

from tests.auth.issuing import jwk, token

CLIENT = "delay"
SECRET = "the client's secret"


class Provider:
    """asked: the forms that came to its token endpoint. claims, metadata, answer: what is other than it should be."""

    def __init__(self, ca: trustme.CA) -> None:
        self.ca_pem = ca.cert_pem.bytes().decode()
        self.issuer = ""
        self.asked: list[dict[str, str]] = []
        self.claims: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.answer: dict[str, Any] | None = None
        self.signed: dict[str, Any] = {}
        self._codes: dict[str, dict[str, str]] = {}

    def sign_in(self, query: dict[str, str]) -> str:
        """As somebody who signs in there: where the browser is sent back to."""
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        back = urlencode({"code": code, "state": query["state"], "iss": self.issuer})
        return f"{query['redirect_uri']}?{back}"

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._metadata)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        app.router.add_get("/keys", self._keys)
        return app

    async def _metadata(self, request: web.Request) -> web.Response:
        found = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }
        return web.json_response({**found, **self.metadata})

    async def _authorize(self, request: web.Request) -> web.Response:
        return web.Response(status=303, headers={"Location": self.sign_in(dict(request.query))})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(text) for name, text in (await request.post()).items()}
        self.asked.append(form)
        if self.answer is not None:
            return web.json_response(self.answer)
        begun = self._codes.pop(form["code"], None)
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        if begun is None or begun["redirect_uri"] != form["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        if base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != begun["code_challenge"]:
            return web.json_response({"error": "invalid_grant", "error_description": "another verifier"}, status=400)
        claims = {"iss": self.issuer, "aud": CLIENT, "sub": "u1", "email": "ann@example.com", "iat": time.time(),
                  "nonce": begun["nonce"], **self.claims}  # fmt: skip
        return web.json_response({"id_token": token(**self.signed, **claims), "token_type": "Bearer"})

    async def _keys(self, request: web.Request) -> web.Response:
        return web.json_response({"keys": [jwk("k1")]})


@asynccontextmanager
async def providing() -> AsyncIterator[Provider]:
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    made = Provider(ca)
    runner = web.AppRunner(made.application())
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0, ssl_context=context).start()
    made.issuer = f"https://localhost:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()
