"""Sign-in at a provider through the console's own routes: the cookies that it takes, and that it gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from delayconsole.app import ConsoleApp
from delayconsole.cluster_sign_in import BACK, COOKIE, PROVIDER, PROVIDER_COOKIE, ClusterSignIn
from delayconsole.identities import Admitted
from delayconsole.oidc import OidcClient, OidcFlow
from delayconsole.page import ConsolePage, PageView
from delayconsole.refusals import SignInRefused
from delayconsole.security import OwnHosts, SessionKey
from delayconsole.sessions import Sessions
from delayconsole.visitor import Visitor

from tests.console.support.provider import CLIENT, Provider, providing

HOST = "console.example.com"


class KnownToNodes:
    """As if nodes knew whoever the provider knows. shown: what they were shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.refused = ""

    async def by_node_token(self, token: str, name: str = "") -> Admitted:
        self.shown.append(token)
        if self.refused:
            raise SignInRefused(self.refused)

        async def close() -> None:
            pass

        admin: Any = None
        return Admitted(Visitor(SessionKey(), admin, name, may_leave=True), close, 60.0)


async def shown(view: PageView) -> dict[str, Any]:
    return {"status": 200, "message": f"Hello, {view.visitor.name}"}


@dataclass(frozen=True, slots=True)
class World:
    provider: Provider
    nodes: KnownToNodes
    session: ClientSession
    url: str

    async def get(self, path: str, **cookies: str) -> tuple[int, dict[str, str], SimpleCookie, str]:
        sent = {"Host": HOST, "Cookie": "; ".join(f"{name}={text}" for name, text in cookies.items())}
        async with self.session.get(self.url + path, headers=sent, allow_redirects=False) as answer:
            return answer.status, dict(answer.headers), answer.cookies, await answer.text()

    async def begun(self) -> tuple[str, str]:
        """The path that the provider sends the browser back to, and the browser's cookie."""
        status, headers, cookies, _ = await self.get(PROVIDER)
        assert status == 303
        back = urlsplit(self.provider.sign_in(dict(parse_qsl(urlsplit(headers["Location"]).query))))
        assert f"{back.scheme}://{back.netloc}{back.path}" == f"https://{HOST}{BACK}"
        kept = cookies[PROVIDER_COOKIE]
        assert (kept["httponly"], kept["secure"], kept["samesite"]) == (True, True, "Lax")
        return f"{back.path}?{back.query}", kept.value


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with providing() as provider:
        nodes: Any = KnownToNodes()
        flow = OidcFlow(OidcClient(provider.issuer, CLIENT, ca=provider.ca_pem))
        sign_in = ClusterSignIn(nodes, Sessions(), kubernetes=False, oidc=flow)
        page = ConsolePage("hello", "Hello", "/hello", "error.html", shown)
        own = OwnHosts(frozenset({HOST}))
        app = ConsoleApp(sign_in, own, [page], allow_changes=False, cluster="c", audit=lambda _: None)
        async with TestServer(app.application()) as server, ClientSession() as session:
            yield World(provider, nodes, session, str(server.make_url("")).rstrip("/"))


def test_the_browser_that_began_comes_back_signed_in() -> None:
    async def main() -> None:
        async with world() as it:
            assert "Sign in at the provider" in (await it.get("/hello"))[3]
            back, browser = await it.begun()
            status, headers, cookies, _ = await it.get(back, **{PROVIDER_COOKIE: browser})
            assert (status, headers["Refresh"]) == (200, "0; url=/"), (
                "a page of ours leads on: Strict cookies come then"
            )
            kept = cookies[COOKIE]
            assert (kept["httponly"], kept["secure"], kept["samesite"], kept["path"]) == (True, True, "Strict", "/")
            assert cookies[PROVIDER_COOKIE].value == "", "of no more use"
            status, _, _, text = await it.get("/hello", **{COOKIE: kept.value})
            assert (status, "Hello, ann@example.com" in text) == (200, True)
            assert it.nodes.shown[0] not in text + str(headers)

    asyncio.run(main())


@pytest.mark.parametrize("browser", [None, "", "another"])
def test_a_link_of_somebody_elses_sign_in_signs_nobody_in(browser: str | None) -> None:
    async def main() -> None:
        async with world() as it:
            back, _ = await it.begun()
            sent = {} if browser is None else {PROVIDER_COOKIE: browser}
            status, _, cookies, text = await it.get(back, **sent)
            assert (status, COOKIE in cookies, it.nodes.shown) == (403, False, [])
            assert "begun in another browser" in text

    asyncio.run(main())


def test_whom_the_nodes_do_not_know_is_told_so() -> None:
    async def main() -> None:
        async with world() as it:
            it.nodes.refused = "the nodes do not know this token: <b>issuer</b>"
            back, browser = await it.begun()
            status, _, cookies, text = await it.get(back, **{PROVIDER_COOKIE: browser})
            assert (status, COOKIE in cookies) == (403, False)
            assert "&lt;b&gt;issuer" in text

    asyncio.run(main())


def test_a_provider_that_is_away_is_a_sentence() -> None:
    async def main() -> None:
        async with world() as it:
            it.provider.metadata = {"issuer": "https://evil.example"}
            status, _, _, text = await it.get(PROVIDER)
            assert status == 403
            assert "says that it is" in text

    asyncio.run(main())
