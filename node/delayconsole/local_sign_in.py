"""Sign-in on one's own machine: by a link with a key in it, which only the terminal has shown.

Other users of the machine reach 127.0.0.1 too. They have neither the key nor the cookie.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from delayconsole.security import same
from delayconsole.visitor import Visitor

PATH = "/sign-in"


class LocalSignIn:
    """One visitor: whoever started the console. All browsers that the link is opened in share the session."""

    def __init__(self, visitor: Visitor, port: int) -> None:
        self._visitor = visitor
        self._cookie = f"delayconsole-{port}"  # cookies know no ports: another console's must not replace it
        self.key = secrets.token_urlsafe(32)

    def routes(self) -> Iterable[web.RouteDef]:
        return [web.get(PATH, self._enter)]

    async def visitor(self, request: web.Request) -> Visitor | None:
        return self._visitor if same(request.cookies.get(self._cookie), self._visitor.session.cookie) else None

    def invitation(self) -> Mapping[str, Any]:
        said = "Open the link that `delayctl console` printed when it started."
        return {"sentences": (said,), "provider": "", "kubernetes": False, "tokens": False}

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        if not same(request.query.get("key"), self.key):
            raise web.HTTPForbidden(text="This link is of a console that has ended.")
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(self._cookie, self._visitor.session.cookie, httponly=True, samesite="Strict", path="/")
        return answer
