"""A console in the test's own event loop, with pages that the test makes, and a client whose headers can be anything"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from delayconsole.app import ConsoleApp
from delayconsole.local_sign_in import LocalSignIn
from delayconsole.page import ConsolePage
from delayconsole.security import OwnOrigins, SessionKey
from delayconsole.visitor import Visitor

ORIGIN = "http://127.0.0.1:7180"
HOST = "127.0.0.1:7180"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def visible(self) -> str:
        """What a reader sees of it, more or less."""
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", self.text))


class MadeConsole:
    """Reached by requests that say that they go to HOST, whatever port the server has."""

    def __init__(
        self, session: ClientSession, url: str, sign_in: LocalSignIn, key: SessionKey, audited: list[Any]
    ) -> None:
        """audited: events of its audit log, as they come."""
        self._session, self._url = session, url
        self.sign_in, self.key, self.audited = sign_in, key, audited
        self.cookie = f"delayconsole-7180={key.cookie}"

    async def ask(self, path: str, method: str = "GET", data: Any = None, **headers: str | None) -> Answer:
        """headers: Origin, Host, Cookie and so on; those of a browser where not given, left out where None."""
        whole: dict[str, str | None] = {"Host": HOST, "Cookie": self.cookie}
        if method == "POST":
            whole["Origin"] = ORIGIN
        whole |= {name.replace("_", "-"): text for name, text in headers.items()}
        sent = {name: text for name, text in whole.items() if text is not None}
        async with self._session.request(
            method, self._url + path, data=data, headers=sent, allow_redirects=False
        ) as answer:
            return Answer(answer.status, answer.headers.copy(), await answer.text())

    async def post(self, path: str, fields: Mapping[str, str], **headers: str | None) -> Answer:
        """A form of the console's own pages."""
        return await self.ask(path, "POST", {"csrf": self.key.csrf, **fields}, **headers)


@asynccontextmanager
async def made_console(
    pages: Sequence[ConsolePage], *, admin: Any = None, allow_changes: bool = False, objects: Any = None
) -> AsyncIterator[MadeConsole]:
    key = SessionKey()
    sign_in = LocalSignIn(Visitor(key, admin, "you", objects=objects), 7180)
    audited: list[Mapping[str, object]] = []
    own = OwnOrigins.of([ORIGIN])
    app = ConsoleApp(sign_in, own, pages, allow_changes=allow_changes, cluster="c1", audit=audited.append)
    async with TestServer(app.application()) as server, ClientSession() as session:
        yield MadeConsole(session, str(server.make_url("")).rstrip("/"), sign_in, key, audited)
