"""Sign-in at a console in a cluster: by a token that the visitor has, or at a provider.

The token stays in this process. The browser has a cookie that names the session: HttpOnly, Secure, SameSite=Strict,
for this host alone. A browser that comes back from the provider comes from another site, and does not send that cookie
until a page of ours leads on; so the callback answers with such a page, and knows its browser by a cookie of its own
(SameSite=Lax, ten minutes).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from delayconsole.forms import read_form
from delayconsole.identities import Admitted, VisitorIdentities
from delayconsole.oidc import PENDING_S, OidcError, OidcFlow
from delayconsole.refusals import SignInRefused
from delayconsole.security import RequestRefused
from delayconsole.sessions import Sessions
from delayconsole.visitor import Visitor

COOKIE: Final = "__Host-delayconsole"
PROVIDER_COOKIE: Final = "__Host-delayconsole-provider"
PATH: Final = "/sign-in"
OUT: Final = "/sign-out"
PROVIDER: Final = "/sign-in/provider"
BACK: Final = "/sign-in/back"
MAX_AT_ONCE: Final = 16
"""Sign-ins that wait for the cluster; more are refused."""
_log = logging.getLogger(__name__)


class ClusterSignIn:
    """See SignIn. A stranger may try tokens: each costs the nodes one call, and MAX_AT_ONCE are under way."""

    def __init__(
        self, identities: VisitorIdentities, sessions: Sessions, *, kubernetes: bool, oidc: OidcFlow | None
    ) -> None:
        self._identities, self._sessions, self._oidc = identities, sessions, oidc
        self._kubernetes = kubernetes
        self._under_way = 0

    def routes(self) -> Iterable[web.RouteDef]:
        found = [web.post(PATH, self._enter), web.post(OUT, self._leave)]
        if self._oidc is not None:
            found += [web.get(PROVIDER, self._to_provider), web.get(BACK, self._from_provider)]
        return found

    async def visitor(self, request: web.Request) -> Visitor | None:
        return self._sessions.find(request.cookies.get(COOKIE))

    def invitation(self) -> Mapping[str, Any]:
        return {"sentences": (), "kubernetes": self._kubernetes, "provider": PROVIDER if self._oidc else "",
                "tokens": True}  # fmt: skip

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        form = await read_form(request)
        token, account = str(form.get("token", "")), str(form.get("account", ""))
        if form.get("with") == "kubernetes":
            admitted = await self._one_of_few(self._identities.by_kubernetes(token, account))
        else:
            admitted = await self._one_of_few(self._identities.by_node_token(token))
        answer = web.Response(status=303, headers={"Location": "/"})
        self._begin(answer, admitted)
        return answer

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        """The origin was checked: no other site signs anybody out."""
        self._sessions.end(request.cookies.get(COOKIE))
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return answer

    async def _to_provider(self, request: web.Request) -> web.StreamResponse:
        assert self._oidc is not None
        try:
            where, browser = await self._oidc.begin(f"https://{request.host}{BACK}")
        except OidcError as error:
            raise SignInRefused(str(error)) from None
        answer = web.Response(status=303, headers={"Location": where})
        answer.set_cookie(
            PROVIDER_COOKIE, browser, max_age=int(PENDING_S), path="/", secure=True, httponly=True, samesite="Lax"
        )
        return answer

    async def _from_provider(self, request: web.Request) -> web.StreamResponse:
        assert self._oidc is not None
        try:
            found = await self._oidc.finish(request.query, request.cookies.get(PROVIDER_COOKIE))
        except OidcError as error:
            raise SignInRefused(str(error)) from None
        admitted = await self._one_of_few(self._identities.by_node_token(found.token, found.name))
        text = '<!doctype html><title>Signed in</title><a href="/">Signed in: go on to the console</a>'
        answer = web.Response(text=text, content_type="text/html", headers={"Refresh": "0; url=/"})
        answer.del_cookie(PROVIDER_COOKIE, path="/", secure=True, httponly=True, samesite="Lax")
        self._begin(answer, admitted)
        return answer

    def _begin(self, answer: web.Response, admitted: Admitted) -> None:
        cookie = self._sessions.begin(admitted.visitor, admitted.close, admitted.lifetime_s)
        answer.set_cookie(COOKIE, cookie, path="/", secure=True, httponly=True, samesite="Strict")
        _log.info("%s has signed in", admitted.visitor.name)

    async def _one_of_few(self, work: Awaitable[Admitted]) -> Admitted:
        if self._under_way >= MAX_AT_ONCE:
            asyncio.ensure_future(work).cancel()
            raise RequestRefused(503, "many are signing in just now: try again in some seconds")
        self._under_way += 1
        try:
            return await work
        finally:
            self._under_way -= 1
