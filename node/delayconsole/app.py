"""The console's HTTP server: what is checked of each request, the routes of pages and actions, and errors as pages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import jinja2
from aiohttp import web
from delayapi.handle import BadHandle
from delayclient.errors import DelayError, NotAllowed, NotAuthenticated, NotFound, Unavailable
from delayctl.targets.errors import TargetRefused, TargetUnreachable

from delayconsole.forms import SIGN_IN_BYTES, read_form
from delayconsole.page import ActionPlan, BadInput, ConsoleAction, ConsolePage, Inputs, PageView
from delayconsole.refusals import SignInRefused
from delayconsole.render import ROOT, environment
from delayconsole.security import CSRF_FIELD, CSRF_HEADER, HEADERS, OwnHosts, OwnOrigins, RequestRefused
from delayconsole.visitor import SignIn, Visitor

MAX_FORM_BYTES: Final = 1 << 20
PAGE_S: Final = 15.0
"""A page that has not all its answers by then is an error; what it asks nodes has shorter limits of its own."""
HEALTH: Final = "/healthz"
STATIC: Final = ("static", "vendor")

VISITOR: Final = web.RequestKey("visitor", Visitor)

AUDITED_CHARS: Final = 500
"""Of a command, in the audit log: of 500 handles it has thousands."""

Audit = Callable[[Mapping[str, object]], None]
"""Takes events of the console's audit log: who changed what by it."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class ConsoleApp:
    """One console over one cluster."""

    def __init__(
        self,
        sign_in: SignIn,
        origins: OwnOrigins | OwnHosts,
        pages: Sequence[ConsolePage],
        *,
        allow_changes: bool,
        cluster: str,
        audit: Audit,
    ) -> None:
        """cluster: its name for people."""
        self._sign_in, self._origins, self._pages, self._audit = sign_in, origins, pages, audit
        self._allow_changes, self._cluster = allow_changes, cluster
        self._templates = environment()
        self._open = frozenset(route.path for route in sign_in.routes())

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guarded], client_max_size=MAX_FORM_BYTES)
        app.router.add_routes(self._sign_in.routes())
        app.router.add_get("/", self._home)
        app.router.add_get(HEALTH, self._home)
        for folder in STATIC:
            app.router.add_static(f"/{folder}", ROOT / folder)
        for page in self._pages:
            for one in (page, *page.more):
                app.router.add_get(one.path, self._page_handler(one))
                for action in one.actions:
                    app.router.add_post(one.action_path(action), self._action_handler(one, action))
        return app

    # ---------------------------------------------------------------------------------- every request

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            answer = await self._admitted(request, handler)
        except web.HTTPException as error:
            answer = self._error(request, error.status, error.text or error.reason)
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
        except RequestRefused as error:
            answer = self._error(request, error.status, str(error))
        except SignInRefused as error:
            answer = self._sign_in_page(request, str(error), 403)
        except TargetRefused as error:
            answer = self._error(request, 409, str(error))
        except TargetUnreachable as error:
            answer = self._error(request, 503, str(error))
        except (BadInput, BadHandle) as error:
            answer = self._error(request, 400, str(error))
        except DelayError as error:
            answer = self._error(request, status_of(error), str(error))
        except TimeoutError:
            answer = self._error(request, 504, "The cluster has not answered in time. Look again, or at fewer shards.")
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            answer = self._error(request, 500, "The console failed; its log says why.")
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == HEALTH:  # the kubelet asks by an address
            return web.Response(text="ok")
        self._origins.check_host(request.headers.get("Host", ""))
        if request.path.startswith(tuple(f"/{folder}/" for folder in STATIC)):
            answer = await handler(request)
            answer.headers["Cache-Control"] = "no-cache"  # asked for again by its ETag
            return answer
        if request.method not in ("GET", "HEAD"):
            self._origins.check_origin(request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site"))
        if request.path in self._open:
            return await handler(request.clone(client_max_size=SIGN_IN_BYTES))
        visitor = await self._sign_in.visitor(request)
        if visitor is None:
            return self._sign_in_page(request, "", 401)
        request[VISITOR] = visitor
        if request.method not in ("GET", "HEAD"):
            form = await read_form(request)
            if any(not isinstance(text, str) for text in form.values()):
                raise BadInput("the form has a file in it; expected texts")
            visitor.session.check_csrf(request.headers.get(CSRF_HEADER) or str(form.get(CSRF_FIELD, "")))
        return await handler(request)

    # ------------------------------------------------------------------------------ pages and actions

    async def _home(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=303, headers={"Location": self._pages[0].path})

    def _page_handler(self, page: ConsolePage) -> Handler:
        async def shown(request: web.Request) -> web.StreamResponse:
            view = self._view(request)
            async with asyncio.timeout(PAGE_S):
                found = await page.show(view)
            if isinstance(found, web.StreamResponse):
                return found
            return self._rendered(request, page.template, {**found, "view": view, "page": page})

        return shown

    def _action_handler(self, page: ConsolePage, action: ConsoleAction) -> Handler:
        async def posted(request: web.Request) -> web.StreamResponse:
            view = self._view(request, await request.post())
            async with asyncio.timeout(action.limit_s):
                plan = await action.plan(view)
                confirmed = view.form.text("confirmed")
                context = {"view": view, "page": page, "action": action, "plan": plan, "before": confirmed}
                if not plan.count or confirmed != str(plan.count):
                    return self._rendered(request, "confirm.html", context)
                if not self._allow_changes:
                    raise RequestRefused(403, "this console is read-only: start it with --allow-changes")
                try:
                    result = await action.run(view, plan)
                except BaseException as error:
                    self._audited(view, page, action, plan, f"failed, or in part: {error or type(error).__name__}")
                    raise
            self._audited(view, page, action, plan, result.summary)
            return self._rendered(request, "done.html", {**context, "result": result})

        return posted

    def _audited(self, view: PageView, page: ConsolePage, action: ConsoleAction, plan: ActionPlan, came: str) -> None:
        self._audit({
            "event": "audit-console", "log": "audit", "principal": view.visitor.name,
            "operation": f"{page.name} {action.name}", "resource": plan.command[:AUDITED_CHARS], "why": came,
        })  # fmt: skip

    def _view(self, request: web.Request, form: Mapping[str, Any] | None = None) -> PageView:
        query = {name: request.query.getall(name) for name in request.query}
        posted = {} if form is None else {name: form.getall(name) for name in form}  # type: ignore[attr-defined]
        posted.pop(CSRF_FIELD, None)
        return PageView(
            request[VISITOR],
            Inputs(query),
            time.time_ns() // 1_000_000,
            request.path_qs,
            self._allow_changes,
            Inputs(posted),
        )

    # ---------------------------------------------------------------------------------------- answers

    def _sign_in_page(self, request: web.Request, problem: str, status: int) -> web.StreamResponse:
        return self._rendered(request, "sign_in.html", {"problem": problem, **self._sign_in.invitation()}, status)

    def _error(self, request: web.Request, status: int, message: str) -> web.StreamResponse:
        return self._rendered(request, "error.html", {"status": status, "message": message}, status=status)

    def _rendered(
        self, request: web.Request, template: str, context: Mapping[str, Any], status: int = 200
    ) -> web.StreamResponse:
        """The whole page; for a request of htmx the block `main` alone."""
        visitor: Visitor | None = request.get(VISITOR)
        known = {
            "pages": self._pages,
            "page": None,
            "visitor": visitor,
            "cluster": self._cluster,
            "allow_changes": self._allow_changes,
            "layout": "fragment.html" if request.headers.get("HX-Request") else "layout.html",
            "csrf": visitor.session.csrf if visitor is not None else "",
        }
        try:
            text = self._templates.get_template(template).render(known | dict(context))
        except jinja2.TemplateError:
            if template == "error.html":
                raise
            _log.exception("%s cannot be rendered", template)
            return self._error(request, 500, "The console failed; its log says why.")
        return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)


def status_of(error: DelayError) -> int:
    """HTTP's status for an error of the cluster."""
    match error:
        case NotAuthenticated() | NotAllowed():
            return 403
        case NotFound():
            return 404
        case Unavailable():
            return 503
    return 400 if error.code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION") else 502
