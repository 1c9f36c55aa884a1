"""What the console lets in, what it asks before it changes anything, and what its answers always carry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from delayclient.errors import DelayError, NotAllowed, NotFound, Unavailable
from delayconsole.page import ActionPlan, ActionResult, BadInput, ConsoleAction, ConsolePage, PageView
from delayconsole.security import OwnOrigins, RequestRefused

from tests.console.support.made_console import MadeConsole, made_console

XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Counter:
    """A page whose action counts how often it was done."""

    def __init__(self) -> None:
        self.here, self.done = 3, 0
        self.fails: DelayError | None = None
        self.shown: list[PageView] = []
        drop = ConsoleAction("drop", "Drop", self._plan, self._run)
        self.page = ConsolePage("things", "Things", "/things", "error.html", self._show, (drop,))

    async def _show(self, view: PageView) -> Mapping[str, Any]:
        self.shown.append(view)
        return {"status": 200, "message": view.query.text("say")}

    async def _plan(self, view: PageView) -> ActionPlan:
        text = view.form.text("what")
        return ActionPlan(f"Drop {text}?", self.here, view.visitor.command("drop", text), [("What", text)])

    async def _run(self, view: PageView, plan: ActionPlan) -> ActionResult:
        if self.fails is not None:
            raise self.fails
        self.done += plan.count
        return ActionResult(f"Dropped {plan.count}.", [("What", view.form.text("what"))])


def tried(test: Callable[[MadeConsole, Counter], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        counter = Counter()
        async with made_console([counter.page], **options) as console:
            await test(console, counter)

    asyncio.run(main())


def test_a_browser_gets_in_by_the_link_alone() -> None:
    async def test(console: MadeConsole, _: Counter) -> None:
        assert (await console.ask("/things", Cookie=None)).status == 401
        assert (await console.ask("/sign-in?key=guess", Cookie=None)).status == 403
        let_in = await console.ask(f"/sign-in?key={console.sign_in.key}", Cookie=None)
        assert (let_in.status, let_in.headers["Location"]) == (303, "/")
        cookie = let_in.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await console.ask("/things", Cookie=cookie.partition(";")[0])).status == 200
        home = await console.ask("/")
        assert (home.status, home.headers.get("Location")) == (303, "/things"), "where the link ends"

    tried(test)


@pytest.mark.parametrize("cookie", ["delayconsole-7180=0", "delayconsole-7180=", "delayconsole-7181={}", "{}", "é=1"])
def test_a_forged_cookie_is_none(cookie: str) -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        forged = cookie.format(console.key.cookie)
        assert (await console.ask("/things", Cookie=forged)).status == 401
        assert (await console.post("/things/drop", {"what": "x", "confirmed": "3"}, Cookie=forged)).status == 401
        assert (counter.shown, counter.done) == ([], 0)

    tried(test, allow_changes=True)


@pytest.mark.parametrize(
    "host", ["evil.example:7180", "127.0.0.1", "127.0.0.1:80", "[::1]:7180", "127.0.0.1:7180.evil"]
)
def test_another_host_is_refused_also_with_the_cookie(host: str) -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        for path in ("/things", "/static/console.css", f"/sign-in?key={console.sign_in.key}"):
            refused = await console.ask(path, Host=host)
            assert refused.status == 421
            assert "Set-Cookie" not in refused.headers
        assert counter.shown == []

    tried(test)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Origin": "https://127.0.0.1:7180"},
        {"Origin": "http://127.0.0.1:7181"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_change_from_another_origin_is_refused(headers: dict[str, str | None]) -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        refused = await console.post("/things/drop", {"what": "x", "confirmed": "3"}, **headers)
        assert (refused.status, counter.done) == (403, 0)

    tried(test, allow_changes=True)


@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
def test_a_change_without_the_sessions_token_is_refused(token: str) -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        refused = await console.post("/things/drop", {"what": "x", "confirmed": "3", "csrf": token})
        assert (refused.status, counter.done) == (403, 0)
        assert "another session" in refused.visible

    tried(test, allow_changes=True)


def test_a_change_is_asked_first_and_done_when_confirmed() -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        asked = await console.post("/things/drop", {"what": "it"})
        assert asked.status == 200
        assert "Drop it?" in asked.visible
        assert "delayctl drop it" in asked.visible
        assert counter.done == 0
        done = await console.post("/things/drop", {"what": "it", "confirmed": "3"})
        assert "Dropped 3." in done.visible
        assert counter.done == 3
        (said,) = console.audited
        assert (said["event"], said["log"], said["principal"]) == ("audit-console", "audit", "you")
        assert (said["operation"], said["resource"], said["why"]) == ("things drop", "delayctl drop it", "Dropped 3.")

    tried(test, allow_changes=True)


def test_what_has_changed_since_is_asked_again() -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        counter.here = 5
        asked = await console.post("/things/drop", {"what": "it", "confirmed": "3"})
        assert "It was 3 when you were asked; now it is 5." in asked.visible
        assert counter.done == 0
        counter.here = 0
        assert "nothing to do" in (await console.post("/things/drop", {"what": "it", "confirmed": "0"})).visible
        assert counter.done == 0

    tried(test, allow_changes=True)


def test_a_read_only_console_shows_the_command_and_changes_nothing() -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        asked = await console.post("/things/drop", {"what": "it"})
        assert "delayctl drop it" in asked.visible
        assert "read-only" in asked.visible
        assert 'name="confirmed"' not in asked.text
        refused = await console.post("/things/drop", {"what": "it", "confirmed": "3"})
        assert (refused.status, counter.done) == (403, 0)
        assert console.audited == []

    tried(test)


def test_every_answer_has_the_policy_and_no_cache_keeps_it() -> None:
    async def test(console: MadeConsole, _: Counter) -> None:
        answers = [await console.ask(path) for path in ("/things", "/nothing", "/static/console.js")]
        answers += [await console.ask("/things", Host="evil"), await console.ask("/things", Cookie=None)]
        answers += [await console.ask("/things", "DELETE", Origin="http://127.0.0.1:7180")]
        for answer in answers:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answers[0].headers["Cache-Control"] == "no-store"
        assert [answer.status for answer in answers] == [200, 404, 200, 421, 401, 403]

    tried(test)


def test_text_of_others_is_never_markup() -> None:
    async def test(console: MadeConsole, _: Counter) -> None:
        pages = [
            await console.ask("/things?say=" + XSS.replace("<", "%3C").replace("#", "%23")),
            await console.post("/things/drop", {"what": XSS}),
            await console.post("/things/drop", {"what": XSS, "confirmed": "3"}),
            await console.ask("/" + XSS.replace("<", "%3C").replace("/", "%2F")),
        ]
        for page in pages:
            assert "<script>alert" not in page.text
            assert "<img src=x" not in page.text
        assert "&lt;script&gt;alert(1)" in pages[1].text

    tried(test, allow_changes=True)


def test_pages_have_nothing_inline() -> None:
    async def test(console: MadeConsole, _: Counter) -> None:
        page = (await console.ask("/things")).text
        assert " on" not in " ".join(part for part in page.split("<") if part.startswith("button"))
        assert " style=" not in page
        assert all(" src=" in part for part in page.split("<script")[1:])
        assert "http://" not in page.replace("http://127.0.0.1:7180", "").replace("http://www.w3.org", "")

    tried(test)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("from is no time"), 400),
        (NotFound("no topic", reason="UNKNOWN_TOPIC"), 404),
        (NotAllowed("alice may not Browse", reason="DENIED"), 403),
        (Unavailable("no node answers"), 503),
        (DelayError("a column too short", code="INTERNAL"), 502),
        (TimeoutError(), 504),
        (RuntimeError("secret"), 500),
    ],
)
def test_an_error_is_a_page_that_says_what(error: Exception, status: int) -> None:
    async def show(_: PageView) -> Mapping[str, Any]:
        raise error

    async def main() -> None:
        async with made_console([ConsolePage("p", "P", "/p", "error.html", show)]) as console:
            found = await console.ask("/p")
            assert found.status == status
            assert (str(error) in found.visible) == (status != 500)

    asyncio.run(main())


def test_a_form_is_bounded_and_has_no_files() -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        assert (await console.post("/things/drop", {"what": "x" * (2 << 20)})).status == 413
        assert (await console.post("/things/drop", {"what": "x" * 5_000})).status == 400
        assert counter.done == 0

    tried(test, allow_changes=True)


@pytest.mark.parametrize("text", ["console.example.com", "ftp://a", "https://a/b", "https://", "https://a?b"])
def test_an_origin_is_scheme_and_host(text: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        OwnOrigins.of([text])


def test_the_port_that_browsers_leave_out_is_left_out() -> None:
    for origin, shown in (("http://127.0.0.1:80", "http://127.0.0.1"), ("https://a.example:443", "https://a.example")):
        own = OwnOrigins.of([origin])
        own.check_host(shown.partition("//")[2])
        own.check_origin(shown, "same-origin")
        for other in (f"{shown}:8080", shown.replace("http", "ftp")):
            with pytest.raises(RequestRefused):
                own.check_origin(other, "same-origin")
    with pytest.raises(RequestRefused):
        OwnOrigins.of(["http://127.0.0.1:443"]).check_host("127.0.0.1")


def test_a_change_that_fails_is_in_the_audit_log_too() -> None:
    async def test(console: MadeConsole, counter: Counter) -> None:
        counter.fails = Unavailable("n1 has gone", code="UNAVAILABLE")
        failed = await console.post("/things/drop", {"what": "it" * 400, "confirmed": "3"})
        assert failed.status == 503
        (said,) = console.audited
        assert said["why"] == "failed, or in part: n1 has gone (UNAVAILABLE)"
        assert len(str(said["resource"])) == 500, "a command of 500 handles has thousands"

    tried(test, allow_changes=True)
